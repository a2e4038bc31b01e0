"""What can happen to whole files of a Dataset is found, and the file named: cut, emptied, longer, swapped, gone,
foreign or a link.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.verified import covered_files, kind_of, make_splits

from loader.errors import ConfigError
from loader.shards.verify import Finding, verify_dataset, verify_file


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_splits(tmp_path_factory.mktemp("files"))


def names_of(findings: list[Finding]) -> set[str]:
    return {finding.file for finding in findings if finding.severity == "damage"}


def check_prefixes(path: Path, name: str, lengths: list[int]) -> None:
    file = path / name
    data = file.read_bytes()
    try:
        for length in lengths:
            file.write_bytes(data[:length])
            assert name in names_of(verify_file(path, name)), f"{name} cut to {length}"
    finally:
        file.write_bytes(data)


def test_every_length_of_the_manifest_is_found(splits: list[Path]) -> None:
    path = splits[1]
    check_prefixes(path, "manifest.json", list(range((path / "manifest.json").stat().st_size)))
    assert verify_dataset(path) == []


SHARD = "web/shard.00000"
TABLES = ("shards.npy", "documents.npy", "files.txt", "web/index.json", f"{SHARD}.docs", f"{SHARD}.segments")


@pytest.mark.parametrize("name", TABLES)
def test_every_length_of_a_small_table_is_found(splits: list[Path], name: str) -> None:
    check_prefixes(splits[1], name, list(range((splits[1] / name).stat().st_size)))
    assert verify_dataset(splits[1]) == []


@pytest.mark.slow
@pytest.mark.parametrize("split", [0, 1])
def test_every_length_of_every_file_is_found(splits: list[Path], split: int) -> None:
    path = splits[split]
    for name in covered_files(path):
        check_prefixes(path, name, list(range((path / name).stat().st_size)))
    assert verify_dataset(path) == []


def test_emptied_cut_longer_and_missing_files_are_found_by_the_whole_verifier(splits: list[Path]) -> None:
    for path in splits:
        for name in covered_files(path):
            file = path / name
            data = file.read_bytes()
            for changed in (b"", data[:-1], data[1:], data + b"\0", bytes(len(data))):
                file.write_bytes(changed)
                assert name in names_of(verify_dataset(path)), name
            file.unlink()
            if name == "manifest.json":
                with pytest.raises(ConfigError, match="TR-DATASET-NONE"):
                    verify_dataset(path)
            else:
                assert name in names_of(verify_dataset(path)), name
            file.write_bytes(data)
        assert verify_dataset(path) == []


def test_swapped_files_are_found_whatever_their_sizes(splits: list[Path]) -> None:
    path = splits[0]
    shards = [name for name in covered_files(path) if kind_of(name).startswith(".")]
    pairs = [pair for pair in itertools.combinations(shards, 2) if kind_of(pair[0]) == kind_of(pair[1])]
    pairs += [("web/index.json", "code/index.json"), ("removed.parquet", "rejected.parquet")]
    assert len(pairs) > 5
    for one, other in pairs:
        a, b = (path / one).read_bytes(), (path / other).read_bytes()
        assert a != b
        (path / one).write_bytes(b)
        (path / other).write_bytes(a)
        assert {one, other} <= names_of(verify_dataset(path)), (one, other)
        (path / one).write_bytes(a)
        (path / other).write_bytes(b)
    assert verify_dataset(path) == []


def test_the_other_splits_files_are_found(splits: list[Path]) -> None:
    path, other = splits
    for name in ("shards.npy", "documents.npy", "files.txt", "web/shard.00000.mds", "web/shard.00000.docs"):
        data = (path / name).read_bytes()
        (path / name).write_bytes((other / name).read_bytes())
        assert name in names_of(verify_dataset(path))
        (path / name).write_bytes(data)
    manifest = (path / "manifest.json").read_bytes()
    (path / "manifest.json").write_bytes((other / "manifest.json").read_bytes())
    assert {"shards.npy", "files.txt", "web/index.json"} <= names_of(verify_dataset(path))
    (path / "manifest.json").write_bytes(manifest)


def test_a_link_is_found_even_if_it_leads_to_the_right_bytes(splits: list[Path], tmp_path: Path) -> None:
    for path in splits:
        for name in covered_files(path):
            moved = tmp_path / "moved"
            (path / name).rename(moved)
            (path / name).symlink_to(moved)
            found = names_of(verify_dataset(path))
            (path / name).unlink()
            moved.rename(path / name)
            assert name in found, name


def test_foreign_files_are_listed_as_unnamed(splits: list[Path]) -> None:
    path = splits[0]
    for name in ("web/shard.00099.mds", "extra.parquet", "tokenizer/more.bin", "web/.hidden"):
        (path / name).write_bytes(b"x")
        for findings in (verify_dataset(path), verify_file(path, name)):
            assert [(f.severity, f.file, f.code) for f in findings] == [("unnamed", name, "TR-FILE-UNNAMED")]
        (path / name).unlink()
    assert verify_file(path, "job.json") == []
