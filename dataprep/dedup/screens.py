"""Verdicts of the screens in front of dedup: which documents they took, and why.

A screen's folder holds, per file index, ``verdict.00012.npy`` (uint8 per record number: 0 = goes on, k = taken for
label k) and ``screen.00012.json`` with the ``labels``. Of several screens the first that took a document counts.
Shapes: R records of a file, D documents of a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError

from ..documents import Status

__all__ = ["Screens"]


class Screens:
    """All screens of a job, in their order."""

    def __init__(self, screens: Sequence[tuple[Status, Path]], num_records: Sequence[int]) -> None:
        """``num_records``: of each file."""
        self._screens = screens
        self._num_records = num_records

    def took(self, file: int) -> NDArray[np.bool_] | None:
        """Bool by record number: taken by a screen; None if there is no screen.

        Raises:
            DamageError: a verdict is missing or no verdict, naming the file.
        """
        if not self._screens:
            return None
        taken_R = self._verdict(self._screens[0][1], file) > 0
        for _, folder in self._screens[1:]:
            taken_R |= self._verdict(folder, file) > 0
        return taken_R

    def fates(self, file: int, record_D: NDArray[np.int64]) -> tuple[NDArray[np.uint8], list[str | None]]:
        """Status (uint8; KEPT where nothing took it) and reason of documents of a file.

        Raises:
            DamageError: see ``took``; or a verdict without a label.
        """
        status_D = np.full(len(record_D), Status.KEPT, np.uint8)
        reason_D: list[str | None] = [None] * len(record_D)
        for status, folder in self._screens:
            verdict_D = self._verdict(folder, file)[record_D]
            taken = np.flatnonzero((verdict_D > 0) & (status_D == Status.KEPT))
            if len(taken):
                labels = self._labels(folder, file, int(verdict_D.max()))
                for place, verdict in zip(taken.tolist(), verdict_D[taken].tolist(), strict=True):
                    reason_D[place] = labels[verdict]
                status_D[taken] = status
        return status_D, reason_D

    def _verdict(self, folder: Path, file: int) -> NDArray[np.uint8]:
        path = folder / f"verdict.{file:05d}.npy"
        try:
            verdict_R: NDArray[np.uint8] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._damage(folder, file, str(error)) from error
        if verdict_R.dtype != np.uint8 or verdict_R.shape != (self._num_records[file],):
            raise self._damage(folder, file, f"{verdict_R.dtype} {verdict_R.shape}")
        return verdict_R

    def _labels(self, folder: Path, file: int, highest: int) -> list[str]:
        path = folder / f"screen.{file:05d}.json"
        try:
            labels: list[str] = json.loads(path.read_bytes())["labels"]
            if len(labels) <= highest:
                raise ValueError(f"verdict {highest} has no label")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamageError(
                "TR-SCREEN-DAMAGED", f"no labels of a screen: {error}", str(path), "a finished screen"
            ) from error
        return labels

    @staticmethod
    def _damage(folder: Path, file: int, what: str) -> DamageError:
        path = folder / f"verdict.{file:05d}.npy"
        return DamageError("TR-SCREEN-DAMAGED", f"no verdicts of a screen: {what}", str(path), "a finished screen")
