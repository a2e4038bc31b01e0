"""Keys of locality-sensitive hashing. Shapes: N documents, K signature rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jit import kernel
from .words import mix64

__all__ = ["band_keys"]

_BASE = np.uint64(0xA0761D6478BD642F)


@kernel
def band_keys(signature_NK: Any, first: int, rows: int, key_N: Any) -> None:
    """Hash of signature rows ``first .. first + rows`` of each document, chained to what ``key_N`` (uint64) holds."""
    for d in range(signature_NK.shape[0]):
        value = key_N[d]
        for k in range(first, first + rows):
            value = value * _BASE + np.uint64(signature_NK[d, k])
        key_N[d] = mix64(value)
