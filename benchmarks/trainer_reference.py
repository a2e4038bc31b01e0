"""Does the trainer learn what a plain loop learns? Validation loss on the demo's text beside transformers and torch.

    python benchmarks/trainer_reference.py [--quick] [--json]

The text is the demo's without its planted source, built by ``tokenreel build`` with 5 % held out. The reference
(``tests/support/reference_loop.py``) is transformers' Llama under document masks, torch's AdamW and a few lines over
``loader``'s ``open_stream``. Our side is a whole run of the preset ``tiny``; its final checkpoint is exported and both
models are read by transformers on the same held-out samples. Initial weights differ from run to run, by the same
distribution; in the second comparison the order of the samples differs too. The standard error is that of the
difference of two means over seeds. ``--quick``: a smaller model and fewer steps; seeds then differ by more than the
0.02 nats that the full run judges by.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import torch
import yaml
from rows import Row, print_rows, row
from support.reference_loop import PlainRun, fresh_llama, read_llama, train_plainly, validation_loss
from support.training import ledger, losses, train, write_job

from loader.cli import main as tokenreel
from loader.demo_corpus import CorpusCaps, gather, write_source
from loader.settings import child_environment
from train.presets import PRESETS

BATCH, SEEDS, FIRST_STEPS = 8, (0, 1, 2), 20


@dataclass(frozen=True)
class Size:
    """How much text, which model (dim, layers, heads, ffn), how long."""

    caps: CorpusCaps
    vocab_size: int
    model: tuple[int, int, int, int]
    steps: int
    seq_len: int = 128
    held_out: int = 256


_TINY = PRESETS["tiny"]
FULL = Size(
    CorpusCaps(1_400_000, 1_400_000, 600_000, 800_000, package_bytes=60_000, file_bytes=20_000),
    1024, (_TINY.dim, _TINY.layers, _TINY.heads, _TINY.ffn), 200,
)  # fmt: skip
QUICK = Size(
    CorpusCaps(250_000, 250_000, 100_000, 150_000, package_bytes=30_000, file_bytes=15_000),
    512, (64, 2, 2, 192), 40, held_out=64,
)  # fmt: skip


def build(folder: Path, size: Size) -> None:
    """Gather text, write sources and build Datasets ``data`` and ``data-validation``."""
    sources = {name: records for name, records in gather(size.caps).items() if records}
    for name, records in sources.items():
        write_source(folder / "corpus" / name, records, (".jsonl",))
    config = {
        "version": 1,
        "output": "data",
        "sources": {name: {"root": f"corpus/{name}", "paths": ["*.jsonl"]} for name in sources},
        "dedup": {"methods": ["exact", "minhash"]},
        "holdout": {"fraction": 0.05},
        "tokenizer": {"sentencepiece": {"train": {"vocab_size": size.vocab_size, "sample_bytes": 300_000}}},
        "pack": {"seq_len": size.seq_len},
        "shards": {"size_bytes": 262_144},
        "run": {"workers": 1},
    }
    (folder / "build.yaml").write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "loader.cli", "build", str(folder / "build.yaml"), "--quiet"]
    subprocess.run(words, env=child_environment(PYTHONPATH=str(ROOT)), stdout=subprocess.DEVNULL, check=True)


class Contest:
    """Both sides over the Datasets in one folder.

    Args:
        folder: holds ``data`` and ``data-validation``; runs go there as well. size: of model and runs.
    """

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder, self.size = folder, size
        names = ("dim", "layers", "heads", "ffn")
        self.sizes = dict(zip(names, size.model, strict=True))
        self.llama = {**self.sizes, "vocab_size": size.vocab_size, "seq_len": size.seq_len}
        self.warmup = size.steps * BATCH // 10

    def plain_run(self, order: int) -> PlainRun:
        """The reference's job."""
        return PlainRun(self.folder / "data", self.size.steps, BATCH, order, warmup=self.warmup)

    def our_run(self, name: str, seed: int, order: int, *overrides: str, begin: str | None = None) -> Path:
        """Train; the run's folder."""
        data = {"datasets": ["data"], "seed": order, "batch": [{"start": 0, "global_batch": BATCH}]}
        positions = self.size.steps * BATCH
        job = write_job(
            self.folder,
            self.folder / "data",
            name,
            output=name,
            data=data,
            seed=seed,
            steps=self.size.steps,
            model={**self.sizes, **({} if begin is None else {"init_from": begin})},
            optimizer={"lr": 3e-3},
            schedule={"kind": "cosine", "warmup_positions": self.warmup, "total_positions": positions},
            checkpoint={"every_steps": 100_000},
        )
        train(job, *overrides)
        return self.folder / name

    def score(self, model: torch.nn.Module) -> float:
        """Held-out loss in nats."""
        return validation_loss(model, [self.folder / "data-validation"], self.size.held_out)  # type: ignore[arg-type]

    def exported_loss(self, run: Path) -> float:
        """Held-out loss of a run's newest checkpoint in transformers' hands."""
        out = run.with_name(f"{run.name}-hf")
        with redirect_stdout(io.StringIO()):
            code = tokenreel(["export", str(run), "--format", "hf", "--output", str(out), "--quiet"])
        if code:
            raise SystemExit(f"the export of {run} failed")
        return self.score(read_llama(out))

    def our_loss(self, name: str, seed: int, order: int) -> float:
        """Train, export, score."""
        run = self.our_run(name, seed, order)
        found = self.exported_loss(run)
        print(f"{name}: {found:.4f}", file=sys.stderr, flush=True)
        return found

    def plain_loss(self, seed: int, order: int) -> float:
        """Train the reference, score."""
        model = fresh_llama(self.llama, 1000 + seed)
        train_plainly(model, self.plain_run(order))
        found = self.score(model)
        print(f"reference, seed {seed}, order {order}: {found:.4f}", file=sys.stderr, flush=True)
        return found


