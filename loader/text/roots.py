"""Where the input files of a Dataset lie, and how each is read.

A Dataset names its files relative to their source's root and knows format and text field from its configuration. The
roots are no part of it: ``job.json`` remembers them, folders relative to the Dataset's, URLs as they are, and
``--root`` overrides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, TokenreelError
from ..remote.store import is_url, open_store
from ..remote.store_failures import url_problem
from ..shards.access import check_size
from .records import RecordPlace, read_texts
from .token_texts import TokenTexts, is_imported

if TYPE_CHECKING:
    from ..shards.dataset import Dataset
    from .remote_texts import RemoteTexts

__all__ = ["Root", "TextSource", "parse_roots"]

Root = Path | str
"""A folder, or a URL."""


def parse_roots(options: Sequence[str]) -> dict[str, Root]:
    """``SOURCE=FOLDER`` or one ``FOLDER`` for all sources (key ``""``), as ``--root`` takes them; a URL is as good as a
    folder.

    Raises:
        ConfigError: a folder is not there; a URL is malformed or holds credentials.
    """
    roots: dict[str, Root] = {}
    for option in options:
        name, found, place = option.partition("=")
        source, root = (name, place) if found and not is_url(name) else ("", option)
        if is_url(root):
            problem = url_problem(root)
            if problem is not None:
                raise ConfigError("TR-REMOTE-URL", problem, "--root", "a URL such as s3://bucket/folder")
            roots[source] = root
            continue
        path = Path(root)
        if not path.is_dir():
            raise ConfigError("TR-TEXT-ROOT", f"no folder {path}", f"--root {option}", "the root of the input files")
        roots[source] = path
    return roots


class TextSource:
    """Texts of documents of one Dataset by Origin."""

    def __init__(self, dataset: Dataset, roots: Mapping[str, Root]) -> None:
        """``roots``: source to folder or URL, ``""`` for all; what is missing comes from job.json."""
        self._dataset = dataset
        self._settings = _source_settings(dataset.manifest.config)
        self._roots: dict[str, Root] = dict(roots)
        self._remembered: dict[str, Root] | None = None
        self._remote: dict[str, RemoteTexts] = {}
        self._decoded: TokenTexts | None = None

    def texts(self, file: int, places: Sequence[RecordPlace]) -> dict[RecordPlace, str]:
        """Texts of records of input file ``file`` (a line of files.txt), read in one pass.

        Raises:
            ConfigError: the file cannot be found.
            DamageError: it is not the file that was built: another size, or no such records in it. What was edited in
                place without changing either is not noticed; the hash in files.txt would tell.
            JobError: a remote file cannot be had.
        """
        entry = self._dataset.input_files()[file]
        if is_imported(self._dataset):
            if self._decoded is None:
                self._decoded = TokenTexts(self._dataset)
            return self._decoded.texts(entry, places)
        root = self._root_of(entry.source)
        if root is None:
            raise ConfigError(
                "TR-TEXT-ROOT",
                f"the input files of source {entry.source!r} are not known here",
                f"{self._dataset.location}/job.json",
                "their root",
                f"--root {entry.source}=FOLDER",
            )
        settings = self._settings.get(entry.source, {})
        format_name, text_field = str(settings.get("format", "jsonl")), str(settings.get("text", "text"))
        if isinstance(root, str):
            return self._texts_of(root).texts(entry, (format_name, text_field), places)
        path = root / entry.path
        if entry.size_bytes >= 0 and path.is_file():
            check_size(path, path.stat().st_size, entry.size_bytes)
        return read_texts(path, format_name, text_field, places)

    def _root_of(self, source: str) -> Root | None:
        """As given; else as job.json remembers it."""
        given = self._roots.get(source, self._roots.get(""))
        if given is None and self._remembered is None:
            self._remembered = _remembered_roots(self._dataset)
        return given or (self._remembered or {}).get(source)

    def _texts_of(self, url: str) -> RemoteTexts:
        if url not in self._remote:
            from .remote_texts import RemoteTexts

            self._remote[url] = RemoteTexts(open_store(url))
        return self._remote[url]


def _source_settings(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Format and text field by source, from a Dataset's configuration; defaults where it has none."""
    sources = config.get("sources", [])
    if isinstance(sources, Mapping):
        return {str(name): value for name, value in sources.items() if isinstance(value, Mapping)}
    return {str(value["name"]): value for value in sources if isinstance(value, Mapping) and "name" in value}


def _remembered_roots(dataset: Dataset) -> dict[str, Root]:
    """``roots`` of job.json, relative to the Dataset; job.json is covered by no digest, so nothing in it is trusted
    beyond where to look, and an unreadable one says nothing. That of a Dataset at a URL names no folder of this
    machine: its URLs alone count."""
    is_far = is_url(dataset.location)
    try:
        roots = json.loads(dataset.storage.unverified("job.json")).get("roots", {})
        named = {str(source): str(root) for source, root in roots.items()}
    except (OSError, ValueError, AttributeError, TokenreelError):
        return {}
    urls: dict[str, Root] = {source: root for source, root in named.items() if is_url(root) and not url_problem(root)}
    folders = {} if is_far else {source: dataset.path / root for source, root in named.items() if not is_url(root)}
    return {**folders, **urls}
