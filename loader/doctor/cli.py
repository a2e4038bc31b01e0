"""The verb ``doctor``: lines of ok, warn and missing, each with what to type next."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..cli_options import Output, output_options
from ..errors import ConfigError, TokenreelError
from .finding import Check
from .machine import (
    check_clock,
    check_gpu,
    check_host,
    check_open_files,
    check_port,
    check_processor,
    check_shadowing,
    check_shared_memory,
    check_writable,
)
from .needs import extras_of
from .packages import check_extras, check_packages_installed, check_python, declared
from .stores import check_stores

__all__ = ["CONFIG_CHECKS", "doctor", "look"]

# kind -> (its configuration, what else it needs), imported only when a configuration of the kind is at hand
CONFIG_CHECKS: Mapping[str, tuple[str, str]] = {
    "train": ("train.config:TrainConfig", "train.doctor:training_checks"),
    "build": ("dataprep.config:BuildConfig", "dataprep.doctor:build_checks"),
}
_MARKS = {"ok": "ok     ", "warn": "warn   ", "missing": "MISSING"}


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _attempt(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    """The checks, or one line that says why they could not be made."""
    try:
        return check()
    except TokenreelError as error:
        return [Check(name, "missing", f"{error.code}: {error.message}", error.next_command)]
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] or str(error)
        return [Check(name, "missing", f"cannot be checked without the package {missing}", f"pip install {missing}")]


def _config_checks(path: Path, overrides: tuple[str, ...], cards: int | None) -> list[Check]:
    from ..config_kind import config_kind
    from ..settings import load_config, to_plain

    kind = config_kind(path)
    config_class, further = CONFIG_CHECKS[kind]
    loaded = load_config(path, _named(config_class), overrides)
    plain: Any = to_plain(loaded.config)
    found = [Check("configuration", "ok", f"{path}: a {kind} configuration, digest {loaded.digest}")]
    found += check_extras(declared()[1], extras_of(plain))
    found += check_stores(plain)
    more = {"cards": cards} if kind == "train" else {}
    return [*found, *_attempt(f"{kind} checks", lambda: _named(further)(loaded, **more))]


def _cache_check() -> list[Check]:
    """The user's own cache folder. Nothing but a Dataset at a URL needs it: ``run.cache`` says whether that is asked
    for."""
    from ..settings import cache_folder

    remedy = "export TOKENREEL_CACHE=FOLDER, on a local disk"
    try:
        found = check_writable("cache", cache_folder())
    except ConfigError as error:
        return [Check("cache", "warn", f"{error.message}; only Datasets at URLs need it", remedy)]
    if found.state == "ok":
        return [found]
    return [Check("cache", "warn", f"{found.message}; only Datasets at URLs need it", remedy)]


def look(config: Path | None = None, overrides: tuple[str, ...] = (), cards: int | None = None) -> list[Check]:
    """Every check, in the order of the report.

    Args:
        config: a build or training configuration. overrides: ``a.b=c``. cards: processes of a training in all, where
            torchrun starts them.
    """
    base = config.parent if config is not None else Path.cwd()
    wanted, requirements = declared()
    found = [check_python(wanted), *check_packages_installed(requirements)]
    found += _attempt("packages' own", lambda: check_shadowing(base))
    found += [check_open_files(), check_shared_memory(), check_host(), check_port(), check_clock(base)]
    found += [check_processor(), check_gpu(needed=False)]
    found += _attempt("cache", _cache_check)
    if config is not None:
        found += _attempt("configuration", lambda: _config_checks(config, overrides, cards))
    return found


def _text(checks: list[Check]) -> str:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{_MARKS[check.state]}  {check.name:<{width}}  {check.message}")
        if check.next_command is not None:
            lines.append(f"{'':7}  {'':<{width}}  next: {check.next_command}")
    counts = {state: sum(check.state == state for check in checks) for state in _MARKS}
    return "\n".join([*lines, "", ", ".join(f"{count} {state}" for state, count in counts.items())])


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key: --set a.b=c.")
@click.option("--gpus", "cards", type=click.IntRange(min=1), help="Processes under torchrun; default: run.processes.")
@output_options
def doctor(output: Output, config: Path | None, overrides: tuple[str, ...], cards: int | None) -> int:
    """What is missing on this machine, or for the build or training configuration CONFIG.

    Packages and their ranges, extras that CONFIG asks for, GPU and bfloat16, open files, shared memory, host name and
    port, clock, folders and room on disk, Datasets and their tokenizer. Needs no torch. Exits with 1 if anything is
    missing.
    """
    checks = look(config, overrides, cards)
    missing = [check.name for check in checks if check.state == "missing"]
    output.result({"ready": not missing, "checks": [asdict(check) for check in checks]}, lambda: _text(checks))
    return 1 if missing else 0
