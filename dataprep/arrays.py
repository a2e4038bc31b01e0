"""Arrays that one stage leaves for the next, read so that a damaged one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError

__all__ = ["load_array"]


def load_array(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """A ``.npy`` file of the work folder; ``mapped`` leaves it on disk, read-only.

    Raises:
        DamageError: ``TR-WORK-DAMAGED``: missing, cut short, or no array.
    """
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamageError(
            "TR-WORK-DAMAGED",
            f"what an earlier stage left cannot be read: {error}",
            str(path),
            "a finished stage",
            f"remove {path.parent} and run again",
        ) from error
    return array
