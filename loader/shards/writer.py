"""Writing one shard: samples, their segments and documents in memory, then three durable files, hashed back.

Shape letters: N samples, T tokens of a sample (``seq_len``), S segments, D documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError, DamageError, RefusedError
from ..files import check_name, hash_file, write_atomic
from .documents import encode_documents
from .layout import (
    DOCUMENT_DTYPE,
    MAX_SEQ_LEN,
    MAX_SHARD_BYTES,
    MAX_VOCAB_SIZE,
    PADDING_ROW,
    RESERVED_NAMES,
    SEGMENT_DTYPE,
    IntegerArray,
    ShardName,
    TokenArray,
    mds_header,
    mds_size,
    token_dtype,
)
from .segments import SegmentArray, SegmentFile, encode_segments, segment_fault

__all__ = ["ShardRecord", "ShardSpec", "ShardWriter", "check_source_name"]


@dataclass(frozen=True)
class ShardSpec:
    """What a shard is: ``number`` counts from 0 inside its source; samples have ``seq_len`` tokens < ``vocab_size``."""

    source: str
    number: int
    seq_len: int
    vocab_size: int

    def __post_init__(self) -> None:
        check_source_name(self.source)
        if not 0 <= self.number < 1 << 31:
            raise ConfigError("TR-SHARD-SPEC", f"shard number {self.number} is out of range")
        if not 1 <= self.seq_len <= MAX_SEQ_LEN:
            raise ConfigError("TR-SHARD-SPEC", f"seq_len {self.seq_len} is out of range", None, f"1..{MAX_SEQ_LEN}")
        if not 1 <= self.vocab_size <= MAX_VOCAB_SIZE:
            raise ConfigError("TR-SHARD-SPEC", f"vocab_size {self.vocab_size} is out of range")


def check_source_name(name: str) -> str:
    """Return ``name`` if a source may be called so: it becomes a folder of the Dataset.

    Raises:
        ConfigError: it is no plain name, or one that the Dataset itself uses.
    """
    try:
        check_name(name, "source name")
    except DamageError as error:
        raise ConfigError("TR-SOURCE-NAME", error.message, error.place, error.expected) from None
    if name.lower() in RESERVED_NAMES:
        raise ConfigError("TR-SOURCE-NAME", f"a source cannot be called {name!r}", "source name", "another name")
    return name


@dataclass(frozen=True)
class ShardRecord:
    """What the manifest will say of a finished shard; ``num_tokens`` leaves padding out, hashes are xxh3-128."""

    source: str
    number: int
    num_samples: int
    num_segments: int
    num_documents: int
    num_tokens: int
    max_segments: int
    size_bytes: int
    mds_hash: str
    segments_hash: str
    docs_hash: str

    def to_json(self) -> dict[str, str | int]:
        """As a JSON-able dictionary, to carry it from the process that wrote the shard to the one that commits."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShardRecord:
        """Inverse of :meth:`to_json`.

        Raises:
            DamageError: a key is missing, unknown, or of another type.
        """
        types = {f.name: str if f.type == "str" else int for f in fields(cls)}
        if set(value) != set(types) or any(type(value[k]) is not t for k, t in types.items()):
            raise DamageError("TR-SHARD-RECORD", "not a shard record", None, ", ".join(types))
        return cls(**value)


