"""Every sink of the table takes the same lines, and what arrives is what was sent."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.metric_readers import READERS

from train.metrics.sinks import SINKS, Sink, SinkPlace, numbers_of, open_sinks
from train.metrics.weights_biases import wandb_run_id
from train.wandb_config import WandbConfig

RUN_ID = "0123456789abcdef"
SECRET = "5ec2e7" * 6 + "abcd"


@pytest.fixture(params=SINKS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "wandb":
        pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_API_KEY", SECRET)
    if request.param == "tensorboard":
        # Files of one second are read in the order of a counter, as text: 10 comes before 9.
        counter = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        monkeypatch.setattr(counter, "_global_uid", counter.AtomicCounter(0))
    return str(request.param)


def place(root: Path, branch: int = 0, attempt: int = 0, first_step: int = 0, **more: Any) -> SinkPlace:
    root.mkdir(exist_ok=True)
    wandb = WandbConfig("tests", mode="offline")
    return SinkPlace(root, RUN_ID, branch, attempt, first_step, tensorboard=True, wandb=wandb, **more)


def line(step: int, salt: float = 0.0) -> dict[str, Any]:
    """A line as steps make them: whole numbers, floats, names by source, a value that is not finite."""
    return {
        "step": step,
        "first_position": step * 8,
        "loss": 3.0 + step / 7 + salt,
        "grad_norm": math.inf if step == 1 else 0.25,
        "perplexity": math.nan if step == 2 else math.exp(3.0 + step / 7),
        "tokens_per_s": 12345.5,
        "source_loss": {"web": 2.5 + salt, "código/x": 3.5} if step != 2 else {},
        "lr": 3e-4,
    }


def write(name: str, where: SinkPlace, steps: range, salt: float = 0.0) -> None:
    sink: Sink = SINKS[name].open(where)
    for step in steps:
        sink.write(line(step, salt))
    sink.flush()
    sink.close()
    sink.close()


def expected(steps: range, salt: float = 0.0, branch: int = 0) -> dict[tuple[int, int], dict[str, float]]:
    """By a plain walk: finite numbers, keys of mappings behind a slash."""
    out = {}
    for step in steps:
        numbers: dict[str, float] = {}
        for key, value in line(step, salt).items():
            if isinstance(value, dict):
                numbers.update({f"{key}/{inner}": float(number) for inner, number in value.items()})
            elif key != "step" and math.isfinite(value):
                numbers[key] = float(value)
        out[branch, step] = numbers
    return out


def rounded(found: Mapping[tuple[int, int], Mapping[str, float]]) -> dict[tuple[int, int], dict[str, np.float32]]:
    """Event files hold float32."""
    return {key: {name: np.float32(value) for name, value in numbers.items()} for key, numbers in found.items()}


def test_every_sink_has_a_reader() -> None:
    assert READERS.keys() == SINKS.keys()


def test_the_same_values_arrive(name: str, tmp_path: Path) -> None:
    write(name, place(tmp_path / "run"), range(7))
    assert rounded(READERS[name](tmp_path / "run")) == rounded(expected(range(7)))


def test_steps_done_again_appear_once(name: str, tmp_path: Path) -> None:
    """An attempt was killed at step 7; the next one begins at the checkpoint of step 4."""
    write(name, place(tmp_path / "run"), range(7))
    write(name, place(tmp_path / "run", attempt=1, first_step=4), range(4, 9))
    assert rounded(READERS[name](tmp_path / "run")) == rounded(expected(range(9)))


def test_a_rollback_leaves_the_other_branch_as_it_was(name: str, tmp_path: Path) -> None:
    root = tmp_path / "run"
    write(name, place(root), range(7))
    write(name, place(root, branch=1, first_step=3), range(3, 6), salt=1.0)
    write(name, place(root, branch=1, attempt=1, first_step=5), range(5, 8), salt=1.0)
    wanted = {**expected(range(7)), **expected(range(3, 8), 1.0, branch=1)}
    assert rounded(READERS[name](root)) == rounded(wanted)


def test_an_evaluation_joins_the_line_of_its_step(name: str, tmp_path: Path) -> None:
    root = tmp_path / "run"
    sink = SINKS[name].open(place(root))
    for step in range(3):
        sink.write(line(step))
    sink.write({"step": 2, "held_out": {"loss": 2.25, "web": 2.5}})
    sink.close()
    again = SINKS[name].open(place(root, attempt=1, first_step=3))  # the evaluation is not done again
    again.write(line(3))
    again.close()
    wanted = expected(range(4))
    wanted[0, 2].update({"held_out/loss": 2.25, "held_out/web": 2.5})
    assert rounded(READERS[name](root)) == rounded(wanted)


def test_no_key_and_no_machine_in_what_is_written(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(name, place(tmp_path / "run", facts={"model": {"dim": 16}}), range(3))
    printed = capfd.readouterr()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    for data in (*(path.read_bytes() for path in files), printed.out.encode(), printed.err.encode()):
        assert SECRET.encode() not in data
    if name == "wandb":
        assert printed.out == printed.err == ""
        assert not [path for path in files if path.name in ("requirements.txt", "wandb-metadata.json", "output.log")]


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    write("wandb", place(tmp_path / "run"), range(3))
    write("wandb", place(tmp_path / "run", attempt=1, first_step=2), range(2, 4))
    write("wandb", place(tmp_path / "run", branch=2, first_step=1), range(1, 2))
    names = [path.stem for path in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))]
    assert sorted(names) == [f"run-{RUN_ID}", f"run-{RUN_ID}", f"run-{RUN_ID}-b2"]
    assert wandb_run_id(RUN_ID, 0) == RUN_ID


class Broken:
    """A client library that fails at one of its calls."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise RuntimeError(f"no network in {name}\nand a long explanation")

    def Settings(self, **_: object) -> None:
        self._call("settings")

    def init(self, **_: object) -> Broken:
        self._call("init")
        return self

    step = 0

    def log(self, *_: object, **__: object) -> None:
        self._call("log")

    def finish(self) -> None:
        self._call("finish")


