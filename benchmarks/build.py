"""Build figures: packing and tokenising.

    python benchmarks/build.py [--quick] [--json]

CPU seconds are user + system of this process, medians of repeats. Packing is compared with concat-and-chunk (what it
cuts) and with
best fit decreasing over a sorted list of free spaces in plain Python (what it costs); tokenising with a bare
sentencepiece call.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dataprep.config import SentencepieceTrainConfig
from dataprep.pack import pack_window, window_borders
from dataprep.tokenizer_stage import train_sentencepiece
from loader.text.tokenizers import SentencepieceTokenizer

WINDOW_DOCUMENTS = 8192

Row = dict[str, Any]


def cpu_s(work: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of ``work``."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


def row(name: str, value: float, unit: str, peer: tuple[str, float] | None = None, target: str = "") -> Row:
    """One result; ``target`` like ``<= 25`` judges the value, ``ratio <= 0.1`` the ratio to the peer."""
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
        "ratio": round(ratio, 5) if ratio is not None else None,
        "target": target or None,
        "holds": holds,
    }


def pack_all(lengths_D: NDArray[np.int64], seq_len: int) -> tuple[int, int]:
    """Samples and padding of all windows."""
    borders = window_borders(lengths_D, WINDOW_DOCUMENTS, 1 << 40).tolist()
    windows = itertools.pairwise(borders)
    samples = sum(pack_window(lengths_D[a:b], seq_len, a).num_samples for a, b in windows)
    return samples, samples * seq_len - int(lengths_D.sum())


def plain_best_fit(lengths: list[int], seq_len: int) -> int:
    """Best fit decreasing over a sorted list of free spaces."""
    free: list[int] = []
    bins = 0
    for length in sorted(lengths, reverse=True):
        place = bisect.bisect_left(free, length)
        if place < len(free):
            space = free.pop(place) - length
        else:
            bins, space = bins + 1, seq_len - length
        bisect.insort(free, space)
    return bins


def concat_cuts(lengths_D: NDArray[np.int64], seq_len: int) -> float:
    """Share (%) of the documents that fit a sample which concat-and-chunk cuts."""
    stop_D = np.cumsum(lengths_D)
    cut_D = (stop_D - lengths_D) // seq_len != (stop_D - 1) // seq_len
    fits_D = lengths_D <= seq_len
    return float(100 * cut_D[fits_D].mean())


def packing(count: int, repeats: int) -> list[Row]:
    """Rows of packing: lognormal lengths, mean about 1,000 tokens."""
    rng = np.random.default_rng(0)
    lengths_D = np.clip(rng.lognormal(np.log(550), 1.1, count), 20, 200_000).astype(np.int64)
    few = lengths_D[:WINDOW_DOCUMENTS]
    rows = []
    for seq_len in (2048, 8192):
        pack_all(few, seq_len)
        own_s = cpu_s(lambda seq_len=seq_len: pack_all(lengths_D, seq_len), repeats)  # type: ignore[misc]
        short = np.minimum(few, seq_len).tolist()
        plain_s = cpu_s(lambda short=short, seq_len=seq_len: plain_best_fit(short, seq_len), 1)  # type: ignore[misc]
        samples, padding = pack_all(lengths_D, seq_len)
        peer = ("best fit in plain Python", 1e9 * plain_s / len(few))
        rows.append(row(f"packing, seq_len {seq_len}", 1e9 * own_s / count, "ns/document", peer, "ratio <= 0.1"))
        rows.append(row(f"padding, seq_len {seq_len}", 100 * padding / (samples * seq_len), "%", None, "<= 0.1"))
        cut = ("concat-and-chunk", concat_cuts(lengths_D, seq_len))
        rows.append(row(f"fitting documents cut, seq_len {seq_len}", _cut_by_packing(few, seq_len), "%", cut, "<= 0"))
    return rows


def _cut_by_packing(lengths_D: NDArray[np.int64], seq_len: int) -> float:
    packed = pack_window(lengths_D, seq_len, 0)
    pieces_D = np.bincount(packed.document_P, minlength=len(lengths_D))
    return float(100 * (pieces_D[lengths_D <= seq_len] > 1).mean())


def tokenising(limit_bytes: int, repeats: int) -> list[Row]:
    """Rows of tokenising: the standard library's source, our checked encoding against the bare library call."""
    import sentencepiece

    folder = Path(sysconfig.get_paths()["stdlib"])
    texts, total = [], 0
    for path in sorted(folder.glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="ignore"))
        total += len(texts[-1].encode())
        if total > limit_bytes:
            break
    config = SentencepieceTrainConfig(vocab_size=3072, sample_bytes=1)
    rows = []
    model = b""

    def train() -> None:
        nonlocal model
        model = train_sentencepiece(iter(texts), config)

    rows.append(row("training a 3,072 BPE", cpu_s(train, 1) / total * 1e6, "CPU s/MB"))
    tokenizer = SentencepieceTokenizer(model)
    bare = sentencepiece.SentencePieceProcessor(model_proto=model)
    own_s = cpu_s(lambda: [tokenizer.encode(text) for text in texts], repeats)
    bare_s = cpu_s(lambda: [bare.encode(text) for text in texts], repeats)
    peer = ("sentencepiece encode", total / bare_s / 1e6)
    rows.append(row("encoding, every byte checked", total / own_s / 1e6, "MB/s", peer, "ratio >= 0.7"))
    return rows


def main() -> None:
    """Measure, then print JSON or a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    repeats = 3 if options.quick else 5
    rows = packing(200_000 if options.quick else 2_000_000, repeats)
    rows += tokenising(500_000 if options.quick else 4_000_000, repeats)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for r in rows:
        peer = f"{r['peer']}: {r['peer_value']:,}" if r["peer"] else ""
        verdict = {True: "holds", False: "MISSED", None: ""}[r["holds"]]
        print(f"{r['name']:<40} {r['value']:>12,} {r['unit']:<12} {peer:<40} {r['target'] or '':<14} {verdict}")


if __name__ == "__main__":
    main()
