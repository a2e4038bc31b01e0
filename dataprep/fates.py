"""What became of every record, whichever stages decided it: one status a record, and the ranges cut from it.

Legend: R records of a file, C cuts of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError

from .cuts import load_cuts, union_by_record

__all__ = ["Fates", "check_cut"]


@dataclass(frozen=True)
class Fates:
    """Folders of the stages that decide about documents.

    Attributes:
        status: folder of the last stage that wrote ``status.<file>.npy``.
        cuts: folders of the stages that wrote ``cuts.<file>.npy``.
        tables: folders with a ``removed.parquet``, in order.
    """

    status: Path
    cuts: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()

    def status_of_file(self, file: int) -> NDArray[np.uint8]:
        """Status of each of the file's R records."""
        status_R: NDArray[np.uint8] = np.load(self.status / f"status.{file:05d}.npy", allow_pickle=False)
        return status_R

    def cuts_of_file(self, file: int) -> NDArray[Any]:
        """All cuts of the file (C), rows of ``CUT_DTYPE``."""
        return load_cuts(self.cuts, file)

    def ranges_of_file(self, file: int) -> dict[int, list[tuple[int, int]]]:
        """Record -> disjoint ascending byte ranges that are cut; {} without cutting stages."""
        return union_by_record(self.cuts_of_file(file)) if self.cuts else {}


def check_cut(text: bytes, cut: list[tuple[int, int]], place: str) -> None:
    """Refuse cuts that are no ranges of whole characters of ``text`` (UTF-8).

    Raises:
        DamageError: naming ``place``.
    """
    for start, stop in cut:
        borders = [border for border in (start, stop) if border < len(text)]
        if not 0 <= start < stop <= len(text) or any(text[border] & 0xC0 == 0x80 for border in borders):
            raise DamageError(
                "TR-WORK-DAMAGED", f"a cut from byte {start} to {stop} does not fit the text", place, "whole characters"
            )
