"""How well an order shuffles, beside mosaicml-streaming's own py1e and py1br at equal live shards.

Entropy is mosaic's metric (its docs and shuffle tests): of the differences between neighbours, for sample and for shard
numbers, joined by their harmonic mean. The variance is that of the mean of 512 neighbours when samples of a shard are
alike, in units of what independent draws have: 1 for a shuffle of everything. A burst is the most shards that become
live within a quarter of a shard's samples. Live counts a shard from its first to its last sample of the epoch.

Legend: N samples in the order of an epoch, S shards.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.order import SourceOrder

NUM_SHARDS = 305
_BATCH, _TRAITS = 512, 20
_Ints = NDArray[np.int64]
Measures = dict[str, float]


def _entropy(numbers_N: _Ints) -> float:
    counts = np.bincount(np.abs(np.diff(numbers_N)))
    share = counts[counts > 0] / (len(numbers_N) - 1)
    return float(-(share * np.log2(share)).sum())


def _variance(shard_N: _Ints) -> float:
    rng = np.random.default_rng(7)
    trait_S = rng.normal(size=(_TRAITS, NUM_SHARDS))
    trait_S = (trait_S - trait_S.mean(1, keepdims=True)) / trait_S.std(1, keepdims=True)
    whole = shard_N[: len(shard_N) // _BATCH * _BATCH]
    return float(np.mean([(trait[whole].reshape(-1, _BATCH).mean(1) ** 2).mean() * _BATCH for trait in trait_S]))


def _live_and_burst(shard_N: _Ints, shard_samples: int) -> tuple[int, int]:
    at_N = np.arange(len(shard_N))
    first_S, last_S = np.full(NUM_SHARDS, len(shard_N)), np.zeros(NUM_SHARDS, np.int64)
    np.minimum.at(first_S, shard_N, at_N)
    np.maximum.at(last_S, shard_N, at_N)
    change_N = np.bincount(first_S, minlength=len(shard_N) + 1) - np.bincount(last_S + 1, minlength=len(shard_N) + 1)
    begins_S = np.sort(first_S)
    stops_S = np.searchsorted(begins_S, begins_S + shard_samples // 4)
    later = begins_S > 0  # every order starts with nothing live
    return int(np.cumsum(change_N).max()), int((stops_S - np.arange(NUM_SHARDS))[later].max())


def measure(sample_N: _Ints, shard_samples: int) -> Measures:
    """All figures of one epoch in its order; it must hold every sample once."""
    if not np.array_equal(np.bincount(sample_N), np.ones(NUM_SHARDS * shard_samples, np.int64)):
        raise ValueError("not an epoch")
    shard_N, place_N = np.divmod(sample_N, shard_samples)
    samples, shards = _entropy(sample_N), _entropy(shard_N)
    live, burst = _live_and_burst(shard_N, shard_samples)
    return {
        "entropy": 2 * samples * shards / (samples + shards),
        "batch-mean variance": _variance(shard_N),
        "live shards": live,
        "burst": burst,
        "lag-1 correlation": abs(float(np.corrcoef(place_N[:-1], place_N[1:])[0, 1])),
    }


def _over_seeds(make: Callable[[int], _Ints], shard_samples: int, seeds: int) -> Measures:
    """Means over seeds; the worst of live shards and bursts."""
    found = [measure(make(seed), shard_samples) for seed in range(seeds)]
    worst = ("live shards", "burst")
    return {name: float((np.max if name in worst else np.mean)([one[name] for one in found])) for name in found[0]}


def _ours(window_shards: int, slices: int, shard_samples: int, seeds: int) -> Measures:
    def make(seed: int) -> _Ints:
        order = SourceOrder(np.full(NUM_SHARDS, shard_samples), seed, window_shards, slices)
        return order.locate(np.arange(order.num_samples))[1]

    return _over_seeds(make, shard_samples, seeds)


def _theirs(name: str, block_shards: int, shard_samples: int, seeds: int) -> Measures | None:
    try:
        get_shuffle = importlib.import_module("streaming.base.shuffle").get_shuffle
    except ImportError:
        return None
    sizes = np.full(NUM_SHARDS, shard_samples, np.int64)
    return _over_seeds(
        lambda seed: get_shuffle(name, sizes, 1, seed, 0, block_shards * shard_samples), shard_samples, seeds
    )


def compare(shard_samples: int, seeds: int) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """(name, value, more) of each row: our shapes at 16 and 64 live shards beside the peers with as many.

    A peer's block of n shards keeps more than n live; these blocks are the largest that stay at 16 and at 64.

    Judged are entropy (as much as py1e's at least), live shards (no more) and burst (half at most).
    """
    goals = {"entropy": (">=", 1.0), "live shards": ("<=", 1.0), "burst": ("<=", 0.5)}
    budgets = (
        ({"py1e": 13, "py1br": 10}, ((8, 2), (4, 4), (2, 8))),
        ({"py1e": 58, "py1br": 42}, ((16, 4), (8, 8))),
    )
    for blocks, shapes in budgets:
        peers = {name: _theirs(name, block, shard_samples, seeds) for name, block in blocks.items()}
        for window_shards, slices in shapes:
            ours = _ours(window_shards, slices, shard_samples, seeds)
            for peer, figures in peers.items():
                for name, value in ours.items():
                    yield (
                        f"shuffle {window_shards} x {slices}, {name}, beside {peer}",
                        value,
                        {
                            "peer": f"mosaicml-streaming, blocks of {blocks[peer]}",
                            "peer_value": None if figures is None else figures[name],
                            "ratio_target": goals.get(name) if peer == "py1e" else None,
                        },
                    )
