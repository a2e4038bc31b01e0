"""The ``sources`` block: where the files of a source lie and how they are read."""

from __future__ import annotations

from dataclasses import dataclass

from .config_problems import raise_problems

__all__ = ["SourceConfig"]


@dataclass(frozen=True)
class SourceConfig:
    """A named set of input files: those that ``paths`` match, or those that ``files`` or ``file_list`` name.

    Attributes:
        root: folder of the files, relative to the folder of the configuration file; or the URL of one in an object
            store, such as ``s3://bucket/crawl``.
        paths: glob patterns relative to ``root``; ``**`` crosses folders, but no links to folders: name those. A
            source that matches nothing is an error. Empty = the patterns of the format.
        files: the files one by one instead, relative to ``root``.
        file_list: or a text file with one of them a line, relative to the folder of the configuration file.
        format: a key of ``dataprep.formats.FORMATS``.
        text: the field that holds the document's text.
        rank: priority among sources in deduplication, lower wins; ``null`` = place in the file.
        date: field that ``dedup.keep: newest`` ranks by: ISO 8601 text, or seconds since 1970.
        quality: field that ``dedup.keep: quality`` ranks by: a number, larger is better.
        opt_out: what leaves this source alone: dedup methods, or ``dedup`` for all of them; ``quality``, or one of its
            filters; ``decontaminate``. Stated in the report.
    """

    root: str
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    file_list: str | None = None
    format: str = "jsonl"
    text: str = "text"
    rank: int | None = None
    date: str | None = None
    quality: str | None = None
    opt_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if sum((bool(self.paths), bool(self.files), self.file_list is not None)) > 1:
            problems.append("paths: one of paths, files, file_list")
        for key, names in (("paths", self.paths), ("files", self.files)):
            for name in names:
                if not name or name.startswith("/") or ".." in name.split("/"):
                    problems.append(f"{key}: {name!r} must stay below root")
        for pattern in self.paths:
            if any("**" in part and part != "**" for part in pattern.split("/")):
                problems.append(f"paths: {pattern!r}: ** stands between slashes alone")
        raise_problems(problems)

    @property
    def is_remote(self) -> bool:
        """Whether ``root`` is a URL."""
        return "://" in self.root
