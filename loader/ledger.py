"""What really happened: a fixed-width record a step, keyed (branch, attempt, step), each with a checksum.

``RUN/ledger/<branch>/<attempt>.bin`` = a header of 64 bytes, then records. A record's checksum covers its bytes and is
seeded with the checksum before it (the first with the header's), so a record cannot be changed, moved or removed from
the middle unseen. The checksum is a record's last field: a torn write leaves it short or zero, and only such a tail is
cut at the next start. Only rank 0 writes.

Legend: N records, S sources.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .errors import DamageError, RefusedError
from .files import append_whole, fsync_folder, make_folder

__all__ = [
    "LEDGER_VERSION",
    "LedgerFile",
    "LedgerRecord",
    "LedgerWriter",
    "ledger_dtype",
    "ledger_path",
    "list_attempts",
    "read_intact_records",
    "read_ledger_file",
]

LEDGER_VERSION = 1
_MAGIC = b"TRLEDGR\0"
_HEADER = struct.Struct("<8sIIIII28xQ")  # magic, version, branch, attempt, sources, record bytes, checksum
_HEADER_BYTES = _HEADER.size
_MAX_SOURCES = 1 << 16


def ledger_dtype(num_sources: int) -> np.dtype[Any]:
    """The record layout, little-endian and packed.

    Fields: branch, attempt, step, first_position, next_position (half-open positions the step consumed), label_count
    (unmasked labels in the global batch), loss (nats a label), grad_norm, update_norm, lr, token_digest (position-keyed
    sum over the global batch), source_loss_S (sum of nats) and source_labels_S (both in the plan's order of sources),
    checksum.
    """
    return np.dtype(
        [
            ("branch", "<u4"),
            ("attempt", "<u4"),
            ("step", "<i8"),
            ("first_position", "<i8"),
            ("next_position", "<i8"),
            ("label_count", "<i8"),
            ("loss", "<f8"),
            ("grad_norm", "<f8"),
            ("update_norm", "<f8"),
            ("lr", "<f8"),
            ("token_digest", "<u8"),
            ("source_loss_S", "<f8", (num_sources,)),
            ("source_labels_S", "<i8", (num_sources,)),
            ("checksum", "<u8"),
        ]
    )


@dataclass(frozen=True)
class LedgerRecord:
    """One step; see :func:`ledger_dtype`. NaN stands for what was not measured."""

    step: int
    first_position: int
    next_position: int
    label_count: int
    token_digest: int
    loss: float = float("nan")
    grad_norm: float = float("nan")
    update_norm: float = float("nan")
    lr: float = float("nan")
    source_loss: Sequence[float] = ()
    source_labels: Sequence[int] = ()


@dataclass(frozen=True)
class LedgerFile:
    """One attempt's records.

    Attributes:
        branch, attempt, num_sources: from the header.
        records_N: array of :func:`ledger_dtype`, steps ascending by one.
        size_bytes: length of the intact part.
        torn_bytes: length of the torn tail behind it.
        chain: checksum of the last record, or of the header.
        damage: what is wrong with the record behind them, which hides all that follow; None: nothing is.
    """

    branch: int
    attempt: int
    num_sources: int
    records_N: NDArray[Any]
    size_bytes: int
    torn_bytes: int
    chain: int
    damage: DamageError | None = None


def ledger_path(folder: Path, branch: int, attempt: int) -> Path:
    """Where an attempt's records lie below ``RUN/ledger``."""
    return folder / f"{branch}" / f"{attempt}.bin"


def list_attempts(folder: Path, branch: int) -> list[int]:
    """Attempts of a branch that left a ledger file, ascending.

    Raises:
        DamageError: a file in the branch's folder that no writer makes.
    """
    attempts = []
    branch_folder = folder / f"{branch}"
    for path in branch_folder.iterdir() if branch_folder.is_dir() else ():
        if path.suffix != ".bin" or not path.stem.isdecimal() or path.stem != str(int(path.stem)):
            raise DamageError("TR-LEDGER-FOREIGN", "a file that the ledger did not write", str(path), "<attempt>.bin")
        attempts.append(int(path.stem))
    return sorted(attempts)


def _header_bytes(branch: int, attempt: int, num_sources: int) -> tuple[bytes, int]:
    fields = (_MAGIC, LEDGER_VERSION, branch, attempt, num_sources, ledger_dtype(num_sources).itemsize)
    checksum = xxhash.xxh3_64_intdigest(_HEADER.pack(*fields, 0)[:-8])
    return _HEADER.pack(*fields, checksum), checksum


def read_ledger_file(path: Path) -> LedgerFile:
    """Read and check one attempt.

    Raises:
        DamageError: header or a record differ from their checksum; file and record (from 0) are named. A torn tail is
            no damage: it is left out and measured in ``torn_bytes``.
    """
    file = read_intact_records(path)
    if file.damage is not None:
        raise file.damage
    return file


def read_intact_records(path: Path) -> LedgerFile:
    """As :func:`read_ledger_file`; of a file with a damaged record those before it, with ``damage``.

    Raises:
        DamageError: the header is damaged, so nothing can be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamageError("TR-LEDGER-MISSING", f"cannot read: {error.strerror}", str(path), "a ledger file") from error
    if len(data) < _HEADER_BYTES or not data.strip(b"\0"):
        # Killed while the file was being made: nothing was recorded.
        return LedgerFile(-1, -1, 0, np.empty(0, ledger_dtype(0)), 0, len(data), 0)
    magic, version, branch, attempt, num_sources, record_bytes, chain = _HEADER.unpack(data[:_HEADER_BYTES])
    damage = DamageError("TR-LEDGER-HEADER", "the header differs from its checksum", str(path), "an untouched ledger")
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(data[: _HEADER_BYTES - 8]) != chain:
        raise damage
    if version != LEDGER_VERSION:
        raise RefusedError("TR-LEDGER-VERSION", f"ledger version {version}", str(path), f"version {LEDGER_VERSION}")
    if num_sources > _MAX_SOURCES or data[:_HEADER_BYTES] != _header_bytes(branch, attempt, num_sources)[0]:
        raise damage
    num_whole = (len(data) - _HEADER_BYTES) // record_bytes
    records_N = np.frombuffer(data, ledger_dtype(num_sources), num_whole, _HEADER_BYTES)
    while num_whole and records_N["checksum"][num_whole - 1] == 0:
        num_whole -= 1
    records_N, wrong = records_N[:num_whole], None
    for index in range(num_whole):
        start = _HEADER_BYTES + index * record_bytes
        seen = xxhash.xxh3_64_intdigest(data[start : start + record_bytes - 8], seed=chain)
        record = records_N[index]
        if seen != record["checksum"] or (record["branch"], record["attempt"]) != (branch, attempt):
            place, expected = f"{path} record {index}", "an untouched ledger"
            wrong = DamageError("TR-LEDGER-RECORD", "a record differs from its checksum", place, expected)
            records_N, num_whole = records_N[:index], index
            break
        chain = seen
    size_bytes = _HEADER_BYTES + num_whole * record_bytes
    torn_bytes = 0 if wrong else len(data) - size_bytes
    return LedgerFile(branch, attempt, num_sources, records_N, size_bytes, torn_bytes, int(chain), wrong)


class LedgerWriter:
    """Appends the steps of one attempt; a context manager. One object, one thread."""

    def __init__(self, folder: Path, branch: int, attempt: int, num_sources: int = 0) -> None:
        """Open ``folder/<branch>/<attempt>.bin`` for appending; a torn tail is cut.

        Raises:
            DamageError: records on disk are damaged.
            RefusedError: the file exists with another number of sources.
        """
        self.path = ledger_path(folder, branch, attempt)
        make_folder(self.path.parent)
        self._identity = (branch, attempt, num_sources)
        self._dtype = ledger_dtype(num_sources)
        self._next_step: int | None = None
        self._unsynced = False
        self._chain = self._prepare()
        # Unbuffered: a killed process loses no step that it recorded; flush() is about power loss.
        self._file: RawIOBase = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def _prepare(self) -> int:
        header, chain = _header_bytes(*self._identity)
        found = read_ledger_file(self.path) if self.path.exists() else None
        if found is None or found.size_bytes == 0:
            with open(self.path, "wb") as file:
                file.write(header)
                file.flush()
                os.fsync(file.fileno())
            fsync_folder(self.path.parent)  # or a loss of power takes the file, and what was flushed into it
            return chain
        if (found.branch, found.attempt, found.num_sources) != self._identity:
            raise RefusedError(
                "TR-LEDGER-IDENTITY",
                f"holds branch {found.branch}, attempt {found.attempt}, {found.num_sources} sources",
                str(self.path),
                "branch {}, attempt {}, {} sources".format(*self._identity),
            )
        if found.torn_bytes:
            os.truncate(self.path, found.size_bytes)
        if found.records_N.size:
            self._next_step = int(found.records_N["step"][-1]) + 1
        return found.chain

    def append(self, record: LedgerRecord) -> None:
        """Append one step; steps go up by one. It survives a killed process at once, a power loss after :meth:`flush`.

        Raises:
            ValueError: the step does not follow the last one, or the sources do not fit.
            OSError: the file system refused; nothing of the record is there, and the same step may be appended again.
        """
        if self._next_step is not None and record.step != self._next_step:
            raise ValueError(f"step {record.step} after step {self._next_step - 1}")
        branch, attempt, num_sources = self._identity
        row = np.zeros(1, self._dtype)
        row["branch"], row["attempt"] = branch, attempt
        for name in (
            "step",
            "first_position",
            "next_position",
            "label_count",
            "loss",
            "grad_norm",
            "update_norm",
            "lr",
        ):
            row[name] = getattr(record, name)
        row["token_digest"] = np.uint64(record.token_digest)
        if num_sources and record.source_loss:
            row["source_loss_S"] = np.asarray(record.source_loss, np.float64).reshape(1, num_sources)
            row["source_labels_S"] = np.asarray(record.source_labels, np.int64).reshape(1, num_sources)
        chain = xxhash.xxh3_64_intdigest(row.tobytes()[:-8], seed=self._chain)
        row["checksum"] = np.uint64(chain)
        append_whole(self._file, row.tobytes())
        self._chain = chain
        self._next_step = record.step + 1
        self._unsynced = True

    def flush(self) -> None:
        """Make every appended record survive a power loss; call it before a checkpoint is committed."""
        if self._unsynced:
            os.fsync(self._file.fileno())
            self._unsynced = False

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
