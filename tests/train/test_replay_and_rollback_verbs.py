"""The verbs ``replay``, ``rollback`` and ``train --plan`` as a user types them, against numbers got another way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import ledger, train, write_job
from torch.nn.functional import cross_entropy

from loader.cli import main
from loader.run_folder import RunPaths
from loader.run_view import open_run
from loader.runs import read_branches
from loader.stream.batch import read_batch
from train import session
from train.frozen import frozen_model
from train.job import job_of_run
from train.lineage import lineage_checkpoints

STEPS = 10


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeDataset, Path]:
    folder = tmp_path_factory.mktemp("verbs")
    made = make_dataset(folder, DatasetSpec(seq_len=32))
    train(write_job(folder, made.path, steps=STEPS, checkpoint={"every_steps": 4, "keep_last": 9}))
    return made, folder


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_replay_gives_the_same_batches_and_right_numbers(
    lived: tuple[MadeDataset, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = lived[1] / "run"
    code, found = call(capsys, "replay", str(root), "--steps", "4:6")
    assert code == 0
    assert (found["checkpoint"], found["checkpoint_step"], found["branch"]) == ("step_000004", 4, 0)
    assert [step["step"] for step in found["steps"]] == [4, 5]
    assert all(step["matches_ledger"] for step in found["steps"])
    records = ledger(root)
    # The weights before step 4 are the checkpoint's: the loss is the one that was recorded.
    assert found["steps"][0]["loss"] == pytest.approx(records["loss"][4], rel=1e-5)
    assert found["steps"][0]["recorded_loss"] == records["loss"][4]
    assert found["steps"][1]["loss"] != pytest.approx(records["loss"][5], rel=1e-5)
    view = open_run(root)
    checkpoint = next(c for c in lineage_checkpoints(view.paths.checkpoints, [view.branch]) if c.facts.step == 4)
    frozen = frozen_model(job_of_run(root), view.sources, checkpoint)
    batch = read_batch(view.plan, view.sources, 5)
    hidden_BTD = frozen.hidden(batch)
    segments = found["steps"][1]["segments"]
    known = np.flatnonzero(~batch.segments.padding_S)
    assert len(segments) == len(known)
    assert found["baseline_segments"] == 0  # four small steps hold too few to compare with
    assert all(segment["z"] is None for segment in segments)
    for row, segment in zip(known.tolist(), segments, strict=True):
        index, start = int(batch.segments.sample_index_S[row]), int(batch.segments.token_start_S[row])
        stop = start + int(batch.segments.num_tokens_S[row])
        labels = torch.from_numpy(batch.labels_BT[index, start:stop].astype(np.int64))
        if segment["num_labels"] == 0:
            assert segment["loss"] is None
            continue
        weight = frozen.head_weight_VD.double().requires_grad_()
        total = cross_entropy(hidden_BTD[index, start:stop].double() @ weight.T, labels, reduction="sum")
        total.backward()
        assert weight.grad is not None
        assert segment["loss"] == pytest.approx(float(total.detach()) / segment["num_labels"], rel=1e-4)
        assert segment["head_gradient_norm"] == pytest.approx(float(weight.grad.norm()), rel=1e-3)
        assert segment["document"] == f"{int(batch.segments.document_id_S[row]):016x}"


def test_replay_with_another_checkpoint_and_of_steps_to_come(
    lived: tuple[MadeDataset, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(lived[1] / "run")
    _, first = call(capsys, "replay", root, "--steps", "5")
    _, last = call(capsys, "replay", root, "--steps", "5", "--checkpoint", "step_000010")
    assert last["checkpoint_step"] == 10
    assert last["steps"][0]["loss"] < first["steps"][0]["loss"]
    assert last["steps"][0]["token_digest"] == first["steps"][0]["token_digest"]
    _, later = call(capsys, "replay", root, "--steps", "50")
    assert later["steps"][0]["matches_ledger"] is None
    assert later["checkpoint_step"] == 10
    assert main(["replay", root, "--steps", "5"]) == 0
    assert "same tokens as recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["replay", "RUN", "--steps", "5:5"], 2),
        (["replay", "RUN", "--steps", "x"], 2),
        (["replay", "RUN", "--steps", "5", "--checkpoint", "step_000777"], 2),
        (["replay", "RUN", "--steps", "\u00b2"], 2),
        (["replay", "RUN", "--steps", "5:"], 2),
        (["replay", "RUN", "--steps", "5", "--checkpoint", ""], 2),
        (["replay", "RUN", "--steps", "5", "--checkpoint", ".."], 2),
        (["replay", "RUN", "--steps", "5", "--checkpoint", "/another/run/step_000004"], 2),
        (["replay", "RUN", "--steps", "5", "--branch", "3"], 2),
        (["replay", "RUN", "--steps", "5:5000000"], 2),
        (["replay", "NOWHERE", "--steps", "5"], 2),
        (["rollback", "RUN", "--to", "5000"], 2),
        (["rollback", "NOWHERE", "--to", "5"], 2),
    ],
)
def test_mistakes_have_codes(
    lived: tuple[MadeDataset, Path], capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    words = [str(lived[1] / {"RUN": "run", "NOWHERE": "nowhere"}[word]) if word.isupper() else word for word in words]
    found, result = call(capsys, *words)
    assert found == result["error"]["exit_code"] == code
    assert result["error"]["code"].startswith("TR-")


def test_rollback_moves_to_the_newest_checkpoint_before(
    lived: tuple[MadeDataset, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, lived[0].path, steps=STEPS, checkpoint={"every_steps": 3, "keep_last": 2})
    train(job)
    root = tmp_path / "run"
    code, found = call(capsys, "rollback", str(root), "--to", "9")
    assert code == 0
    assert found == {"branch": 1, "step": 9, "position": 36, "checkpoint": "step_000009"}
    code, refused = call(capsys, "rollback", str(root), "--to", "8")
    assert code == 4
    assert refused["error"]["code"] == "TR-ROLLBACK-NONE"
    assert refused["error"]["next_command"] == f"tokenreel rollback {root} --to 9"
    assert len(read_branches(RunPaths(root))) == 2
    train(job)
    assert open_run(root).branch.number == 1
    assert open_run(root).num_steps == STEPS


def test_plan_writes_nothing(
    lived: tuple[MadeDataset, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_job(tmp_path, lived[0].path, steps=STEPS)
    code, found = call(capsys, "train", str(job), "--plan", "--set", "steps=7")
    assert code == 0
    assert (found["steps"], found["tokens_per_step"]) == (7, 128)
    assert not (tmp_path / "run").exists()


def test_reading_a_step_late_changes_nothing(
    lived: tuple[MadeDataset, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device that the host does not wait for: same parameters, same ledger."""
    monkeypatch.setattr(session, "read_lag", lambda device: 1)
    options = {"steps": STEPS, "checkpoint": {"every_steps": 4, "keep_last": 9}}
    train(write_job(tmp_path, lived[0].path, **options))
    late, plain = ledger(tmp_path / "run"), ledger(lived[1] / "run")
    assert late.tobytes() == plain.tobytes()


@pytest.mark.slow
def test_tensorboard_files_are_written(lived: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    train(write_job(tmp_path, lived[0].path, steps=2, run={"tensorboard": True}))
    assert list((tmp_path / "run" / "tensorboard" / "branch_0").glob("events.*"))


def test_bfloat16_trains_and_resumes_exactly(lived: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path, lived[0].path, steps=6, precision="bf16")
    whole = train(job, "output=whole")
    train(job, "steps=3")
    assert train(job).parameters == whole.parameters
    assert whole.loss is not None
    assert whole.loss < ledger(tmp_path / "whole")["loss"][0]
