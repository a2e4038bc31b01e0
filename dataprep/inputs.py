"""From a configuration to its input files: roots resolved, patterns expanded, every mistake named."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from loader.errors import ConfigError

from .config import BuildConfig, SourceConfig, source_priority
from .documents import InputFile
from .format_patterns import DEFAULT_PATTERNS
from .job import Job
from .places import config_paths, index_output, split_outputs
from .stages import hash_inputs

__all__ = ["check_names", "find_inputs", "load_job"]


def load_job(config: BuildConfig, base: Path, cache_path: Path | None) -> Job:
    """Find and hash all input files.

    Args:
        config: the configuration.
        base: the folder of its file; roots are relative to it.
        cache_path: where hashes are noted for the next time; None writes nothing.

    Raises:
        ConfigError: a root does not exist, or a source has no file.
    """
    inputs = find_inputs(config, base)
    raw = hash_inputs([(file.source, file.path, file.location) for file in inputs], cache_path)
    return Job(config, inputs, raw, base)


def find_inputs(config: BuildConfig, base: Path) -> tuple[InputFile, ...]:
    """The files of all sources: sources in the order of the configuration, files by relative path.

    Raises:
        ConfigError: see ``load_job``; a file name that is no plain Unicode; a match that is neither file nor folder
            (a link to nothing); a file that this job writes itself.
    """
    rank = {name: place for place, name in enumerate(source_priority(config))}
    output, work, _ = config_paths(config, base)
    own = (*split_outputs(output), index_output(output), work)
    inputs = []
    for name, source in config.sources.items():
        root = base / source.root
        opt_out = [m for name in source.opt_out for m in (config.dedup.methods if name == "dedup" else (name,))]
        for relative in _relative_paths(name, source, root):
            _check_not_own(name, root / relative, own)
            inputs.append(
                InputFile(
                    name,
                    rank[name],
                    str(root),
                    relative,
                    source.format,
                    source.text,
                    opt_out=tuple(dict.fromkeys(opt_out)),
                    date_field=source.date,
                    quality_field=source.quality,
                )
            )
    return tuple(inputs)


def _check_not_own(name: str, path: Path, own: Sequence[Path]) -> None:
    """Refuse what the job itself writes: each run would find other input."""
    for folder in own:
        if Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
            message = f"source {name!r}: its patterns match a file that this job writes"
            raise ConfigError("TR-SOURCE-OUTPUT", message, str(path), f"nothing below {folder}")


def check_names(config: BuildConfig) -> None:
    """Refuse names that no table knows: formats, packing strategies, quality filters with their options.

    Apart from reading the configuration, because the tables import the code that they name, and that takes long.

    Raises:
        ConfigError: ``TR-CONFIG-NAME``, with the names there are.
    """
    from .formats import FORMATS
    from .pack import PACKERS

    wanted: list[tuple[str, str, Mapping[str, object]]] = [
        (f"sources.{name}.format", source.format, FORMATS) for name, source in config.sources.items()
    ]
    wanted += [("pack.strategy", config.pack.strategy, PACKERS)]
    for place, name, table in wanted:
        if name not in table:
            raise ConfigError("TR-CONFIG-NAME", f"there is no {name!r}", place, f"one of {', '.join(sorted(table))}")
    if config.quality:
        from .quality.check import check_steps

        check_steps(config.quality)


def _relative_paths(name: str, source: SourceConfig, root: Path) -> list[str]:
    if not root.is_dir():
        raise ConfigError(
            "TR-SOURCE-ROOT",
            f"source {name!r}: the folder does not exist",
            str(root),
            "a folder, relative to the folder of the configuration file",
            f"ls {root.parent}",
        )
    if source.format not in DEFAULT_PATTERNS:
        expected = f"one of {', '.join(sorted(DEFAULT_PATTERNS))}"
        raise ConfigError("TR-CONFIG-NAME", f"there is no {source.format!r}", f"sources.{name}.format", expected)
    patterns = source.paths or DEFAULT_PATTERNS[source.format]
    found = {path for pattern in patterns for path in root.glob(pattern) if not path.is_dir()}
    if not found:
        raise ConfigError(
            "TR-SOURCE-EMPTY",
            f"source {name!r}: no file matches {', '.join(patterns)}",
            str(root),
            "at least one file",
            f"ls {root}",
        )
    relative = sorted(path.relative_to(root).as_posix() for path in found)
    for path in relative:
        if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in path):
            message = f"source {name!r}: a file name holds control characters or is not UTF-8"
            raise ConfigError("TR-SOURCE-NAME", message, repr(str(root / path)), "a plain name")
        if not (root / path).is_file():
            message = f"source {name!r}: no file, though its name matches (a link to nothing, a pipe, a device)"
            raise ConfigError("TR-SOURCE-FILE", message, str(root / path), "a regular file", f"ls -l {root / path}")
    return relative
