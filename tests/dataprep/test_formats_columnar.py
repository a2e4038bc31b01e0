"""Parquet and Arrow: columns of every type, bad values, damage in every place, extra fields, selection."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from dataprep.documents import InputFile, RejectReason
from dataprep.formats import ReadOptions, RejectSink, parquet, read_file
from loader.errors import ConfigError, DamageError
from loader.text.records import RecordPlace, read_texts

LABELS = {int(reason): reason.label for reason in RejectReason}
NAMES = ["a.parquet", "file.arrow", "stream.arrow", "file.arrow.gz", "stream.arrow.gz"]


def write(path: Path, table: pa.Table, rows: int = 4, **options: Any) -> None:
    """Write a table with ``rows`` rows a row group or record batch, in the format that the name says."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows, **options)
        return
    memory = io.BytesIO()
    maker = ipc.new_file if path.name.startswith("file") else ipc.new_stream
    with maker(memory, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows)
    data = memory.getvalue()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


class Found:
    """Everything a pass over a file gave."""

    def __init__(self, path: Path, field: str = "text", **arguments: Any) -> None:
        self.texts: dict[int, str] = {}
        self.starts: dict[int, int] = {}
        self.extras: dict[int, bytes] = {}
        self.error: DamageError | None = None
        sink = RejectSink()
        self.form = "parquet" if path.suffix == ".parquet" else "arrow"
        inputs = InputFile("s", 0, str(path.parent), path.name, format=self.form, text_field=field)
        try:
            for batch in read_file(inputs, 0, rejects=sink, **arguments):
                batch.text.validate(full=True)
                records = batch.record_N.tolist()
                self.texts.update(zip(records, batch.text.to_pylist(), strict=True))
                self.starts.update(zip(records, batch.record_start_N.tolist(), strict=True))
                self.extras.update(zip(records, batch.extra_N or (), strict=False))
        except DamageError as error:
            self.error = error
        self.rejects = {int(row["record"]): LABELS[int(row["reason"])] for row in sink.rows}
        self.summary = sink.summary


