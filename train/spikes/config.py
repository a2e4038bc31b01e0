"""What the user can set about spikes: the ``spikes:`` block of a training configuration.

Thresholds and their reasons: DESIGN 10. Every default suits a real run; the demo states its own, smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["AttributionConfig", "DetectorConfig", "SpikeConfig"]


@dataclass(frozen=True)
class DetectorConfig:
    """When to raise an alarm. A z counts robust deviations: 1.4826 x the median absolute residual around the trend.

    Attributes:
        window_steps: clean steps whose trend is continued to say what was to be expected.
        warmup_steps: no alarm, except for non-finite values, before this many clean steps.
        loss_z: single-step loss.
        mean_z: mean loss of the last ``mean_steps`` steps.
        mean_steps: how many steps that mean spans.
        source_z: loss against each source's own running median, of a step; 1.2 times it for the last 8.
        grad_norm_z: natural logarithm of the gradient norm, of a step, and the median of the last 6 and 8.
        update_norm_z: natural logarithm of the update's norm.
        min_nats: a loss alarm also needs this excess, nats a token (half of it for the mean).
        plateau_steps: report when the smoothed loss fell by less than ``plateau_nats`` over so many steps; 0 is off.
        plateau_nats: see ``plateau_steps``.
        validation_nats: report when a held-out loss lies this far above its best; 0 is off.
    """

    window_steps: int = 64
    warmup_steps: int = 100
    loss_z: float = 8.0
    mean_z: float = 5.0
    mean_steps: int = 4
    source_z: float = 5.0
    grad_norm_z: float = 6.0
    update_norm_z: float = 8.0
    min_nats: float = 0.1
    plateau_steps: int = 2000
    plateau_nats: float = 0.005
    validation_nats: float = 0.1

    def __post_init__(self) -> None:
        least = {"window_steps": 8, "mean_steps": 2}
        problems = [
            f"{name}: must be >= {least.get(name, 0)}"
            for name, value in vars(self).items()
            if value < least.get(name, 0)
        ]
        if problems:
            raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class AttributionConfig:
    """Which documents of a window count as the cause (five pieces of evidence, DESIGN 10).

    Attributes:
        threshold: a document above this score is flagged; 1.0 is as odd as the oddest 5 % of clean segments.
        source_threshold: a token of a source without history counts as odd above this score.
        source_share: ... the whole source is flagged when more than this share of its tokens is odd,
        source_flagged_share: ... more than this share lies in documents above ``threshold``,
        source_documents: ... and the window holds so many of its documents: one odd one of two is no verdict on a
            source.
        baseline_segments: clean segments to compare with, in all.
        baseline_source_segments: clean segments to compare with, of each source in use.
        max_baseline_steps: never read more steps than this for the baseline.
        quantile: the clean quantile each piece of evidence is divided by.
        long_tokens: segments of at least this many tokens form the second length bin.
    """

    threshold: float = 1.6
    source_threshold: float = 1.2
    source_share: float = 0.6
    source_flagged_share: float = 0.5
    source_documents: int = 8
    baseline_segments: int = 900
    baseline_source_segments: int = 100
    max_baseline_steps: int = 140
    quantile: float = 0.95
    long_tokens: int = 64

    def __post_init__(self) -> None:
        counts = (
            "source_documents",
            "baseline_segments",
            "baseline_source_segments",
            "max_baseline_steps",
            "long_tokens",
        )
        problems = [f"{name}: must be >= 1" for name in (*counts, "long_tokens") if getattr(self, name) < 1]
        problems += [f"{name}: must be > 0" for name in ("threshold", "source_threshold") if getattr(self, name) <= 0]
        if problems:
            raise ValueError("\n".join(problems))
        if not 0.5 <= self.quantile < 1:
            raise ValueError("quantile: must lie in [0.5, 1)")
        if not 0 <= self.source_share <= 1:
            raise ValueError("source_share: must lie in [0, 1]")


@dataclass(frozen=True)
class SpikeConfig:
    """The ``spikes:`` block.

    Attributes:
        enabled: watch at all.
        dry_run: investigate and report, never roll back.
        patience: steps after an alarm, the alarmed one included, before the question "is it still raised?" is answered.
        raised_z: the mean loss of those steps must exceed the trend by this many deviations of such a mean.
        lead_steps: the window starts this many steps before the alarm.
        tries: rollbacks for one and the same spike before giving up.
        max_rollbacks: rollbacks within ``rollback_span_steps`` before giving up.
        rollback_span_steps: see ``max_rollbacks``.
        max_cut_fraction: above this share of the window's tokens drop and replace samples instead of masking.
        min_flagged_fraction: up to this share of the window's tokens counts as "almost nothing"; clean windows lose
            about 1 %.
        confirm: ``continue``: the masked continuation is the test. ``full``: before the cut, the steps from the
            checkpoint on run again without it and with a placebo, twice the cost of the rollback; only then is a spike
            called ``confirmed``.
    """

    enabled: bool = True
    dry_run: bool = False
    patience: int = 32
    raised_z: float = 3.5
    lead_steps: int = 8
    tries: int = 3
    max_rollbacks: int = 3
    rollback_span_steps: int = 10_000
    max_cut_fraction: float = 0.2
    min_flagged_fraction: float = 0.02
    confirm: Literal["continue", "full"] = "continue"
    detectors: DetectorConfig = field(default_factory=DetectorConfig)
    attribution: AttributionConfig = field(default_factory=AttributionConfig)

    def __post_init__(self) -> None:
        problems = [
            f"{name}: must be {want}"
            for name, bad, want in (
                ("patience", self.patience < 1, ">= 1"),
                ("lead_steps", self.lead_steps < 0, ">= 0"),
                ("tries", self.tries < 1, ">= 1"),
                ("max_rollbacks", self.max_rollbacks < 0, ">= 0"),
                ("rollback_span_steps", self.rollback_span_steps < 1, ">= 1"),
                ("max_cut_fraction", not 0 <= self.max_cut_fraction <= 1, "within 0 .. 1"),
                ("min_flagged_fraction", not 0 <= self.min_flagged_fraction < 1, "within 0 .. 1"),
            )
            if bad
        ]
        if problems:
            raise ValueError("\n".join(problems))
