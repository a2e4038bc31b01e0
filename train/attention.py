"""Attention in which a token sees only earlier tokens of its own segment: one table of backends with one signature.

Shape legend: B samples, T tokens of a sample, H query heads, K key/value heads, C numbers of a head.

A backend splits its work: ``prepare`` turns the segment numbers of a batch into whatever the kernel needs (once per
batch, on the host), ``attend`` runs in every layer. All entries obey one contract, which the tests check for every row
of the table: values and gradients against float64, and outputs of one segment that do not change by one bit when
another segment does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["ATTENTION", "AttentionBackend", "choose_attention", "segment_borders"]

Layout = Any


@dataclass(frozen=True)
class AttentionBackend:
    """One row of the table.

    Attributes:
        name: the key in the configuration.
        prepare: ``(segment_of_BT on the host, device, compute dtype) -> layout``.
        attend: ``(q_BHTC, k_BKTC, v_BKTC, layout) -> out_BHTC``; H is a multiple of K.
        available: whether this device can run it.
    """

    name: str
    prepare: Callable[[NDArray[np.integer[Any]], torch.device, torch.dtype], Layout]
    attend: Callable[[Tensor, Tensor, Tensor, Layout], Tensor]
    available: Callable[[torch.device], bool]


def segment_borders(segment_of_BT: NDArray[np.integer[Any]]) -> list[list[int]]:
    """For every sample the token indices at which its segments begin, and T last."""
    num_tokens = segment_of_BT.shape[1]
    changes_BT = np.diff(segment_of_BT, axis=1) != 0
    return [[0, *(np.flatnonzero(changes_T) + 1).tolist(), num_tokens] for changes_T in changes_BT]


def _expand_heads(q_BHTC: Tensor, k_BKTC: Tensor) -> Tensor:
    """Grouped-query attention: repeat each key/value head for the query heads that share it."""
    repeats = q_BHTC.shape[1] // k_BKTC.shape[1]
    return k_BKTC if repeats == 1 else k_BKTC.repeat_interleave(repeats, dim=1)


def _prepare_mask(segment_of_BT: NDArray[np.integer[Any]], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Additive mask (B, 1, T, T): 0 where attention is allowed, -inf elsewhere, already in the compute dtype.

    A boolean mask would be turned into this one inside every layer's kernel, forward and backward.
    """
    segment_of = torch.from_numpy(np.ascontiguousarray(segment_of_BT)).to(device)
    num_tokens = segment_of.shape[1]
    causal_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).tril()
    allowed_BTT = (segment_of[:, :, None] == segment_of[:, None, :]) & causal_TT
    mask_BTT = torch.full(allowed_BTT.shape, float("-inf"), dtype=dtype, device=device)
    return mask_BTT.masked_fill_(allowed_BTT, 0.0)[:, None]


def _attend_mask(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, mask_B1TT: Tensor) -> Tensor:
    keys, values = _expand_heads(q_BHTC, k_BKTC), _expand_heads(q_BHTC, v_BKTC)
    return scaled_dot_product_attention(q_BHTC, keys, values, attn_mask=mask_B1TT)


def _prepare_loop(
    segment_of_BT: NDArray[np.integer[Any]], device: torch.device, dtype: torch.dtype
) -> list[tuple[int, int, list[int]]]:
    """Runs of consecutive samples with equal borders: ``(first sample, stop sample, borders)``."""
    del device, dtype
    runs: list[tuple[int, int, list[int]]] = []
    for sample, borders in enumerate(segment_borders(segment_of_BT)):
        if runs and runs[-1][2] == borders:
            runs[-1] = (runs[-1][0], sample + 1, borders)
        else:
            runs.append((sample, sample + 1, borders))
    return runs


def _attend_loop(q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, runs: list[tuple[int, int, list[int]]]) -> Tensor:
    keys, values = _expand_heads(q_BHTC, k_BKTC), _expand_heads(q_BHTC, v_BKTC)
    rows = []
    for first, stop, borders in runs:
        pieces = [
            scaled_dot_product_attention(
                q_BHTC[first:stop, :, start:end],
                keys[first:stop, :, start:end],
                values[first:stop, :, start:end],
                is_causal=True,
            )
            for start, end in itertools.pairwise(borders)
        ]
        rows.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2))
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=0)


def _everywhere(device: torch.device) -> bool:
    del device
    return True


ATTENTION: dict[str, AttentionBackend] = {
    "sdpa_mask": AttentionBackend("sdpa_mask", _prepare_mask, _attend_mask, _everywhere),
    "sdpa_loop": AttentionBackend("sdpa_loop", _prepare_loop, _attend_loop, _everywhere),
}


def choose_attention(name: str | None, device: torch.device, num_tokens: int) -> AttentionBackend:
    """The backend for a run: the named one, or the default of the device and the sample length.

    Args:
        name: a key of ``ATTENTION``, or None for the default.
        device: where the model lives.
        num_tokens: T; the dense mask costs T x T numbers a sample.

    Raises:
        KeyError: no such entry (the configuration check reports it first).
    """
    if name is None:
        # Measured on the CPU: equal at 256 tokens with 1.4 segments a sample, the loop twice as fast at 512 with six.
        dense_tokens = 256 if device.type == "cpu" else 2048
        name = "sdpa_mask" if num_tokens <= dense_tokens else "sdpa_loop"
    return ATTENTION[name]
