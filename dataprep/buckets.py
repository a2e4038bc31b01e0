"""The tasks of packing and writing, and the folders between which they work; light to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .places import SPLITS

__all__ = ["COUNTS", "PACKING_COUNTS", "Bucket", "BuildFolders", "bucket_bits"]

COUNTS = (
    "documents",
    "bytes",
    "cut_bytes",
    "tokens",
    "samples",
    "segments",
    "padding",
    "long_documents",
    "long_pieces",
    "fitting_cut",
)
"""What each task of the write stage counts: ``bytes`` of text that was written, ``cut_bytes`` cut from the same
documents; ``segments``, paddings included; ``padding`` in tokens; documents longer than a sample and their pieces, and
documents that would fit one sample and lie in several (``pack.packing_counts``)."""

PACKING_COUNTS = ("samples", "segments", "padding", "long_documents", "long_pieces", "fitting_cut")
"""Those of ``COUNTS`` that say what packing did."""

_BUCKET_BYTES = 1 << 28
_MAX_BUCKET_BITS = 12


def bucket_bits(size_bytes: float) -> int:
    """Bits that cut a source of ``size_bytes`` (of ids, or of text about to become some) into buckets of at most 256
    MiB; 12 at most."""
    bits = 0
    while bits < _MAX_BUCKET_BITS and size_bytes > _BUCKET_BYTES << bits:
        bits += 1
    return bits


@dataclass(frozen=True)
class Bucket:
    """Bucket ``number`` of 2^``bits`` of a source in a split: the documents whose key begins with these bits."""

    split: int
    source: str
    number: int
    bits: int

    def key_range(self) -> tuple[int, int]:
        """First and last key."""
        width = 1 << (64 - self.bits)
        return self.number * width, (self.number + 1) * width - 1


@dataclass(frozen=True)
class BuildFolders:
    """Folders of the stages that packing reads, and of the two that it writes."""

    tokenizer: Path
    tokenised: Path
    mix: Path
    pack: Path
    write: Path

    def dataset(self, split: int) -> Path:
        """Where the write stage makes the Dataset of a split."""
        return self.write / SPLITS[split]
