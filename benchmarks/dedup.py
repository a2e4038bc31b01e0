"""Read and dedup figures, one core: JSONL to Arrow, signatures, JSONL to verified decisions, and their correctness.

    python benchmarks/dedup.py [--quick] [--json]

The corpus is the .py, .rst and .txt files of the running Python installation as JSONL. Rates are MB of text per CPU
second (user + system of this process), best of the repeats; peers run in the same process on a slice that they can
do in seconds. Truth is exact Jaccard similarity over all pairs of a slice.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dataprep.dedup.config import DecideConfig, DedupConfig, HoldoutConfig, MinHashConfig, SignConfig
from dataprep.dedup.steps import DecideDocuments, SignDocuments
from dataprep.documents import InputFile, Status
from dataprep.formats import read_file
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.jaccard import Sets, similarity_of
from dataprep.kernels.minhash import affine_permutations

Row = dict[str, Any]
THRESHOLD = 0.8


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Fewest CPU seconds of ``work``."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def row(name: str, value: float, unit: str, peer: tuple[str, float] | None = None, target: str = "") -> Row:
    """One result; ``target`` like ``>= 25`` judges the value, ``ratio >= 2`` the ratio to the peer."""
    ratio = value / peer[1] if peer and peer[1] else None
    holds = None
    if target:
        relation, bound = target.removeprefix("ratio ").split()
        judged = ratio if target.startswith("ratio") else value
        holds = judged is not None and (judged <= float(bound) if relation == "<=" else judged >= float(bound))
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "peer": peer[0] if peer else None,
        "peer_value": round(peer[1], 4) if peer else None,
        "ratio": round(ratio, 4) if ratio is not None else None,
        "target": target or None,
        "holds": holds,
    }


def gather(path: Path, limit_bytes: int) -> list[str]:
    """Write the corpus as JSONL, standard library first; returns its texts."""
    paths = sysconfig.get_paths()
    texts: list[str] = []
    total = 0
    with path.open("w", encoding="utf-8") as file:
        for root in dict.fromkeys((paths["stdlib"], paths["purelib"])):
            for source in sorted(Path(root).rglob("*")):
                inside = root == paths["stdlib"] and "site-packages" in source.parts
                if inside or source.suffix not in (".py", ".rst", ".txt") or not source.is_file():
                    continue
                text = source.read_text(encoding="utf-8", errors="ignore")
                if text.strip() and total < limit_bytes:
                    record = {"id": str(len(texts)), "path": source.name, "text": text}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    texts.append(text)
                    total += len(text.encode())
    return texts


def machine(repeats: int) -> list[Row]:
    """What absolute figures may be judged against: this machine's copying and hashing."""
    data = np.zeros(64 << 20, np.uint8)
    target = np.empty_like(data)
    copy_s = cpu_s(lambda: np.copyto(target, data), 5 * repeats)
    hash_s = cpu_s(lambda: xxhash.xxh3_64_intdigest(data), 5 * repeats)
    return [row("memcpy", data.nbytes / copy_s / 1e6, "MB/s"), row("xxh3-64", data.nbytes / hash_s / 1e6, "MB/s")]


def batches(inputs: InputFile) -> Iterator[pa.LargeStringArray]:
    for batch in read_file(inputs, 0):
        yield batch.text


def reading(inputs: InputFile, text_mb: float, repeats: int) -> list[Row]:
    """JSONL to Arrow texts, strict, beside pyarrow.json (one thread) and orjson or json line by line."""
    import pyarrow.json as pj

    schema = pa.schema([("text", pa.large_string())])
    options = {
        "read_options": pj.ReadOptions(use_threads=False, block_size=8 << 20),
        "parse_options": pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    }
    peer_s = cpu_s(lambda: sum(len(b) for b in pj.open_json(str(inputs.location), **options)), repeats)
    own_s = cpu_s(lambda: sum(len(text) for text in batches(inputs)), repeats)
    peer = ("pyarrow.json, not strict", text_mb / peer_s)
    return [
        row("read: JSONL to Arrow, strict", text_mb / own_s, "MB/s", None, ">= 1500"),
        row("read: JSONL to Arrow, strict", text_mb / own_s, "MB/s", peer, "ratio >= 2"),
    ]


