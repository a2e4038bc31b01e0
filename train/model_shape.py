"""Every number that fixes a decoder; free of torch, so that planning costs no import of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .model_config import DropoutConfig, ModelConfig, MupConfig, RopeScaling

__all__ = ["ModelShape", "shape_of"]


@dataclass(frozen=True)
class ModelShape:
    """Every number that fixes the parameters of a decoder and what it computes with them.

    Attributes:
        vocab_size: V. dim: D. layers: number of blocks. heads: H. kv_heads: K, divides H. ffn: F.
        seq_len: longest sample, in tokens.
        qk_norm: RMSNorm on queries and keys. z_loss: weight of the squared log partition function, per label.
        tied: the head shares the embedding's weights. rope_base: base of the rotary frequencies. norm_eps: RMSNorm's.
        head_width: C; None: dim / heads.
        rope_scaling, dropout, mup: see their classes; None: off.
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
    head_width: int | None = None
    rope_scaling: RopeScaling | None = None
    dropout: DropoutConfig | None = None
    mup: MupConfig | None = None

    @property
    def head_dim(self) -> int:
        """C."""
        return self.dim // self.heads if self.head_width is None else self.head_width

    @property
    def logit_scale(self) -> float:
        """logits = logit_scale x hidden vectors @ head.T: muP's output multiplier, else 1."""
        return 1.0 if self.mup is None else self.mup.base_dim / self.dim

    @property
    def query_scale(self) -> float:
        """On the queries, beside attention's own 1 / sqrt(C): with it scores go by sqrt(base C) / C under muP."""
        return 1.0 if self.mup is None else math.sqrt(self.mup.base_head_dim / self.head_dim)

    @property
    def query_width(self) -> int:
        """H x C."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """K x C."""
        return self.kv_heads * self.head_dim


def shape_of(model: ModelConfig, vocab_size: int, seq_len: int) -> ModelShape:
    """The model of a configuration over Datasets of this vocabulary and sample length."""
    sizes = model.sizes()
    return ModelShape(
        vocab_size=vocab_size,
        dim=sizes.dim,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ffn=sizes.ffn,
        seq_len=seq_len,
        qk_norm=model.qk_norm,
        z_loss=model.z_loss,
        tied=model.tied,
        rope_base=model.rope_base,
        norm_eps=model.norm_eps,
        head_width=sizes.head_dim,
        rope_scaling=model.rope_scaling,
        dropout=model.dropout,
        mup=model.mup,
    )
