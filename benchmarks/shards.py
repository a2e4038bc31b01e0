"""Text to shards: tokenise, pack, write, read and verify, each beside what else does it.

    python benchmarks/shards.py [--quick] [--json] [--only text pack disk] [--venvs VENVS]

CPU seconds are user + system of this process. Peers do the same work on the same input in the same run; a peer that is
not installed gives null. Where there is no peer the row judges the absolute figure; memcpy and xxh3 rates of the
machine are printed first. The rows lie in ``shards_text.py``, ``shards_pack.py`` and ``shards_disk.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_peers import DEFAULT_VENVS
from benchmarks.rows import Row, cpu_s, print_rows, row

__all__: list[str] = []


def machine_rows() -> Iterator[Row]:
    """What this machine can do at all."""
    block = np.random.default_rng(0).integers(0, 255, 64 << 20, dtype=np.uint8)
    yield row("machine: memcpy", block.nbytes / cpu_s(block.copy) / 1e9, "GB/CPU-s")
    yield row("machine: xxh3-64", block.nbytes / cpu_s(lambda: xxhash.xxh3_64_intdigest(block)) / 1e9, "GB/CPU-s")


def main() -> None:
    """Measure, then print JSON or a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs="+", choices=["text", "pack", "disk"], default=["text", "pack", "disk"])
    parser.add_argument("--venvs", type=Path, default=DEFAULT_VENVS, help="environments of peers")
    options = parser.parse_args()
    rows = list(machine_rows())
    if "text" in options.only:
        from benchmarks.shards_text import text_rows

        rows += text_rows(options.quick)
    if "pack" in options.only:
        from benchmarks.shards_pack import pack_rows

        rows += pack_rows(options.quick, options.venvs)
    if "disk" in options.only:
        from benchmarks.shards_disk import disk_rows

        rows += disk_rows(options.quick)
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
