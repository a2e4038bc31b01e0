"""Packing: whole, exact, deterministic, and as good as best fit decreasing written down plainly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.kernels.pack import best_fit_bins, gather_tokens
from dataprep.pack import PACKERS, pack_window, shards_of_windows, window_borders

LENGTHS = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 700), st.just(64), st.just(129)), max_size=120)


def best_fit_plain(lengths: list[int], seq_len: int) -> int:
    """Number of bins of best fit decreasing, by definition."""
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [i for i, space in enumerate(free) if space >= length]
        if fitting:
            free[min(fitting, key=lambda i: free[i])] -= length
        else:
            free.append(seq_len - length)
    return len(free)


@pytest.mark.parametrize("strategy", PACKERS)
@given(lengths=LENGTHS, seq_len=st.sampled_from([8, 63, 64, 65, 128, 200]), key=st.integers(0, 2**64 - 1))
@settings(max_examples=120, deadline=None)
def test_every_token_lies_in_exactly_one_place(strategy: str, lengths: list[int], seq_len: int, key: int) -> None:
    packed = pack_window(np.array(lengths, np.int64), seq_len, key, strategy)
    places = np.zeros((packed.num_samples, seq_len), np.int64)
    seen = [np.zeros(length, np.int64) for length in lengths]
    pieces_of = [0] * len(lengths)
    for document, start, count, sample, place in zip(
        packed.document_P,
        packed.document_token_start_P,
        packed.num_tokens_P,
        packed.sample_P,
        packed.token_start_P,
        strict=True,
    ):
        places[sample, place : place + count] += 1
        assert place + count <= seq_len
        seen[document][start : start + count] += 1
        pieces_of[document] += 1
        assert start % seq_len == 0
    assert all((tokens == 1).all() for tokens in seen)
    assert places.max(initial=0) <= 1
    for length, pieces in zip(lengths, pieces_of, strict=True):
        assert pieces == -(-length // seq_len), "a document that fits was cut"
    filled_N = places.sum(1)
    for sample in range(packed.num_samples):
        assert places[sample, : filled_N[sample]].all(), "padding must come last"
        assert filled_N[sample] > 0
    assert packed.padding_tokens(seq_len) == packed.num_samples * seq_len - sum(lengths)
    again = pack_window(np.array(lengths, np.int64), seq_len, key, strategy)
    np.testing.assert_array_equal(packed.sample_P, again.sample_P)
    assert (np.diff(packed.sample_P) >= 0).all()


@given(lengths=st.lists(st.integers(1, 300), max_size=150), seq_len=st.sampled_from([300, 512, 4097]))
@settings(max_examples=100, deadline=None)
def test_bitset_opens_as_many_bins_as_the_definition(lengths: list[int], seq_len: int) -> None:
    bin_P, num_bins = best_fit_bins(np.array(lengths, np.int32), seq_len)
    assert num_bins == best_fit_plain(lengths, seq_len)
    if lengths:
        assert np.bincount(bin_P, weights=lengths).max() <= seq_len


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


def test_document_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack_window(np.array([3, 0]), 8, 0)


def test_gather_puts_borders_and_tokens() -> None:
    out_NT = np.full((2, 8), 9, np.uint16)
    tokens = np.arange(20, 40, dtype=np.uint16)
    pieces = np.array([[0, 0, 5, 2, 3], [1, 2, 3, 10, 1], [1, 5, 2, 12, 2], [0, 5, 2, 7, 0]], np.int64)
    gather_tokens(out_NT, pieces, tokens, np.array([1, 2]))
    assert out_NT.tolist() == [[1, 22, 23, 24, 2, 27, 28, 9], [9, 9, 1, 30, 31, 32, 2, 9]]
