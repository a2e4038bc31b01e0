"""The spike watch from alarm to verdict: synthetic losses, a frozen model that is exactly right, and a context that
lends it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

import pytest
from support.spikes import World, step_records

from loader.order.skips import SkipEntry
from train.spikes.config import AttributionConfig, DetectorConfig, SpikeConfig
from train.spikes.records import Decision, StepRecord
from train.spikes.rollback import RollbackRecord, rollbacks_from
from train.spikes.watch import SpikeWatch

STAGES = [(0, {"left": 0.5, "right": 0.5})]
CONFIG = SpikeConfig(
    patience=8,
    max_cut_fraction=0.5,
    detectors=DetectorConfig(warmup_steps=40, window_steps=32),
    attribution=AttributionConfig(baseline_segments=300, baseline_source_segments=60),
)
SPIKE_AT = 120


def _spike(step: int) -> float:
    return 1.0 if step >= SPIKE_AT else 0.0


def _watch(
    records: Sequence[StepRecord], config: SpikeConfig = CONFIG
) -> tuple[SpikeWatch, list[tuple[int, Decision]]]:
    watch, told = SpikeWatch(config, STAGES), []
    for record in records:
        decision = watch.observe(record)
        if decision.kind != "none":
            told.append((record.step, decision))
        if decision.kind == "investigate":
            break
    return watch, told


def test_a_lasting_spike_is_investigated_after_patience() -> None:
    _, told = _watch(step_records(200, bump=_spike))
    assert [(step, d.kind) for step, d in told] == [(SPIKE_AT, "alarm"), (SPIKE_AT + 7, "investigate")]
    window = told[1][1].window
    assert window is not None
    assert (window.start, window.alarm, window.stop) == (SPIKE_AT - 8, SPIKE_AT, SPIKE_AT + 8)
    assert told[1][1].event["z"] > 3
    json.dumps([d.event for _, d in told], allow_nan=False)


@pytest.mark.parametrize("height", [0.3, 2.0])
def test_a_spike_that_goes_away_by_itself_is_reported_only(height: float) -> None:
    """One wild step of 16, however wild, is no spike that stays."""
    config = dataclasses.replace(CONFIG, patience=16)
    _, told = _watch(step_records(200, bump=lambda s: height if s == SPIKE_AT else 0.0), config)
    assert [(step, d.kind) for step, d in told][:2] == [(SPIKE_AT, "alarm"), (SPIKE_AT + 15, "report")]
    assert told[1][1].event["kind"] == "alarm_over"


def _odd_documents(count: int, *steps: int) -> list[StepRecord]:
    """Steps whose loss is what it was, and whose gradient norm is 12 times as high where ``steps`` says so."""
    return step_records(count, grad=lambda step: 12.0 if step in steps else 1.0)


def test_an_alarm_is_over_once_all_is_quiet_and_the_next_one_is_seen() -> None:
    """One odd document keeps nobody from seeing another 12 steps later, well inside of ``patience``."""
    config = dataclasses.replace(CONFIG, patience=32)
    _, told = _watch(_odd_documents(170, SPIKE_AT, SPIKE_AT + 12), config)
    assert [(step, d.event["kind"]) for step, d in told] == [
        (SPIKE_AT, "alarm"),
        (SPIKE_AT + 8, "alarm_over"),
        (SPIKE_AT + 12, "alarm"),
        (SPIKE_AT + 20, "alarm_over"),
    ]


def test_a_raised_loss_keeps_an_alarm_open_though_no_detector_raises_again() -> None:
    """0.035 nats lie below what any detector asks for; over ``patience`` they are a loss that stays raised."""
    config = dataclasses.replace(CONFIG, patience=32)
    records = [
        dataclasses.replace(r, grad_norm=r.grad_norm * (12.0 if r.step == SPIKE_AT else 1.0))
        for r in step_records(160, bump=lambda step: 0.035 if step >= SPIKE_AT else 0.0)
    ]
    _, told = _watch(records, config)
    assert [(step, d.kind) for step, d in told] == [(SPIKE_AT, "alarm"), (SPIKE_AT + 31, "investigate")]


def test_quiet_steps_are_counted_through_a_checkpoint_and_by_an_earlier_version_s_state() -> None:
    config, records = dataclasses.replace(CONFIG, patience=32), _odd_documents(150, SPIKE_AT)
    for known, over in ((True, SPIKE_AT + 8), (False, SPIKE_AT + 12)):
        first, again = SpikeWatch(config, STAGES), SpikeWatch(config, STAGES)
        for record in records[: SPIKE_AT + 5]:
            first.observe(record)
        state = json.loads(json.dumps(first.state_dict()))
        again.load_state_dict(state if known else {name: v for name, v in state.items() if name != "quiet"})
        told = [(r.step, again.observe(r).event.get("kind")) for r in records[SPIKE_AT + 5 :]]
        assert [step for step, kind in told if kind == "alarm_over"] == [over]


def test_planted_source_is_masked_whole_from_the_checkpoint_on() -> None:
    watch, _ = _watch(step_records(200, bump=_spike))
    world = World(bad_from=SPIKE_AT, checkpoints=(0, 100, 115, 125))
    verdict = watch.investigate(world)
    assert (verdict.action, verdict.outcome, verdict.rollback_to) == ("mask", "waiting", 100)
    assert world.loaded == [100]
    (entry,) = (e for e in verdict.entries if e.kind == "source")
    assert (entry.kind, entry.mode, entry.source, entry.stamp) == ("source", "mask", "planted", 800)
    assert verdict.report["sources"]["planted"]["whole"]
    named = {d["document"] for d in verdict.report["documents"]}
    planted = {
        f"{int(d):016x}"
        for step in range(112, 128)
        for d, s, n in zip(
            world.read_batch(step).segments.document_id_S,
            world.read_batch(step).segments.source_S,
            world.read_batch(step).segments.padding_S,
            strict=True,
        )
        if s == 2 and not n
    }
    assert planted <= named
    assert len(named - planted) <= 0.05 * len(planted)
    json.dumps(verdict.report, allow_nan=False)


def test_scattered_poison_is_masked_by_document() -> None:
    watch, _ = _watch(step_records(200, bump=_spike))
    verdict = watch.investigate(World(bad_from=SPIKE_AT, planted=False, checkpoints=(0, 100)))
    (entry,) = verdict.entries
    assert (verdict.action, entry.kind, entry.mode) == ("mask", "documents", "mask")
    bad = [d for d in entry.documents if d >= 10**9]
    assert len(bad) >= 0.9 * len(entry.documents)
    assert verdict.report["flagged_tokens"] >= 0.9 * 0.34 * 0.5 * verdict.report["window_tokens"]


def test_above_the_cut_limit_samples_are_dropped_and_replaced() -> None:
    config = dataclasses.replace(CONFIG, max_cut_fraction=0.05)
    watch, _ = _watch(step_records(200, bump=_spike), config)
    verdict = watch.investigate(World(bad_from=SPIKE_AT, planted=False, checkpoints=(0, 100)))
    assert (verdict.action, verdict.outcome) == ("replace", "waiting")
    assert [(e.kind, e.mode) for e in verdict.entries] == [("documents", "drop")]


def test_a_good_new_domain_is_left_alone_and_becomes_normal() -> None:
    records = step_records(400, bump=_spike)
    watch, told = _watch(records)
    verdict = watch.investigate(World(bad_from=SPIKE_AT, new_domain=True, checkpoints=(0, 100)))
    assert (verdict.action, verdict.entries, verdict.rollback_to) == ("report", (), None)
    assert verdict.report["why"] == "attribution flags almost nothing"
    later = [watch.observe(r).kind for r in records[told[-1][0] + 1 :]]
    assert later.count("alarm") == 0


def test_broken_parameters_are_investigated_at_once() -> None:
    records = [
        dataclasses.replace(r, finite=False, loss=math.nan) if r.step >= SPIKE_AT else r for r in step_records(130)
    ]
    watch, told = _watch(records)
    assert [(step, d.kind) for step, d in told] == [(SPIKE_AT, "investigate")]
    json.dumps(watch.state_dict(), allow_nan=False)
    nothing_odd = World(bad_from=10**9, checkpoints=(0, 100))
    verdict = watch.investigate(nothing_odd)
    assert (verdict.action, verdict.outcome) == ("skip_range", "waiting")
    (entry,) = verdict.entries
    assert (entry.kind, entry.mode, entry.ranges) == ("positions", "drop", (((SPIKE_AT - 8) * 8, (SPIKE_AT + 1) * 8),))
    assert entry.stamp == 800


def test_broken_parameters_without_a_checkpoint_give_up() -> None:
    records = [dataclasses.replace(r, finite=False) if r.step >= 50 else r for r in step_records(60)]
    watch, _ = _watch(records)
    assert watch.investigate(World(checkpoints=())).action == "give_up"


def test_dry_run_tells_what_it_would_have_done() -> None:
    watch, _ = _watch(step_records(200, bump=_spike), dataclasses.replace(CONFIG, dry_run=True))
    verdict = watch.investigate(World(bad_from=SPIKE_AT, checkpoints=(0, 100)))
    assert (verdict.action, verdict.report["would"], verdict.entries) == ("report", "mask", ())


def _rollback(number: int, alarm: int, loss: float | None = 3.5) -> RollbackRecord:
    return RollbackRecord(number, alarm - 8, alarm, alarm + 8, 100, 800, "mask", loss, 2.5)


def test_three_tries_then_it_stops() -> None:
    watch, _ = _watch(step_records(200, bump=_spike))
    watch.rollbacks = tuple(_rollback(i, SPIKE_AT + i) for i in range(3))
    verdict = watch.investigate(World(bad_from=SPIKE_AT, checkpoints=(0, 100)))
    assert (verdict.action, verdict.outcome) == ("give_up", "given_up")
    assert "QK-norm" in verdict.report["advice"]


def test_the_rollback_budget_is_kept() -> None:
    watch, _ = _watch(step_records(200, bump=_spike))
    watch.rollbacks = tuple(_rollback(i, 10 + 20 * i) for i in range(3))
    verdict = watch.investigate(World(bad_from=SPIKE_AT, checkpoints=(0, 100)))
    assert verdict.action == "report"
    assert "already spent" in verdict.report["why"]


def test_a_state_of_an_earlier_version_is_read() -> None:
    """It kept the losses behind the newest rollback under another name; that judgement begins anew."""
    watch, _ = _watch(step_records(150))
    state = json.loads(json.dumps(watch.state_dict()))
    del state["outcomes"]
    again = SpikeWatch(CONFIG, STAGES)
    again.load_state_dict({**state, "after": [3.5], "pending": []})
    assert again.state_dict() == watch.state_dict()


@pytest.mark.parametrize(("after", "outcome"), [(0.0, "recovered"), (0.9, "not_recovered")])
def test_the_masked_continuation_is_the_test(after: float, outcome: str) -> None:
    records = step_records(200, bump=_spike)
    watch, _ = _watch(records)
    verdict = watch.investigate(World(bad_from=SPIKE_AT, checkpoints=(0, 100)))
    rollbacks = rollbacks_from(verdict.entries)
    assert len(rollbacks) == 1
    # the loop: state of the checkpoint, then the new branch
    early, _ = _watch(records[:100])
    again = SpikeWatch(CONFIG, STAGES, rollbacks)
    again.load_state_dict(json.loads(json.dumps(early.state_dict())))
    quiet = dataclasses.replace(CONFIG, detectors=dataclasses.replace(CONFIG.detectors, warmup_steps=10**6))
    if outcome == "not_recovered":
        again = SpikeWatch(quiet, STAGES, rollbacks)
    told = []
    for record in step_records(140, bump=lambda s: after if s >= SPIKE_AT else 0.0)[100:]:
        decision = again.observe(record)
        if decision.kind != "none":
            told.append((record.step, decision.event))
    assert [(step, event["outcome"]) for step, event in told] == [(SPIKE_AT + 7, outcome)]


def test_rollbacks_are_found_again_in_the_skip_list() -> None:
    records = (_rollback(0, 50), _rollback(1, 90, None))
    entries = [
        SkipEntry("documents", "mask", 800, None, (), (1, 2), "spike", json.loads(json.dumps(r.evidence())))
        for r in (records[1], records[0], records[0])
    ]
    entries.append(SkipEntry("positions", "drop", 800, None, ((900, 901),), (), "by hand", {}))
    assert rollbacks_from(entries) == records


@pytest.mark.parametrize("cut", [0, 60, 119, 121, 124, 127, 128])
def test_state_survives_json_at_any_step(cut: int) -> None:
    records = step_records(260, noise=0.05, bump=lambda s: 1.0 if SPIKE_AT <= s < 124 else 0.0)
    whole = SpikeWatch(CONFIG, STAGES)
    wanted = [whole.observe(r) for r in records]
    first = SpikeWatch(CONFIG, STAGES)
    got = [first.observe(r) for r in records[:cut]]
    second = SpikeWatch(CONFIG, STAGES)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    got += [second.observe(r) for r in records[cut:]]
    assert got == wanted
    assert second.state_dict() == whole.state_dict()
    assert any(d.kind != "none" for d in wanted)


def _staged(shares: dict[str, float], step: int, level: dict[str, float]) -> StepRecord:
    counts = {name: int(2000 * share) for name, share in shares.items() if share}
    noise = ((step * 7919) % 13 - 6) * 0.004
    sums = {name: ((level[name] + noise) * count, count) for name, count in counts.items()}
    loss = sum(t for t, _ in sums.values()) / sum(counts.values())
    return StepRecord(step, step * 8, step * 8 + 8, loss, 1.0 + noise, 0.01, sum(counts.values()), sums, True)


def test_a_planned_mixture_change_is_no_spike_but_a_new_source_gets_no_allowance() -> None:
    level = {"left": 2.0, "right": 4.0, "planted": 5.0}
    old, new = {"left": 0.8, "right": 0.2}, {"left": 0.2, "right": 0.8}
    records = [_staged(old if s < 120 else new, s, level) for s in range(200)]
    announced = SpikeWatch(CONFIG, [(0, old), (960, new)])
    assert [d.kind for d in map(announced.observe, records) if d.kind != "none"] == []
    silent = SpikeWatch(CONFIG, [(0, old)])
    assert "alarm" in [silent.observe(r).kind for r in records]
    poisoned = {"left": 0.5, "right": 0.1, "planted": 0.4}
    watch = SpikeWatch(CONFIG, [(0, old), (960, poisoned)])
    kinds = [watch.observe(_staged(old if s < 120 else poisoned, s, level)).kind for s in range(125)]
    assert kinds[120] == "alarm"


def test_the_window_reaches_back_to_a_new_source_s_first_appearance() -> None:
    records = step_records(200, bump=lambda s: 1.0 if s >= 150 else 0.0)
    records = [
        dataclasses.replace(r, source_loss={**r.source_loss, "planted": (4.0, 2)}) if r.step >= 130 else r
        for r in records
    ]
    _, told = _watch(records)
    window = told[-1][1].window
    assert window is not None
    assert (window.start, window.alarm) == (130, 150)


def test_switched_off_it_says_nothing() -> None:
    watch = SpikeWatch(dataclasses.replace(CONFIG, enabled=False), STAGES)
    assert {watch.observe(r).kind for r in step_records(200, bump=_spike)} == {"none"}


def test_a_validation_rise_is_only_reported() -> None:
    watch = SpikeWatch(CONFIG, STAGES)
    assert [watch.observe_validation(s, loss).kind for s, loss in enumerate((3.0, 2.5, 2.55, 2.9))] == [
        "none",
        "none",
        "none",
        "report",
    ]


def test_investigating_without_a_case_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        SpikeWatch(CONFIG, STAGES).investigate(World())
