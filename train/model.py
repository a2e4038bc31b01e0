"""The decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention, optional QK-norm and z-loss.

Shape legend: B samples, T tokens of a sample, D model width, H query heads, K key/value heads, C numbers of a head,
F feed-forward width, V vocabulary, N = B * T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from .attention import AttentionBackend
from .head import head_loss
from .inputs import ModelInputs
from .precision import Precision

__all__ = ["Decoder", "ModelShape"]

EMBEDDING_STD = 0.3
GAIN = 0.5


@dataclass(frozen=True)
class ModelShape:
    """Every number that fixes the parameters of a decoder.

    Attributes:
        vocab_size: V. dim: D. layers: number of blocks. heads: H. kv_heads: K, divides H. ffn: F.
        seq_len: longest sample, in tokens.
        qk_norm: RMSNorm on queries and keys. z_loss: weight of the squared log partition function, per label.
        tied: the head shares the embedding's weights. rope_base: base of the rotary frequencies. norm_eps: RMSNorm's.
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    seq_len: int
    qk_norm: bool = False
    z_loss: float = 0.0
    tied: bool = False
    rope_base: float = 10000.0
    norm_eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """C."""
        return self.dim // self.heads

    def flops_per_token(self) -> float:
        """Training FLOPs per token, closed form: 6 x matrix parameters + 12 x layers x T x H x C / 2 (causal)."""
        block = self.dim * (self.heads + 2 * self.kv_heads) * self.head_dim + self.heads * self.head_dim * self.dim
        matrices = self.layers * (block + 3 * self.dim * self.ffn) + self.vocab_size * self.dim
        return 6.0 * matrices + 6.0 * self.layers * self.seq_len * self.heads * self.head_dim


class _Norm(nn.Module):
    """RMSNorm whose weight is cast to the input's dtype: mixed dtypes would fall back to an unfused kernel."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, (self.weight.shape[0],), self.weight.to(x.dtype), self.eps)


@dataclass(frozen=True)
class _Shared:
    """What all layers of one forward pass share, made once per batch."""

    cos_BT1C: Tensor
    sin_BT1C: Tensor
    attention: AttentionBackend
    layout: Any


def _rotate(x_BTHC: Tensor, shared: _Shared) -> Tensor:
    left, right = x_BTHC.chunk(2, dim=-1)
    cos, sin = shared.cos_BT1C, shared.sin_BT1C
    return torch.cat((torch.addcmul(left * cos, right, sin, value=-1), torch.addcmul(right * cos, left, sin)), dim=-1)


class _Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.qkv = nn.Linear(shape.dim, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)
        self.q_norm = _Norm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None
        self.k_norm = _Norm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None

    def forward(self, x_BTD: Tensor, shared: _Shared) -> Tensor:
        heads, kv_heads = self.heads, self.kv_heads
        qkv = self.qkv(x_BTD).unflatten(-1, (heads + 2 * kv_heads, self.head_dim))
        qk, v = qkv[:, :, : heads + kv_heads], qkv[:, :, heads + kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk[:, :, :heads], qk[:, :, heads:]
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=2)
        qk = _rotate(qk, shared).to(v.dtype)
        q, k = qk[:, :, :heads], qk[:, :, heads:]
        out = shared.attention.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), shared.layout)
        return cast(Tensor, self.out(out.transpose(1, 2).flatten(2)))


class _FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.dim, 2 * shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = self.up(x_BTD).chunk(2, dim=-1)
        return cast(Tensor, self.down(silu(gate) * up))


class _Block(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = _Norm(shape.dim, shape.norm_eps)
        self.attention = _Attention(shape)
        self.ffn_norm = _Norm(shape.dim, shape.norm_eps)
        self.ffn = _FeedForward(shape)

    def forward(self, x_BTD: Tensor, shared: _Shared) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), shared)
        return cast(Tensor, x_BTD + self.ffn(self.ffn_norm(x_BTD)))


class Decoder(nn.Module):
    """A Llama-like language model on packed samples.

    Args:
        shape: all sizes.
        attention: a row of ``ATTENTION``.
        precision: a row of ``PRECISIONS``.
    """

    def __init__(self, shape: ModelShape, attention: AttentionBackend, precision: Precision) -> None:
        super().__init__()
        self.shape, self.backend, self.precision = shape, attention, precision
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.dim, shape.norm_eps)
        self.head = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embedding.weight
        frequencies = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim)
        angles = torch.outer(torch.arange(shape.seq_len, dtype=torch.float64), frequencies)
        self.register_buffer("rope_cos", angles.cos().float(), persistent=False)
        self.register_buffer("rope_sin", angles.sin().float(), persistent=False)

    @torch.no_grad()
    def initialize(self, seed: int) -> Decoder:
        """Fill the parameters: normal with std 0.5 / sqrt(fan in), projections back into the residual stream smaller
        by sqrt(2 x layers), embedding 0.3. Every tensor has its own generator, keyed by seed and name, so that adding
        a layer or a device does not change the others.
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            std = EMBEDDING_STD if name.startswith("embedding") else GAIN / math.sqrt(parameter.shape[1])
            if name.endswith(("attention.out.weight", "ffn.down.weight")):
                std /= math.sqrt(2 * self.shape.layers)
            key = xxhash.xxh3_64_intdigest(f"{seed}\0{name}".encode())
            generator = torch.Generator().manual_seed(key >> 1)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
        return self

    def hidden(self, inputs: ModelInputs) -> Tensor:
        """Activations before the head, after the last norm: (B, T, D) in the compute dtype. Call it under autocast."""
        positions_BT = inputs.token_positions_BT
        compute = self.precision.compute
        cos, sin = cast(Tensor, self.rope_cos), cast(Tensor, self.rope_sin)
        shared = _Shared(cos[positions_BT][:, :, None], sin[positions_BT][:, :, None], self.backend, inputs.layout)
        x_BTD = self.embedding(inputs.tokens_BT).to(compute)
        for block in self.blocks:
            x_BTD = block(x_BTD, shared)
        return cast(Tensor, self.norm(x_BTD))

    def forward(self, inputs: ModelInputs, denominator: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to differentiate and what each token cost.

        Args:
            inputs: one micro-batch.
            denominator: scalar float32, the number of unmasked labels in the whole global batch.

        Returns:
            ``(objective, nll_BT)``: (sum of label losses + z-loss) / denominator as a scalar with a gradient; and the
            negative log likelihood of every label in nats, float32, 0 where ignored, without a gradient.
        """
        with self.precision.autocast(inputs.tokens_BT.device):
            hidden_BTD = self.hidden(inputs)
        labels_BT = inputs.labels_BT
        objective, nll_N = head_loss(
            hidden_BTD.flatten(0, 1), self.head.weight, labels_BT.flatten(), denominator, self.shape.z_loss
        )
        return objective, nll_N.view(labels_BT.shape)
