"""What every detector promises: read changes nothing, state comes back exactly through JSON, clean noise stays
quiet."""

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
from train.spikes.detectors import DETECTORS, DetectorSet
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
    "grad_norm": lambda r: dataclasses.replace(r, grad_norm=r.grad_norm * 12),
    "update_norm": lambda r: dataclasses.replace(r, update_norm=r.update_norm * 12),
    "plateau": lambda r: dataclasses.replace(r, loss=2.5),
}
"""What each detector must see when it lasts; a detector without a row here does not exist."""


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


@pytest.mark.parametrize("name", [n for n in DETECTORS if n not in ("non_finite", "plateau")])
def test_flagged_steps_stay_out_of_the_history(name: str) -> None:
    """A spike of 40 steps is still one on its last step: it never becomes its own normal."""
    detectors = DetectorSet(dataclasses.replace(CONFIG, min_nats=0.02), STAGES)
    last: set[str] = set()
    for record in step_records(240, seed=3, noise=0.01):
        changed = SEES[name](record) if record.step >= 200 else record
        last = {r.detector for r in detectors.observe(changed, holding=record.step > 204)}
    assert name in last


def test_an_unknown_number_is_passed_over() -> None:
    detectors = DetectorSet(CONFIG, STAGES)
    for record in step_records(300, seed=4):
        assert not detectors.observe(dataclasses.replace(record, update_norm=math.nan), holding=False)
    state = json.loads(json.dumps(detectors.state(), allow_nan=False))
    assert state["detectors"]["update_norm"]["history"] == []
