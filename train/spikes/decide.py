"""From an attribution to a verdict: pure rules, no model and no files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from loader.order.skips import SkipEntry

from .attribute import Attribution, SegmentColumns
from .config import SpikeConfig
from .confirm import placebo_entries
from .history import Trend
from .records import Verdict, Window
from .rollback import RollbackRecord, recovered, tries_of, within_span

__all__ = ["Case", "Finding", "Raised", "as_dry_run", "decide", "judge_raised", "judge_recovery"]

Action = Literal["mask", "replace", "skip_range"]
_ADVICE = "three things that have helped others: QK-norm, a lower learning rate, z-loss"


@dataclass(frozen=True)
class Raised:
    """Whether the loss stayed up: mean of the steps since the alarm, what the trend promised, and the distance."""

    mean_loss: float | None
    expected_loss: float | None
    z: float
    raised: bool

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {"loss": self.mean_loss, "expected_loss": self.expected_loss, "z": self.z, "raised": self.raised}


def judge_raised(
    losses: Sequence[float], trend: Trend | None, threshold_z: float, planned: Sequence[float] | None = None
) -> Raised:
    """Did the loss stay up since the alarm, against the trend before it?

    The mean of all steps must lie ``threshold_z`` deviations above it, and without the highest sixteenth of them still
    half as far: one wild step of 16 is no spike that stays. A falling trend is not continued, only its end counts: loss
    curves flatten, and a line through them promises too much. A deviation holds the noise of such a mean and the error
    of the line itself. ``planned``: by how much the mixture's planned changes since the alarm move each loss, nats
    (None: not at all); what was planned counts in what was expected.
    """
    allowed = [0.0] * len(losses) if planned is None else planned
    if not losses or not all(math.isfinite(x) for x in losses):
        return Raised(None, None, 0.0, False)
    real_mean, allowance = float(np.mean(sorted(losses))), float(np.mean(allowed))
    if trend is None:
        return Raised(real_mean, None, 0.0, False)
    finite = sorted(x - moved for x, moved in zip(losses, allowed, strict=True))
    mean = float(np.mean(finite))
    ahead = 0.0 if trend.slope < 0 else (len(finite) + 1) / 2
    expected, error = trend.at(ahead), trend.error(ahead)
    z = (mean - expected) / math.hypot(trend.scale / math.sqrt(len(finite)), error)
    kept = finite[: len(finite) - len(finite) // 16]
    kept_z = (float(np.mean(kept)) - expected) / math.hypot(trend.scale / math.sqrt(len(kept)), error)
    return Raised(real_mean, expected + allowance, z, z > threshold_z and kept_z > threshold_z / 2)


def judge_recovery(record: RollbackRecord, losses: Sequence[float]) -> dict[str, Any]:
    """The masked continuation against the recorded run, over the steps from the alarm to the window's end."""
    gone, share, mean = recovered(record, losses)
    good = {"mask": "recovered", "replace": "replaced", "skip_range": "range_skipped"}[record.action]
    if record.trials is not None and not record.upheld:
        good = "not_data"
    elif record.trials is not None and "placebo" in record.trials:  # without one it may have been any cut
        good = "confirmed"
    event: dict[str, Any] = {
        "kind": "outcome",
        "rollback": record.number,
        "outcome": good if gone else "not_recovered",
        "recovered_share": share,
        "loss": mean,
        "recorded_loss": record.recorded_loss,
        "expected_loss": record.expected_loss,
    }
    return event if record.trials is None else {**event, "trials": dict(record.trials)}


@dataclass(frozen=True)
class Case:
    """An alarm that is to be answered.

    Attributes:
        window: the steps under suspicion. finite: the parameters still are. raised: how high the loss stayed.
        rollbacks: earlier ones, oldest first. first_step: the first one that the plan can read.
    """

    window: Window
    finite: bool
    raised: Raised
    rollbacks: tuple[RollbackRecord, ...]
    first_step: int = 0


@dataclass(frozen=True)
class Finding:
    """What the investigation has in hand.

    Attributes:
        checkpoint_step, next_position: of the frozen checkpoint.
        positions: ``[first, next)`` of the window's steps.
        sources: the plan's sources. columns, attribution: the scored table and what the rule made of it.
    """

    checkpoint_step: int
    next_position: int
    positions: tuple[int, int]
    sources: Sequence[str]
    columns: SegmentColumns
    attribution: Attribution | None


