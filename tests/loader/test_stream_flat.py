"""Memory and descriptors stay where they are: over a million batches, and over 100,000 shards."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from support.datasets import DatasetSpec, make_dataset

from loader.shards.access import npy_bytes
from loader.shards.documents import encode_documents
from loader.shards.layout import DOCUMENT_DTYPE, DOCUMENT_INDEX_DTYPE, SEGMENT_DTYPE, SHARD_DTYPE, ShardName
from loader.shards.manifest import FileRecord, Manifest, SourceInfo, encode_manifest
from loader.shards.segments import SegmentFile, encode_segments
from loader.shards.writer import ShardSpec, ShardWriter
from loader.stream.open import OrderOptions, open_stream
from loader.stream.stream import Stream, StreamConfig

SEQ_LEN, VOCAB_SIZE, SHARD_SAMPLES = 16, 259, 4


def _anonymous_mb() -> float:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _growth(stream: Stream, num_batches: int, parts: int = 10) -> Iterator[tuple[float, int]]:
    """Anonymous memory in MB and open descriptors after each of ``parts`` equal parts of the batches."""
    for _ in range(parts):
        for _ in range(num_batches // parts):
            next(stream)
        yield _anonymous_mb(), _descriptors()


def _check_flat(stream: Stream, num_batches: int) -> None:
    """What is held at the half is what is held at the end: + 5 % and what an allocator may leave lying about."""
    sizes = list(_growth(stream, num_batches))
    memory, descriptors = [size for size, _ in sizes[4:]], [count for _, count in sizes[4:]]
    assert max(memory) <= memory[0] * 1.05 + 4, sizes
    assert max(descriptors) <= descriptors[0] + 8, sizes


def _documents(shard: int) -> np.ndarray:
    documents_D = np.zeros(SHARD_SAMPLES, DOCUMENT_DTYPE)
    documents_D["id"] = np.arange(shard * SHARD_SAMPLES + 1, (shard + 1) * SHARD_SAMPLES + 1)
    return documents_D


def _many_shards(folder: Path, num_shards: int) -> Path:
    """A Dataset of one source of many tiny shards, all of the same tokens."""
    writer = ShardWriter(folder, ShardSpec("web", 0, SEQ_LEN, VOCAB_SIZE))
    segments_S = np.zeros(SHARD_SAMPLES, SEGMENT_DTYPE)
    segments_S["document_row"], segments_S["byte_count"] = np.arange(SHARD_SAMPLES), SEQ_LEN
    counts_N = np.ones(SHARD_SAMPLES, np.int64)
    writer.add_documents(_documents(0))
    writer.add_samples(np.full((SHARD_SAMPLES, SEQ_LEN), 7, np.uint16), segments_S, counts_N)
    record = writer.close()
    source, tokens = folder / "web", (folder / "web" / ShardName(0).mds).read_bytes()
    hash_N = np.full(SHARD_SAMPLES, xxhash.xxh3_64_intdigest(np.full(SEQ_LEN, 7, "<u2").tobytes()), "<u8")
    table = SegmentFile(hash_N, np.arange(SHARD_SAMPLES + 1, dtype="<u4"), segments_S)
    rows_R = np.zeros(num_shards, SHARD_DTYPE)
    for name in ("num_samples", "num_segments", "num_documents", "num_tokens", "max_segments", "size_bytes"):
        rows_R[name] = getattr(record, name)
    rows_R["number"] = np.arange(num_shards)
    rows_R["mds_hash"] = np.frombuffer(bytes.fromhex(record.mds_hash), np.uint8)
    for shard in range(num_shards):
        name = ShardName(shard)
        segments, documents = encode_segments(table, SEQ_LEN, shard), encode_documents(_documents(shard), shard)
        files = ((name.segments, b"".join(segments), "segments_hash"), (name.docs, b"".join(documents), "docs_hash"))
        (source / name.mds).write_bytes(tokens)
        for file, data, field in files:
            (source / file).write_bytes(data)
            rows_R[field][shard] = np.frombuffer(xxhash.xxh3_128_digest(data), np.uint8)
    written = {
        "shards.npy": npy_bytes(rows_R),
        "documents.npy": npy_bytes(np.zeros(0, DOCUMENT_INDEX_DTYPE)),
        "files.txt": b"a.jsonl\t-\t-\n",
        "web/index.json": b"{}",
    }
    for file, data in written.items():
        (folder / file).write_bytes(data)
    total = {name: int(rows_R[name].sum()) for name in ("num_samples", "num_segments", "num_tokens", "num_documents")}
    info = SourceInfo("web", num_shards, **total, share=1.0, file_start=0, file_stop=1)
    hashed = {file: FileRecord(len(data), xxhash.xxh3_128_hexdigest(data)) for file, data in written.items()}
    tokenizer, order = {"digest": "0", "eos_id": 0}, {"window_shards": 8, "slices": 2}
    manifest = Manifest((info,), SEQ_LEN, VOCAB_SIZE, "uint16", 1, tokenizer, 0, {}, {}, "0", {}, order, hashed)
    (folder / "manifest.json").write_bytes(encode_manifest(manifest)[0])
    return folder


@pytest.mark.parametrize(
    "num_shards", [pytest.param(1_500, id="1,500"), pytest.param(100_000, id="100,000", marks=pytest.mark.slow)]
)
def test_flat_over_shards(tmp_path: Path, num_shards: int) -> None:
    """Nine tenths of an epoch open and close nearly every shard; at its end the tables of the next one would come."""
    folder = _many_shards(tmp_path / "many", num_shards)
    with open_stream(folder, 8, OrderOptions(weights={"web": 1.0})) as stream:
        num_batches = num_shards * SHARD_SAMPLES // 8 * 9 // 10
        _check_flat(stream, num_batches)
        assert stream.next_step >= num_batches - 10


@pytest.mark.parametrize(
    "num_batches", [pytest.param(5_000, id="5,000"), pytest.param(1_000_000, id="1,000,000", marks=pytest.mark.slow)]
)
def test_flat_over_batches(tmp_path: Path, num_batches: int) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 40, "b": 20}, seq_len=16, samples_per_shard=40))
    with open_stream(made.path, 2, config=StreamConfig(threads=1, prefetch_steps=8)) as stream:
        _check_flat(stream, num_batches)
