"""The world of the attribution benchmark: packed samples of five sources, a model trained on them, windows with poison.

Everything is a pure function of text and seed. Clean steps deal each source's samples in a shuffled order, so that no
sample comes twice before all have come once. A window has 3 clean, 6 dirty and 3 clean steps of documents that the
model has not seen; dirty steps also hold innocents of domains that occur nowhere else.

Legend: B samples, T tokens.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.spikes import Piece, make_batch

from benchmarks.spike_poison import KINDS
from benchmarks.spike_text import Text
from dataprep.pack import pack_window
from loader.stream.batch import Batch
from train.attention import choose_attention
from train.inputs import InputOptions, to_inputs
from train.model import Decoder, ModelShape
from train.optim import Optimizer
from train.optim_config import OptimizerConfig
from train.precision import PRECISIONS
from train.spikes.records import FrozenModel
from train.state import TrainState
from train.step import StepOptions, StepPlan, train_step
from train.world import World

__all__ = [
    "MADE_KINDS",
    "NEW_FROM",
    "POISON_FROM",
    "SHIFT_FROM",
    "SOURCE_NAMES",
    "Bench",
    "Plan",
    "Run",
    "cut",
    "make_batch",
]

SEQ_LEN, GLOBAL_BATCH = 256, 8
WEIGHTS = {"english": 0.30, "code": 0.25, "man": 0.15, "intl": 0.15, "math": 0.15}
SOURCE_NAMES = (*WEIGHTS, "new", "planted")
NEW_FROM, SHIFT_FROM, POISON_FROM = 1 << 39, 1 << 40, 1 << 41
"""Document numbers: innocents of a new domain; the good new content of a source that shifts whole; poison."""
PHASES = ((3, False), (6, True), (3, False))
MADE_KINDS = tuple(KINDS)

Numbered = tuple[int, NDArray[np.int32]]
Sample = tuple[int, list[Piece]]


@dataclass(frozen=True)
class Plan:
    """What the dirty steps of one window hold.

    Attributes:
        kinds: of poison, in turn. share: of the dirty steps' tokens that is poison.
        place: ``scattered`` over the sources, ``planted`` as a source of its own, or the name of a source all of whose
        dirty documents are poison (or, with ``shift``, documents of that innocent domain).
        trial: number of the window. new: domain of the new source; within: (source, domain) of the new documents
        inside sources; new_share: tokens of each of them.
    """

    kinds: tuple[str, ...]
    share: float
    place: str
    trial: int
    new: str = "c"
    within: tuple[tuple[str, str], ...] = (("man", "polish"),)
    new_share: float = 0.05
    shift: str = ""


def pieces_of(documents: Iterable[Numbered]) -> list[Piece]:
    """Documents cut at the sample length."""
    return [
        (number, d[a : a + SEQ_LEN].astype(np.int64))
        for number, d in documents
        for a in range(0, len(d), SEQ_LEN)
        if len(d) - a > 2
    ]


def pack(source: int, pieces: Sequence[Piece], key: int) -> list[Sample]:
    """Best fit into samples of one source."""
    if not pieces:
        return []
    packed = pack_window(np.array([len(tokens) for _, tokens in pieces]), SEQ_LEN, key)
    samples: list[Sample] = [(source, []) for _ in range(packed.num_samples)]
    for document, sample in zip(packed.document_P.tolist(), packed.sample_P.tolist(), strict=True):
        samples[sample][1].append(pieces[document])
    return samples


def _taken(pool: list[Numbered], tokens: float) -> Iterator[Numbered]:
    while tokens > 0 and pool:
        tokens -= len(pool[-1][1])
        yield pool.pop()


class Bench:
    """One seed: a stream of clean steps, held-out samples, and windows."""

    def __init__(self, text: Text, seed: int) -> None:
        self.text, self.seed = text, seed
        self.weights = {name: w for name, w in WEIGHTS.items() if name in text.documents}
        r = random.Random(f"split {seed}")
        self.held_out: list[Sample] = []
        self._train: dict[str, list[Sample]] = {}
        self._rest: dict[str, list[Numbered]] = {}
        number = 1
        for name in self.weights:
            documents = r.sample(text.documents[name], len(text.documents[name]))
            numbered = list(enumerate(documents, number))
            number += len(numbered)
            source, held, kept = SOURCE_NAMES.index(name), max(12, len(numbered) // 20), len(numbered) * 7 // 10
            self.held_out += pack(source, pieces_of(numbered[:held]), seed)[:6]
            self._train[name] = pack(source, pieces_of(numbered[held:kept]), seed)
            r.shuffle(self._train[name])
            self._rest[name] = numbered[kept:]

    def clean(self, steps: int) -> list[Batch]:
        """The first steps of the stream, sources in turn by weight."""
        r = random.Random(f"deal {self.seed}")
        due = {name: r.random() for name in self.weights}
        at = dict.fromkeys(self.weights, 0)
        out = []
        for step in range(steps):
            samples = []
            for _ in range(GLOBAL_BATCH):
                for name, weight in self.weights.items():
                    due[name] += weight
                name = max(due, key=lambda n: due[n])
                due[name] -= sum(self.weights.values())
                samples.append(self._train[name][at[name] % len(self._train[name])])
                at[name] += 1
            out.append(make_batch(step, samples, SEQ_LEN))
        return out

    def _poison(self, r: random.Random, kinds: Sequence[str], tokens: float) -> list[Numbered]:
        out: list[Numbered] = []
        total = 0
        while total < tokens:
            size = int(min(700, max(24, r.lognormvariate(4.9, 0.8))))
            kind = kinds[len(out) % len(kinds)]
            ids = self.text.encode(KINDS[kind](r, 160 * size, self.text.words))[:size]
            out.append((POISON_FROM + MADE_KINDS.index(kind) * 10**6 + len(out), ids))
            total += len(ids)
        return out

    def _innocents(self, r: random.Random, plan: Plan, room: float) -> Iterator[tuple[str, list[Numbered]]]:
        """The good new domains: as a source of their own, and inside of known ones."""
        for i, (where, domain) in enumerate((("new", plan.new), *plan.within)):
            texts = self.text.innocents.get(domain, [])
            pool = [(NEW_FROM + i * 10**6 + j, d) for j, d in enumerate(r.sample(texts, len(texts)))]
            limit = 0.4 * room * plan.new_share
            yield where, list(_taken([d for d in pool if len(d[1]) < limit], room * plan.new_share))

    def _dirty(self, r: random.Random, plan: Plan, room: int) -> dict[str, list[Numbered]]:
        """What a dirty phase holds beside ordinary documents, by source."""
        out: dict[str, list[Numbered]] = {}
        for where, documents in self._innocents(r, plan, room):
            out.setdefault(where, []).extend(documents)
        if plan.shift:
            texts = self.text.innocents[plan.shift]
            pool = [(SHIFT_FROM + j, d) for j, d in enumerate(r.sample(texts, len(texts)))]
            out.setdefault(plan.place, []).extend(_taken(pool, room * self.weights[plan.place]))
            return out
        whole = plan.place in self.weights
        for document in self._poison(r, plan.kinds, room * (self.weights[plan.place] if whole else plan.share)):
            where = r.choice(list(self.weights)) if plan.place == "scattered" else plan.place
            out.setdefault(where, []).append(document)
        return out

    def window(self, first_step: int, plan: Plan) -> list[Batch]:
        """3 clean, 6 dirty and 3 clean steps."""
        r = random.Random(f"window {self.seed} {plan.trial}")
        rest = {name: r.sample(documents, len(documents)) for name, documents in self._rest.items()}
        batches: list[Batch] = []
        for steps, dirty in PHASES:
            room = steps * GLOBAL_BATCH * SEQ_LEN
            by_source = self._dirty(r, plan, room) if dirty else {}
            left = room - sum(len(d) for documents in by_source.values() for _, d in documents)
            whole = plan.place if dirty and plan.place in self.weights else ""
            shares = {name: weight for name, weight in self.weights.items() if name != whole}
            for name, weight in shares.items():
                ordinary = list(_taken(rest[name], 1.15 * left * weight / sum(shares.values())))
                by_source.setdefault(name, []).extend(ordinary)
            samples = [
                sample
                for i, name in enumerate(SOURCE_NAMES)
                for sample in pack(i, pieces_of(by_source.get(name, [])), plan.trial)
            ]
            r.shuffle(samples)
            samples.sort(key=lambda s: not any(d >= NEW_FROM for d, _ in s[1]))  # surplus is ordinary
            samples = samples[: steps * GLOBAL_BATCH]
            r.shuffle(samples)
            for i in range(0, len(samples) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
                batches.append(make_batch(first_step + len(batches), samples[i : i + GLOBAL_BATCH], SEQ_LEN))
        return batches


def cut(batch: Batch, documents: NDArray[np.uint64]) -> Batch:
    """The batch with these documents' labels ignored and their tokens overwritten, as the loader cuts."""
    tokens_BT, labels_BT = batch.tokens_BT.copy(), batch.labels_BT.copy()
    table = batch.segments
    for row in np.flatnonzero(np.isin(table.document_id_S, documents) & ~table.padding_S):
        start = int(table.token_start_S[row])
        place = int(table.sample_index_S[row]), slice(start, start + int(table.num_tokens_S[row]))
        tokens_BT[place], labels_BT[place] = 0, -100
    return dataclasses.replace(batch, tokens_BT=tokens_BT, labels_BT=labels_BT)


