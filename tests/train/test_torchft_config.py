"""``run.torchft`` with what replicas cannot do together, refused by key before anything starts; and what a new leader
adds to the ledger. Nothing here needs torchft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.datasets import make_dataset
from support.training import train, write_job

from loader.errors import ConfigError, DamageError
from loader.ledger import LedgerRecord, list_attempts
from loader.run_folder import RunPaths, create_run
from loader.runs import ledger_of
from loader.settings import load_config
from train.config import TrainConfig
from train.replicas.ledger import add_missing

TORCHFT = {"lighthouse": "http://127.0.0.1:29510"}
GOOD: dict[str, Any] = {"parallel": {"data": "ddp"}, "spikes": {"enabled": False}, "run": {"torchft": TORCHFT}}


def test_pure_data_parallelism_is_taken(tmp_path: Path) -> None:
    config = load_config(write_job(tmp_path, tmp_path / "data", **GOOD), TrainConfig).config
    assert config.run.torchft is not None
    assert config.run.torchft.min_replicas == 1


@pytest.mark.parametrize(
    ("key", "blocks"),
    [
        ("parallel.data", {"parallel": {"data": "fsdp"}}),
        ("parallel.tensor", {"parallel": {"data": "ddp", "tensor": 2}}),
        ("parallel.pipeline", {"parallel": {"data": "ddp", "pipeline": 2}}),
        ("parallel.context", {"parallel": {"data": "ddp", "context": 2}}),
        ("spikes.enabled", {"spikes": {"enabled": True}}),
        ("checkpoint.upload", {"checkpoint": {"upload": "s3://bucket/run"}}),
        ("processes", {"run": {"torchft": TORCHFT, "processes": 2}}),
        ("device", {"run": {"torchft": TORCHFT, "device": "cuda"}}),
        ("lighthouse", {"run": {"torchft": {"lighthouse": "127.0.0.1:29510"}}}),
        ("lighthouse", {"run": {"torchft": {"lighthouse": "http://127.0.0.1"}}}),
        ("min_replicas", {"run": {"torchft": {**TORCHFT, "min_replicas": 0}}}),
        ("quorum_timeout_s", {"run": {"torchft": {**TORCHFT, "quorum_timeout_s": 0}}}),
    ],
)
def test_what_replicas_cannot_do_is_refused_by_key(tmp_path: Path, key: str, blocks: dict[str, Any]) -> None:
    path = write_job(tmp_path, tmp_path / "data", **{**GOOD, **blocks})
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load_config(path, TrainConfig)


def test_a_host_that_does_not_resolve_is_named_at_once(tmp_path: Path) -> None:
    torchft = {**TORCHFT, "host": "replica.invalid", "timeout_s": 86400}
    job = write_job(tmp_path, make_dataset(tmp_path).path, **{**GOOD, "run": {"torchft": torchft}})
    with pytest.raises(ConfigError, match=r"'replica\.invalid'(.|\n)*at: run\.torchft\.host") as error:
        train(job)
    assert error.value.code == "TR-REPLICA-HOST"
    assert error.value.next_command == "getent hosts replica.invalid"


def record(step: int) -> LedgerRecord:
    return LedgerRecord(step=step, first_position=4 * step, next_position=4 * step + 4, label_count=1, token_digest=0)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Of a run with the steps 0 to 3."""
    paths = RunPaths(tmp_path)
    create_run(paths, {"run_id": "r"}, {})
    assert add_missing(paths, 0, [record(step) for step in range(4)], 1) == 4
    return paths


def test_a_new_leader_adds_the_steps_that_nobody_wrote(paths: RunPaths) -> None:
    assert add_missing(paths, 0, [record(step) for step in range(2, 7)], 1) == 3
    assert add_missing(paths, 0, [record(step) for step in range(2, 7)], 1) == 0
    assert ledger_of(paths)["step"].tolist() == [*range(7)]


def test_a_new_leader_writes_no_gap(paths: RunPaths) -> None:
    said = r"holds 4 steps, this replica those from 5 on(.|\n)*rollback .* --to 4"
    with pytest.raises(DamageError, match=said) as error:
        add_missing(paths, 0, [record(step) for step in range(5, 9)], 1)
    assert error.value.code == "TR-LEDGER-SHORT"
    assert ledger_of(paths)["step"].tolist() == [*range(4)]
    assert list_attempts(paths.ledger, 0) == [0]
