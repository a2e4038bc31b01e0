"""Tokenising: kept and held-out documents of each file to token runs, sorted by key so that a bucket is a slice.

One task a file. ``documents.<file>.npy`` (``TOKENISED_DTYPE``, sorted by split and key) names each document's place in
``tokens.<file>.bin``: its ids without BOS and EOS, as u2 or u4 by vocabulary; for a lossy tokenizer pairs (id, bytes
of the text)
as u4. A bucket is a range of keys, so each run of the file holds it in one piece, and packing reads buckets in a few
long reads.

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

from .dedup.signatures import load_summary
from .documents import DocumentBatch, Status
from .formats import ReadOptions, read_file
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
        ("num_tokens", "<u8"),
        ("place", "<u8"),
    ]
)
"""A tokenised document: ``split`` = its place in ``places.SPLITS``; ``num_tokens`` without BOS and EOS; ``place`` =
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


class TokenizeDocuments(PipelineStep):  # type: ignore[misc]
    """See the module. ``folders``: the sign, the decide and the tokenizer stage's, and the one to write to."""

    name = "tokenize documents"
    type = "tokenreel"

    def __init__(self, job: Job, folders: tuple[Path, Path, Path, Path]) -> None:
        super().__init__()
        self.job = job
        self.signed, self.decided, self.tokenizer_stage, self.out = folders

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Tokenise file ``rank``.

        Raises:
            RefusedError: the file is not, to the byte, the one that was deduplicated.
        """
        tokenizer = load_tokenizer(self.tokenizer_stage / "tokenizer")
        status_R = np.load(self.decided / f"status.{rank:05d}.npy", allow_pickle=False)
        tables: list[NDArray[np.void]] = []
        check_unchanged([self.job.raw[rank]])
        write_atomic(self.out / f"tokens.{rank:05d}.bin", self._runs(rank, tokenizer, status_R, tables))
        check_unchanged([self.job.raw[rank]])
        table_D = np.concatenate([np.zeros(0, TOKENISED_DTYPE), *tables])
        table_D = table_D[np.lexsort((table_D["key"], table_D["split"]))]
        write_atomic(self.out / f"documents.{rank:05d}.npy", npy_bytes(table_D))
        self.stat_update("documents", value=len(table_D), unit="file")
        self.stat_update("tokens", value=int(table_D["num_tokens"].sum()), unit="file")
        return iter(())

    def _runs(
        self, file: int, tokenizer: Tokenizer, status_R: NDArray[np.uint8], tables: list[NDArray[np.void]]
    ) -> Iterator[bytes]:
        """Tokens of the file, run by run; the documents of each run are appended to ``tables``."""
        keep_R = (status_R == Status.KEPT) | (status_R == Status.HELD_OUT)
        options = ReadOptions(line_limit_bytes=self.job.config.ingest.line_limit_bytes)
        run, place = _Run(), 0
        if keep_R.any():
            expected = load_summary(self.signed, file)
            for batch in read_file(self.job.inputs[file], file, options=options, keep_R=keep_R, expected=expected):
                self._add_batch(batch, tokenizer, status_R, run)
                if run.num_tokens >= _RUN_TOKENS:
                    yield self._flush(run, place, tokenizer, tables)
                    place += run.num_tokens
                    run = _Run()
        yield self._flush(run, place, tokenizer, tables)

    def _add_batch(self, batch: DocumentBatch, tokenizer: Tokenizer, status_R: NDArray[np.uint8], run: _Run) -> None:
        inputs, seed = self.job.inputs[batch.file], self.job.config.seed
        ids_N = document_ids(inputs.source, inputs.path, batch.record_N, seed)
        keys_N = document_keys(ids_N, seed, "bucket")
        split_N = (status_R[batch.record_N] == Status.HELD_OUT).astype(np.uint8)
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
            ids_T, num_bytes_T = tokenizer.encode(text)
            if tokenizer.lossless:
                stored_T = ids_T.astype(dtype)
            else:
                stored_T = np.empty(len(ids_T), dtype)
                stored_T["id"], stored_T["num_bytes"] = ids_T, num_bytes_T
            run.tokens.append(stored_T)
            run.rows.append((*row, len(text), len(ids_T), 0))
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


def _batch_texts(batch: DocumentBatch) -> Iterator[bytes]:
    """UTF-8 bytes of each text of a batch."""
    array = batch.text
    _, offsets, data = array.buffers()
    offset_N = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    for start, stop in itertools.pairwise(offset_N):
        yield bytes(view[start:stop])
