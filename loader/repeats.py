"""The first step that reads again what was read before: in closed form up to a binary search a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .stream.batch import read_segments

if TYPE_CHECKING:
    from .order.plan import Plan
    from .run_view import RunView

__all__ = ["first_repeats"]

_PORTION = 4096


def first_repeats(view: RunView, stop_position: int) -> dict[str, Any]:
    """Where a run reads a sample for the second time, at positions below ``stop_position``, done or planned.

    ``by_source``: source to ``position``, ``step`` and ``sample`` of its first one (None: it reads nothing again);
    ``step``, ``position``: the first of all; ``documents``: what that sample holds; ``since_step``: steps before were
    read from other Datasets, which take no part. Samples that were cut or dropped were not read.

    Raises:
        DamageError: a table is damaged.
    """
    plan, sources = view.plan, view.sources
    by_source = {name: _first_of(plan, number, stop_position) for number, name in enumerate(sources.names)}
    found = sorted((one["position"], one["step"]) for one in by_source.values() if one is not None)
    documents = list[str]()
    if found:
        segments = read_segments(plan, sources, np.array([found[0][0]], np.int64))
        ids = segments.document_id_S[~(segments.padding_S | segments.masked_S)]
        documents = [f"{document:016x}" for document in dict.fromkeys(ids.tolist())]
    start = view.force.start
    return {
        "stop_position": stop_position,
        "step": found[0][1] if found else None,
        "position": found[0][0] if found else None,
        "documents": documents,
        "by_source": by_source,
        "since_step": 0 if start is None else start.step,
    }


def _first_of(plan: Plan, source: int, stop_position: int) -> dict[str, int] | None:
    """The first position of a source's second epoch or later whose sample was read before."""
    start = plan.config.start.position if plan.config.start is not None else 0
    first, stop = (plan.mixture.rank_before(source, position) for position in (start, max(start, stop_position)))

    def epoch(rank: int) -> int:
        return int(plan.samples(plan.mixture.position_of(source, np.array([rank], np.int64))).epoch_N[0])

    low, high = first, stop
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if epoch(middle) else (middle + 1, high)
    for portion in range(low, stop, _PORTION):
        ranks_N = np.arange(portion, min(stop, portion + _PORTION))
        positions_N = plan.mixture.position_of(source, ranks_N)
        steps_N, sample_N = plan.steps_of(positions_N), plan.samples(positions_N).sample_N
        for index in np.flatnonzero(steps_N >= 0).tolist():
            position, sample = int(positions_N[index]), int(sample_N[index])
            if _was_read(plan, source, sample, position):
                return {"position": position, "step": int(steps_N[index]), "sample": sample}
    return None


def _was_read(plan: Plan, source: int, sample: int, position: int) -> bool:
    """A carried source read its samples before the plan's start, as far as it had come."""
    earlier_N: NDArray[np.int64] = plan.positions_of_sample(source, sample, position)
    if len(earlier_N) and bool((plan.steps_of(earlier_N) >= 0).any()):
        return True
    start = plan.config.start
    return start is not None and bool(start.carried.get(plan.source_names[source]))