TEXTS: list[str | None] = ["one", "zwei é", None, "", " \t\n", "\u3000", "x" * 300, "last 😀", "\ufeffmark", "a\0b"]
DOCUMENTS = {place: text for place, text in enumerate(TEXTS) if text is not None and text.strip(" \t\n")}
BAD = {2: "text-type", 3: "empty", 4: "empty"}
TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", TEXT_TYPES, ids=str)
def test_text_of_every_string_type(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    column = pa.array(TEXTS, pa.string())
    if pa.types.is_dictionary(kind):
        column = pa.DictionaryArray.from_arrays(
            column.dictionary_encode().indices.cast(kind.index_type),
            column.dictionary_encode().dictionary.cast(kind.value_type),
        )
    write(tmp_path / name, pa.table({"text": column.cast(kind), "n": range(len(TEXTS))}))
    for batch_bytes in (1, 1 << 20):
        found = Found(tmp_path / name, options=ReadOptions(batch_bytes=batch_bytes))
        assert found.texts == DOCUMENTS
        assert found.rejects == BAD
        assert found.starts == {place: place // 4 for place in DOCUMENTS}
    places = [RecordPlace(found.starts[place], place) for place in DOCUMENTS]
    again = read_texts(tmp_path / name, found.form, "text", places)
    assert [again[place] for place in places] == list(DOCUMENTS.values())


OTHER_COLUMNS = {
    "binary": pa.array([b"text"] * 6),
    "large_binary": pa.array([b"text"] * 6, pa.large_binary()),
    "fixed_binary": pa.array([b"text"] * 6, pa.binary(4)),
    "dictionary of binary": pa.array([b"text"] * 6).dictionary_encode(),
    "null": pa.nulls(6),
    "int": pa.array(range(6)),
    "float": pa.array([1.5, float("nan"), None] * 2),
    "bool": pa.array([True, False, None] * 2),
    "list": pa.array([["text"]] * 6),
    "struct": pa.array([{"text": "text"}] * 6),
    "map": pa.array([[("text", "text")]] * 6, pa.map_(pa.string(), pa.string())),
    "timestamp": pa.array([datetime.datetime(2026, 1, 1)] * 6),
    "decimal": pa.array([decimal.Decimal("1.5")] * 6),
}


@pytest.mark.parametrize("name", NAMES[:3])
@pytest.mark.parametrize("kind", OTHER_COLUMNS)
def test_what_is_no_text_is_never_made_into_text(tmp_path: Path, name: str, kind: str) -> None:
    write(tmp_path / name, pa.table({"text": OTHER_COLUMNS[kind]}))
    found = Found(tmp_path / name)
    assert found.texts == {}
    assert found.rejects == dict.fromkeys(range(6), "text-type")
    assert found.error is None
    assert found.summary is not None
    assert (found.summary.num_records, found.summary.num_rejected) == (6, 6)


def raw_strings(values: list[bytes], kind: pa.DataType) -> pa.Array:
    """A string array of any bytes: the format's writers do not look."""
    array = pa.array(values, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind, len(values), array.buffers())


INVALID = [b"\x80", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82", b"caf\xe9"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_invalid_utf8_costs_its_record(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    values = [piece for bad in INVALID for piece in (b"good \xc3\xa9", bad)]
    write(tmp_path / name, pa.table({"text": raw_strings(values, kind)}))
    found = Found(tmp_path / name)
    assert found.texts == dict.fromkeys(range(0, len(values), 2), "good é")
    assert found.rejects == dict.fromkeys(range(1, len(values), 2), "utf8")


def test_invalid_utf8_split_over_two_values_is_two_records(tmp_path: Path) -> None:
    """The bytes of a column may be valid as a whole and cut between values."""
    for name in NAMES[:3]:
        write(tmp_path / name, pa.table({"text": raw_strings([b"a\xe2\x82", b"\xac", b"b"], pa.string())}))
        assert (Found(tmp_path / name).texts, Found(tmp_path / name).rejects) == ({2: "b"}, {0: "utf8", 1: "utf8"})


def test_invalid_utf8_in_a_dictionary(tmp_path: Path) -> None:
    values = raw_strings([b"good", b"\xff"], pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None, 1], pa.int8()), values)
    for name in NAMES[1:]:
        write(tmp_path / name, pa.table({"text": column}))
        found = Found(tmp_path / name)
        assert found.texts == {0: "good", 2: "good"}
        assert found.rejects == {1: "utf8", 3: "text-type", 4: "utf8"}


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_missing_column_lists_those_there_are(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, pa.table({"Text": ["a"], "n": [1]}))
    with pytest.raises(ConfigError, match=r"TR-INPUT-COLUMN(.|\n)*Text, n"):
        Found(tmp_path / name)


def test_two_columns_of_the_name_are_no_choice(tmp_path: Path) -> None:
    for name in NAMES[1:3]:
        write(tmp_path / name, pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]))
        with pytest.raises(ConfigError, match="2 columns 'text'"):
            Found(tmp_path / name)


def test_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    for name in NAMES[:3]:
        write(tmp_path / name, pa.table({"doc.text": ["a", "b"], "doc": ["x", "y"]}))
        assert Found(tmp_path / name, field="doc.text").texts == {0: "a", 1: "b"}


