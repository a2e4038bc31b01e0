"""What a build configuration needs of this machine beside packages: its inputs, and room for what it makes."""

from __future__ import annotations

from pathlib import Path

from loader.doctor.finding import Check
from loader.doctor.machine import check_disk, check_writable
from loader.remote.store import is_url
from loader.settings import Loaded

from .config import BuildConfig
from .places import config_paths

__all__ = ["build_checks"]

_TIMES = 3
"""Work folder and output take about so many times the local input at most: text spilled, tables, tokens."""


def build_checks(loaded: Loaded[BuildConfig]) -> list[Check]:
    """Inputs that are there, and room beside them; remote inputs are not asked for."""
    from .inputs import find_inputs

    config, base = loaded.config, loaded.path.resolve().parent
    output, work, _ = config_paths(config, base)
    found: list[Check] = []
    size_bytes = 0
    remote = [name for name, source in config.sources.items() if is_url(source.root)]
    for name, source in config.sources.items():
        if name not in remote and not (base / source.root).is_dir():
            message = f"no folder {base / source.root}"
            found.append(Check(f"source {name}", "missing", message, f"--set sources.{name}.root=FOLDER"))
    if not found and not remote:
        inputs = find_inputs(config, base)
        for name in config.sources:
            sizes = [Path(one.location).stat().st_size for one in inputs if one.source == name]
            size_bytes += sum(sizes)
            found.append(Check(f"source {name}", "ok", f"{len(sizes):,} files, {sum(sizes):,} bytes"))
    found += [Check(f"source {name}", "ok", "remote: looked at when it is fetched") for name in remote]
    for what, folder in (("output", output), ("work folder", work)):
        found.append(check_writable(what, Path(folder)))
    found.append(check_disk("room", Path(work), _TIMES * size_bytes, "free space there, or run.work on another disk"))
    return found
