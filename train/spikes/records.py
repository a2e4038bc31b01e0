"""What passes between the training loop and the spike watch: plain frozen records, all JSON-able.

Units: losses in nats a token (natural logarithm); steps and positions as in the plan; ranges half-open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from loader.order.skips import SkipEntry
    from loader.stream.batch import Batch

    from ..head import VocabularyCut
    from .attribute import SegmentColumns

__all__ = ["Decision", "FrozenModel", "InvestigationContext", "StepRecord", "Verdict", "Window"]


@dataclass(frozen=True)
class StepRecord:
    """What one optimizer step left behind, equal on every rank (it comes from the one all-reduced vector).

    Attributes:
        step, first_position, next_position: the step and the positions it consumed.
        loss: mean over the global batch's labels, nats.
        grad_norm: before clipping. update_norm: of the parameters' change; NaN where it is not measured.
        label_count: labels in the global batch; 0 for a skipped update.
        source_loss: per source the sum of its label losses and the number of its labels.
        finite: loss, gradient norm and parameters are finite.
    """

    step: int
    first_position: int
    next_position: int
    loss: float
    grad_norm: float
    update_norm: float
    label_count: int
    source_loss: Mapping[str, tuple[float, int]]
    finite: bool


@dataclass(frozen=True)
class Window:
    """The steps under suspicion, ``[start, stop)``; ``alarm`` is the step that raised the alarm."""

    start: int
    alarm: int
    stop: int


@dataclass(frozen=True)
class Decision:
    """What the loop is to do after a step.

    kind:
        ``none``: nothing.
        ``alarm``: write the event and pin the newest checkpoint at or before ``window.start`` (retention must keep it
            until the case is answered); training goes on.
        ``report``: write the event; nothing else (plateau, an alarm that came to nothing, a spike that has recovered).
        ``investigate``: call ``SpikeWatch.investigate(context)`` before the next step.
    event: JSON-able, for ``RUN/events.jsonl`` (without branch, attempt and time, which the loop adds).
    also: events of the same step to write before it.
    """

    kind: Literal["none", "alarm", "report", "investigate"]
    window: Window | None = None
    event: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[Mapping[str, Any], ...] = ()


def _alone(columns: SegmentColumns) -> SegmentColumns:
    return columns


@dataclass(frozen=True)
class FrozenModel:
    """A checkpoint's weights, for scoring; on one process or spread over several, which then all call ``hidden`` and
    ``together`` equally often.

    Attributes:
        step: the checkpoint's next step. next_position: its next position, which stamps the entries.
        hidden: batch -> hidden_BTD, what the head is applied to (after the last norm), any float dtype, no gradient; a
            batch of no samples is legal.
        head_weight_VD: the head's weight; with ``cut`` this process's rows. logit_scale: logits = logit_scale x hidden
            @ head_weight_VD.T
        cut: how the head's rows are cut over processes, or None.
        has_head: whether this process has the end of the model; elsewhere ``hidden`` returns an empty tensor.
        together: this process's rows -> the rows of all processes, in the order of the global batch.
    """

    step: int
    next_position: int
    hidden: Callable[[Batch], torch.Tensor]
    head_weight_VD: torch.Tensor
    logit_scale: float = 1.0
    cut: VocabularyCut | None = None
    has_head: bool = True
    together: Callable[[SegmentColumns], SegmentColumns] = _alone


class InvestigationContext(Protocol):
    """What the loop lends to an investigation. Nothing here may touch the running model, optimizer or random state.

    Every process of a run investigates; each reads and scores its own samples.
    """

    def load_frozen(self, step: int) -> FrozenModel | None:
        """The newest valid checkpoint whose next step is <= ``step``, on the current branch; None if there is none."""

    def read_batch(self, step: int) -> Batch:
        """This process's part of the global batch of a step of the current branch, as the run saw it (with the masks of
        then)."""

    def most_samples(self, step: int) -> int:
        """Samples of the process that has the most of a step."""

    def agree(self, make: Callable[[], Any]) -> Any:
        """A JSON-able value that the leading process makes, on every process."""

    def positions_of_steps(self, start: int, stop: int) -> tuple[int, int]:
        """The positions ``[first, next)`` that the steps ``[start, stop)`` consumed."""

    def source_names(self) -> Sequence[str]:
        """The plan's sources; ``Batch.source_B`` indexes it."""

    def token_bytes(self) -> Sequence[bytes] | None:
        """The bytes of each token id, for the compression evidence; None scores raw ids instead."""

    def names(self, documents: Sequence[int]) -> Mapping[int, Mapping[str, Any]]:
        """Origins for the report: id -> {source, file, record, record_start}."""


@dataclass(frozen=True)
class Verdict:
    """What an investigation concluded; the loop carries it out.

    action:
        ``report``: write the event, go on training.
        ``mask`` | ``replace`` | ``skip_range``: add ``entries`` to the skip list (stamped ``next_position``), load the
            checkpoint of step ``rollback_to``, open a branch, go on from there.
        ``give_up``: write the event and stop the run with TR-SPIKE-GIVEN-UP.
    outcome: reported | waiting | given_up; ``waiting``: only the steps done again can tell (a later ``report`` decision
        says what came of it).
    placebo: with ``confirm: full``, what the placebo cuts: the trials come before the rollback.
    report: JSON-able; window, scores, flagged documents and sources with their origins, losses.
    outcomes: events about earlier rollbacks that this one, or giving up, leaves without a judgement of their own.
    """

    action: Literal["report", "mask", "replace", "skip_range", "give_up"]
    outcome: Literal["reported", "waiting", "given_up"]
    rollback_to: int | None = None
    next_position: int | None = None
    entries: tuple[SkipEntry, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    placebo: tuple[SkipEntry, ...] = ()
    outcomes: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able; the same floats come back exactly."""
        both = {name: [entry.to_json() for entry in getattr(self, name)] for name in ("entries", "placebo")}
        return {**vars(self), **both, "outcomes": [dict(event) for event in self.outcomes]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Verdict:
        """From what :meth:`to_json` gave."""
        from loader.order.skips import SkipEntry

        both = {name: tuple(SkipEntry.from_json(entry) for entry in value[name]) for name in ("entries", "placebo")}
        return Verdict(**{**value, **both, "outcomes": tuple(value["outcomes"])})
