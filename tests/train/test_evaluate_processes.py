"""Evaluation on several processes says what it says on one: every way of spreading the model, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asking_ranks import MODEL, ask
from support.datasets import DatasetSpec, make_dataset
from support.parity import Case

from train.world import World

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
CASES = [
    Case("ddp", {"data": "ddp"}, MODEL),
    Case("fsdp", {"data": "fsdp"}, MODEL),
    Case("tensor, sequence", {"tensor": 2, "sequence": True}, MODEL),
    Case("tensor, whole vocabulary", {"tensor": 2, "vocabulary": False}, MODEL),
    Case("context zigzag", {"context": 2}, MODEL),
    Case("context ulysses", {"context": 2, "context_method": "ulysses"}, MODEL),
    Case("pipeline 1f1b", {"pipeline": 2}, MODEL, micro_batch=2),
    Case("pipeline zbv", {"pipeline": 2, "schedule": "zbv"}, MODEL, micro_batch=2),
]
REFUSING = {"context zigzag", "context ulysses", "pipeline 1f1b", "pipeline zbv"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, dict[str, Any]]]]:
    """What one process says, and what each of two says in every case."""
    folder = tmp_path_factory.mktemp("processes")
    dataset = make_dataset(folder, DatasetSpec(seq_len=32, documents={"web": 9, "code": 4, "books": 1})).path
    out = folder / "out"
    words = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", str(ROOT / "tests/support/asking_ranks.py"), str(out), str(dataset),
        *(json.dumps(asdict(case)) for case in CASES),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    ranks = [
        {line["case"]: line for line in map(json.loads, Path(f"{out}.{rank}").read_text().splitlines())}
        for rank in range(2)
    ]
    return ask(Case("alone", {}, MODEL), World(), str(dataset)), ranks


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_scores_do_not_depend_on_how_the_model_is_spread(
    name: str, found: tuple[dict[str, Any], list[dict[str, dict[str, Any]]]]
) -> None:
    alone, (first, second) = found[0], (ranks[name] for ranks in found[1])
    assert first["untouched"]
    assert second["untouched"]
    for ours in (first, second):
        assert ours["sources"].keys() == alone["sources"].keys()
        for source, (loss_sum, num_labels) in alone["sources"].items():
            assert ours["sources"][source][1] == num_labels > 0
            assert ours["sources"][source][0] == pytest.approx(loss_sum, rel=1e-6)
        np.testing.assert_allclose(ours["scores"], alone["scores"], rtol=0, atol=2e-4)
    assert (first["sources"], first["scores"]) == (second["sources"], second["scores"])
    if name in REFUSING:
        assert first["refused"] == second["refused"] == "TR-EVALUATE-PARALLEL"
        return
    assert first["greedy"] == second["greedy"] == alone["greedy"]
    assert {**first["answers"], **second["answers"]} == alone["answers"]
