"""Evaluation by hand, in one process, calls the model with no more tokens than one process can hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job
from torch.nn.modules.module import register_module_forward_pre_hook

from loader.errors import RefusedError
from loader.run_folder import RUN_FORMAT, RunPaths, read_events, read_identity
from loader.sealed import write_sealed
from train.evaluate import by_hand
from train.evaluate.by_hand import evaluate_run, rows_of_call
from train.huggingface.export import RunExport, export_run
from train.job import job_of_run
from train.model import Decoder

SEQ_LEN, SAMPLES, GLOBAL_BATCH = 32, 11, 16


@pytest.mark.parametrize(
    ("micro_batch", "global_batch", "seq_len", "rows"),
    [
        (None, 512, 2048, 8),
        (None, 4, 2048, 4),
        (None, 512, 131072, 1),
        (None, 8, 2048, 8),
        (2, 512, 2048, 2),
        (64, 512, 2048, 64),  # that many were trained at once
    ],
)
def test_rows_of_a_call_are_those_of_a_micro_batch_or_hold_so_many_tokens(
    micro_batch: int | None, global_batch: int, seq_len: int, rows: int
) -> None:
    assert rows_of_call(micro_batch, global_batch, seq_len) == rows


@contextmanager
def called() -> Iterator[list[int]]:
    """Inside the block, the rows of every call of a model."""
    rows: list[int] = []

    def look(module: torch.nn.Module, given: Any) -> None:
        if isinstance(module, Decoder):
            rows.append(len(given[0].tokens_BT))

    handle = register_module_forward_pre_hook(look)
    try:
        yield rows
    finally:
        handle.remove()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was evaluated with as many rows a call as its batch has, by one process."""
    folder = tmp_path_factory.mktemp("by_hand")
    made = make_dataset(folder, DatasetSpec(seq_len=SEQ_LEN, documents={"web": 40, "code": 30}))
    path = write_job(
        folder, made.path, steps=2, validation=[str(made.path)], evaluate={"every_steps": 2, "samples": SAMPLES},
        data={"datasets": [str(made.path)], "batch": [{"start": 0, "global_batch": GLOBAL_BATCH}]},
    )  # fmt: skip
    with called() as rows:
        train(path)
    assert max(rows) == GLOBAL_BATCH
    return folder / "run"


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_large_batch_is_read_in_pieces_and_says_the_same(
    run_folder: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_hand, "CALL_TOKENS", rows * SEQ_LEN + SEQ_LEN // 2)
    with called() as found_rows:
        found = evaluate_run(job_of_run(run_folder), None, print)
    assert set(found_rows) == {rows}
    (event,) = [event for event in read_events(RunPaths(run_folder)) if event["kind"] == "evaluation"]
    assert found["source_loss"].keys() == event["source_loss"].keys() == {"web", "code"}
    for name, loss in event["source_loss"].items():
        assert found["source_loss"][name] == pytest.approx(loss, rel=1e-6, abs=0)
    assert found["loss"] == pytest.approx(event["loss"], rel=1e-6, abs=0)
    json.dumps(found)


def test_where_a_call_holds_the_batch_the_result_is_that_of_the_run_to_the_last_bit(run_folder: Path) -> None:
    (event,) = [event for event in read_events(RunPaths(run_folder)) if event["kind"] == "evaluation"]
    assert evaluate_run(job_of_run(run_folder), None, print)["source_loss"] == event["source_loss"]


def test_weights_are_not_judged_by_tokens_of_another_meaning(tmp_path: Path) -> None:
    """Training and held-out data were both built anew in place: only the run knows what its tokens meant."""
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 30}, seq_len=SEQ_LEN))
    evaluate = {"every_steps": 2, "samples": 4}
    write = {"steps": 2, "validation": [str(made.path)], "evaluate": evaluate}
    train(write_job(tmp_path, made.path, **write))
    root = tmp_path / "run"
    shutil.rmtree(made.path)
    make_dataset(tmp_path, DatasetSpec(documents={"a": 30}, seq_len=SEQ_LEN, seed=5))
    assert evaluate_run(job_of_run(root), None, print)["loss"] > 0, "another text in the same tokens"
    paths = RunPaths(root)
    identity = read_identity(paths)
    for entry in identity["datasets"]:
        entry["facts"]["tokenizer"] = "1" * 32
    write_sealed(paths.identity, {**RUN_FORMAT, **identity})
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        evaluate_run(job_of_run(root), None, print)
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        export_run(RunExport(root, tmp_path / "hf"), print)
