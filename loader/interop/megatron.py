"""Megatron-LM: an ``.idx`` a shard over the very bytes of its ``.mds``, which the ``.bin`` links to or copies.

One sequence a segment, so no padding and no two documents in one sequence; sequences in the order of (document, place
in the document); Megatron's documents are the documents of the shard. A document that lies in several shards is one in
each of their prefixes. Layout of the file: ``megatron/core/datasets/indexed_dataset.py``, ``_IndexWriter``::

    MMIDIDX\\0\\0, u64 version = 1, u8 dtype code, u64 sequences S, u64 document borders D + 1,
    i32 tokens[S], i64 byte pointer[S], i64 first sequence of each document, and the end [D + 1]

Megatron knows no unsigned 32-bit tokens: ids of more than 16 bits are declared int32, which they fit, being < 2^31.

Shape letters: S segments that are no padding, D documents.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..shards.dataset import Dataset
from ..shards.layout import PADDING_ROW, ShardName, mds_header_size, token_dtype
from ..shards.reader import ShardFiles, read_documents, read_segments
from .request import ExportedFile, ExportRequest, PlannedFile, place_payload, shard_rows, write_file

__all__ = ["encode_idx", "plan_megatron", "write_megatron"]

_MAGIC = b"MMIDIDX\x00\x00"
_DTYPE_CODES = {2: 8, 4: 4}  # bytes a token -> uint16, int32
_HEAD_BYTES = 34


def encode_idx(
    num_tokens_S: NDArray[np.int32], pointer_S: NDArray[np.int64], border_D: NDArray[np.int64], token_bytes: int
) -> tuple[bytes, ...]:
    """The bytes of an ``.idx`` in pieces; pointers are 64-bit bytes into the ``.bin``, ``border_D`` has D + 1 entries.

    Raises:
        KeyError: tokens have neither 2 nor 4 bytes.
    """
    head = struct.pack("<QBQQ", 1, _DTYPE_CODES[token_bytes], len(num_tokens_S), len(border_D))
    arrays = (num_tokens_S.astype("<i4"), pointer_S.astype("<i8"), border_D.astype("<i8"))
    return (_MAGIC + head, *(array.tobytes() for array in arrays))


def _index(dataset: Dataset, files: ShardFiles) -> tuple[bytes, ...]:
    """The ``.idx`` over a shard; reads and verifies its side tables."""
    table = read_segments(files, dataset.read_path)
    num_documents = len(read_documents(files, dataset.read_path))
    rows_S = table.segments_S
    token_bytes = token_dtype(files.vocab_size).itemsize
    start_S = rows_S["token_start"].astype(np.int64)
    offset_N = table.segment_offset_N.astype(np.int64)
    stop_S = np.append(start_S[1:], files.seq_len)
    stop_S[offset_N[1:] - 1] = files.seq_len
    sample_S = np.repeat(np.arange(files.num_samples), np.diff(offset_N))
    header = mds_header_size(files.num_samples, files.seq_len, files.vocab_size)
    pointer_S = header + (sample_S * files.seq_len + start_S) * token_bytes
    real_S = np.flatnonzero(rows_S["document_row"] != PADDING_ROW)
    order_S = real_S[np.lexsort((rows_S["document_token_start"][real_S], rows_S["document_row"][real_S]))]
    border_D = np.searchsorted(rows_S["document_row"][order_S], np.arange(num_documents + 1), "left")
    return encode_idx(
        (stop_S - start_S)[order_S].astype(np.int32), pointer_S[order_S], border_D.astype(np.int64), token_bytes
    )


def plan_megatron(request: ExportRequest) -> list[PlannedFile]:
    """The files, exactly; reads the segment tables, to leave padding out."""
    planned = []
    for name, files in _shards(request):
        padding = int((read_segments(files, request.dataset.read_path).segments_S["document_row"] == PADDING_ROW).sum())
        size_bytes = _HEAD_BYTES + 12 * (files.num_segments - padding) + 8 * (files.num_documents + 1)
        planned.append(PlannedFile(f"{name}.bin", 0 if request.link else files.size_bytes))
        planned.append(PlannedFile(f"{name}.idx", size_bytes))
    return planned


def write_megatron(request: ExportRequest) -> list[ExportedFile]:
    """``SOURCE/shard.NNNNN.bin`` and ``.idx`` for each shard.

    Raises:
        DamageError: a shard is not what was written.
    """
    written = []
    for name, files in _shards(request):
        written.append(place_payload(request, files, f"{name}.bin"))
        written.append(write_file(request, f"{name}.idx", _index(request.dataset, files)))
    return written


def _shards(request: ExportRequest) -> Iterator[tuple[str, ShardFiles]]:
    """(prefix inside the export, files) of each shard."""
    for source in request.sources:
        for row in shard_rows(request.dataset, source):
            files = request.dataset.shard_files(row)
            yield f"{source}/{ShardName(files.number).mds.removesuffix('.mds')}", files
