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
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger
from numpy.typing import NDArray

from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.text.fast import CheckedEncoder
from loader.text.records import document_ids
from loader.text.tokenizers import load_tokenizer

from .cut_segments import GAP_DTYPE
from .cuts import kept_pieces
from .dedup.signatures import load_summary
from .documents import DocumentBatch, Status
from .fates import Fates, check_cut
from .formats import read_file, read_options
from .job import Job
from .kernels.spelling import find_inexact
from .kernels.token_runs import copy_runs
from .keys import document_keys
from .stages import check_unchanged
from .token_facts import stored_dtype

__all__ = ["TOKENISED_DTYPE", "TokenizeDocuments"]

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
_ENOUGH_BYTES = 1 << 26  # of text, from which on loading any backend is worth it
_SLICE_BYTES = 4 << 20  # text encoded at once: small enough for its ids to stay in the cache


@dataclass
class _Run:
    """Documents tokenised since the last flush: arrays of tokens, and for each one rows whose ``place`` lies in it."""

    tokens: list[NDArray[Any]] = field(default_factory=list)
    rows: list[NDArray[Any]] = field(default_factory=list)
    num_tokens: int = 0


@dataclass
class _File:
    """What is known of the file that is being tokenised, and what is collected about it."""

    status_R: NDArray[np.uint8]
    cut_ranges: dict[int, list[tuple[int, int]]]
    tables: list[NDArray[np.void]] = field(default_factory=list)
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    num_repaired: int = 0


@dataclass(frozen=True)
class _Pieces:
    """Texts to encode: documents, or what is left of each between its cuts.

    Attributes:
        texts: the pieces, document after document.
        first_N: int64 of N + 1; the first piece of each document.
        cut_N: int64; bytes that are cut from each.
        missing: (document, piece of it, bytes cut right in front of that piece).
    """

    texts: list[bytes]
    first_N: NDArray[np.int64]
    cut_N: NDArray[np.int64]
    missing: list[tuple[int, int, int]]


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
            ConfigError: a fast backend is required and there is none.
            JobError: a fast backend gave other ids than the reference library, or a text cannot be encoded.
        """
        file = _File(self.fates.status_of_file(rank), self.fates.ranges_of_file(rank))
        check_unchanged([self.job.raw[rank]])
        write_atomic(self.out / f"tokens.{rank:05d}.bin", self._runs(rank, file))
        check_unchanged([self.job.raw[rank]])
        gaps_G = np.array(sorted(file.gaps), GAP_DTYPE)
        write_atomic(self.out / f"gaps.{rank:05d}.npy", npy_bytes(gaps_G))
        table_D = np.concatenate([np.zeros(0, TOKENISED_DTYPE), *file.tables])
        table_D = table_D[np.lexsort((table_D["key"], table_D["split"]))]
        write_atomic(self.out / f"documents.{rank:05d}.npy", npy_bytes(table_D))
        self.stat_update("documents", value=len(table_D), unit="file")
        self.stat_update("tokens", value=int(table_D["num_tokens"].sum()), unit="file")
        return iter(())

    def _runs(self, rank: int, file: _File) -> Iterator[bytes]:
        """Tokens of the file, run by run; the documents of each run are appended to its tables."""
        keep_R = (file.status_R == Status.KEPT) | (file.status_R == Status.HELD_OUT)
        if not keep_R.any():
            yield b""
            return
        options = read_options(self.job.config.ingest)
        encoder = self._encoder(rank)
        run, place, first = _Run(), 0, True
        dtype = stored_dtype(encoder.tokenizer.vocab_size, not encoder.tokenizer.lossless)
        expected = load_summary(self.signed, rank)
        for batch in read_file(self.job.inputs[rank], rank, options=options, keep_R=keep_R, expected=expected):
            texts = list(_batch_texts(batch))
            if first:
                self._check_sample(rank, encoder, texts)
                first = False
            self._add_batch(batch, texts, encoder, file, run)
            if run.num_tokens >= _RUN_TOKENS:
                yield _flush(run, place, dtype, file.tables)
                place += run.num_tokens
                run = _Run()
        self.stat_update(f"tokenizer backend: {encoder.backend}", value=1, unit="file")
        self.stat_update("texts encoded again", value=file.num_repaired, unit="file")
        yield _flush(run, place, dtype, file.tables)

    def _encoder(self, rank: int) -> CheckedEncoder:
        """The encoder of this process; one that does files one after the other keeps it."""
        run, sizes = self.job.config.run, [raw.size_bytes for raw in self.job.raw]
        share = sum(sizes) // (2 * run.workers)  # the local engine gives a process about so much
        to_come = min(max(sizes[rank], share), _ENOUGH_BYTES)
        about = self.tokenizer_stage / "tokenizer" / "tokenizer.json"
        written_ns = about.stat().st_mtime_ns if about.is_file() else 0
        return _open_encoder(self.tokenizer_stage, run.fast, to_come, written_ns)

    def _check_sample(self, rank: int, encoder: CheckedEncoder, texts: list[bytes]) -> None:
        """Check the backend on the file's first documents."""
        size = encoder.sample_size([len(text) for text in texts], self.job.raw[rank].size_bytes)
        encoder.check_sample(texts[:size])
        if encoder.reason and self.job.config.run.fast != "off":
            logger.info(f"the reference library tokenises {self.job.inputs[rank].path}: {encoder.reason}")

    def _add_batch(
        self, batch: DocumentBatch, texts: list[bytes], encoder: CheckedEncoder, file: _File, run: _Run
    ) -> None:
        inputs, seed = self.job.inputs[batch.file], self.job.config.seed
        ids_N = document_ids(inputs.source, inputs.path, batch.record_N, seed)
        size_N = np.array([len(text) for text in texts], np.int64)
        rows_N = np.zeros(len(texts), TOKENISED_DTYPE)
        rows_N["split"] = file.status_R[batch.record_N] == Status.HELD_OUT
        rows_N["key"] = document_keys(ids_N, seed, "bucket")
        rows_N["id"], rows_N["record"], rows_N["record_start"] = ids_N, batch.record_N, batch.record_start_N
        slice_N = (np.cumsum(size_N) - size_N) // _SLICE_BYTES
        borders = [0, *(np.flatnonzero(np.diff(slice_N)) + 1).tolist(), len(texts)]
        for start, stop in itertools.pairwise(borders):
            mine = rows_N[start:stop]
            pieces = _cut_texts(texts[start:stop], mine["record"].tolist(), file.cut_ranges, inputs.path)
            self._add_slice(pieces, mine, encoder, file, run, inputs.path)
            mine["num_bytes"] = size_N[start:stop] - pieces.cut_N

    @staticmethod
    def _add_slice(
        pieces: _Pieces, rows_N: NDArray[Any], encoder: CheckedEncoder, file: _File, run: _Run, path: str
    ) -> None:
        """Encode some documents; their tokens go to the run, token counts and places to their rows."""

        def place_of(piece: int) -> str:
            document = int(np.searchsorted(pieces.first_N, piece, side="right")) - 1
            return f"{path} record {rows_N['record'][document]}"

        encoded = encoder.encode_batch(pieces.texts, place_of)
        file.num_repaired += encoded.num_repaired
        start_N = encoded.start_N[pieces.first_N]
        rows_N["place"] = start_N[:-1]
        rows_N["num_tokens"] = np.diff(start_N)
        rows_N["cut_bytes"] = pieces.cut_N
        for document, piece, num_bytes in pieces.missing:
            token = int(encoded.start_N[pieces.first_N[document] + piece] - start_N[document])
            file.gaps.append((int(rows_N["record"][document]), token, num_bytes))
        dtype = stored_dtype(encoder.tokenizer.vocab_size, not encoder.tokenizer.lossless)
        if dtype.names is None:
            stored_T = encoded.ids_T.view(np.uint32).astype(dtype, copy=False)
        else:
            stored_T = np.empty(len(encoded.ids_T), dtype)
            stored_T["id"], stored_T["num_bytes"] = encoded.ids_T, encoded.num_bytes_T
        run.tokens.append(stored_T)
        run.rows.append(rows_N)
        run.num_tokens += len(stored_T)


