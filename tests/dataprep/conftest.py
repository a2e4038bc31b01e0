"""Fixtures that several files of this folder share."""

from __future__ import annotations

from support.builds import built

__all__ = ["built"]