def same_weights(contest: Contest) -> list[Row]:
    """One run from the same weights over the same batches."""
    model = fresh_llama(contest.llama, 7)
    model.save_pretrained(contest.folder / "begin")
    run = contest.our_run("alike", 0, 17, begin="begin")
    expected, digests = train_plainly(model, contest.plain_run(17))
    found = losses(run)
    gaps = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    others = sum(int(a) != b for a, b in zip(ledger(run)["token_digest"], digests, strict=True))
    ours, theirs = contest.exported_loss(run), contest.score(model)
    steps = len(gaps)
    return [
        row("same weights, same batches: batches of other tokens", others, f"of {steps}", target=("<=", 0)),
        row(f"  |loss - reference|, first {FIRST_STEPS} steps", max(gaps[:FIRST_STEPS]) * 1e6, "1e-6 nats",
            target=("<=", 100)),
        row(f"  |loss - reference|, all {steps} steps", max(gaps) * 1e6, "1e-6 nats"),
        row("  validation loss", ours, "nats", peer="plain loop", peer_value=theirs),
        row("  validation loss: |ours - reference|", abs(ours - theirs), "nats", target=("<=", 0.02)),
    ]  # fmt: skip


def compare(name: str, ours: list[float], theirs: list[float], limit: float | None) -> list[Row]:
    """Two means of held-out losses over seeds; ``limit`` judges their difference in nats."""
    gap = statistics.mean(ours) - statistics.mean(theirs)
    error = math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(ours))
    return [
        row(f"{name}: validation loss", statistics.mean(ours), "nats", peer="plain loop",
            peer_value=statistics.mean(theirs)),
        row("  |ours - reference|", abs(gap), "nats", target=None if limit is None else ("<=", limit)),
        row("  |ours - reference|", abs(gap) / error, "std errors", target=("<=", 2.0)),
        row("  standard error", error, "nats"),
    ]  # fmt: skip


def main() -> None:
    """Build, train, compare, print."""
    parser = argparse.ArgumentParser(description="Our trainer beside a plain loop.")
    parser.add_argument("--quick", action="store_true", help="a smaller model, fewer steps; under a minute of CPU")
    parser.add_argument("--json", action="store_true", help="one JSON list of rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), size)
        contest = Contest(Path(folder), size)
        rows = same_weights(contest)
        for kind, first, second in (("same order", 17, 17), ("other orders", 100, 200)):
            ours, theirs = [], []
            for seed in SEEDS:
                shift = 0 if first == second else seed
                ours.append(contest.our_loss(f"ours-{first}-{seed}", seed, first + shift))
                theirs.append(contest.plain_loss(seed, second + shift))
            rows += compare(f"{len(SEEDS)} seeds, {kind}", ours, theirs, None if options.quick else 0.02)
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
