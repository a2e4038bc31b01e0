"""The filters of a configuration made ready, so that a wrong one is known before any data is read."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

from loader.errors import ConfigError
from loader.yaml_tree import did_you_mean

from ..screen_config import QualityStep
from .adapter import DatatroveStep, make_datatrove
from .filters import FILTERS, FILTERS_VERSION
from .judges import Judge
from .options import argument_problems, as_arguments

__all__ = ["ReadyStep", "check_steps", "make_steps", "quality_versions"]

_JUDGED_WITH = ("datatrove", "spacy", "ftfy", "fasttext-numpy2-wheel", "fasttext")
"""Distributions whose versions shape what datatrove's filters say: most of them split words with spaCy."""
ReadyStep = tuple[str, Judge | DatatroveStep]
"""A filter's name and the filter."""


def _make_own(step: QualityStep, place: str) -> Judge:
    name = step.name
    kind = FILTERS.get(name)
    if kind is None:
        raise ConfigError(
            "TR-QUALITY-UNKNOWN",
            f"there is no filter {name!r}{did_you_mean(name, FILTERS)}",
            place,
            f"one of {', '.join(FILTERS)}, or one of datatrove's under 'datatrove:'",
        )
    problems = argument_problems(kind.options, step.options, strict=True)
    if not problems:
        try:
            return kind.make(kind.options(**as_arguments(kind.options, step.options)))
        except ValueError as error:
            problems = str(error).splitlines()
    expected = ", ".join(f"{one.name}: {one.type}" for one in fields(kind.options))
    raise ConfigError("TR-QUALITY-OPTIONS", f"{name}: {'; '.join(problems)}", place, expected)


def make_steps(steps: Sequence[QualityStep]) -> list[ReadyStep]:
    """The filters in order, ready to judge. datatrove's are tried on a text first, which loads (and, where a filter
    does so, downloads) what they need.

    Raises:
        ConfigError: ``TR-QUALITY-UNKNOWN`` (no such filter), ``TR-QUALITY-OPTIONS`` (wrong arguments, or a filter that
            no configuration can use), ``TR-QUALITY-MISSING`` (a package or model is not there).
    """
    ready: list[ReadyStep] = []
    for index, step in enumerate(steps):
        place = f"quality[{index}]"
        made = _make_own(step, place) if step.datatrove is None else make_datatrove(step.name, step.options, place)
        ready.append((step.name, made))
    return ready


def check_steps(steps: Sequence[QualityStep]) -> None:
    """Refuse filters that cannot work.

    Raises:
        ConfigError: see ``make_steps``.
    """
    make_steps(steps)


def quality_versions(steps: Sequence[QualityStep]) -> dict[str, object]:
    """What besides the configuration shapes verdicts (JSON-able): the version of our filters; where one of datatrove's
    is among ``steps``, those of datatrove and of what its filters judge with. Models and word lists that such a filter
    fetches are not told apart."""
    versions: dict[str, object] = {"filters": FILTERS_VERSION}
    if any(step.datatrove is not None for step in steps):
        for name in _JUDGED_WITH:
            with suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
    return versions
