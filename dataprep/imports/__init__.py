"""Token sets that others wrote: one file a format here, one line in the table, one row of the contract test."""

from __future__ import annotations

from collections.abc import Mapping

from .base import SetFormat
from .datatrove import DATATROVE
from .mds import MDS
from .megatron import MEGATRON

__all__ = ["IMPORTS"]

IMPORTS: Mapping[str, SetFormat] = {"mds": MDS, "megatron": MEGATRON, "datatrove": DATATROVE}
"""Name of a format -> how its files are found and read."""
