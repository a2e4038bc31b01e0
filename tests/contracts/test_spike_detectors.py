"""What every detector promises: it sees what it is for, clean noise stays quiet, reading changes nothing, state comes
back exactly through JSON at any step, flagged steps and numbers that are none never enter a history, and a planned
change of the mixture is no surprise.

Parametrised over the table, so that a new row is tested from its first day."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter
from collections.abc import Callable

import pytest
from support.spikes import step_records

from train.spikes.config import DetectorConfig
from train.spikes.detector_set import DetectorSet
from train.spikes.detectors import DETECTORS
from train.spikes.history import SourceMedians
from train.spikes.records import StepRecord

CONFIG = DetectorConfig(plateau_steps=150)
STAGES = [(0, {"left": 0.5, "right": 0.5})]

Change = Callable[[StepRecord], StepRecord]


def _louder(nats: float) -> Change:
    def change(record: StepRecord) -> StepRecord:
        sums = {name: (total + nats * count, count) for name, (total, count) in record.source_loss.items()}
        return dataclasses.replace(record, loss=record.loss + nats, source_loss=sums)

    return change


SEES: dict[str, Change] = {
    "non_finite": lambda r: dataclasses.replace(r, loss=math.nan, finite=False),
    "loss_step": _louder(1.0),
    "loss_mean": _louder(0.1),
    "source_loss": _louder(0.3),
    "source_mean": _louder(0.1),
    "grad_norm": lambda r: dataclasses.replace(r, grad_norm=r.grad_norm * 12),
    "grad_middle": lambda r: dataclasses.replace(r, grad_norm=r.grad_norm * 2),
    "grad_lasting": lambda r: dataclasses.replace(r, grad_norm=r.grad_norm * 1.6),
    "update_norm": lambda r: dataclasses.replace(r, update_norm=r.update_norm * 12),
    "plateau": lambda r: dataclasses.replace(r, loss=2.5),
}
"""What each detector must see when it lasts; a detector without a row here does not exist."""

SERIES = [name for name in DETECTORS if name not in ("non_finite", "plateau")]
MOVED = [name for name in DETECTORS if name.startswith("loss_")]
"""The detectors of one number a step, and those whose number a planned mixture change moves."""


def test_every_detector_has_its_row() -> None:
    assert set(SEES) == set(DETECTORS)


@pytest.mark.parametrize("name", DETECTORS)
def test_it_sees_its_kind(name: str) -> None:
    detectors, raised = DetectorSet(CONFIG, STAGES), []
    steps = 700 if name == "plateau" else 260
    for record in step_records(steps, seed=1, noise=0.02):
        changed = SEES[name](record) if record.step >= 250 else record
        raised += [(record.step, reading.detector) for reading in detectors.observe(changed, holding=False)]
    first = [step for step, detector in raised if detector == name]
    assert first
    assert first[0] >= 250
    assert first[0] <= (650 if name == "plateau" else 255)


@functools.cache
def _clean_alarms(noise: float) -> Counter[str]:
    """Alarms by detector in 3 x 500 clean steps."""
    alarms: Counter[str] = Counter()
    for seed in range(3):
        detectors = DetectorSet(DetectorConfig(plateau_steps=0), STAGES)
        for record in step_records(500, seed=seed, noise=noise):
            alarms.update(r.detector for r in detectors.observe(record, holding=False))
    return alarms


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("noise", [0.01, 0.25])
def test_clean_noise_is_quiet(name: str, noise: float) -> None:
    assert _clean_alarms(noise)[name] == 0


@pytest.mark.parametrize("name", DETECTORS)
def test_reading_changes_nothing_and_state_returns_exactly(name: str) -> None:
    sources = SourceMedians()
    detector = DETECTORS[name](CONFIG)
    records = step_records(300, seed=2)
    for record in records[:200]:
        before = json.dumps(detector.state())
        detector.read(record, sources)
        assert json.dumps(detector.state()) == before
        detector.absorb(record, sources, True)
        sources.absorb(record.source_loss)
    other = DETECTORS[name](CONFIG)
    other.load(json.loads(json.dumps(detector.state())))
    for record in records[200:]:
        assert detector.read(record, sources) == other.read(record, sources)
        detector.absorb(record, sources, True)
        other.absorb(record, sources, True)
    assert detector.state() == other.state()


@pytest.mark.parametrize("name", SERIES)
def test_flagged_steps_stay_out_of_the_history(name: str) -> None:
    """A spike of 40 steps is still one on its last step: it never becomes its own normal."""
    detectors = DetectorSet(dataclasses.replace(CONFIG, min_nats=0.02), STAGES)
    last: set[str] = set()
    for record in step_records(240, seed=3, noise=0.01):
        changed = SEES[name](record) if record.step >= 200 else record
        last = {r.detector for r in detectors.observe(changed, holding=record.step > 204)}
    assert name in last


def test_a_small_growth_that_lasts_is_seen_by_the_medians_alone() -> None:
    detectors, raised = DetectorSet(CONFIG, STAGES), []
    for record in step_records(240, seed=3, noise=0.01):
        growth = 1.25 if record.step >= 200 else 1.0
        changed = dataclasses.replace(record, grad_norm=record.grad_norm**0.3 * growth)
        raised += [(record.step, r.detector) for r in detectors.observe(changed, holding=False)]
    assert raised
    assert {name for _, name in raised} == {"grad_middle", "grad_lasting"}
    assert raised[0][0] <= 205


def test_odd_documents_in_two_steps_of_eight_move_no_median() -> None:
    detectors, raised = DetectorSet(CONFIG, STAGES), set()
    for record in step_records(400, seed=3, noise=0.01):
        odd = record.step >= 200 and record.step % 8 in (0, 3)
        changed = dataclasses.replace(record, grad_norm=record.grad_norm * 4.0) if odd else record
        raised |= {r.detector for r in detectors.observe(changed, holding=False)}
    assert not raised


def test_an_unknown_number_is_passed_over() -> None:
    detectors = DetectorSet(CONFIG, STAGES)
    for record in step_records(300, seed=4):
        assert not detectors.observe(dataclasses.replace(record, update_norm=math.nan), holding=False)
    state = json.loads(json.dumps(detectors.state(), allow_nan=False))
    assert state["detectors"]["update_norm"]["history"] == []


def _through_json(detectors: DetectorSet, stages: list[tuple[int, dict[str, float]]]) -> DetectorSet:
    again = DetectorSet(CONFIG, stages)
    again.load(json.loads(json.dumps(detectors.state(), allow_nan=False)))
    return again


@pytest.mark.parametrize("name", DETECTORS)
def test_a_run_reloaded_at_every_step_sees_the_same(name: str) -> None:
    """Through warm-up, the spike the row is for, steps that are held, the answer, and a planned mixture change."""
    stages = [*STAGES, (220 * 8, {"left": 0.9, "right": 0.1})]
    whole, reloaded = DetectorSet(CONFIG, stages), DetectorSet(CONFIG, stages)
    raised = []
    for record in step_records(260, seed=5):
        changed = SEES[name](record) if 150 <= record.step < 160 else record
        holding = 152 <= record.step < 170
        reloaded = _through_json(reloaded, stages)
        for detector, other in zip(whole.detectors.values(), reloaded.detectors.values(), strict=True):
            assert detector.read(changed, whole.sources) == other.read(changed, reloaded.sources)
        raised.append(whole.observe(changed, holding))
        assert reloaded.observe(changed, holding) == raised[-1]
        if record.step == 170:
            whole.settle()
            reloaded.settle()
        assert reloaded.state() == whole.state()
    assert name == "plateau" or any(reading.detector == name for readings in raised for reading in readings)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_state_from_before_the_row_was_there_is_read(name: str) -> None:
    """The row begins anew and sees its kind again, once it has its history; the others go on."""
    detectors, raised = DetectorSet(CONFIG, STAGES), []
    for record in step_records(700 if name == "plateau" else 260, seed=1):
        if record.step == 100:
            state = detectors.state()
            del state["detectors"][name]
            detectors = DetectorSet(CONFIG, STAGES)
            detectors.load(state)
            assert {**detectors.state()["detectors"], name: None} == {**state["detectors"], name: None}
        changed = SEES[name](record) if record.step >= 250 else record
        raised += [reading.detector for reading in detectors.observe(changed, holding=False)]
    assert name in raised


@pytest.mark.parametrize("name", SERIES)
def test_a_flagged_step_is_in_no_later_history(name: str) -> None:
    """Not of any row: neither while it is looked at nor when the steps behind it are clean again."""
    detectors, flagged = DetectorSet(CONFIG, STAGES), 0
    for record in step_records(300, seed=6, noise=0.01):
        odd = record.step in (200, 201, 230, 260)
        alone = {"grad_middle": "grad_norm", "grad_lasting": "grad_norm", "source_mean": "source_loss"}.get(name, name)
        change = SEES[{"loss_mean": "loss_step"}.get(alone, alone)]
        raised = {r.detector for r in detectors.observe(change(record) if odd else record, holding=False)}
        flagged += odd and alone in raised  # one odd step moves no median
        seen = detectors.state()["detectors"][name]
        clean = sorted(seen["history"])
        middle = clean[len(clean) // 2] if clean else 0.0
        assert all(abs(value - middle) < 0.6 for value in clean)
    assert flagged == 4
    assert detectors.state()["detectors"][name]["seen"] >= 265


BROKEN = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("field", ["loss", "grad_norm", "update_norm", "source_loss"])
@pytest.mark.parametrize("finite", [True, False])
def test_numbers_that_are_none_enter_no_history(field: str, value: float, finite: bool) -> None:
    """Only the flag asks; what is no number is passed over, and the state can be written as JSON."""
    whole = DetectorSet(CONFIG, STAGES)
    for record in step_records(200, seed=7):
        whole.observe(record, holding=False)
        if record.step != 150:
            continue
        broken: object = {"left": (value, 1000), "right": (value, 1000)} if field == "source_loss" else value
        odd = dataclasses.replace(record, finite=finite, **{field: broken})  # type: ignore[arg-type]
        raised = {r.detector for r in whole.observe(odd, holding=False)}
        assert raised == (set() if finite else {"non_finite"})
        json.dumps(whole.state(), allow_nan=False)
        for name, state in whole.state()["detectors"].items():
            values = [v for key in ("history", "held") for v in state.get(key, [])]
            assert all(math.isfinite(v) for v in values), name
    for reading in _readings(whole, step_records(201, seed=7)[-1]):
        assert math.isfinite(reading[1])
        assert math.isfinite(reading[2])


def _readings(detectors: DetectorSet, record: StepRecord) -> list[tuple[str, float, float]]:
    read = [detector.read(record, detectors.sources) for detector in detectors.detectors.values()]
    return [(r.detector, r.value, r.expected) for r in read if r is not None]


def _mixed(shares: dict[str, float], record: StepRecord) -> StepRecord:
    """The step with other shares of a source of 2 and one of 4 nats."""
    noise = record.loss - 3.0
    level = {"left": 2.0, "right": 4.0, "new": 5.0}
    sums = {name: ((level[name] + 0.1 * noise) * round(2000 * s), round(2000 * s)) for name, s in shares.items()}
    return dataclasses.replace(record, source_loss=sums, loss=sum(t for t, _ in sums.values()) / 2000)


OLD, LATER = {"left": 0.8, "right": 0.2}, {"left": 0.3, "right": 0.7}
WITH_NEW = {"left": 0.6, "right": 0.1, "new": 0.3}


@functools.cache
def _at_the_change(later: tuple[tuple[str, float], ...], told: bool) -> frozenset[str]:
    """Rows that raise an alarm within 60 steps of a mixture change at step 200."""
    stages = [(0, OLD), (200 * 8, dict(later))] if told else [(0, OLD)]
    detectors, raised = DetectorSet(CONFIG, stages), set()
    for record in step_records(260, seed=8):
        shares = dict(later) if record.step >= 200 else OLD
        raised |= {(record.step >= 200, r.detector) for r in detectors.observe(_mixed(shares, record), holding=False)}
    assert not any(name for after, name in raised if not after)
    return frozenset(name for _, name in raised)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_planned_mixture_change_raises_nothing(name: str) -> None:
    assert name not in _at_the_change(tuple(LATER.items()), told=True)


@pytest.mark.parametrize("name", MOVED)
def test_a_change_that_nobody_planned_does(name: str) -> None:
    assert name in _at_the_change(tuple(LATER.items()), told=False)


@pytest.mark.parametrize("name", [*MOVED, "source_loss"])
def test_a_planned_source_without_history_gets_no_allowance(name: str) -> None:
    assert name in _at_the_change(tuple(WITH_NEW.items()), told=True)
