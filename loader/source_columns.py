"""Which source each column of a ledger stands for: a number means one thing only until a remap changes the Datasets.

An attempt's first event names the sources in the order of its columns. Runs that began before it did go by number.

Legend: N records, S sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ledger import ledger_dtype

__all__ = ["SourceColumns", "by_source", "columns_of", "columns_of_attempts", "first_steps"]

_COLUMNS = ("source_loss_S", "source_labels_S")
SourceColumns = Mapping[tuple[int, int], tuple[str, ...]]
"""(branch, attempt) -> the sources of its columns."""


def columns_of_attempts(events: Sequence[Mapping[str, Any]]) -> SourceColumns:
    """By the events of a run; attempts that say nothing are not there."""
    return {
        (int(event["branch"]), int(event["attempt"])): tuple(event["sources"])
        for event in events
        if event["kind"] in ("start", "resume") and "sources" in event and "attempt" in event
    }


def columns_of(columns: SourceColumns, branch: int, attempt: int) -> tuple[str, ...] | None:
    """The sources of an attempt's columns; of one without an event (what a torchft replica adds) those of the longest
    list of its branch: sources are only added there. None: nobody said."""
    own = [names for (other, _), names in columns.items() if other == branch]
    return columns.get((branch, attempt)) or max(own, key=len, default=None)


def first_steps(events: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], int]:
    """(branch, attempt) -> the step that it began at, by the events of a run."""
    return {
        (int(event["branch"]), int(event["attempt"])): int(event["step"])
        for event in events
        if event["kind"] in ("start", "resume") and "attempt" in event
    }


def by_source(records_N: NDArray[Any], known: Sequence[str] | None, names: Sequence[str]) -> NDArray[Any]:
    """Records of one attempt with a column for each of ``names``, in that order; what other sources had is left out.

    Args:
        records_N: of ``ledger_dtype``. known: the sources of its columns, or None: the first of ``names``.
    """
    num_columns = records_N.dtype["source_loss_S"].shape[0]
    known = tuple(names if known is None else known)[:num_columns]
    if known == tuple(names) and num_columns == len(names):
        return records_N
    found_N = np.zeros(len(records_N), ledger_dtype(len(names)))
    for name in records_N.dtype.names or ():
        if name not in _COLUMNS:
            found_N[name] = records_N[name]
    place_of = {name: place for place, name in enumerate(names)}
    pairs = [(column, place_of[name]) for column, name in enumerate(known) if name in place_of]
    for name in _COLUMNS:
        for column, place in pairs:
            found_N[name][:, place] = records_N[name][:, column]
    return found_N