@pytest.mark.parametrize("at", ["settings", "init", "log", "finish"])
def test_a_failing_service_is_said_once_and_stops_nothing(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(at)
    real: Callable[[str], Any] = importlib.import_module
    monkeypatch.setattr(
        "train.metrics.weights_biases.import_module", lambda name: broken if name == "wandb" else real(name)
    )
    said: list[str] = []
    sinks = open_sinks(SinkPlace(tmp_path, RUN_ID, 0, 0, 0, wandb=WandbConfig("tests"), warn=said.append))
    for step in range(3):
        for sink in sinks:
            sink.write(line(step))
            sink.flush()
    for sink in sinks:
        sink.close()
    assert said == [f"metrics no longer go to wandb: RuntimeError: no network in {at}"]
    assert broken.calls.count(at) == 1
    assert len(READERS["jsonl"](tmp_path)) == 3


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("train.metrics.weights_biases.import_module", missing)
    said: list[str] = []
    for sink in open_sinks(SinkPlace(tmp_path, RUN_ID, 0, 0, 0, wandb=WandbConfig("tests"), warn=said.append)):
        sink.close()
    assert len(said) == 1
    assert "pip install 'tokenreel[wandb]'" in said[0]


def test_only_what_is_wanted_is_opened(tmp_path: Path) -> None:
    sinks = open_sinks(SinkPlace(tmp_path, RUN_ID, 0, 0, 0))
    assert len(sinks) == 1
    sinks[0].close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]


def test_jsonl_cuts_what_a_killed_process_left(tmp_path: Path) -> None:
    write("jsonl", place(tmp_path), range(5))
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    for torn in (whole + b'{"branch": 0, "attem', whole[:-9], whole + b"\0" * 40):
        path.write_bytes(torn)
        write("jsonl", place(tmp_path, attempt=1, first_step=4), range(4, 6))
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        assert [(entry["step"], entry["attempt"]) for entry in lines] == [
            (0, 0),
            (1, 0),
            (2, 0),
            (3, 0),
            (4, 1),
            (5, 1),
        ]


def test_numbers_are_flat_and_finite() -> None:
    assert dict(numbers_of(line(1))) == expected(range(1, 2))[0, 1]
    assert "grad_norm" not in dict(numbers_of(line(1)))
    assert dict(numbers_of({"step": 3, "source_loss": {"step": 1.0}})) == {"source_loss/step": 1.0}
