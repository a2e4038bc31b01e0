"""Where the input files of a Dataset lie on this machine, and how each is read.

A Dataset names its files relative to their source's root and knows format and text field from its configuration. The
roots are no part of it: ``job.json`` remembers them relative to the Dataset's folder, and ``--root`` overrides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..shards.access import check_size
from .records import RecordPlace, read_texts

if TYPE_CHECKING:
    from ..shards.dataset import Dataset

__all__ = ["TextSource", "parse_roots"]


def parse_roots(options: Sequence[str]) -> dict[str, Path]:
    """``SOURCE=FOLDER`` or one ``FOLDER`` for all sources (key ``""``), as ``--root`` takes them.

    Raises:
        ConfigError: a folder is not there.
    """
    roots: dict[str, Path] = {}
    for option in options:
        name, found, folder = option.partition("=")
        source, path = (name, Path(folder)) if found else ("", Path(option))
        if not path.is_dir():
            raise ConfigError("TR-TEXT-ROOT", f"no folder {path}", f"--root {option}", "the root of the input files")
        roots[source] = path
    return roots


class TextSource:
    """Texts of documents of one Dataset by Origin."""

    def __init__(self, dataset: Dataset, roots: Mapping[str, Path]) -> None:
        """``roots``: source to folder, ``""`` for all; what is missing comes from job.json."""
        self._dataset = dataset
        self._settings = _source_settings(dataset.manifest.config)
        self._roots = {**_remembered_roots(dataset.path), **roots}

    def texts(self, file: int, places: Sequence[RecordPlace]) -> dict[RecordPlace, str]:
        """Texts of records of input file ``file`` (a line of files.txt), read in one pass.

        Raises:
            ConfigError: the file cannot be found.
            DamageError: it is not the file that was built: another size, or no such records in it. What was edited in
                place without changing either is not noticed; the hash in files.txt would tell.
        """
        entry = self._dataset.input_files()[file]
        root = self._roots.get(entry.source, self._roots.get(""))
        if root is None:
            raise ConfigError(
                "TR-TEXT-ROOT",
                f"the input files of source {entry.source!r} are not known here",
                str(self._dataset.path / "job.json"),
                "their root",
                f"--root {entry.source}=FOLDER",
            )
        settings = self._settings.get(entry.source, {})
        format_name, text_field = str(settings.get("format", "jsonl")), str(settings.get("text", "text"))
        path = root / entry.path
        if entry.size_bytes >= 0 and path.is_file():
            check_size(path, path.stat().st_size, entry.size_bytes)
        return read_texts(path, format_name, text_field, places)


def _source_settings(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Format and text field by source, from a Dataset's configuration; defaults where it has none."""
    sources = config.get("sources", [])
    if isinstance(sources, Mapping):
        return {str(name): value for name, value in sources.items() if isinstance(value, Mapping)}
    return {str(value["name"]): value for value in sources if isinstance(value, Mapping) and "name" in value}


def _remembered_roots(folder: Path) -> dict[str, Path]:
    """``roots`` of job.json, relative to the Dataset; job.json is covered by no digest, so nothing in it is trusted
    beyond where to look, and an unreadable one says nothing."""
    try:
        roots = json.loads((folder / "job.json").read_bytes()).get("roots", {})
        return {str(source): folder / str(root) for source, root in roots.items()}
    except (OSError, ValueError, AttributeError):
        return {}
