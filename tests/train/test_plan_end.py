"""A plan that ends: the run finishes there and says so; what it reads before is the plan without an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import ledger, train, write_job

from loader.errors import RefusedError
from loader.run_folder import RunPaths, read_config
from loader.run_view import open_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("end"), DatasetSpec(documents={"a": 20, "b": 9}, seq_len=32))


def _job(folder: Path, made: MadeDataset, exhaustion: dict[str, Any] | None, **overrides: Any) -> Path:
    path = write_job(folder, made.path, **overrides)
    value = yaml.safe_load(path.read_text())
    value["data"] |= {"mixture": [{"start": 0, "weights": {"a": 1, "b": 1}}], "exhaustion": exhaustion}
    path.write_text(yaml.safe_dump(value))
    return path


def test_a_run_ends_with_its_plan(made: MadeDataset, tmp_path: Path) -> None:
    said = list[str]()
    result = train(_job(tmp_path, made, {"policy": "stop", "total": 30}), say=said.append)
    assert (result.outcome, result.step) == ("finished", 7)
    assert "the plan ends at position 30: finished after 7 of 12 steps" in said
    first = ledger(tmp_path / "run")["token_digest"].tolist()
    assert f"first batch: step 0, digest {first[0]:016x}" in said
    assert train(_job(tmp_path, made, {"policy": "stop", "total": 30})).step == 7  # nothing more to do
    longer = train(_job(tmp_path, made, None, output="other"))
    assert longer.step == 12
    assert ledger(tmp_path / "other")["token_digest"].tolist()[:7] == first


def test_the_end_may_move_while_it_lies_ahead(made: MadeDataset, tmp_path: Path) -> None:
    train(_job(tmp_path, made, {"policy": "repeat", "total": 20}))
    assert train(_job(tmp_path, made, {"policy": "repeat", "total": 40})).step == 10
    assert read_config(RunPaths(tmp_path / "run"))["data"]["exhaustion"]["total"] == 40
    with pytest.raises(RefusedError, match="TR-CURSOR-STOP"):
        train(_job(tmp_path, made, {"policy": "repeat", "total": 24}))
    assert train(_job(tmp_path, made, None)).step == 12
    straight = train(_job(tmp_path, made, None, output="straight"))
    assert straight.step == 12
    for name in ("token_digest", "next_position", "loss", "grad_norm"):
        assert ledger(tmp_path / "straight")[name].tolist() == ledger(tmp_path / "run")[name].tolist()


def test_sources_that_run_out_leave_and_a_look_up_agrees(made: MadeDataset, tmp_path: Path) -> None:
    exhaustion = {"policy": "renormalise", "max_epochs": {"a": 30, "b": 12}}
    train(_job(tmp_path, made, exhaustion))
    view = open_run(tmp_path / "run")
    stages = view.plan.mixture.stages
    assert [sorted(stage.weights) for stage in stages] == [["a", "b"], ["a"]]
    small = int(view.sources.shard_samples("b").sum())
    assert view.plan.mixture.rank_before(view.sources.names.index("b"), stages[1].start) <= 12 * small
    assert view.plan.num_steps == view.plan.config.stop_position // 4
    with pytest.raises(RefusedError, match="TR-MIXTURE-EXHAUSTED"):
        train(_job(tmp_path, made, {"policy": "repeat", "max_epochs": {"b": 1}}, output="third"))
