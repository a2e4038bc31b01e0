"""The resume and kill tables: stopped runs taken up again on the same mesh or another one, and a rank killed.

    python benchmarks/trainer_resume.py [--quick] [--json]

Whole runs of a small model in float32 over a generated Dataset, by the code of ``tokenreel train``; ranks are forked
and talk over gloo. *Same mesh*: three starts against one; parameters, the ledger (losses, norms, token digests of every
step) and the tensor files of the last checkpoint, optimizer included, are compared bit by bit. *Another mesh*: the
second half runs on other processes; losses differ by the order of additions only. *Kill*: real torchrun, kill -9 of a
rank behind a checkpoint; seconds are wall time and judge nothing. ``--quick``: fewer steps and meshes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import torch
from rows import Row, print_rows, row
from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, losses, write_job
from support.worlds import run_ranks

from loader.settings import child_environment, load_config
from train.config import TrainConfig
from train.process import train_process

MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24}
MESHES: dict[str, tuple[int, dict[str, Any]]] = {
    "1 process": (1, {}),
    "FSDP 2, accumulating": (2, {"parallel": {"data": "fsdp"}, "micro_batch": 1}),
    "tensor 2": (2, {"parallel": {"tensor": 2}, "micro_batch": 2}),
    "pipeline 2": (2, {"parallel": {"pipeline": 2}, "micro_batch": 2}),
    "DDP 2": (2, {"parallel": {"data": "ddp"}}),
    "tensor 2 x FSDP 2": (4, {"parallel": {"tensor": 2, "data": "fsdp"}, "micro_batch": 1}),
}
CHANGES = [
    ("FSDP 2, accumulating", "1 process"),
    ("1 process", "FSDP 2, accumulating"),
    ("1 process", "tensor 2"),
    ("1 process", "pipeline 2"),
    ("tensor 2 x FSDP 2", "pipeline 2"),
]
_NOT_COMPARED = frozenset({"branch", "attempt", "checksum"})


class Bench:
    """Runs below one folder over one Dataset.

    Args:
        folder: scratch. steps: of a same-mesh run; it stops at step 3 and at step 12 (7 if it has no more).
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.dataset = make_dataset(folder, DatasetSpec(seq_len=32)).path
        self._starts = 0

    def job(self, name: str, mesh: str, **overrides: Any) -> Path:
        """A configuration whose run lies in ``name/run``."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self._starts += 1
        return write_job(folder, self.dataset, f"job-{self._starts}", model=MODEL, **{**MESHES[mesh][1], **overrides})

    def start(self, job: Path, mesh: str, steps: int) -> str:
        """One start up to ``steps``; the digest of the parameters on every rank.

        Raises:
            SystemExit: a rank failed.
        """

        def work(rank: int) -> object:
            return train_process(load_config(job, TrainConfig, (f"steps={steps}",)), lambda line: None)[0].parameters

        self._starts += 1
        ended = run_ranks(work, MESHES[mesh][0], self.folder / f"world-{self._starts}")
        found = {one.value for one in ended}
        if len(found) != 1 or any(one.code for one in ended):
            raise SystemExit(f"{mesh}: {ended}")
        return str(found.pop())

    def root(self, name: str) -> Path:
        """Of a run."""
        return self.folder / name / "run"


def differing_steps(first: Path, second: Path) -> int:
    """Steps with any number that is not bit-equal."""
    left, right = ledger(first), ledger(second)
    names = [name for name in left.dtype.names or () if name not in _NOT_COMPARED]
    if len(left) != len(right):
        return max(len(left), len(right))
    return sum(any(a[name].tobytes() != b[name].tobytes() for name in names) for a, b in zip(left, right, strict=True))


def tensor_files(root: Path) -> Mapping[str, str]:
    """Digests of the newest checkpoint's tensor files."""
    newest = max(path.parent for path in root.glob("checkpoints/step_*/COMMIT.json"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in newest.glob("*.distcp")}


def same_mesh(bench: Bench, mesh: str) -> list[Row]:
    """One start against three."""
    name = mesh.replace(" ", "-")
    steps = bench.steps
    whole = bench.start(bench.job(f"{name}-whole", mesh), mesh, steps)
    job = bench.job(f"{name}-parts", mesh)
    for until in (3, 12 if steps > 12 else 7, steps):
        parts = bench.start(job, mesh, until)
    roots = bench.root(f"{name}-whole"), bench.root(f"{name}-parts")
    first, second = (tensor_files(root) for root in roots)
    others = sum(first.get(key) != second.get(key) for key in {*first, *second})
    return [
        row(f"{mesh}: models that differ", int(parts != whole), "of 1", target=("<=", 0)),
        row(f"{mesh}: ledger steps that differ", differing_steps(*roots), f"of {steps}", target=("<=", 0)),
        row(f"{mesh}: checkpoint files that differ", others, f"of {len(first)}", target=("<=", 0)),
    ]


def other_mesh(bench: Bench, first: str, second: str) -> list[Row]:
    """Five steps on one mesh, five on another, against ten on the first."""
    name = f"{first}-then-{second}".replace(" ", "-")
    data = {
        "datasets": [os.path.relpath(bench.dataset, bench.folder / name)],
        "batch": [{"start": 0, "global_batch": 8}],
    }
    bench.start(bench.job(f"{name}-whole", first, data=data), first, 10)
    bench.start(bench.job(name, first, data=data), first, 5)
    bench.start(bench.job(name, second, data=data), second, 10)
    roots = bench.root(f"{name}-whole"), bench.root(name)
    left, right = (losses(root) for root in roots)
    apart = max(abs(a - b) for a, b in zip(left[5:], right[5:], strict=True))
    digests = [ledger(root)["token_digest"].tolist() for root in roots]
    others = sum(a != b for a, b in zip(*digests, strict=True))
    return [
        row(f"{first} -> {second}: |loss - unchanged|", apart * 1e6, "1e-6 nats", target=("<=", 2.0)),
        row(f"{first} -> {second}: batches of other tokens", others, "of 10", target=("<=", 0)),
    ]


def rank_pids(launcher: int) -> dict[int, int]:
    """rank -> process id of torchrun's children."""
    found = {}
    for listing in Path(f"/proc/{launcher}/task").glob("*/children"):
        for word in listing.read_text().split():
            for variable in Path(f"/proc/{word}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = int(word)
    return found


def torchrun(job: Path, when: Path, act: Callable[[int], None]) -> float:
    """Start two ranks under torchrun, ``act(its pid)`` once ``when`` exists; seconds from there to the end.

    Raises:
        SystemExit: it failed, or took longer than ten minutes.
    """
    words = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
        "-m", "train.main", "train", str(job), "--quiet",
    ]  # fmt: skip
    place = child_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
    with (job.parent / "torchrun.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(words, env=place, stdout=log, stderr=log)
        try:
            deadline, begin = time.monotonic() + 600, 0.0
            while process.poll() is None and time.monotonic() < deadline:
                if not begin and when.exists():
                    begin = time.perf_counter()
                    act(process.pid)
                time.sleep(0.01)
            elapsed_s = time.perf_counter() - begin
        finally:
            process.kill()
            code = process.wait()
        log.seek(0)
        if code or not begin:
            raise SystemExit(f"torchrun ended with {code}\n{log.read()[-4000:]}")
    return elapsed_s


def killed(bench: Bench, rank: int) -> list[Row]:
    """kill -9 of a rank; torchrun starts both again."""
    mesh, steps, name = "FSDP 2, accumulating", 60, f"killed-{rank}"
    keys: dict[str, Any] = {"steps": steps, "checkpoint": {"every_steps": 10, "keep_last": 3}}
    if not bench.root("unkilled").exists():
        bench.start(bench.job("unkilled", mesh, **keys), mesh, steps)
    job = bench.job(name, mesh, **keys)
    gone: list[int] = []

    def kill(launcher: int) -> None:
        gone.append(rank_pids(launcher)[rank])
        os.kill(gone[0], signal.SIGKILL)

    seconds = torchrun(job, bench.root(name) / "checkpoints" / "step_000010" / "COMMIT.json", kill)
    roots = bench.root("unkilled"), bench.root(name)
    first, second = (tensor_files(root) for root in roots)
    others = sum(first.get(key) != second.get(key) for key in {*first, *second})
    attempts = int(ledger(roots[1])["attempt"].max()) + 1
    what = f"kill -9 of rank {rank} of 2 under torchrun"
    return [
        row(f"{what}: starts", attempts, "", target=(">=", 2)),
        row(f"{what}: ledger steps that differ", differing_steps(*roots), f"of {steps}", target=("<=", 0)),
        row(f"{what}: checkpoint files that differ", others, f"of {len(first)}", target=("<=", 0)),
        row(f"{what}: kill to finished", seconds, "s"),
    ]


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description="Resume and kill tables.")
    parser.add_argument("--quick", action="store_true", help="fewer steps and meshes; under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON list of rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    quick = options.quick
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), 12 if quick else 112)
        for mesh in list(MESHES)[: 4 if quick else None]:
            rows += same_mesh(bench, mesh)
        for first, second in CHANGES[: 2 if quick else None]:
            rows += other_mesh(bench, first, second)
        for rank in (1,) if quick else (0, 1):
            rows += killed(bench, rank)
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
