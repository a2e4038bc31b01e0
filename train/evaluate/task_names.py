"""Names of the evaluation tasks: all that a configuration needs to know of them."""

from __future__ import annotations

__all__ = ["TASK_NAMES"]

TASK_NAMES = (
    "arc_challenge",
    "arc_easy",
    "boolq",
    "commonsense_qa",
    "copa",
    "gsm8k",
    "hellaswag",
    "humaneval",
    "lambada",
    "mmlu",
    "openbookqa",
    "piqa",
    "sciq",
    "social_i_qa",
    "winogrande",
)
"""The keys of ``train.evaluate.tasks.TASKS``, sorted."""
