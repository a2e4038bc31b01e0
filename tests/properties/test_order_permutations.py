"""Permutations of cells and of a source's samples: bijections with exact inverses, for ragged sizes and every shape."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order import SourceOrder
from loader.order.order import OrderSet
from loader.order.permute import keyed_cells, permute, unpermute

sizes = st.one_of(st.integers(1, 70), st.integers(1, 3000), st.sampled_from([255, 256, 257, 1023, 1025, 4096]))


@settings(max_examples=60, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=6), st.integers(0, 2**64 - 1))
def test_cells_of_mixed_sizes_are_permuted_and_restored(sizes: list[int], key: int) -> None:
    keys = (np.arange(len(sizes), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(key)
    cells = keyed_cells(np.array(sizes), keys)
    cell_N = np.repeat(np.arange(len(sizes)), sizes)
    number_N = np.concatenate([np.arange(size) for size in sizes])
    some = cells.at(cell_N)
    image_N = permute(number_N, some)
    assert np.array_equal(unpermute(image_N, some), number_N)
    for cell, size in enumerate(sizes):
        here = cell_N == cell
        assert np.array_equal(np.sort(image_N[here]), np.arange(size))
        assert np.array_equal(permute(np.arange(size), cells.at(np.full(size, cell))), image_N[here])


def test_large_cells_come_back() -> None:
    rng = np.random.default_rng(5)
    for size in (2**31 - 1, 2**30 + 1, 2**30, 131_064, 99_999):
        cells = keyed_cells(np.array([size]), np.array([12345], np.uint64))
        number_N = np.unique(np.concatenate([rng.integers(0, size, 2000), [0, size - 1]]))
        image_N = permute(number_N, cells)
        assert image_N.min() >= 0
        assert image_N.max() < size
        assert len(np.unique(image_N)) == len(number_N)
        assert np.array_equal(unpermute(image_N, cells), number_N)


def test_images_look_uniform_and_unrelated() -> None:
    """Chi-square of images over keys, and of pairs of neighbours; 5 sigma, so chance fails it once in a lifetime."""
    keys, size, bins = 4000, 1000, 20
    rng = np.random.default_rng(3)
    cells = keyed_cells(np.full(keys, size), rng.integers(0, 2**64, keys, dtype=np.uint64))
    images = {number: permute(np.full(keys, number), cells) for number in (0, 1, 2, 500, 999)}
    for image_N in images.values():
        counts = np.bincount(image_N * bins // size, minlength=bins)
        assert abs(((counts - keys / bins) ** 2 / (keys / bins)).sum() - (bins - 1)) < 5 * (2 * (bins - 1)) ** 0.5
    for first, second in ((0, 1), (1, 2), (0, 500)):
        assert abs(np.corrcoef(images[first], images[second])[0, 1]) < 5 / keys**0.5


layouts = st.tuples(
    st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(sum), st.integers(1, 12), st.integers(1, 5)
)


@settings(max_examples=60, deadline=None)
@given(layouts, st.integers(0, 2**63))
def test_each_epoch_of_a_ragged_source_is_a_permutation(layout: tuple[list[int], int, int], key: int) -> None:
    shards, window_shards, slices = layout
    order = SourceOrder(shards, key, window_shards, slices)
    total = sum(shards)
    raw_N = np.arange(3 * total)
    epoch_N, sample_N = order.locate(raw_N)
    assert np.array_equal(epoch_N, raw_N // total)
    for epoch in range(3):
        assert np.array_equal(np.sort(sample_N[epoch_N == epoch]), np.arange(total))
    assert np.array_equal(order.raw_of(epoch_N, sample_N), raw_N)


@settings(max_examples=30, deadline=None)
@given(st.lists(layouts, min_size=1, max_size=4), st.integers(0, 50), st.data())
def test_many_sources_together_equal_each_alone(
    shapes: list[tuple[list[int], int, int]], far: int, data: st.DataObject
) -> None:
    slices = shapes[0][2]
    orders = [SourceOrder(shards, number, window, slices) for number, (shards, window, _) in enumerate(shapes)]
    together = OrderSet(orders)
    for _ in range(3):  # the second and third question meet tables of the first
        seed = data.draw(st.integers(0, 1000))
        rng = np.random.default_rng(seed)
        source_N = rng.integers(0, len(orders), 50).astype(np.int32)
        raw_N = rng.integers(0, 1 + far * 40, 50)
        epoch_N, sample_N = together.locate(source_N, raw_N)
        for source, order in enumerate(orders):
            here = source_N == source
            epochs, samples = order.locate(raw_N[here])
            assert np.array_equal(epoch_N[here], epochs)
            assert np.array_equal(sample_N[here], samples)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30), st.integers(0, 9))
def test_live_shards_stay_within_window_times_slices(window: int, slices: int, num_shards: int, key: int) -> None:
    """A shard is live from its first to its last sample; never more than window_shards x slices are."""
    order = SourceOrder([40] * num_shards, key, window, slices)
    _, sample_N = order.locate(np.arange(order.num_samples))
    shard_N = sample_N // 40
    first = {shard: int(np.argmax(shard_N == shard)) for shard in range(num_shards)}
    last = {shard: order.num_samples - 1 - int(np.argmax(shard_N[::-1] == shard)) for shard in range(num_shards)}
    for index in range(0, order.num_samples, 7):
        assert sum(first[shard] <= index <= last[shard] for shard in range(num_shards)) <= window * slices


def test_epochs_and_sources_differ() -> None:
    order = SourceOrder([100, 100, 50], 1)
    _, sample_N = order.locate(np.arange(500))
    assert (sample_N[:250] == sample_N[250:]).mean() < 0.05
    assert (sample_N[:250] == SourceOrder([100, 100, 50], 2).locate(np.arange(250))[1]).mean() < 0.05
