"""More than one spike in a run, the same one again and again, and what goes wrong meanwhile: the real watch, rules and
loop; only how bad a step was is told from outside (``support.bumps``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bumps import SPIKES, BumpedWatch, spec, spikes
from support.datasets import MadeDataset, make_dataset
from support.training import ledger, losses, train, write_job

from loader.errors import JobError
from loader.run_folder import RunPaths, read_events
from loader.run_verify import verify_run
from loader.runs import append_skips, read_branches, read_skips
from loader.settings import load_config
from train import loop, saver
from train.checkpoint import list_checkpoints, save_checkpoint
from train.config import TrainConfig
from train.job import establish, open_job_sources, resolve_job

STEPS = 32
JOB: dict[str, Any] = {
    "steps": STEPS,
    "model": {"dim": 16, "layers": 1, "heads": 2, "ffn": 24},
    "checkpoint": {"every_steps": 6, "keep_last": 3},
    "schedule": {"kind": "cosine", "warmup_positions": 24, "total_positions": 256},
}
RECORDED = ("step", "first_position", "next_position", "label_count", "loss", "grad_norm", "update_norm", "lr")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("several"), spec())


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> type[BumpedWatch]:
    monkeypatch.setattr(loop, "SpikeWatch", BumpedWatch)
    monkeypatch.setattr(BumpedWatch, "worse", {})
    monkeypatch.setattr(BumpedWatch, "broken", {})
    return BumpedWatch


def write(folder: Path, made: MadeDataset, name: str = "job", **overrides: Any) -> Path:
    data = {"datasets": [str(made.path)], "batch": [{"start": 0, "global_batch": 8}]}
    job: Path = write_job(folder, made.path, name, **{**JOB, "spikes": spikes(), "data": data, **overrides})
    return job


def told(root: Path, kind: str) -> list[Mapping[str, Any]]:
    return [event for event in read_events(RunPaths(root)) if event["kind"] == kind]


def check_equals_a_run_from_step_0(made: MadeDataset, folder: Path, root: Path, parameters: str, **job: Any) -> None:
    """The flagship property of a whole run, whatever it went through: as if the list had been there from the start."""
    (folder / "zero").mkdir()
    path = write(folder / "zero", made, **job)
    resolved = resolve_job(load_config(path, TrainConfig))
    establish(resolved, open_job_sources(resolved))
    append_skips(resolved.paths, read_skips(RunPaths(root)))
    zero = train(path)
    assert (zero.parameters, zero.branch) == (parameters, 0)
    mine, theirs = ledger(root), ledger(folder / "zero" / "run")
    for field in (*RECORDED, "token_digest", "source_loss_S", "source_labels_S"):
        assert mine[field].tobytes() == theirs[field].tobytes(), field
    states = [
        {one.facts.step: one.facts.state for one in list_checkpoints(RunPaths(run).checkpoints)[0]}[STEPS]
        for run in (root, folder / "zero" / "run")
    ]
    assert states[0] == states[1]  # the detectors too


def test_two_spikes_at_different_places(made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]) -> None:
    watch.worse = {0: (15, 16, 17), 1: (26, 27, 28)}
    found = train(write(tmp_path, made))
    root = tmp_path / "run"
    assert (found.outcome, found.branch, found.rollbacks) == ("finished", 2, 2)
    branches = read_branches(RunPaths(root))
    assert [(one.parent, one.from_step) for one in branches] == [(None, 0), (0, 12), (1, 24)]
    outcomes = [(one["branch"], one["step"], one["rollback"], one["outcome"]) for one in told(root, "outcome")]
    assert outcomes == [(1, 17, 0, "recovered"), (2, 28, 1, "recovered")]
    assert {entry.stamp for entry in read_skips(RunPaths(root))} == {12 * 8, 24 * 8}
    assert [len(losses(root, branch)) for branch in (0, 1, 2)] == [18, 29, STEPS]  # what was left is still there
    assert not verify_run(root)
    check_equals_a_run_from_step_0(made, tmp_path, root, found.parameters)


@pytest.mark.parametrize(
    ("second", "outcomes", "bases"),
    [
        # Other steps: the first rollback is judged behind the second one.
        ((14, 15, 16), [(2, 16, 1, "recovered"), (2, 21, 0, "recovered")], [12, 12]),
        # The same steps: the first one did not help, and the second goes further back.
        ((17, 18, 19), [(1, 19, 0, "not_recovered"), (2, 19, 1, "recovered")], [12, 6]),
    ],
)
def test_a_second_spike_inside_the_replay(
    made: MadeDataset,
    tmp_path: Path,
    watch: type[BumpedWatch],
    second: tuple[int, ...],
    outcomes: list[Any],
    bases: list[int],
) -> None:
    watch.worse = {0: (19, 20, 21), 1: second}
    job: dict[str, Any] = {"checkpoint": {"every_steps": 6, "keep_last": 9}}
    found = train(write(tmp_path, made, **job))
    root = tmp_path / "run"
    assert (found.outcome, found.branch, found.rollbacks) == ("finished", 2, 2)
    assert [one.from_step for one in read_branches(RunPaths(root))[1:]] == bases
    assert [(e["branch"], e["step"], e["rollback"], e["outcome"]) for e in told(root, "outcome")] == outcomes
    assert not verify_run(root)
    check_equals_a_run_from_step_0(made, tmp_path, root, found.parameters, **job)


def test_stops_inside_alarms_change_nothing(made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]) -> None:
    """Saved with an alarm open, in both windows: the same questions, cuts, outcomes and weights."""
    watch.worse = {0: (15, 16, 17), 1: (26, 27, 28)}
    whole = train(write(tmp_path, made, "whole", output="whole"))
    job = write(tmp_path, made)
    for steps in (16, 17, 27):
        train(job, f"steps={steps}")
    found = train(job)
    assert (found.parameters, found.branch) == (whole.parameters, 2)
    mine, theirs = tmp_path / "run", tmp_path / "whole"
    assert read_skips(RunPaths(mine)) == read_skips(RunPaths(theirs))
    for branch in (0, 1, 2):
        assert losses(mine, branch) == losses(theirs, branch)
    for kind in ("alarm", "raised", "outcome"):
        told_by = [[{**one, "time_s": 0, "attempt": 0} for one in told(root, kind)] for root in (mine, theirs)]
        assert told_by[0] == told_by[1]
    assert not verify_run(mine)


@pytest.mark.parametrize(("span_steps", "rollbacks"), [(10_000, 1), (5, 2)])
def test_rollbacks_are_counted_over_a_span_of_steps(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch], span_steps: int, rollbacks: int
) -> None:
    watch.worse = {0: (15, 16, 17), 1: (26, 27, 28)}
    found = train(write(tmp_path, made, spikes=spikes(max_rollbacks=1, rollback_span_steps=span_steps)))
    assert (found.outcome, found.rollbacks) == ("finished", rollbacks)
    last = told(tmp_path / "run", "verdict")[-1]
    spent = (last["outcome"], last["why"]) == ("reported", "1 rollbacks within 10000 steps are already spent")
    assert spent == (rollbacks == 1)


def test_the_same_spike_for_the_fourth_time_ends_the_run(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]
) -> None:
    """Each try goes back further, as far as there is a checkpoint; started again, it gives up again."""
    watch.worse = {-1: (21, 22, 23)}
    more = {**SPIKES["attribution"], "threshold": 0.45}  # what one try cut, the next cannot flag
    job = write(
        tmp_path,
        made,
        checkpoint={"every_steps": 6, "keep_last": 9},
        spikes=spikes(max_rollbacks=9, lead_steps=6, attribution=more),
    )
    root = tmp_path / "run"
    for start in (1, 2):
        with pytest.raises(JobError, match="TR-SPIKE-GIVEN-UP: still spiking after 3 tries"):
            train(job)
        assert [one.from_step for one in read_branches(RunPaths(root))] == [0, 12, 6, 0]
        verdicts = told(root, "verdict")
        assert [one["action"] for one in verdicts][:3] == ["mask"] * 3
        assert [one["outcome"] for one in verdicts[3:]] == ["given_up"] * start
        assert "QK-norm" in verdicts[-1]["advice"]
        outcomes = [(one["branch"], one["rollback"], one["outcome"]) for one in told(root, "outcome")]
        assert sorted(set(outcomes)) == [(number + 1, number, "not_recovered") for number in range(3)]
    assert pins(root) >= {"step_000000", "step_000006", "step_000012"}
    assert not verify_run(root)


@pytest.mark.parametrize("again", [14, 13])
def test_parameters_that_break_again_behind_the_same_checkpoint(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch], again: int
) -> None:
    """The checkpoint may hold what breaks them: an older one is taken, though the second alarm is about other steps."""
    watch.broken = {0: (20,), 1: (again,)}
    job: dict[str, Any] = {"checkpoint": {"every_steps": 6, "keep_last": 9}, "spikes": spikes(lead_steps=4)}
    found = train(write(tmp_path, made, **job))
    root = tmp_path / "run"
    assert (found.outcome, found.branch) == ("finished", 2)
    assert [one.from_step for one in read_branches(RunPaths(root))] == [0, 12, 6]
    assert [one["outcome"] for one in told(root, "outcome")].count("not_recovered") == 0
    check_equals_a_run_from_step_0(made, tmp_path, root, found.parameters, **job)


def test_parameters_that_break_wherever_it_goes_back_to(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]
) -> None:
    watch.broken = {-1: range(16, 40)}
    with pytest.raises(JobError, match="TR-SPIKE-GIVEN-UP"):
        train(write(tmp_path, made, checkpoint={"every_steps": 6, "keep_last": 9}))
    assert told(tmp_path / "run", "verdict")[-1]["outcome"] == "given_up"


def test_a_dry_run_changes_nothing(made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]) -> None:
    """Bit-equal to a run that is not watched, though every step of the way was looked into."""
    plain = train(write(tmp_path, made, "plain", output="plain", spikes={"enabled": False}))
    watch.worse = {0: (15, 16, 17, 26, 27, 28)}
    found = train(write(tmp_path, made, spikes=spikes(dry_run=True)))
    root = tmp_path / "run"
    assert (found.parameters, found.branch, found.rollbacks) == (plain.parameters, 0, 0)
    assert ledger(root).tobytes() == ledger(tmp_path / "plain").tobytes()
    assert [(one["outcome"], one["would"]) for one in told(root, "verdict")] == [("reported", "mask")] * 2
    assert not read_skips(RunPaths(root))
    assert not pins(root)


def pins(root: Path) -> set[str]:
    return {path.name for path in (root / "checkpoints" / "pinned").iterdir()}


def test_the_pin_of_a_quiet_alarm_outlives_no_end_of_the_process(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]
) -> None:
    """Ended inside the alarm: the process that goes on answers it, and lets the checkpoint go."""
    watch.worse = {0: (15,)}
    root, job = tmp_path / "run", write(tmp_path, made, spikes=spikes(patience=16))
    train(job, "steps=17")
    assert pins(root) == {"step_000012.alarm"}
    train(job, "steps=18")
    assert not told(root, "alarm_over")
    assert pins(root) == {"step_000012.alarm"}  # it is open still
    train(job)
    assert [one["alarm"] for one in told(root, "alarm_over")] == [15]
    assert not pins(root)


def test_a_start_without_an_open_alarm_lets_go_what_a_dead_process_pinned(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]
) -> None:
    """Here nobody asks any longer, as the watch was turned off in the alarm; what was pinned for good stays."""
    watch.worse = {0: (15, 16, 17), 1: (26,)}
    root, job = tmp_path / "run", write(tmp_path, made)
    train(job, "steps=27")
    assert pins(root) == {"step_000012", "step_000024.alarm"}
    train(job, "spikes.enabled=false", "steps=27")
    assert pins(root) == {"step_000012"}


def damage(root: Path, steps: tuple[int, ...]) -> None:
    """One bit of one file of each checkpoint."""
    for step in steps:
        folder = root / "checkpoints" / f"step_{step:06d}"
        path = max(
            (path for path in folder.iterdir() if path.name != "COMMIT.json"), key=lambda one: one.stat().st_size
        )
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def at_the_question(act: Callable[[], object], said: list[str]) -> Callable[[str], None]:
    """Takes the run's remarks, and acts between the alarm, which pinned a checkpoint, and the question."""

    def say(line: str) -> None:
        said.append(line)
        if line.endswith(": raised"):
            act()

    return say


