"""Shards on disk: writing, verified reading beside a numpy gather and stock mosaicml-streaming, provenance, faults."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, cpu_s, paired_cpu_s, row
from loader.errors import DamageError
from loader.shards import (
    DOCUMENT_DTYPE,
    PADDING_ROW,
    SEGMENT_DTYPE,
    Dataset,
    DatasetInfo,
    InputFile,
    ShardSpec,
    ShardWriter,
    open_dataset,
    write_dataset_manifest,
)
from loader.shards.layout import mds_header_size
from loader.shards.verify import verify_dataset

__all__ = ["disk_rows"]

SEQ_LEN, VOCAB_SIZE = 2048, 32_000
MEAN_DOCUMENT_TOKENS = 1133  # of the field measurement: 23,177 documents in 26.2 M tokens


def shard_content(number: int, num_samples: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Tokens, segments, segments a sample and documents of one made-up shard: documents of lognormal length."""
    rng = np.random.default_rng(number)
    tokens_NT = rng.integers(0, VOCAB_SIZE, (num_samples, SEQ_LEN), dtype=np.uint16)
    count_N = rng.poisson(SEQ_LEN / MEAN_DOCUMENT_TOKENS, num_samples) + 1
    stop_N = np.cumsum(count_N)
    segments_S = np.zeros(int(stop_N[-1]), SEGMENT_DTYPE)
    inside_S = np.arange(len(segments_S)) - np.repeat(stop_N - count_N, count_N)
    segments_S["token_start"] = inside_S * SEQ_LEN // np.repeat(count_N, count_N)
    segments_S["document_row"] = np.arange(len(segments_S))
    segments_S["byte_count"] = 4 * SEQ_LEN
    padded_S = rng.random(len(segments_S)) < 0.001
    padded_S &= (inside_S > 0) & (inside_S == np.repeat(count_N, count_N) - 1)
    segments_S["document_row"] = np.cumsum(~padded_S) - 1
    segments_S["document_row"][padded_S] = PADDING_ROW
    documents_D = np.zeros(int((~padded_S).sum()), DOCUMENT_DTYPE)
    documents_D["id"] = rng.integers(0, 1 << 63, len(documents_D)).astype(np.uint64)
    documents_D["record"] = np.arange(len(documents_D))
    return tokens_NT, segments_S, count_N, documents_D


def write(folder: Path, num_shards: int, num_samples: int) -> float:
    """Write the benchmark's Dataset; CPU seconds of the writer alone."""
    records, spent_s = [], 0.0
    for number in range(num_shards):
        tokens_NT, segments_S, count_N, documents_D = shard_content(number, num_samples)
        start = time.process_time()
        writer = ShardWriter(folder, ShardSpec("web", number, SEQ_LEN, VOCAB_SIZE))
        writer.add_documents(documents_D)
        writer.add_samples(tokens_NT, segments_S, count_N)
        records.append(writer.close())
        spent_s += time.process_time() - start
    files = (InputFile("web", "a.jsonl"),)
    info = DatasetInfo(("web",), SEQ_LEN, VOCAB_SIZE, tuple(records), files, {"digest": "none"}, 0, "0")
    start = time.process_time()
    write_dataset_manifest(folder, info)
    return spent_s + time.process_time() - start


