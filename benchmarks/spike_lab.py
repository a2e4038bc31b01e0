"""A small world for the spike benchmarks: real text in packed samples, a model trained on it, poison and innocents.

Sources: the demo's four. Innocents that the model has never seen: C and C++ headers (a new source, 6 % of the dirty
steps), and files of other languages inside ``packages`` (5 %). Windows hold 3 clean, 6 dirty and 3 clean steps.

Legend: B samples, T tokens.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.spikes import Piece, make_batch

from dataprep.config import SentencepieceTrainConfig
from dataprep.pack import pack_window
from dataprep.tokenizer_stage import train_sentencepiece
from loader.demo_corpus import CorpusCaps, gather
from loader.demo_poison import KINDS
from loader.stream.batch import Batch
from loader.text.tokenizers import SentencepieceTokenizer
from train.attention import choose_attention
from train.config import OptimizerConfig
from train.inputs import InputOptions, to_inputs
from train.model import Decoder, ModelShape
from train.optim import Optimizer
from train.precision import PRECISIONS
from train.spikes.records import FrozenModel
from train.step import StepOptions, train_step
from train.world import World

SEQ_LEN, GLOBAL_BATCH, VOCABULARY = 256, 8, 2048
WEIGHTS = {"stdlib": 0.3, "packages": 0.3, "docs": 0.2, "meta": 0.2}
SOURCES = (*WEIGHTS, "headers", "planted")
POISON_FROM, NEW_FROM = 1 << 40, 1 << 39
"""Document numbers from which on a document is poison, or an innocent of a new kind."""

Sample = tuple[int, list[Piece]]


@dataclass(frozen=True)
class Text:
    """Tokenised documents by source, the innocents, and the tokenizer."""

    documents: Mapping[str, list[NDArray[np.int64]]]
    headers: list[NDArray[np.int64]]
    others: list[NDArray[np.int64]]
    words: list[str]
    tokenizer: SentencepieceTokenizer

    def encode(self, text: str) -> NDArray[np.int64]:
        """Tokens of a text."""
        return self.tokenizer.encode(text)[0].astype(np.int64)

    def token_bytes(self) -> list[bytes]:
        """Bytes of each token id."""
        return [self.tokenizer.decode_bytes([t]) for t in range(self.tokenizer.vocab_size)]


def read_text(with_innocents: bool) -> Text:
    """The text of this installation, with or without innocents (they take a walk over all packages).

    Documents are cut to log-normal lengths, so that short and long segments both occur.
    """
    r = random.Random(0)

    def cut(text: str) -> str:
        size = int(r.lognormvariate(7.0, 1.1))
        start = r.randrange(max(1, len(text) - size)) if r.random() < 0.5 else 0
        return text[start : start + size]

    caps = CorpusCaps(3_000_000, 3_000_000, 1_200_000, 1_200_000, package_bytes=120_000)
    gathered = gather(caps)
    raw = {name: [cut(text) for _, text in records] for name, records in gathered.items()}
    for name in ("stdlib", "packages", "meta"):  # more, shorter documents
        raw[name] += [cut(text) for _, text in gathered[name] for _ in range(3)]
    model = train_sentencepiece(
        iter([t for texts in raw.values() for t in texts[:400]]),
        SentencepieceTrainConfig(vocab_size=VOCABULARY, sample_bytes=2_000_000),
    )
    tokenizer = SentencepieceTokenizer(model)
    encode = lambda texts: [tokenizer.encode(t)[0].astype(np.int64) for t in texts if len(t) > 24]  # noqa: E731
    documents = {name: encode(texts) for name, texts in raw.items()}
    words = sorted({w for t in raw["docs"][:500] for w in t.split() if w.isalpha() and 2 < len(w) < 13})
    paths = sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")) if with_innocents else []

    def innocents(suffixes: tuple[str, ...], count: int) -> list[NDArray[np.int64]]:
        known = [p for p in paths if p.suffix in suffixes and 200 < p.stat().st_size < 100_000]
        return encode([cut(p.read_text("utf-8", "ignore")) for p in r.sample(known, min(count, len(known)))])

    headers = innocents((".h", ".hpp", ".cpp", ".c"), 600)
    return Text(documents, headers, innocents((".cu", ".cuh", ".pyx", ".proto", ".js", ".css"), 250), words, tokenizer)


def pieces_of(documents: Iterable[tuple[int, NDArray[np.int64]]]) -> list[Piece]:
    """Documents cut at the sample length."""
    return [
        (number, d[a : a + SEQ_LEN]) for number, d in documents for a in range(0, len(d), SEQ_LEN) if len(d) - a > 2
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


class Bench:
    """One seed: a stream of clean steps and windows with poison, all pure functions of the seed."""

    def __init__(self, text: Text, seed: int) -> None:
        self.text, self.seed = text, seed
        r = random.Random(seed)
        self._train: list[list[Sample]] = []
        self._rest: list[list[tuple[int, NDArray[np.int64]]]] = []
        number = 1
        for source, name in enumerate(WEIGHTS):
            documents = list(text.documents[name])
            r.shuffle(documents)
            numbered = list(enumerate(documents, number))
            number += len(documents)
            kept = len(numbered) * 7 // 10
            self._train.append(pack(source, pieces_of(numbered[:kept]), seed))
            self._rest.append(numbered[kept:])

    def clean(self, step: int) -> Batch:
        """A clean step."""
        r = random.Random(f"{self.seed} {step}")
        chosen = r.choices(range(len(WEIGHTS)), list(WEIGHTS.values()), k=GLOBAL_BATCH)
        return make_batch(step, [r.choice(self._train[source]) for source in chosen], SEQ_LEN)

    def _poison(self, r: random.Random, kinds: Sequence[str], tokens: int) -> list[tuple[int, NDArray[np.int64]]]:
        out, total = [], 0
        while total < tokens:
            kind = kinds[len(out) % len(kinds)]
            size = int(min(700, max(24, r.lognormvariate(4.9, 0.8))))
            ids = self.text.encode(KINDS[kind](r, 160 * size, self.text.words))[:size]
            out.append((POISON_FROM + len(out), ids))
            total += len(ids)
        return out

    def window(self, first_step: int, kinds: Sequence[str], trial: int, share: float, planted: bool) -> list[Batch]:
        """3 clean, 6 dirty and 3 clean steps of text that the model has not seen."""
        r = random.Random(f"{self.seed} {trial}")
        rest = [r.sample(documents, len(documents)) for documents in self._rest]
        batches: list[Batch] = []
        for steps, dirty in ((3, False), (6, True), (3, False)):
            room = steps * GLOBAL_BATCH * SEQ_LEN
            by_source: list[list[tuple[int, NDArray[np.int64]]]] = [[] for _ in SOURCES]
            for source, weight in enumerate(WEIGHTS.values()):
                left = room * weight * (1 - (share + 0.11) * dirty) * 1.1
                while left > 0 and rest[source]:
                    by_source[source].append(rest[source].pop())
                    left -= len(by_source[source][-1][1])
            if dirty:
                for source, share_of, texts in ((4, 0.06, self.text.headers), (1, 0.05, self.text.others)):
                    taken = 0
                    for i, tokens in enumerate(r.sample(texts, len(texts))):
                        if taken < share_of * room and len(tokens) < 0.5 * share_of * room:
                            by_source[source].append((NEW_FROM + source * 10**6 + i, tokens))
                            taken += len(tokens)
                for number, ids in self._poison(r, kinds, int(room * share)):
                    by_source[5 if planted else r.randrange(4)].append((number, ids))
            samples = [s for i, ds in enumerate(by_source) for s in pack(i, pieces_of(ds), trial)]
            samples.sort(key=lambda s: not any(d >= NEW_FROM for d, _ in s[1]))
            samples = samples[: steps * GLOBAL_BATCH]
            r.shuffle(samples)
            for i in range(0, len(samples) - GLOBAL_BATCH + 1, GLOBAL_BATCH):
                batches.append(make_batch(first_step + len(batches), samples[i : i + GLOBAL_BATCH], SEQ_LEN))
        return batches


class Run:
    """A model in training, one thread, fp32."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        attention = choose_attention(None, device, SEQ_LEN)
        shape = ModelShape(VOCABULARY, 128, 3, 4, 4, 384, SEQ_LEN)
        self.model = Decoder(shape, attention, PRECISIONS["fp32"]).initialize(seed)
        self.options = InputOptions(device, attention, torch.float32)
        self._optimizer = Optimizer(list(self.model.named_parameters()), OptimizerConfig())
        self._step_options = StepOptions(self.options, None, SOURCES, World())

    def step(self, batch: Batch) -> float:
        """One training step; its loss."""
        lr = 3e-3 * min(1.0, (batch.step + 1) / 20)
        return train_step(self.model, self._optimizer, batch, lr, self._step_options).read().record.loss

    def frozen(self) -> FrozenModel:
        """The weights as they are, for scoring."""

        def hidden(batch: Batch) -> torch.Tensor:
            return self.model.hidden(to_inputs(batch, self.options))

        return FrozenModel(0, 0, hidden, self.model.head.weight.detach())


def train_base(bench: Bench, steps: int, say: Callable[[str], None]) -> Run:
    """Train on clean steps."""
    run = Run(bench.seed)
    for step in range(steps):
        loss = run.step(bench.clean(step))
        if step % 50 == 49:
            say(f"seed {bench.seed} step {step + 1} loss {loss:.2f}")
    return run
