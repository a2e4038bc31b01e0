"""``doctor --gpus N``: a configuration that torchrun starts over N processes, as docs/training.md has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import write_job

from loader.cli import main


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("torchrun"), DatasetSpec(documents={"web": 20}, seq_len=32))


def missing(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    main(["doctor", *map(str, words), "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    return {check["name"]: check for check in checks if check["state"] == "missing"}


def test_the_processes_of_torchrun_can_be_said(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path, made.path, parallel={"tensor": 2})
    assert list(missing(capsys, path)) == ["plan world-not-a-product"]
    assert missing(capsys, path, "--gpus", 8) == {}
    assert list(missing(capsys, path, "--gpus", 9)) == ["plan world-not-a-product"]


def test_of_a_build_or_of_nothing_they_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text('{"text": "word"}\n')
    path = tmp_path / "build.yaml"
    path.write_text(
        "version: 1\noutput: data\nsources: {web: {root: web}}\nrun: {fast: 'off'}\n"
        "tokenizer: {sentencepiece: {train: {vocab_size: 320}}}\n"
    )
    assert missing(capsys, path, "--gpus", 2) == missing(capsys, path)
    assert missing(capsys, "--gpus", 2) == missing(capsys)
