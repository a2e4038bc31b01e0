"""One file on its way through the filters: verdicts, cuts and counts. Shapes: N documents of a batch, R records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.errors import JobError

from ..cuts import CUT_DTYPE, kept_pieces
from ..documents import DocumentBatch, InputFile
from .adapter import DatatroveStep
from .check import ReadyStep
from .deletions import Range, compose, first_difference, kept_ranges, to_bytes
from .judges import Judge

__all__ = ["FileScreen"]

_MAX_LABELS = 255
_MAX_REASON = 80


class _Shortened:
    """A text that filters left parts out of: what is left, from which bytes of the original, and who cut which."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces: list[Range] = [(0, len(text.encode()))]
        self.cuts: list[tuple[int, int, str]] = []

    def shorten(self, text: str, name: str) -> bool:
        """Take ``text``, which filter ``name`` made of what was left; False where that is no shortening."""
        kept = kept_ranges(self.text, text)
        if kept is None:
            return False
        in_bytes = to_bytes(self.text, kept)
        size = sum(stop - start for start, stop in self.pieces)
        cut = compose(self.pieces, list(kept_pieces(in_bytes, size)))
        self.cuts += [(start, stop - start, name) for start, stop in cut]
        self.pieces = compose(self.pieces, in_bytes)
        self.text = "".join([self.text[start:stop] for start, stop in kept])
        return True


class _Batch:
    """The documents of a batch: which are still in, and the texts that changed."""

    def __init__(self, batch: DocumentBatch) -> None:
        self.batch = batch
        self.verdict_N = np.zeros(len(batch.text), np.uint8)
        self.changed: dict[int, _Shortened] = {}

    def left(self) -> NDArray[np.int64]:
        """Documents that no filter has dropped."""
        return np.flatnonzero(self.verdict_N == 0)

    def text_of(self, index: int) -> str:
        """The text as it is now."""
        changed = self.changed.get(index)
        return str(self.batch.text[index].as_py()) if changed is None else changed.text

    def texts(self, indices: NDArray[np.int64]) -> pa.LargeStringArray:
        """The texts as they are now, as one array."""
        if self.changed:
            return pa.array([self.text_of(index) for index in indices.tolist()], pa.large_string())
        return self.batch.text if len(indices) == len(self.batch.text) else self.batch.text.take(pa.array(indices))


