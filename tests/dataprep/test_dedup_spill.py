"""What a decision holds meanwhile: spilled rows, scratch folders, sorted records, buckets; and what screens hand it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.dedup_runs import Source, configuration, run_stages, write_screen, write_sources

from dataprep.dedup.config import DedupConfig
from dataprep.dedup.minhash import split_bucket
from dataprep.dedup.spill import Spill, forget_pages, new_map, scratch_folder
from dataprep.documents import Status
from dataprep.kernels.sorting import sort_records
from loader.errors import DamageError

TEXTS = [f"document {chr(97 + index)} says {chr(97 + index) * 3} and nothing else" for index in range(8)]


@pytest.mark.parametrize("buffer_bytes", [0, 300, 1 << 20])
def test_rows_come_back_by_partition_in_their_order(tmp_path: Path, buffer_bytes: int) -> None:
    randomness = np.random.default_rng(buffer_bytes)
    spill = Spill(tmp_path, "rows", (np.uint64, (np.uint32, (3,)), (np.uint32, (0,))), 5, buffer_bytes)
    taken: list[list[tuple[int, list[int]]]] = [[] for _ in range(5)]
    for _ in range(6):
        count = int(randomness.integers(0, 40))
        partition_R = randomness.integers(0, 4, count)
        values, rows = randomness.integers(0, 1 << 60, count).astype(np.uint64), randomness.integers(0, 9, (count, 3))
        spill.route(partition_R, values, rows.astype(np.uint32), np.zeros((count, 0), np.uint32))
        for partition, value, row in zip(partition_R.tolist(), values.tolist(), rows.tolist(), strict=True):
            taken[partition].append((value, row))
    assert spill.num_rows == [len(rows) for rows in taken]
    for mapped in (False, True):
        for partition in range(5):
            columns = (spill.map if mapped else spill.read)(partition)
            assert list(zip(columns[0].tolist(), columns[1].tolist(), strict=True)) == taken[partition]
            assert columns[2].shape == (len(taken[partition]), 0)
            for column in columns:
                forget_pages(column)
            assert columns[0].tolist() == [value for value, _ in taken[partition]]
    assert spill.spilled_bytes > 0
    for partition in range(5):
        spill.drop(partition)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [3, 100_000])
def test_a_full_disk_names_the_scratch_file(tmp_path: Path, count: int) -> None:
    (tmp_path / "rows.00001.0").symlink_to("/dev/full")
    spill = Spill(tmp_path, "rows", (np.uint64,), 2, 0)
    with pytest.raises(OSError, match=r"rows\.00001\.0") as caught:
        spill.add(1, np.arange(count, dtype=np.uint64))
    assert caught.value.errno == errno.ENOSPC


def test_a_map_has_its_room_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk that is found when a page is written would be a bus error."""
    array = new_map(tmp_path / "rows", np.dtype(np.uint32), (300, 128))
    assert array.shape == (300, 128)
    assert not array.any()
    assert (tmp_path / "rows").stat().st_blocks * 512 >= array.nbytes
    assert new_map(tmp_path / "none", np.dtype(np.uint32), (300, 0)).shape == (300, 0)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="more") as caught:
        new_map(tmp_path / "more", np.dtype(np.uint32), (300, 128))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("methods", [("exact",), ("simhash",)])
def test_a_group_beyond_the_memory_needs_no_signatures(tmp_path: Path, methods: tuple[str, ...]) -> None:
    """What is mapped then has rows of no column: nothing cannot be mapped."""
    sources = {
        "a": Source({"a.jsonl": TEXTS * 3}, 0, ("simhash",)),
        "b": Source({"b.jsonl": [text.upper() for text in TEXTS] + TEXTS}, 1),
    }
    inputs = write_sources(tmp_path, sources)
    config = configuration(DedupConfig(methods=methods, across=False, max_removed_fraction=1.0), 0.3)
    whole = run_stages(inputs, config, tmp_path / "whole")
    assert len(whole.witness) == {("exact",): 16, ("simhash",): 8}[methods]
    assert run_stages(inputs, config, tmp_path / "mapped", memory_bytes=1 << 10) == whole


