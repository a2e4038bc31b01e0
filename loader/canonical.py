"""Canonical JSON: one byte string for one value, so that a digest names a value and not a way to print it."""

from __future__ import annotations

import json
from typing import Any

from .files import digest_bytes

__all__ = ["canonical_json", "digest_of"]


def canonical_json(value: Any) -> bytes:
    """``value`` as JSON in UTF-8: keys sorted, no spaces, no NaN or Infinity; equal values give equal bytes.

    Raises:
        TypeError: something in ``value`` is no JSON type.
        ValueError: a NaN, an infinity, or text that is not Unicode (a lone surrogate).
    """
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8")


def digest_of(value: Any) -> str:
    """xxh3-128 of the canonical JSON of ``value``, 32 hex digits.

    Raises:
        TypeError, ValueError: as :func:`canonical_json`.
    """
    return digest_bytes(canonical_json(value))
