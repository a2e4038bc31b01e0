"""The parity table: every mesh against one process, ten steps in float32, uneven masks.

    python benchmarks/trainer_parity.py [--quick] [--json]

A row a mesh and number: the largest |loss - one process's|, in nats, and the largest relative difference of the
gradient norm. bf16 and fp16 are compared with the same format in one process. Targets: DESIGN 13. ``--quick``: two
processes; otherwise four and eight as well.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from rows import Row, print_rows, row
from support.parity import Case
from support.parity_cases import WORLDS, reference, run_world


def compare(one: Case, found: dict[str, list[float]]) -> list[Row]:
    """Two rows of a mesh."""
    right = reference(one)
    exact = one.precision == "fp32"
    loss = max(abs(a - b) for a, b in zip(found["loss"], right.loss, strict=True))
    finite = [(a, b) for a, b in zip(found["grad_norm"], right.grad_norm, strict=True) if math.isfinite(b)]
    norm = max(abs(a - b) / b for a, b in finite)
    return [
        row(f"{one.name}: loss", loss * 1e6, "1e-6 nats", target=("<=", 5.0 if exact else 5000.0)),
        row(f"{one.name}: gradient norm", norm * 1e6, "1e-6", target=("<=", 50.0 if exact else 50000.0)),
    ]


def main() -> None:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description="Parity of meshes.")
    parser.add_argument("--quick", action="store_true", help="two processes only; under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON list of rows")
    options = parser.parse_args()
    rows: list[Row] = []
    for size in [2] if options.quick else list(WORLDS):
        with tempfile.TemporaryDirectory() as folder:
            found, errors = run_world(size, WORLDS[size], Path(folder) / "out.jsonl", 3600)
        if errors:
            print(errors, file=sys.stderr)
        for one in WORLDS[size]:
            named = Case(**{**vars(one), "name": f"{size} processes, {one.name}"})
            missing = [row(f"{named.name}: did not run", 1, "", target=("<=", 0))]
            rows += compare(named, found[one.name]) if one.name in found else missing
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()