def batches(dataset: Dataset, size: int, num_tokens: int) -> list[NDArray[np.int64]]:
    """Random batches over all shards."""
    rng = np.random.default_rng(size)
    total = int(dataset.shard_samples("web").sum())
    return [rng.integers(0, total, size) for _ in range(max(1, num_tokens // SEQ_LEN // size))]


def stock_cpu_s(folder: Path, count: int) -> float | None:
    """CPU seconds of stock mosaicml-streaming for ``count`` random samples of these shards; None if not installed."""
    if importlib.util.find_spec("streaming") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from streaming import StreamingDataset

    stock = StreamingDataset(local=str(folder / "web"), shuffle=False, batch_size=1)
    index_N = np.random.default_rng(0).integers(0, len(stock), count).tolist()
    stock[0]
    return cpu_s(lambda: [stock[index] for index in index_N])


def reading_rows(folder: Path, num_tokens: int) -> Iterator[Row]:
    """Throughput at three batch sizes, with and without segments."""
    dataset = open_dataset(folder)
    stock_samples = 2000
    stock_s = stock_cpu_s(folder, stock_samples)
    stock = None if stock_s is None else stock_samples * SEQ_LEN / stock_s / 1e6
    rows_NT = dataset.read_samples("web", np.arange(int(dataset.shard_samples("web").sum())))
    for size in (8, 64, 512):
        many = batches(dataset, size, num_tokens)
        spent = paired_cpu_s(
            {
                "gather": lambda many=many: [rows_NT[sample_N] for sample_N in many],  # type: ignore[misc]
                "read": lambda many=many: [dataset.read_samples("web", n) for n in many],  # type: ignore[misc]
                "both": lambda many=many: [both_of(dataset, sample_N) for sample_N in many],  # type: ignore[misc]
            }
        )
        gather, read, both = (sum(map(len, many)) * SEQ_LEN / 1e6 / spent[name] for name in ("gather", "read", "both"))
        goals: list[dict[str, Any]] = [{}, {}]
        if size >= 64:
            goals = [{"target": (">=", 500), "ratio_target": (">=", 0.4)}, {"target": (">=", 200)}]
        name = f"read, verified, batch {size}"
        peer = "numpy row gather, in memory, unverified"
        yield row(name, read, "Mtok/CPU-s", peer=peer, peer_value=gather, **goals[0])
        yield row(name, read, "Mtok/CPU-s", peer="mosaicml-streaming, by index, unverified", peer_value=stock)
        yield row(f"read, verified, with segments and documents, batch {size}", both, "Mtok/CPU-s", **goals[1])


def both_of(dataset: Dataset, sample_N: NDArray[np.int64]) -> None:
    """Tokens and segments of a batch."""
    dataset.read_samples("web", sample_N)
    dataset.segments_of("web", sample_N)


def looking_rows(folder: Path) -> Iterator[Row]:
    """Opening, and from a document to its samples."""
    opening = cpu_s(lambda: open_dataset(folder), 20)
    yield row("open", 1e3 * opening, "ms CPU")
    dataset = open_dataset(folder)
    first = time.process_time()
    document_N = dataset.segments_of("web", np.arange(1000)).document_id_S
    dataset.samples_of_document(int(document_N[0]))
    yield row("first look-up, tables verified", 1e3 * (time.process_time() - first), "ms CPU")
    wanted = [int(document) for document in document_N[:300] if document]
    spent = cpu_s(lambda: [dataset.samples_of_document(document) for document in wanted])
    yield row("document -> samples", 1e3 * spent / len(wanted), "ms CPU", target=("<=", 1))
    step_N = np.random.default_rng(0).integers(0, int(dataset.shard_samples("web").sum()), 1024)
    dataset.segments_of("web", step_N)
    spent = cpu_s(lambda: dataset.segments_of("web", step_N))
    yield row("1,024 samples -> documents", 1e3 * spent, "ms CPU", target=("<=", 5))


def size_rows(folder: Path) -> Iterator[Row]:
    """Bytes of provenance, against the budget of 20 a segment + 12 a sample + 45 a document."""
    dataset = open_dataset(folder)
    source = dataset.manifest.sources[0]
    names = [path for path in (folder / "web").iterdir() if path.suffix in (".segments", ".docs")]
    size_bytes = sum(path.stat().st_size for path in [*names, folder / "documents.npy"])
    budget = 20 * source.num_segments + 12 * source.num_samples + 45 * source.num_documents
    yield row("provenance / its budget", size_bytes / budget, "", target=("<=", 1))
    yield row("provenance", size_bytes / source.num_tokens, "B/token")
    samples = dataset.shard_samples("web").tolist()
    header = sum(mds_header_size(count, SEQ_LEN, VOCAB_SIZE) for count in samples)
    yield row("shard headers / tokens", header / (2 * SEQ_LEN * sum(samples)), "", target=("<=", 0.002))


def fault_rows(folder: Path, num_faults: int) -> Iterator[Row]:
    """Random bit flips in random files: found by verifying with the file named, and by reading."""
    rng = np.random.default_rng(3)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    verified = read = 0
    for _ in range(num_faults):
        name = names[rng.integers(len(names))]
        data = bytearray((folder / name).read_bytes())
        original = bytes(data)
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (folder / name).write_bytes(data)
        verified += any(finding.file == name for finding in verify_dataset(folder))
        try:
            dataset = open_dataset(folder)
            both_of(dataset, np.arange(int(dataset.shard_samples("web").sum())))
            dataset.find_document(0)
            [dataset.read_file(file) for file in dataset.manifest.files_hashed]
        except DamageError:
            read += 1
        (folder / name).write_bytes(original)
    yield row("flipped bits found by verify, file named", verified / num_faults, "share", target=(">=", 1))
    yield row("flipped bits found by reading", read / num_faults, "share", target=(">=", 1))


def disk_rows(quick: bool) -> list[Row]:
    """All rows of this file."""
    num_shards, num_samples, num_tokens = (8, 1024, 40_000_000) if quick else (16, 8192, 400_000_000)
    folder = Path(tempfile.mkdtemp(prefix="tokenreel-shards-"))
    rows: list[Row] = []
    try:
        written_s = write(folder / "big", num_shards, num_samples)
        size_bytes = 2 * SEQ_LEN * num_shards * num_samples
        rows.append(row("write, hashed back, committed", size_bytes / written_s / 1e6, "MB/CPU-s"))
        rows += reading_rows(folder / "big", num_tokens)
        rows += looking_rows(folder / "big")
        rows += size_rows(folder / "big")
        spent_s = cpu_s(lambda: verify_dataset(folder / "big"), 1)
        rows.append(row("verify, everything twice hashed", size_bytes / spent_s / 1e6, "MB/CPU-s"))
        write(folder / "small", 2, 8)
        rows += fault_rows(folder / "small", 40 if quick else 400)
    finally:
        shutil.rmtree(folder)
    return rows
