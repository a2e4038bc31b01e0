"""A run without a trainer: the ledger is written from the real stream, so look-up has something to agree with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.datasets import MadeDataset

from loader.ledger import LedgerRecord
from loader.order import SkipEntry
from loader.run_view import RunView, dataset_entries, open_run, relative_datasets
from loader.runs import RunPaths, append_event, create_run, lock_run, next_attempt, open_branch, open_ledger
from loader.sources import open_sources
from loader.stream.batch import read_batch

__all__ = ["make_run", "roll_back", "train"]


def make_run(
    folder: Path,
    made: Sequence[MadeDataset],
    global_batch: int = 8,
    name: str = "run",
    urls: Sequence[str] | None = None,
) -> RunPaths:
    """A fresh run over ``made`` in ``folder/name``, no step done; ``urls``: where they were uploaded to."""
    paths = RunPaths(folder / name)
    sources = open_sources([one.open() for one in made])
    relative = relative_datasets(urls or [one.path for one in made], Path(), paths.root)
    semantic = {
        "version": 1,
        "data": {"datasets": relative, "seed": 5, "batch": [{"start": 0, "global_batch": global_batch}]},
    }
    create_run(paths, {"run_id": "test", "datasets": dataset_entries(sources, relative)}, semantic)
    return paths


def train(paths: RunPaths, steps: int, *, from_step: int | None = None, append: bool = False) -> RunView:
    """Do ``steps`` steps from ``from_step`` (default: where the run stands) in a new attempt; returns the run after it.

    ``append`` goes on in the newest attempt's ledger file, which real trainers never do.
    """
    with lock_run(paths):
        view = open_run(paths.root)
        branch = view.branch.number
        first = max(view.num_steps, view.branch.from_step) if from_step is None else from_step
        attempt = max(0, next_attempt(paths, branch) - (1 if append else 0))
        with open_ledger(paths, branch, attempt, len(view.sources.names)) as ledger:
            for step in range(first, first + steps):
                batch = read_batch(view.plan, view.sources, step)
                ledger.append(
                    LedgerRecord(
                        step=step,
                        first_position=view.plan.first_position(step),
                        next_position=batch.next_position,
                        label_count=batch.num_labels,
                        token_digest=batch.token_digest,
                        loss=3.0 - 0.01 * step,
                    )
                )
        append_event(paths, "stop", branch, first + steps, attempt=attempt)
    return open_run(paths.root)


def roll_back(paths: RunPaths, to_step: int, *cuts: SkipEntry) -> RunView:
    """Open a branch at ``to_step`` with ``cuts``, whose stamps must be that step's first position."""
    with lock_run(paths):
        view = open_run(paths.root)
        position = view.plan.next_position(to_step - 1)
        branch = open_branch(paths, to_step, position, "test", cuts)
        append_event(paths, "rollback", branch.number, to_step, cuts=len(cuts))
    return open_run(paths.root)
