"""Fixtures that several files of this folder share."""

from __future__ import annotations

from support.builds import built
from support.object_store import s3_server

__all__ = ["built", "s3_server"]
