"""Packing and writing shards: two stages over the same tasks, one task per (split, source, bucket).

``pack`` decides windows, samples and shards of its bucket from document lengths alone and notes the counts. ``write``
does the same packing again (it costs nanoseconds a document), now knows from the other buckets' counts which shard
numbers are its own, gathers the tokens, checks the samples and writes the shards. A bucket is a range of keyed hashes,
so every shard is a random sample of its source. Memory is bounded by the window and the shard: a bucket's documents
are rows of numbers until their window is made.

Legend: D documents of a window or bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError
from loader.files import write_atomic
from loader.shards.layout import max_samples
from loader.shards.writer import ShardSpec, ShardWriter

from .buckets import COUNTS, Bucket, BuildFolders
from .config import PackConfig
from .job import Job
from .keys import document_keys, purpose_key
from .mix_stage import read_mix
from .pack import PackedWindow, pack_window, packing_counts, shards_of_windows, window_borders
from .stages import read_json
from .token_checks import check_window
from .token_facts import TokenFacts, read_facts
from .token_store import StoredDocuments, TokenStore
from .token_windows import make_window, stream_lengths

__all__ = ["PackDocuments", "PackJob", "WriteShards", "pack_job"]


@dataclass(frozen=True)
class PackJob:
    """What both stages must know; small, for it goes to every task's process.

    Attributes:
        seed: keys the order of samples.
        pack: strategy, sequence length, windows.
        shard_bytes: size a shard aims at.
        parts: of each source, in the token store.
        folders: where everything lies.
        buckets: the tasks.
        facts: of the tokens; None: of the tokenizer that the tokenizer stage left.
        mixed: whether a mix stage says which documents of the training split stay.
    """

    seed: int
    pack: PackConfig
    shard_bytes: int
    parts: Mapping[str, tuple[int, ...]]
    folders: BuildFolders
    buckets: tuple[Bucket, ...]
    facts: TokenFacts | None = None
    mixed: bool = True


def pack_job(job: Job, folders: BuildFolders, buckets: tuple[Bucket, ...]) -> PackJob:
    """The packing of a whole build: one part an input file."""
    config = job.config
    parts = {
        source: tuple(part for part, inputs in enumerate(job.inputs) if inputs.source == source)
        for source in config.sources
    }
    return PackJob(config.seed, config.pack, config.shards.size_bytes, parts, folders, buckets)


class _Packing(PipelineStep):  # type: ignore[misc]
    """What both stages share: the documents of a bucket, and its windows packed."""

    type = "tokenreel"

    def __init__(self, job: PackJob) -> None:
        super().__init__()
        self.job = job

    def _store(self) -> TokenStore:
        facts = self.job.facts
        if facts is None:
            facts = read_facts(self.job.folders.tokenizer)
        return TokenStore(self.job.folders.tokenised, facts)

    def _documents(self, bucket: Bucket, store: TokenStore) -> StoredDocuments:
        """Documents of the bucket that the mix keeps, sorted by key."""
        if not self.job.mixed or bucket.split != 0:
            return store.documents(bucket, self.job.parts[bucket.source])
        limit = np.uint64(read_mix(self.job.folders.mix).limits[bucket.source])

        def kept(rows_D: NDArray[np.void]) -> NDArray[np.bool_]:
            inside: NDArray[np.bool_] = document_keys(rows_D["id"], self.job.seed, "mix") <= limit
            return inside

        return store.documents(bucket, self.job.parts[bucket.source], kept)

    def _windows(self, bucket: Bucket, store: TokenStore) -> Iterator[tuple[StoredDocuments, PackedWindow]]:
        """The bucket's windows, packed."""
        pack = self.job.pack
        documents = self._documents(bucket, store)
        num_tokens_D = stream_lengths(documents, store.facts, bucket.source)
        limit = max_samples(pack.seq_len, store.facts.vocab_size, self.job.shard_bytes) * pack.seq_len
        borders = window_borders(num_tokens_D, pack.window_documents, max(limit, 1)).tolist()
        key = purpose_key(self.job.seed, f"samples {bucket.split} {bucket.source} {bucket.number} {bucket.bits}")
        for number, (start, stop) in enumerate(itertools.pairwise(borders)):
            packed = pack_window(num_tokens_D[start:stop], pack.seq_len, key + number, pack.strategy)
            yield documents[start:stop], packed


