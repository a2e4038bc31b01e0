"""What every input format must hold: an entry of the table without its row here does not exist."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from support.warc import NO_ENCODING, warc_record

from dataprep.documents import InputFile
from dataprep.format_patterns import DEFAULT_PATTERNS
from dataprep.formats import FORMATS, ReadOptions, RejectSink, read_file
from loader.errors import ConfigError, DamageError, RefusedError
from loader.text.records import TEXT_READERS, RecordPlace, read_texts

Texts = list[str | None]


def write_jsonl(path: Path, texts: Texts) -> None:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts), encoding="utf-8")


def write_text(path: Path, texts: Texts) -> None:
    path.write_bytes((texts[0] or "").encode())


def write_paragraphs(path: Path, texts: Texts) -> None:
    """A record without text is one that is no UTF-8."""
    parts = [text.encode() if text is not None else b"\xff" for text in texts]
    path.write_bytes(b"\n" + b"\n \t\n\n".join(parts) + b"\n")


def write_parquet(path: Path, texts: Texts) -> None:
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=3)


def write_arrow(path: Path, texts: Texts) -> None:
    table = pa.table({"id": range(len(texts)), "text": texts})
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_arrow_stream(path: Path, texts: Texts) -> None:
    table = pa.table({"id": range(len(texts)), "text": texts})
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def write_warc(path: Path, texts: Texts) -> None:
    """A record without text is a page in no encoding."""
    pages = [text.encode() if text is not None else NO_ENCODING for text in texts]
    records = [warc_record(page) for page in pages]
    path.write_bytes(b"".join(gzip.compress(r, mtime=0) if path.suffix == ".gz" else r for r in records))


@dataclass(frozen=True)
class Row:
    """How a format is written, under which name, and what it cannot say: more than one text, texts with these in."""

    write: Callable[[Path, Texts], None]
    name: str
    without: str = ""
    one: bool = False


ROWS: dict[str, list[Row]] = {
    "arrow": [Row(write_arrow, "input.arrow"), Row(write_arrow_stream, "input.arrow")],
    "huggingface": [Row(write_arrow_stream, "data-00000-of-00001.arrow"), Row(write_parquet, "input.parquet")],
    "jsonl": [Row(write_jsonl, "input.jsonl")],
    "parquet": [Row(write_parquet, "input.parquet")],
    "text": [Row(write_text, "input.txt", without="\ufeff", one=True)],
    "text_paragraphs": [Row(write_paragraphs, "input.txt", without="\r")],
    "warc": [Row(write_warc, "input.warc"), Row(write_warc, "input.warc.gz")],
}
TEXTS = [
    "plain",
    "Ünïcode 中文 😀",
    'with "quotes" \\ and\nline\tbreaks\r',
    "\ufeffmark",
    "x" * 100_000,
    "a\0b",
    "last",
]


@dataclass(frozen=True)
class Case:
    """A file with all texts that its format can say, and a record without one at place 3 (None) where it can."""

    inputs: InputFile
    row: Row
    texts: Texts

    @property
    def good(self) -> dict[int, str]:
        return {place: text for place, text in enumerate(self.texts) if text is not None}


def write_case(folder: Path, name: str, row: Row) -> Case:
    texts: Texts = [text for text in TEXTS if not row.without or row.without not in text]
    texts = ["\n\n".join(filter(None, texts))] if row.one else [*texts[:3], None, *texts[3:]]
    row.write(folder / row.name, texts)
    return Case(InputFile("s", 0, str(folder), row.name, format=name), row, texts)


def test_every_format_has_its_row_in_every_table() -> None:
    assert ROWS.keys() == FORMATS.keys() == TEXT_READERS.keys() == DEFAULT_PATTERNS.keys()


@pytest.fixture(params=[(name, place) for name in sorted(FORMATS) for place in range(len(ROWS[name]))], ids=str)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    name, place = request.param
    return write_case(tmp_path, name, ROWS[name][place])


def collect(case: Case, found: dict[int, str], **arguments: Any) -> None:
    for batch in read_file(case.inputs, 5, **arguments):
        found.update(zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True))


def read_all(case: Case, **arguments: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    collect(case, found, **arguments)
    return found


def test_default_patterns_find_the_file(case: Case, tmp_path: Path) -> None:
    assert case.inputs.location in {path for p in DEFAULT_PATTERNS[case.inputs.format] for path in tmp_path.glob(p)}


def test_texts_are_the_same_bytes_and_bad_records_cost_themselves(case: Case) -> None:
    sink, found = RejectSink(), {}
    for batch in read_file(case.inputs, 5, rejects=sink):
        batch.text.validate(full=True)
        assert batch.file == 5
        assert batch.source == "s"
        assert batch.text.null_count == 0
        assert batch.extra_N is None
        assert batch.record_N.dtype == np.int64 == batch.record_start_N.dtype
        buffers = batch.text.buffers()
        assert buffers[2].size >= int(np.frombuffer(buffers[1], np.int64)[len(batch.text)]) + 64
        found.update(zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True))
    assert found == case.good
    assert sink.rows["record"].tolist() == [place for place, text in enumerate(case.texts) if text is None]
    assert sink.summary is not None
    summary = (sink.summary.num_documents, sink.summary.num_rejected, sink.summary.num_records, sink.summary.num_blank)
    assert summary == (len(found), len(case.texts) - len(found), len(case.texts), 0)


def test_the_batch_size_changes_nothing(case: Case) -> None:
    sinks = [RejectSink(), RejectSink()]
    small, large = (
        read_all(case, rejects=sink, options=ReadOptions(batch_bytes=size))
        for sink, size in zip(sinks, (1, 1 << 23), strict=True)
    )
    assert list(small.items()) == list(large.items())
    assert sinks[0].summary == sinks[1].summary
    assert (sinks[0].rows == sinks[1].rows).all()


def test_the_line_limit_costs_the_long_record(case: Case) -> None:
    sink = RejectSink()
    found = read_all(case, rejects=sink, options=ReadOptions(line_limit_bytes=50_000))
    short = {place: text for place, text in case.good.items() if len(text) < 50_000}
    assert found == short
    assert 8 in sink.rows["reason"]
    assert len(sink.rows) == len(case.texts) - len(short)


def test_selection_gives_the_same_texts(case: Case) -> None:
    keep = np.zeros(len(case.texts), np.bool_)
    keep[[0, -1]] = True
    sink, again = RejectSink(), RejectSink()
    read_all(case, rejects=sink)
    assert sink.summary is not None
    found = read_all(case, keep_R=keep, expected=sink.summary, rejects=again)
    assert found == {place: case.good[place] for place in np.flatnonzero(keep).tolist()}
    assert len(again.rows) == 0
    assert again.summary is not None
    assert (again.summary.stream_hash, again.summary.num_records) == (
        sink.summary.stream_hash,
        sink.summary.num_records,
    )


def test_a_changed_file_is_refused(case: Case) -> None:
    sink = RejectSink()
    read_all(case, rejects=sink)
    last = case.texts[-1]
    assert last is not None
    case.row.write(case.inputs.location, [*case.texts[:-1], last[:-4] + "lost"])
    for keep in (None, np.arange(len(case.texts)) == 0):
        with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
            read_all(case, keep_R=keep, expected=sink.summary)


def test_a_record_is_found_again_by_its_origin(case: Case) -> None:
    found: dict[RecordPlace, str] = {}
    for batch in read_file(case.inputs, 0):
        starts = zip(batch.record_start_N.tolist(), batch.record_N.tolist(), strict=True)
        found.update(zip((RecordPlace(*start) for start in starts), batch.text.to_pylist(), strict=True))
    places = list(found)
    for wanted in (places, places[::-1], places[-1:], places[1::2] or places):
        again = read_texts(case.inputs.location, case.inputs.format, "text", wanted)
        assert again == {place: found[place] for place in wanted}


def test_a_missing_file_is_named(case: Case) -> None:
    case.inputs.location.unlink()
    with pytest.raises(ConfigError, match=rf"TR-INPUT-MISSING(.|\n)*{case.row.name}"):
        read_all(case)


def test_a_cut_file_names_itself_after_what_lies_in_front(case: Case) -> None:
    """Text and JSONL cannot be cut; everything else must say so, wherever it is cut."""
    whole = case.inputs.location.read_bytes()
    if case.row.name.endswith((".txt", ".jsonl")):
        assert read_all(case)
        return
    for cut in {len(whole) // 5, len(whole) // 2, len(whole) - 40, len(whole) - 9, len(whole) - 1}:
        if case.row.name.endswith(".warc") and cut > len(whole) - 5:
            continue  # the two empty lines behind a record
        case.inputs.location.write_bytes(whole[:cut])
        found: dict[int, str] = {}
        with pytest.raises(DamageError, match=case.row.name):
            collect(case, found)
        assert found == {place: case.good[place] for place in found}


def test_an_empty_file(case: Case) -> None:
    """No record where that can be; a format with a frame says that it is cut."""
    case.inputs.location.write_bytes(b"")
    if case.row.name.endswith((".arrow", ".parquet", ".gz")):
        with pytest.raises(DamageError, match=case.row.name):
            read_all(case)
        return
    sink = RejectSink()
    assert read_all(case, rejects=sink) == {}
    assert sink.summary is not None
    assert sink.summary.num_documents == 0
