"""The decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention, optional QK-norm and z-loss.

Shape legend: B samples, T tokens of a sample, D model width, H query heads, K key/value heads, C numbers of a head,
F feed-forward width, V vocabulary, N = B * T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from .attention import AttentionBackend
from .dropout import EMBEDDING_LAYER, drop, layer_keys
from .head import VocabularyCut, head_loss
from .inputs import ModelInputs
from .model_config import DropoutConfig
from .model_shape import ModelShape
from .mup import initial_std
from .parallel.shards import copy_own_part, local
from .parallel.tensor import ALONE, Spread
from .precision import Precision
from .rope import rotation_of

__all__ = ["Decoder", "Matrix", "ModelShape", "Part", "run_block"]

_SITES = ("heads", "attention", "ffn")
_HEADS, _ATTENTION, _FFN = range(len(_SITES))
_EMBEDDING = 0


@dataclass(frozen=True)
class Part:
    """The piece of a decoder that one pipeline stage holds.

    Attributes:
        blocks: consecutive block numbers. first: with the embedding. last: with the last norm and the head.
    """

    blocks: range
    first: bool = True
    last: bool = True


class _Norm(nn.Module):
    """RMSNorm whose weight is cast to the input's dtype: mixed dtypes would fall back to an unfused kernel."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, (self.weight.shape[0],), local(self.weight).to(x.dtype), self.eps)


