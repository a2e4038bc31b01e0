"""What every step of a job needs to know, and small helpers they share."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import BuildConfig
from .documents import InputFile
from .stages import RawFile

__all__ = ["Job", "npy_bytes"]


@dataclass(frozen=True)
class Job:
    """A configuration and its input files.

    Attributes:
        config: the whole configuration; a step uses only what its stage's digest covers.
        inputs: the files, as the readers take them; a file's index is its place here.
        raw: the same files, as they were when first read.
    """

    config: BuildConfig
    inputs: tuple[InputFile, ...]
    raw: tuple[RawFile, ...]


def npy_bytes(array: NDArray[Any]) -> bytes:
    """``array`` as the bytes of an .npy file, never with pickle."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
