"""``tokenreel train`` with ``run.processes``: the real command, its exit codes, signals and restarts. A start of three
interpreters with torch costs 20 CPU seconds, so all of it is slow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import ledger, write_job

from loader.run_folder import RunPaths, read_events

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 400
RUN = {"processes": 2, "restarts": 2}
OURS = ("-m", "loader.cli", "train")
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-backend", "c10d"),
    *("--rdzv-endpoint", "127.0.0.1:0", "-m", "train.main", "train"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("data"), DatasetSpec(seq_len=32))


def environment() -> dict[str, str]:
    place = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONSAFEPATH")
    return {**{key: value for key, value in os.environ.items() if key not in place}, "PYTHONPATH": str(ROOT)}


def workers(launcher: int) -> list[int]:
    """Process ids of the ranks, by rank."""
    found: dict[int, int] = {}
    for listing in Path(f"/proc/{launcher}/task").glob("*/children"):
        for word in listing.read_text().split():
            variables = Path(f"/proc/{word}/environ").read_bytes().split(b"\0")
            for variable in variables:
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = int(word)
    return [found[rank] for rank in sorted(found)]


def train(
    job: Path,
    *words: str,
    when: Path | None = None,
    act: Callable[[int], object] = lambda launcher: None,
    launcher: tuple[str, ...] = OURS,
) -> tuple[int, str, str]:
    """One start; ``act(launcher's pid)`` once ``when`` exists. Exit code, stdout, stderr."""
    command = [sys.executable, *launcher, str(job), "--json", *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while when is not None and not when.exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if when is not None and process.poll() is None:
            act(process.pid)
        out, error = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert "Traceback" not in error
    return process.returncode, out, error


def send(number: int, rank: int | None) -> Callable[[int], None]:
    return lambda launcher: os.kill(launcher if rank is None else workers(launcher)[rank], number)


def job_in(folder: Path, made: MadeDataset, **overrides: Any) -> Path:
    folder.mkdir(exist_ok=True)
    return write_job(folder, made.path, **{"run": RUN, **overrides})


LENGTH: dict[str, Any] = {"steps": 150, "checkpoint": {"every_steps": 20}}


@pytest.fixture(scope="module")
def whole(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that nothing disturbed, and the digest of its parameters."""
    folder = tmp_path_factory.mktemp("whole")
    code, out, error = train(job_in(folder, made, **LENGTH))
    assert code == 0, error
    return folder / "run", json.loads(out)["parameters"]


def check_end(root: Path, out: str, whole: tuple[Path, str]) -> None:
    """Bit-equal to the undisturbed run: parameters, and what went into each step and came out of it."""
    result = json.loads(out)
    assert (result["step"], result["parameters"]) == (150, whole[1])
    left, right = ledger(whole[0]), ledger(root)
    for name in ("loss", "grad_norm", "token_digest"):
        assert left[name].tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_started_again_and_the_end_is_bit_equal(
    made: MadeDataset, tmp_path: Path, whole: tuple[Path, str], rank: int
) -> None:
    job = job_in(tmp_path / "killed", made, **LENGTH)
    root = tmp_path / "killed" / "run"
    saved = root / "checkpoints" / "step_000020"
    code, out, error = train(job, when=saved, act=send(signal.SIGKILL, rank))
    assert code == 0, error
    assert "restart 1 of 2" in error
    assert error.count("TR-") == 1
    check_end(root, out, whole)


def test_torchrun_starts_a_killed_rank_again_and_the_end_is_bit_equal(
    made: MadeDataset, tmp_path: Path, whole: tuple[Path, str]
) -> None:
    job = job_in(tmp_path / "killed", made, **LENGTH)
    root = tmp_path / "killed" / "run"
    saved = root / "checkpoints" / "step_000020"
    code, out, error = train(job, when=saved, act=send(signal.SIGKILL, 1), launcher=TORCHRUN)
    assert code == 0, error
    resumed = [event for event in read_events(RunPaths(root)) if event["kind"] == "resume"]
    assert len(resumed) == 1
    check_end(root, out.strip().splitlines()[-1], whole)


@pytest.mark.parametrize(
    ("number", "rank", "expected"), [(signal.SIGINT, None, 130), (signal.SIGTERM, None, 0), (signal.SIGUSR1, 1, 0)]
)
def test_a_signal_to_the_launcher_or_to_one_rank_saves(
    made: MadeDataset, tmp_path: Path, number: int, rank: int | None, expected: int
) -> None:
    job = job_in(tmp_path / "job", made, steps=100_000, checkpoint={"every_steps": 10_000})
    root = tmp_path / "job" / "run"
    code, out, error = train(job, when=root / "checkpoints" / "step_000000", act=send(number, rank))
    assert code == expected, error
    result = json.loads(out)
    assert result["outcome"] == "stopped"
    assert (root / "checkpoints" / f"step_{result['step']:06d}" / "COMMIT.json").exists()


def test_errors_are_told_once_with_their_exit_code_and_not_tried_again(made: MadeDataset, tmp_path: Path) -> None:
    job, root = job_in(tmp_path / "job", made), tmp_path / "job" / "run"
    assert train(job, "--set", "steps=5")[0] == 0
    for place in (root / "checkpoints").glob("*/__0_0.distcp"):
        place.write_bytes(b"")
    cases = [((), 3, "TR-CHECKPOINT-NONE"), (("--set", "seed=4"), 4, "TR-RUN-DIFFERS")]
    for words, expected, name in [*cases, (("--set", "parallel.tensor=3"), 2, "TR-PARALLEL-MESH")]:
        code, out, error = train(job, *words)
        assert (code, json.loads(out)["error"]["code"]) == (expected, name)
        assert (out.count(name), error.count(name)) == (1, 0), error
        assert "restart" not in error


LIMITED = (
    "-c",
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
    "runpy.run_module('loader.cli', run_name='__main__')",
    "train",
)
"""As :data:`OURS`, where no file may grow as large as a checkpoint's is."""


def test_a_failure_that_comes_again_is_not_tried_again(made: MadeDataset, tmp_path: Path) -> None:
    job = job_in(tmp_path / "job", made)
    code, out, error = train(job, launcher=LIMITED)
    assert (code, json.loads(out)["error"]["code"]) == (1, "TR-CHECKPOINT-WRITE"), error
    assert "restart" not in error
    assert train(job)[0] == 0
