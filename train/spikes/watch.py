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

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from .config import SpikeConfig
from .decide import Case, Raised, judge_raised
from .detector_set import DetectorSet
from .detectors import Reading
from .history import Trend
from .investigate import investigate
from .outcomes import Outcomes
from .records import Decision, FrozenModel, InvestigationContext, StepRecord, Verdict, Window
from .rollback import RollbackRecord, rollbacks_from

__all__ = [
    "Decision",
    "FrozenModel",
    "InvestigationContext",
    "SpikeWatch",
    "StepRecord",
    "Verdict",
    "Window",
    "rollbacks_from",
]

_QUIET_STEPS = 8
"""An alarm is over once no detector has raised for so many steps in a row, as many as the longest of them spans,"""
_QUIET_Z = 1.0
"""... and the loss since the alarm lies less than this above the trend, in deviations as ``raised_z`` counts them. What
comes while an alarm is open is not noticed, so that one odd document must not keep it open for all of ``patience``."""


class SpikeWatch:
    """Watches one branch of a run.

    Args:
        config: the ``spikes:`` block.
        stages: the mixture, (first position, source -> share) in order; planned changes do not surprise the detectors.
        rollbacks: earlier rollbacks of this run, oldest first.
        first_step: where the plan begins: steps before a remap are another plan's, and nobody rolls back over it.
    """

    def __init__(
        self,
        config: SpikeConfig,
        stages: Sequence[tuple[int, Mapping[str, float]]],
        rollbacks: Sequence[RollbackRecord] = (),
        first_step: int = 0,
    ) -> None:
        self.config = config
        self._first_step = first_step
        self.rollbacks = tuple(rollbacks)
        self._detectors = DetectorSet(config.detectors, stages)
        self._window: Window | None = None
        self._trend: Trend | None = None
        self._losses: list[float] = []
        self._planned: list[float] = []  # per loss: by how much mixture changes since the alarm move it, as planned
        self._moved = 0.0
        self._finite = True
        self._asked = False
        self._quiet = 0
        self._outcomes = Outcomes(self.rollbacks)
        self._pending: list[dict[str, Any]] = []
        self._best_validation: float | None = None

    def observe(self, record: StepRecord) -> Decision:
        """Takes in one step, in order, each exactly once; says what the loop is to do now."""
        if not self.config.enabled:
            return Decision("none")
        dropped = self._drop_passed(record.step)
        moved = self._detectors.enter_stage(record.first_position)
        self._moved += moved if self._window is not None else 0.0
        raised = self._detectors.observe(record, holding=self._window is not None)
        self._pending += self._outcomes.observe(record)
        if self._window is not None:
            asks = any(not self._detectors.detectors[r.detector].reports_only for r in raised)
            is_judged = record.label_count > 0 or not record.finite
            self._quiet = 0 if asks else self._quiet + is_judged
            decision = self._continue_case(record)
        else:
            decision = self._look(record, raised)
        self._finite = record.finite
        told, self._pending = self._pending, []
        if decision.kind == "none" and told:
            return Decision("report", dropped, told[-1], tuple(told[:-1]))
        return replace(decision, also=tuple(told))

    def _look(self, record: StepRecord, raised: tuple[Reading, ...]) -> Decision:
        """No alarm is open: does this step raise one?"""
        asking = [r for r in raised if not self._detectors.detectors[r.detector].reports_only]
        if not self._finite:  # what is broken and was answered is not asked again at every step
            asking = [r for r in asking if r.detector != "non_finite"]
        for reading in raised:
            if self._detectors.detectors[reading.detector].reports_only:
                self._pending.append({"kind": reading.detector, "step": record.step, **_reading_json(reading)})
        if not asking:
            return Decision("none")
        self._window = Window(self.window_start(record.step), record.step, record.step + self.config.patience)
        self._trend = self._detectors.loss_trend()
        self._losses, self._planned, self._moved = [], [], 0.0
        event = {
            "kind": "alarm",
            "step": record.step,
            "window": asdict(self._window),
            "readings": [_reading_json(r) for r in asking],
        }
        decision = self._continue_case(record)
        if decision.kind == "none":
            return Decision("alarm", self._window, event)
        if decision.kind == "investigate":
            return Decision("investigate", decision.window, {**event, **decision.event, "kind": "alarm"})
        return decision

    def _drop_passed(self, step: int) -> Window | None:
        """Drops the open case where its window has passed unseen: the watch was switched off meanwhile. What nobody
        watched is nobody's case, and a window up to here could be of any length."""
        window = self._window
        if window is None or step < window.stop:
            return None
        why = "the steps since were not watched"
        self._pending.append({"kind": "alarm_over", "step": step, "alarm": window.alarm, "why": why})
        self._detectors.drop()
        self._close()
        return window

    def needed_from(self, step: int) -> int | None:
        """Where the window of an alarm at ``step`` would begin, for a checkpoint before it to be kept; None where
        nothing is watched."""
        return self.window_start(step) if self.config.enabled else None

    def window_start(self, alarm: int) -> int:
        """Where the window of an alarm at step ``alarm`` begins: before the visible spike, and at the first appearance
        of any source that is new. A later alarm's begins no earlier."""
        config = self.config
        recent = alarm - config.detectors.window_steps
        new = [step for step in self._detectors.sources.first_step.values() if step > max(0, recent)]
        return max(self._first_step, min([alarm - config.lead_steps, *new]))

    def _continue_case(self, record: StepRecord) -> Decision:
        """An alarm is open: wait until all is quiet again, or for ``patience``, then answer."""
        window = self._window
        assert window is not None
        if record.label_count > 0 or not record.finite:
            self._losses.append(record.loss)
            self._planned.append(self._moved)
        if not record.finite:
            self._window = Window(window.start, window.alarm, record.step + 1)
            self._asked = True
            return Decision("investigate", self._window, {"kind": "broken", "step": record.step})
        last = record.step + 1 >= window.stop
        if not last and self._quiet < _QUIET_STEPS:
            return Decision("none")
        raised = self._raised()
        if not last and raised.z >= _QUIET_Z:
            return Decision("none")
        if raised.raised:
            self._asked = True
            window = self._window = Window(window.start, window.alarm, record.step + 1)  # only what was trained
            return Decision("investigate", window, {"kind": "raised", "step": record.step, **raised.to_json()})
        event = {"kind": "alarm_over", "step": record.step, "alarm": window.alarm, **raised.to_json()}
        self.answer()
        return Decision("report", window, event)

    def _raised(self) -> Raised:
        return judge_raised(self._losses, self._trend, self.config.raised_z, self._planned)

    def observe_validation(self, step: int, loss: float) -> Decision:
        """Takes in a held-out loss, nats; it can only be reported."""
        limit, best = self.config.detectors.validation_nats, self._best_validation
        if not self.config.enabled or not math.isfinite(loss):
            return Decision("none")
        self._best_validation = loss if best is None else min(best, loss)
        if best is None or limit <= 0 or loss <= best + limit:
            return Decision("none")
        return Decision("report", event={"kind": "validation_rise", "step": step, "loss": loss, "best": best})

    def investigate(self, context: InvestigationContext) -> Verdict:
        """Attributes the open case (legal only right after an ``investigate`` decision).

        Raises:
            RuntimeError: no case waits for an answer.
        """
        if self._window is None or not self._asked:
            raise RuntimeError("investigate() without an investigate decision")
        case = Case(self._window, self._finite, self._raised(), self.rollbacks, self._first_step)
        verdict = investigate(case, context, self.config)
        if verdict.rollback_to is not None or verdict.action == "give_up":
            verdict = replace(verdict, outcomes=tuple(self._outcomes.cut_short(self._window)))
        if verdict.rollback_to is None:
            self.answer()
        return verdict

    @property
    def open_window(self) -> Window | None:
        """The window of the alarm that waits for its answer, if one does."""
        return self._window if self.config.enabled else None

    def answer(self) -> None:
        """Closes an open case without a rollback: the level of the steps since its alarm is the level from now on."""
        self._detectors.settle()
        self._close()

    def _close(self) -> None:
        self._window, self._trend, self._asked, self._quiet = None, None, False, 0
        self._losses, self._planned, self._moved = [], [], 0.0

    def unanswered(self, next_step: int) -> dict[str, Any]:
        """The event that says what the open alarm still waits for where the steps end; the case stays open, so that
        more steps answer it as they would have.

        Raises:
            RuntimeError: no alarm is open.
        """
        window = self._window
        if window is None:
            raise RuntimeError("unanswered() without an open alarm")
        facts = {"alarm": window.alarm, "window": asdict(window), "missing": window.stop - next_step}
        return {"kind": "alarm_open", "step": next_step, **facts, **self._raised().to_json()}

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; the same floats come back exactly."""
        return {
            "detectors": self._detectors.state(),
            "window": None if self._window is None else asdict(self._window),
            "trend": None if self._trend is None else asdict(self._trend),
            "losses": [x if math.isfinite(x) else None for x in self._losses],
            "planned": list(self._planned),
            "moved": self._moved,
            "finite": self._finite,
            "asked": self._asked,
            "quiet": self._quiet,
            "outcomes": self._outcomes.state(),
            "best_validation": self._best_validation,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The state as saved; the next decision is the one an uninterrupted run would take."""
        self._detectors.load(state["detectors"])
        window = None if state["window"] is None else Window(**state["window"])
        self._window = window and replace(window, start=max(window.start, self._first_step))
        self._trend = None if state["trend"] is None else Trend(**state["trend"])
        self._losses = [math.nan if x is None else float(x) for x in state["losses"]]
        # an earlier version gave no allowance inside of an alarm
        self._planned = [float(x) for x in state.get("planned", [0.0] * len(self._losses))]
        self._moved = float(state.get("moved", 0.0))
        self._finite, self._asked = bool(state["finite"]), bool(state["asked"])
        self._quiet = int(state.get("quiet", 0))  # an earlier version did not count: it waits a little longer
        self._outcomes.load(state.get("outcomes", {}))  # an earlier version has none: its judgement begins anew
        self._best_validation = state["best_validation"]


def _reading_json(reading: Reading) -> dict[str, Any]:
    return {
        "detector": reading.detector,
        "value": reading.value,
        "expected": reading.expected,
        "z": reading.z,
    }
