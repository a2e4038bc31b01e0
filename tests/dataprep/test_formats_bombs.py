"""Decompression bombs: refused by ratio and by size, in every format, before they cost memory."""

from __future__ import annotations

import bz2
import gzip
import io
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
from support.warc import warc_record

from dataprep.dedup.config import IngestConfig
from dataprep.documents import InputFile, RejectReason
from dataprep.formats import REJECT_DTYPE, ReadOptions, RejectSink, read_file, read_options
from loader.errors import DamageError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(level=1).compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
}
SIZE = 80 << 20
TIGHT = ReadOptions(max_expansion=50)


def read(path: Path, form: str, options: ReadOptions | None = None) -> tuple[list[str], RejectSink]:
    sink, texts = RejectSink(), []
    inputs = InputFile("s", 0, str(path.parent), path.name, format=form)
    for batch in read_file(inputs, 0, options=options, rejects=sink):
        texts += batch.text.to_pylist()
    return texts, sink


SLOW = [pytest.param(suffix, marks=pytest.mark.slow) for suffix in (".gz", ".bz2", ".xz")]


@pytest.fixture(scope="module", params=[".zst", *SLOW])
def bomb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("bomb") / f"a{request.param}"
    path.write_bytes(COMPRESS[request.param](b"\x20\n" * (SIZE // 2)))
    return path


@pytest.mark.parametrize("form", ["jsonl", "text", "text_paragraphs", "arrow"])
def test_a_bomb_is_refused_by_its_ratio(bomb: Path, form: str) -> None:
    with pytest.raises(DamageError, match="TR-INPUT-BOMB") as caught:
        read(bomb, form, TIGHT)
    assert str(bomb) in str(caught.value)
    assert f"{bomb.stat().st_size:,} bytes on disk" in str(caught.value)


def test_the_ratio_is_judged_once_64_mib_came_out(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(COMPRESS[".zst"](b"\n" * (60 << 20)))
    assert path.stat().st_size * 50 < 60 << 20
    sink = read(path, "jsonl", TIGHT)[1]
    assert sink.summary is not None
    assert sink.summary.num_blank == 60 << 20


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_no_file_yields_more_than_the_limit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    data = b'{"text":"a"}\n' * 10_000
    path.write_bytes(COMPRESS[suffix](data) if suffix else data)
    for form in ("jsonl", "text", "text_paragraphs"):
        assert read(path, form, ReadOptions(max_stream_bytes=len(data)))[0]
        with pytest.raises(DamageError, match=f"TR-INPUT-BOMB(.|\n)*at most {len(data) - 1:,} bytes"):
            read(path, form, ReadOptions(max_stream_bytes=len(data) - 1))


def test_the_configuration_reaches_the_reader() -> None:
    ingest = IngestConfig(line_limit_bytes=7, max_expansion=8, max_stream_bytes=9)
    assert read_options(ingest, extra_field="x", batch_bytes=10) == ReadOptions(7, 10, "x", 8, 9)
    assert read_options(IngestConfig()) == ReadOptions()


def dictionary_bomb() -> pa.Table:
    """One long value, named so many times that 200 MB would come of it."""
    values = pa.array(["y" * (1 << 20)])
    return pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int16()), values)})


@pytest.mark.parametrize("form", ["parquet", "arrow", "view"])
def test_a_value_named_many_times_expands_a_few_at_once(tmp_path: Path, form: str) -> None:
    path, table = tmp_path / f"a.{form}", dictionary_bomb()
    if form == "parquet":
        pq.write_table(pa.table({"text": ["y" * (1 << 20)] * 100}), path)
        assert path.stat().st_size < 1 << 20
    else:
        if form == "view":
            view = struct.pack("<i4sii", 1 << 20, b"yyyy", 0, 0) * 200
            buffers = [None, pa.py_buffer(view), pa.py_buffer(b"y" * (1 << 20))]
            table = pa.table({"text": pa.Array.from_buffers(pa.string_view(), 200, buffers)})
        with ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    name = "parquet" if form == "parquet" else "arrow"
    before = pa.total_allocated_bytes()  # of the table itself as well
    inputs, most, count = InputFile("s", 0, str(tmp_path), path.name, format=name), 0, 0
    for batch in read_file(inputs, 0, options=ReadOptions(batch_bytes=4 << 20, max_expansion=1e6)):
        count += len(batch.text)
        most = max(most, pa.total_allocated_bytes() - before)
        if count >= 90:
            break
    assert count >= 90
    assert most < 64 << 20 if form != "parquet" else most < 600 << 20
    with pytest.raises(DamageError, match="TR-INPUT-BOMB"):
        read(path, name, ReadOptions(max_expansion=50))