def test_extra_fields_are_json(tmp_path: Path) -> None:
    columns = {
        "date": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5), None]),
        "day": pa.array([datetime.date(2026, 1, 2), None]),
        "iso": pa.array(["2026-01-02", "x" * 400]),
        "score": pa.array([0.5, float("nan")]),
        "count": pa.array([7, -1]),
        "bad": raw_strings([b"\xff", b"ok"], pa.string()),
        "list": pa.array([[1], [2]]),
    }
    expected: dict[str, list[object]] = {
        "date": ["2026-01-02T03:04:05", None],
        "day": ["2026-01-02", None],
        "iso": ["2026-01-02", None],
        "score": [0.5, None],
        "count": [7, -1],
        "bad": [None, "ok"],
        "list": [None, None],
        "absent": [None, None],
    }
    for name in NAMES[:3]:
        write(tmp_path / name, pa.table({"text": ["a", "b"], **columns}))
        for field, values in expected.items():
            found = Found(tmp_path / name, options=ReadOptions(extra_field=field)).extras
            assert [json.loads(value) if value else None for value in found.values()] == values


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_in_every_place_is_damage(tmp_path: Path, name: str) -> None:
    texts = [f"text {number} " * 20 for number in range(40)]
    write(tmp_path / name, pa.table({"text": texts}), rows=10)
    whole = (tmp_path / name).read_bytes()
    fronts = set()
    for cut in range(0, len(whole), max(1, len(whole) // 60)):
        (tmp_path / name).write_bytes(whole[:cut])
        found = Found(tmp_path / name)
        assert found.error is not None, cut
        assert name in str(found.error)
        assert found.texts == dict(enumerate(texts[: len(found.texts)]))
        fronts.add(len(found.texts))
    if name.endswith(".parquet"):
        assert fronts == {0}  # the footer is at the end
    elif not name.endswith(".gz"):
        assert fronts >= {0, 10, 20, 30}


def test_what_lies_behind_the_end_of_a_stream_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "stream.arrow", pa.table({"text": ["a"]}))
    whole = (tmp_path / "stream.arrow").read_bytes()
    (tmp_path / "stream.arrow").write_bytes(whole + b"more")
    assert "behind its end" in str(Found(tmp_path / "stream.arrow").error)
    (tmp_path / "stream.arrow").write_bytes(whole[:-8])  # whole record batches, and no mark behind them
    found = Found(tmp_path / "stream.arrow")
    assert (found.texts, "mark of its end" in str(found.error)) == ({0: "a"}, True)


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_a_flipped_byte_is_found_where_pages_have_checksums(tmp_path: Path, compression: str) -> None:
    rng = np.random.default_rng(1)
    texts = [rng.bytes(40).hex() for _ in range(400)]
    path = tmp_path / "a.parquet"
    write(path, pa.table({"text": texts}), 100, compression=compression, write_page_checksum=True, use_dictionary=False)
    data = bytearray(path.read_bytes())
    chunks = [pq.ParquetFile(path).metadata.row_group(group).column(0) for group in range(4)]
    for group, chunk in enumerate(chunks):
        place = chunk.data_page_offset + chunk.total_compressed_size // 2
        data[place] ^= 1
        path.write_bytes(data)
        data[place] ^= 1
        found = Found(path)
        assert f"row group {group}, " in str(found.error)
        assert found.texts == dict(enumerate(texts[: 100 * group]))


def test_row_groups_without_a_wanted_row_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    write(path, pa.table({"text": [str(number) for number in range(100)]}), rows=10)
    summary = Found(path).summary
    decoded: list[int] = []
    real: Callable[..., Any] = parquet.read_group

    def spy(path: Path, file: Any, group: int, *rest: Any) -> Any:
        decoded.append(group)
        return real(path, file, group, *rest)

    monkeypatch.setattr(parquet, "read_group", spy)
    keep = np.zeros(100, np.bool_)
    keep[[11, 19, 77]] = True
    assert Found(path, keep_R=keep, expected=summary).texts == {11: "11", 19: "19", 77: "77"}
    assert decoded == [1, 7]


def test_empty_tables_and_row_groups(tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path / name, pa.table({"text": pa.array([], pa.string())}))
        found = Found(tmp_path / name)
        assert (found.texts, found.rejects, found.error) == ({}, {}, None)
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("text", pa.string())])) as writer:
        for values in ([], ["a"], [], ["b"]):
            writer.write_table(pa.table({"text": pa.array(values, pa.string())}))
    assert Found(tmp_path / "a.parquet").texts == {0: "a", 1: "b"}
