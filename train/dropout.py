"""Dropout without a random state: whether a number is kept is a function of where it stands, of nothing else.

The place is (seed, position of the sample in the plan, layer, site, token, feature). So a mask does not depend on the
mesh, the batch size, the micro-batch or a resume, and activation checkpointing makes the same one again. On the host
each (position, layer, site) becomes a 64-bit key (splitmix64, Steele et al., 2014); on the device token and feature are
mixed into it by Wellons' two-round 32-bit function. It is computed in int64, no product of which overflows, so every
device and compiler finds the same bits.

Two tokens whose mixed keys agree in their high bits have masks that are permutations of each other; among all tokens of
a sample that happens to a few pairs, which no training notices.

Shape legend: B samples, t tokens here, D features here, L layers here, S sites.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["EMBEDDING_LAYER", "drop", "layer_keys", "resolution"]

EMBEDDING_LAYER = -1
_ROUNDS = 1 << 16
_MASK = 0xFFFFFFFF
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def layer_keys(seed: int, positions_B: NDArray[np.int64], layers: list[int], num_sites: int) -> Tensor:
    """Keys of the masks of one micro-batch: int64 on the host, (L, S, B, 2), each below 2^32.

    Args:
        seed: of the masks. positions_B: of the samples in the plan. layers: their numbers; ``EMBEDDING_LAYER``.
    """
    with np.errstate(over="ignore"):
        sample_B = _splitmix(positions_B.astype(np.uint64) ^ _splitmix(np.array([seed], dtype=np.uint64)))
        place_L = (np.array(layers, dtype=np.int64) + 1).astype(np.uint64) * np.uint64(num_sites)
        place_LS = place_L[:, None] + np.arange(num_sites, dtype=np.uint64)
        keys = _splitmix(sample_B + _splitmix(place_LS)[:, :, None])
    halves = np.stack((keys & np.uint64(_MASK), keys >> np.uint64(32)), axis=-1)
    return torch.from_numpy(halves.astype(np.int64))


def resolution(share: float) -> int:
    """A share of 1 as a number of 65,536ths, never all of them."""
    return min(round(share * _ROUNDS), _ROUNDS - 1)


def _mix(x: Tensor) -> Tensor:
    """Two rounds; values and multipliers below 2^32 and 2^31, so the products stay below 2^63."""
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def drop(x_BtD: Tensor, share: float, key_B2: Tensor, token_t: Tensor, first_feature: int = 0) -> Tensor:
    """``x`` with a share of its numbers zeroed and the others enlarged, so that the mean stays.

    Args:
        x_BtD: any float dtype.
        share: of zeros.
        key_B2: of this layer and site, see :func:`layer_keys`, on the device.
        token_t: where these tokens stand in the whole sample, int64, on the device.
        first_feature: where these features begin among all of them.
    """
    dropped = resolution(share)
    if not dropped:
        return x_BtD
    feature_D = torch.arange(first_feature, first_feature + x_BtD.shape[-1], device=x_BtD.device)
    token_Bt = _mix(_mix(token_t ^ key_B2[:, :1]) ^ key_B2[:, 1:])
    kept_BtD = _mix(token_Bt[:, :, None] ^ feature_D) >> 16 >= dropped
    return torch.where(kept_BtD, x_BtD * (_ROUNDS / (_ROUNDS - dropped)), 0.0)
