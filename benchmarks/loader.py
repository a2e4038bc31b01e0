"""Loader figures: throughput beside a numpy row gather, a bare memmap and mosaicml-streaming; seek, start-up at a
trillion tokens, look-up, ledger.

    python benchmarks/loader.py [--quick] [--json]

CPU seconds are user + system of this process. Peer figures are measured here, in the same run; where there is no peer
the row judges the absolute figure, and the machine's memcpy and xxh3 rates are printed beside it. The trillion-token
Dataset is real where it is touched: its other shards exist in the manifest only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import Row, cpu_s, print_rows, row
from loader.ledger import LedgerRecord, LedgerWriter
from loader.lookup import document_steps
from loader.order import SkipList, make_cursor
from loader.run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan
from loader.shards import DatasetInfo, InputFile, ShardSpec, ShardWriter, open_dataset, write_dataset_manifest
from loader.shards.access import npy_bytes
from loader.shards.documents import encode_documents
from loader.shards.layout import DOCUMENT_DTYPE, DOCUMENT_INDEX_DTYPE, SEGMENT_DTYPE, SHARD_DTYPE, ShardName, mds_size
from loader.shards.manifest import FileRecord, Manifest, SourceInfo, encode_manifest
from loader.shards.segments import SegmentFile, encode_segments
from loader.sources import Sources, open_sources
from loader.stream.batch import read_batch, read_segments, read_tokens
from loader.stream.stream import Stream, StreamConfig

SEQ_LEN = 2048
VOCAB_SIZE = 50_000
SEGMENT_TOKENS = 512
TRILLION_SHARDS, TRILLION_SHARD_SAMPLES = 29_786, 16_384


def _segments(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    per_sample = SEQ_LEN // SEGMENT_TOKENS
    segments_S = np.zeros(num_samples * per_sample, SEGMENT_DTYPE)
    segments_S["token_start"] = np.tile(np.arange(per_sample) * SEGMENT_TOKENS, num_samples)
    segments_S["document_row"] = np.arange(len(segments_S))
    segments_S["byte_count"] = 4 * SEGMENT_TOKENS
    return segments_S, np.full(num_samples, per_sample)


def _documents(first: int, count: int, file: int) -> np.ndarray:
    documents_D = np.zeros(count, DOCUMENT_DTYPE)
    numbers = np.arange(first, first + count, dtype=np.uint64)
    documents_D["id"] = numbers * np.uint64(0x9E3779B97F4A7C15)
    documents_D["record"], documents_D["record_start"], documents_D["file"] = numbers, numbers * np.uint64(2048), file
    return documents_D


def make_small(folder: Path, shard_samples: int) -> Sources:
    """Two sources of two shards, four segments a sample."""
    rng = np.random.default_rng(0)
    records, first = [], 1
    for file, source in enumerate(("web", "code")):
        for number in range(2):
            writer = ShardWriter(folder, ShardSpec(source, number, SEQ_LEN, VOCAB_SIZE))
            segments_S, counts_N = _segments(shard_samples)
            writer.add_documents(_documents(first, len(segments_S), file))
            first += len(segments_S)
            tokens_NT = rng.integers(0, VOCAB_SIZE, (shard_samples, SEQ_LEN), np.uint16)
            writer.add_samples(tokens_NT, segments_S, counts_N)
            records.append(writer.close())
    files = (InputFile("web", "a.jsonl"), InputFile("code", "a.jsonl"))
    tokenizer = {"digest": "0" * 32, "eos_id": 0}
    info = DatasetInfo(("web", "code"), SEQ_LEN, VOCAB_SIZE, tuple(records), files, tokenizer, 0, "0")
    write_dataset_manifest(folder, info)
    return open_sources([open_dataset(folder)])


def _plan(sources: Sources, global_batch: int) -> Any:
    data = DataConfig(
        ("x",),
        (BatchStageConfig(0, global_batch),),
        mixture=(MixtureStageConfig(0, dict.fromkeys(sources.names, 1.0)),),
    )
    return build_plan(data, sources, SkipList())


def _machine() -> tuple[float, float]:
    """memcpy and xxh3-64 rates, GB per CPU second."""
    data, out = np.ones(1 << 26, np.uint8), np.empty(1 << 26, np.uint8)
    np.copyto(out, data)
    copy_s = cpu_s(lambda: np.copyto(out, data), 5)
    hash_s = cpu_s(lambda: xxhash.xxh3_64_intdigest(data), 5)
    return data.nbytes / copy_s / 1e9, data.nbytes / hash_s / 1e9


def throughput(sources: Sources, folder: Path, steps: int) -> list[Row]:
    """Mtok per CPU second at 512 samples a step, all shards in the page cache; the peer runs in turns with ours."""
    plan = _plan(sources, 512)
    positions = [plan.step_positions(step) for step in range(steps)]
    maps, base = [], {}
    for number, source in enumerate(sources.names):
        for shard in range(2):
            path = folder / source / ShardName(shard).mds
            samples = int(sources.shard_samples(source)[shard])
            start = path.stat().st_size - samples * SEQ_LEN * 2
            base[number, shard] = sum(len(one) for one in maps)
            maps.append(np.memmap(path, np.uint16, "r", start, (samples, SEQ_LEN)))
    all_rows = np.concatenate(maps)
    per_shard = int(sources.shard_samples("web")[0])
    rows = []
    for some in positions:
        refs = plan.samples(some)
        rows.append(refs.sample_N + refs.source_N * 2 * per_shard)
    num_tokens = steps * 512 * SEQ_LEN / 1e6
    ours, full, peer, streamed = [], [], [], []
    for _ in range(3):
        peer.append(cpu_s(lambda: [all_rows[index] for index in rows], 1))
        ours.append(cpu_s(lambda: [read_tokens(plan, sources, some) for some in positions], 1))
        full.append(cpu_s(lambda: [read_batch(plan, sources, step) for step in range(steps)], 1))

        def run() -> None:
            with Stream(plan, sources, StreamConfig(threads=1, prefetch_steps=2)) as stream:
                for _ in range(steps):
                    next(stream)

        streamed.append(cpu_s(run, 1))
    gather = num_tokens / min(peer)
    return [
        row("loader, one thread, verified, no masks", num_tokens / min(ours), "Mtok/CPU-s", peer="numpy row gather",
            peer_value=gather, target=(">=", 500), ratio_target=(">=", 0.4)),
        row("loader, labels, positions, cu_seqlens", num_tokens / min(full), "Mtok/CPU-s", peer="numpy row gather",
            peer_value=gather, target=(">=", 200)),
        row("stream, one prefetch thread", num_tokens / min(streamed), "Mtok/CPU-s", peer="numpy row gather",
            peer_value=gather, target=(">=", 200)),
    ]  # fmt: skip


def side_by_side(sources: Sources, folder: Path, repeat: int) -> list[Row]:
    """The same samples through mosaicml-streaming with shuffle, a bare memmap in random order, and ours, in turns."""
    num_samples = sum(int(sources.shard_samples(name).sum()) for name in sources.names)
    num_tokens, steps = num_samples * SEQ_LEN / 1e6, num_samples // 512
    plan = _plan(sources, 512)
    maps = []
    for source in sources.names:
        for shard, samples in enumerate(sources.shard_samples(source).tolist()):
            path = folder / source / ShardName(shard).mds
            maps.append(
                np.memmap(path, np.uint16, "r", path.stat().st_size - samples * SEQ_LEN * 2, (samples, SEQ_LEN))
            )
    picks = np.random.default_rng(0).permutation(
        [(one, row) for one in range(len(maps)) for row in range(len(maps[one]))]
    )

    def bare() -> None:
        for start in range(0, len(picks), 512):
            np.stack([maps[one][row] for one, row in picks[start : start + 512].tolist()])

    def ours() -> None:
        with Stream(plan, sources, StreamConfig(threads=1, prefetch_steps=2)) as stream:
            for _ in range(steps):
                next(stream)

    bare_s, ours_s, mosaic_s = [], [], []
    for _ in range(repeat):
        bare_s.append(cpu_s(bare, 1))
        ours_s.append(cpu_s(ours, 1))
        mosaic_s.append(_mosaic_cpu_s(folder, sources.names))
    found = [spent for spent in mosaic_s if spent is not None]
    mosaic = num_tokens / min(found) if found else None
    rate, against = num_tokens / min(ours_s), {"peer": "mosaicml-streaming, shuffle", "peer_value": mosaic}
    return [
        row("side by side: ours (verified, labels, digests)", rate, "Mtok/CPU-s", **against, ratio_target=(">=", 20)),
        row("side by side: bare memmap, random rows", num_tokens / min(bare_s), "Mtok/CPU-s", **against),
    ]


def _mosaic_cpu_s(folder: Path, sources: Sequence[str]) -> float | None:
    """CPU seconds of one shuffled epoch in a process of its own, imports and start left out; None: not installed."""
    command = [sys.executable, __file__, "--mosaic", str(folder), ",".join(sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else None


def mosaic_epoch(folder: Path, sources: Sequence[str]) -> None:
    """Child process: iterate stock ``StreamingDataset`` as its users do; prints CPU seconds."""
    from streaming import Stream as StockStream
    from streaming import StreamingDataset

    streams = [StockStream(local=str(folder / source)) for source in sources]
    dataset = StreamingDataset(streams=streams, shuffle=True, batch_size=8)
    print(json.dumps(cpu_s(lambda: [sample["tokens"] for sample in dataset], 1)))


def seek(sources: Sources, repeat: int) -> list[Row]:
    """From a state to the samples of its step: the Cursor read and checked, and what the step reads known."""
    plan = _plan(sources, 512)
    steps = np.random.default_rng(1).integers(0, 1 << 20, repeat).tolist()
    with Stream(plan, sources) as stream:
        states = [make_cursor(plan, sources.digest_by_source, next_step=step).to_json() for step in steps]

        def run() -> None:
            for state in states:
                stream.load_state_dict(state)
                plan.samples(plan.step_positions(stream.next_step))

        run()
        spent = cpu_s(run)
    return [row("seek to a random step", 1e3 * spent / repeat, "CPU-ms", target=("<=", 1))]


def look_up(sources: Sources, repeat: int) -> list[Row]:
    """Steps to documents and back, in closed form, tables loaded."""
    plan = _plan(sources, 1024)
    steps = range(100, 100 + repeat)
    read_segments(plan, sources, plan.step_positions(99))
    forward = cpu_s(lambda: [read_segments(plan, sources, plan.step_positions(s)) for s in steps])
    segments = read_segments(plan, sources, plan.step_positions(7))
    documents = np.unique(segments.document_id_S)[:repeat].tolist()
    stop = 2 * sum(int(sources.shard_samples(name).sum()) for name in sources.names)
    backward = cpu_s(lambda: [document_steps(plan, sources, d, stop) for d in documents])
    return [
        row("step of 1,024 samples -> documents", 1e3 * forward / repeat, "CPU-ms", target=("<=", 5)),
        row("document -> steps (two epochs)", 1e3 * backward / len(documents), "CPU-ms", target=("<=", 1)),
    ]


def ledger(sources: Sources, folder: Path, records: int) -> list[Row]:
    """A record a step; a step of the demo's model takes 141 CPU-ms, so 0.1 % of a step are 141 CPU-us.

    Provenance: all that is read and computed for the segments of a data rank's 31 samples of 2,048 tokens (an eighth of
    half a million tokens), borders and masks that training needs anyway included; readers do it beside the training.
    Both as a share of a step of one second, the shortest that models from 1.3B on have over such batches.
    """
    plan = _plan(sources, 8 * 31)
    positions = [plan.step_positions(step)[:31] for step in range(records // 10)]
    provenance_s = cpu_s(lambda: [read_segments(plan, sources, own) for own in positions]) / len(positions)
    with LedgerWriter(folder / "ledger", 0, 0, 4) as writer:
        spent = cpu_s(
            lambda: [
                writer.append(LedgerRecord(step, step * 8, step * 8 + 8, 2000, step, 3.0, 1.0, source_loss=[1.0] * 4,
                                           source_labels=[500] * 4)) for step in range(records)
            ],
            1,
        )  # fmt: skip
    return [
        row("ledger record", 1e6 * spent / records, "CPU-us", target=("<=", 141)),
        row("provenance of a rank's 31 samples", 1e6 * provenance_s, "CPU-us"),
        row("provenance and ledger, share of a step of 1 s", provenance_s + spent / records, "", target=("<=", 0.001)),
    ]


def make_trillion(folder: Path, fractions: tuple[float, ...]) -> int:
    """A manifest of 1e12 tokens; the shards that the steps at ``fractions`` of it touch are real. Returns its steps."""
    source = folder / "web"
    source.mkdir(parents=True)
    samples = TRILLION_SHARD_SAMPLES
    first = ShardWriter(folder, ShardSpec("web", 0, SEQ_LEN, VOCAB_SIZE))
    segments_S, counts_N = _segments(samples)
    first.add_documents(_documents(1, len(segments_S), 0))
    first.add_samples(np.zeros((samples, SEQ_LEN), np.uint16), segments_S, counts_N)
    record = first.close()
    zero_hash = xxhash.xxh3_64_intdigest(bytes(2 * SEQ_LEN))
    offsets = np.arange(samples + 1, dtype=np.uint32) * counts_N[0].astype(np.uint32)
    table = SegmentFile(np.full(samples, zero_hash, "<u8"), offsets.astype("<u4"), segments_S)
    rows_R = np.zeros(TRILLION_SHARDS, SHARD_DTYPE)
    for name in ("num_samples", "num_segments", "num_documents", "num_tokens", "max_segments", "size_bytes"):
        rows_R[name] = getattr(record, name)
    rows_R["number"] = np.arange(TRILLION_SHARDS)
    rows_R["mds_hash"] = np.frombuffer(bytes.fromhex(record.mds_hash), np.uint8)
    assert record.size_bytes == mds_size(samples, SEQ_LEN, VOCAB_SIZE)
    num_steps = TRILLION_SHARDS * samples // 512
    for shard in _touched(fractions, num_steps):
        name = ShardName(shard)
        if shard:
            os.link(source / ShardName(0).mds, source / name.mds)
        for file, data in (
            (name.segments, b"".join(encode_segments(table, SEQ_LEN, shard))),
            (name.docs, b"".join(encode_documents(_documents(1 + shard * len(segments_S), len(segments_S), 0), shard))),
        ):
            (source / file).write_bytes(data)
            field = "segments_hash" if file == name.segments else "docs_hash"
            rows_R[field][shard] = np.frombuffer(xxhash.xxh3_128_digest(data), np.uint8)
    files = {
        "shards.npy": npy_bytes(rows_R),
        "documents.npy": npy_bytes(np.zeros(0, DOCUMENT_INDEX_DTYPE)),
        "files.txt": b"a.jsonl\t-\t-\n",
        "web/index.json": b"{}",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    total = {name: int(rows_R[name].sum()) for name in ("num_samples", "num_segments", "num_tokens")}
    info = SourceInfo(
        "web", TRILLION_SHARDS, **total, num_documents=total["num_segments"], share=1.0, file_start=0, file_stop=1
    )
    hashed = {name: FileRecord(len(data), xxhash.xxh3_128_hexdigest(data)) for name, data in files.items()}
    tokenizer, order = {"digest": "0", "eos_id": 0}, {"window_shards": 8, "slices": 2}
    most = SEQ_LEN // SEGMENT_TOKENS
    manifest = Manifest((info,), SEQ_LEN, VOCAB_SIZE, "uint16", most, tokenizer, 0, {}, {}, "0", {}, order, hashed)
    (folder / "manifest.json").write_bytes(encode_manifest(manifest)[0])
    return num_steps


def _touched(fractions: tuple[float, ...], num_steps: int) -> list[int]:
    from loader.order import BatchStage, MixtureStage, Plan, PlanConfig, SourceShape

    shape = SourceShape("web", np.full(TRILLION_SHARDS, TRILLION_SHARD_SAMPLES))
    plan = Plan(PlanConfig((shape,), 17, (MixtureStage(0, {"web": 1.0}),), (BatchStage(0, 512),)), SkipList())
    steps = [int(fraction * num_steps) for fraction in fractions]
    samples_N = np.concatenate(
        [plan.samples(plan.step_positions(step + extra)).sample_N for step in steps for extra in range(2)]
    )
    return sorted({0, *np.unique(samples_N // TRILLION_SHARD_SAMPLES).tolist()})


def first_batch(folder: Path, step: int) -> None:
    """Child process: from imports alone to the first batch at ``step``; prints CPU seconds and anonymous memory."""

    def anonymous_mb() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

    before_mb, start = anonymous_mb(), time.process_time()
    sources = open_sources([open_dataset(folder)])
    batch = read_batch(_plan(sources, 512), sources, step)
    spent = time.process_time() - start
    print(json.dumps({"cpu_s": spent, "anonymous_mb": anonymous_mb() - before_mb, "digest": batch.token_digest}))


def start_up(folder: Path, repeat: int) -> list[Row]:
    """First batch of a fresh process at the start and at 90 % of a trillion tokens."""
    fractions = (0.0, 0.1, 0.9)
    num_steps = make_trillion(folder, fractions)

    def measure(fraction: float) -> dict[str, float]:
        step = str(int(fraction * num_steps))
        command = [sys.executable, __file__, "--first-batch", str(folder), step]
        result: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return result

    measure(0.0)
    turns = []
    for turn in range(repeat):  # to and fro, so that a machine that slows down favours nobody
        order = fractions if turn % 2 else fractions[::-1]
        found = {fraction: measure(fraction) for fraction in order}
        turns.append([found[fraction] for fraction in fractions])
    start, early, late = (min(run["cpu_s"] for run in runs) for runs in zip(*turns, strict=True))
    memory = max(run["anonymous_mb"] for runs in turns for run in runs)
    return [
        row("first batch (512) at 1 T tokens", start, "CPU-s", target=("<=", 0.25)),
        row("... most anonymous memory", memory, "MB", target=("<=", 100)),
        # At the very start half as many shards are live as later on, so half as many tables are read: no target.
        row("resume at 90 % (16 shards) / start (8)", late / start, "ratio"),
        row("resume at 90 % / at 10 %", late / early, "ratio", target=("<=", 1.1)),
    ]


def main() -> None:
    """Run everything and print rows or a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first-batch", nargs=2, metavar=("FOLDER", "STEP"), help=argparse.SUPPRESS)
    parser.add_argument("--mosaic", nargs=2, metavar=("FOLDER", "SOURCES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mosaic:
        mosaic_epoch(Path(options.mosaic[0]), options.mosaic[1].split(","))
        return
    if options.first_batch:
        first_batch(Path(options.first_batch[0]), int(options.first_batch[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = make_small(folder / "small", 2048 if options.quick else 8192)
        rows = throughput(sources, folder / "small", 8 if options.quick else 60)
        rows += side_by_side(sources, folder / "small", 1 if options.quick else 3)
        rows += seek(sources, 100 if options.quick else 1000)
        rows += look_up(sources, 20 if options.quick else 100)
        rows += ledger(sources, folder, 2000)
        rows += start_up(folder / "trillion", 6 if options.quick else 8)
    print_rows(rows, options.json)
    if not options.json:
        copy_rate, hash_rate = _machine()
        print(f"machine: memcpy {copy_rate:.1f} GB per CPU-s, xxh3-64 {hash_rate:.1f} GB per CPU-s")


if __name__ == "__main__":
    main()
