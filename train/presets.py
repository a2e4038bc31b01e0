"""Named model sizes with the learning rate, batch and context that the field trains them with."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRESETS", "Preset", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """What fixes a decoder's matrices but for the vocabulary.

    Attributes:
        dim: width. layers: blocks. heads: query heads. kv_heads: key/value heads, divides heads. ffn: feed-forward
            width. head_dim: numbers of a head; None: dim / heads.
    """

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    head_dim: int | None = None

    @property
    def head_width(self) -> int:
        """Numbers of a head."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    def block_parameters(self, *, qk_norm: bool = False) -> int:
        """Parameters without embedding and head: matrices and gains of all blocks, and the last norm."""
        head = self.head_width
        attention = 2 * self.dim * self.heads * head + 2 * self.dim * self.kv_heads * head
        gains = 2 * self.dim + (2 * head if qk_norm else 0)
        return self.layers * (attention + 3 * self.dim * self.ffn + gains) + self.dim

    def num_parameters(self, vocab_size: int, *, tied: bool = False, qk_norm: bool = False) -> int:
        """All parameters of a decoder of these sizes over a vocabulary."""
        tables = 1 if tied else 2
        return self.block_parameters(qk_norm=qk_norm) + tables * vocab_size * self.dim


@dataclass(frozen=True, kw_only=True)
class Preset(Sizes):
    """A named model.

    Attributes:
        lr: recommended peak learning rate. batch_tokens: recommended global batch, lowest and highest, in tokens.
        context: recommended sample length in tokens. like: whose sizes these are.
    """

    lr: float
    batch_tokens: tuple[int, int]
    context: int
    like: str


PRESETS: dict[str, Preset] = {
    "tiny": Preset(
        dim=128, layers=3, heads=4, kv_heads=4, ffn=384,
        lr=3e-3, batch_tokens=(2_000, 8_000), context=256, like="the demo",
    ),
    "125M": Preset(
        dim=768, layers=12, heads=12, kv_heads=12, ffn=2048,
        lr=6e-4, batch_tokens=(500_000, 500_000), context=2048, like="GPT-3 small, its feed-forward part gated",
    ),
    "1.3B": Preset(
        dim=2048, layers=24, heads=16, kv_heads=16, ffn=5504,
        lr=2e-4, batch_tokens=(1_000_000, 1_000_000), context=2048, like="Sheared-LLaMA 1.3B",
    ),
    "7B": Preset(
        dim=4096, layers=32, heads=32, kv_heads=32, ffn=11008,
        lr=3e-4, batch_tokens=(2_000_000, 4_000_000), context=4096, like="Llama 2 7B",
    ),
    "70B": Preset(
        dim=8192, layers=80, heads=64, kv_heads=8, ffn=28672,
        lr=1.5e-4, batch_tokens=(4_000_000, 4_000_000), context=8192, like="Llama 2 70B",
    ),
}  # fmt: skip
"""Named models. An entry needs its row in tests/contracts/test_presets.py."""
