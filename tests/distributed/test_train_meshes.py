"""The real command on meshes of two processes: tokens and losses of one, and refusals before the first step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import ledger, write_job

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24, "qk_norm": True, "tied": True, "z_loss": 1e-4}
RAMP = [{"start": 0, "global_batch": 4}, {"start": 16, "global_batch": 6}]
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {"data": "fsdp"},
    "tensor": {"tensor": 2, "sequence": True},
    "pipeline": {"pipeline": 2},
    "context": {"context": 2},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("data"), DatasetSpec(seq_len=32))


def job_in(folder: Path, made: MadeDataset, processes: int, **overrides: Any) -> Path:
    folder.mkdir()
    blocks = {
        "steps": 8,
        "model": MODEL,
        "data": {"datasets": [os.path.relpath(made.path, folder)], "batch": RAMP},
        "run": {"processes": processes},
        **overrides,
    }
    return write_job(folder, made.path, **blocks)


def train(job: Path) -> tuple[int, dict[str, Any]]:
    place = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONSAFEPATH")
    environment = {key: value for key, value in os.environ.items() if key not in place}
    done = subprocess.run(
        [sys.executable, "-m", "loader.cli", "train", str(job), "--json", "--quiet"],
        env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def alone(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray[Any, Any]:
    folder = tmp_path_factory.mktemp("alone") / "job"
    assert train(job_in(folder, made, 1))[0] == 0
    return ledger(folder / "run")


@pytest.mark.parametrize("name", list(MESHES))
def test_a_mesh_reads_the_tokens_of_one_process(
    name: str, made: MadeDataset, alone: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    code, told = train(job_in(tmp_path / "job", made, 2, parallel=MESHES[name], micro_batch=2))
    assert code == 0, told
    found = ledger(tmp_path / "job" / "run")
    for column in ("step", "first_position", "next_position", "label_count", "token_digest", "lr"):
        assert found[column].tobytes() == alone[column].tobytes(), column
    np.testing.assert_allclose(found["loss"], alone["loss"], atol=5e-6)
    np.testing.assert_allclose(found["grad_norm"], alone["grad_norm"], rtol=5e-5)
    np.testing.assert_allclose(found["update_norm"], alone["update_norm"], rtol=5e-5)


def test_a_batch_to_come_that_a_pipeline_cannot_cut_is_refused_before_the_first_step(
    made: MadeDataset, tmp_path: Path
) -> None:
    """Micro-batches of two fit the ramp's first stage, of four samples; its second has seven."""
    job = job_in(tmp_path / "job", made, 2, parallel=MESHES["pipeline"], micro_batch=2)
    job.write_text(job.read_text().replace("global_batch: 6", "global_batch: 7"))
    code, told = train(job)
    assert (code, told["error"]["code"]) == (2, "TR-PARALLEL-BATCH")
    assert told["error"]["place"] == "micro_batch"
    assert not len(ledger(tmp_path / "job" / "run"))
