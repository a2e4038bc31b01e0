"""A self-test on planted passages: the whole way through the four stages, with known answers.

Texts are made of numbered words, so that no passage occurs by accident.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from loader.errors import JobError

from ..cuts import load_cuts, union_by_record
from ..dedup.config import DecideConfig, DedupConfig, NgramConfig, SignConfig
from ..dedup.signatures import load_signed, sign_file
from ..documents import InputFile, Status
from .store import SpanFolders, save_array

__all__ = ["check_canary"]

Planted = tuple[str, tuple[int, int] | None]
"""A text, and the bytes that must be cut of it (None: the document goes whole)."""

_UNTOUCHED = (0, 0)


def _words() -> Iterator[str]:
    number = 0
    while True:
        yield f"canary{number}"
        number += 1


def _planted(n: int) -> list[Planted]:
    """Texts in priority order: a passage of ``n`` words, each way it may come back, and what is one word too short."""
    words = _words()

    def fresh(count: int) -> list[str]:
        return [next(words) for _ in range(count)]

    passage, long = fresh(n), fresh(2 * n + 1)
    first = " ".join([*fresh(3), *passage, *fresh(3), *long])
    wrapped = ",\n".join(word.upper() for word in passage)
    plain = " ".join(passage)
    planted: list[Planted] = [(first, _UNTOUCHED), (plain, None), (" ".join(long[: n - 1]), _UNTOUCHED)]
    for text in (plain, wrapped, " ".join(long)):
        for before, after in (
            ("", " ".join(fresh(2))),
            (" ".join(fresh(n)), ""),
            (f"\u00e9{next(words)} ", f". {next(words)}\u4e2d"),
        ):
            head = before + " "
            planted.append((head + text + " " + after, (len(head.encode()), len((head + text).encode()))))
    apart = " ".join([*passage[: n - 1], next(words), *passage[1:]])
    return [*planted, (apart, _UNTOUCHED), (" ".join(passage[1:]), _UNTOUCHED)]


def check_canary(n: int) -> int:
    """Plant passages of ``n`` words and more in memory-sized files, cut them, compare; returns how many were planted.

    Raises:
        JobError: ``TR-SPANS-CANARY``: a cut is missing, or is not where it must be.
    """
    planted = _planted(n)
    with tempfile.TemporaryDirectory(prefix="tokenreel-canary-") as name:
        statuses, ranges = _cut_planted(planted, n, Path(name))
    wrong = []
    for record, (text, cut) in enumerate(planted):
        expected = [cut] if cut not in (None, _UNTOUCHED) else []
        if ranges.get(record, []) != expected or (statuses[record] == Status.REMOVED_NGRAM) != (cut is None):
            wrong.append(f"{text[:40]!r}: {ranges.get(record, [])}, expected {'all' if cut is None else expected}")
    if wrong:
        raise JobError(
            "TR-SPANS-CANARY",
            f"{len(wrong)} of {len(planted)} planted documents are cut wrongly",
            wrong[0],
            "all right",
        )
    return len(planted)


def _cut_planted(
    planted: Sequence[Planted], n: int, folder: Path
) -> tuple[list[int], dict[int, list[tuple[int, int]]]]:
    from .steps import CutSpans, FindAnchors, FindRepeats, ListGrams

    lines = [json.dumps({"text": text}) + "\n" for text, _ in planted]
    (folder / "canary.jsonl").write_text("".join(lines), encoding="ascii")
    inputs = InputFile("canary", 0, str(folder), "canary.jsonl")
    config = DecideConfig(dedup=DedupConfig(methods=("exact",), ngram=NgramConfig(n)))
    folders = SpanFolders(*(folder / kind for kind in ("signed", "decided", "anchors", "repeats", "grams", "spans")))
    sign_file(inputs, 0, SignConfig(config.ingest, config.dedup), folders.signed)
    size = len(load_signed(folders.signed, 0).documents)
    save_array(folders.decided / "status.00000.npy", np.full(size, Status.KEPT, np.uint8))
    save_array(folders.decided / "rank.00000.npy", np.arange(size))
    for step in (FindAnchors, FindRepeats, ListGrams, CutSpans):
        list(step([inputs], config, folders, 1 << 24).run())
    statuses = np.load(folders.spans / "status.00000.npy").tolist()
    return statuses, union_by_record(load_cuts([folders.spans], 0))
