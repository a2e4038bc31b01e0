"""The spike watch: a small, deterministic, serialisable state machine that the training loop calls after each step.

    watch = SpikeWatch(config, stages, rollbacks=rollbacks_from(skips))
    watch.load_state_dict(checkpoint["spikes"])              # exactly as saved
    decision = watch.observe(record)                         # after every step
    if decision.kind == "investigate":
        verdict = watch.investigate(context)                 # then carry it out
        if verdict.rollback_to is not None:                  # the loop writes the entries, loads the checkpoint and
            ...                                              # builds a new watch from its state and the new skips

``state_dict()`` belongs into every checkpoint. What must outlive a rollback (how often, for which spike, how high the
loss was) lives in the evidence of the skip entries, so that a killed run finds it again: ``rollbacks_from``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .config import SpikeConfig
from .records import Decision, FrozenModel, InvestigationContext, StepRecord, Verdict, Window

if TYPE_CHECKING:
    from .rollback import RollbackRecord

__all__ = [
    "Decision",
    "FrozenModel",
    "InvestigationContext",
    "SpikeWatch",
    "StepRecord",
    "Verdict",
    "Window",
]


class SpikeWatch:
    """Watches one branch of a run.

    Args:
        config: the ``spikes:`` block.
        stages: the mixture, (first position, source -> share) in order; planned changes do not surprise the detectors.
        rollbacks: earlier rollbacks of this run, oldest first.
    """

    def __init__(
        self,
        config: SpikeConfig,
        stages: Sequence[tuple[int, Mapping[str, float]]],
        rollbacks: Sequence[RollbackRecord] = (),
    ) -> None:
        self.config = config

    def observe(self, record: StepRecord) -> Decision:
        """Takes in one step, in order, each exactly once; says what the loop is to do now."""
        return Decision("none")

    def observe_validation(self, step: int, loss: float) -> Decision:
        """Takes in a held-out loss, nats; it can only be reported."""
        return Decision("none")

    def investigate(self, context: InvestigationContext) -> Verdict:
        """Attributes the open case (legal only right after an ``investigate`` decision)."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; the same floats come back exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The state as saved; the next decision is the one an uninterrupted run would take."""