def test_scratch_goes_away_but_not_that_of_a_living_process(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for name in (f".tmp-{int(dead.stdout)}-scratch", f".tmp-{os.getppid()}-scratch", ".tmp-nobody-scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows").write_bytes(b"left")

    def fail_inside() -> None:
        with scratch_folder(tmp_path) as scratch:
            (scratch / "rows").write_bytes(b"mine")
            assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
                [scratch.name, f".tmp-{os.getppid()}-scratch"]
            )
            raise KeyError("stopped")

    with pytest.raises(KeyError):
        fail_inside()
    assert [path.name for path in tmp_path.iterdir()] == [f".tmp-{os.getppid()}-scratch"]


@pytest.mark.parametrize(("count", "distinct"), [(1, 1), (2, 1), (1000, 7), (5000, 4000), (3000, 1)])
def test_records_are_sorted_and_equal_keys_keep_their_order(count: int, distinct: int) -> None:
    randomness = np.random.default_rng(count)
    keys = randomness.integers(0, 1 << 64, distinct, np.uint64)
    key_S = keys[randomness.integers(0, distinct, count)]
    ordered_S, carried_S = np.empty(count, np.uint64), np.empty(count, np.uint32)
    places = np.zeros(1 << (count.bit_length() - 1), np.int64)
    sort_records(key_S, np.arange(count, dtype=np.uint32), ordered_S, carried_S, places)
    order = np.argsort(key_S, kind="stable")
    assert np.array_equal(carried_S, order)
    assert np.array_equal(ordered_S, key_S[order])


def test_parts_of_a_bucket_agree_on_more_rows(tmp_path: Path) -> None:
    randomness = np.random.default_rng(4)
    signature_NK = randomness.integers(0, 3, (400, 128), np.uint32)
    member_C = np.sort(randomness.choice(400, 300, replace=False)).astype(np.int32)
    config = DedupConfig(max_bucket=20)
    parts = split_bucket(member_C, signature_NK, 2, config)
    assert all(1 < len(part) <= 20 and (np.diff(part) > 0).all() for part in parts)
    members = np.concatenate(parts).tolist()
    assert len(set(members)) == len(members)
    assert set(members) <= set(member_C.tolist())
    for part in parts:
        assert len(np.unique(signature_NK[part, 15])) == 1
    same = np.zeros((50, 128), np.uint32)
    (whole,) = split_bucket(np.arange(50, dtype=np.int32), same, 24, config)
    assert whole.tolist() == list(range(50))


def test_screened_documents_have_a_reason_and_take_no_part(tmp_path: Path) -> None:
    """The best of three copies is screened: the next one stays and is the witness of the third."""
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": [TEXTS[0]] * 3 + TEXTS[1:4] + [""]}, 0)})
    labels = ["", "GopherQualityFilter: gopher_short_doc", "other: reason"]
    write_screen(inputs, {("s", "a.jsonl"): [1, 0, 0, 0, 2, 0, 1]}, tmp_path / "q", labels)
    write_screen(inputs, {("s", "a.jsonl"): [1, 0, 0, 0, 1, 1, 0]}, tmp_path / "d", ["", "mmlu"])
    screens = [(Status.REMOVED_QUALITY, tmp_path / "q"), (Status.REMOVED_CONTAMINATED, tmp_path / "d")]
    config = configuration(DedupConfig(max_removed_fraction=0.2, methods=("exact", "minhash", "ngram")))
    outcome = run_stages(inputs, config, tmp_path / "work", screens=screens)
    expected = [
        Status.REMOVED_QUALITY, Status.KEPT, Status.REMOVED_EXACT, Status.KEPT, Status.REMOVED_QUALITY,
        Status.REMOVED_CONTAMINATED, Status.REJECTED,
    ]  # fmt: skip
    assert [outcome.status["s", "a.jsonl", record] for record in range(7)] == expected
    rows = pq.read_table(tmp_path / "work/decided/removed.parquet").to_pylist()
    assert [row["reason"] for row in rows] == [labels[1], None, labels[2], "mmlu"]
    assert [row["method"] for row in rows] == ["quality", "exact", "quality", "contaminated"]
    for row in rows:
        for name in ("witness_document", "witness_source", "witness_file", "witness_record", "similarity"):
            assert (row[name] is None) == (row["method"] != "exact")
    assert outcome.counts["sources"]["s"]["removed"] == {
        **dict.fromkeys(("minhash", "simhash", "ngram"), 0), "exact": 1, "quality": 2, "contaminated": 1,
    }  # fmt: skip
    ranks = np.load(tmp_path / "work/decided/rank.00000.npy").tolist()
    assert [rank < 0 for rank in ranks] == [True, False, False, False, True, True]
    assert sorted(rank for rank in ranks if rank >= 0) == [0, 1, 2]


