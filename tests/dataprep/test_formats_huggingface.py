"""Hugging Face datasets on disk: the rows of ``datasets`` itself, no network, nothing left behind, bad rows named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from dataprep.documents import InputFile, RejectReason
from dataprep.format_patterns import DEFAULT_PATTERNS
from dataprep.formats import ReadOptions, RejectSink, huggingface, read_file
from loader.errors import ConfigError, DamageError
from loader.text.records import RecordPlace, read_texts

LABELS = {int(reason): reason.label for reason in RejectReason}
TEXTS = [None if number % 7 == 3 else "" if number % 11 == 5 else f"row {number} é" for number in range(2500)]
GOOD = {number: text for number, text in enumerate(TEXTS) if text}


def collect(path: Path, found: dict[int, str], **arguments: Any) -> RejectSink:
    sink = RejectSink()
    inputs = InputFile("s", 0, str(path.parent), path.name, format="huggingface")
    for batch in read_file(inputs, 0, rejects=sink, **arguments):
        batch.text.validate(full=True)
        found.update(zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True))
    return sink


def read(path: Path, **arguments: Any) -> tuple[dict[int, str], dict[int, str]]:
    found: dict[int, str] = {}
    sink = collect(path, found, **arguments)
    assert sink.rows["record"].tolist() == sorted(sink.rows["record"].tolist())
    return found, {int(row["record"]): LABELS[int(row["reason"])] for row in sink.rows}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A dataset of three files, as ``save_to_disk`` leaves it."""
    import datasets  # heavy, and only one test process needs it

    dataset = datasets.Dataset.from_dict({"text": TEXTS, "n": list(range(len(TEXTS)))})
    dataset.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    return tmp_path / "saved"


def test_what_a_map_left_beside_the_rows_is_no_input(saved: Path) -> None:
    shutil.copy(next(saved.glob("data-*.arrow")), saved / "cache-0123456789abcdef.arrow")
    found = sorted({path.name for pattern in DEFAULT_PATTERNS["huggingface"] for path in saved.glob(pattern)})
    assert found == [f"data-0000{i}-of-00003.arrow" for i in range(3)]


def test_rows_of_a_saved_dataset(saved: Path) -> None:
    paths = sorted(saved.glob("**/*.arrow"))
    assert len(paths) == 3
    import datasets

    rows: list[str | None] = list(datasets.load_from_disk(str(saved))["text"])
    assert rows == TEXTS
    first = 0
    for path in paths:
        found, rejects = read(path)
        count = len(found) + len(rejects)
        expected = TEXTS[first : first + count]
        assert found == {number: text for number, text in enumerate(expected) if text}
        assert rejects == {n: "empty" if text == "" else "text-type" for n, text in enumerate(expected) if not text}
        first += count
    assert first == len(TEXTS)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_starts_and_selection(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    table = pa.table({"text": TEXTS, "date": ["2026-01-01"] * len(TEXTS)})
    if kind == "arrow":
        with ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=700)
    else:
        pq.write_table(table, path, row_group_size=700)
    inputs, places = InputFile("s", 0, str(tmp_path), path.name, format="huggingface"), []
    for batch in read_file(inputs, 0, options=ReadOptions(extra_field="date")):
        assert (batch.record_start_N == batch.record_N // 700).all()
        assert batch.extra_N == (b'"2026-01-01"',) * len(batch.text)
        starts = zip(batch.record_start_N.tolist(), batch.record_N.tolist(), strict=True)
        places += [RecordPlace(*start) for start in starts]
    again = read_texts(path, "huggingface", "text", places)
    assert {place.record: text for place, text in again.items()} == GOOD
    keep = np.zeros(len(TEXTS), np.bool_)
    keep[[0, 1404, 2499]] = True
    assert read(path, keep_R=keep) == ({number: GOOD[number] for number in (0, 1404, 2499)}, {})


def bad_bytes(tmp_path: Path, kind: str) -> Path:
    """A file whose row 1201 is no UTF-8."""
    values = [b"\xff" if number == 1201 else b"row %d" % number for number in range(2000)]
    array = pa.array(values, pa.binary())
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), len(values), array.buffers())})
    path = tmp_path / f"a.{kind}"
    if kind == "arrow":
        with ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    else:
        pq.write_table(table, path, row_group_size=300)
    return path


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_bad_byte_costs_its_row_though_datasets_gives_up(tmp_path: Path, kind: str) -> None:
    found, rejects = read(bad_bytes(tmp_path, kind))
    assert rejects == {1201: "utf8"}
    assert found == {number: f"row {number}" for number in range(2000) if number != 1201}
    assert list(found) == sorted(found)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_damage_comes_after_the_rows_in_front_of_it(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(2)
    texts = [rng.bytes(50).hex() for _ in range(2000)]
    path = tmp_path / f"a.{kind}"
    table = pa.table({"text": texts})
    if kind == "arrow":
        with ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
        damaged = 1000
    else:
        pq.write_table(table, path, row_group_size=500, use_dictionary=False, write_page_checksum=True)
        data = bytearray(path.read_bytes())
        chunk = pq.ParquetFile(path).metadata.row_group(3).column(0)
        data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = b"\xff" * (
            chunk.total_compressed_size
        )
        path.write_bytes(data)
        damaged = 1500
    found: dict[int, str] = {}
    with pytest.raises(DamageError, match=path.name):
        collect(path, found)
    assert found == dict(enumerate(texts[:damaged]))


def test_columns_that_are_no_text_and_missing_ones(tmp_path: Path) -> None:
    for name, column in (("a.parquet", [1, 2]), ("b.parquet", [["x"], ["y"]])):
        pq.write_table(pa.table({"text": column}), tmp_path / name)
        assert read(tmp_path / name) == ({}, {0: "text-type", 1: "text-type"})
    pq.write_table(pa.table({"Text": ["a"], "n": [1]}), tmp_path / "c.parquet")
    with pytest.raises(ConfigError, match=r"TR-INPUT-COLUMN(.|\n)*Text, n"):
        read(tmp_path / "c.parquet")
    (tmp_path / "d.csv").write_text("text\na\n")
    with pytest.raises(ConfigError, match="TR-INPUT-FORMAT"):
        read(tmp_path / "d.csv")


def test_datatrove_reads_it_and_nothing_else_does(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts come from datatrove's reader, as long as that goes on."""

    def fail(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(huggingface, "read_arrow", fail)
    assert read(next(saved.glob("**/*.arrow")))[0]


SCRIPT = """
import socket, sys
def refuse(*arguments, **options):
    raise SystemExit("network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from dataprep.documents import InputFile
from dataprep.formats import read_file
count = 0
for name in sys.argv[2:]:
    for batch in read_file(InputFile("s", 0, sys.argv[1], name, format="huggingface"), 0):
        count += len(batch.text)
print(count)
"""


@pytest.mark.slow
def test_no_network_and_nothing_left_behind(tmp_path: Path) -> None:
    """In a process of its own with an empty home: no connection is tried, no file is left."""
    (tmp_path / "data").mkdir()
    (tmp_path / "home").mkdir()
    bad_bytes(tmp_path / "data", "arrow")
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "data" / "b.parquet")
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_"))}
    root = str(Path(__file__).resolve().parents[2])
    environment = {**kept, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data"), "a.arrow", "b.parquet"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2001"
    left = [path for folder in (home, temporary) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if "numba" not in str(path) and path.suffix not in (".nbi", ".nbc")] == []
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"a.arrow", "b.parquet"}