class Matrix(nn.Module):
    """x W^T without a bias; W may be this rank's part of a matrix. As an embedding its rows are looked up instead."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.product: Callable[[Tensor, Tensor], Tensor] = linear  # another one in float8

    def forward(self, x: Tensor) -> Tensor:
        """x (..., inputs) -> (..., outputs)."""
        return self.product(x, local(self.weight))


@dataclass(frozen=True)
class _Masks:
    """Dropout in one layer.

    Attributes:
        config: the shares. key_SB2: of the sites of this layer, see ``train.dropout``.
        token_T, token_t: where the tokens stand in the whole sample, between matrices and between blocks.
        first_feature: of the heads here among all of them.
    """

    config: DropoutConfig
    key_SB2: Tensor
    token_T: Tensor
    token_t: Tensor
    first_feature: int

    def residual(self, x_BtD: Tensor, site: int) -> Tensor:
        """What a block adds to the residual stream."""
        return drop(x_BtD, self.config.residual, self.key_SB2[site], self.token_t)

    def heads(self, x_BTD: Tensor) -> Tensor:
        """What the heads of this rank found."""
        return drop(x_BTD, self.config.attention, self.key_SB2[_HEADS], self.token_T, self.first_feature)

    def embedding(self, x_BtD: Tensor) -> Tensor:
        """Rows of the embedding; the keys are those of ``EMBEDDING_LAYER``."""
        return drop(x_BtD, self.config.embedding, self.key_SB2[_EMBEDDING], self.token_t)


@dataclass(frozen=True)
class _Shared:
    """What all layers of one forward pass share, made once per batch, but for ``masks``: each layer has its own."""

    cos_BT1C: Tensor
    sin_BT1C: Tensor
    attention: AttentionBackend
    layout: Any
    spread: Spread
    masks: _Masks | None = None


def _rotate(x_BTHC: Tensor, shared: _Shared) -> Tensor:
    left, right = x_BTHC.chunk(2, dim=-1)
    cos, sin = shared.cos_BT1C, shared.sin_BT1C
    return torch.cat((torch.addcmul(left * cos, right, sin, value=-1), torch.addcmul(right * cos, left, sin)), dim=-1)


class _Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim, self.query_scale = shape.head_dim, shape.query_scale
        self.q = Matrix(shape.dim, shape.heads * shape.head_dim)
        self.k = Matrix(shape.dim, shape.kv_heads * shape.head_dim)
        self.v = Matrix(shape.dim, shape.kv_heads * shape.head_dim)
        self.out = Matrix(shape.heads * shape.head_dim, shape.dim)
        self.q_norm = _Norm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None
        self.k_norm = _Norm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None

    def forward(self, x_BTD: Tensor, shared: _Shared) -> Tensor:
        x_BTD = shared.spread.enter(x_BTD)
        q, k, v = (matrix(x_BTD).unflatten(-1, (-1, self.head_dim)) for matrix in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.query_scale != 1.0:
            q = q * self.query_scale
        q, k = (_rotate(x, shared).to(v.dtype) for x in (q, k))
        out = shared.attention.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), shared.layout)
        out_BTD = out.transpose(1, 2).flatten(2)
        if shared.masks is not None:
            out_BTD = shared.masks.heads(out_BTD)
        return shared.spread.leave(self.out(out_BTD))


class _FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = Matrix(shape.dim, shape.ffn)
        self.up = Matrix(shape.dim, shape.ffn)
        self.down = Matrix(shape.ffn, shape.dim)

    def forward(self, x_BTD: Tensor, shared: _Shared) -> Tensor:
        x_BTD = shared.spread.enter(x_BTD)
        return shared.spread.leave(self.down(silu(self.gate(x_BTD)) * self.up(x_BTD)))


class _Block(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = _Norm(shape.dim, shape.norm_eps)
        self.attention = _Attention(shape)
        self.ffn_norm = _Norm(shape.dim, shape.norm_eps)
        self.ffn = _FeedForward(shape)

    def forward(self, x_BTD: Tensor, shared: _Shared) -> Tensor:
        masks = shared.masks
        found_BTD = self.attention(self.attention_norm(x_BTD), shared)
        x_BTD = x_BTD + (found_BTD if masks is None else masks.residual(found_BTD, _ATTENTION))
        found_BTD = self.ffn(self.ffn_norm(x_BTD), shared)
        return x_BTD + (found_BTD if masks is None else masks.residual(found_BTD, _FFN))


RunBlock = Callable[[nn.Module, Tensor, _Shared], Tensor]


def run_block(block: nn.Module, x_BTD: Tensor, shared: _Shared) -> Tensor:
    """Run one block as it is; activation checkpointing puts another function in its place."""
    return cast(Tensor, block(x_BTD, shared))


class Decoder(nn.Module):
    """A Llama-like language model on packed samples, or the part of one that a pipeline stage holds.

    Args:
        shape: all sizes.
        attention: a row of ``ATTENTION``.
        precision: a row of ``PRECISIONS``.
        part: which blocks, and whether with embedding and head; None: the whole model.

    Attributes:
        spread: over which ranks a forward pass is spread; set by whoever cuts the weights.
        run_block: how a block is run, see :func:`run_block`.
    """

    def __init__(
        self, shape: ModelShape, attention: AttentionBackend, precision: Precision, part: Part | None = None
    ) -> None:
        super().__init__()
        self.shape, self.backend, self.precision = shape, attention, precision
        self.part = part or Part(range(shape.layers))
        self.spread: Spread = ALONE
        self.run_block: RunBlock = run_block
        first, last = self.part.first, self.part.last
        self.embedding = Matrix(shape.dim, shape.vocab_size) if first or (last and shape.tied) else None
        self.blocks = nn.ModuleDict({str(number): _Block(shape) for number in self.part.blocks})
        self.norm = _Norm(shape.dim, shape.norm_eps) if last else None
        self.head = Matrix(shape.dim, shape.vocab_size) if last else None
        if shape.tied and self.head is not None and self.embedding is not None:
            self.head.weight = self.embedding.weight
        self._rope: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def initialize(self, seed: int) -> Decoder:
        """Fill the parameters: normal with the std of :func:`train.mup.initial_std`. Every tensor has its own
        generator, keyed by seed and name, so that adding a layer or a device does not change the others; a rank keeps
        its part of each.
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                local(parameter).fill_(1.0)
                continue
            std = initial_std(name, parameter.shape[1], self.shape)
            key = xxhash.xxh3_64_intdigest(f"{seed}\0{name}".encode())
            generator = torch.Generator().manual_seed(key >> 1)
            copy_own_part(parameter, torch.randn(parameter.shape, generator=generator) * std)
        return self

    def _rope_tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, (seq_len, C / 2), float32; made in float64 once a device."""
        if self._rope is None or self._rope[0].device != device:
            shape = self.shape
            rotation = rotation_of(shape.rope_base, shape.head_dim, shape.rope_scaling)
            angles = torch.outer(torch.arange(shape.seq_len, dtype=torch.float64), rotation.frequencies_f)
            cos, sin = ((part * rotation.magnitude).float().to(device) for part in (angles.cos(), angles.sin()))
            self._rope = (cos, sin)
        return self._rope

    def _masks(self, inputs: ModelInputs) -> list[_Masks | None]:
        """Dropout of the embedding and of each block here; all None in evaluation and without dropout.

        Raises:
            RuntimeError: the inputs do not say which samples they are.
        """
        config = self.shape.dropout
        numbers = [EMBEDDING_LAYER, *self.part.blocks]
        if config is None or not self.training:
            return [None] * len(numbers)
        if inputs.positions_B is None:
            raise RuntimeError("dropout needs the positions of the samples")
        device, group = inputs.tokens_BT.device, self.spread.group
        keys_LSB2 = layer_keys(config.seed, inputs.positions_B, numbers, len(_SITES)).to(device, non_blocking=True)
        if inputs.token_index_T is None:
            token_T = torch.arange(inputs.tokens_BT.shape[1], device=device)
        else:
            token_T = torch.from_numpy(inputs.token_index_T).to(device, non_blocking=True)
        token_t, first_feature = token_T, 0
        if group is not None:
            first_feature = self.shape.heads * self.shape.head_dim // group.size() * group.rank()
            token_t = token_T.chunk(group.size())[group.rank()] if self.spread.sequence else token_T
        return [_Masks(config, key_SB2, token_T, token_t, first_feature) for key_SB2 in keys_LSB2]

    def hidden(self, inputs: ModelInputs, hidden_BTD: Tensor | None = None) -> Tensor:
        """Activations behind this part's blocks (and the last norm, if it is here): (B, T, D) in the compute dtype.

        Call it under autocast.

        Args:
            inputs: one micro-batch.
            hidden_BTD: what the part before returned; None where the embedding is here.
        """
        positions_BT = inputs.token_positions_BT
        cos, sin = self._rope_tables(positions_BT.device)
        shared = _Shared(
            cos[positions_BT][:, :, None], sin[positions_BT][:, :, None], self.backend, inputs.layout, self.spread
        )
        embedding_masks, *masks = self._masks(inputs)
        if hidden_BTD is None:
            assert self.embedding is not None
            hidden_BTD = self.spread.embed(inputs.tokens_BT, self.embedding.weight)
            if embedding_masks is not None:
                hidden_BTD = embedding_masks.embedding(hidden_BTD)
        x_BTD = hidden_BTD.to(self.precision.compute)
        for block, mask in zip(self.blocks.values(), masks, strict=True):
            x_BTD = self.run_block(block, x_BTD, replace(shared, masks=mask))
        return x_BTD if self.norm is None else cast(Tensor, self.norm(x_BTD))

    def loss(self, hidden: Tensor, inputs: ModelInputs, denominator: Tensor) -> tuple[Tensor, Tensor]:
        """The head's part of :meth:`forward`, from the hidden vectors behind the last norm."""
        assert self.head is not None
        labels_BT, weight = inputs.labels_BT, self.head.weight
        hidden_BTD = self.spread.to_head(hidden)
        if self.shape.logit_scale != 1.0:
            hidden_BTD = hidden_BTD * self.shape.logit_scale
        group = self.spread.head_group
        cut = VocabularyCut(group, self.spread.vocabulary_start(weight), weight.shape[0]) if group is not None else None
        objective, nll_N = head_loss(
            hidden_BTD.flatten(0, 1), local(weight), labels_BT.flatten(), denominator, self.shape.z_loss, cut
        )
        return objective, nll_N.view(labels_BT.shape)

    def forward(
        self, inputs: ModelInputs, denominator: Tensor, hidden_BTD: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss to differentiate and what each token cost.

        Args:
            inputs: one micro-batch.
            denominator: scalar float32, the number of unmasked labels in the whole global batch.
            hidden_BTD: for a part of a pipeline, what the part before returned.

        Returns:
            ``(objective, nll_BT)``: (sum of label losses + z-loss) / denominator as a scalar with a gradient; and the
            negative log likelihood of every label in nats, float32, 0 where ignored, without a gradient. A part
            without the head returns its hidden vectors and an empty tensor.
        """
        with self.precision.autocast(inputs.tokens_BT.device):
            hidden = self.hidden(inputs, hidden_BTD)
        if self.head is None:
            return hidden, hidden.new_empty(0, dtype=torch.float32)
        return self.loss(hidden, inputs, denominator)
