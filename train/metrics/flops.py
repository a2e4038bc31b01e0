"""How many floating point operations a token costs, in closed form, and what share of the device's peak that is.

What counts: the matrix products of forward and backward (2 + 4 FLOPs a weight and token): projections of attention and
feed-forward, and the head, also where it shares the embedding's weights; and attention's two products over all earlier
tokens of the sample (causal, so half of the square; Chowdhery et al., 2022, appendix B, count the whole one). What does
not: the embedding (a look-up), norms, rotations, softmax, optimizer, and whatever is computed twice by activation
checkpointing. Attention is counted as if a sample were one document, so a kernel that leaves out pairs of different
documents shows a little more than it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..hardware import Arithmetic, find_accelerator

__all__ = ["Peak", "Sizes", "TokenFlops", "device_peak", "model_flops_utilisation", "token_flops"]

_FORWARD_AND_BACKWARD = 3
"""A product's backward pass is two products of its size."""


class Sizes(Protocol):
    """The sizes of a model; ``model.ModelShape`` is one."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def dim(self) -> int:
        """D."""

    @property
    def layers(self) -> int:
        """Blocks."""

    @property
    def heads(self) -> int:
        """H, query heads."""

    @property
    def kv_heads(self) -> int:
        """K, key and value heads."""

    @property
    def head_dim(self) -> int:
        """C, numbers of a head."""

    @property
    def ffn(self) -> int:
        """F."""

    @property
    def seq_len(self) -> int:
        """T, tokens of a sample."""


@dataclass(frozen=True)
class TokenFlops:
    """Training FLOPs of one token: ``matrices`` are products with weights, ``attention`` those of queries with keys and
    of probabilities with values."""

    matrices: float
    attention: float

    @property
    def total(self) -> float:
        """Both."""
        return self.matrices + self.attention


def token_flops(sizes: Sizes, *, blocks: int | None = None, head: bool = True) -> TokenFlops:
    """Training FLOPs of one token.

    Args:
        sizes: of the whole model.
        blocks: of a pipeline's part; None: all.
        head: whether the part holds the projection to the vocabulary.
    """
    layers = sizes.layers if blocks is None else blocks
    inner = sizes.heads * sizes.head_dim
    block = sizes.dim * (2 * inner + 2 * sizes.kv_heads * sizes.head_dim) + 3 * sizes.dim * sizes.ffn
    weights = layers * block + (sizes.vocab_size * sizes.dim if head else 0)
    attention = layers * 2 * sizes.seq_len * inner  # 2 products x 2 FLOPs x T inner, half of it causal
    return TokenFlops(2.0 * _FORWARD_AND_BACKWARD * weights, float(_FORWARD_AND_BACKWARD * attention))


@dataclass(frozen=True)
class Peak:
    """What one device could do: its name for people, and FLOP/s."""

    name: str
    flops_per_s: float


def device_peak(device_name: str, arithmetic: Arithmetic, given_tflops: float | None = None) -> Peak | None:
    """The peak of a device by its reported name; None where nobody knows it.

    Args:
        device_name: as ``torch.cuda.get_device_name`` reports it; a processor's name finds nothing.
        arithmetic: of the matrix products.
        given_tflops: of one device, by the configuration; goes before the table.
    """
    if given_tflops is not None:
        return Peak(f"{given_tflops:g} TFLOP/s as configured", given_tflops * 1e12)
    found = find_accelerator(device_name)
    if found is None or arithmetic not in found[1].peak:
        return None
    name, card = found
    return Peak(f"{name} {arithmetic} {card.peak[arithmetic] / 1e12:g} TFLOP/s", card.peak[arithmetic])


def model_flops_utilisation(tokens_per_s: float, flops_per_token: float, num_devices: int, peak: Peak) -> float:
    """MFU: FLOP/s the model needs at this rate, as a share of what all devices could do."""
    return tokens_per_s * flops_per_token / (num_devices * peak.flops_per_s)
