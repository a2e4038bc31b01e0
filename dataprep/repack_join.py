"""The first stage of repacking: segments of shards joined back to the token streams of their documents.

A document's segments tile its stream, so its tokens, its BOS and EOS, its byte range and what was cut from it are all
known exactly, with a lossy tokenizer at the borders of the old segments alone. Parts are written as ``token_store``
reads them.

Legend: D documents of a part, S segments, N samples, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.errors import DamageError, RefusedError
from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.shards.dataset import open_dataset
from loader.shards.layout import TokenArray
from loader.shards.segments import SegmentTable

from .cut_segments import GAP_DTYPE
from .kernels.token_runs import copy_runs
from .keys import document_keys
from .token_facts import TokenFacts
from .token_store import PART_DTYPE, ByteSums

__all__ = ["JoinShards", "JoinedPart", "Joining", "ShardRun", "join_documents"]


@dataclass(frozen=True)
class ShardRun:
    """Shards ``[start, stop)`` of a source (numbers in it) that hold all pieces of their documents."""

    source: str
    start: int
    stop: int


@dataclass(frozen=True)
class Joining:
    """What joining must know: how the new Dataset is packed, its documents' split and seed, and the tokens' facts."""

    seq_len: int
    strategy: str
    split: int
    seed: int
    facts: TokenFacts


@dataclass(frozen=True)
class JoinedPart:
    """Documents by key, rows of ``PART_DTYPE``; their tokens as stored; gaps, rows of ``GAP_DTYPE``."""

    rows_D: NDArray[np.void]
    stored_T: NDArray[Any]
    gaps_G: NDArray[np.void]


class JoinShards(PipelineStep):  # type: ignore[misc]
    """Join the documents of one run of shards."""

    name = "join documents"
    type = "tokenreel"

    def __init__(self, dataset: tuple[Path, str], runs: tuple[ShardRun, ...], joining: Joining, out: Path) -> None:
        """``dataset``: its folder and digest; run ``rank`` becomes part ``rank`` in ``out``."""
        super().__init__()
        self.path, self.digest = dataset
        self.runs = runs
        self.joining = joining
        self.out = out

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Join run ``rank``.

        Raises:
            DamageError: a shard is damaged, or a document's segments contradict each other.
            RefusedError: see ``join_documents``.
        """
        dataset = open_dataset(self.path, self.digest)
        run = self.runs[rank]
        stop_K = np.cumsum(dataset.shard_samples(run.source))
        samples_N = np.arange(int(stop_K[run.start - 1]) if run.start else 0, int(stop_K[run.stop - 1]))
        table = dataset.segments_of(run.source, samples_N)
        try:
            part = join_documents(dataset.read_samples(run.source, samples_N), table, self.joining)
        except _ContradictionError as error:
            files = dataset.input_files()
            origin = f"{files[error.file].path} record {error.record}" if error.file < len(files) else "unknown"
            raise error.located(f"source {run.source!r}, {origin}", str(self.path)) from None
        write_atomic(self.out / f"tokens.{rank:05d}.bin", part.stored_T.tobytes())
        write_atomic(self.out / f"gaps.{rank:05d}.npy", npy_bytes(part.gaps_G))
        write_atomic(self.out / f"documents.{rank:05d}.npy", npy_bytes(part.rows_D))
        self.stat_update("documents", value=len(part.rows_D), unit="run")
        return iter(())


class _ContradictionError(Exception):
    """What is wrong with a document, before its names are known."""

    def __init__(self, message: str, row: tuple[int, int], lossy: bool = False) -> None:
        super().__init__(message)
        self.file, self.record = row
        self.lossy = lossy

    def located(self, place: str, dataset: str) -> DamageError | RefusedError:
        if self.lossy:
            return RefusedError(
                "TR-REPACK-LOSSY",
                f"{self}; its tokenizer is lossy, so the bytes on each side of the new border are not known",
                place,
                "a sequence length that is a multiple of the old one",
                "build again from the raw documents at the new sequence length",
            )
        return DamageError("TR-REPACK-SEGMENTS", str(self), place, "whole documents", f"tokenreel verify {dataset}")


