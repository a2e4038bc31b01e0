"""Checkpoint figures: how long a save stalls the loop, what hashing costs, how fast a checkpoint is verified.

    python benchmarks/trainer_checkpoints.py [--quick] [--json]

The stall is the wall time of the call that returns to the training loop, the copy that of ``Tensor.copy_`` of the same
bytes into memory that is already there; the peer is torch's ``dcp.async_save`` of the same tensors in the same process,
with a group of its own as in our loop. All take turns, so that they meet the same machine; figures are medians, and the
first turn, in which memory is made, counts for nobody. One process on the CPU: no copy from a GPU is in these figures.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, print_rows, row
from train.checkpoint import Checkpoint, CheckpointFacts, save_checkpoint, verify_checkpoint
from train.saver import Saver
from train.world import World, join_world


def state_of(megabytes: int) -> dict[str, Tensor]:
    """Parameters and two moments of each in float32, matrices of 4 MB."""
    parts = max(1, megabytes // 12)
    names = ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq")
    return {f"{name}.{number}": torch.randn(1024, 1024) for number in range(parts) for name in names}


def wall_s(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Bench:
    """One state, saved again and again into folders that are removed."""

    def __init__(self, folder: Path, state: dict[str, Tensor], world: World) -> None:
        self.folder, self.state, self.world = folder, state, world
        self.saver = Saver(folder / "ours", world)
        self.target = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        self.turn = 0
        self.times: dict[str, list[float]] = {}
        self.last: Checkpoint | None = None

    def facts(self) -> CheckpointFacts:
        return CheckpointFacts(self.turn, 0, 0, self.turn, {}, {}, {})

    def copy(self) -> None:
        for name, tensor in self.state.items():
            self.target[name].copy_(tensor)

    def note(self, name: str, seconds: float) -> None:
        self.times.setdefault(name, []).append(seconds)

    def round(self) -> None:
        """One turn of everything."""
        self.turn += 1
        self.note("copy", wall_s(self.copy))
        self.note("stall", wall_s(lambda: self.saver.save(self.state, self.facts(), self._saved)))
        self.note("rest", wall_s(self.saver.wait))
        futures: list[Any] = []
        place, group = str(self.folder / f"torch-{self.turn}"), self.world.saving
        self.note(
            "torch stall",
            wall_s(lambda: futures.append(dcp.async_save(self.state, checkpoint_id=place, process_group=group))),
        )
        futures[0].result()
        assert self.last is not None
        last = self.last
        self.note("verify", wall_s(lambda: verify_checkpoint(last)))
        for name, work in (("save", self._save), ("torch save", self._torch_save)):
            begin = time.process_time()
            work()
            self.note(name, time.process_time() - begin)
        for path in self.folder.iterdir():
            shutil.rmtree(path)

    def _saved(self, checkpoint: Checkpoint) -> None:
        self.last = checkpoint

    def _save(self) -> None:
        save_checkpoint(self.folder / "plain", self.state, self.facts(), self.world)

    def _torch_save(self) -> None:
        dcp.save(self.state, checkpoint_id=str(self.folder / "torch"), process_group=self.world.saving)

    def median(self, name: str) -> float:
        return statistics.median(self.times[name][1:])


def rows_of(bench: Bench) -> list[Row]:
    size_bytes = sum(tensor.nbytes for tensor in bench.state.values())
    label = f"checkpoint of {size_bytes / 1e6:.0f} MB"
    of = bench.median
    copy, stall = ("copy of the state", of("copy") * 1e3), of("stall") * 1e3
    return [
        row(f"{label}: stall", stall, "ms", peer=copy[0], peer_value=copy[1], ratio_target=("<=", 1.5)),
        row(f"{label}: stall", stall, "ms", peer="dcp.async_save", peer_value=of("torch stall") * 1e3),
        row(f"{label}: until it is read back", of("rest"), "s"),
        row(f"{label}: save with hashes", of("save"), "CPU s", peer="dcp.save", peer_value=of("torch save")),
        row(f"{label}: verify", size_bytes / of("verify") / 1e9, "GB/s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="120 MB and 5 turns instead of 600 MB and 9")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=UserWarning)
    with join_world("cpu") as world, tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), state_of(120 if options.quick else 600), world)
        for _ in range(6 if options.quick else 10):
            bench.round()
        rows = rows_of(bench)
    print_rows(rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
