"""The flagship property on meshes: rollback + cut is bit-equal to a run from step 0 whose list held the same entry with
the same stamp, also on another Dataset in which the cut tokens are other content; the rollback itself, and a replay,
by one process. With accumulation, and checkpoints written beside the training.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.bumps import BumpedWatch, spec, spikes
from support.datasets import make_dataset
from support.flagship import BACK_TO, KEEP_ALL, STEPS, Lived, entries_for, live, other_content, prepare_zero
from support.training import ledger, write_job
from support.worlds import run_ranks

from loader.run_folder import RunPaths, read_events, write_config
from loader.runs import append_skips, read_branches, read_skips
from loader.settings import load_config
from train import loop
from train.back import roll_back
from train.config import TrainConfig
from train.job import establish, open_job_sources, resolve_job
from train.process import train_process
from train.replay import Replay, replay_run

MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24}
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {"parallel": {"data": "fsdp"}, "micro_batch": 1},
    "tensor": {"parallel": {"tensor": 2, "sequence": True}, "micro_batch": 2},
    "pipeline": {"parallel": {"pipeline": 2}, "micro_batch": 2},
}
slow = pytest.mark.slow


def train_on_two(path: Path) -> str:
    """Train in two processes; the digest of the parameters, equal in both."""

    def work(rank: int) -> str:
        return train_process(load_config(path, TrainConfig), lambda line: None)[0].parameters

    ended = run_ranks(work, 2, path.parent / f"world-{len(list(path.parent.glob('world-*')))}")
    assert [one.code for one in ended] == [0, 0], ended
    digests = {one.value for one in ended}
    assert len(digests) == 1
    return str(digests.pop())


def rolled_back(lived: Lived, folder: Path, job: Path, entry: Any) -> None:
    """A copy of the run, taken back by one process; the next start trains it from there."""
    shutil.copytree(lived.root, folder / "run")
    paths = RunPaths(folder / "run")
    # The Dataset's place relative to the run changed with the copy; the configuration follows it.
    write_config(paths, resolve_job(load_config(job, TrainConfig)).semantic)
    assert roll_back(paths.root, BACK_TO + 1, lambda line: None)["step"] == BACK_TO
    append_skips(paths, [entry])


def check_replay(lived: Lived) -> None:
    """One process scores what the mesh trained on, with the weights that the mesh saved."""
    found = replay_run(Replay(lived.root, BACK_TO, BACK_TO + 2), lambda line: None)
    assert found["checkpoint_step"] == BACK_TO
    assert all(step["matches_ledger"] for step in found["steps"])
    assert found["steps"][0]["loss"] == pytest.approx(ledger(lived.root)["loss"][BACK_TO], rel=1e-5)


@pytest.mark.parametrize(
    ("mesh", "kinds"),
    [
        ("fsdp", ["mask documents"]),
        pytest.param("fsdp", ["drop documents", "mask samples", "drop samples"], marks=slow),
        pytest.param("tensor", ["mask documents", "drop documents"], marks=slow),
        pytest.param("pipeline", ["mask documents", "drop documents"], marks=slow),
    ],
)
def test_rollback_and_cut_on_a_mesh_equal_a_run_from_step_0(tmp_path: Path, mesh: str, kinds: list[str]) -> None:
    setting: dict[str, Any] = {"model": MODEL, **MESHES[mesh]}
    (tmp_path / "lived").mkdir()
    lived = live(tmp_path / "lived", train_on_two, **setting)
    check_replay(lived)
    for number, kind in enumerate(kinds):
        entry, documents = entries_for(lived, kind)
        folders = [tmp_path / f"{name}{number}" for name in ("back", "zero", "twin")]
        for folder in folders:
            folder.mkdir()
        back, zero, twin = folders
        job = write_job(back, lived.made.path, steps=STEPS, checkpoint=KEEP_ALL, **setting)
        rolled_back(lived, back, job, entry)
        other = other_content(lived, documents, tmp_path / f"other{number}")
        ends = [
            train_on_two(job),
            train_on_two(prepare_zero(zero, lived.made.path, entry, **setting)),
            train_on_two(prepare_zero(twin, other.path, entry, **setting)),
        ]
        assert ends[0] == ends[1] == ends[2], kind
        assert ends[0] != lived.result
        records = [ledger(folder / "run") for folder in folders]
        for field in ("loss", "grad_norm", "update_norm", "token_digest", "label_count", "first_position", "lr"):
            assert records[0][field].tobytes() == records[1][field].tobytes() == records[2][field].tobytes(), field
        before = ledger(lived.root)
        assert before["loss"][:BACK_TO].tobytes() == records[0]["loss"][:BACK_TO].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("mesh", list(MESHES))
def test_spikes_one_after_the_other_on_a_mesh(tmp_path: Path, mesh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch's own rollbacks, all processes together: a second spike inside the replay of the first, about the same
    steps, goes further back; later a third one. Bit-equal to a run whose list held the cuts from the start.
    """
    monkeypatch.setattr(loop, "SpikeWatch", BumpedWatch)
    monkeypatch.setattr(BumpedWatch, "worse", {0: (19, 20, 21), 1: (17, 18, 19), 2: (27, 28, 29)})
    monkeypatch.setattr(BumpedWatch, "broken", {})
    made = make_dataset(tmp_path, spec())
    setting: dict[str, Any] = {
        "model": MODEL,
        **MESHES[mesh],
        "data": {"datasets": ["../data"], "batch": [{"start": 0, "global_batch": 8}]},
        "checkpoint": {"every_steps": 6, "keep_last": 9},
        "spikes": spikes(),
    }
    for name in ("run", "zero"):
        (tmp_path / name).mkdir()
    parameters = train_on_two(write_job(tmp_path / "run", made.path, steps=32, **setting))
    paths = RunPaths(tmp_path / "run" / "run")
    assert [one.from_step for one in read_branches(paths)] == [0, 12, 6, 24]
    outcomes = [
        (e["branch"], e["step"], e["rollback"], e["outcome"]) for e in read_events(paths) if e["kind"] == "outcome"
    ]
    assert outcomes == [(1, 19, 0, "not_recovered"), (2, 19, 1, "recovered"), (3, 29, 2, "recovered")]
    zero = write_job(tmp_path / "zero", made.path, steps=32, **setting)
    resolved = resolve_job(load_config(zero, TrainConfig))
    establish(resolved, open_job_sources(resolved))
    append_skips(resolved.paths, read_skips(paths))
    assert train_on_two(zero) == parameters
    records = [ledger(tmp_path / name / "run") for name in ("run", "zero")]
    for field in ("loss", "grad_norm", "update_norm", "token_digest", "label_count", "first_position", "lr"):
        assert records[0][field].tobytes() == records[1][field].tobytes(), field
