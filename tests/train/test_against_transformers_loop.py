"""Our trainer beside a plain loop over transformers' Llama, from the same weights over the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.datasets import VOCAB_SIZE, DatasetSpec, MadeDataset, make_dataset
from support.reference_loop import PlainRun, fresh_llama, read_llama, train_plainly, validation_loss
from support.training import ledger, losses, train, write_job

from loader.cli import main

SIZES = {"vocab_size": VOCAB_SIZE, "dim": 32, "layers": 2, "heads": 2, "ffn": 48, "seq_len": 32}
MODEL = {key: SIZES[key] for key in ("dim", "layers", "heads", "ffn")}
STEPS, BATCH, WARMUP = 20, 4, 24


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("data"), DatasetSpec(seq_len=32))


def our_job(folder: Path, made: MadeDataset, **optimizer: Any) -> Path:
    return write_job(
        folder,
        made.path,
        steps=STEPS,
        model={**MODEL, "init_from": "begin"},
        optimizer={"lr": 3e-3, **optimizer},
        schedule={"kind": "cosine", "warmup_positions": WARMUP, "total_positions": STEPS * BATCH},
    )


def test_twenty_steps_cost_what_they_cost_a_plain_loop(made: MadeDataset, tmp_path: Path) -> None:
    plain = PlainRun(made.path, STEPS, BATCH, warmup=WARMUP)
    model = fresh_llama(SIZES, 5)
    model.save_pretrained(tmp_path / "begin")
    expected, digests = train_plainly(model, plain)
    train(our_job(tmp_path, made))
    found = losses(tmp_path / "run")
    assert [int(digest) for digest in ledger(tmp_path / "run")["token_digest"]] == digests
    assert found == pytest.approx(expected, abs=1e-4, rel=0)
    assert expected[0] - expected[-1] > 0.5, "nothing was learned, so nothing was compared"
    assert main(["export", str(tmp_path / "run"), "--format", "hf", "--output", str(tmp_path / "end"), "--quiet"]) == 0
    ends = [validation_loss(each, [made.path], 16) for each in (read_llama(tmp_path / "end"), model)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-4, rel=0)


def test_another_decay_shows(made: MadeDataset, tmp_path: Path) -> None:
    """The tolerance is tight enough to see a weight decay of 0.3 instead of 0.1, or another second moment."""
    model = fresh_llama(SIZES, 5)
    model.save_pretrained(tmp_path / "begin")
    expected, _ = train_plainly(model, PlainRun(made.path, STEPS, BATCH, warmup=WARMUP))
    for number, other in enumerate([{"weight_decay": 0.3}, {"betas": [0.9, 0.98]}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "begin").symlink_to(tmp_path / "begin")
        train(our_job(folder, made, **other))
        found = losses(folder / "run")
        assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) > 1e-4
