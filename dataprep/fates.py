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

from .arrays import load_array
from .cuts import load_cuts, union_by_record
from .documents import Status

__all__ = ["Fates", "check_cut"]


@dataclass(frozen=True)
class Fates:
    """Folders of the stages that decide about documents.

    Attributes:
        status: folder of the last stage that wrote ``status.<file>.npy``.
        cuts: folders of the stages that wrote ``cuts.<file>.npy``.
        tables: folders with a ``removed.parquet``, in order.
        signed: folder of the sign stage, with the sizes of texts. With it, documents that several stages together cut
            from their first byte to their last are removed: nothing of them is left to train on.
    """

    status: Path
    cuts: tuple[Path, ...] = ()
    tables: tuple[Path, ...] = ()
    signed: Path | None = None

    def status_of_file(self, file: int) -> NDArray[np.uint8]:
        """Status of each of the file's R records."""
        status_R: NDArray[np.uint8] = load_array(self.status / f"status.{file:05d}.npy")
        for record, status, _ in self.emptied_of_file(file):
            status_R[record] = status
        return status_R

    def emptied_of_file(self, file: int) -> list[tuple[int, Status, str]]:
        """Documents that were kept or held out, and that all cuts together leave nothing of: record, status, reason."""
        if self.signed is None or not self.cuts:
            return []
        cuts_C = self.cuts_of_file(file)
        if not len(cuts_C):
            return []
        status_R = load_array(self.status / f"status.{file:05d}.npy")
        documents_D = load_array(self.signed / f"documents.{file:05d}.npy")
        size_R = np.full(len(status_R), np.iinfo(np.int64).max)
        size_R[documents_D["record"]] = documents_D["size_bytes"]
        cut_R = np.bincount(cuts_C["record"], weights=cuts_C["byte_count"], minlength=len(status_R))
        maybe_R = (cut_R >= size_R) & ((status_R == Status.KEPT) | (status_R == Status.HELD_OUT))
        maybe_C = cuts_C[maybe_R[cuts_C["record"]]]
        record_C, method_C = np.ascontiguousarray(maybe_C["record"]), np.ascontiguousarray(maybe_C["method"])
        emptied = []
        for record, ranges in union_by_record(maybe_C).items():
            if ranges == [(0, int(size_R[record]))]:
                mine = slice(*np.searchsorted(record_C, (record, record + 1)))  # cuts are sorted by record
                methods = sorted({name.decode() for name in method_C[mine].tolist()})
                emptied.append((record, _emptied_by(methods), f"cut whole: {', '.join(methods)}"))
        return emptied

    def cuts_of_file(self, file: int) -> NDArray[Any]:
        """All cuts of the file (C), rows of ``CUT_DTYPE``."""
        return load_cuts(self.cuts, file)

    def ranges_of_file(self, file: int) -> dict[int, list[tuple[int, int]]]:
        """Record -> disjoint ascending byte ranges that are cut; {} without cutting stages."""
        return union_by_record(self.cuts_of_file(file)) if self.cuts else {}


def _emptied_by(methods: list[str]) -> Status:
    """The last of the stages that cut a document whose cuts have these methods."""
    if "ngram" in methods:
        return Status.REMOVED_NGRAM
    return Status.REMOVED_CONTAMINATED if "decontaminate" in methods else Status.REMOVED_QUALITY


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
