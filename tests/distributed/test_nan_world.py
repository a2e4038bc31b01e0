"""A number that is not finite on one rank only: all ranks see it, skip the step, raise the alarm, and go on alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, write_job
from support.worlds import run_ranks

from loader.run_folder import RunPaths, read_events
from loader.settings import load_config
from train import loop, step
from train.config import TrainConfig
from train.process import train_process

BAD_STEP, STEPS = 6, 10


def break_one_step(what: str) -> None:
    """From here on, in this process, the backward pass of ``BAD_STEP`` leaves a NaN."""
    real, calls = step._accumulate, []

    def accumulate(model: Any, *args: Any) -> Any:
        nll = real(model, *args)
        if len(calls) == BAD_STEP:
            if what == "loss":
                nll[0][0, 0] = math.nan
            else:
                gradient = next(model.parameters()).grad
                getattr(gradient, "_local_tensor", gradient).view(-1)[0] = math.nan
        calls.append(1)
        return nll

    step._accumulate = accumulate  # type: ignore[assignment]


@pytest.mark.parametrize(("mesh", "what"), [("fsdp", "loss"), pytest.param("ddp", "gradient", marks=pytest.mark.slow)])
def test_what_one_rank_sees_all_ranks_answer(tmp_path: Path, mesh: str, what: str) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    spikes = {"enabled": True, "dry_run": True, "patience": 2}
    job = write_job(tmp_path, made.path, steps=STEPS, spikes=spikes, parallel={"data": mesh})

    def work(rank: int) -> dict[str, Any]:
        if rank == 1:
            break_one_step(what)
        acted: list[list[Any]] = []
        real = loop.Driver._act

        def act(driver: Any, session: Any, read: Any) -> bool:
            left = real(driver, session, read)
            acted.append([read.record.step, read.record.finite, session.watch.state_dict()["finite"], left])
            return left

        loop.Driver._act = act  # type: ignore[method-assign]
        result = train_process(load_config(job, TrainConfig), lambda line: None)[0]
        return {"acted": acted, "parameters": result.parameters, "step": result.step}

    ended = run_ranks(work, 2, tmp_path / "world")
    assert [one.code for one in ended] == [0, 0], ended
    assert ended[0].value == ended[1].value
    assert ended[0].value["step"] == STEPS
    acted = ended[0].value["acted"]
    assert [row[0] for row in acted] == list(range(STEPS))
    assert [number for number, finite, _, _ in acted if not finite] == [BAD_STEP]
    records = ledger(tmp_path / "run")
    assert records["update_norm"][BAD_STEP] == 0  # skipped
    assert torch.isfinite(torch.from_numpy(records["loss"][BAD_STEP + 1 :].copy())).all()
    assert (records["update_norm"][BAD_STEP + 1 :] > 0).all()
    told = [(event["kind"], event["step"]) for event in read_events(RunPaths(tmp_path / "run"))]
    assert ("alarm", BAD_STEP) in told
    assert ("verdict", BAD_STEP) in told
    # The frozen copy touched nothing of the run: it ends as one that nobody watches.
    folder = tmp_path / "unwatched"
    folder.mkdir()
    job = write_job(folder, made.path, steps=STEPS, parallel={"data": mesh})
    unwatched = run_ranks(work, 2, tmp_path / "second")
    assert {one.value["parameters"] for one in (*ended, *unwatched)} == {ended[0].value["parameters"]}
    assert ledger(folder / "run")["loss"].tobytes() == records["loss"].tobytes()
