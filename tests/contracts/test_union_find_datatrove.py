"""``decision: union_find`` removes what datatrove's own two steps remove, given the same signatures."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster
from datatrove.utils.hashing import HashConfig
from numpy.typing import NDArray
from support.dedup_runs import near_copies

from dataprep.dedup.config import MinHashConfig
from dataprep.dedup.union_find import cluster_roots
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.minhash import affine_permutations


def datatrove_removes(
    folder: Path, signature_NK: NDArray[np.uint32], place_N2: NDArray[np.int64], config: MinHashConfig
) -> set[tuple[int, int]]:
    """(file, document) of what datatrove removes: its second and third step over our signatures in its format."""
    names = [f"h{row}" for row in range(config.rows)]
    row = np.dtype([*((name, "<u4") for name in names), ("document", "<u4")])
    has_shingles = (signature_NK != np.uint32(0xFFFFFFFF)).any(axis=1)
    for band in range(config.bands):
        target = folder / "signatures" / f"bucket_{band:03d}"
        target.mkdir(parents=True)
        for file in range(int(place_N2[:, 0].max()) + 1):
            mine = (place_N2[:, 0] == file) & has_shingles
            rows = np.zeros(int(mine.sum()), row)
            for number, name in enumerate(names):
                rows[name] = signature_NK[mine, band * config.rows + number]
            rows["document"] = place_N2[mine, 1]
            rows.sort(order=[*names, "document"])
            (target / f"{file:05d}.minhash.sig").write_bytes(rows.tobytes())
    theirs = MinhashConfig(
        num_buckets=config.bands, hashes_per_bucket=config.rows, hash_config=HashConfig(precision=32)
    )
    buckets = MinhashDedupBuckets(str(folder / "signatures"), str(folder / "pairs"), config=theirs)
    for rank in range(config.bands):
        buckets.run(None, rank, config.bands)
    MinhashDedupCluster(str(folder / "pairs"), str(folder / "removed"), config=theirs).run(None, 0, 1)
    return {
        (int(path.name.removesuffix(".remove")), int(document))
        for path in (folder / "removed").glob("*.remove")
        for document in np.fromfile(path, "<u4")
    }


def ours_removes(
    signature_NK: NDArray[np.uint32], place_N2: NDArray[np.int64], config: MinHashConfig
) -> set[tuple[int, int]]:
    root_N = cluster_roots(signature_NK, place_N2[:, 0], place_N2[:, 1], config)
    assert np.array_equal(root_N[root_N], root_N)
    return {(int(file), int(document)) for file, document in place_N2[root_N != np.arange(len(root_N))]}


def places(count: int, num_files: int, randomness: random.Random) -> NDArray[np.int64]:
    """(file, document) of ``count`` documents: files of random sizes, records with gaps."""
    next_document = [0] * num_files
    rows = []
    for _ in range(count):
        file = randomness.randrange(num_files)
        next_document[file] += randomness.choice([1, 1, 3])
        rows.append((file, next_document[file]))
    return np.array(rows, np.int64)


@pytest.mark.parametrize(("bands", "rows"), [(25, 5), (14, 8), (3, 2), (1, 1)])
@pytest.mark.parametrize("seed", [1, 2])
def test_removals_of_texts_are_those_of_datatrove(tmp_path: Path, bands: int, rows: int, seed: int) -> None:
    randomness = random.Random(seed)
    texts = [*near_copies(randomness, 250), "", "...", ""]
    config = MinHashConfig(bands=bands, rows=rows)
    signature_NK, _ = DocumentHasher().sign(pa.array(texts, pa.large_string()), affine_permutations(128, seed))
    place_N2 = places(len(texts), 4, randomness)
    expected = datatrove_removes(tmp_path, signature_NK, place_N2, config)
    assert ours_removes(signature_NK, place_N2, config) == expected
    assert len(expected) > 20
    shuffled = np.random.default_rng(seed).permutation(len(texts))
    assert ours_removes(signature_NK[shuffled], place_N2[shuffled], config) == expected


@pytest.mark.parametrize(("count", "values"), [(400, 12), (60, 2), (300, 40)])
def test_clusters_that_chain_and_tie_in_size(tmp_path: Path, count: int, values: int) -> None:
    """Signatures of few distinct values, the largest among them: long chains, equal sizes, and bands half shared."""
    randomness = np.random.default_rng(values)
    config = MinHashConfig(num_permutations=16, bands=5, rows=3)
    signature_NK = randomness.integers(0, values, (count, 16), dtype=np.uint32)
    signature_NK[signature_NK == 0] = np.uint32(0xFFFFFFFF)
    signature_NK[::3, :3] = signature_NK[0, :3]
    place_N2 = places(count, 7, random.Random(values))
    assert ours_removes(signature_NK, place_N2, config) == datatrove_removes(tmp_path, signature_NK, place_N2, config)


def test_nothing_to_cluster() -> None:
    config = MinHashConfig()
    for count in (0, 1):
        places_ = np.zeros(count, np.int64)
        assert cluster_roots(np.zeros((count, 128), np.uint32), places_, places_, config).tolist() == [0] * count


def test_rows_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MinHashConfig(num_permutations=16, bands=5, rows=3)
    signature_NK = np.random.default_rng(1).integers(0, 12, (300, 16), dtype=np.uint32)
    place_N2 = places(300, 3, random.Random(1))
    expected = cluster_roots(signature_NK, place_N2[:, 0], place_N2[:, 1], config)

    def four_values(rows_NR: NDArray[np.uint32], first: int, rows: int, key_N: NDArray[np.uint64]) -> None:
        key_N[:] = (rows_NR.sum(axis=1) % 4).astype(np.uint64) << np.uint64(40)

    monkeypatch.setattr("dataprep.kernels.bands.band_keys", four_values)
    assert np.array_equal(cluster_roots(signature_NK, place_N2[:, 0], place_N2[:, 1], config), expected)
    assert 10 < len(np.unique(expected)) < 290
