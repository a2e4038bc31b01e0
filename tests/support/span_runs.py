"""The span stages over small corpora, and what they should find by a table of all n-grams in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dataprep.cuts import kept_pieces, load_cuts, union_by_record
from dataprep.dedup.config import DecideConfig, DedupConfig, NgramConfig, SignConfig
from dataprep.dedup.steps import SignDocuments
from dataprep.documents import InputFile, Status
from dataprep.normalize import COMMON_MARK, IGNORED, SEPARATOR, SINGLE, TABLE_SIZE, TAIL_MARKS, WORD, load_table
from dataprep.spans import SpanFolders
from dataprep.spans.steps import CutSpans, FindAnchors, FindRepeats, ListGrams
from loader.text.records import document_id

from .dedup_runs import Key

Row = tuple[int, int, int]
"""(first byte, end of bytes, document id of the witness)."""


@dataclass(frozen=True)
class Decided:
    """What a decision would leave of a job: documents in priority order, and their statuses."""

    inputs: list[InputFile]
    texts: dict[Key, str]
    order: list[Key]
    status: dict[Key, Status] = field(default_factory=dict)

    def takes_part(self, key: Key) -> bool:
        opted_out = {one.source for one in self.inputs if "ngram" in one.opt_out}
        goes_on = self.status.get(key, Status.KEPT) in (Status.KEPT, Status.HELD_OUT)
        return goes_on and key[0] not in opted_out


def span_config(n: int = 8, *, across: bool = True) -> DecideConfig:
    return DecideConfig(dedup=DedupConfig(ngram=NgramConfig(n), across=across), salt=9)


def span_folders(work: Path) -> SpanFolders:
    return SpanFolders(*(work / name for name in ("signed", "decided", "anchors", "repeats", "grams", "spans")))


def write_decision(job: Decided, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place = {key: number for number, key in enumerate(job.order)}
    for file, one in enumerate(job.inputs):
        keys = [key for key in job.texts if key[:2] == (one.source, one.path)]
        np.save(folder / f"rank.{file:05d}.npy", np.array([place[key] for key in keys], np.int64))
        status = [job.status.get(key, Status.KEPT) for key in keys]
        np.save(folder / f"status.{file:05d}.npy", np.array(status, np.uint8))


def run_spans(
    job: Decided, config: DecideConfig, work: Path, num_tasks: int = 1, memory_bytes: int = 1 << 20
) -> SpanFolders:
    """Sign, pretend to decide, and run the four stages."""
    folders = span_folders(work)
    list(SignDocuments(job.inputs, SignConfig(config.ingest, config.dedup), folders.signed).run())
    write_decision(job, folders.decided)
    for step, tasks in ((FindAnchors, num_tasks), (FindRepeats, 1), (ListGrams, num_tasks), (CutSpans, 1)):
        for rank in reversed(range(tasks)):
            list(step(job.inputs, config, folders, memory_bytes).run(None, rank, tasks))
    return folders


@dataclass(frozen=True)
class Outcome:
    """Rows, statuses and witnesses of removed documents, keyed by document."""

    rows: dict[Key, list[Row]]
    status: dict[Key, Status]
    witness: dict[Key, Key]


def read_spans(job: Decided, folders: SpanFolders) -> Outcome:
    rows: dict[Key, list[Row]] = {}
    status: dict[Key, Status] = {}
    for file, one in enumerate(job.inputs):
        for row in load_cuts([folders.spans], file):
            assert row["method"] == b"ngram"
            assert row["has_witness"]
            key = (one.source, one.path, int(row["record"]))
            start, count = int(row["byte_start"]), int(row["byte_count"])
            rows.setdefault(key, []).append((start, start + count, int(row["witness"])))
        for record, value in enumerate(np.load(folders.spans / f"status.{file:05d}.npy").tolist()):
            status[one.source, one.path, record] = Status(value)
    witness = {
        (row["source"], row["file"], row["record"]): (
            row["witness_source"],
            row["witness_file"],
            row["witness_record"],
        )
        for row in pq.read_table(folders.spans / "removed.parquet").to_pylist()
    }
    return Outcome(rows, status, witness)


def span_bytes(folders: SpanFolders) -> dict[str, bytes]:
    """Every file that the last stage left."""
    return {path.name: path.read_bytes() for path in sorted(folders.spans.iterdir())}


@dataclass
class _OpenToken:
    word: str = ""
    kind: int = SEPARATOR
    drops_marks: bool = False
    start: int = 0


def located_tokens(text: str) -> list[tuple[tuple[bool, str], int, int]]:
    """Tokens by the rules as they are written down, with their bytes: marks and format characters after a character
    belong to it."""
    table = load_table()
    tokens = []
    open_token = _OpenToken()
    at = 0
    for character in text + " ":
        entry = int(table[ord(character)]) if ord(character) < TABLE_SIZE else 0
        what = (entry >> 21) & 7
        kind = open_token.kind
        if open_token.word and (what in (SEPARATOR, SINGLE) or (what == WORD and kind == SINGLE)):
            tokens.append(((kind == SINGLE, open_token.word), open_token.start, at))
            open_token = _OpenToken()
        start, at = at, at + len(character.encode())
        drops = open_token.drops_marks or not open_token.word
        if what in (SEPARATOR, IGNORED) or (what == COMMON_MARK and drops):
            continue
        if not open_token.word:
            open_token.start = start
        open_token.word += chr(entry & 0x1FFFFF) + (chr(TAIL_MARKS[entry >> 25]) if entry >> 25 else "")
        if what in (WORD, SINGLE):
            open_token.kind, open_token.drops_marks = what, bool(entry & (1 << 24))
        elif open_token.kind == SEPARATOR:
            open_token.kind, open_token.drops_marks = WORD, False
    return tokens


def expected_rows(job: Decided, n: int, *, across: bool = True) -> dict[Key, list[Row]]:
    """Rows of all documents, those of removed ones included, from a table of all n-grams."""
    tokens = {key: located_tokens(job.texts[key]) for key in job.order if job.takes_part(key)}
    first: dict[Any, tuple[Key, int]] = {}
    for key, found in tokens.items():
        for offset in range(len(found) - n + 1):
            gram = (None if across else key[0], *(token for token, _, _ in found[offset : offset + n]))
            first.setdefault(gram, (key, offset))
    rows: dict[Key, list[Row]] = {}
    for key, found in tokens.items():
        pieces: list[list[Any]] = []  # first word, end of words, witness
        for offset in range(len(found) - n + 1):
            gram = (None if across else key[0], *(token for token, _, _ in found[offset : offset + n]))
            if first[gram] == (key, offset):
                continue
            witness = first[gram][0]
            if pieces and pieces[-1][2] == witness and offset <= pieces[-1][1]:
                pieces[-1][1] = offset + n
            else:
                pieces.append([offset, offset + n, witness])
        for before, (start, stop, witness) in zip([None, *pieces], pieces, strict=False):
            begin = found[start][1]
            if before is not None and before[1] >= start:
                begin = min(begin, found[before[1] - 1][2])
            rows.setdefault(key, []).append((begin, found[stop - 1][2], document_id(*witness, 9)))
    return rows


def left_of(text: str, rows: Sequence[Row]) -> str:
    """What is left of a text."""
    data = text.encode()
    columns = np.zeros(len(rows), [("record", "<i8"), ("byte_start", "<i8"), ("byte_count", "<i8")])
    columns["byte_start"] = [start for start, _, _ in rows]
    columns["byte_count"] = [stop - start for start, stop, _ in rows]
    cut = union_by_record(columns).get(0, [])
    return b"\xff".join(data[start:stop] for start, stop in kept_pieces(cut, len(data))).replace(b"\xff", b"").decode()


def check_spans(job: Decided, outcome: Outcome, n: int, *, across: bool = True) -> None:
    """Assert that the outcome is that of the table of all n-grams, exactly."""
    expected = expected_rows(job, n, across=across)
    gone = {key for key, rows in expected.items() if not left_of(job.texts[key], rows).strip()}
    for key in job.texts:
        before = job.status.get(key, Status.KEPT)
        assert outcome.status[key] == (Status.REMOVED_NGRAM if key in gone else before)
    assert outcome.rows == {key: sorted(rows) for key, rows in expected.items() if key not in gone}
    assert outcome.witness.keys() == gone
    place = {key: number for number, key in enumerate(job.order)}
    for key, witness in outcome.witness.items():
        assert witness not in gone
        assert job.takes_part(witness)
        assert place[witness] < place[key]
    words: Mapping[bool, set[str]] = {True: set(), False: set()}
    for key in filter(job.takes_part, job.texts):
        words[True].update(token[1] for token, _, _ in located_tokens(job.texts[key]))
        if key not in gone:
            rest = left_of(job.texts[key], outcome.rows.get(key, []))
            words[False].update(token[1] for token, _, _ in located_tokens(rest))
    assert words[True] <= words[False] | _joined(job, outcome, gone)


def _joined(job: Decided, outcome: Outcome, gone: set[Key]) -> set[str]:
    """Words of the pieces that are left, each by itself: where nothing separates pieces, joining them makes others."""
    found: set[str] = set()
    for key in filter(job.takes_part, job.texts):
        if key in gone:
            continue
        data = job.texts[key].encode()
        ranges = [(start, stop) for start, stop, _ in sorted(outcome.rows.get(key, []))]
        merged: list[tuple[int, int]] = []
        for start, stop in ranges:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        for start, stop in kept_pieces(merged, len(data)):
            found.update(token[1] for token, _, _ in located_tokens(data[start:stop].decode()))
    return found


def reordered(job: Decided, inputs: Sequence[InputFile]) -> Decided:
    """The same job with its files listed in another order."""
    texts = {key: job.texts[key] for one in inputs for key in job.texts if key[:2] == (one.source, one.path)}
    return replace(job, inputs=list(inputs), texts=texts)
