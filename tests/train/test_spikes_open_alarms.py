"""Alarms that nobody answers in time: the watch was off meanwhile, or the run has come to its last step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.bumps import BumpedWatch, spec, spikes
from support.datasets import MadeDataset, make_dataset
from support.spikes import step_records
from support.training import train, write_job

from loader.run_folder import RunPaths, read_events
from train import loop
from train.report.cases import open_alarms, quiet_alarms
from train.report.run_report import render_run_report
from train.spikes.config import AttributionConfig, DetectorConfig, SpikeConfig
from train.spikes.records import Window
from train.spikes.rollback import RollbackRecord, within_span
from train.spikes.watch import SpikeWatch

STAGES = [(0, {"left": 0.5, "right": 0.5})]
CONFIG = SpikeConfig(
    patience=8,
    detectors=DetectorConfig(warmup_steps=40, window_steps=32),
    attribution=AttributionConfig(baseline_segments=300, baseline_source_segments=60),
)
OFF = dataclasses.replace(CONFIG, enabled=False)
SPIKE_AT = 120


@pytest.mark.parametrize("back_at", [123, 128, 129, 600])
def test_what_was_not_watched_is_not_asked_about(back_at: int) -> None:
    """Off from the second step of an alarm on: a window that has passed is dropped, one that has not goes on."""
    records = step_records(700, bump=lambda step: 1.0 if step >= SPIKE_AT else 0.0)
    on = SpikeWatch(CONFIG, STAGES)
    for record in records[: SPIKE_AT + 1]:
        on.observe(record)
    off = SpikeWatch(OFF, STAGES)
    off.load_state_dict(json.loads(json.dumps(on.state_dict())))
    assert {off.observe(record).kind for record in records[SPIKE_AT + 1 : back_at]} == {"none"}
    again = SpikeWatch(CONFIG, STAGES)
    again.load_state_dict(json.loads(json.dumps(off.state_dict())))
    first, *more = [again.observe(record) for record in records[back_at : back_at + 5]]
    if back_at < SPIKE_AT + 8:
        assert first.kind == "none"
        assert [d.window.stop for d in more if d.kind == "investigate" and d.window] == [SPIKE_AT + 8]
        return
    over = (*first.also, first.event)[0]
    assert (over["kind"], over["alarm"], over["why"]) == ("alarm_over", SPIKE_AT, "the steps since were not watched")
    assert first.kind == "alarm"  # it is as high as ever, which is a case of its own
    assert first.window is not None
    assert first.window.alarm == back_at
    json.dumps(again.state_dict(), allow_nan=False)


def test_the_steps_of_a_dropped_alarm_raise_no_other() -> None:
    """Neither as a level that is held back nor in a mean that reaches back over them."""
    records = step_records(700, bump=lambda step: 3.0 if step in (SPIKE_AT, SPIKE_AT + 1) else 0.0)
    first, again = SpikeWatch(CONFIG, STAGES), SpikeWatch(CONFIG, STAGES)
    for record in records[: SPIKE_AT + 2]:
        first.observe(record)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    told = [again.observe(record).event.get("kind") for record in records[140:]]
    assert [kind for kind in told if kind is not None] == ["alarm_over"]


def test_no_window_is_longer_than_what_it_may_reach_back_and_forth() -> None:
    """Whatever comes: 500 steps of trouble with the watch off and on again every few of them."""
    records = step_records(900, bump=lambda step: 1.0 if step % 97 > 60 else 0.0)
    longest = CONFIG.patience + max(CONFIG.lead_steps, CONFIG.detectors.window_steps)
    watch, asked = SpikeWatch(CONFIG, STAGES), 0
    for record in records:
        if record.step % 13 == 0:
            state = json.loads(json.dumps(watch.state_dict()))
            watch = SpikeWatch(OFF if record.step % 26 == 0 else CONFIG, STAGES)
            watch.load_state_dict(state)
        decision = watch.observe(record)
        if decision.kind == "investigate":
            assert decision.window is not None
            assert decision.window.stop - decision.window.start <= longest
            asked += 1
            watch.answer()
    assert asked


def test_rollbacks_ahead_are_not_within_the_last_steps() -> None:
    """``rollback --to`` went back behind them."""
    alarms = (90, 120, 150)
    records = [RollbackRecord(i, a - 8, a, a + 8, 0, 0, "mask", 1.0, 1.0) for i, a in enumerate(alarms)]
    windows = [Window(step - 8, step, step + 8) for step in (60, 90, 130, 150, 170, 200)]
    assert [within_span(window, 50, records) for window in windows] == [0, 1, 2, 2, 1, 0]


def test_a_rollback_for_the_same_steps_is_spent_though_the_alarm_comes_a_step_sooner() -> None:
    record = RollbackRecord(0, 284, 300, 332, 280, 0, "mask", 1.0, 1.0)
    assert within_span(Window(283, 299, 331), 50, [record]) == 1


def test_the_watch_says_what_it_still_waits_for() -> None:
    watch = SpikeWatch(CONFIG, STAGES)
    records = step_records(SPIKE_AT + 3, bump=lambda step: 1.0 if step >= SPIKE_AT else 0.0)
    for record in records:
        watch.observe(record)
        if record.step < SPIKE_AT:
            assert watch.open_window is None
    told = watch.unanswered(SPIKE_AT + 3)
    assert (told["kind"], told["alarm"], told["missing"], told["raised"]) == ("alarm_open", SPIKE_AT, 5, True)
    assert told["z"] > CONFIG.raised_z
    json.dumps(told, allow_nan=False)
    assert watch.open_window is not None  # saying so answers nothing
    with pytest.raises(RuntimeError):
        SpikeWatch(CONFIG, STAGES).unanswered(3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("open"), spec())


def test_an_alarm_that_the_last_steps_raise_is_told_and_more_steps_answer_it(
    made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SpikeWatch", BumpedWatch)
    monkeypatch.setattr(BumpedWatch, "worse", {0: (18, 19, 20)})
    monkeypatch.setattr(BumpedWatch, "broken", {})
    job: dict[str, Any] = {
        "steps": 20,
        "model": {"dim": 16, "layers": 1, "heads": 2, "ffn": 24},
        "checkpoint": {"every_steps": 6, "keep_last": 3},
        "data": {"datasets": [str(made.path)], "batch": [{"start": 0, "global_batch": 8}]},
        "spikes": spikes(),
    }
    said: list[str] = []
    path, root = write_job(tmp_path, made.path, **job), tmp_path / "run"
    for _ in range(2):  # a finished run started again says it again
        assert train(path, say=said.append).outcome == "finished"
    events = read_events(RunPaths(root))
    assert [event["kind"] for event in events][-3:] == ["resume", "alarm_open", "finished"]
    assert [(e["alarm"], e["missing"], e["raised"]) for e in events if e["kind"] == "alarm_open"] == [(18, 1, True)] * 2
    (line, _) = [one for one in said if "not answered" in one]
    assert "alarm of step 18" in line
    assert "1 more step" in line
    assert open_alarms(events) == [(0, 18)]
    assert "not answered" in render_run_report(root)
    assert train(path, "steps=24").rollbacks == 1
    events = read_events(RunPaths(root))
    assert (open_alarms(events), quiet_alarms(events)) == ([], [])
    assert "not answered" not in render_run_report(root).split("What happened")[0]


def _event(kind: str, step: int, branch: int = 0, **own: Any) -> dict[str, Any]:
    return {"kind": kind, "step": step, "branch": branch, **own}


@pytest.mark.parametrize(
    ("later", "open_ones"),
    [
        ([], [(0, 40)]),
        ([_event("finished", 44)], [(0, 40)]),
        ([_event("stopped", 44), _event("resume", 44)], [(0, 40)]),
        ([_event("resume", 36)], []),  # its steps are done again, and raise it again
        ([_event("resume", 36), _event("alarm", 40)], [(0, 40)]),
        ([_event("alarm_over", 48, alarm=40)], []),
        ([_event("verdict", 48, window={"alarm": 40})], []),
        ([_event("rollback", 16, 1)], []),
    ],
)
def test_which_alarm_is_open(later: list[dict[str, Any]], open_ones: list[tuple[int, int]]) -> None:
    before = [_event("alarm", 20), _event("alarm_over", 28, alarm=20), _event("alarm", 40)]
    assert open_alarms([*before, *later]) == open_ones


def test_an_alarm_that_nobody_watched_did_not_come_to_nothing() -> None:
    """The list of quiet alarms says that the loss did not stay raised; of these nobody knows."""
    events = [_event("alarm", 20), _event("alarm_over", 90, alarm=20, why="the steps since were not watched")]
    assert (open_alarms(events), quiet_alarms(events)) == ([(0, 20)], [])