@lru_cache(maxsize=1)
def _open_encoder(stage: Path, mode: str, size_bytes: int, written_ns: int) -> CheckedEncoder:
    """The encoder of a tokenizer stage; ``written_ns`` tells a folder from one that was there before.

    Loading a large vocabulary and its backend costs 0.2 to 1.5 CPU s, so a process that does several files does it
    once. What is converted and checked for the backend is left in the stage's folder, for the other processes.
    """
    tokenizer = load_tokenizer(stage / "tokenizer")
    return CheckedEncoder(tokenizer, mode, find_inexact, size_bytes, stage / "fast")


def _flush(run: _Run, place: int, dtype: np.dtype[Any], tables: list[NDArray[np.void]]) -> bytes:
    """Sort the run by split and key; returns its tokens in that order."""
    rows_D = np.concatenate([np.zeros(0, TOKENISED_DTYPE), *run.rows])
    order_D = np.lexsort((rows_D["key"], rows_D["split"]))
    counts_D = rows_D["num_tokens"].astype(np.int64)
    from_D = rows_D["place"].astype(np.int64)
    to_D = np.empty(len(rows_D), np.int64)
    to_D[order_D] = np.cumsum(counts_D[order_D]) - counts_D[order_D]
    ordered_T = np.empty(run.num_tokens, dtype)
    first = 0
    for tokens_T, rows_N in zip(run.tokens, run.rows, strict=True):
        mine = slice(first, first + len(rows_N))
        copy_runs(ordered_T, to_D[mine], tokens_T, from_D[mine], counts_D[mine])
        first += len(rows_N)
    rows_D["place"] = place + to_D
    tables.append(rows_D[order_D])
    return ordered_T.tobytes()


def _cut_texts(
    texts: list[bytes], records: list[int], cut_ranges: dict[int, list[tuple[int, int]]], path: str
) -> _Pieces:
    """What is left of each text; a document without cuts is one piece, whatever its length."""
    if not cut_ranges:
        return _Pieces(texts, np.arange(len(texts) + 1), np.zeros(len(texts), np.int64), [])
    pieces: list[bytes] = []
    first, missing, cut_N = [0], [], np.zeros(len(texts), np.int64)
    for document, (text, record) in enumerate(zip(texts, records, strict=True)):
        cut = cut_ranges.get(record)
        if cut is None:
            pieces.append(text)
        else:
            check_cut(text, cut, f"{path} record {record}")
            cut_N[document] = sum(stop - start for start, stop in cut)
            end = 0
            for piece, (start, stop) in enumerate(kept_pieces(cut, len(text))):
                if start > end:
                    missing.append((document, piece, start - end))
                pieces.append(text[start:stop])
                end = stop
        first.append(len(pieces))
    return _Pieces(pieces, np.array(first, np.int64), cut_N, missing)


def _batch_texts(batch: DocumentBatch) -> Iterator[bytes]:
    """UTF-8 bytes of each text of a batch."""
    array = batch.text
    _, offsets, data = array.buffers()
    offset_N = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    for start, stop in itertools.pairwise(offset_N):
        yield bytes(view[start:stop])