class Run:
    """A model in training, one thread, fp32."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        attention = choose_attention(None, device, SEQ_LEN)
        shape = ModelShape(vocabulary, 128, 3, 4, 4, 384, SEQ_LEN)
        self.model = Decoder(shape, attention, PRECISIONS["fp32"]).initialize(seed)
        self.options = InputOptions(device, attention, torch.float32)
        self._optimizer = Optimizer(list(self.model.named_parameters()), OptimizerConfig())
        self._state = TrainState((self.model,), self._optimizer)
        self._step_options = StepOptions(self.options, None, SOURCE_NAMES, World())

    def step(self, batch: Batch) -> float:
        """One training step; its loss."""
        lr = 3e-3 * min(1.0, (batch.step + 1) / 20)
        labels = int(np.count_nonzero(batch.labels_BT >= 0))
        plan = StepPlan(int(batch.positions_B[0]), len(batch.positions_B), lr, labels)
        return train_step(self._state, batch, plan, self._step_options).read().record.loss

    def tensors(self) -> dict[str, Any]:
        """Parameters and optimizer, copied."""
        kept = {f"model {name}": value for name, value in self.model.state_dict().items()}
        kept |= {f"optimizer {name}": value for name, value in self._optimizer.state_tensors()}
        return copy.deepcopy(kept)

    def load(self, tensors: dict[str, Any]) -> None:
        """Back to what ``tensors`` gave."""
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(tensors[f"model {name}"])
            for name, value in self._optimizer.state_tensors():
                value.copy_(tensors[f"optimizer {name}"])

    def frozen(self) -> FrozenModel:
        """The weights as they are, for scoring."""

        def hidden(batch: Batch) -> torch.Tensor:
            return self.model.hidden(to_inputs(batch, self.options))

        return FrozenModel(0, 0, hidden, self.model.head.weight.detach())