class PackDocuments(_Packing):
    """Note how many samples each window of the bucket has: ``samples.<task>.json``."""

    name = "pack documents"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Pack bucket ``rank``.

        Raises:
            RefusedError: a document is too long for a Dataset.
        """
        samples = [packed.num_samples for _, packed in self._windows(self.job.buckets[rank], self._store())]
        write_atomic(self.job.folders.pack / f"samples.{rank:05d}.json", canonical_json({"samples": samples}))
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
            DamageError: what was tokenised is not what the documents table says, or what was packed is not what was
                tokenised.
        """
        job, bucket, store = self.job, self.job.buckets[rank], self._store()
        most = max_samples(job.pack.seq_len, store.facts.vocab_size, job.shard_bytes)
        number = sum(self._num_shards(task, most) for task in self._earlier_tasks(rank))
        shard_of_window = shards_of_windows(self._samples(rank), most)
        records, writer, counts = [], None, dict.fromkeys(COUNTS, 0)
        windows = self._windows(bucket, store)
        for window, (shard, (documents, packed)) in enumerate(zip(shard_of_window, windows, strict=True)):
            if writer is None:
                spec = ShardSpec(bucket.source, number + shard, job.pack.seq_len, store.facts.vocab_size)
                writer = ShardWriter(job.folders.dataset(bucket.split), spec)
            added = self._add_window(writer, documents, packed, store)
            counts = {name: counts[name] + added[name] for name in COUNTS}
            if window + 1 == len(shard_of_window) or shard_of_window[window + 1] != shard:
                records.append(writer.close().to_json())
                writer = None
        content = {"records": records, "counts": counts}
        write_atomic(job.folders.write / f"shards.{rank:05d}.json", canonical_json(content))
        self.stat_update("tokens", value=counts["tokens"], unit="bucket")
        return iter(())

    def _add_window(
        self, writer: ShardWriter, documents: StoredDocuments, packed: PackedWindow, store: TokenStore
    ) -> dict[str, int]:
        """Add a window to a shard, checked; its ``COUNTS``."""
        seq_len, facts, rows_D = self.job.pack.seq_len, store.facts, documents.rows_D
        window = make_window(documents, packed, store.tokens(documents), facts, seq_len)
        check_window(window, documents, facts, writer.spec.source)
        window.add_to(writer)
        return {
            "documents": len(rows_D),
            "bytes": int(rows_D["num_bytes"].sum()),
            "cut_bytes": int(rows_D["cut_bytes"].sum()),
            "tokens": int(packed.num_tokens_P.sum()),
            "segments": len(window.segments_S),
            **packing_counts(packed, rows_D["num_tokens"].astype(np.int64) + facts.num_borders, seq_len),
        }

    def _earlier_tasks(self, rank: int) -> list[int]:
        """Tasks of the same split and source whose shards come first."""
        buckets, mine = self.job.buckets, self.job.buckets[rank]
        return [t for t in range(rank) if (buckets[t].split, buckets[t].source) == (mine.split, mine.source)]

    def _samples(self, task: int) -> list[int]:
        path = self.job.folders.pack / f"samples.{task:05d}.json"
        samples = read_json(path).get("samples")
        if not isinstance(samples, list) or not all(type(count) is int and count > 0 for count in samples):
            raise DamageError("TR-WORK-DAMAGED", "no counts of samples", str(path), "a finished pack stage")
        return samples

    def _num_shards(self, task: int, most: int) -> int:
        samples = self._samples(task)
        return 1 + shards_of_windows(samples, most)[-1] if samples else 0
