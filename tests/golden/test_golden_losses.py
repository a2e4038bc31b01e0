"""Twenty steps on the CPU in float32 against a file: order, packing, model and optimizer together.

Positions and token digests are exact. Losses may differ in the last digits between processors, so they are compared
to 2e-4. After a change that is meant: ``python tests/golden/test_golden_losses.py`` writes the file anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, train, write_job

FILE = Path(__file__).with_name("losses_20_steps.json")
EXACT = ("step", "first_position", "next_position", "label_count", "token_digest")
ROUNDED = ("loss", "grad_norm", "update_norm", "lr")


def measure(folder: Path) -> dict[str, list[float]]:
    made = make_dataset(folder, DatasetSpec(seq_len=48))
    options = {
        "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48, "qk_norm": True, "z_loss": 1e-4},
        "schedule": {"kind": "cosine", "warmup_positions": 24, "total_positions": 120},
        "micro_batch": 4,
        "data": {"datasets": [made.path.name], "batch": [{"start": 0, "global_batch": 6}]},
    }
    train(write_job(folder, made.path, steps=20, **options))
    records = ledger(folder / "run")
    return {name: records[name].tolist() for name in (*EXACT, *ROUNDED)}


def test_twenty_steps_are_as_recorded(tmp_path: Path) -> None:
    found, recorded = measure(tmp_path), json.loads(FILE.read_text())
    assert {name: found[name] for name in EXACT} == {name: recorded[name] for name in EXACT}
    for name in ROUNDED:
        assert found[name] == pytest.approx(recorded[name], rel=2e-4), name
    assert found["loss"][-1] < found["loss"][0] - 0.5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(json.dumps(measure(Path(folder)), indent=1) + "\n")