@pytest.mark.parametrize("maker", [ipc.new_file, ipc.new_stream])
def test_a_record_batch_is_not_unpacked_to_more_than_the_ratio(tmp_path: Path, maker: Callable[..., object]) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"text": ["z" * SIZE, "b"]})
    writer = maker(str(path), table.schema, options=ipc.IpcWriteOptions(compression="zstd"))
    with writer:  # type: ignore[attr-defined]
        writer.write_table(table)  # type: ignore[attr-defined]
    for form in ("arrow", "huggingface"):
        before = pa.total_allocated_bytes()
        with pytest.raises(DamageError, match="TR-INPUT-BOMB"):
            read(path, form)
        assert pa.total_allocated_bytes() - before < 1 << 20
    texts, sink = read(path, "arrow", ReadOptions(max_expansion=1e6))
    assert (texts, sink.rows["reason"].tolist()) == (["b"], [RejectReason.TOO_LONG])


def test_documents_of_a_byte_come_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\n\n" * 150_000 + b"\xff\n\n" * 70_000 + b"b\n\n")
    sink = RejectSink()
    inputs = InputFile("s", 0, str(tmp_path), "a.txt", format="text_paragraphs")
    counts = [len(batch.text) for batch in read_file(inputs, 0, rejects=sink)]
    assert max(counts) <= 1 << 16
    assert sum(counts) == 150_001
    assert sink.num_rejected == 70_000
    assert sink.rows["record"].tolist() == list(range(150_000, 220_000))


def test_rejects_one_by_one_and_many_at_once_keep_their_order() -> None:
    sink = RejectSink()
    for record in (0, 1, 5):
        sink.add_one(record, 10 * record, RejectReason.UTF8)
        sink.add(np.array([(record + 1, 0, int(RejectReason.EMPTY))], REJECT_DTYPE)[: record % 2])
    assert sink.rows["record"].tolist() == [0, 1, 2, 5, 6]
    assert sink.num_rejected == 5


def test_rows_of_nothing_count_as_well(tmp_path: Path) -> None:
    """Ten million nulls are a few hundred bytes of Parquet; each would be a reject."""
    schema = pa.schema([("text", pa.null())])
    with ipc.new_file(str(tmp_path / "a.arrow"), schema) as writer:
        for _ in range(3):
            writer.write_batch(pa.record_batch([pa.nulls(10_000_000)], schema=schema))
    with pytest.raises(DamageError, match="TR-INPUT-BOMB"):
        read(tmp_path / "a.arrow", "arrow", TIGHT)
    indices = pa.nulls(9_000_000, pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DamageError, match="TR-INPUT-BOMB"):
        read(tmp_path / "a.parquet", "parquet", TIGHT)


@pytest.mark.parametrize("claim", [1 << 20, 1 << 30, 1 << 40, 1 << 62])
def test_an_arrow_message_that_promises_much_is_damage(tmp_path: Path, claim: int) -> None:
    """Lengths of metadata and body, and the size in front of a compressed buffer, without the bytes."""
    memory = io.BytesIO()
    table = pa.table({"text": ["abc" * 30] * 5})
    with ipc.new_stream(memory, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    data = memory.getvalue()
    path = tmp_path / "a.arrow"
    places = [at for at in range(0, len(data) - 8, 4) if 0 < struct.unpack_from("<q", data, at)[0] < 1000]
    assert len(places) > 5
    before, damaged = pa.total_allocated_bytes(), 0
    for at in places:
        path.write_bytes(data[:at] + struct.pack("<q", claim) + data[at + 8 :])
        try:
            read(path, "arrow")
        except DamageError:
            damaged += 1
        assert pa.total_allocated_bytes() - before < 64 << 20
    assert damaged > len(places) // 2


def test_a_warc_bomb_in_one_record(tmp_path: Path) -> None:
    (tmp_path / "a.warc.gz").write_bytes(gzip.compress(warc_record(b" " * SIZE)))
    with pytest.raises(DamageError, match="TR-INPUT-BOMB"):
        read(tmp_path / "a.warc.gz", "warc", TIGHT)


def test_a_warc_payload_that_http_packed_is_bounded(tmp_path: Path) -> None:
    packed = gzip.compress(b"<html>" + b" " * (2 << 20))
    page = warc_record(packed, http="Content-Encoding: gzip\r\n")
    (tmp_path / "a.warc").write_bytes(page + warc_record(b"<html>good</html>"))
    texts, sink = read(tmp_path / "a.warc", "warc", ReadOptions(line_limit_bytes=1 << 20))
    assert texts == ["<html>good</html>"]
    assert sink.rows["reason"].tolist() == [RejectReason.TOO_LONG]
