"""Document ids, and reading a record again by its Origin."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import DatasetSpec, make_dataset

from loader.errors import ConfigError, DamageError
from loader.text import records
from loader.text.records import RecordPlace, document_id, document_ids, parse_json_text, read_texts

_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(_NAMES, _NAMES, st.lists(st.integers(0, 2**62), max_size=5), st.integers(0, 2**64 - 1))
def test_ids_are_the_documented_hash(source: str, path: str, records: list[int], salt: int) -> None:
    expected = [xxhash.xxh3_64(f"{source}\0{path}\0{record}".encode(), seed=salt).intdigest() for record in records]
    assert document_ids(source, path, np.array(records, np.int64), salt).tolist() == expected
    assert [document_id(source, path, record, salt) for record in records] == expected


@pytest.mark.parametrize(
    ("source", "path", "salt"), [("a\0", "b", 0), ("a", "b\0", 0), ("a", "b", -1), ("a", "b", 2**64)]
)
def test_ids_refuse_what_is_no_origin(source: str, path: str, salt: int) -> None:
    with pytest.raises(ValueError, match="no Origin"):
        document_id(source, path, 0, salt)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.bz2", ".jsonl.xz"])
def test_every_record_is_read_again(tmp_path: Path, suffix: str) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 40}, suffixes=[suffix]))
    for path in {document.path for document in made.documents.values()}:
        wanted = {RecordPlace(d.record_start, d.record): d.text for d in made.documents.values() if d.path == path}
        assert read_texts(made.corpus / "web" / path, "jsonl", "text", list(wanted)[::-1]) == wanted
        last = max(wanted)
        assert read_texts(made.corpus / "web" / path, "jsonl", "text", [last]) == {last: wanted[last]}


@given(st.data(), st.lists(st.text("ab", max_size=30), min_size=1, max_size=12), st.integers(1, 40), st.booleans())
def test_lines_are_found_over_every_buffer_border(
    data: st.DataObject, lines: list[str], buffer_bytes: int, seekable: bool
) -> None:
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    wanted = sorted(data.draw(st.sets(st.integers(0, len(lines) - 1), min_size=1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_SKIP_BYTES", buffer_bytes)
        reader = records._Lines(io.BytesIO("\n".join(lines).encode()), seekable)
        assert [reader.line_at(starts[number]).decode() for number in wanted] == [lines[number] for number in wanted]


def test_parquet_rows_are_read_by_row_group(tmp_path: Path) -> None:
    texts = [f"row {number} Ω" for number in range(25)]
    pq.write_table(pa.table({"text": texts, "n": range(25)}), tmp_path / "a.parquet", row_group_size=10)
    places = [RecordPlace(number // 10, number) for number in (24, 0, 13, 9)]
    found = read_texts(tmp_path / "a.parquet", "parquet", "text", places)
    assert found == {place: texts[place.record] for place in places}
    with pytest.raises(DamageError):
        read_texts(tmp_path / "a.parquet", "parquet", "text", [RecordPlace(7, 71)])


def test_last_duplicate_key_wins_and_long_numbers_pass() -> None:
    line = b'{"text": "first", "n": ' + b"9" * 5000 + b', "text": "last", "x": NaN}\r'
    assert parse_json_text(line, "text", "here") == "last"


def test_byte_order_mark_of_the_file_is_no_part_of_the_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n{"text": "two"}')
    places = [RecordPlace(0, 0), RecordPlace(19, 1)]
    assert list(read_texts(tmp_path / "a.jsonl", "jsonl", "text", places).values()) == ["one", "two"]


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b'{"n": 1}', b'{"text": 3}', b'{"text": "\xff"}', b"[" * 100_000])
def test_a_record_that_changed_is_damage(line: bytes) -> None:
    with pytest.raises(DamageError, match="here"):
        parse_json_text(line, "text", "here")


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.xz"])
def test_a_file_cut_short_is_damage(tmp_path: Path, suffix: str) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 40}, suffixes=[suffix], files_per_source=1))
    path = made.corpus / "web" / f"part0{suffix}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    last = max(made.documents.values(), key=lambda document: document.record)
    with pytest.raises(DamageError, match="part0"):
        read_texts(path, "jsonl", "text", [RecordPlace(last.record_start, last.record)])


def test_missing_files_and_formats_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        read_texts(tmp_path / "none.jsonl", "jsonl", "text", [RecordPlace(0, 0)])
    with pytest.raises(ConfigError, match="no reader"):
        read_texts(tmp_path / "none.jsonl", "word", "text", [RecordPlace(0, 0)])
