"""The ``evaluate:`` block of a training configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loader.yaml_tree import did_you_mean

from .config_checks import require
from .evaluate.task_names import TASK_NAMES

__all__ = ["EvaluateConfig"]


@dataclass(frozen=True)
class EvaluateConfig:
    """The ``evaluate:`` block: held-out perplexity of every source, and tasks; it changes nothing that training does.

    Attributes:
        every_steps: how often; 0 is off.
        samples: held-out samples of each source.
        tasks: rows of ``train.evaluate.tasks.TASKS``, or keys of ``files``.
        shots: worked examples before each question; null: as many as the task's row says.
        limit: the first so many items of each task; null: all.
        execute_code: run what the model writes for HumanEval, in a limited process of its own; off, it is not scored.
        files: further multiple-choice tasks: name to a JSONL file, relative to the configuration's folder; one object
            a line with ``query`` (text), ``choices`` (texts) and ``gold`` (number of the right one, from 0).
    """

    every_steps: int = 0
    samples: int = 64
    tasks: tuple[str, ...] = ()
    shots: int | None = None
    limit: int | None = None
    execute_code: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = (*TASK_NAMES, *self.files)
        unknown = [name for name in self.tasks if name not in known]
        twice = sorted({name for name in self.tasks if self.tasks.count(name) > 1})
        taken = sorted(set(self.files) & set(TASK_NAMES))
        require(
            [
                ("every_steps", self.every_steps >= 0, "must be >= 0"),
                ("samples", self.samples >= 1, "must be >= 1"),
                *(("tasks", False, f"no task {name!r}{did_you_mean(name, known)}") for name in unknown),
                ("tasks", not twice, f"named twice: {', '.join(twice)}"),
                ("shots", self.shots is None or 0 <= self.shots <= 100, "must lie in 0 .. 100, or be null"),
                ("limit", self.limit is None or self.limit >= 1, "must be >= 1 or null"),
                ("files", not taken, f"a task of the table is called so already: {', '.join(taken)}"),
                ("files", all(path.strip() for path in self.files.values()), "each must name a file"),
            ]
        )
