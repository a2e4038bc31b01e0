"""Metrics of whole runs: what the lines say, what a step reads from the device, what a resumed run continues."""

from __future__ import annotations

import collections
import gc
import math
import statistics
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.metric_readers import read_jsonl, read_tensorboard
from support.training import ledger, metrics, train, write_job

from train.metrics.averages import DECAY
from train.session import Session

READS = ("item", "cpu", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("metrics"), DatasetSpec(seq_len=32))


def test_a_step_reads_the_device_once(made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of different lengths with every metric on: what each step adds is one ``cpu`` and its ``numpy``."""
    counts: collections.Counter[str] = collections.Counter()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return real(tensor, *arguments, **options)

        return call

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counting(name, getattr(torch.Tensor, name)))
    found = []
    for steps in (4, 11):
        run = {"log_every": 1, "tensorboard": True, "peak_tflops": 1.0}
        never = {"every_steps": 1000}
        job = write_job(
            tmp_path, made.path, f"job{steps}", output=f"run{steps}", steps=steps, checkpoint=never, run=run
        )
        counts.clear()
        train(job)
        found.append(dict(counts))
    assert sum(found[0].values()) > 4  # the counters count
    more = {name: found[1].get(name, 0) - found[0].get(name, 0) for name in READS}
    assert {name: count for name, count in more.items() if count} == {"cpu": 7, "numpy": 7}


def test_lines_follow_the_ledger(made: MadeDataset, tmp_path: Path) -> None:
    job = write_job(tmp_path, made.path, run={"log_every": 4, "tensorboard": True, "peak_tflops": 0.5})
    said: list[str] = []
    train(job, say=said.append)
    lines, records = metrics(tmp_path / "run"), ledger(tmp_path / "run")
    assert len(lines) == len(records) == 12
    average, weight = 0.0, 0.0
    for number, (line, record) in enumerate(zip(lines, records, strict=True)):
        for name in ("step", "loss", "grad_norm", "update_norm", "lr", "label_count"):
            assert line[name] == record[name]
        assert line["perplexity"] == math.exp(line["loss"])
        average, weight = DECAY * average + (1 - DECAY) * line["loss"], DECAY * weight + (1 - DECAY)
        assert line["loss_average"] == pytest.approx(average / weight)
        assert line["loss_median"] == statistics.median(records["loss"][: number + 1])
        assert (line["loader_wait_s"] > 0) or number == 11  # nothing is taken behind the last step
        assert line["loader_wait_s"] < line["step_s"]
        assert line["tokens_per_s"] == pytest.approx(4 * 32 / line["step_s"], rel=1e-3)
        assert line["mfu"] == pytest.approx(line["model_gflop_per_s"] / 500, rel=1e-2, abs=1e-5)
        assert line["rss_bytes"] > 1e7
        assert ("source_epochs" in line) == (number % 4 == 0)
        assert 0 < line["ledger_s"] < line["step_s"]
    assert lines[8]["checkpoint_stall_s"] > 0 == lines[7]["checkpoint_stall_s"]
    assert lines[-1]["left_s"] == 0
    for name, epochs in lines[8]["source_epochs"].items():
        assert 0 < epochs * len(made.samples[name]) <= 9 * 4
    assert sum(text.startswith("step ") for text in said) == 3
    board, file = read_tensorboard(tmp_path / "run"), read_jsonl(tmp_path / "run")
    assert board.keys() == file.keys()
    for key, numbers in file.items():
        assert board[key] == pytest.approx(numbers, rel=1e-6)


def test_a_resumed_run_continues_the_averages(made: MadeDataset, tmp_path: Path) -> None:
    for name, parts in (("whole", (12,)), ("parts", (3, 7, 12))):
        job = write_job(tmp_path, made.path, name, output=name)
        for steps in parts:
            train(job, f"steps={steps}")
    whole, resumed = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    for name in ("loss_average", "loss_median", "source_loss_average"):
        assert [line[name] for line in resumed] == [line[name] for line in whole]


def test_an_evaluation_has_a_line_of_its_own(made: MadeDataset, tmp_path: Path) -> None:
    make_dataset(tmp_path, DatasetSpec(seq_len=32, seed=5, documents={"web": 9, "code": 4}), "held")
    job = write_job(tmp_path, made.path, validation=["held"], evaluate={"every_steps": 6, "samples": 4})
    train(job)
    held = [line for line in metrics(tmp_path / "run") if "held_out_loss" in line]
    assert [line["step"] for line in held] == [5, 11]
    assert set(held[0]["held_out_source_loss"]) == {"web", "code"}
    steps = [line for line in metrics(tmp_path / "run") if "loss" in line]
    assert [line["step"] for line in steps] == list(range(12))
    assert steps[6]["evaluation_s"] > 0 == steps[5]["evaluation_s"]


def test_a_session_is_gone_when_it_is_over(made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback opens the next session: the model of the last one must not wait for the collector."""
    alive: list[weakref.ref[Session]] = []
    real = Session.__init__

    def noting(session: Session, *arguments: Any) -> None:
        real(session, *arguments)
        alive.append(weakref.ref(session))

    monkeypatch.setattr(Session, "__init__", noting)
    gc.collect()
    gc.disable()
    try:
        train(write_job(tmp_path, made.path, steps=2))
        assert len(alive) == 1
        assert alive[0]() is None
    finally:
        gc.enable()