class ShardWriter:
    """Collects the samples of one shard and writes its three files in :meth:`close`.

    Everything stays in memory until then: a shard is what ``shards.size_bytes`` allows, 64 MiB by default.
    """

    def __init__(self, folder: Path, spec: ShardSpec) -> None:
        """``folder`` is the Dataset's; the files go to ``folder/<source>/``.

        Raises:
            RefusedError: the Dataset there is finished already; Datasets are write-once.
        """
        if (folder / "manifest.json").exists():
            raise RefusedError(
                "TR-DATASET-FINISHED",
                "the Dataset is finished, no shard can be added",
                str(folder),
                "an output folder without manifest.json",
                f"tokenreel inspect {folder}",
            )
        self.spec = spec
        self._folder = folder / spec.source
        self._dtype = token_dtype(spec.vocab_size)
        self._tokens: list[TokenArray] = []
        self._segments: list[SegmentArray] = []
        self._counts: list[NDArray[np.int64]] = []
        self._documents: list[NDArray[np.void]] = []
        self._num_documents = 0
        self._num_samples = 0

    @property
    def num_samples(self) -> int:
        """Samples added so far."""
        return self._num_samples

    @property
    def size_bytes(self) -> int:
        """Size that the .mds file would have now."""
        return mds_size(self._num_samples, self.spec.seq_len, self.spec.vocab_size)

    def add_sample(self, tokens_T: IntegerArray, segments_S: SegmentArray) -> None:
        """Add one sample and its segments (``segments.make_segments``); arguments as :meth:`add_samples`."""
        self.add_samples(np.asarray(tokens_T)[None, :], segments_S, np.array([len(segments_S)]))

    def add_samples(self, tokens_NT: IntegerArray, segments_S: SegmentArray, counts_N: IntegerArray) -> None:
        """Add N samples; ``segments_S`` holds their segments in order, ``counts_N`` how many each sample has.

        Raises:
            ValueError: wrong shapes, or tokens outside the vocabulary.
            ConfigError: the shard would reach 2 GiB.
        """
        tokens_NT = np.asarray(tokens_NT)
        count_N = np.asarray(counts_N, np.int64)
        if tokens_NT.ndim != 2 or tokens_NT.shape[1] != self.spec.seq_len or tokens_NT.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers of shape (N, {self.spec.seq_len}), got {tokens_NT.shape}")
        if segments_S.dtype != SEGMENT_DTYPE or count_N.shape != tokens_NT.shape[:1]:
            raise ValueError("segments must have SEGMENT_DTYPE, and counts one number a sample")
        if int(count_N.sum()) != len(segments_S) or (count_N < 1).any():
            raise ValueError("each sample needs at least one segment, and counts must add up to the segments")
        if tokens_NT.size and not 0 <= int(tokens_NT.min()) <= int(tokens_NT.max()) < self.spec.vocab_size:
            raise ValueError(f"a token is outside [0, {self.spec.vocab_size})")
        total = self._num_samples + len(tokens_NT)
        if mds_size(total, self.spec.seq_len, self.spec.vocab_size) >= MAX_SHARD_BYTES:
            raise ConfigError("TR-SHARD-SIZE", "the shard would reach 2 GiB", str(self._folder), "a smaller shard size")
        # A copy, always: callers may fill the same buffer again.
        copied_NT: TokenArray = tokens_NT.astype(self._dtype, order="C", copy=True)
        self._tokens.append(copied_NT)
        self._segments.append(segments_S.copy())
        self._counts.append(count_N.copy())
        self._num_samples = total

    def add_document(self, document: int, file: int, record: int, record_start: int) -> int:
        """Add a document by id and Origin; returns its row, which its segments name. Once per document and shard."""
        return self.add_documents(np.array([(document, record, record_start, file)], DOCUMENT_DTYPE))

    def add_documents(self, documents_D: NDArray[np.void]) -> int:
        """Add rows of ``layout.DOCUMENT_DTYPE``; returns the row of the first one."""
        if documents_D.dtype != DOCUMENT_DTYPE:
            raise ValueError("documents must have DOCUMENT_DTYPE")
        row = self._num_documents
        self._documents.append(documents_D.copy())
        self._num_documents += len(documents_D)
        return row

    def close(self) -> ShardRecord:
        """Write the three files durably, read them back, and say what they are.

        Raises:
            ValueError: no samples, a segment out of range, or a document added twice.
            DamageError: the file system returned other bytes than were written.
            OSError: it refused to write.
        """
        spec = self.spec
        if not self._num_samples:
            raise ValueError("a shard needs at least one sample")
        tokens_NT = self._tokens[0] if len(self._tokens) == 1 else np.concatenate(self._tokens)
        self._tokens = [tokens_NT]
        table = self._table(tokens_NT)
        documents_D = np.concatenate([np.zeros(0, DOCUMENT_DTYPE), *self._documents])
        self._check(table, documents_D)
        name = ShardName(spec.number)
        payload = tokens_NT.data.cast("B")
        segments = encode_segments(table, spec.seq_len, spec.number)
        record = ShardRecord(
            source=spec.source,
            number=spec.number,
            num_samples=len(tokens_NT),
            num_segments=len(table.segments_S),
            num_documents=len(documents_D),
            num_tokens=_num_tokens(table, spec.seq_len),
            max_segments=int(np.diff(table.segment_offset_N.astype(np.int64)).max()),
            size_bytes=self.size_bytes,
            mds_hash=self._write(name.mds, mds_header(len(tokens_NT), spec.seq_len, spec.vocab_size), payload),
            segments_hash=self._write(name.segments, *segments),
            docs_hash=self._write(name.docs, *encode_documents(documents_D, spec.number)),
        )
        self._tokens.clear()
        return record

    def _table(self, tokens_NT: TokenArray) -> SegmentFile:
        counts_N = np.concatenate(self._counts)
        offset_N = np.zeros(len(counts_N) + 1, np.int64)
        np.cumsum(counts_N, out=offset_N[1:])
        hash_N = np.array([xxhash.xxh3_64_intdigest(sample) for sample in tokens_NT], "<u8")
        return SegmentFile(hash_N, offset_N.astype("<u4"), np.concatenate(self._segments))

    def _check(self, table: SegmentFile, documents_D: NDArray[np.void]) -> None:
        most = int(np.diff(table.segment_offset_N.astype(np.int64)).max())
        fault = segment_fault(table, self.spec.seq_len, len(documents_D), most)
        rows_S = table.segments_S["document_row"]
        if fault is None and len(np.unique(documents_D["id"])) != len(documents_D):
            fault = "a document was added twice"
        used_D = np.zeros(len(documents_D), np.bool_)
        if fault is None:
            used_D[rows_S[rows_S != PADDING_ROW]] = True
            if not used_D.all():
                fault = f"document row {int(np.argmin(used_D))} has no segment"
        if fault is not None:
            raise ValueError(f"shard {self.spec.number} of source {self.spec.source!r}: {fault}")

    def _write(self, name: str, *pieces: bytes | memoryview) -> str:
        digest = xxhash.xxh3_128()
        for piece in pieces:
            digest.update(piece)
        path = self._folder / name
        write_atomic(path, pieces)  # type: ignore[arg-type]  # a file writes any buffer
        expected = str(digest.hexdigest())
        actual = hash_file(path)
        if actual != expected:
            raise DamageError("TR-FILE-HASH", f"what was written reads back as xxh3-128 {actual}", str(path), expected)
        return expected


def _num_tokens(table: SegmentFile, seq_len: int) -> int:
    padding_S = table.segments_S["document_row"] == PADDING_ROW
    padding_tokens = (seq_len - table.segments_S["token_start"][padding_S].astype(np.int64)).sum()
    return len(table.sample_hash_N) * seq_len - int(padding_tokens)
