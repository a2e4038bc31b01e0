"""What one of our own filters is once it is made: a judge of whole batches. Shapes: N documents of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FilterKind", "Judge", "check_rules"]


@dataclass(frozen=True)
class Judge:
    """A filter made ready: ``judge`` gives for each of N texts 0 (it stays) or k >= 1: dropped for ``reasons[k - 1]``
    (uint8)."""

    reasons: tuple[str, ...]
    judge: Callable[[pa.LargeStringArray], NDArray[np.uint8]]


@dataclass(frozen=True)
class FilterKind:
    """A kind of filter: ``options`` is a frozen dataclass whose fields are the arguments; it and ``make`` raise
    ValueError for wrong ones."""

    options: type
    make: Callable[[Any], Judge]


def check_rules(*rules: tuple[str, bool]) -> None:
    """Raise ValueError with the messages of the rules that do not hold, one a line."""
    broken = [message for message, holds in rules if not holds]
    if broken:
        raise ValueError("\n".join(broken))
