"""Skip entries: what a run leaves out, from which position on. Immutable; a list of them only grows.

Legend: R ranges, S segments, D documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np
from numpy.typing import NDArray

from ..canonical import digest_of
from ..errors import ConfigError
from .ranges import Ranges, union_of
from .weights import POSITION_LIMIT

__all__ = ["SKIP_VERSION", "DocumentResolver", "SkipEntry", "SkipKind", "SkipList", "SkipMode"]

SKIP_VERSION = 1
SkipKind = Literal["positions", "samples", "segments", "documents", "source"]
SkipMode = Literal["drop", "mask"]
_Ints = NDArray[np.int64]
_MODES: Mapping[str, tuple[str, ...]] = {
    "positions": ("drop",),
    "samples": ("drop", "mask"),
    "segments": ("mask",),
    "documents": ("drop", "mask"),
    "source": ("mask",),
}
_WITH_SOURCE = ("samples", "segments", "source")
_WITH_RANGES = ("positions", "samples", "segments")


class DocumentResolver(Protocol):
    """Finds the samples of a document; entries that drop documents need it."""

    def samples_of_document(self, document: int, /) -> Sequence[tuple[str, NDArray[np.int64]]]:
        """(source name, source sample numbers) that hold the document; empty if nothing does."""
        ...


@dataclass(frozen=True)
class SkipEntry:
    """One thing to leave out.

    Attributes:
        kind: what ``ranges`` or ``documents`` count: plan positions, source sample numbers, source segment numbers
            (both through the source's shards), documents, or the whole source.
        mode: ``drop`` (positions are cut from the plan; a dropped sample is replaced by its source's next one) or
            ``mask`` (the tokens stay in place, hidden and without labels).
        stamp: position from which on it acts.
        source: source name; for samples, segments and source.
        ranges: half-open ranges, for positions, samples and segments.
        documents: document ids, for documents.
        reason, evidence: why, for people; they take no part in the digest.

    Raises:
        ConfigError: the combination means nothing, or a number is out of range.
    """

    kind: SkipKind
    mode: SkipMode
    stamp: int
    source: str | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    documents: tuple[int, ...] = ()
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _MODES or self.mode not in get_args(SkipMode):
            raise _invalid(f"kind {self.kind!r}, mode {self.mode!r}", f"kinds {', '.join(_MODES)}; modes drop, mask")
        if self.kind == "source" and self.mode == "drop":
            raise ConfigError(
                "TR-SKIP-MODE",
                "a whole source cannot be dropped: every sample would be replaced by the source's next one",
                f"source {self.source!r}",
                "a mixture stage that gives the source weight 0, or mode mask",
            )
        if self.mode not in _MODES[self.kind]:
            allowed = " or ".join(_MODES[self.kind])
            raise ConfigError("TR-SKIP-MODE", f"{self.kind} cannot be skipped by mode {self.mode!r}", expected=allowed)
        if not (type(self.stamp) is int and 0 <= self.stamp < POSITION_LIMIT):
            raise _invalid(f"stamp {self.stamp!r}", "a position, 0 .. 2^36 - 1")
        if (self.source is not None) != (self.kind in _WITH_SOURCE):
            raise _invalid(f"kind {self.kind} with source {self.source!r}", "a source for samples, segments, source")
        if bool(self.ranges) != (self.kind in _WITH_RANGES) or bool(self.documents) != (self.kind == "documents"):
            raise _invalid(
                f"kind {self.kind} with {len(self.ranges)} ranges and {len(self.documents)} documents",
                "ranges for positions, samples and segments; documents for documents",
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        try:
            ranges_R2 = self.ranges_R2
        except (TypeError, ValueError, OverflowError) as error:
            raise _invalid(f"ranges of {self.kind}", "pairs of integers") from error
        wrong_R = (ranges_R2[:, 0] < 0) | (ranges_R2[:, 1] <= ranges_R2[:, 0]) | (ranges_R2[:, 1] > POSITION_LIMIT)
        if wrong_R.any():
            start, stop = ranges_R2[int(np.argmax(wrong_R))].tolist()
            raise _invalid(f"range [{start}, {stop}) of {self.kind}", "0 <= start < stop <= 2^36")
        if not all(type(document) is int and 0 <= document < 1 << 64 for document in self.documents):
            raise _invalid("a document id", "64-bit numbers")

    @cached_property
    def ranges_R2(self) -> _Ints:
        """The ranges as an array."""
        if not set(map(len, self.ranges)) <= {2} or not set(map(type, chain.from_iterable(self.ranges))) <= {int}:
            raise ValueError("not pairs of integers")
        return np.fromiter(chain.from_iterable(self.ranges), np.int64, 2 * len(self.ranges)).reshape(-1, 2)

    @cached_property
    def acting(self) -> Ranges:
        """What the ranges cover, each number once; of positions those from the stamp on."""
        starts_R, stops_R = self.ranges_R2[:, 0], self.ranges_R2[:, 1]
        return union_of(np.maximum(starts_R, self.stamp) if self.kind == "positions" else starts_R, stops_R)

    @cached_property
    def digest(self) -> str:
        """xxh3-128 of what the entry does: everything but reason and evidence."""
        meaning = self.to_json()
        del meaning["reason"], meaning["evidence"]
        return digest_of(meaning)

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; document ids as 16 hex digits."""
        return {
            "version": SKIP_VERSION,
            "kind": self.kind,
            "mode": self.mode,
            "stamp": self.stamp,
            "source": self.source,
            "ranges": [list(pair) for pair in self.ranges],
            "documents": [f"{document:016x}" for document in self.documents],
            "reason": self.reason,
            "evidence": dict(self.evidence),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SkipEntry:
        """The entry that :meth:`to_json` wrote.

        Raises:
            ConfigError: a key is missing or unknown, or a value means nothing.
        """
        keys = {"version", "kind", "mode", "stamp", "source", "ranges", "documents", "reason", "evidence"}
        if set(value) != keys or value["version"] != SKIP_VERSION:
            raise _invalid(f"keys {sorted(value)}", f"version {SKIP_VERSION} with keys {sorted(keys)}")
        try:
            return SkipEntry(
                kind=cast(SkipKind, value["kind"]),
                mode=cast(SkipMode, value["mode"]),
                stamp=value["stamp"],
                source=value["source"],
                ranges=tuple((start, stop) for start, stop in value["ranges"]),  # a number like 1.5 is refused, not cut
                documents=tuple(_document(text) for text in value["documents"]),
                reason=str(value["reason"]),
                evidence=dict(value["evidence"]),
            )
        except (TypeError, ValueError) as error:
            raise _invalid(str(error), "the JSON that a skip entry writes") from error

    def __hash__(self) -> int:
        return hash(self.digest)


class SkipList:
    """Entries in the order in which they were added. Immutable."""

    def __init__(self, entries: Iterable[SkipEntry] = ()) -> None:
        """
        Raises:
            ConfigError: something else than an entry among them.
        """
        self.entries = tuple(entries)
        for entry in self.entries:
            if not isinstance(entry, SkipEntry):
                raise _invalid(repr(entry), "a SkipEntry")

    def __iter__(self) -> Iterator[SkipEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkipList) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def extend(self, *entries: SkipEntry) -> SkipList:
        """A new list with more entries at its end."""
        return SkipList(self.entries + entries)

    def before(self, position: int) -> tuple[SkipEntry, ...]:
        """The entries stamped below ``position``, by stamp, then digest: those that can have shaped what is before."""
        acting = (entry for entry in self.entries if entry.stamp < position)
        return tuple(sorted(acting, key=lambda entry: (entry.stamp, entry.digest)))

    def digest_before(self, position: int) -> str:
        """xxh3-128 over the digests of the entries stamped below ``position``; the order of adding takes no part."""
        return digest_of([entry.digest for entry in self.before(position)])


def _document(text: str) -> int:
    if len(text) != 16 or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"no document id: {text!r}")
    return int(text, 16)


def _invalid(message: str, expected: str) -> ConfigError:
    return ConfigError("TR-SKIP-ENTRY", f"skip entry: {message}", expected=expected)
