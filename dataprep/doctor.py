"""What a build configuration needs of this machine beside packages: its inputs, and room for what it makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from loader.doctor.finding import Check
from loader.doctor.machine import check_disk, check_writable
from loader.errors import TokenreelError
from loader.settings import Loaded

from .config import BuildConfig
from .places import config_paths

__all__ = ["build_checks"]

_TIMES = 3
"""Work folder and output take about so many times the local input at most: text spilled, tables, tokens."""


def build_checks(loaded: Loaded[BuildConfig]) -> list[Check]:
    """Inputs that are there, and room beside them; remote inputs are not asked for."""
    config, base = loaded.config, loaded.path.resolve().parent
    output, work, _ = config_paths(config, base)
    found: list[Check] = []
    size_bytes = 0
    for name, source in config.sources.items():
        if source.is_remote:
            found.append(Check(f"source {name}", "ok", "remote: looked at when it is fetched"))
        else:
            check, own_bytes = _local_source(name, config, base)
            found.append(check)
            size_bytes += own_bytes
    for what, folder in (("output", output), ("work folder", work)):
        found.append(check_writable(what, Path(folder)))
    room = check_disk("room", Path(work), _TIMES * size_bytes, "free space there, or run.work on another disk")
    if any(source.is_remote for source in config.sources.values()):
        room = replace(room, message=f"{room.message}, remote sources not counted")
    return [*found, room]


def _local_source(name: str, config: BuildConfig, base: Path) -> tuple[Check, int]:
    """A source by itself, so that no other one hides what is wrong with it, and the bytes of its files."""
    from .inputs import find_inputs

    source = config.sources[name]
    if not (base / source.root).is_dir():
        message = f"no folder {base / source.root}"
        return Check(f"source {name}", "missing", message, f"--set sources.{name}.root=FOLDER"), 0
    alone = replace(source, opt_out=(), date=None, quality=None)  # names that other blocks would have to know
    try:
        inputs = find_inputs(BuildConfig(1, config.output, {name: alone}, run=config.run), base)
    except TokenreelError as error:
        return Check(f"source {name}", "missing", f"{error.code}: {error.message}", error.next_command), 0
    sizes = [Path(one.location).stat().st_size for one in inputs]
    return Check(f"source {name}", "ok", f"{len(sizes):,} files, {sum(sizes):,} bytes"), sum(sizes)
