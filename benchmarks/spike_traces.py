"""Traces of real training for the spike detectors: a clean run, and branches of it with poison, new text and ramps.

    python benchmarks/spike_traces.py [--seed N] [--steps N] [--out FILE]

A model of 30,000 parameters is trained on real text of five sources by the trainer's own step, with planned changes of
the mixture and a falling learning rate; what each step's packed vector says is kept. At five points of the run its
state is put aside, and 40 steps are trained on each kind of window; then it goes on as if nothing had been. A trace
without windows that nobody poisoned says nothing of misses, and one of made noise says nothing of false alarms.

The recorded file (``data/spike_traces.npz``) is seed 0; the slow test trains seed 1 afresh. Losses are rounded to 1/256
nat and norms to 10 bits, far below their noise.

Legend: N steps, W windows, S sources.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.spikes import make_batch

from dataprep.config import SentencepieceTrainConfig
from dataprep.tokenizer_stage import train_sentencepiece
from loader.demo_corpus import CorpusCaps, gather
from loader.demo_poison import KINDS
from loader.stream.batch import Batch
from loader.text.tokenizers import SentencepieceTokenizer
from train.attention import choose_attention
from train.inputs import InputOptions
from train.model import Decoder, ModelShape
from train.optim import Optimizer
from train.optim_config import OptimizerConfig, ScheduleConfig
from train.precision import PRECISIONS
from train.schedule import learning_rate
from train.spikes.records import StepRecord
from train.state import TrainState
from train.step import StepOptions, StepPlan, train_step
from train.world import World

__all__ = ["BATCH", "RECORDED", "SOURCES", "Traces", "Window", "load_traces", "record", "save_traces"]

SEQ_LEN, BATCH, VOCABULARY, DIM = 32, 16, 512, 24
STEPS, WINDOW_STEPS, LR = 30_000, 40, 3e-3
SOURCES = ("stdlib", "packages", "docs", "meta", "headers", "planted", "fresh")
"""Five that the mixture plans, one for planted poison, and one of good text that the mixture never held."""
_SHARES = (
    (0.30, 0.25, 0.20, 0.15, 0.10),
    (0.10, 0.10, 0.20, 0.50, 0.10),
    (0.45, 0.35, 0.05, 0.05, 0.10),
    (0.15, 0.15, 0.10, 0.10, 0.50),
)
_BRANCHES = (0.15, 0.35, 0.45, 0.65, 0.9)
"""Parts of the run after which windows branch off; the mixture changes at quarters."""
_POISON_SHARES = (0.2, 0.225, 0.25, 0.275, 0.3)
_RAMP_STEPS = 15
RECORDED = Path(__file__).resolve().parent / "data" / "spike_traces.npz"

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """What a branch was trained on.

    Attributes:
        kind: a kind of ``KINDS``, ``mix`` (all, scattered over the sources), ``planted`` (all, as a source of its own),
            ``new source`` and ``new pages`` (good text that the mixture never held, as a source and inside one),
            ``ramp`` and ``planted ramp`` (all kinds, from nothing to the share within 15 steps).
        step: the first step. share: of the samples, at its highest. records: its steps.
    """

    kind: str
    step: int
    share: float
    records: tuple[StepRecord, ...]


@dataclass(frozen=True)
class Traces:
    """A clean run and its windows; ``stages`` as ``SpikeWatch`` takes them."""

    seed: int
    stages: tuple[tuple[int, Mapping[str, float]], ...]
    clean: tuple[StepRecord, ...]
    windows: tuple[Window, ...]


class Text:
    """Real text in pieces of one sample's length, by source, and how poison becomes tokens."""

    def __init__(self) -> None:
        r = random.Random(0)
        gathered = gather(CorpusCaps(1_500_000, 1_500_000, 1_000_000, 1_000_000, package_bytes=60_000))
        raw = {name: [text for _, text in records] for name, records in gathered.items()}
        paths = [p for p in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")) if p.is_file()]

        def files(suffixes: tuple[str, ...], count: int) -> list[str]:
            known = [p for p in paths if p.suffix in suffixes and 400 < p.stat().st_size < 60_000]
            return [p.read_text("utf-8", "ignore") for p in r.sample(known, min(count, len(known)))]

        raw["headers"] = files((".h", ".hpp", ".cuh"), 250)
        raw["fresh"] = files((".js", ".css", ".proto", ".pyx", ".html", ".cmake", ".csv"), 150)
        sample = [text[:4000] for name, texts in raw.items() if name != "fresh" for text in texts[:150]]
        config = SentencepieceTrainConfig(vocab_size=VOCABULARY, sample_bytes=1_000_000)
        self._tokenizer = SentencepieceTokenizer(train_sentencepiece(iter(sample), config))
        self.pieces = {name: self._cut(texts) for name, texts in raw.items()}
        self._words = sorted({w for t in raw["docs"][:500] for w in t.split() if w.isalpha() and 2 < len(w) < 13})

    def _cut(self, texts: Sequence[str]) -> Tokens:
        """(pieces, SEQ_LEN); a document's last, shorter piece is left out."""
        cut = []
        for text in texts:
            ids = self._tokenizer.encode(text)[0].astype(np.int64)
            cut.append(ids[: len(ids) // SEQ_LEN * SEQ_LEN].reshape(-1, SEQ_LEN))
        return np.concatenate(cut)

    def poison(self, r: random.Random, kinds: Sequence[str], count: int) -> Iterator[Tokens]:
        """``count`` pieces of poison, from documents of 32 to 700 tokens, the kinds in turn."""
        made = 0
        turn = r.randrange(len(kinds))
        while made < count:
            size = int(min(700, max(SEQ_LEN, r.lognormvariate(4.9, 0.8))))
            kind, turn = kinds[turn % len(kinds)], turn + 1
            for piece in self._cut([KINDS[kind](r, 12 * size, self._words)])[: size // SEQ_LEN][: count - made]:
                yield piece
                made += 1


def _counts(steps: int) -> NDArray[np.int64]:
    """(steps, 5): samples of each planned source; each stage's shares are kept up with step by step."""
    out = np.zeros((steps, 5), np.int64)
    for stage, shares in enumerate(_SHARES):
        first, stop = stage * steps // 4, (stage + 1) * steps // 4
        owed = np.zeros(5)
        for step in range(first, stop):
            owed += np.array(shares) * BATCH
            given = np.floor(owed).astype(np.int64).clip(0)
            order = np.argsort(given - owed, kind="stable")
            given[order[: BATCH - given.sum()]] += 1
            out[step] = given
            owed -= given
    return out


class Lab:
    """A model in training on one thread, and the samples of each step: pure functions of seed and step."""

    def __init__(self, text: Text, seed: int, steps: int) -> None:
        torch.set_num_threads(1)
        self.text, self.seed = text, seed
        self._counts = _counts(steps)
        device = torch.device("cpu")
        attention = choose_attention(None, device, SEQ_LEN)
        shape = ModelShape(VOCABULARY, DIM, 1, 2, 2, 2 * DIM, SEQ_LEN)
        model = Decoder(shape, attention, PRECISIONS["fp32"]).initialize(seed)
        self.state = TrainState((model,), Optimizer(list(model.named_parameters()), OptimizerConfig()))
        self._options = StepOptions(InputOptions(device, attention, torch.float32), None, SOURCES, World())
        self._schedule = ScheduleConfig("cosine", 100 * BATCH, steps * BATCH)

    def samples(self, step: int, salt: str = "") -> list[tuple[int, Tokens]]:
        """(source, tokens) of a clean step; ``salt`` draws other samples of the same sources."""
        r = np.random.default_rng([self.seed, step, *salt.encode()])
        out = []
        for source, count in enumerate(self._counts[step].tolist()):
            pieces = self.text.pieces[SOURCES[source]]
            out += [(source, pieces[i]) for i in r.integers(0, len(pieces), count).tolist()]
        return out

    def train(self, step: int, samples: Sequence[tuple[int, Tokens]]) -> StepRecord:
        """One step of training; what its packed vector says."""
        pieces = [(source, [(step * BATCH + i + 1, tokens)]) for i, (source, tokens) in enumerate(samples)]
        lr, labels = learning_rate(step * BATCH, LR, self._schedule), len(samples) * (SEQ_LEN - 1)
        plan = StepPlan(step * BATCH, BATCH, lr, labels)
        batch: Batch = make_batch(step, pieces, SEQ_LEN)
        return train_step(self.state, batch, plan, self._options).read().record

    def window(self, kind: str, step: int, share: float) -> Window:
        """Trains a window's 40 steps, then puts the state back."""
        kept = {name: tensor.clone() for name, tensor in self.state.tensors().items()}
        r = random.Random(f"{self.seed} {kind} {step}")
        kinds = [kind] if kind in KINDS else list(KINDS)
        strange = self.text.poison(r, kinds, WINDOW_STEPS * BATCH)
        if kind.startswith("new"):
            fresh = self.text.pieces["fresh"]
            strange = (fresh[r.randrange(len(fresh))] for _ in range(WINDOW_STEPS * BATCH))
        own = {"planted": 5, "planted ramp": 5, "new source": 6, "new pages": 1}.get(kind)
        records = []
        for i in range(WINDOW_STEPS):
            samples = self.samples(step + i, kind)
            now = share * min(1.0, (i + 1) / _RAMP_STEPS) if "ramp" in kind else share
            count = int(now * BATCH * (i + 1)) - int(now * BATCH * i) if "ramp" not in kind else round(now * BATCH)
            for place in r.sample(range(BATCH), count):
                samples[place] = (samples[place][0] if own is None else own, next(strange))
            records.append(self.train(step + i, samples))
        for name, tensor in self.state.tensors().items():
            tensor.copy_(kept[name])
        return Window(kind, step, share, tuple(records))


def record(seed: int, steps: int = STEPS, keep: Callable[[Traces], None] = lambda traces: None) -> Traces:
    """Trains the clean run and all windows; ``keep`` sees what there is after each branch."""
    lab = Lab(Text(), seed, steps)
    stages = tuple(
        (i * steps // 4 * BATCH, dict(zip(SOURCES, shares, strict=False))) for i, shares in enumerate(_SHARES)
    )
    kinds = (*KINDS, "mix", "planted", "new source", "new pages", "ramp", "planted ramp")
    branches = {int(part * steps): share for part, share in zip(_BRANCHES, _POISON_SHARES, strict=True)}
    clean: list[StepRecord] = []
    windows: list[Window] = []
    for step in range(steps):
        if step in branches:
            digest = lab.state.digest()
            windows += [lab.window(kind, step, branches[step]) for kind in kinds]
            assert lab.state.digest() == digest
            keep(Traces(seed, stages, tuple(clean), tuple(windows)))
        clean.append(lab.train(step, lab.samples(step)))
    return Traces(seed, stages, tuple(clean), tuple(windows))


# --- the file
# ----------------------------------------------------------------------------------------------------------


def _columns(records: Sequence[StepRecord]) -> dict[str, NDArray[Any]]:
    """Source means (N, S), their label counts (N, S), both norms (N, 2)."""
    table = [[r.source_loss.get(name, (0.0, 0)) for name in SOURCES] for r in records]
    sums, labels = (np.array([[cell[i] for cell in line] for line in table]) for i in (0, 1))
    norms = np.array([(r.grad_norm, r.update_norm) for r in records])
    mantissa, exponent = np.frexp(norms)
    return {
        "loss": (np.round(sums / np.maximum(labels, 1) * 256) / 256).astype(np.float32),
        "labels": labels.astype(np.uint16),
        "norms": np.ldexp(np.round(mantissa * 1024) / 1024, exponent).astype(np.float32),
    }


def _records(columns: Mapping[str, NDArray[Any]], first_step: int) -> tuple[StepRecord, ...]:
    out = []
    lines = (columns[name].tolist() for name in ("loss", "labels", "norms"))
    for step, (means, labels, norms) in enumerate(zip(*lines, strict=True), first_step):
        sources = {
            name: (mean * count, count) for name, mean, count in zip(SOURCES, means, labels, strict=True) if count
        }
        total = sum(labels)
        loss = sum(value for value, _ in sources.values()) / total
        place = (step, step * BATCH, (step + 1) * BATCH)
        out.append(StepRecord(*place, loss, norms[0], norms[1], total, sources, True))
    return tuple(out)


def save_traces(path: Path, traces: Traces) -> None:
    """Writes the traces, compressed."""
    every = [*traces.clean, *(r for window in traces.windows for r in window.records)]
    arrays: dict[str, Any] = {
        "seed": np.array(traces.seed),
        "clean_steps": np.array(len(traces.clean)),
        "stage_starts": np.array([start for start, _ in traces.stages]),
        "stage_shares": np.array([[shares.get(name, 0.0) for name in SOURCES] for _, shares in traces.stages]),
        "window_kinds": np.array([window.kind for window in traces.windows]),
        "window_steps": np.array([window.step for window in traces.windows]),
        "window_shares": np.array([window.share for window in traces.windows]),
        **_columns(every),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def load_traces(path: Path = RECORDED) -> Traces:
    """Reads what :func:`save_traces` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        a = {name: arrays[name] for name in arrays.files}
    columns = {name: a[name] for name in ("loss", "labels", "norms")}
    n = int(a["clean_steps"])
    windows = []
    for i, (kind, step, share) in enumerate(
        zip(a["window_kinds"].tolist(), a["window_steps"].tolist(), a["window_shares"].tolist(), strict=True)
    ):
        first = n + i * WINDOW_STEPS
        part = {name: column[first : first + WINDOW_STEPS] for name, column in columns.items()}
        windows.append(Window(kind, step, share, _records(part, step)))
    shares = [{name: s for name, s in zip(SOURCES, line, strict=True) if s} for line in a["stage_shares"].tolist()]
    stages = tuple(zip(a["stage_starts"].tolist(), shares, strict=True))
    clean = _records({name: column[:n] for name, column in columns.items()}, 0)
    return Traces(int(a["seed"]), stages, clean, tuple(windows))


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RECORDED)
    options = parser.parse_args()

    def keep(traces: Traces) -> None:
        save_traces(options.out, traces)
        print(f"step {len(traces.clean)} loss {traces.clean[-1].loss:.3f}", file=sys.stderr, flush=True)

    keep(record(options.seed, options.steps, keep))


if __name__ == "__main__":
    main()