def test_a_damaged_pinned_checkpoint_is_named_and_an_older_one_taken(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]
) -> None:
    watch.worse = {0: (21, 22, 23)}
    root = tmp_path / "run"
    job: dict[str, Any] = {"checkpoint": {"every_steps": 6, "keep_last": 9}}
    said: list[str] = []
    found = train(write(tmp_path, made, **job), say=at_the_question(lambda: damage(root, (18,)), said))
    assert (found.outcome, found.rollbacks) == ("finished", 1)
    assert read_branches(RunPaths(root))[1].from_step == 12
    (event,) = told(root, "checkpoint_damaged")
    assert "step_000018" in event["place"]
    assert any("damaged checkpoint, left alone" in line and "step_000018" in line for line in said)
    assert pins(root) == {"step_000012"}
    check_equals_a_run_from_step_0(made, tmp_path, root, found.parameters, **job)


def test_without_any_intact_checkpoint_before_the_window_it_is_reported(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch]
) -> None:
    watch.worse = {0: (15, 16, 17)}
    root = tmp_path / "run"
    found = train(write(tmp_path, made), say=at_the_question(lambda: damage(root, (0, 6, 12)), []))
    assert (found.outcome, found.rollbacks) == ("finished", 0)
    (verdict,) = told(root, "verdict")
    assert (verdict["outcome"], verdict["why"]) == ("reported", "no checkpoint at or before the window")
    assert {event["place"].split("/")[-2] for event in told(root, "checkpoint_damaged")} == {
        "step_000000", "step_000006", "step_000012",
    }  # fmt: skip


@pytest.mark.slow
def test_a_question_while_a_checkpoint_is_being_written(
    made: MadeDataset, tmp_path: Path, watch: type[BumpedWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: the save of step 18 is in flight when step 18 brings the answer. Nothing depends on it."""
    watch.worse = {0: (16, 17, 18)}
    quick = train(write(tmp_path, made, "quick", output="quick"))
    slow: list[int] = []

    def slowly(*args: Any) -> Any:
        slow.append(args[2].step)
        time.sleep(1.0)
        return save_checkpoint(*args)

    monkeypatch.setattr(saver, "save_checkpoint", slowly)
    found = train(write(tmp_path, made))
    assert slow == [0, 6, 12, 18, 18, 24, 30, 32]  # that of the branch that was left was completed
    assert (found.parameters, found.branch) == (quick.parameters, 1)
    for branch in (0, 1):
        assert np.array_equal(ledger(tmp_path / "run", branch), ledger(tmp_path / "quick", branch))
    assert not verify_run(tmp_path / "run")