def test_all_documents_screened(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": TEXTS[:3]}, 0)})
    write_screen(inputs, {("s", "a.jsonl"): [1, 1, 1]}, tmp_path / "q", ["", "bad"])
    screens = [(Status.REMOVED_QUALITY, tmp_path / "q")]
    outcome = run_stages(inputs, configuration(DedupConfig(), 0.5), tmp_path / "work", screens=screens)
    assert set(outcome.status.values()) == {Status.REMOVED_QUALITY}
    assert pq.read_table(tmp_path / "work/decided/removed.parquet").num_rows == 3


def test_damaged_screens_are_named(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": TEXTS}, 0)})
    write_screen(inputs, {("s", "a.jsonl"): [0, 1, *[0] * 6]}, tmp_path / "q", ["", "bad"])
    verdict, labels = tmp_path / "q/verdict.00000.npy", tmp_path / "q/screen.00000.json"
    whole = verdict.read_bytes()
    screens = [(Status.REMOVED_QUALITY, tmp_path / "q")]
    for number, damaged in enumerate((whole[:-1], b"", None, (tmp_path / "s/a.jsonl").read_bytes())):
        if damaged is None:
            verdict.unlink()
        else:
            verdict.write_bytes(damaged)
        with pytest.raises(DamageError, match=r"TR-SCREEN-DAMAGED(.|\n)*verdict\.00000\.npy"):
            run_stages(inputs, configuration(DedupConfig()), tmp_path / f"v{number}", screens=screens)
    np.save(verdict, np.zeros(7, np.uint8))
    with pytest.raises(DamageError, match=r"TR-SCREEN-DAMAGED(.|\n)*verdict\.00000\.npy"):
        run_stages(inputs, configuration(DedupConfig()), tmp_path / "short", screens=screens)
    verdict.write_bytes(whole)
    for number, text in enumerate((json.dumps({"labels": [""]}), "{}", "")):
        labels.write_text(text)
        with pytest.raises(DamageError, match=r"TR-SCREEN-DAMAGED(.|\n)*screen\.00000\.json"):
            run_stages(inputs, configuration(DedupConfig()), tmp_path / f"l{number}", screens=screens)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["signatures", "texts"])
def test_the_benchmark_of_scale_finds_what_it_planted(tmp_path: Path, part: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks/dedup_scale.py"
    options = ["--scale", "0.002", "--memory", "20000000", "--folder", str(tmp_path), "--json"]
    done = subprocess.run([sys.executable, str(script), part, *options], capture_output=True, check=True)
    (figures,) = json.loads(done.stdout)
    if part == "signatures":
        assert figures["removed"] == figures["planted"] > 1000
        assert figures["disk_mb"] > 1
    else:
        assert 1.8 * figures["near_copies"] < figures["removed"] <= figures["near_copies"] + figures["chained"]
    assert figures["unverified_pairs"] == 0
