"""Packing documents into samples: cost beside OLMo-core's packer, padding and cuts beside concat-and-chunk."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_peers import ensure_environment
from benchmarks.rows import Row, cpu_s, row
from dataprep.pack import PACKERS, pack_window, window_borders

__all__ = ["pack_rows"]

WINDOW_DOCUMENTS = 8192
PEER = "OLMo-core InstancePacker"
PEER_DOCUMENTS = 50_000


def pack_all(lengths_D: NDArray[np.int64], seq_len: int, strategy: str = "best_fit") -> tuple[int, int]:
    """Samples and padding of all windows."""
    borders = window_borders(lengths_D, WINDOW_DOCUMENTS, 1 << 40).tolist()
    samples = sum(pack_window(lengths_D[a:b], seq_len, a, strategy).num_samples for a, b in itertools.pairwise(borders))
    return samples, samples * seq_len - int(lengths_D.sum())


def cut_share(lengths_D: NDArray[np.int64], seq_len: int, strategy: str) -> float:
    """Share (%) of the documents that fit a sample which a strategy cuts, over the first windows."""
    few = lengths_D[: 8 * WINDOW_DOCUMENTS]
    cut = fits = 0
    for a in range(0, len(few), WINDOW_DOCUMENTS):
        window_D = few[a : a + WINDOW_DOCUMENTS]
        packed = pack_window(window_D, seq_len, a, strategy)
        pieces_D = np.bincount(packed.document_P, minlength=len(window_D))
        fits_D = window_D <= seq_len
        cut += int((pieces_D[fits_D] > 1).sum())
        fits += int(fits_D.sum())
    return 100 * cut / fits


def peer_ns(lengths_D: NDArray[np.int64], seq_len: int, venvs: Path) -> tuple[float, int] | None:
    """Nanoseconds a piece and bins of OLMo-core's packer on lengths that fit; None where it cannot run."""
    python = ensure_environment("olmo-core", "", venvs)
    if python is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        lengths, result = Path(scratch) / "lengths.npy", Path(scratch) / "result.json"
        np.save(lengths, lengths_D)
        script = Path(__file__).with_name("peers") / "pack.py"
        done = subprocess.run([str(python), str(script), str(lengths), str(seq_len), str(result)], check=False)
        if done.returncode:
            return None
        measured = json.loads(result.read_text(encoding="utf-8"))
    return 1e9 * measured["cpu_s"] / len(lengths_D), measured["bins"]


def pack_rows(quick: bool, venvs: Path) -> Iterator[Row]:
    """Lognormal lengths, mean about 1,000 tokens."""
    count, repeats = (200_000, 3) if quick else (2_000_000, 5)
    rng = np.random.default_rng(0)
    lengths_D = np.clip(rng.lognormal(np.log(550), 1.1, count), 20, 200_000).astype(np.int64)
    for seq_len in (2048, 8192):
        pack_all(lengths_D[:WINDOW_DOCUMENTS], seq_len)
        spent_s = cpu_s(lambda seq_len=seq_len: pack_all(lengths_D, seq_len), repeats)  # type: ignore[misc]
        short_D = np.minimum(lengths_D[:PEER_DOCUMENTS], seq_len)
        peer = peer_ns(short_D, seq_len, venvs)
        goals = {"target": ("<=", 25), "ratio_target": ("<=", 0.01)}
        value = 1e9 * spent_s / count
        yield row(f"packing, seq_len {seq_len}", value, "ns/document", peer=PEER, peer_value=peer and peer[0], **goals)
        bins = pack_window(short_D, seq_len, 0).num_samples
        yield row(f"bins of {PEER_DOCUMENTS:,} pieces", bins, "", peer=PEER, peer_value=peer and peer[1],
                  ratio_target=("<=", 1.0))  # fmt: skip
        for strategy in sorted(PACKERS):
            samples, padding = pack_all(lengths_D, seq_len, strategy)
            chosen = strategy == "best_fit"
            yield row(f"padding, {strategy}, seq_len {seq_len}", 100 * padding / (samples * seq_len), "%",
                      target=("<=", 0.1) if chosen else None)  # fmt: skip
            cut = cut_share(lengths_D, seq_len, strategy)
            yield row(f"fitting documents cut, {strategy}, seq_len {seq_len}", cut, "%",
                      target=("<=", 0) if chosen else None)  # fmt: skip
