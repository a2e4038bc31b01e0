"""What every format reader takes and gives.

Shapes: N documents of a batch, R records of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..documents import RejectReason

if TYPE_CHECKING:
    import pyarrow as pa

    from ..dedup.config import IngestConfig

__all__ = [
    "BATCH_BYTES",
    "LONGEST_EXTRA",
    "REJECT_DTYPE",
    "FileSummary",
    "FormatReader",
    "RawBatch",
    "ReadOptions",
    "ReadRequest",
    "RejectSink",
    "read_options",
]

BATCH_BYTES = 8 << 20
"""Memory of a batch where nobody says otherwise: no format is faster with more, and JSONL is half as fast at 64 MiB."""
LONGEST_EXTRA = 256
"""Bytes of JSON from which on the value of an extra field counts as missing."""
REJECT_DTYPE = np.dtype([("record", "<i8"), ("record_start", "<i8"), ("reason", "u1")])
_MOST_SINGLE = 1 << 16


@dataclass(frozen=True)
class ReadOptions:
    """How a file is read: ``line_limit_bytes`` shapes the result (longer records are rejected), ``batch_bytes`` only
    the memory; ``extra_field`` names a second top-level field whose value comes along (None or empty = none; of
    duplicate keys the last wins). A file that yields more than ``max_stream_bytes``, or, past 64 MiB, more than
    ``max_expansion`` times its own size, is refused."""

    line_limit_bytes: int = 64 << 20
    batch_bytes: int = BATCH_BYTES
    extra_field: str | None = None
    max_expansion: float = 1000.0
    max_stream_bytes: int = 1 << 42


def read_options(
    ingest: IngestConfig, *, extra_field: str | None = None, batch_bytes: int = BATCH_BYTES
) -> ReadOptions:
    """How a job reads its inputs; the one way from configuration to ``ReadOptions``, so that no limit is forgotten."""
    return ReadOptions(
        line_limit_bytes=ingest.line_limit_bytes,
        batch_bytes=batch_bytes,
        extra_field=extra_field,
        max_expansion=ingest.max_expansion,
        max_stream_bytes=ingest.max_stream_bytes,
    )


@dataclass(frozen=True)
class ReadRequest:
    """One pass over one file: the text field, the options, and the records wanted (bool by record number; None =
    all)."""

    text_field: str
    options: ReadOptions
    keep_R: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class FileSummary:
    """What a whole pass over a file found.

    Attributes:
        num_records: records, blank lines counted: record numbers are below it.
        num_blank, num_documents, num_rejected: their parts (documents and rejects only of the records wanted).
        stream_bytes, stream_hash: size and xxh3-128 (hex) of the decompressed stream; of a Parquet file its size and
            the hash of the text column's chunks and the footer.
    """

    num_records: int
    num_blank: int
    num_documents: int
    num_rejected: int
    stream_bytes: int
    stream_hash: str


@dataclass
class RejectSink:
    """Collects the rejects of a file and, at its end, the summary."""

    summary: FileSummary | None = None
    num_rejected: int = 0
    _parts: list[NDArray[Any]] = field(default_factory=list)
    _single: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, rows: NDArray[Any]) -> None:
        """Take over rows of ``REJECT_DTYPE``."""
        if len(rows):
            self._join()
            self._parts.append(rows)
            self.num_rejected += len(rows)

    def add_one(self, record: int, record_start: int, reason: RejectReason) -> None:
        """Take one reject."""
        self._single.append((record, record_start, int(reason)))
        self.num_rejected += 1
        if len(self._single) == _MOST_SINGLE:
            self._join()

    def _join(self) -> None:
        """Put the rejects that came one by one behind the others: as an array each they would take nine times the
        memory."""
        if self._single:
            self._parts.append(np.array(self._single, REJECT_DTYPE))
            self._single = []

    @property
    def rows(self) -> NDArray[Any]:
        """All rejects so far, in record order (``REJECT_DTYPE``)."""
        self._join()
        return np.concatenate(self._parts) if self._parts else np.zeros(0, REJECT_DTYPE)


@dataclass(frozen=True)
class RawBatch:
    """Documents as a format reader gives them: ``text`` without nulls and with spare bytes, ``extra_N`` only with an
    extra field (see ``DocumentBatch``)."""

    text: pa.LargeStringArray
    record_N: NDArray[np.int64]
    record_start_N: NDArray[np.int64]
    extra_N: tuple[bytes, ...] | None = None


FormatReader = Callable[[Path, ReadRequest, RejectSink], Iterator[RawBatch]]
"""Reads a file to its end: yields batches in record order, fills the sink, sets ``sink.summary`` last."""
