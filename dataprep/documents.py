"""What the dataprep stages hand each other: input files, columnar batches of documents, and the fate of each record.

Shapes: N documents of a batch or a file, R records (lines) of a file, blank ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["REMOVED", "DocumentBatch", "InputFile", "RejectReason", "Status", "kept_records"]


class Status(IntEnum):
    """Fate of one record, as stored (uint8) in ``status.<file>.npy``."""

    KEPT = 0
    HELD_OUT = 1
    REJECTED = 2
    REMOVED_EXACT = 3
    REMOVED_MINHASH = 4
    REMOVED_SIMHASH = 5
    REMOVED_NGRAM = 6
    REMOVED_QUALITY = 7
    REMOVED_CONTAMINATED = 8
    BLANK = 255

    @property
    def method(self) -> str:
        """What the removal is called in tables and reports, for example ``minhash``."""
        return self.name.removeprefix("REMOVED_").lower()


REMOVED = tuple(status for status in Status if status.name.startswith("REMOVED_"))
"""Every way in which dataprep removes a document before the mix."""


class RejectReason(IntEnum):
    """Why a record is no document; its lower-case name with ``-`` is what users see (``label``)."""

    UTF8 = 1
    SURROGATE = 2
    SYNTAX = 3
    DEPTH = 4
    NOT_OBJECT = 5
    TEXT_MISSING = 6
    TEXT_TYPE = 7
    TOO_LONG = 8
    EMPTY = 9

    @property
    def label(self) -> str:
        """The reason as written into reject tables, for example ``text-missing``."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True)
class InputFile:
    """One input file of a source; its place in the list of inputs is its file index.

    Attributes:
        source: name of the source.
        rank: priority of the source, lower wins.
        root: folder of the source on this machine; never part of a digest.
        path: relative path below ``root`` with ``/``; part of document ids.
        format: a key of ``dataprep.formats.FORMATS``.
        text_field: the field that holds the text.
        opt_out: dedup methods this source takes no part in, neither as removed nor as witness, and screens
            (``quality``, ``decontaminate``, or one quality filter by its name) that leave it alone.
        date_field, quality_field: fields that the keep policies ``newest`` and ``quality`` rank by.
    """

    source: str
    rank: int
    root: str
    path: str
    format: str = "jsonl"
    text_field: str = "text"
    opt_out: tuple[str, ...] = ()
    date_field: str | None = None
    quality_field: str | None = None

    @property
    def location(self) -> Path:
        """Where the file lies on this machine."""
        return Path(self.root) / self.path


@dataclass(frozen=True)
class DocumentBatch:
    """Documents of one file, in record order.

    Attributes:
        source: name of the source.
        file: index of the file in the list of inputs.
        text: ``pyarrow.LargeStringArray`` of N texts without nulls; its data buffer has 64 spare readable bytes.
        record_N: int64 record numbers (line numbers from 0, blank and rejected lines counted).
        record_start_N: int64 offsets of the records in the decompressed stream (a BOM at the start is passed over).
        extra_N: the value of the extra field of each document as JSON (b"" = none, or too long for a date or a number);
            None if none was asked for.
    """

    source: str
    file: int
    text: pa.LargeStringArray
    record_N: NDArray[np.int64]
    record_start_N: NDArray[np.int64]
    extra_N: tuple[bytes, ...] | None = None


def kept_records(status_R: NDArray[np.uint8], *, held_out: bool) -> NDArray[np.bool_]:
    """The records whose status says they go on: to the validation Dataset (``held_out``) or to the main one."""
    wanted: NDArray[np.bool_] = status_R == (Status.HELD_OUT if held_out else Status.KEPT)
    return wanted
