"""The ``sources`` block: where the files of a source lie and how they are read."""

from __future__ import annotations

from dataclasses import dataclass

from loader.remote.store import is_url
from loader.remote.store_failures import url_problem

from .config_problems import raise_problems
from .input_names import duplicate_names, name_problem

__all__ = ["SourceConfig"]


@dataclass(frozen=True)
class SourceConfig:
    """A named set of input files: those that ``paths`` match, or those that ``files`` or ``file_list`` name.

    Attributes:
        root: folder of the files, relative to the folder of the configuration file; or a URL: ``s3://bucket/crawl``,
            ``gs://``, ``az://``, ``https://`` (which lists nothing: name its files), or any other scheme whose fsspec
            file system is installed, such as ``hf://datasets/...``. Remote files are fetched into the work folder
            first. Credentials are never written here: the usual variables (``AWS_ACCESS_KEY_ID``,
            ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``, ``AWS_ENDPOINT_URL`` for another server
            than Amazon's, also a local one over plain HTTP, ``AWS_SKIP_SIGNATURE=true`` for public buckets;
            ``GOOGLE_...``, ``AZURE_...``) or an AWS profile are read.
        paths: glob patterns relative to ``root``; ``**`` crosses folders, but no links to folders: name those. A
            source that matches nothing is an error. Empty = the patterns of the format.
        files: the files one by one instead, relative to ``root``, in any order.
        file_list: or a text file with one of them a line, relative to the folder of the configuration file. Blank
            lines and lines that start with ``#`` are passed over.
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
        for pattern in self.paths:
            if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
                problems.append(f"paths: {pattern!r} must stay below root")
        problems += [f"files: {name!r} {problem}" for name in self.files if (problem := name_problem(name))]
        problems += [f"files: {name!r} stands there twice" for name in duplicate_names(self.files)]
        if self.is_remote and (problem := url_problem(self.root)):
            problems.append(f"root: {problem}")
        if self.file_list is not None and not (self.file_list and self.file_list.isprintable()):
            problems.append("file_list: a text file with one file a line")
        for pattern in self.paths:
            if any("**" in part and part != "**" for part in pattern.split("/")):
                problems.append(f"paths: {pattern!r}: ** stands between slashes alone")
        raise_problems(problems)

    @property
    def is_remote(self) -> bool:
        """Whether ``root`` is a URL."""
        return is_url(self.root)
