"""Mutated files of every format: documents, rejects or an error that names the file; nothing else, ever."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from support.warc import warc_record

from dataprep.documents import InputFile
from dataprep.formats import ReadOptions, RejectSink, read_file
from loader.errors import ConfigError, DamageError
from loader.text.records import RecordPlace, read_texts

TEXTS = [f"text number {number} é" for number in range(40)]


def parquet_file(compression: str) -> bytes:
    memory = io.BytesIO()
    table = pa.table({"text": TEXTS, "n": range(len(TEXTS))})
    pq.write_table(table, memory, row_group_size=9, compression=compression)
    return memory.getvalue()


def arrow_file(column: pa.Array, compression: str | None = None) -> bytes:
    memory = io.BytesIO()
    table = pa.table({"text": column, "n": range(len(TEXTS))})
    with ipc.new_stream(memory, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=9)
    return memory.getvalue()


WARC = b"".join(warc_record(text.encode()) for text in TEXTS[:8])
FILES = {
    "a.parquet": ("parquet", parquet_file("none")),
    "z.parquet": ("parquet", parquet_file("zstd")),
    "a.arrow": ("arrow", arrow_file(pa.array(TEXTS))),
    "v.arrow": ("arrow", arrow_file(pa.array(TEXTS).cast(pa.string_view()))),
    "d.arrow": ("arrow", arrow_file(pa.array(TEXTS).dictionary_encode())),
    "z.arrow": ("arrow", arrow_file(pa.array(TEXTS), "zstd")),
    "a.warc": ("warc", WARC),
    "a.warc.gz": ("warc", gzip.compress(WARC)),
}


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place, kind = rng.randrange(len(changed)), rng.random()
        if kind < 0.5:
            changed[place] = rng.randrange(256)
        elif kind < 0.7:
            changed[place] ^= 1 << rng.randrange(8)
        elif kind < 0.8:
            changed[place : place + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f"])
        elif kind < 0.9:
            del changed[place : place + rng.randrange(1, 20)]
        else:
            changed[place:place] = rng.randbytes(rng.randrange(1, 20))
    return bytes(changed)


def check(path: Path, form: str) -> None:
    places: list[RecordPlace] = []
    messages: list[str] = []
    inputs, sink = InputFile("s", 0, str(path.parent), path.name, format=form), RejectSink()
    try:
        for batch in read_file(inputs, 0, rejects=sink, options=ReadOptions(extra_field="n")):
            batch.text.validate(full=True)
            starts = zip(batch.record_start_N.tolist(), batch.record_N.tolist(), strict=True)
            places += [RecordPlace(*start) for start in starts]
        assert sink.summary is not None
        assert len(set(places)) == len(places) == sink.summary.num_documents
    except (ConfigError, DamageError) as error:
        messages.append(str(error))
    if places:
        try:
            read_texts(path, form, "text", places)
        except (ConfigError, DamageError) as error:
            messages.append(str(error))
    assert all(path.name in message for message in messages)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_mutated_files(tmp_path: Path, name: str, count: int) -> None:
    form, data = FILES[name]
    rng = random.Random(f"{name} {count}")
    for _ in range(count):
        (tmp_path / name).write_bytes(mutate(data, rng))
        check(tmp_path / name, form)