def _stop(why: str, report: Mapping[str, Any]) -> Verdict:
    full = {**report, "action": "give_up", "outcome": "given_up", "why": why, "advice": _ADVICE}
    return Verdict("give_up", "given_up", report=full)


def _go_on(why: str, report: Mapping[str, Any]) -> Verdict:
    return Verdict("report", "reported", report={**report, "action": "report", "outcome": "reported", "why": why})


def as_dry_run(verdict: Verdict) -> Verdict:
    """What ``dry_run`` makes of a verdict: it is reported, and nothing more."""
    if verdict.action == "report":
        return verdict
    told = {**verdict.report, "action": "report", "outcome": "reported", "would": verdict.action}
    told.pop("placebo_tokens", None)
    return Verdict("report", "reported", report=told)


def _choose(case: Case, finding: Finding, config: SpikeConfig) -> tuple[Action | None, str]:
    """What to do about the window, tries and budgets aside."""
    found = finding.attribution
    share = found.flagged_tokens / max(1, found.window_tokens) if found is not None else 0.0
    if found is None or share <= config.min_flagged_fraction:
        why = "no clean baseline to compare with" if found is None else "attribution flags almost nothing"
        return (None, why) if case.finite else ("skip_range", why + " and the parameters are broken")
    if case.finite and not case.raised.raised:
        return None, "the loss did not stay raised"
    # a whole source can only be masked: it has no better sample to put in the place of a dropped one
    if found.documents and share > config.max_cut_fraction:
        return "replace", f"{share:.0%} of the window's tokens are flagged: samples are dropped and replaced"
    return "mask", f"{share:.0%} of the window's tokens are flagged"


def _entries(action: Action, finding: Finding, record: RollbackRecord) -> tuple[SkipEntry, ...]:
    from loader.order.skips import SkipEntry

    evidence, stamp = record.evidence(), finding.next_position
    reason = f"spike at step {record.alarm}"
    if action == "skip_range":
        first, stop = finding.positions
        ranges = ((max(first, stamp), stop),)
        return (SkipEntry("positions", "drop", stamp, None, ranges, (), reason, evidence),)
    found = finding.attribution
    assert found is not None
    entries = [
        SkipEntry("source", "mask", stamp, finding.sources[source], (), (), reason + ": the whole source", evidence)
        for source in found.whole_sources
    ]
    if found.documents:
        mode: Literal["drop", "mask"] = "drop" if action == "replace" else "mask"
        entries.append(SkipEntry("documents", mode, stamp, None, (), found.documents, reason, evidence))
    return tuple(entries)


def decide(case: Case, finding: Finding, config: SpikeConfig, report: Mapping[str, Any]) -> Verdict:
    """The verdict on an answered alarm.

    Args:
        case: the alarm. finding: what was found. config: the ``spikes:`` block.
        report: what is already known, JSON-able; the verdict's own facts are added.
    """
    tries = tries_of(case.window, case.rollbacks)
    if tries >= config.tries and (case.raised.raised or not case.finite):
        return _stop(f"still spiking after {tries} tries", report)
    action, why = _choose(case, finding, config)
    if action is None:
        return _go_on(why, report)
    spent = within_span(case.window, config.rollback_span_steps, case.rollbacks)
    if spent >= config.max_rollbacks:
        why = f"{spent} rollbacks within {config.rollback_span_steps} steps are already spent"
        return _go_on(why, report) if case.finite else _stop(why, report)
    record = RollbackRecord(
        number=len(case.rollbacks),
        start=case.window.start,
        alarm=case.window.alarm,
        stop=case.window.stop,
        checkpoint_step=finding.checkpoint_step,
        next_position=finding.next_position,
        action=action,
        recorded_loss=case.raised.mean_loss,
        expected_loss=case.raised.expected_loss,
    )
    verdict = Verdict(
        action,
        "waiting",
        rollback_to=finding.checkpoint_step,
        next_position=finding.next_position,
        entries=_entries(action, finding, record),
        report={**report, "action": action, "outcome": "waiting", "why": why, "rollback": record.number},
    )
    if config.confirm == "full" and action != "skip_range" and finding.attribution is not None:
        placebo, tokens = placebo_entries(record, finding.columns, finding.attribution)
        return replace(verdict, placebo=placebo, report={**verdict.report, "placebo_tokens": tokens})
    return verdict
