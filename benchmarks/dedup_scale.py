"""Decisions out of core: many signatures, and many texts with one large bucket and one large component.

    python benchmarks/dedup_scale.py [signatures|texts ...] [--scale 0.01] [--folder DIR] [--json]

``signatures``: 20 million generated signatures of 128 permutations, a tenth of them planted near copies, decided by
estimate within 4 GB of resident memory. ``texts``: 2 million generated texts, verified, within 1 GB of resident memory;
a tenth of them are one candidate component (each text near its neighbours), another tenth one bucket of near copies of
one text.
``--scale`` scales both. Prints peak resident memory (ru_maxrss, mapped pages included), peak anonymous memory
(/proc/self/smaps_rollup), CPU seconds, disk, and what was found of what was planted. Each part runs in a process of its
own, so that its peaks are its own; generating is not counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dataprep.dedup import METHODS
from dataprep.dedup.candidates import SignedReader
from dataprep.dedup.config import DecideConfig, DedupConfig, HoldoutConfig, SignConfig
from dataprep.dedup.decide import Reads, decide, pair_methods
from dataprep.dedup.signatures import DOCUMENT_DTYPE
from dataprep.dedup.spill import Workspace, scratch_folder
from dataprep.dedup.steps import DecideDocuments, SignDocuments
from dataprep.dedup.table import SignedFile, make_table
from dataprep.documents import InputFile, Status

SIGNATURES = 20_000_000
SIGNATURE_MEMORY = 3 << 30
TEXTS = 2_000_000
TEXT_MEMORY = 512 << 20
"""``memory_bytes`` of the text part; the program and its libraries (some 270 MB) come on top."""
NUM_PERMUTATIONS = 128
FILE_ROWS = 50_000
COPY_SHARE = 0.1
COPY_ROWS = 10
"""Rows in which a planted copy differs: an agreement of 118 of 128 rows, 0.92."""


@contextmanager
def measured(folder: Path) -> Iterator[dict[str, float]]:
    """CPU seconds, peaks of memory and of disk below ``folder`` while the block runs; sampled ten times a second, so
    what lasts shorter may be missed."""
    figures: dict[str, float] = {"anonymous_mb": 0.0, "disk_mb": 0.0}
    stop = threading.Event()
    before_mb = disk_mb(folder)

    def watch() -> None:
        while not stop.wait(0.1):
            figures["anonymous_mb"] = max(figures["anonymous_mb"], anonymous_mb())
            figures["disk_mb"] = max(figures["disk_mb"], disk_mb(folder) - before_mb)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield figures
    finally:
        figures["cpu_s"], figures["wall_s"] = time.process_time() - cpu, time.perf_counter() - wall
        stop.set()
        watcher.join()
        figures["anonymous_mb"] = max(figures["anonymous_mb"], anonymous_mb())
        figures["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def anonymous_mb() -> float:
    """Anonymous memory of this process now."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def disk_mb(folder: Path) -> float:
    """Bytes of the files below ``folder``."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_blocks * 512
            except OSError:
                continue
    return total / 1e6


def generate_signatures(folder: Path, count: int) -> int:
    """Files of signatures and their rows; a planted copy takes the signature of an original of one of the last 16
    files and changes ``COPY_ROWS`` rows. Returns how many were planted."""
    randomness = np.random.default_rng(1)
    planted = 0
    recent: list[NDArray[np.uint32]] = []
    for file, start in enumerate(range(0, count, FILE_ROWS)):
        rows = min(FILE_ROWS, count - start)
        signature_NK = randomness.integers(0, 1 << 32, (rows, NUM_PERMUTATIONS), np.uint32)
        copies = np.flatnonzero(randomness.random(rows) < COPY_SHARE)
        originals = np.setdiff1d(np.arange(rows), copies)
        recent = [*recent[-15:], signature_NK[originals[:5_000]].copy()]
        pool = recent[int(randomness.integers(len(recent)))]
        signature_NK[copies] = pool[randomness.integers(0, len(pool), len(copies))]
        places = randomness.integers(0, NUM_PERMUTATIONS, (len(copies), COPY_ROWS))
        signature_NK[copies[:, None], places] = randomness.integers(0, 1 << 32, places.shape, np.uint32)
        planted += len(copies)
        documents = np.zeros(rows, DOCUMENT_DTYPE)
        documents["record"] = np.arange(rows)
        documents["size_bytes"] = 4000
        documents["hash_low"], documents["hash_high"] = randomness.integers(0, 1 << 63, (2, rows)).astype(np.uint64)
        documents["num_shingles"] = 600
        np.save(folder / f"documents.{file:05d}.npy", documents)
        np.save(folder / f"signatures.{file:05d}.npy", signature_NK)
    return planted


def load_generated(folder: Path) -> Callable[[int], SignedFile]:
    """Loader of generated signatures, mapped."""

    def load(file: int) -> SignedFile:
        documents, signatures = (
            np.load(folder / f"{kind}.{file:05d}.npy", mmap_mode="r") for kind in ("documents", "signatures")
        )
        return SignedFile(documents, signatures)

    return load


def decide_signatures(folder: Path, count: int, memory_bytes: int) -> dict[str, Any]:
    """Decide generated signatures by estimate."""
    planted = int((folder / "planted").read_text())
    files = -(-count // FILE_ROWS)
    inputs = [InputFile("generated", 0, "", f"{file:05d}.jsonl") for file in range(files)]
    config = DedupConfig(methods=("minhash",), decision="estimate", keep="first")
    with measured(folder) as figures, scratch_folder(folder) as scratch:
        load = load_generated(folder)
        table = make_table(inputs, load, config, pair_methods(METHODS, config))
        reads = Reads(SignedReader(table, load), lambda documents: iter(()))
        workspace = Workspace(scratch, memory_bytes)
        decision = decide(table, METHODS, (config, HoldoutConfig(0.0)), reads, workspace)
    removed = int((decision.status_N != Status.KEPT).sum())
    return {
        "part": "signatures",
        "documents": count,
        "memory_bytes": memory_bytes,
        "planted": planted,
        "removed": removed,
        "found": removed / max(1, planted),
        **figures,
        "disk_mb": max(figures["disk_mb"], decision.scratch_bytes / 1e6),
        **decision.figures,
    }


def word(number: int) -> str:
    """A word of letters for each number."""
    letters = ""
    while True:
        letters += chr(97 + number % 26)
        number //= 26
        if number == 0:
            return f"w{letters}"


def generate_texts(folder: Path, count: int) -> dict[str, int]:
    """JSONL files of texts of about 100 words: a tenth near copies of one text, a tenth a chain, the rest strangers;
    they take turns, so that every file holds some of each."""
    randomness = np.random.default_rng(2)
    vocabulary = [word(number) for number in range(50_000)]
    base = [vocabulary[number] for number in randomness.integers(0, len(vocabulary), 100)]
    chain = [vocabulary[number] for number in randomness.integers(0, len(vocabulary), 100)]
    file = None
    for number in range(count):
        if number % FILE_ROWS == 0:
            if file is not None:
                file.close()
            file = (folder / f"{number // FILE_ROWS:05d}.jsonl").open("w", encoding="ascii")
        assert file is not None
        kind = number % 10
        if kind == 0:
            tokens = base.copy()
            tokens[int(randomness.integers(100))] = f"own{word(number)}"
        elif kind == 1:
            chain = [*chain[1:], vocabulary[int(randomness.integers(len(vocabulary)))]]
            tokens = chain
        else:
            tokens = [vocabulary[place] for place in randomness.integers(0, len(vocabulary), 100).tolist()]
        file.write(json.dumps({"text": " ".join(tokens)}) + "\n")
    if file is not None:
        file.close()
    return {"near_copies": -(-count // 10), "chained": -(-(count - 1) // 10)}


def decide_texts(folder: Path, count: int, memory_bytes: int) -> dict[str, Any]:
    """Decide generated texts by the verified rule; they are signed already."""
    inputs = text_files(folder)
    config = text_config()
    with measured(folder) as figures:
        step = DecideDocuments(inputs, config, folder / "signed", folder / "decided", memory_bytes=memory_bytes)
        list(step.run())
    counts = json.loads((folder / "decided/counts.json").read_bytes())
    (source,) = counts["sources"].values()
    return {
        "part": "texts",
        "memory_bytes": memory_bytes,
        "near_copies": -(-count // 10),
        "chained": -(-(count - 1) // 10),
        "removed": sum(source["removed"].values()),
        **figures,
        **{name: value for name, value in counts["dedup"].items() if isinstance(value, int)},
    }


def text_files(folder: Path) -> list[InputFile]:
    """The generated files."""
    return [InputFile("generated", 0, str(folder), path.name) for path in sorted(folder.glob("*.jsonl"))]


def text_config() -> DecideConfig:
    """Defaults, but without hold-out and without a bound on removals."""
    return DecideConfig(dedup=DedupConfig(max_removed_fraction=1.0), holdout=HoldoutConfig(0.0))


def prepare_signatures(folder: Path, count: int) -> None:
    """Generate signatures."""
    (folder / "planted").write_text(str(generate_signatures(folder, count)))


def prepare_texts(folder: Path, count: int) -> None:
    """Generate texts and sign them."""
    generate_texts(folder, count)
    config = text_config()
    list(SignDocuments(text_files(folder), SignConfig(config.ingest, config.dedup), folder / "signed").run())


PARTS: dict[str, tuple[Any, Any, int, int]] = {
    "signatures": (prepare_signatures, decide_signatures, SIGNATURES, SIGNATURE_MEMORY),
    "texts": (prepare_texts, decide_texts, TEXTS, TEXT_MEMORY),
}


def run_part(name: str, scale: float, parent: str | None, memory_bytes: int | None = None) -> dict[str, Any]:
    """Generate and decide one part, each in a process of its own."""
    prepare, decide_part, full, memory = PARTS[name]
    count = max(1000, int(full * scale))
    with tempfile.TemporaryDirectory(dir=parent) as place:
        folder = Path(place)
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            pool.apply(prepare, (folder, count))
        with context.Pool(1) as pool:
            figures: dict[str, Any] = pool.apply(decide_part, (folder, count, memory_bytes or memory))
    return figures


def main() -> None:
    """Run the parts and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help="signatures, texts (default: both)")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--memory", type=int, help="memory_bytes, instead of the part's own")
    parser.add_argument("--folder", help="where the generated files go (60 GB at full size)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [run_part(name, options.scale, options.folder, options.memory) for name in options.parts]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for figures in rows:
        for key, value in figures.items():
            print(f"{key:<24} {value:>16,.1f}" if isinstance(value, float) else f"{key:<24} {value:>16}")
        print()


if __name__ == "__main__":
    main()
