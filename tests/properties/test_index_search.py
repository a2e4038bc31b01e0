"""documents.npy searched by ranges, against numpy over the whole of it: any ids, any repeats, few pages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import DamageError
from loader.shards.access import npy_bytes
from loader.shards.index_search import SearchedIndex
from loader.shards.layout import DOCUMENT_INDEX_DTYPE

HIGHEST = (1 << 64) - 1
IDS = st.one_of(
    st.integers(0, HIGHEST),
    st.integers(0, 40),
    st.integers(HIGHEST - 40, HIGHEST),
    st.integers(0, 63).map(lambda bit: 1 << bit),
)


def index_of(ids: list[int] | np.ndarray) -> tuple[bytes, np.ndarray]:
    rows_M = np.zeros(len(ids), DOCUMENT_INDEX_DTYPE)
    rows_M["id"] = np.sort(np.array(ids, np.uint64))
    rows_M["shard"] = np.arange(len(rows_M))
    return npy_bytes(rows_M), rows_M


def searched(data: bytes, pages: list[int] | None = None) -> SearchedIndex:
    def read(start: int, size: int) -> bytes:
        if pages is not None:
            pages.append(size)
        found = data[start : start + size]
        assert len(found) == size
        return found

    return SearchedIndex(read, len(data), "s3://bucket/documents.npy")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader.shards.index_search._PAGE_ROWS", 4)


@given(st.lists(IDS, max_size=60).flatmap(lambda ids: st.tuples(st.just(ids * 2), st.lists(IDS, max_size=5))))
def test_every_row_of_every_id_and_none_of_others(case: tuple[list[int], list[int]]) -> None:
    ids, others = case
    data, rows_M = index_of(ids + ids[:3] * 9)
    index = searched(data)
    for document in {*ids, *others, 0, HIGHEST}:
        assert np.array_equal(index.find(document), rows_M[rows_M["id"] == np.uint64(document)])
    assert len(index.find(-1)) == len(index.find(HIGHEST + 1)) == 0


KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "hashes": lambda rng: rng.integers(0, HIGHEST, 100_000, np.uint64, endpoint=True),
    "dense": lambda rng: np.arange(100_000, dtype=np.uint64),
    "powers": lambda rng: np.uint64(2) ** rng.integers(0, 63, 100_000).astype(np.uint64),
    "two heaps": lambda rng: np.arange(100_000, dtype=np.uint64) - np.uint64(50_000) * np.ones(100_000, np.uint64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_few_pages_whatever_the_ids_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader.shards.index_search._PAGE_ROWS", 64)
    rng = np.random.default_rng(3)
    ids = np.unique(KINDS[kind](rng))
    data, rows_M = index_of(ids)
    most = 0
    for document in [*rng.choice(ids, 60).tolist(), *rng.integers(0, HIGHEST, 60, np.uint64).tolist(), 0, HIGHEST]:
        pages: list[int] = []
        index = searched(data, pages)
        assert np.array_equal(index.find(document), rows_M[rows_M["id"] == np.uint64(document)])
        assert index.rows_read == sum(pages[1:]) // DOCUMENT_INDEX_DTYPE.itemsize
        most = max(most, len(pages) - 1)
    # Halving every third time bounds it; hashes are what a Dataset holds.
    assert most <= (7 if kind == "hashes" else 3 * 17 + 2)


def test_pages_that_cannot_be_are_refused() -> None:
    data, rows_M = index_of(list(range(10, 110)))
    found: list[DamageError] = []
    for row in range(100):
        bad_M = rows_M.copy()
        bad_M["id"][row] = HIGHEST if row < 99 else 1
        index = searched(npy_bytes(bad_M))
        for document in range(5, 115):
            try:
                index.find(document)
            except DamageError as error:
                found.append(error)
    assert {(error.code, error.place) for error in found} == {("TR-DATASET-INDEX", "s3://bucket/documents.npy")}
    with pytest.raises(DamageError, match="TR-FILE-FORMAT"):
        searched(data[:-1])


def test_a_hundred_million_documents_cost_a_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that stray from their even places as those of hashes do, made where they are read: the file has 1.6 GB."""
    monkeypatch.setattr("loader.shards.index_search._PAGE_ROWS", 4096)
    count, size = 100_000_000, DOCUMENT_INDEX_DTYPE.itemsize
    head = npy_bytes(np.zeros(0, DOCUMENT_INDEX_DTYPE)).replace(b"(0,)", f"({count},)".encode())
    head = head[: len(npy_bytes(np.zeros(0, DOCUMENT_INDEX_DTYPE)))]
    step = HIGHEST // count
    requests: list[int] = []

    strayed = np.random.default_rng(5).normal(0, 256, count >> 16).cumsum()  # sqrt(rows) at each 2^16th

    def ids_at(rows: np.ndarray) -> np.ndarray:
        stray = np.interp(rows, np.arange(len(strayed)) << 16, strayed)
        return np.maximum.accumulate(((rows + stray).clip(0, count - 1) * step).astype(np.uint64))

    def read(start: int, length: int) -> bytes:
        requests.append(length)
        if start == 0:
            return (head + bytes(length))[:length]
        first = (start - len(head)) // size
        rows_M = np.zeros(length // size, DOCUMENT_INDEX_DTYPE)
        rows_M["id"] = ids_at(np.arange(first, first + len(rows_M)))
        return rows_M.tobytes()

    index = SearchedIndex(read, len(head) + count * size, "far")
    for row in np.random.default_rng(1).integers(0, count, 20).tolist():
        requests.clear()
        document = int(ids_at(np.array([row]))[0])
        found = index.find(document)
        assert document in found["id"].tolist()
        assert len(requests) <= 6
        assert sum(requests) < 1 << 19