def signing(inputs: InputFile, texts: list[str], text_mb: float, repeats: int) -> list[Row]:
    """Arrow to MinHash 128 beside datasketch and datatrove."""
    whole = list(batches(inputs))
    hasher, permutations = DocumentHasher(), affine_permutations(128, 1)
    own_s = cpu_s(lambda: [hasher.sign(text, permutations) for text in whole], repeats)
    few = texts[:: max(1, len(texts) // 200)]
    few_mb = sum(len(text.encode()) for text in few) / 1e6
    sketch_s = cpu_s(lambda: [datasketch_signature(text) for text in few], 1)
    trove_s = cpu_s(datatrove_signatures(few[::4]), 1)
    trove_mb = sum(len(text.encode()) for text in few[::4]) / 1e6
    own = text_mb / own_s
    return [
        row("tokenise, 5-grams, MinHash 128", own, "MB/s", None, ">= 700"),
        row("tokenise, 5-grams, MinHash 128", own, "MB/s", ("datasketch", few_mb / sketch_s), "ratio >= 25"),
        row("tokenise, 5-grams, MinHash 128", own, "MB/s", ("datatrove", trove_mb / trove_s), "ratio >= 500"),
    ]


def datasketch_signature(text: str) -> NDArray[np.uint32]:
    """The usual recipe: words by white space, 5-grams, xxh32."""
    import datasketch

    words = text.lower().split()
    sketch = datasketch.MinHash(num_perm=128, hashfunc=xxhash.xxh32_intdigest)
    sketch.update_batch([" ".join(words[i : i + 5]).encode() for i in range(max(1, len(words) - 4))])
    values: NDArray[np.uint32] = sketch.hashvalues
    return values


def datatrove_signatures(texts: list[str]) -> Callable[[], object]:
    """Its first stage without the writing of files."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    step = MinhashDedupSignature("/tmp", MinhashConfig(n_grams=5, num_buckets=25, hashes_per_bucket=5))
    step.get_signature(step.get_shingles("the first text loads the tokenizer's model " * 3))
    return lambda: [step.get_signature(step.get_shingles(text)) for text in texts if len(text.split()) >= 8]


def decide(inputs: InputFile, work: Path, config: DecideConfig) -> None:
    """Both stages into a fresh folder."""
    list(SignDocuments([inputs], SignConfig(config.ingest, config.dedup), work / "signed").run())
    list(DecideDocuments([inputs], config, work / "signed", work / "decided").run())


def survivors(inputs: InputFile, work: Path, parquet: bool) -> int:
    """Read what is kept again; optionally write it as zstd Parquet."""
    import pyarrow.parquet as pq

    keep_R = np.load(work / "decided/status.00000.npy") == Status.KEPT
    schema = pa.schema([("text", pa.large_string())])
    writer = (
        pq.ParquetWriter(work / "kept.parquet", schema, compression="zstd", compression_level=1) if parquet else None
    )
    total = 0
    for batch in read_file(inputs, 0, keep_R=keep_R):
        total += len(batch.text)
        if writer is not None:
            writer.write_batch(pa.record_batch([batch.text], schema=schema))
    if writer is not None:
        writer.close()
    return total


def deciding(inputs: InputFile, folder: Path, text_mb: float, repeats: int) -> list[Row]:
    """JSONL to verified decisions, and on to survivors."""
    config = DecideConfig(holdout=HoldoutConfig(0.0))
    counter = iter(range(1000))
    decide_s = cpu_s(lambda: decide(inputs, folder / f"run{next(counter)}", config), repeats)
    read_s = cpu_s(lambda: survivors(inputs, folder / "run0", False), repeats)
    write_s = cpu_s(lambda: survivors(inputs, folder / "run0", True), repeats)
    held_s = cpu_s(lambda: decide(inputs, folder / f"run{next(counter)}", DecideConfig()), repeats)
    return [
        row("JSONL to verified decisions", text_mb / decide_s, "MB/s", None, ">= 250"),
        row("JSONL to decisions with linked hold-out", text_mb / held_s, "MB/s"),
        row("JSONL to survivors at the tokeniser", text_mb / (decide_s + read_s), "MB/s", None, ">= 220"),
        row("JSONL to survivors in zstd Parquet", text_mb / (decide_s + write_s), "MB/s", None, ">= 150"),
    ]


@numba.njit
def _count_pairs(sets: Sets, kept_N: NDArray[np.bool_], threshold: float) -> int:
    """Pairs of kept documents at or above the threshold, over all pairs."""
    count = 0
    for a in range(kept_N.shape[0]):
        for b in range(a):
            if kept_N[a] and kept_N[b]:
                count += similarity_of(sets, a, b, threshold) >= threshold
    return count


def correctness(texts: list[str], folder: Path) -> list[Row]:
    """Wrong removals and leaked pairs by exact truth over all pairs; the removed set under another seed."""
    import pyarrow.parquet as pq

    path = folder / "slice.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    inputs = InputFile("slice", 0, str(folder), path.name)
    removed = []
    for seed in (1, 2):
        dedup = DedupConfig(minhash=MinHashConfig(seed=seed))
        decide(inputs, folder / f"seed{seed}", DecideConfig(dedup=dedup, holdout=HoldoutConfig(0.0)))
        removed.append(np.load(folder / f"seed{seed}/decided/status.00000.npy") != Status.KEPT)
    value_S, sizes = DocumentHasher().sets(pa.array(texts, pa.large_string()))
    stop_N = np.cumsum(sizes)
    sets = Sets(value_S, stop_N - sizes, stop_N)
    table = pq.read_table(folder / "seed1/decided/removed.parquet")
    wrong = sum(
        bool(removed[0][witness]) or (texts[one] != texts[witness] and jaccard_of(sets, one, witness) < THRESHOLD)
        for one, witness in zip(table["record"].to_pylist(), table["witness_record"].to_pylist(), strict=True)
    )
    union = int((removed[0] | removed[1]).sum())
    overlap = int((removed[0] & removed[1]).sum()) / union if union else 1.0
    leaked = _count_pairs(sets, ~removed[0], THRESHOLD)
    return [
        row(f"wrong removals of {table.num_rows}", wrong, "documents", None, "<= 0"),
        row(f"leaked pairs among {len(texts)} documents", leaked, "pairs", None, "<= 0"),
        row("overlap of removals under two seeds", overlap, "share", None, ">= 0.999"),
        row("signatures and bands", (128 * 4 + 25 * 8) / 1000, "GB/M documents", None, "<= 0.75"),
    ]


def jaccard_of(sets: Sets, a: int, b: int) -> float:
    """Exact similarity by Python sets."""
    first, second = (set(sets.value_S[sets.start_N[d] : sets.stop_N[d]].tolist()) for d in (a, b))
    return len(first & second) / max(1, len(first | second))


def measure(quick: bool) -> list[Row]:
    """All rows."""
    repeats = 2 if quick else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = gather(folder / "corpus.jsonl", (25 if quick else 200) * 1_000_000)
        inputs = InputFile("installation", 0, name, "corpus.jsonl")
        text_mb = sum(len(text.encode()) for text in texts) / 1e6
        decide(inputs, folder / "warm", DecideConfig())  # compiles, or loads what was compiled
        rows = machine(repeats)
        rows += reading(inputs, text_mb, repeats)
        rows += signing(inputs, texts, text_mb, repeats)
        rows += deciding(inputs, folder, text_mb, repeats)
        rows += correctness(texts[:: max(1, len(texts) // (1500 if quick else 6000))], folder)
    return rows


def main() -> None:
    """Measure, then print JSON or a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    warnings.filterwarnings("ignore")
    rows = measure(options.quick)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for r in rows:
        peer = f"{r['peer']}: {r['peer_value']:,}" if r["peer"] else ""
        verdict = {True: "holds", False: "MISSED", None: ""}[r["holds"]]
        print(f"{r['name']:<42} {r['value']:>12,} {r['unit']:<15} {peer:<36} {r['target'] or '':<14} {verdict}")


if __name__ == "__main__":
    main()