def join_documents(tokens_NT: TokenArray, table: SegmentTable, joining: Joining) -> JoinedPart:
    """Documents of all samples of a run of shards.

    Args:
        tokens_NT: token ids.
        table: segments of the same samples; every document's pieces are all among them.
        joining: see there.

    Raises:
        _ContradictionError: a document's segments do not tile it or its bytes, or it lacks BOS or EOS; or (``lossy``)
            the byte range of a new piece cannot be known.
    """
    facts = joining.facts
    segments = _ordered(table)
    first_S = np.ones(len(segments), np.bool_)
    first_S[1:] = segments.document_id_S[1:] != segments.document_id_S[:-1]
    firsts = np.flatnonzero(first_S)
    document_S = np.cumsum(first_S) - 1
    stop_S = segments.document_token_start_S + segments.num_tokens_S
    length_D = np.maximum.reduceat(stop_S, firsts) if len(firsts) else np.zeros(0, np.int64)
    before_S = np.concatenate([[0], stop_S[:-1]])[: len(stop_S)]
    before_S[firsts] = 0
    _require(segments.document_token_start_S == before_S, "its segments do not tile its tokens", segments)
    bos, eos = int(facts.bos_id is not None), int(facts.eos_id is not None)
    flat_T = tokens_NT.reshape(-1)
    place_S = segments.sample_index_S * tokens_NT.shape[1] + segments.token_start_S
    lasts = np.append(firsts[1:], len(first_S))[: len(firsts)] - 1
    if bos:
        _require(flat_T[place_S[firsts]] == facts.bos_id, f"it lacks BOS {facts.bos_id}", segments, firsts)
    if eos:
        ends = flat_T[place_S[lasts] + segments.num_tokens_S[lasts] - 1]
        _require(ends == facts.eos_id, f"it lacks EOS {facts.eos_id}", segments, lasts)
    own_D = length_D - bos - eos
    _require(own_D >= 0, "it has nothing but one border token", segments, firsts)
    own_start_S = np.clip(segments.document_token_start_S - bos, 0, own_D[document_S])
    own_stop_S = np.clip(stop_S - bos, 0, own_D[document_S])
    place_S = place_S + own_start_S + bos - segments.document_token_start_S
    gaps_G = _gaps(segments, document_S, own_start_S, own_stop_S)
    rows_D = _rows(segments, firsts, document_S, own_D, gaps_G, joining)
    order_D = np.argsort(rows_D["key"], kind="stable")
    start_D = np.empty(len(rows_D), np.int64)
    start_D[order_D] = np.cumsum(own_D[order_D]) - own_D[order_D]
    rows_D["place"] = start_D
    ids_T = np.empty(int(own_D.sum()), tokens_NT.dtype)
    out_S = start_D[document_S] + own_start_S
    copy_runs(ids_T, out_S, flat_T, place_S, own_stop_S - own_start_S)
    stored_T: NDArray[Any] = ids_T
    if facts.paired:
        _check_lossy(segments, own_stop_S - own_start_S, joining)
        stored_T = np.zeros(len(ids_T), facts.stored_dtype)
        stored_T["id"] = ids_T
        owning_S = own_stop_S > own_start_S
        last_S = out_S + own_stop_S - own_start_S - 1
        stored_T["num_bytes"][last_S[owning_S]] = segments.byte_count_S[owning_S]
    elif facts.lengths_V is not None:
        _require(ids_T < facts.vocab_size, "a token id is outside the vocabulary", segments, np.zeros(1, np.int64))
        sums = ByteSums(ids_T, facts)
        found_S = sums.before(out_S + own_stop_S - own_start_S) - sums.before(out_S)
        _require(found_S == segments.byte_count_S, "its tokens are other bytes than its segments say", segments)
    return JoinedPart(rows_D[order_D], stored_T, gaps_G)


def _ordered(table: SegmentTable) -> SegmentTable:
    """Real segments by document, each document's by place."""
    real = table.take(~table.padding_S)
    return real.take(np.lexsort((real.document_token_start_S, real.document_id_S)))


def _require(
    right: NDArray[np.bool_], message: str, segments: SegmentTable, of: NDArray[np.int64] | None = None
) -> None:
    """Name the document of the first wrong segment; ``of``: segments that ``right`` is about."""
    if not right.all():
        wrong = int(np.argmin(right))
        segment = wrong if of is None else int(of[min(wrong, len(of) - 1)])
        raise _ContradictionError(message, (int(segments.file_S[segment]), int(segments.record_S[segment])))


def _gaps(
    segments: SegmentTable,
    document_S: NDArray[np.int64],
    own_start_S: NDArray[np.int64],
    own_stop_S: NDArray[np.int64],
) -> NDArray[np.void]:
    """Where bytes are missing between one segment with tokens of its own and the next of the same document."""
    own = np.flatnonzero(own_stop_S > own_start_S)
    stop = segments.byte_start_S[own] + segments.byte_count_S[own]
    previous = np.concatenate([[0], stop[:-1]])[: len(stop)]
    previous[np.diff(document_S[own], prepend=-1) != 0] = 0
    missing = segments.byte_start_S[own] - previous
    _require(missing >= 0, "byte ranges of its segments overlap", segments, own)
    at = np.flatnonzero(missing)
    gaps_G = np.zeros(len(at), GAP_DTYPE)
    gaps_G["record"] = document_S[own[at]]
    gaps_G["token"] = own_start_S[own[at]]
    gaps_G["num_bytes"] = missing[at]
    return gaps_G


def _rows(
    segments: SegmentTable,
    firsts: NDArray[np.int64],
    document_S: NDArray[np.int64],
    own_D: NDArray[np.int64],
    gaps_G: NDArray[np.void],
    joining: Joining,
) -> NDArray[np.void]:
    rows_D = np.zeros(len(firsts), PART_DTYPE)
    count = len(firsts)
    rows_D["split"] = joining.split
    rows_D["id"] = segments.document_id_S[firsts]
    rows_D["key"] = document_keys(rows_D["id"], joining.seed, "bucket")
    for name in ("record", "record_start", "file"):
        rows_D[name] = getattr(segments, f"{name}_S")[firsts]
    sizes = np.zeros((2, count), np.int64)
    np.add.at(sizes[0], document_S, segments.byte_count_S)
    np.add.at(sizes[1], gaps_G["record"], gaps_G["num_bytes"])
    rows_D["num_bytes"], rows_D["cut_bytes"] = sizes
    rows_D["num_tokens"] = own_D
    rows_D["gap_row"] = np.arange(count)
    return rows_D


def _check_lossy(segments: SegmentTable, own_S: NDArray[np.int64], joining: Joining) -> None:
    """A new border inside an old segment with bytes parts them nobody knows where."""
    start_S = segments.document_token_start_S
    stop_S = start_S + segments.num_tokens_S
    if joining.strategy == "concat":
        inside_S = (own_S > 1) & (segments.byte_count_S > 0)
    else:
        inside_S = (stop_S - 1) // joining.seq_len > start_S // joining.seq_len
        inside_S &= segments.byte_count_S > 0
    if inside_S.any():
        segment = int(np.argmax(inside_S))
        row = (int(segments.file_S[segment]), int(segments.record_S[segment]))
        raise _ContradictionError("a document would be split inside an old segment", row, lossy=True)
