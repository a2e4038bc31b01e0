"""How many parameters a decoder has, and a part of one."""

from __future__ import annotations

from dataclasses import dataclass

from ..model_shape import ModelShape

__all__ = ["ParameterCount", "block_gains", "block_matrices", "count_parameters"]


def block_matrices(model: ModelShape) -> int:
    """Numbers in the matrices of one block: queries, keys, values, output, gate, up, down."""
    attention = 2 * model.dim * model.query_width + 2 * model.dim * model.key_width
    return attention + 3 * model.dim * model.ffn


def block_gains(model: ModelShape) -> int:
    """Numbers in the norms of one block."""
    return 2 * model.dim + (2 * model.head_dim if model.qk_norm else 0)


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by place.

    Attributes:
        embedding: V x D. head: V x D, 0 if it shares the embedding's. matrices: of all blocks. gains: of all norms.
    """

    embedding: int
    head: int
    matrices: int
    gains: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.matrices + self.gains

    @property
    def non_embedding(self) -> int:
        """Without embedding and head (Kaplan et al., 2020)."""
        return self.matrices + self.gains


def count_parameters(model: ModelShape) -> ParameterCount:
    """The parameters of a whole decoder."""
    table = model.vocab_size * model.dim
    return ParameterCount(
        embedding=table,
        head=0 if model.tied else table,
        matrices=model.layers * block_matrices(model),
        gains=model.layers * block_gains(model) + model.dim,
    )
