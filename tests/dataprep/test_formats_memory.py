"""Memory is bounded by the batch and the line limit, whatever the file holds: measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

pytestmark = pytest.mark.slow
SIZE = 200 << 20
SCRIPT = """
import sys
from dataprep.documents import InputFile
from dataprep.formats import ReadOptions, RejectSink, read_file
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10
folder, name, form = sys.argv[1:]
options = ReadOptions(line_limit_bytes=8 << 20, batch_bytes=4 << 20)
inputs = InputFile("s", 0, folder, name, format=form)
(path := inputs.location.parent / ("small" + inputs.location.suffix))
for batch in read_file(InputFile("s", 0, folder, path.name, format=form), 0, options=options):
    pass  # what is imported and compiled is no part of it
before, most, count, sink = peak(), 0, 0, RejectSink()
import threading
stop = threading.Event()
def watch():
    global most
    while not stop.wait(0.002):
        most = max(most, peak())
thread = threading.Thread(target=watch)
thread.start()
for batch in read_file(inputs, 0, options=options, rejects=sink):
    count += len(batch.text)
    most = max(most, peak())
stop.set()
thread.join()
print(count, len(sink.rows), most - before)
"""


def measure(folder: Path, name: str, form: str) -> tuple[int, int, int]:
    """Documents, rejects, and how far anonymous memory rose above that of a small file."""
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", SCRIPT, str(folder), name, form]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    documents, rejects, rise = map(int, done.stdout.split())
    return documents, rejects, rise


def one_line(path: Path, head: bytes, tail: bytes, size_bytes: int) -> None:
    with open(path, "wb") as file:
        file.write(head)
        for _ in range(size_bytes >> 20):
            file.write(b"x" * (1 << 20))
        file.write(tail)


LINES = {
    "jsonl": ("a.jsonl", b'{"text":"first"}\n{"text":"', b'"}\n{"text":"last"}\n', 2),
    "text": ("a.txt", b"", b"", 0),
    "text_paragraphs": ("a.txt", b"first\n\n", b"\n\nlast\n", 2),
}


@pytest.mark.parametrize("form", LINES)
def test_one_line_of_200_mb(tmp_path: Path, form: str) -> None:
    name, head, tail, documents = LINES[form]
    one_line(tmp_path / f"small{Path(name).suffix}", head, tail, 1 << 20)
    one_line(tmp_path / name, head, tail, SIZE)
    found, rejects, rise = measure(tmp_path, name, form)
    assert (found, rejects) == (documents, 1)
    assert rise < 64 << 20


@pytest.mark.parametrize(("text", "documents", "rejects"), [(b"a", 3_000_000, 0), (b"\xff", 0, 3_000_000)])
def test_three_million_paragraphs_of_a_byte(tmp_path: Path, text: bytes, documents: int, rejects: int) -> None:
    (tmp_path / "small.txt").write_bytes(b"a\n\n")
    (tmp_path / "a.txt").write_bytes((text + b"\n\n") * 3_000_000)
    found, bad, rise = measure(tmp_path, "a.txt", "text_paragraphs")
    assert (found, bad) == (documents, rejects)
    assert rise < 192 << 20, "17 bytes a reject, copied once"


def write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts}), path, compression="zstd", row_group_size=1 << 30)


def write_arrow(path: Path, texts: list[str]) -> None:
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    ("form", "suffix", "write"),
    [
        ("parquet", ".parquet", write_parquet),
        ("arrow", ".arrow", write_arrow),
        ("huggingface", ".parquet", write_parquet),
        ("huggingface", ".arrow", write_arrow),
    ],
)
def test_one_row_group_and_one_record_batch_of_200_mb(
    tmp_path: Path, form: str, suffix: str, write: Callable[[Path, list[str]], None]
) -> None:
    rng = np.random.default_rng(1)
    texts = [rng.bytes(2000).hex() for _ in range(SIZE // 4000)]
    write(tmp_path / f"small{suffix}", texts[:10])
    write(tmp_path / f"a{suffix}", texts)
    found, rejects, rise = measure(tmp_path, f"a{suffix}", form)
    assert (found, rejects) == (len(texts), 0)
    assert rise < 96 << 20
