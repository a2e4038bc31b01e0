"""Every engine of the table: tasks run once, a killed worker is retried, an error is named with its stage, rank and
code.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from support.steps import Work

from dataprep.engines import ENGINES, EngineOptions, make_engine, run_stage
from dataprep.stages import RawFile, Stage, hash_inputs, stage_digest
from loader.errors import ConfigError, DamageError, JobError, RefusedError
from loader.files import write_atomic


def make_stage(folder: Path, fault: tuple[int, str] | None = None, inputs: tuple[RawFile, ...] = ()) -> Stage:
    digest, description = stage_digest("work", 1, {"a": 1}, [])
    folder = folder / f"work-{digest[:12]}"
    folder.mkdir(exist_ok=True)
    return Stage("work", folder, digest, description, 4, lambda: (Work(folder, fault),), inputs, (1, 2, 3, 4))


def attempts_of(stage: Stage) -> list[int]:
    paths = [stage.folder / f"attempts-{rank}" for rank in range(stage.num_tasks)]
    return [path.stat().st_size if path.exists() else 0 for path in paths]


@pytest.mark.parametrize("name", ENGINES)
class TestEngine:
    def test_runs_every_rank_once_and_then_nothing(self, name: str, tmp_path: Path) -> None:
        stage, done = make_stage(tmp_path), []
        assert run_stage(stage, make_engine(name, EngineOptions(workers=2)), done.append)
        assert sorted(done) == [0, 1, 2, 3]
        assert [(stage.folder / f"out-{rank}").read_text() for rank in range(4)] == [f"{r} of 4" for r in range(4)]
        assert not run_stage(stage, make_engine(name, EngineOptions(workers=2)))
        assert attempts_of(stage) == [1, 1, 1, 1]
        assert b'"total":12' in (stage.logging_folder / "stats.json").read_bytes()

    def test_killed_worker_is_retried(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path, (1, "kill once"))
        assert run_stage(stage, make_engine(name, EngineOptions(workers=2)))
        assert attempts_of(stage) == [1, 2, 1, 1]
        assert not list(stage.folder.glob(".tmp-*"))

    def test_always_killed_worker_ends_bounded_and_is_named(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path, (3, "kill always"))
        with pytest.raises(JobError, match="stage work, rank 3: killed by SIGKILL") as caught:
            run_stage(stage, make_engine(name, EngineOptions(workers=4, retries=2)))
        assert caught.value.code == "TR-STAGE-KILLED"
        assert attempts_of(stage)[3] == 3

    def test_process_that_exits_by_itself_is_a_failure(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path, (0, "exit"))
        with pytest.raises(JobError, match="rank 0: its process ended with code 77"):
            run_stage(stage, make_engine(name, EngineOptions(workers=1, retries=0)))

    def test_process_that_ends_well_without_its_marker_has_done_nothing(self, name: str, tmp_path: Path) -> None:
        stage, done = make_stage(tmp_path, (0, "leave")), []
        with pytest.raises(JobError, match=r"1 of 4 tasks incomplete: \[0\]") as caught:
            run_stage(stage, make_engine(name, EngineOptions(workers=1)), done.append)
        assert caught.value.code == "TR-STAGE-INCOMPLETE"
        assert sorted(done) == [1, 2, 3]

    def test_error_keeps_its_code_and_is_not_retried(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path, (2, "damage"))
        with pytest.raises(DamageError, match="stage work, rank 2: a broken record") as caught:
            run_stage(stage, make_engine(name, EngineOptions(workers=1)))
        error = caught.value
        assert (error.code, error.place, error.expected, error.next_command, error.exit_code) == (
            "TR-TEST-DAMAGED",
            "file.jsonl",
            "a whole one",
            "look",
            3,
        )
        assert attempts_of(stage)[2] == 1

    def test_error_longer_than_a_pipe_ends_the_stage_and_is_cut(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path, (2, "long"))
        with pytest.raises(DamageError, match="stage work, rank 2: a model that quotes itself") as caught:
            run_stage(stage, make_engine(name, EngineOptions(workers=1)))
        assert (caught.value.code, len(caught.value.message)) == ("TR-TEST-DAMAGED", len("stage work, rank 2: ") + 2000)

    def test_full_disk_is_named_as_such_and_the_stage_goes_on_later(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(JobError, match=r"stage work, rank 1: .*No space left on device") as caught:
            run_stage(make_stage(tmp_path, (1, "full")), make_engine(name, EngineOptions(workers=1)))
        assert (caught.value.code, caught.value.place) == ("TR-FILE-SYSTEM", "/somewhere/out")
        assert run_stage(make_stage(tmp_path), make_engine(name, EngineOptions(workers=1)))

    def test_unexpected_exception_names_stage_rank_and_log(
        self, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        stage = make_stage(tmp_path, (2, "value"))
        with pytest.raises(JobError, match="stage work, rank 2: ValueError: seven is no colour") as caught:
            run_stage(stage, make_engine(name, EngineOptions(workers=2)))
        assert caught.value.place is not None
        assert "seven is no colour" in Path(caught.value.place).read_text()
        assert "Traceback" not in capfd.readouterr().err

    def test_failure_keeps_finished_ranks_and_a_repaired_stage_goes_on(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path, (0, "value"))
        with pytest.raises(JobError):
            run_stage(stage, make_engine(name, EngineOptions(workers=1)))
        assert stage.incomplete_ranks() == [0]
        assert run_stage(make_stage(tmp_path), make_engine(name, EngineOptions(workers=1)))
        assert attempts_of(stage) == [2, 1, 1, 1]

    def test_changed_input_is_refused(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / "in.jsonl"
        path.write_bytes(b"one")
        inputs = hash_inputs([("web", "in.jsonl", path)], tmp_path / "inputs.json")
        path.write_bytes(b"two!")
        with pytest.raises(RefusedError, match="changed") as caught:
            run_stage(make_stage(tmp_path, inputs=inputs), make_engine(name, EngineOptions()))
        assert caught.value.code == "TR-INPUT-CHANGED"

    def test_input_changed_by_the_stage_leaves_nothing_behind(self, name: str, tmp_path: Path) -> None:
        """What was read under one digest may be the other content: no later run may find it finished."""
        path = tmp_path / "in.jsonl"
        path.write_bytes(b"one")
        inputs = hash_inputs([("web", "in.jsonl", path)], tmp_path / "inputs.json")
        stage = make_stage(tmp_path, inputs=inputs)

        def change(rank: int) -> None:
            path.write_bytes(b"other")

        with pytest.raises(RefusedError, match="changed"):
            run_stage(stage, make_engine(name, EngineOptions()), change)
        assert not stage.folder.exists()

    def test_folder_of_another_digest_is_refused(self, name: str, tmp_path: Path) -> None:
        stage = make_stage(tmp_path)
        write_atomic(stage.folder / "stage.json", b'{"digest":"0"}')
        with pytest.raises(RefusedError):
            run_stage(stage, make_engine(name, EngineOptions()))


def test_unknown_engine_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="no engine 'abacus'"):
        make_engine("abacus", EngineOptions())


def test_killed_fork_server_does_not_hang(tmp_path: Path) -> None:
    from multiprocessing import forkserver

    stage = make_stage(tmp_path)
    started = time.monotonic()
    make_engine("local", EngineOptions())
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    assert run_stage(stage, make_engine("local", EngineOptions(workers=2)))
    assert time.monotonic() - started < 120
