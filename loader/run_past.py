"""Look-up over a run that went over to other data: each step is answered by the plan that read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, TokenreelError
from .lookup import again_step, document_steps, locate_positions, locate_step
from .run_view import RunView, open_run

if TYPE_CHECKING:
    from .grep import SegmentTexts

__all__ = [
    "documents_over_time",
    "grep_over_time",
    "positions_over_time",
    "step_over_time",
    "view_before",
    "views",
    "views_of_steps",
]


def view_before(view: RunView) -> RunView:
    """The run as it was before the remap that ``view``'s plan begins with.

    Raises:
        ConfigError: the Datasets of that time are gone, or others now; or there was no such time.
    """
    force = view.force
    if force.branch is None or force.branch.parent is None or force.start is None:
        raise ConfigError("TR-LOOKUP-STEP", "nothing lies before the start", str(view.paths.root), "0 or more")
    try:
        return open_run(view.paths.root, force.branch.parent)
    except TokenreelError as error:
        raise ConfigError(
            "TR-REMAP-GONE",
            f"steps before {force.start.step} were read from Datasets that cannot be had: {error.message}",
            error.place, "the Datasets that the run read until then, where they were",
        ) from error  # fmt: skip


def views(view: RunView) -> Iterator[tuple[RunView, int, int]]:
    """(view, first step, first position) of each plan of a lineage, the newest first; older ones when asked for."""
    while True:
        start = view.force.start
        if start is None:
            yield view, 0, 0
            return
        yield view, start.step, start.position
        view = view_before(view)


def views_of_steps(view: RunView, steps: range) -> Iterator[tuple[RunView, range]]:
    """(view, those of ``steps`` that its plan reads), the newest first.

    Raises:
        ConfigError: the Datasets of some of the steps are gone.
    """
    stop = steps.stop
    for one, first, _ in views(view):
        start = max(steps.start, first)
        if stop > start:
            yield one, range(start, stop)
            stop = start
        if stop <= steps.start:
            return


def step_over_time(view: RunView, step: int) -> tuple[RunView, dict[str, Any]]:
    """The view that answers for a step, and its ``lookup.locate_step``.

    Raises:
        ConfigError: no such step, or the Datasets of its time are gone.
    """
    for one, first_step, _ in views(view):
        if step >= first_step:
            return one, {**locate_step(one, step), "branch": view.branch.number}
    raise ConfigError("TR-LOOKUP-STEP", f"no step {step}", "--step", "0 or more")


def positions_over_time(view: RunView, start: int, stop: int) -> list[tuple[RunView, dict[str, Any]]]:
    """``lookup.locate_positions`` of each plan that read some of the range, with its view, the oldest first.

    Raises:
        ConfigError: as there; the Datasets of some of the range are gone.
    """
    parts: list[tuple[RunView, dict[str, Any]]] = []
    for one, _, first in views(view):
        if stop > max(start, first):
            parts.insert(0, (one, locate_positions(one, max(start, first), stop)))
            stop = max(start, first)
        if stop <= start:
            break
    return parts


def documents_over_time(view: RunView, document: int, stop_position: int) -> dict[str, Any]:
    """``lookup.document_steps`` over all plans of the lineage; ``unknown_before`` is a step before which nobody can
    tell, because the Datasets of that time are gone.

    Raises:
        ConfigError: no Dataset of any time holds the document.
    """
    results, unknown, refusal = list[dict[str, Any]](), None, None
    current = view
    try:
        for current, _, first in views(view):
            try:
                if stop_position > first or current is view:  # what is not read yet is there all the same
                    results.insert(0, document_steps(current.plan, current.sources, document, stop_position))
            except ConfigError as error:  # the Datasets of another time may hold it
                refusal = error
            stop_position = min(stop_position, first)
    except ConfigError as error:
        if error.code != "TR-REMAP-GONE" or current.force.start is None:
            raise
        unknown = current.force.start.step
    if not results:
        raise refusal or ConfigError("TR-LOOKUP-DOCUMENT", f"no Dataset holds {document:016x}", view.sources.place)
    joined = {**results[-1]}
    for key in ("readings", "cut"):
        joined[key] = [item for result in results for item in result[key]]
    joined["again_step"] = again_step(joined["readings"])
    joined["steps"] = sorted({reading["step"] for reading in joined["readings"]})
    return joined if unknown is None else {**joined, "unknown_before": unknown}


def grep_over_time(view: RunView, text: str, steps: range, texts_of: Any) -> dict[str, Any]:
    """``grep.grep_run`` over the plans that read ``steps``; ``texts_of`` makes the texts of a view.

    Raises:
        ConfigError: the Datasets of some of the steps are gone.
    """
    from .grep import grep_run

    results = list[dict[str, Any]]()
    for one, own in views_of_steps(view, steps):
        texts: SegmentTexts = texts_of(one)
        results.insert(0, grep_run(one, text, own, texts))
    if not results:  # a run that has done no step
        results.append(grep_run(view, text, steps, texts_of(view)))
    return {
        **results[-1],
        "steps": [steps.start, steps.stop],
        "num_documents": sum(result["num_documents"] for result in results),
        "truncated": any(result["truncated"] for result in results),
        "hits": [hit for result in results for hit in result["hits"]],
    }
