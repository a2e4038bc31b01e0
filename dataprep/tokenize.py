"""Tokenising: kept and held-out documents of each file to token runs, sorted by key so that a bucket is a slice.

One task a file. ``documents.<file>.npy`` (``TOKENISED_DTYPE``, sorted by split and key) names each document's place in
``tokens.<file>.bin``: its ids without BOS and EOS, as u2 or u4 by vocabulary; for a lossy tokenizer pairs (id, bytes
of the text) as u4. A bucket is a range of keys, so each run of the file holds it in one piece, and packing reads
buckets in a few long reads. Cuts are passed over: each piece of text between them is encoded by itself, and
``gaps.<file>.npy`` (``cut_segments.GAP_DTYPE``) says where something is missing.

Legend: D documents, T tokens, N documents of a batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.shards.layout import token_dtype
from loader.text.records import document_ids
from loader.text.tokenizers import Tokenizer, load_tokenizer

from .cut_segments import GAP_DTYPE
from .cuts import kept_pieces
from .dedup.signatures import load_summary
from .documents import DocumentBatch, Status
from .fates import Fates, check_cut
from .formats import read_file, read_options
from .job import Job
from .keys import document_keys
from .stages import check_unchanged

__all__ = ["TOKENISED_DTYPE", "TokenizeDocuments", "stored_dtype"]

TOKENISED_DTYPE = np.dtype(
    [
        ("split", "u1"),
        ("key", "<u8"),
        ("id", "<u8"),
        ("record", "<u8"),
        ("record_start", "<u8"),
        ("num_bytes", "<u8"),
        ("cut_bytes", "<u8"),
        ("num_tokens", "<u8"),
        ("place", "<u8"),
    ]
)
"""A tokenised document: ``split`` = its place in ``places.SPLITS``; ``num_bytes`` of text that its tokens stand for,
``cut_bytes`` that are passed over; ``num_tokens`` without BOS and EOS; ``place`` =
its first token's number in the tokens file.
"""

_RUN_TOKENS = 1 << 25


def stored_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    """Items of a tokens file."""
    if tokenizer.lossless:
        return np.dtype(token_dtype(tokenizer.vocab_size))
    return np.dtype([("id", "<u4"), ("num_bytes", "<u4")])


@dataclass
class _Run:
    """Documents tokenised since the last flush."""

    tokens: list[NDArray[Any]] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    num_tokens: int = 0


@dataclass(frozen=True)
class _File:
    """What is known of the file that is being tokenised, and what is collected about it."""

    status_R: NDArray[np.uint8]
    cut_ranges: dict[int, list[tuple[int, int]]]
    tables: list[NDArray[np.void]] = field(default_factory=list)
    gaps: list[tuple[int, int, int]] = field(default_factory=list)


class TokenizeDocuments(PipelineStep):  # type: ignore[misc]
    """See the module. ``folders``: the sign and the tokenizer stage's, and the one to write to."""

    name = "tokenize documents"
    type = "tokenreel"

    def __init__(self, job: Job, fates: Fates, folders: tuple[Path, Path, Path]) -> None:
        super().__init__()
        self.job = job
        self.fates = fates
        self.signed, self.tokenizer_stage, self.out = folders

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Tokenise file ``rank``.

        Raises:
            RefusedError: the file is not, to the byte, the one that was deduplicated.
            DamageError: a cut does not fit its document.
        """
        tokenizer = load_tokenizer(self.tokenizer_stage / "tokenizer")
        file = _File(self.fates.status_of_file(rank), self.fates.ranges_of_file(rank))
        check_unchanged([self.job.raw[rank]])
        write_atomic(self.out / f"tokens.{rank:05d}.bin", self._runs(rank, tokenizer, file))
        check_unchanged([self.job.raw[rank]])
        gaps_G = np.array(sorted(file.gaps), GAP_DTYPE)
        write_atomic(self.out / f"gaps.{rank:05d}.npy", npy_bytes(gaps_G))
        table_D = np.concatenate([np.zeros(0, TOKENISED_DTYPE), *file.tables])
        table_D = table_D[np.lexsort((table_D["key"], table_D["split"]))]
        write_atomic(self.out / f"documents.{rank:05d}.npy", npy_bytes(table_D))
        self.stat_update("documents", value=len(table_D), unit="file")
        self.stat_update("tokens", value=int(table_D["num_tokens"].sum()), unit="file")
        return iter(())

    def _runs(self, rank: int, tokenizer: Tokenizer, file: _File) -> Iterator[bytes]:
        """Tokens of the file, run by run; the documents of each run are appended to its tables."""
        keep_R = (file.status_R == Status.KEPT) | (file.status_R == Status.HELD_OUT)
        options = read_options(self.job.config.ingest)
        run, place = _Run(), 0
        if keep_R.any():
            expected = load_summary(self.signed, rank)
            for batch in read_file(self.job.inputs[rank], rank, options=options, keep_R=keep_R, expected=expected):
                self._add_batch(batch, tokenizer, file, run)
                if run.num_tokens >= _RUN_TOKENS:
                    yield self._flush(run, place, tokenizer, file.tables)
                    place += run.num_tokens
                    run = _Run()
        yield self._flush(run, place, tokenizer, file.tables)

    def _add_batch(self, batch: DocumentBatch, tokenizer: Tokenizer, file: _File, run: _Run) -> None:
        inputs, seed = self.job.inputs[batch.file], self.job.config.seed
        ids_N = document_ids(inputs.source, inputs.path, batch.record_N, seed)
        keys_N = document_keys(ids_N, seed, "bucket")
        split_N = (file.status_R[batch.record_N] == Status.HELD_OUT).astype(np.uint8)
        columns = zip(
            split_N.tolist(),
            keys_N.tolist(),
            ids_N.tolist(),
            batch.record_N.tolist(),
            batch.record_start_N.tolist(),
            strict=True,
        )
        dtype = stored_dtype(tokenizer)
        for text, row in zip(_batch_texts(batch), columns, strict=True):
            cut = file.cut_ranges.get(row[3])
            if cut is None:
                ids_T, num_bytes_T = tokenizer.encode(text)
            else:
                check_cut(text, cut, f"{inputs.path} record {row[3]}")
                ids_T, num_bytes_T = _encode_pieces(text, row[3], cut, tokenizer, file.gaps)
            if tokenizer.lossless:
                stored_T = ids_T.astype(dtype)
            else:
                stored_T = np.empty(len(ids_T), dtype)
                stored_T["id"], stored_T["num_bytes"] = ids_T, num_bytes_T
            cut_bytes = sum(stop - start for start, stop in cut or ())
            run.tokens.append(stored_T)
            run.rows.append((*row, len(text) - cut_bytes, cut_bytes, len(ids_T), 0))
            run.num_tokens += len(ids_T)

    @staticmethod
    def _flush(run: _Run, place: int, tokenizer: Tokenizer, tables: list[NDArray[np.void]]) -> bytes:
        """Sort the run by split and key; returns its tokens in that order."""
        rows_D = np.array(run.rows, TOKENISED_DTYPE)
        order_D = np.lexsort((rows_D["key"], rows_D["split"]))
        rows_D = rows_D[order_D]
        stop_D = np.cumsum(rows_D["num_tokens"])
        rows_D["place"] = place + stop_D - rows_D["num_tokens"]
        tables.append(rows_D)
        ordered = [run.tokens[i] for i in order_D.tolist()]
        joined: NDArray[Any] = np.concatenate([np.zeros(0, stored_dtype(tokenizer)), *ordered])
        return bytes(joined.tobytes())


def _encode_pieces(
    text: bytes, record: int, cut: list[tuple[int, int]], tokenizer: Tokenizer, gaps: list[tuple[int, int, int]]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Tokens of what is left of a text, piece by piece; where bytes are missing goes to ``gaps``."""
    ids, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    num_tokens = end = 0
    for start, stop in kept_pieces(cut, len(text)):
        if start > end:
            gaps.append((record, num_tokens, start - end))
        ids_T, num_bytes_T = tokenizer.encode(text[start:stop])
        ids.append(ids_T)
        sizes.append(num_bytes_T)
        num_tokens += len(ids_T)
        end = stop
    return np.concatenate(ids), np.concatenate(sizes)


def _batch_texts(batch: DocumentBatch) -> Iterator[bytes]:
    """UTF-8 bytes of each text of a batch."""
    array = batch.text
    _, offsets, data = array.buffers()
    offset_N = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    for start, stop in itertools.pairwise(offset_N):
        yield bytes(view[start:stop])