class FileScreen:
    """Filters on the documents of one file.

    Attributes:
        labels: what a verdict means; the first is that of documents that go on.
    """

    def __init__(self, inputs: InputFile, steps: Sequence[ReadyStep]) -> None:
        self.inputs = inputs
        self.labels = [""]
        opted_out = set(inputs.opt_out)
        self._steps = [] if "quality" in opted_out else [step for step in steps if step[0] not in opted_out]
        self._names = [name for name, _ in steps]
        self._verdicts: list[tuple[NDArray[np.int64], NDArray[np.uint8]]] = []
        self._cuts = [np.zeros(0, CUT_DTYPE)]
        self._read = np.zeros(2, np.int64)
        self._dropped: dict[str, dict[str, NDArray[np.int64]]] = {name: {} for name in self._names}
        self._file = f"{inputs.source}/{inputs.path}"
        for _, step in self._steps:
            if isinstance(step, DatatroveStep):
                step.start_file(self._file)

    def add(self, batch: DocumentBatch) -> None:
        """Judge the documents of a batch.

        Raises:
            JobError: a filter raised, or changed what it kept.
        """
        state = _Batch(batch)
        offsets = np.frombuffer(batch.text.buffers()[1], np.int64)
        size_N = np.diff(offsets[batch.text.offset : batch.text.offset + len(batch.text) + 1])
        self._read += (len(size_N), int(size_N.sum()))
        for name, step in self._steps:
            if isinstance(step, Judge):
                self._apply_judge(name, step, state, size_N)
            else:
                self._apply_datatrove(name, step, state, size_N)
        self._verdicts.append((batch.record_N, state.verdict_N))
        self._add_cuts(state)

    def _apply_judge(self, name: str, step: Judge, state: _Batch, size_N: NDArray[np.int64]) -> None:
        left = state.left()
        if len(left):
            verdict_N = step.judge(state.texts(left))
            for place in np.flatnonzero(verdict_N).tolist():
                index = int(left[place])
                state.verdict_N[index] = self._drop(name, step.reasons[verdict_N[place] - 1], int(size_N[index]))

    def _apply_datatrove(self, name: str, step: DatatroveStep, state: _Batch, size_N: NDArray[np.int64]) -> None:
        for index in state.left().tolist():
            record, text = int(state.batch.record_N[index]), state.text_of(index)
            try:
                reason, after = step.apply(text, f"{self._file}:{record}")
            except Exception as error:
                message = f"filter {name} failed on a document: {type(error).__name__}: {error}"
                place = f"{self.inputs.location} record {record}"
                raise JobError(
                    "TR-QUALITY-FAILED", message, place, "a verdict", "leave the filter out, or opt the source out"
                ) from error
            if reason is None and after != text:
                shortened = state.changed.setdefault(index, _Shortened(text))
                if not shortened.shorten(after, name):
                    raise self._rewrites(name, record, shortened, after)
                reason = None if shortened.text.strip() else "nothing left"
            if reason is not None:
                state.verdict_N[index] = self._drop(name, reason, int(size_N[index]))

    def _rewrites(self, name: str, record: int, shortened: _Shortened, after: str) -> JobError:
        same = first_difference(shortened.text, after)
        at = compose(shortened.pieces, to_bytes(shortened.text, [(0, same)]))
        byte = at[-1][1] if at else shortened.pieces[0][0]
        return JobError(
            "TR-QUALITY-REWRITES",
            f"filter {name} changes text instead of leaving parts out",
            f"{self.inputs.location} record {record} byte {byte} of the text",
            "filters that only drop documents or parts of them: every token names the bytes of the input it came from",
            f"run {name} over the input before tokenreel, and leave it out here",
        )

    def _drop(self, name: str, reason: str, size_bytes: int) -> int:
        """Count a dropped document; its verdict."""
        reason = reason.encode("ascii", "replace").decode()[:_MAX_REASON]
        label = f"{name}: {reason}"
        if label not in self.labels and len(self.labels) >= _MAX_LABELS:
            reason = "other"  # the last label: a verdict is one byte
            label = f"{name}: {reason}" if len(self.labels) == _MAX_LABELS else self.labels[-1]
        if label not in self.labels:
            self.labels.append(label)
        counts = self._dropped[name].setdefault(reason, np.zeros(2, np.int64))
        counts += (1, size_bytes)
        return self.labels.index(label)

    def _add_cuts(self, state: _Batch) -> None:
        """Keep the cuts of the batch's documents that go on; one array, not one a document."""
        cuts = [
            (int(state.batch.record_N[index]), start, count, 0, False, name.encode())
            for index, changed in sorted(state.changed.items())
            if state.verdict_N[index] == 0
            for start, count, name in changed.cuts
        ]
        if cuts:
            self._cuts.append(np.array(cuts, CUT_DTYPE))

    def verdicts(self, num_records: int) -> NDArray[np.uint8]:
        """Verdict per record (R) of the whole file."""
        verdict_R = np.zeros(num_records, np.uint8)
        for record_N, verdict_N in self._verdicts:
            verdict_R[record_N] = verdict_N
        return verdict_R

    def cuts(self) -> NDArray[Any]:
        """What was left out of documents that go on (``CUT_DTYPE``)."""
        return np.concatenate(self._cuts)

    def report(self) -> dict[str, Any]:
        """Documents and bytes: read, dropped per filter and reason, kept, and cut per filter (JSON-able)."""
        dropped = {
            name: {reason: _counts(counts) for reason, counts in reasons.items()}
            for name, reasons in self._dropped.items()
        }
        gone = sum((counts for reasons in self._dropped.values() for counts in reasons.values()), np.zeros(2, np.int64))
        cuts = self.cuts()
        cut = {}
        for name in self._names:
            mine = cuts[cuts["method"] == name.encode()]
            if len(mine):
                counts = np.array([len(np.unique(mine["record"])), mine["byte_count"].sum()], np.int64)
                cut[name] = _counts(counts)
        skipped = [name for name in self._names if name not in {name for name, _ in self._steps}]
        return {
            "read": _counts(self._read),
            "kept": _counts(self._read - gone),
            "dropped": dropped,
            "cut": cut,
            "opted_out": skipped,
        }


def _counts(pair: NDArray[np.int64]) -> dict[str, int]:
    return {"documents": int(pair[0]), "bytes": int(pair[1])}
