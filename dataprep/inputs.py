"""From a configuration to its input files: roots resolved, patterns and lists expanded, remote files mirrored, every
mistake named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loader.cli_options import Output
from loader.errors import ConfigError
from loader.remote.store import open_store
from loader.remote.store_failures import Transfer

from .config import BuildConfig, SourceConfig, source_priority
from .documents import InputFile
from .format_patterns import DEFAULT_PATTERNS
from .input_names import name_problem, read_file_list
from .job import Job
from .pipeline import locked
from .places import config_paths, index_output, split_outputs
from .remote.globs import Pattern
from .remote.listing import find_objects, look_up
from .remote.mirror import RemoteInput, fetch_all, mirrored, to_fetch
from .stages import hash_inputs

__all__ = ["FoundInputs", "check_names", "find_inputs", "load_job", "locate_inputs"]

_HASH_UNKNOWN = ""
_ANY_DEPTH = 1 << 20


@dataclass(frozen=True)
class FoundInputs:
    """All input files of a job.

    Attributes:
        inputs: as the readers take them, in their order.
        remote: those that come from a store, by their place in ``inputs``.
    """

    inputs: tuple[InputFile, ...]
    remote: Mapping[int, RemoteInput]


def load_job(
    config: BuildConfig,
    base: Path,
    cache_path: Path | None,
    *,
    output: Output | None = None,
    read_only: bool = False,
) -> Job:
    """Find all input files, fetch remote ones into the mirror, hash them.

    Args:
        config: the configuration.
        base: the folder of its file; roots are relative to it.
        cache_path: where hashes are noted for the next time; None for nowhere.
        output: where progress is shown; silent without.
        read_only: fetch and write nothing: a remote file that the mirror lacks has an empty hash in ``Job.raw``.

    Raises:
        ConfigError: a root does not exist, a source has no file, or a store cannot be opened.
        JobError, RefusedError: a remote file cannot be had.
    """
    found = locate_inputs(config, base)
    rehash = config.run.rehash
    lacking, notes = to_fetch(found.remote.values(), rehash=rehash)
    if read_only:
        notes |= {os.path.abspath(r.location): (r.file.size_bytes, 0, _HASH_UNKNOWN) for r in lacking}
    elif lacking:
        with locked(config_paths(config, base)[1]):
            # Once more: another job in this folder may have fetched them while this one waited for the listing.
            lacking, notes = to_fetch(found.remote.values(), rehash=rehash)
            notes |= fetch_all(lacking, output or Output(quiet=True), Transfer())
    files = [(file.source, file.path, file.location) for file in found.inputs]
    raw = hash_inputs(files, cache_path, notes, rehash=rehash, write=not read_only)
    return Job(config, found.inputs, raw, base)


def find_inputs(config: BuildConfig, base: Path) -> tuple[InputFile, ...]:
    """The files of all sources: sources in the order of the configuration, files by relative path.

    Raises:
        ConfigError: see ``load_job``; a file name that is no plain Unicode; a match that is neither file nor folder
            (a link to nothing); a file that this job writes itself.
    """
    return locate_inputs(config, base).inputs


def locate_inputs(config: BuildConfig, base: Path) -> FoundInputs:
    """``find_inputs``, and what of it has to be fetched; stores are listed, nothing is fetched."""
    rank = {name: place for place, name in enumerate(source_priority(config))}
    output, work, _ = config_paths(config, base)
    own = (*split_outputs(output), index_output(output), work)
    inputs: list[InputFile] = []
    remote: dict[int, RemoteInput] = {}
    for name, source in config.sources.items():
        _check_format(name, source)
        opt_out = [m for name in source.opt_out for m in (config.dedup.methods if name == "dedup" else (name,))]
        for place in _places(name, source, base, work):
            if isinstance(place, RemoteInput):
                remote[len(inputs)] = place
                root, relative = place.root, place.file.path
            else:
                root, relative = base / source.root, place
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
    return FoundInputs(tuple(inputs), remote)


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


def _check_format(name: str, source: SourceConfig) -> None:
    if source.format not in DEFAULT_PATTERNS:
        expected = f"one of {', '.join(sorted(DEFAULT_PATTERNS))}"
        raise ConfigError("TR-CONFIG-NAME", f"there is no {source.format!r}", f"sources.{name}.format", expected)


def _places(name: str, source: SourceConfig, base: Path, work: Path) -> Sequence[str | RemoteInput]:
    """The files of one source by relative path: names below a local root, objects of a store."""
    named = list(source.files)
    if source.file_list is not None:
        named = read_file_list(base / source.file_list, name)
    if not source.is_remote:
        return _local_names(name, source, base / source.root, named)
    transfer = Transfer()
    store = open_store(source.root, transfer)
    if named:
        files = look_up(store, sorted(named), transfer)
    else:
        patterns = source.paths or DEFAULT_PATTERNS[source.format]
        files = find_objects(store, patterns, transfer)
        if not files:
            raise _no_match(name, patterns, store.url)
    for file in files:
        _check_name(name, file.path, f"{store.url}/{file.path}")
    return [mirrored(work, store, file) for file in files]


def _local_names(name: str, source: SourceConfig, root: Path, named: Sequence[str]) -> list[str]:
    if not root.is_dir():
        raise ConfigError(
            "TR-SOURCE-ROOT",
            f"source {name!r}: the folder does not exist",
            str(root),
            "a folder, relative to the folder of the configuration file",
            f"ls {root.parent}",
        )
    relative = sorted(named)
    if not named:
        patterns = source.paths or DEFAULT_PATTERNS[source.format]
        _check_folders(name, root, patterns)
        matches = {path for pattern in patterns for path in root.glob(pattern)}
        found = {path for path in matches if not path.is_dir()}
        _check_unread(name, root, matches - found, found)
        if not found:
            raise _no_match(name, patterns, str(root))
        relative = sorted(path.relative_to(root).as_posix() for path in found)
    for path in relative:
        _check_name(name, path, str(root / path))
        if not (root / path).is_file():
            what = "no file, though its name matches (a link to nothing, a pipe, a device)"
            if named:
                what = (
                    "no file, though it is named"
                    if os.path.lexists(root / path)
                    else "no such file, though it is named"
                )
            message = f"source {name!r}: {what}"
            raise ConfigError("TR-SOURCE-FILE", message, str(root / path), "a regular file", f"ls -l {root / path}")
    return relative


def _check_folders(name: str, root: Path, patterns: Sequence[str]) -> None:
    """Refuse folders that may not be read: a pattern passes over them, and so over their files, without a word."""

    def refuse(error: OSError) -> None:
        place = str(error.filename)
        if not isinstance(error, FileNotFoundError | NotADirectoryError) and not place.endswith("/lost+found"):
            message = f"source {name!r}: a folder cannot be read: {error.strerror}"
            raise ConfigError("TR-SOURCE-FILE", message, place, "folders that can be read", f"ls {place}") from error

    deepest: set[tuple[Path, int]] = set()
    for pattern in patterns:
        start = root / Pattern(pattern).folder
        levels = len((root / pattern).parts) - len(start.parts)
        deepest.add((start, _ANY_DEPTH if "**" in pattern.split("/") else levels))
    for start, levels in deepest:
        for folder, below, _ in os.walk(start, onerror=refuse):
            if len(Path(folder).parts) - len(start.parts) + 1 >= levels:
                below.clear()


def _check_unread(name: str, root: Path, folders: Iterable[Path], found: Iterable[Path]) -> None:
    """Refuse folders named like files (``a.jsonl/part-0``, as Spark writes them) of which nothing is read."""
    read = {parent for path in found for parent in path.parents}
    for folder in sorted(folders):
        if folder.suffix and folder not in read and any(path.is_file() for path in folder.rglob("*")):
            message = f"source {name!r}: a folder with the name of a file, and no pattern matches the files in it"
            expected = f"a pattern for them, such as {folder.relative_to(root).as_posix()}/*"
            raise ConfigError("TR-SOURCE-FILE", message, str(folder), expected, f"ls {folder}")


def _no_match(name: str, patterns: Sequence[str], root: str) -> ConfigError:
    message = f"source {name!r}: no file matches {', '.join(patterns)}"
    return ConfigError("TR-SOURCE-EMPTY", message, root, "at least one file", None if "://" in root else f"ls {root}")


def _check_name(name: str, path: str, place: str) -> None:
    problem = name_problem(path)
    if problem is not None:
        message = f"source {name!r}: a file name {problem}"
        raise ConfigError("TR-SOURCE-NAME", message, repr(place), "a plain name")
