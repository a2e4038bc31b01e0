"""No bit of any file but job.json flips unseen, in either split: random ones, seed stated; the file is named.

Each flip is judged by the checks of its own file; every third by verifying the whole Dataset, which must find all that
these find. A single bit reaches the reader of no other file: each is read whole, by its own hash.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.corpora import make_corpus, write_config
from support.verified import Bit, covered_files, flip, kind_of, make_splits, random_bits

from loader.shards.verify import Finding, verify_dataset, verify_file

SEED = 20260101
FAST_FLIPS = 300
SLOW_FLIPS_A_KIND = 2000
WHOLE_EVERY = 3


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_splits(tmp_path_factory.mktemp("bits"))


def damage(findings: list[Finding]) -> set[Finding]:
    return {finding for finding in findings if finding.severity == "damage"}


def check_found(bit: Bit, whole: bool) -> None:
    for _ in flip(bit):
        found = damage(verify_file(bit.path, bit.name))
        assert bit.name in {finding.file for finding in found}, str(bit)
        if whole:
            assert damage(verify_dataset(bit.path)) >= found, str(bit)


def check_all(bits: list[Bit], whole_every: int) -> Counter[str]:
    for number, bit in enumerate(bits):
        check_found(bit, number % whole_every == 0)
    for path in {bit.path for bit in bits}:
        assert verify_dataset(path) == []
    return Counter(kind_of(bit.name) for bit in bits)


def test_untouched_splits_are_intact_file_by_file(splits: list[Path]) -> None:
    for path in splits:
        assert verify_dataset(path) == []
        for name in covered_files(path):
            assert verify_file(path, name) == []


def test_300_random_bits_are_found(splits: list[Path]) -> None:
    counts = check_all(random_bits(splits, FAST_FLIPS, SEED), WHOLE_EVERY)
    assert set(counts) == {kind_of(name) for path in splits for name in covered_files(path)}
    assert sum(counts.values()) == FAST_FLIPS


def test_every_bit_of_the_headers_is_found(splits: list[Path]) -> None:
    """What parses before anything is hashed: where a hostile bit could send a reader astray."""
    path = splits[0]
    for name, size_bytes in (
        ("web/shard.00000.segments", 64),
        ("web/shard.00000.docs", 64),
        ("web/shard.00000.mds", 16),
        ("shards.npy", 128),
        ("documents.npy", 128),
    ):
        for place in range(size_bytes):
            for bit in range(8):
                check_found(Bit(path, name, place, bit), False)


@pytest.mark.slow
def test_every_bit_of_small_files_is_found(splits: list[Path]) -> None:
    path = splits[1]
    for name in ("manifest.json", "files.txt", "web/index.json", "shards.npy"):
        for place in range((path / name).stat().st_size):
            for bit in range(8):
                check_found(Bit(path, name, place, bit), False)


@pytest.mark.slow
def test_2000_random_bits_of_every_kind_of_a_real_build_are_found(tmp_path: Path) -> None:
    from dataprep.run import prepare, run_build
    from loader.cli_options import Output

    config = write_config(tmp_path / "build.yaml", make_corpus(tmp_path / "corpus"))
    result = run_build(prepare(config, (), read_only=False), Output(quiet=True))
    built = [Path(str(result["output"])), Path(str(result["validation"]))]
    kinds = {kind_of(name) for path in built for name in covered_files(path)}
    assert kinds >= {"manifest.json", ".mds", ".segments", ".docs", "index.json", "removed.parquet", "report.html"}
    counts = check_all(random_bits(built, SLOW_FLIPS_A_KIND * len(kinds), SEED), 50)
    assert min(counts.values()) == SLOW_FLIPS_A_KIND
