"""Packing and writing shards: two stages over the same tasks, one task per (split, source, bucket).

``pack`` decides windows, samples and shards of its bucket from document lengths alone and notes the counts. ``write``
does the same
packing again (it costs nanoseconds a document), now knows from the other buckets' counts which shard numbers are its
own, gathers
the tokens and writes the shards. A bucket is a range of keyed hashes, so every shard is a random sample of its source.

Legend: D documents of a window or bucket, T tokens, P pieces, S segments, N samples, L tokens of a sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError
from loader.files import write_atomic
from loader.shards.layout import DOCUMENT_DTYPE, PADDING_ROW, max_samples
from loader.shards.segments import SegmentArray, make_segments
from loader.shards.writer import ShardSpec, ShardWriter
from loader.text.tokenizers import Tokenizer, load_tokenizer

from .arrays import load_array
from .buckets import COUNTS, Bucket, BuildFolders
from .cut_segments import Gaps, PieceRanges, split_at_gaps, window_gaps
from .job import Job
from .kernels.pack import gather_tokens
from .keys import document_keys, purpose_key
from .mix_stage import read_mix
from .pack import PackedWindow, pack_window, shards_of_windows, window_borders
from .stages import read_json
from .tokenize import stored_dtype

__all__ = ["PackDocuments", "WriteShards"]


@dataclass(frozen=True)
class _Documents:
    """Documents of a bucket in key order: rows of ``TOKENISED_DTYPE``, the file of each, and each file's gaps."""

    rows_D: NDArray[np.void]
    file_D: NDArray[np.int64]
    gaps_of_file: dict[int, NDArray[np.void]]

    def __getitem__(self, window: slice) -> _Documents:
        return _Documents(self.rows_D[window], self.file_D[window], self.gaps_of_file)

    def gaps(self) -> Gaps:
        """What is cut from these documents, by place among their tokens."""
        num_tokens_D = self.rows_D["num_tokens"].astype(np.int64)
        start_D = np.cumsum(num_tokens_D) - num_tokens_D
        return window_gaps(self.rows_D["record"], self.file_D, start_D, self.gaps_of_file)


class _Packing(PipelineStep):  # type: ignore[misc]
    """What both stages share: the documents of a bucket, and its windows packed."""

    type = "tokenreel"

    def __init__(self, job: Job, folders: BuildFolders, buckets: tuple[Bucket, ...]) -> None:
        super().__init__()
        self.job = job
        self.folders = folders
        self.buckets = buckets

    def _documents(self, bucket: Bucket) -> _Documents:
        """Documents of the bucket that the mix keeps, sorted by key."""
        first, last = bucket.key_range()
        limit = read_mix(self.folders.mix).limits[bucket.source] if bucket.split == 0 else None
        rows, files, gaps = [], [], {}
        for file, inputs in enumerate(self.job.inputs):
            if inputs.source != bucket.source:
                continue
            table_D = load_array(self.folders.tokenised / f"documents.{file:05d}.npy", mapped=True)
            start, stop = np.searchsorted(table_D["split"], [bucket.split, bucket.split + 1])
            keys_D = table_D["key"][start:stop]
            low = np.searchsorted(keys_D, np.uint64(first), side="left")
            high = np.searchsorted(keys_D, np.uint64(last), side="right")
            part_D = np.array(table_D[start:stop][low:high])
            if limit is not None:
                part_D = part_D[document_keys(part_D["id"], self.job.config.seed, "mix") <= np.uint64(limit)]
            rows.append(part_D)
            files.append(np.full(len(part_D), file, np.int64))
            if (part_D["cut_bytes"] > 0).any():
                gaps[file] = load_array(self.folders.tokenised / f"gaps.{file:05d}.npy")
        rows_D, file_D = np.concatenate(rows), np.concatenate(files)
        order_D = np.argsort(rows_D["key"], kind="stable")
        return _Documents(rows_D[order_D], file_D[order_D], gaps)

    def _windows(
        self, bucket: Bucket, documents: _Documents, tokenizer: Tokenizer
    ) -> Iterator[tuple[_Documents, PackedWindow]]:
        """The bucket's windows, packed."""
        config = self.job.config
        num_tokens_D = _stream_lengths(documents, tokenizer)
        limit = max_samples(config.pack.seq_len, tokenizer.vocab_size, config.shards.size_bytes) * config.pack.seq_len
        borders = window_borders(num_tokens_D, config.pack.window_documents, max(limit, 1)).tolist()
        key = purpose_key(config.seed, f"samples {bucket.split} {bucket.source} {bucket.number} {bucket.bits}")
        for number, (start, stop) in enumerate(itertools.pairwise(borders)):
            packed = pack_window(num_tokens_D[start:stop], config.pack.seq_len, key + number, config.pack.strategy)
            yield documents[start:stop], packed


