"""Several small tasks in one process: what is shared, and that markers, deaths and errors stay each task's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import make_corpus, write_config
from support.group_steps import NoteProcess

from dataprep.engines import EngineOptions, make_engine, run_stage
from dataprep.engines.local import _next_ranks
from dataprep.stages import Stage, stage_digest
from loader.errors import JobError
from loader.settings import child_environment


def make_stage(folder: Path, sizes: tuple[int, ...], num_tasks: int = 0, **faults: object) -> Stage:
    digest, description = stage_digest("work", 1, {}, [])
    folder.mkdir(exist_ok=True)
    step = NoteProcess(folder, **faults)  # type: ignore[arg-type]
    return Stage("work", folder, digest, description, num_tasks or len(sizes), lambda: (step,), (), sizes)


def pids_of(stage: Stage) -> list[list[str]]:
    paths = [stage.folder / f"pids-{rank}" for rank in range(stage.num_tasks)]
    return [path.read_text().split() if path.exists() else [] for path in paths]


def run(stage: Stage, workers: int = 1) -> list[int]:
    done: list[int] = []
    run_stage(stage, make_engine("local", EngineOptions(workers)), done.append)
    return done


def test_small_tasks_share_a_process_and_tasks_of_unknown_size_do_not(tmp_path: Path) -> None:
    stage = make_stage(tmp_path / "small", (1,) * 6)
    assert sorted(run(stage)) == list(range(6))
    assert len({pid for pids in pids_of(stage) for pid in pids}) == 1
    assert b'"total":6' in (stage.logging_folder / "stats.json").read_bytes()
    other = make_stage(tmp_path / "unknown", (), 3)
    run(other)
    assert len({pid for pids in pids_of(other) for pid in pids}) == 3


def test_a_temporary_folder_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    config = write_config(tmp_path / "build.yaml", make_corpus(tmp_path / "corpus", documents=8))
    code = "import sys; from loader.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "dedup", str(config), "--json", "--quiet"]
    done = subprocess.run(command, env=child_environment(TMPDIR=str(scratch)), capture_output=True, check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["place"]) == (2, "TR-ENGINE-SOCKET", str(scratch))


def test_a_death_costs_the_task_that_ran(tmp_path: Path) -> None:
    stage = make_stage(tmp_path / "work", (5, 4, 3, 2, 1), fault=(2, "kill once"))
    assert sorted(run(stage)) == list(range(5))
    assert [len(pids) for pids in pids_of(stage)] == [1, 1, 2, 1, 1]


def test_after_an_error_other_processes_end_with_the_task_they_are_at(tmp_path: Path) -> None:
    stage = make_stage(tmp_path / "work", (9, 9, 1, 1, 8, 8), fault=(5, "raise"), slow=0)
    with pytest.raises(JobError, match="rank 5: ValueError: no"):
        run(stage, workers=2)
    begun = [bool(pids) for pids in pids_of(stage)]
    assert begun[0]
    assert begun[5]
    assert not all(begun)
    assert set(stage.incomplete_ranks()) == {5, *(rank for rank, was in enumerate(begun) if not was)}


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=60), st.integers(1, 8))
def test_groups_hold_every_task_once_and_leave_work_for_all_workers(sizes: list[int], workers: int) -> None:
    stage = make_stage(Path("/tmp"), tuple(sizes))
    todo = sorted(range(len(sizes)), key=lambda rank: (-sizes[rank], rank))
    order, seen = list(todo), []
    while todo:
        left = sum(sizes[rank] for rank in todo)
        ranks = _next_ranks(stage, todo, workers)
        size = sum(sizes[rank] for rank in ranks)
        assert len(ranks) == 1 or size <= max(left // workers, 1)
        seen += ranks
    assert seen == order
