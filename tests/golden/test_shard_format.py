"""Version 1 of the Dataset format, frozen: every later version reads these bytes, and this version still writes them.

``dataset_v1/`` was written once by :func:`build`. It changes only together with ``layout.FORMAT_VERSION``; then the old
folder stays, and a new one is added beside it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loader.shards import (
    PADDING_ROW,
    DatasetInfo,
    InputFile,
    ShardSpec,
    ShardWriter,
    make_segments,
    open_dataset,
    write_dataset_manifest,
)
from loader.shards.verify import verify_dataset

GOLDEN = Path(__file__).parent / "dataset_v1"
DIGEST = "1a694bd382ca433c9a5f0ba30fcf5e9a"
TOKENS_NT = np.array([[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 499, 0, 0, 0, 0], [12, 13, 14, 15, 16, 17, 18, 19]])


def build(folder: Path) -> str:
    """The golden Dataset."""
    writer = ShardWriter(folder, ShardSpec("web", 0, 8, 500))
    first = writer.add_document(0xFEDCBA9876543210, 0, 3, 1234)
    second = writer.add_document(0x0123456789ABCDEF, 1, 0, 0)
    writer.add_samples(
        TOKENS_NT,
        make_segments(
            token_start=[0, 5, 0, 4, 0],
            document_row=[first, second, second, PADDING_ROW, second],
            document_token_start=[0, 0, 3, 0, 7],
            byte_start=[0, 0, 11, 0, 25],
            byte_count=[17, 11, 14, 0, 40],
        ),
        np.array([2, 2, 1]),
    )
    info = DatasetInfo(
        sources=("web",),
        seq_len=8,
        vocab_size=500,
        shards=(writer.close(),),
        files=(InputFile("web", "a/first.jsonl", 4000, "0" * 32), InputFile("web", "b/zweite-Ü.jsonl")),
        tokenizer={"bos_id": 1, "digest": "f" * 32, "eos_id": 0, "golden": [["é", [9, 10]]], "lossless": True},
        salt=2**64 - 1,
        package_version="0.1.0",
        parents={"corpus": "a" * 32},
        config={"seed": 17},
        accounting={"documents": {"in": 2, "trained": 2}},
    )
    return write_dataset_manifest(folder, info)


def test_version_1_is_read() -> None:
    assert verify_dataset(GOLDEN) == []
    dataset = open_dataset(GOLDEN, DIGEST)
    assert dataset.read_samples("web", [2, 0, 1]).tolist() == TOKENS_NT[[2, 0, 1]].tolist()
    table_S = dataset.segments_of("web", [0, 1, 2])
    assert table_S.sample_index_S.tolist() == [0, 0, 1, 1, 2]
    assert table_S.token_start_S.tolist() == [0, 5, 0, 4, 0]
    assert table_S.num_tokens_S.tolist() == [5, 3, 4, 4, 8]
    assert table_S.padding_S.tolist() == [False, False, False, True, False]
    ids = [0xFEDCBA9876543210, 0x0123456789ABCDEF, 0x0123456789ABCDEF, 0, 0x0123456789ABCDEF]
    assert table_S.document_id_S.tolist() == ids
    assert table_S.document_token_start_S.tolist() == [0, 0, 3, 0, 7]
    assert table_S.byte_start_S.tolist() == [0, 0, 11, 0, 25]
    assert table_S.byte_count_S.tolist() == [17, 11, 14, 0, 40]
    assert table_S.file_S.tolist() == [0, 1, 1, -1, 1]
    assert table_S.record_S.tolist() == [3, 0, 0, 0, 0]
    assert table_S.record_start_S.tolist() == [1234, 0, 0, 0, 0]
    assert [n.tolist() for _, n in dataset.samples_of_document(0x0123456789ABCDEF)] == [[0, 1, 2]]
    assert dataset.file_path(1) == "b/zweite-Ü.jsonl"
    assert dataset.manifest.sources[0].num_tokens == 20
    assert dataset.manifest.salt == 2**64 - 1
    assert dataset.manifest.tokenizer["golden"] == [["é", [9, 10]]]


def test_version_1_is_written(tmp_path: Path) -> None:
    assert build(tmp_path) == DIGEST
    names = sorted(path.relative_to(GOLDEN) for path in GOLDEN.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert [name for name in names if (GOLDEN / name).read_bytes() != (tmp_path / name).read_bytes()] == []
