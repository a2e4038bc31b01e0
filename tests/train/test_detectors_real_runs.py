"""The detectors on real training: a recorded run, and one of 30,000 steps trained afresh with another seed.

Targets: at most 1 rollback decision in 10,000 clean steps, 45 of 50 poisoned windows seen (43 on the fresh run), ramps
of poison within 15 steps, and 0.3 nats over the noise of a batch of 256 samples at once.
"""

from __future__ import annotations

import functools
import json

import pytest
import xxhash

from benchmarks.spike_detectors import (
    NEW,
    PEERS,
    RAMPS,
    Judged,
    Watch,
    judge,
    judge_traces,
    larger_batches,
    ours,
    raised_windows,
)
from benchmarks.spike_traces import BATCH, RECORDED, Traces, load_traces, record, save_traces
from train.spikes.config import SpikeConfig
from train.spikes.watch import SpikeWatch

DIGEST = "2c8f20a9fd38799d"


@functools.cache
def _recorded() -> tuple[Traces, Judged]:
    traces = load_traces()
    return traces, judge_traces(ours, traces)


def _check(traces: Traces, found: Judged, poisoned: int) -> None:
    """The targets; ``poisoned``: of 50 windows, how many must be seen."""
    assert len(traces.clean) == 30_000
    assert len(traces.windows) == 70
    assert len(found.decisions) <= 3, found.decisions
    assert len(found.poisoned()) >= poisoned, [s for s in found.seen if s.alarm is None]
    assert sum(s.alarm is not None and s.alarm <= 15 for s in found.of(RAMPS)) >= 9, found.of(RAMPS)


def _check_jumps(traces: Traces) -> None:
    clean = larger_batches(traces.clean, 16)
    jumps = judge(ours(traces.stages), clean, raised_windows(clean, "+0.3 nats", 37, lambda step: 0.3)).seen
    assert len(jumps) >= 40
    assert sum(s.alarm == 0 for s in jumps) >= 0.95 * len(jumps)


def test_the_recorded_file_is_the_one_that_was_judged() -> None:
    data = RECORDED.read_bytes()
    assert xxhash.xxh3_64_hexdigest(data) == DIGEST
    assert len(data) < 600_000


def test_the_recorded_run_holds_the_targets() -> None:
    _check(*_recorded(), poisoned=45)


def test_a_jump_over_the_noise_of_a_larger_batch_is_seen_at_once() -> None:
    _check_jumps(_recorded()[0])


def test_the_recorded_run_is_quiet_where_its_mixture_changes() -> None:
    traces, found = _recorded()
    starts = [start // BATCH for start, _ in traces.stages[1:]]
    assert len(starts) == 3
    assert not [s for s in found.alarms for start in starts if 0 <= s - start < 100]


def test_good_new_text_is_never_worth_more_than_a_question() -> None:
    """An alarm is allowed, and so is a question to attribution; on the clean run neither is frequent."""
    _, found = _recorded()
    assert len(found.of(NEW)) == 10
    assert len(found.alarms) <= 18


@pytest.mark.parametrize("name", PEERS)
def test_no_other_rule_sees_more_poison(name: str) -> None:
    traces, found = _recorded()
    near = {w.step for w in traces.windows}
    # a rule's memory is at most 128 steps: what lies before that changes nothing but Megatron's first 100
    clean = [r for r in traces.clean if r.step < 101 or any(0 < step - r.step <= 300 for step in near)]
    other = judge(PEERS[name](traces.stages), clean, traces.windows)
    assert len(other.poisoned()) < len(found.poisoned())


def test_killed_and_resumed_the_real_run_is_judged_the_same() -> None:
    """Every 7 steps, around the first alarm of the run, through JSON."""
    traces, found = _recorded()
    first = found.alarms[0]
    whole, resumed = Watch(traces.stages), SpikeWatch(SpikeConfig(), traces.stages)
    for r in traces.clean[: first + 60]:
        kind = whole.observe(r)
        if r.step > first - 60 and r.step % 7 == 0:
            state = json.loads(json.dumps(resumed.state_dict(), allow_nan=False))
            resumed = SpikeWatch(SpikeConfig(), traces.stages)
            resumed.load_state_dict(state)
        decision = resumed.observe(r)
        assert decision.kind == kind
        if kind == "investigate":
            resumed.answer()
    assert resumed.state_dict() == whole.watch.state_dict()


@pytest.mark.slow
def test_a_fresh_run_with_another_seed_holds_them_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    """About 200 CPU seconds. Its traces go through the file format, as the recorded ones did.

    43 windows, not 45: of this seed 48 were seen, of seed 2, which nothing was chosen by, 45. Digits and repeated HTML
    at up to a quarter of the tokens move neither the loss nor the gradient of this model by more than its noise, and
    another processor rounds otherwise and trains another run.
    """
    path = tmp_path_factory.mktemp("traces") / "fresh.npz"
    save_traces(path, record(1))
    traces = load_traces(path)
    assert traces.seed == 1
    _check(traces, judge_traces(ours, traces), poisoned=43)
    _check_jumps(traces)
