"""What every step of a job needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .config import BuildConfig
from .documents import InputFile
from .stages import RawFile

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """A configuration and its input files.

    Attributes:
        config: the whole configuration; a step uses only what its stage's digest covers.
        inputs: the files, as the readers take them; a file's index is its place here.
        raw: the same files, as they were when first read.
        base: folder of the configuration file; paths in it are relative to here.
    """

    config: BuildConfig
    inputs: tuple[InputFile, ...]
    raw: tuple[RawFile, ...]
    base: Path = Path()
