"""Planned mixture changes at awkward moments: in an open alarm, and where a Dataset with other stages takes over."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from train.spikes.config import DetectorConfig, SpikeConfig
from train.spikes.decide import judge_raised
from train.spikes.history import SourceMedians, Trend
from train.spikes.records import StepRecord
from train.spikes.watch import SpikeWatch

EASY, HARD = {"easy": 0.8, "hard": 0.2}, {"easy": 0.2, "hard": 0.8}
LEVEL = {"easy": 1.5, "hard": 2.8}
NATS = 0.6 * (LEVEL["hard"] - LEVEL["easy"])
"""What the change from ``EASY`` to ``HARD`` adds to the mean loss."""
CHANGE = 400

Shares = Mapping[str, float]


def _records(count: int, change: int, odd: Sequence[int] = (), nats: float = 0.6) -> list[StepRecord]:
    """``EASY`` before ``change``, ``HARD`` from it on; the steps ``odd`` are so much worse."""
    r = np.random.default_rng(0)
    out = []
    for step in range(count):
        shares = EASY if step < change else HARD
        extra = nats if step in odd else 0.0
        counts = {name: round(1000 * share) for name, share in shares.items()}
        sums = {n: ((LEVEL[n] + r.normal(0, 0.02) + extra) * counts[n], counts[n]) for n in counts}
        loss = sum(total for total, _ in sums.values()) / 1000
        norm = float(np.exp(r.normal(0, 0.05)))
        out.append(StepRecord(step, step, step + 1, loss, norm, 0.01, 1000, sums, True))
    return out


def _follow(watch: SpikeWatch, records: Sequence[StepRecord], every: int = 0) -> tuple[SpikeWatch, list[Any]]:
    """(step, kind of decision, event) of all that was said; saved and loaded through JSON every so many steps."""
    told = []
    for record in records:
        if every and record.step % every == 0:
            state = json.loads(json.dumps(watch.state_dict(), allow_nan=False))
            watch = SpikeWatch(watch.config, watch._detectors._stages)
            watch.load_state_dict(state)
        decision = watch.observe(record)
        if decision.kind != "none":
            told.append((record.step, decision.kind, dict(decision.event)))
        if decision.kind == "investigate":
            watch.answer()
    return watch, told


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("gap", [5, 10, 20, 31])
def test_an_alarm_that_is_open_at_a_planned_change_is_judged_with_its_allowance(gap: int, every: int) -> None:
    """One odd step comes to nothing, as it does far from the change, and nothing follows it."""
    config = SpikeConfig(detectors=DetectorConfig(min_nats=0.3))
    stages = [(0, EASY), (CHANGE, HARD)]
    watch, told = _follow(SpikeWatch(config, stages), _records(CHANGE + 150, CHANGE, [CHANGE - gap]), every)
    assert [(step, event["kind"]) for step, _, event in told][:1] == [(CHANGE - gap, "alarm")]
    assert [event["kind"] for _, _, event in told] == ["alarm", "alarm_over"], told
    trend = watch._detectors.loss_trend()
    assert trend is not None
    assert trend.at(1) == pytest.approx(1.76 + NATS, abs=0.05)


def test_a_spike_that_lasts_over_a_planned_change_is_raised_and_its_losses_are_the_real_ones() -> None:
    """The steps done again are held against these: what was planned counts in what was expected, not in what was."""
    odd = range(CHANGE - 10, CHANGE + 100)
    records = _records(CHANGE + 100, CHANGE, odd)
    _, told = _follow(SpikeWatch(SpikeConfig(), [(0, EASY), (CHANGE, HARD)]), records)
    (raised,) = [event for _, kind, event in told if kind == "investigate"][:1]
    window = records[CHANGE - 10 : CHANGE + 22]
    assert raised["loss"] == pytest.approx(np.mean([r.loss for r in window]))
    clean = _records(CHANGE + 100, CHANGE)[CHANGE - 10 : CHANGE + 22]
    assert raised["expected_loss"] == pytest.approx(np.mean([r.loss for r in clean]), abs=0.05)


def test_allowances_are_taken_off_step_by_step() -> None:
    trend, losses = Trend(2.0, 0.0, 64, 0.02), [2.0 + 0.01 * (i % 3) for i in range(12)]
    plain = judge_raised(losses, trend, 3.5)
    planned = [0.0] * 4 + [1.0] * 8
    moved = judge_raised([x + more for x, more in zip(losses, planned, strict=True)], trend, 3.5, planned)
    assert moved.z == pytest.approx(plain.z)
    assert moved.raised == plain.raised
    assert moved.mean_loss == pytest.approx((plain.mean_loss or 0.0) + 8 / 12)
    assert moved.expected_loss == pytest.approx((plain.expected_loss or 0.0) + 8 / 12)
    assert judge_raised(losses, trend, 3.5, [0.0] * 12) == plain


def test_a_state_of_before_allowances_were_kept_is_read() -> None:
    records = _records(CHANGE + 150, CHANGE, [CHANGE - 70])
    watch = SpikeWatch(SpikeConfig(), [(0, EASY), (CHANGE, HARD)])
    for record in records[: CHANGE - 68]:
        watch.observe(record)
    state = json.loads(json.dumps(watch.state_dict()))
    del state["planned"], state["detectors"]["shares"]
    again = SpikeWatch(SpikeConfig(), [(0, EASY), (CHANGE, HARD)])
    again.load_state_dict({**state, "detectors": {**state["detectors"], "stage": 0}})
    _, told = _follow(again, records[CHANGE - 68 :])
    assert [event["kind"] for _, _, event in told] == ["alarm_over"]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([(0, EASY)], [(0, HARD), (300, EASY)], 10**6),  # the stages of the new Dataset lie behind the run mostly
        ([(0, EASY), (100, EASY), (200, EASY)], [(0, EASY), (650, HARD)], 650),  # a change that lies ahead
        ([(0, EASY)], [(0, HARD)], 600),  # the new Dataset is mixed otherwise from its first step on
        ([(0, EASY), (500, EASY)], [(0, HARD), (100, EASY), (300, HARD), (590, EASY), (605, HARD)], 605),
    ],
)
def test_a_dataset_with_other_stages_takes_over(before: Any, after: Any, change: int) -> None:
    """The stage is found by position, and the histories move from the shares that they are of."""
    records = _records(720, change)
    watch, told = _follow(SpikeWatch(SpikeConfig(), before), records[:600])
    later = SpikeWatch(SpikeConfig(), after)
    later.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    later.observe(records[600])
    trend = later._detectors.loss_trend()
    assert trend is not None
    assert trend.at(1) == pytest.approx(1.76 + (NATS if change <= 600 else 0.0), abs=0.05)
    _, more = _follow(later, records[601:])
    assert (told, more) == ([], [])


def test_a_stage_saved_as_a_number_is_read_and_one_that_is_no_longer_there_found_by_position() -> None:
    records = _records(720, 650)
    watch, _ = _follow(SpikeWatch(SpikeConfig(), [(0, EASY)]), records[:600])
    state = json.loads(json.dumps(watch.state_dict()))
    del state["detectors"]["shares"]
    ahead = [(0, EASY), (650, HARD)]
    for number, stages in ((0, ahead), (5, ahead), (1, [(0, HARD), (1, EASY), (650, HARD)])):
        later = SpikeWatch(SpikeConfig(), stages)
        later.load_state_dict({**state, "detectors": {**state["detectors"], "stage": number}})
        assert _follow(later, records[600:])[1] == []


def test_what_the_medians_predict_is_the_same_to_the_last_bit_after_a_load() -> None:
    """However the sources came in; ten of them make any other order of additions show."""
    for seed in range(50):
        r = np.random.default_rng(seed)
        names = [f"source{i}" for i in r.permutation(10)]
        medians, again = SourceMedians(), SourceMedians()
        for _ in range(10):
            medians.absorb({name: (float(r.normal(2, 1)) * 100, 100) for name in names})
        again.load(json.loads(json.dumps(medians.state())))
        old, new = ({name: float(r.random()) for name in names} for _ in range(2))
        assert medians.shift(old, new) == again.shift(old, new)


def test_the_steps_of_an_open_alarm_are_moved_for_the_level_that_follows() -> None:
    """A lasting rise over a planned change, answered without a cut: both make the level from then on."""
    records = _records(CHANGE + 150, CHANGE, range(CHANGE - 20, CHANGE + 150), nats=0.5)
    watch, told = _follow(SpikeWatch(SpikeConfig(), [(0, EASY), (CHANGE, HARD)]), records)
    assert [kind for _, kind, _ in told] == ["alarm", "investigate"], told
    trend = watch._detectors.loss_trend()
    assert trend is not None
    assert trend.at(1) == pytest.approx(1.76 + NATS + 0.5, abs=0.05)
    assert dataclasses.replace(trend, slope=0.0).scale < 0.1
