"""Token sets made to mislead, and sets that lie where users have them: behind links, in subfolders of an index."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, make_dataset

from dataprep.config import PackConfig
from dataprep.imports import IMPORTS
from dataprep.imports.base import RecordBatch, SetFile, SetOptions
from dataprep.token_facts import TokenFacts
from dataprep.token_import_files import FoundFiles, ImportFiles, ImportOptions
from loader.errors import ConfigError, DamageError, RefusedError
from loader.interop.export import ExportOptions, export_dataset


def read_set(name: str, path: Path) -> list[list[int]]:
    """The records of a set, files in order."""
    records = []
    for file in IMPORTS[name].find(path):
        for batch in IMPORTS[name].read(file, SetOptions()):
            stops = np.cumsum(batch.num_tokens_R)
            records += [part.tolist() for part in np.split(batch.ids_T, stops[:-1])]
    return records


def write_megatron(prefix: Path, num_tokens: Any, pointers: Any, borders: Any, tokens: int = 10) -> None:
    """A ``.bin`` of 0, 1, 2, ... and an ``.idx`` that says what it is told to."""
    np.arange(tokens).astype("<u2").tofile(prefix.with_suffix(".bin"))
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(num_tokens), len(borders))
    arrays = (np.asarray(num_tokens, "<i4"), np.asarray(pointers, "<i8"), np.asarray(borders, "<i8"))
    prefix.with_suffix(".idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))


def test_borders_whose_differences_overflow_do_not_rise(tmp_path: Path) -> None:
    write_megatron(tmp_path / "set", [5, 5], [0, 10], [0, (1 << 63) - 1, -2, 2])
    with pytest.raises(DamageError, match="do not rise") as caught:
        read_set("megatron", tmp_path)
    assert (caught.value.place or "").endswith("set.idx record 1")


def test_a_huge_document_of_shared_sequences_is_refused_before_it_is_made(tmp_path: Path) -> None:
    count = 300_000
    write_megatron(tmp_path / "set", np.full(count, 10_000), np.zeros(count), [0, count], tokens=10_000)
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="3,000,000,000 tokens") as caught:
            read_set("megatron", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
    finally:
        tracemalloc.stop()
    assert caught.value.code == "TR-DOCUMENT-LONG"


def test_a_huge_record_is_refused_by_name_before_its_tokens_are_read(tmp_path: Path) -> None:
    sizes_R = np.array([5, 1 << 31, 7 + (1 << 31)])
    ids_T = np.broadcast_to(np.uint16(0), int(sizes_R.sum()))  # no memory
    found = FoundFiles((SetFile(tmp_path / "a.ds", (), {}),), ("web",), {"web": tmp_path}, ())
    options = ImportOptions("datatrove", {}, SetOptions(), None, 9, None, PackConfig(8))
    step = ImportFiles(options, found, TokenFacts(9, None, None, 0), tmp_path)
    with pytest.raises(RefusedError, match="2,147,483,655 tokens") as caught:
        step._check(0, RecordBatch(10, ids_T, sizes_R, np.zeros(3, np.int64)))
    assert caught.value.code == "TR-DOCUMENT-LONG"
    assert (caught.value.place or "").endswith("a.ds record 12")


def test_an_end_behind_the_file_is_named(tmp_path: Path) -> None:
    np.arange(10).astype("<u2").tofile(tmp_path / "a.ds")
    np.array([3, 20, 10], "<u8").tofile(tmp_path / "a.ds.index")
    with pytest.raises(DamageError, match="do not rise") as caught:
        read_set("datatrove", tmp_path)
    assert (caught.value.place or "").endswith("a.ds.index record 1")


@pytest.mark.parametrize("name", ["set.bin", "set.idx"])
def test_a_file_named_is_that_file_and_not_a_folder_beside_it(name: str, tmp_path: Path) -> None:
    write_megatron(tmp_path / "set", [3], [0], [0, 1])
    (tmp_path / "set").mkdir()
    write_megatron(tmp_path / "set/other", [1], [8], [0, 1])
    assert read_set("megatron", tmp_path / name) == [[0, 1, 2]]
    assert read_set("megatron", tmp_path / "set") == [[4]]


@pytest.mark.parametrize("total", ["9" * 6000, "\u0661\u0660", "\u00b2"])
def test_no_number_of_tokens_in_the_metadata(total: str, tmp_path: Path) -> None:
    np.arange(10).astype("<u2").tofile(tmp_path / "a.ds")
    np.array([3, 10], "<u8").tofile(tmp_path / "a.ds.index")
    (tmp_path / "a.ds.metadata").write_text(f"name|2\n{total}\n")
    with pytest.raises(DamageError, match="no metadata"):
        read_set("datatrove", tmp_path)


def _mds(folder: Path, **change: Any) -> None:
    data = struct.pack("<III", 1, 12, 18) + np.array([7, 8, 9], "<u2").tobytes()
    (folder / "s.mds").write_bytes(data)
    shard = {
        "format": "mds",
        "raw_data": {"basename": "s.mds", "bytes": len(data), "hashes": {}},
        "zip_data": None,
        "compression": None,
        "column_names": ["tokens"],
        "column_encodings": ["ndarray:uint16:3"],
        "column_sizes": [6],
        "samples": 1,
    }
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [{**shard, **change}]}))


def test_numbers_of_an_mds_index_are_bounded(tmp_path: Path) -> None:
    _mds(tmp_path)
    assert read_set("mds", tmp_path) == [[7, 8, 9]]
    for size in (1 << 70, 1 << 40, -1, 6.0, "6", True):
        _mds(tmp_path, column_sizes=[size])
        with pytest.raises(DamageError, match="impossible sizes"):
            read_set("mds", tmp_path)
    for length in ("9" * 6000, "\u0663", "\u00b2"):
        _mds(tmp_path, column_encodings=[f"ndarray:uint16:{length}"])
        with pytest.raises(ConfigError) as caught:
            read_set("mds", tmp_path)
        assert caught.value.code == "TR-IMPORT-COLUMN"


@pytest.mark.parametrize("link", [False, True])
def test_exports_come_back_through_their_joint_index_and_through_links(link: bool, tmp_path: Path) -> None:
    made = make_dataset(tmp_path / "made", DatasetSpec(documents={"web": 12, "code": 5}))
    for form in ("mds", "megatron"):
        export_dataset(made.path, tmp_path / form, ExportOptions(form, link=link))
    by_source = [record for source in made.samples for record in read_set("mds", tmp_path / "mds" / source)]
    assert sorted(by_source) == sorted(read_set("mds", tmp_path / "mds"))
    assert len(by_source) == sum(len(samples) for samples in made.samples.values())
    assert sum(map(len, read_set("megatron", tmp_path / "megatron"))) > 0


def test_a_link_to_no_file_is_named(tmp_path: Path) -> None:
    write_megatron(tmp_path / "set", [3], [0], [0, 1])
    (tmp_path / "set.bin").unlink()
    (tmp_path / "set.bin").symlink_to("/dev/zero")
    with pytest.raises((DamageError, ConfigError)):
        read_set("megatron", tmp_path)