def _stream_lengths(documents: _Documents, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Tokens of each document's stream: BOS, its own, EOS."""
    borders = (tokenizer.bos_id is not None) + (tokenizer.eos_id is not None)
    lengths_D: NDArray[np.int64] = documents.rows_D["num_tokens"].astype(np.int64) + borders
    return lengths_D


class PackDocuments(_Packing):
    """Note how many samples each window of the bucket has: ``samples.<task>.json``."""

    name = "pack documents"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Pack bucket ``rank``."""
        tokenizer = load_tokenizer(self.folders.tokenizer / "tokenizer")
        bucket = self.buckets[rank]
        samples = [packed.num_samples for _, packed in self._windows(bucket, self._documents(bucket), tokenizer)]
        write_atomic(self.folders.pack / f"samples.{rank:05d}.json", canonical_json({"samples": samples}))
        self.stat_update("samples", value=sum(samples), unit="bucket")
        return iter(())


class WriteShards(_Packing):
    """Write the bucket's shards into the split's Dataset folder, and ``shards.<task>.json``: their records and
    counts.
    """

    name = "write shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write bucket ``rank``.

        Raises:
            DamageError: what was tokenised is not what the documents table says.
        """
        tokenizer = load_tokenizer(self.folders.tokenizer / "tokenizer")
        bucket = self.buckets[rank]
        most = max_samples(self.job.config.pack.seq_len, tokenizer.vocab_size, self.job.config.shards.size_bytes)
        number = sum(self._num_shards(task, most) for task in self._earlier_tasks(rank))
        shard_of_window = shards_of_windows(self._samples(rank), most)
        windows = self._windows(bucket, self._documents(bucket), tokenizer)
        records, writer, counts = [], None, dict.fromkeys(COUNTS, 0)
        for window, (shard, (documents, packed)) in enumerate(zip(shard_of_window, windows, strict=True)):
            if writer is None:
                spec = ShardSpec(bucket.source, number + shard, self.job.config.pack.seq_len, tokenizer.vocab_size)
                writer = ShardWriter(self.folders.dataset(bucket.split), spec)
            _add_window(writer, documents, packed, self._tokens(documents, tokenizer), tokenizer)
            counts["documents"] += len(documents.rows_D)
            counts["bytes"] += int(documents.rows_D["num_bytes"].sum())
            counts["cut_bytes"] += int(documents.rows_D["cut_bytes"].sum())
            counts["tokens"] += int(packed.num_tokens_P.sum())
            counts["padding"] += packed.padding_tokens(self.job.config.pack.seq_len)
            if window + 1 == len(shard_of_window) or shard_of_window[window + 1] != shard:
                records.append(writer.close().to_json())
                writer = None
        content = {"records": records, "counts": counts}
        write_atomic(self.folders.write / f"shards.{rank:05d}.json", canonical_json(content))
        self.stat_update("tokens", value=counts["tokens"], unit="bucket")
        return iter(())

    def _earlier_tasks(self, rank: int) -> list[int]:
        """Tasks of the same split and source whose shards come first."""
        mine = self.buckets[rank]
        return [t for t in range(rank) if (self.buckets[t].split, self.buckets[t].source) == (mine.split, mine.source)]

    def _samples(self, task: int) -> list[int]:
        samples: list[int] = read_json(self.folders.pack / f"samples.{task:05d}.json")["samples"]
        return samples

    def _num_shards(self, task: int, most: int) -> int:
        samples = self._samples(task)
        return 1 + shards_of_windows(samples, most)[-1] if samples else 0

    def _tokens(self, documents: _Documents, tokenizer: Tokenizer) -> NDArray[Any]:
        """Stored tokens of the window's documents, one after the other.

        Raises:
            DamageError: a tokens file is too short.
        """
        parts = [np.zeros(0, stored_dtype(tokenizer))]
        maps = {}
        for file, row in zip(documents.file_D.tolist(), documents.rows_D, strict=True):
            if not row["num_tokens"]:
                continue
            if file not in maps:
                path = self.folders.tokenised / f"tokens.{file:05d}.bin"
                maps[file] = np.memmap(path, stored_dtype(tokenizer), "r")
            start, stop = int(row["place"]), int(row["place"] + row["num_tokens"])
            if stop > len(maps[file]):
                place = str(self.folders.tokenised / f"tokens.{file:05d}.bin")
                raise DamageError("TR-WORK-DAMAGED", "a tokens file is too short", place, f"{stop} tokens")
            parts.append(maps[file][start:stop])
        return np.concatenate(parts)


def _add_window(
    writer: ShardWriter, documents: _Documents, packed: PackedWindow, stored_T: NDArray[Any], tokenizer: Tokenizer
) -> None:
    """Add a window's documents, samples and segments to a shard."""
    rows_D = np.zeros(len(documents.rows_D), DOCUMENT_DTYPE)
    for name in ("id", "record", "record_start"):
        rows_D[name] = documents.rows_D[name]
    rows_D["file"] = documents.file_D
    first_row = writer.add_documents(rows_D)
    lengths_V = tokenizer.bytes_of_ids()
    ids_T = stored_T if lengths_V is not None else np.ascontiguousarray(stored_T["id"])
    byte_stop_T = np.zeros(len(ids_T) + 1, np.int64)
    np.cumsum(lengths_V[ids_T] if lengths_V is not None else stored_T["num_bytes"], out=byte_stop_T[1:])
    own = _own_ranges(documents, packed, tokenizer)
    if int(byte_stop_T[-1]) != int(documents.rows_D["num_bytes"].sum()):
        raise DamageError("TR-WORK-DAMAGED", "tokens do not add up to their documents' bytes", writer.spec.source)
    tokens_NT = np.full((packed.num_samples, writer.spec.seq_len), tokenizer.pad_id, ids_T.dtype)
    pieces = np.stack([packed.sample_P, packed.token_start_P, packed.num_tokens_P, own.start_P, own.flags_P], axis=1)
    border_ids = np.array([tokenizer.bos_id or 0, tokenizer.eos_id or 0], np.int64)
    gather_tokens(tokens_NT, pieces.astype(np.int64), ids_T, border_ids)
    pieces_P = PieceRanges(
        sample_P=packed.sample_P.astype(np.int64),
        token_start_P=packed.token_start_P.astype(np.int64),
        document_P=packed.document_P.astype(np.int64),
        document_token_start_P=packed.document_token_start_P.astype(np.int64),
        num_tokens_P=packed.num_tokens_P.astype(np.int64),
        base_P=own.document_start_P,
        start_P=own.start_P,
        stop_P=own.stop_P,
        begins_P=own.flags_P & 1,
    )
    columns = split_at_gaps(pieces_P, documents.gaps(), byte_stop_T)
    segments_S = make_segments(
        columns.token_start_S,
        first_row + columns.document_S,
        columns.document_token_start_S,
        columns.byte_start_S,
        columns.byte_count_S,
    )
    writer.add_samples(tokens_NT, *_with_padding(segments_S, columns.sample_S, packed, writer.spec.seq_len))


@dataclass(frozen=True)
class _OwnRanges:
    """Each piece's own tokens [start, stop) in the window's token array, without BOS and EOS; where its document's
    begin; and
    whether it begins with BOS (1) and ends with EOS (2)."""

    document_start_P: NDArray[np.int64]
    start_P: NDArray[np.int64]
    stop_P: NDArray[np.int64]
    flags_P: NDArray[np.int64]


def _own_ranges(documents: _Documents, packed: PackedWindow, tokenizer: Tokenizer) -> _OwnRanges:
    num_tokens_D = documents.rows_D["num_tokens"].astype(np.int64)
    start_D = np.cumsum(num_tokens_D) - num_tokens_D
    bos, eos = int(tokenizer.bos_id is not None), int(tokenizer.eos_id is not None)
    document_P = packed.document_P
    stop_P = packed.document_token_start_P + packed.num_tokens_P
    begins_P = packed.document_token_start_P == 0
    ends_P = stop_P == num_tokens_D[document_P] + bos + eos
    own_start_P = np.clip(packed.document_token_start_P - bos, 0, num_tokens_D[document_P])
    own_stop_P = np.clip(stop_P - bos, 0, num_tokens_D[document_P])
    flags_P = begins_P * bos + ends_P * (2 * eos)
    base_P = start_D[document_P]
    return _OwnRanges(base_P, base_P + own_start_P, base_P + own_stop_P, flags_P)


def _with_padding(
    segments_S: SegmentArray, own_sample_S: NDArray[np.int64], packed: PackedWindow, seq_len: int
) -> tuple[SegmentArray, NDArray[np.int64]]:
    """Segments with each sample's padding as its last one, and the number of segments of each sample."""
    filled_N = np.bincount(packed.sample_P, packed.num_tokens_P, packed.num_samples).astype(np.int64)
    short_N = np.flatnonzero(filled_N < seq_len)
    padding = make_segments(filled_N[short_N], np.full(len(short_N), PADDING_ROW, np.int64), 0, 0, 0)
    sample_S = np.concatenate([own_sample_S, short_N])
    order_S = np.argsort(sample_S, kind="stable")
    joined_S: SegmentArray = np.concatenate([segments_S, padding[: len(short_N)]])[order_S]
    return joined_S, np.bincount(sample_S, minlength=packed.num_samples)
