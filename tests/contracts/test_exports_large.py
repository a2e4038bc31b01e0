"""Exports beyond what is usual, read back by the readers of their stacks: 4 GiB and 2^32 tokens (sparse), ids of over
16 bits, segments out of order, documents with gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.megatron import megatron_classes

from loader.interop.datatrove import metadata_text, write_documents
from loader.interop.export import EXPORTS, ExportOptions, export_dataset
from loader.interop.megatron import encode_idx
from loader.interop.parquet import _groups
from loader.interop.walk import DocumentPart
from loader.shards import (
    PADDING_ROW,
    DatasetInfo,
    InputFile,
    ShardSpec,
    ShardWriter,
    make_segments,
    write_dataset_manifest,
)


def sparse_or_skip(path: Path, size_bytes: int) -> None:
    """Make ``path`` a file of that size without filling the disk."""
    with open(path, "ab") as file:
        file.truncate(size_bytes)
    if path.stat().st_blocks * 512 > size_bytes // 2:
        path.unlink()
        pytest.skip("the file system holds no sparse files")


def test_megatron_pointers_beyond_4_gib(tmp_path: Path) -> None:
    size_bytes = 9 << 30
    path = tmp_path / "big.bin"
    sparse_or_skip(path, size_bytes)
    places = [4096, (1 << 32) - 6, (1 << 32) + 10, size_bytes - 8]
    tokens = np.arange(1, 17, dtype=np.uint16).reshape(4, 4)
    with open(path, "r+b") as file:
        for place, row in zip(places, tokens, strict=True):
            file.seek(place)
            file.write(row.tobytes())
    borders = np.array([0, 1, 4], np.int64)
    pieces = encode_idx(np.full(4, 4, np.int32), np.array(places, np.int64), borders, 2)
    (tmp_path / "big.idx").write_bytes(b"".join(pieces))
    for reader in megatron_classes():
        view = reader(str(tmp_path / "big"))
        assert [view[i].tolist() for i in range(4)] == tokens.tolist()
        assert view.document_indices.tolist() == [0, 1, 4]
        del view
    path.unlink()


class SparseFile:
    """A file whose long writes, which here are zeros, are holes."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes | memoryview) -> None:
        if len(data) >= 1 << 20:
            self.file.seek(len(data), 1)
        else:
            self.file.write(data)


