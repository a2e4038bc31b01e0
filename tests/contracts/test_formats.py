"""What every input format must hold: an entry of the table without its row here does not exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dataprep.documents import InputFile
from dataprep.formats import FORMATS, RejectSink, read_file
from loader.errors import RefusedError
from loader.text.records import RecordPlace, read_texts


def write_jsonl(path: Path, texts: list[str | None]) -> None:
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in texts), encoding="utf-8")


WRITERS: dict[str, Callable[[Path, list[str | None]], None]] = {"jsonl": write_jsonl}
TEXTS = [
    "plain",
    "Ünïcode 中文 😀",
    'with "quotes" \\ and\nline\tbreaks\r',
    "\ufeffmark",
    "x" * 100_000,
    "a\0b",
    "last",
]


def test_every_format_has_its_row() -> None:
    assert WRITERS.keys() == FORMATS.keys()


@pytest.fixture(params=sorted(FORMATS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> InputFile:
    """A file with all texts and a record without one at place 3 (None)."""
    WRITERS[request.param](tmp_path / "input", [*TEXTS[:3], None, *TEXTS[3:]])
    return InputFile("s", 0, str(tmp_path), "input", format=request.param)


def test_texts_are_the_same_bytes_and_bad_records_cost_themselves(source: InputFile) -> None:
    sink, found = RejectSink(), {}
    for batch in read_file(source, 5, rejects=sink):
        batch.text.validate(full=True)
        assert batch.file == 5
        assert batch.source == "s"
        assert batch.text.null_count == 0
        assert batch.record_N.dtype == np.int64 == batch.record_start_N.dtype
        buffers = batch.text.buffers()
        assert buffers[2].size >= int(np.frombuffer(buffers[1], np.int64)[len(batch.text)]) + 64
        found.update(zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True))
    assert found == dict(zip([0, 1, 2, 4, 5, 6, 7], TEXTS, strict=True))
    assert sink.rows["record"].tolist() == [3]
    assert sink.summary is not None
    assert (sink.summary.num_documents, sink.summary.num_rejected, sink.summary.num_records) == (7, 1, 8)


def test_selection_gives_the_same_texts(source: InputFile) -> None:
    keep = np.zeros(8, np.bool_)
    keep[[1, 6]] = True
    sink = RejectSink()
    list(read_file(source, 0, rejects=sink))
    batches = list(read_file(source, 0, keep_R=keep, expected=sink.summary))
    assert [text for batch in batches for text in batch.text.to_pylist()] == [TEXTS[1], TEXTS[5]]


def test_a_changed_file_is_refused(source: InputFile) -> None:
    sink = RejectSink()
    list(read_file(source, 0, rejects=sink))
    WRITERS[source.format](source.location, [*TEXTS[:3], None, *TEXTS[3:-1], "lost"])
    with pytest.raises(RefusedError):
        list(read_file(source, 0, expected=sink.summary))


def test_a_record_is_found_again_by_its_origin(source: InputFile) -> None:
    for batch in read_file(source, 0):
        places = [
            RecordPlace(start, record)
            for start, record in zip(batch.record_start_N.tolist(), batch.record_N.tolist(), strict=True)
        ]
        again = read_texts(source.location, source.format, "text", places)
        assert [again[place] for place in places] == batch.text.to_pylist()
