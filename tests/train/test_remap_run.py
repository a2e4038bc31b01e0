"""A trained run whose Dataset was replaced: refused, remapped, trained on; the tokens are those of the new plan."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, train, write_job

from loader.errors import RefusedError
from loader.remap import remap_run
from loader.run_past import step_over_time
from loader.run_view import open_run


def test_a_run_is_trained_on_with_other_data(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 20, "b": 9}, seq_len=32))
    other = make_dataset(tmp_path, DatasetSpec(documents={"a": 25, "b": 9}, seq_len=32, seed=1), name="other")
    job, root = write_job(tmp_path, made.path), tmp_path / "run"
    train(job, "steps=6")
    before = ledger(root)["token_digest"].tolist()
    value = yaml.safe_load(job.read_text())
    value["data"]["datasets"] = [os.path.relpath(other.path, tmp_path)]
    job.write_text(yaml.safe_dump(value))
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        train(job)
    assert (remap_run(root, [str(other.path)])["step"]) == 6
    said = list[str]()
    assert train(job, say=said.append).step == 12
    view = open_run(root)
    assert view.sources.digests == (other.digest,)
    digests = ledger(root)["token_digest"].tolist()
    assert digests[:6] == before
    assert f"first batch: step 6, digest {digests[6]:016x}" in said
    assert all(step_over_time(view, step)[1]["matches_ledger"] for step in range(12))
    train(job, "steps=14")  # resumed with a Cursor of the new plan
    with pytest.raises(RefusedError, match="TR-RUN-DATASET"):
        train(write_job(tmp_path, made.path, name="old"))


def test_steps_behind_the_newest_checkpoint_are_done_again(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"a": 20}, seq_len=32))
    other = make_dataset(tmp_path, DatasetSpec(documents={"a": 25}, seq_len=32, seed=1), name="other")
    job, root = write_job(tmp_path, made.path, checkpoint={"every_steps": 4, "keep_last": 5}), tmp_path / "run"
    train(job, "steps=6")
    newest = max((root / "checkpoints").glob("step_*"))
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    made.path.rename(tmp_path / "gone")  # the checkpoint says what was read, not the Dataset
    result = remap_run(root, [str(other.path)])
    assert (result["step"], result["undone_steps"], result["consumed"]) == (4, 2, None)
    value = yaml.safe_load(job.read_text())
    value["data"]["datasets"] = [os.path.relpath(other.path, tmp_path)]
    job.write_text(yaml.safe_dump(value))
    assert train(job).step == 12
    assert open_run(root).num_steps == 12
