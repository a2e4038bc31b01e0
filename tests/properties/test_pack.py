"""Windows, shards of windows, and the tokens of packed samples; the packers have their own contract test."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dataprep.kernels.pack import gather_tokens
from dataprep.pack import pack_window, shards_of_windows, window_borders

LENGTHS = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 700), st.just(64), st.just(129)), max_size=120)


@given(lengths=LENGTHS, max_documents=st.integers(1, 30), max_tokens=st.integers(1, 2000))
def test_windows_hold_whole_documents_within_limits(lengths: list[int], max_documents: int, max_tokens: int) -> None:
    borders = window_borders(np.array(lengths, np.int64), max_documents, max_tokens).tolist()
    assert borders[0] == 0
    assert borders[-1] == len(lengths)
    for start, stop in itertools.pairwise(borders):
        assert 0 < stop - start <= max_documents
        assert stop - start == 1 or sum(lengths[start:stop]) <= max_tokens
        if stop < len(lengths) and stop - start < max_documents:
            assert sum(lengths[start : stop + 1]) > max_tokens, "a window ended early"


@given(samples=st.lists(st.integers(1, 60), max_size=40), most=st.integers(1, 100))
def test_shards_are_whole_windows_of_even_size(samples: list[int], most: int) -> None:
    shards = shards_of_windows(samples, most)
    assert len(shards) == len(samples)
    assert shards == sorted(shards)
    assert sorted(set(shards)) == list(range(len(set(shards))))
    sizes = np.bincount(shards, weights=samples) if shards else np.zeros(0)
    windows = np.bincount(shards) if shards else np.zeros(0)
    assert all(size <= most or count == 1 for size, count in zip(sizes, windows, strict=True))
    if shards and max(samples) * 4 <= most:
        assert len(sizes) <= -(-sum(samples) // most) * 4 / 3 + 1


def test_samples_are_not_in_order_of_length() -> None:
    """Half of a window looks like the other half: fillers and fillings alike."""
    rng = np.random.default_rng(5)
    lengths_D = np.clip(rng.lognormal(5, 1, 4000), 10, 2000).astype(np.int64)
    packed = pack_window(lengths_D, 2048, key=3)
    segments_N = np.bincount(packed.sample_P, minlength=packed.num_samples)
    half = packed.num_samples // 2
    first, second = segments_N[:half].mean(), segments_N[half:].mean()
    assert abs(first - second) < 0.15 * segments_N.mean()
    assert packed.padding_tokens(2048) < 0.001 * packed.num_samples * 2048


def test_gather_puts_borders_and_tokens() -> None:
    out_NT = np.full((2, 8), 9, np.uint16)
    tokens = np.arange(20, 40, dtype=np.uint16)
    pieces = np.array([[0, 0, 5, 2, 3], [1, 2, 3, 10, 1], [1, 5, 2, 12, 2], [0, 5, 2, 7, 0]], np.int64)
    gather_tokens(out_NT, pieces, tokens, np.array([1, 2]))
    assert out_NT.tolist() == [[1, 22, 23, 24, 2, 27, 28, 9], [9, 9, 1, 30, 31, 32, 2, 9]]
