"""A trained run whose Dataset was replaced: refused, remapped, trained on; the tokens are those of the new plan."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
import yaml
from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, train, write_job

from loader.errors import ConfigError, RefusedError
from loader.remap import remap_run
from loader.run_past import step_over_time
from loader.run_view import open_run
from train.context import RunContext
from train.job import job_of_run
from train.replay import Replay, replay_run
from train.spikes.config import SpikeConfig
from train.spikes.decide import Case, Raised
from train.spikes.investigate import investigate
from train.spikes.records import Window
from train.spikes.watch import SpikeWatch


def test_a_run_is_trained_on_with_other_data(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 20, "b": 9}, seq_len=32))
    other = make_dataset(tmp_path, DatasetSpec(documents={"a": 25, "b": 9}, seq_len=32, seed=1), name="other")
    job, root = write_job(tmp_path, made.path), tmp_path / "run"
    train(job, "steps=6")
    before = ledger(root)["token_digest"].tolist()
    value = yaml.safe_load(job.read_text())
    value["data"]["datasets"] = [os.path.relpath(other.path, tmp_path)]
    job.write_text(yaml.safe_dump(value))
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        train(job)
    assert (remap_run(root, [str(other.path)])["step"]) == 6
    said = list[str]()
    assert train(job, say=said.append).step == 12
    view = open_run(root)
    assert view.sources.digests == (other.digest,)
    digests = ledger(root)["token_digest"].tolist()
    assert digests[:6] == before
    assert f"first batch: step 6, digest {digests[6]:016x}" in said
    assert all(step_over_time(view, step)[1]["matches_ledger"] for step in range(12))
    train(job, "steps=14")  # resumed with a Cursor of the new plan
    with pytest.raises(RefusedError, match="TR-RUN-DATASET") as caught:
        train(write_job(tmp_path, made.path, name="old"))
    command = shlex.split((caught.value.next_command or "").partition(", if ")[0])
    assert command[:4] == ["tokenreel", "remap", str(root), "--dataset"]
    assert [Path(place).resolve() for place in command[4:]] == [made.path]


def test_steps_behind_the_newest_checkpoint_are_done_again(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 20}, seq_len=32))
    other = make_dataset(tmp_path, DatasetSpec(documents={"a": 25}, seq_len=32, seed=1), name="other")
    job, root = write_job(tmp_path, made.path, checkpoint={"every_steps": 4, "keep_last": 5}), tmp_path / "run"
    train(job, "steps=6")
    newest = max((root / "checkpoints").glob("step_*"))
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    made.path.rename(tmp_path / "gone")  # the checkpoint says what was read, not the Dataset
    result = remap_run(root, [str(other.path)])
    epochs = round(16 / len(made.samples["a"]), 6)
    assert (result["step"], result["undone_steps"]) == (4, 2)
    assert result["consumed"] == {"a": {"positions": 16, "epochs": epochs}}
    value = yaml.safe_load(job.read_text())
    value["data"]["datasets"] = [os.path.relpath(other.path, tmp_path)]
    job.write_text(yaml.safe_dump(value))
    assert train(job).step == 12
    assert open_run(root).num_steps == 12


def _remapped(tmp_path: Path) -> Path:
    """A run of 12 steps whose data were others from step 6 on; its old Dataset stays."""
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 20, "b": 9}, seq_len=32))
    other = make_dataset(tmp_path, DatasetSpec(documents={"a": 25, "b": 9}, seq_len=32, seed=1), name="other")
    job, root = write_job(tmp_path, made.path, checkpoint={"every_steps": 2, "keep_last": 9}), tmp_path / "run"
    train(job, "steps=6")
    remap_run(root, [str(other.path)])
    value = yaml.safe_load(job.read_text())
    value["data"]["datasets"] = [os.path.relpath(other.path, tmp_path)]
    job.write_text(yaml.safe_dump(value))
    assert train(job).step == 12
    return root


def test_replay_and_investigation_across_a_remap(tmp_path: Path) -> None:
    root = _remapped(tmp_path)
    found = replay_run(Replay(root, 4, 8, text=False), lambda line: None)
    assert [(step["step"], step["matches_ledger"]) for step in found["steps"]] == [(n, True) for n in range(4, 8)]
    assert found["checkpoint_step"] == 4
    assert found["steps"][0]["loss"] == pytest.approx(ledger(root)["loss"][4], rel=1e-5)
    view, config = open_run(root), SpikeConfig()
    context = RunContext(job_of_run(root), view.sources, view.plan, lambda error: None)
    raised = Raised(9.0, 1.0, 9.0, True)
    verdict = investigate(Case(Window(7, 8, 10), True, raised, (), first_step=6), context, config)
    assert (verdict.report["checkpoint_step"], verdict.report["baseline"]["steps"]) == (6, 1)
    with pytest.raises(ConfigError, match="TR-PLAN-BEFORE"):
        investigate(Case(Window(7, 8, 10), True, raised, ()), context, config)
    assert context.load_frozen(5) is None, "a checkpoint of step 4 is there, of the other data"
    (tmp_path / "data").rename(tmp_path / "gone")
    with pytest.raises(ConfigError, match="TR-REMAP-GONE"):
        replay_run(Replay(root, 4, 8, text=False), lambda line: None)


def test_no_window_reaches_over_a_remap() -> None:
    config, stages = SpikeConfig(), [(0, {"a": 1.0})]
    watch = SpikeWatch(config, stages, first_step=100)
    assert watch.window_start(103) == 100
    assert SpikeWatch(config, stages).window_start(103) < 100
    state = {**watch.state_dict(), "window": {"start": 90, "alarm": 98, "stop": 106}}
    watch.load_state_dict(state)
    assert watch.state_dict()["window"] == {"start": 100, "alarm": 98, "stop": 106}
