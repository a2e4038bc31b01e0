"""The flagship property: rollback + cut is bit-equal to a run from step 0 whose list held the same entries with the
same stamps, also when that run reads another Dataset in which the cut tokens are replaced by other content.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.datasets import make_dataset
from support.flagship import BACK_TO, KEEP_ALL, SPEC, STEPS, Lived, entries_for, live, other_content, prepare_zero
from support.training import ledger, train, write_job

from loader.run_folder import RunPaths, write_config
from loader.run_view import open_run
from loader.runs import append_skips, read_branches, read_skips
from loader.settings import load_config
from train.back import roll_back
from train.config import TrainConfig
from train.job import resolve_job


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    return live(tmp_path_factory.mktemp("lived"), train)


@pytest.mark.parametrize("kind", ["mask documents", "drop documents", "mask samples", "drop samples"])
def test_rollback_and_cut_equal_a_run_from_step_0(lived: Lived, tmp_path: Path, kind: str) -> None:
    entry, documents = entries_for(lived, kind)
    (tmp_path / "back").mkdir()
    job = write_job(tmp_path / "back", lived.made.path, steps=STEPS, checkpoint=KEEP_ALL)
    shutil.copytree(lived.root, tmp_path / "back" / "run")
    paths = RunPaths(tmp_path / "back" / "run")
    # The Dataset's place relative to the run changed with the copy; the configuration follows it.
    train_again = load_config(job, TrainConfig)
    write_config(paths, resolve_job(train_again).semantic)
    facts = roll_back(paths.root, BACK_TO + 1, lambda line: None)
    assert (facts["step"], facts["position"]) == (BACK_TO, lived.stamp) == (BACK_TO, open_run(paths.root).next_position)
    append_skips(paths, [entry])
    back = train(job)
    (tmp_path / "zero").mkdir()
    zero = train(prepare_zero(tmp_path / "zero", lived.made.path, entry))
    (tmp_path / "twin").mkdir()
    other = other_content(lived, documents, tmp_path)
    twin = train(prepare_zero(tmp_path / "twin", other.path, entry))
    assert back.parameters == zero.parameters == twin.parameters
    assert back.parameters != lived.result.parameters
    records = [ledger(tmp_path / name / "run") for name in ("back", "zero", "twin")]
    for field in ("loss", "grad_norm", "update_norm", "token_digest", "label_count", "first_position", "lr"):
        assert records[0][field].tobytes() == records[1][field].tobytes() == records[2][field].tobytes(), field
    before = ledger(lived.root)
    assert np.array_equal(records[0]["loss"][:BACK_TO], before["loss"][:BACK_TO])
    assert not np.array_equal(records[0]["token_digest"][BACK_TO:], before["token_digest"][BACK_TO:])


def test_the_other_content_would_have_mattered(lived: Lived, tmp_path: Path) -> None:
    """Without the cut the second Dataset trains another model: the equality above is not empty."""
    other = other_content(lived, entries_for(lived, "mask documents")[1], tmp_path)
    assert train(write_job(tmp_path, other.path, steps=STEPS)).parameters != lived.result.parameters


def test_rollback_keeps_the_history(lived: Lived, tmp_path: Path) -> None:
    made = make_dataset(tmp_path, SPEC)
    job, root = write_job(tmp_path, made.path, steps=STEPS), tmp_path / "run"
    train(job)
    left = ledger(root)
    roll_back(root, 22, lambda line: None)
    again = train(job)
    assert again.parameters == lived.result.parameters
    assert again.branch == 1
    branches = read_branches(RunPaths(root))
    assert [(branch.parent, branch.from_step) for branch in branches] == [(None, 0), (0, 20)]
    assert np.array_equal(ledger(root, 0)["loss"], left["loss"])
    assert np.array_equal(ledger(root, 1)["loss"], left["loss"])
    assert not read_skips(RunPaths(root))
