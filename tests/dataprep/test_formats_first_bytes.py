"""Files that are something else than their names say, that the system does not give, or that cannot be decoded."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import ipc

from dataprep.documents import InputFile, RejectReason
from dataprep.formats import ReadOptions, RejectSink, read_file
from dataprep.formats.parquet import damage
from loader.errors import ConfigError, DamageError, JobError
from loader.text import arrow_records, records
from loader.text.records import RecordPlace, read_texts

LINES = b'{"text":"one"}\n{"text":"two"}\n'


def parquet() -> bytes:
    memory = io.BytesIO()
    pq.write_table(pa.table({"text": ["one"]}), memory)
    return memory.getvalue()


def arrow(compression: str | None = None) -> bytes:
    memory = io.BytesIO()
    table = pa.table({"text": ["one", "x" * 1000]})
    with ipc.new_file(memory, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return memory.getvalue()


FORMS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: gzip.compress(LINES),
    "zstd": lambda: zstandard.compress(LINES),
    "bzip2": lambda: bz2.compress(LINES),
    "xz": lambda: lzma.compress(LINES),
    "lz4": lambda: b"\x04\x22\x4d\x18" + LINES,
    "zip": lambda: b"PK\x03\x04" + LINES,
    "Parquet": parquet,
    "Arrow IPC": arrow,
}


def read(path: Path, form: str = "jsonl", options: ReadOptions | None = None) -> list[str]:
    inputs = InputFile("s", 0, str(path.parent), path.name, format=form)
    return [text for batch in read_file(inputs, 0, options=options) for text in batch.text.to_pylist()]


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("form", ["jsonl", "text", "text_paragraphs", "warc"])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path, kind: str, form: str) -> None:
    for name in ("a.jsonl", "a", "a.txt.gz" if kind != "gzip" else "a.txt.xz"):
        path = tmp_path / name
        path.write_bytes(FORMS[kind]())
        with pytest.raises(ConfigError, match=f"TR-INPUT-FORMAT: the file is {kind}(.|\n)*{name}"):
            read(path, form)


@pytest.mark.parametrize(("kind", "suffix"), [("gzip", ".gz"), ("zstd", ".ZST"), ("bzip2", ".bz2"), ("xz", ".xz")])
def test_a_name_that_fits_is_read(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(FORMS[kind]())
    assert read(path) == ["one", "two"]


def test_texts_that_begin_like_names_of_formats_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("PAR1 is how it begins", "BZh9 as well", "PK", "ARROW1", "P"):
        path.write_text(text)
        assert read(path, "text") == [text]


@pytest.mark.parametrize(
    ("form", "kind", "name"), [("parquet", "Arrow IPC", "a.parquet"), ("arrow", "Parquet", "a.arrow")]
)
def test_damage_says_what_the_file_begins_like(tmp_path: Path, form: str, kind: str, name: str) -> None:
    (tmp_path / name).write_bytes(FORMS[kind]())
    with pytest.raises(DamageError, match=f"TR-INPUT-DAMAGED(.|\n)*begins like {kind}(.|\n)*{name}"):
        read(tmp_path / name, form)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".zstd", ".bz2", ".xz"])
@pytest.mark.parametrize("form", ["jsonl", "text", "text_paragraphs", "warc", "arrow"])
def test_nothing_at_all_is_no_compressed_file(tmp_path: Path, form: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"")
    with pytest.raises(DamageError, match="empty" if form != "arrow" else "TR-INPUT-DAMAGED"):
        read(path, form)


@pytest.mark.parametrize("form", ["jsonl", "text", "text_paragraphs", "warc"])
def test_a_disk_that_fails_says_nothing_about_the_file(tmp_path: Path, form: str) -> None:
    """Reading the memory of a process at 0 is EIO."""
    path = tmp_path / "a.jsonl"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(JobError, match=r"TR-INPUT-UNREADABLE(.|\n)*a\.jsonl"):
        read(path, form)
    with pytest.raises(JobError, match=r"TR-INPUT-UNREADABLE(.|\n)*a\.jsonl"):
        read_texts(path, form, "text", [RecordPlace(0, 0)])


def test_a_window_beyond_the_limit_is_named(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(packer.compress(LINES) + packer.flush())
    with pytest.raises(DamageError, match=r"TR-INPUT-DAMAGED(.|\n)*128 MiB(.|\n)*zstd -d --long=31"):
        read(path)


def test_a_line_too_long_costs_itself_in_a_later_pass_as_well(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES + json.dumps({"text": "x" * 5000}).encode() + b"\n" + LINES)
    inputs = InputFile("s", 0, str(tmp_path), path.name)
    for keep_R in (None, np.array([0, 0, 1, 0, 1], np.bool_)):
        sink = RejectSink()
        options = ReadOptions(line_limit_bytes=1000, batch_bytes=64)
        list(read_file(inputs, 0, options=options, keep_R=keep_R, rejects=sink))
        assert sink.rows["record"].tolist() == [2]
        assert sink.rows["reason"].tolist() == [int(RejectReason.TOO_LONG)]


def test_a_line_without_end_is_bounded_when_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_LONGEST", 16 << 20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20), 1))
    with pytest.raises(DamageError, match="TR-TEXT-FILE: cannot be read again: no line end"):
        read_texts(path, "jsonl", "text", [RecordPlace(0, 0)])
    path.write_bytes(gzip.compress(json.dumps({"text": "x" * (9 << 20)}).encode(), 1))
    assert len(read_texts(path, "jsonl", "text", [RecordPlace(0, 0)])[RecordPlace(0, 0)]) == 9 << 20


def test_a_record_batch_that_unpacks_to_too_much_is_refused_when_read_again(tmp_path: Path) -> None:
    data = arrow("zstd")
    at = data.index(struct.pack("<q", 1003))  # the length that stands in front of the packed text
    path = tmp_path / "a.arrow"
    path.write_bytes(data[:at] + struct.pack("<q", 1 << 40) + data[at + 8 :])
    with pytest.raises(DamageError, match="TR-TEXT-FILE: cannot be read again: a record batch of"):
        read_texts(path, "arrow", "text", [RecordPlace(0, 0)])


def test_a_message_of_any_length_is_bounded_in_a_compressed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_records, "_MOST_BATCH_BYTES", 900)
    path = tmp_path / "a.arrow.zst"
    path.write_bytes(zstandard.compress(arrow()))
    with pytest.raises(DamageError, match="TR-TEXT-FILE: cannot be read again: a message of"):
        read_texts(path, "arrow", "text", [RecordPlace(0, 1)])


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EIO, "TR-INPUT-UNREADABLE"), (errno.EINVAL, "TR-INPUT-DAMAGED"), (None, "TR-INPUT-DAMAGED")],
)
def test_what_the_system_refuses_is_no_damage(tmp_path: Path, number: int | None, code: str) -> None:
    """An offset that cannot be (EINVAL) comes from a file that is damaged; decoders' errors have no number."""
    (tmp_path / "a.parquet").write_bytes(parquet())
    error = OSError("broken frame") if number is None else OSError(number, "words of the system")
    assert damage(tmp_path / "a.parquet", "row group 0", error).code == code