def test_datatrove_files_beyond_4_gib_and_2_32_tokens(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from datatrove.utils.dataset import DatatroveFileDataset

    zeros = np.zeros(1 << 26, np.uint16)
    short = np.arange(1, 8, dtype=np.uint16)
    table: Any = None
    no_rows = np.zeros(0, np.int64)
    documents = ([short], [zeros] * 65, [short, short[::-1].copy()])
    parts = [DocumentPart(number, 0, table, no_rows, pieces) for number, pieces in enumerate(documents)]
    path = tmp_path / "web.ds"
    sparse_or_skip(path, 1 << 33)
    with open(path, "r+b") as tokens, open(tmp_path / "web.ds.index", "wb") as ends:
        total = write_documents(SparseFile(tokens), ends, parts, 0)
        tokens.truncate()
    assert total == 7 + (65 << 26) + 14 > 1 << 32
    assert path.stat().st_size == 2 * total
    assert np.fromfile(tmp_path / "web.ds.index", "<u8").tolist() == [7, 7 + (65 << 26), total]
    dataset = DatatroveFileDataset(str(path), 6, return_positions=True)
    last = dataset[len(dataset) - 1]
    start = (len(dataset) - 1) * 7
    assert start > 1 << 32
    tail = [*[0] * 7, *short.tolist(), *short[::-1].tolist()]
    place = start - (total - len(tail))
    assert last["input_ids"].tolist() == tail[place : place + 7]
    ends_inside = total - 14 - start
    wanted = [i if i < ends_inside or ends_inside < 0 else i - ends_inside for i in range(7)]
    assert last["positions"].tolist() == wanted
    path.unlink()


def test_the_metadata_line_is_datatroves_own() -> None:
    humanize = pytest.importorskip("humanize")
    for value in (0, 1, 12, 999, 1000, 9994, 9999, 12_345, 999_499, 999_999, 123_456_789, 10**12, 3 * 10**13 + 5):
        wanted = f"llama-tok|4\n{value}\n{humanize.metric(value, unit='T')}"
        assert metadata_text("llama|tok", 4, value) == wanted


def make_rows(folder: Path, vocab_size: int, rows: list[list[tuple[int, int, list[int]]]]) -> None:
    """A Dataset of one source whose samples are given: (document, its token there, tokens) a segment."""
    seq_len = max(sum(len(tokens) for _, _, tokens in row) for row in rows)
    writer = ShardWriter(folder, ShardSpec("web", 0, seq_len, vocab_size))
    known: dict[int, int] = {}
    for row in rows:
        for document, _, _ in row:
            if document not in known:
                known[document] = writer.add_document(document, 0, document, 0)
        tokens = [token for _, _, piece in row for token in piece]
        starts = np.cumsum([0, *(len(piece) for _, _, piece in row)]).tolist()
        padded = len(tokens) < seq_len
        columns = [
            starts if padded else starts[:-1],
            [known[document] for document, _, _ in row] + [PADDING_ROW] * padded,
            [start for _, start, _ in row] + [0] * padded,
            [start for _, start, _ in row] + [0] * padded,
            [len(piece) for _, _, piece in row] + [0] * padded,
        ]
        writer.add_sample(np.array(tokens + [0] * (seq_len - len(tokens))), make_segments(*columns))
    info = DatasetInfo(("web",), seq_len, vocab_size, (writer.close(),), (InputFile("web", "a"),), {}, 0, "0")
    write_dataset_manifest(folder, info)


def test_wide_tokens_and_gaps(tmp_path: Path) -> None:
    """Tokens above 2^16, an order that packing turned round, and a document whose middle is not in the Dataset."""
    rows = [
        [(7, 3, [100_003, 100_004]), (8, 0, [5, 6])],
        [(9, 4, [44]), (7, 0, [100_000, 100_001, 100_002])],
        [(9, 0, [40, 41])],
    ]
    make_rows(tmp_path / "data", 200_000, rows)
    for form in EXPORTS:
        export_dataset(tmp_path / "data", tmp_path / form, ExportOptions(form))
    whole = [100_000, 100_001, 100_002, 100_003, 100_004]
    stream = np.frombuffer((tmp_path / "datatrove/web.ds").read_bytes(), "<u4")
    ends = np.frombuffer((tmp_path / "datatrove/web.ds.index").read_bytes(), "<u8")
    assert stream.tolist() == [*whole, 5, 6, 40, 41, 44]
    assert ends.tolist() == [5, 7, 9, 10]
    for reader in megatron_classes():
        view = reader(str(tmp_path / "megatron/web/shard.00000"))
        assert [view[i].tolist() for i in range(len(view))] == [whole[:3], whole[3:], [5, 6], [40, 41], [44]]
        assert view.document_indices.tolist() == [0, 2, 3, 5]
        del view
    pq = pytest.importorskip("pyarrow.parquet")
    found = pq.read_table(tmp_path / "parquet/web/part.00000.parquet").to_pylist()
    assert [(row["record"], row["first_token"], row["input_ids"]) for row in found] == [
        (7, 0, whole),
        (8, 0, [5, 6]),
        (9, 0, [40, 41]),
        (9, 4, [44]),
    ]
    assert [row["byte_count"] for row in found] == [[3, 2], [2], [2], [1]]


def test_a_row_group_stays_below_the_32_bits_of_its_offsets() -> None:
    """The longest document there can be, behind others: its tokens (no memory, a stride of 0) are counted only."""

    def part(document: int, num_tokens: int) -> DocumentPart:
        table: Any = None
        pieces: list[Any] = [np.broadcast_to(np.uint16(1), (num_tokens,))]
        return DocumentPart(document, 0, table, np.zeros(1, np.int64), pieces)

    lengths = [5, 7, (1 << 31) - 1, 3, (1 << 22) - 1, (1 << 31) - 4, 1]
    groups = list(_groups(part(number, length) for number, length in enumerate(lengths)))
    assert [[part.document for part in group] for group in groups] == [[0, 1], [2], [3, 4], [5], [6]]
    assert all(sum(part.num_tokens for part in group) < 1 << 31 for group in groups)
