"""The ``model:`` block of a training configuration, and the named sizes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from .config_checks import require
from .presets import PRESETS, Preset, Sizes

__all__ = ["PRESETS", "DropoutConfig", "ModelConfig", "MupConfig", "Preset", "RopeScaling", "Sizes"]


@dataclass(frozen=True)
class RopeScaling:
    """The ``model.rope_scaling:`` block: rotary positions of a model that reads further than it was first trained to.

    Attributes:
        kind: ``linear`` divides every frequency (Chen et al., 2023); ``ntk`` raises the base to
            base x factor^(C / (C - 2)), whatever the sample length; ``llama3`` divides low frequencies alone (Llama
            3.1); ``yarn`` ramps between the two and makes attention sharper (Peng et al., 2023).
        factor: how many times the original context.
        original_context: tokens of a sample in the first training; ``llama3`` and ``yarn`` need it.
        low_freq_factor, high_freq_factor: ``llama3``: wavelengths above original_context / low are divided, below
            original_context / high left alone.
        beta_fast, beta_slow: ``yarn``: rotations within the original context above which a frequency is left alone,
            below which it is divided. truncate: ``yarn``: round the ends of the ramp to whole frequencies.
        attention_factor: ``yarn``: on cosine and sine; null: 0.1 ln(factor) + 1.
    """

    kind: Literal["linear", "ntk", "llama3", "yarn"]
    factor: float
    original_context: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        original = self.original_context
        require(
            [
                ("factor", self.factor >= 1, "must be >= 1"),
                ("original_context", original is None or original >= 1, "must be >= 1 or null"),
                ("original_context", original is not None or self.kind in ("linear", "ntk"), f"{self.kind} needs it"),
                ("low_freq_factor", 0 < self.low_freq_factor < self.high_freq_factor, "must lie in (0, high)"),
                ("beta_slow", 0 < self.beta_slow < self.beta_fast, "must lie in (0, beta_fast)"),
                ("attention_factor", (self.attention_factor or 1.0) > 0, "must be > 0 or null"),
                ("attention_factor", self.attention_factor is None or self.kind == "yarn", "yarn alone has one"),
            ]
        )


@dataclass(frozen=True)
class DropoutConfig:
    """The ``model.dropout:`` block: shares of numbers that are zeroed in training, resolved to 1 / 65,536.

    What is zeroed is a function of seed, position of the sample in the plan, layer, place and token: the same on any
    mesh, with any batch size and micro-batch, and after a resume.

    Attributes:
        residual: of what attention and feed-forward part add to the residual stream.
        attention: of what the heads found, before the output projection. embedding: of the embedding's rows.
        seed: of the masks.
    """

    residual: float = 0.0
    attention: float = 0.0
    embedding: float = 0.0
    seed: int = 17

    def __post_init__(self) -> None:
        shares = {"residual": self.residual, "attention": self.attention, "embedding": self.embedding}
        require(
            [
                *((key, 0 <= share < 1, "must lie in [0, 1)") for key, share in shares.items()),
                ("seed", 0 <= self.seed < 1 << 63, "must lie in 0 .. 2^63"),
            ]
        )


@dataclass(frozen=True)
class MupConfig:
    """The ``model.mup:`` block: a learning rate found at one width serves at others (Yang et al., 2022, table 8).

    With m = dim / base_dim: matrices inside the blocks learn at lr / m, logits are divided by m, attention scores by C
    instead of its root. At dim = base_dim and heads of base_head_dim nothing differs from a model without this block.

    Attributes:
        base_dim: the width at which the learning rate was found. base_head_dim: and its numbers of a head.
    """

    base_dim: int = 256
    base_head_dim: int = 64

    def __post_init__(self) -> None:
        require(
            [
                ("base_dim", self.base_dim >= 1, "must be >= 1"),
                ("base_head_dim", self.base_head_dim >= 1, "must be >= 1"),
            ]
        )


@dataclass(frozen=True)
class ModelConfig:
    """The ``model:`` block. Vocabulary and sample length come from the Datasets.

    Learning rate, global batch in tokens and context that go with a preset: tiny 3e-3, 2-8 k, 256; 125M 6e-4, 0.5 M,
    2048; 1.3B 2e-4, 1 M, 2048; 7B 3e-4, 2-4 M, 4096; 70B 1.5e-4, 4 M, 8192. No preset sets them by itself.

    Attributes:
        preset: a key of ``PRESETS``; the six sizes below override it one by one.
        dim, layers, heads, kv_heads, ffn, head_dim: see ``Sizes``.
        qk_norm: RMSNorm on queries and keys. z_loss: weight of the squared log partition function (1e-4 is common).
        tied: the head shares the embedding's weights. rope_base: base of the rotary frequencies.
        rope_scaling: rotary positions beyond the first training's context; null: none.
        norm_eps: added to the mean square in every RMSNorm.
        dropout: null: none. mup: null: the standard parametrisation.
        attention: a row of ``train.attention.ATTENTION``; null takes the default of device, precision and length.
        init_from: folder with config.json and safetensors of a Llama- or Qwen3-style model, relative to the
            configuration's folder, whose weights a run begins with; null: random ones.
    """

    preset: Literal["tiny", "125M", "1.3B", "7B", "70B"] = "tiny"
    dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    head_dim: int | None = None
    qk_norm: bool = False
    z_loss: float = 0.0
    tied: bool = False
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    dropout: DropoutConfig | None = None
    mup: MupConfig | None = None
    attention: Literal["torch_varlen", "flash_attn", "flex", "sdpa_loop", "sdpa_mask"] | None = None
    init_from: str | None = None

    def __post_init__(self) -> None:
        sizes = self.sizes()
        counts = {name: getattr(sizes, name) for name in ("dim", "layers", "heads", "kv_heads", "ffn")}
        even = sizes.heads < 1 or sizes.head_dim is not None or sizes.dim % (2 * sizes.heads) == 0
        head_dim = sizes.head_dim
        require(
            [
                *((name, size >= 1, "must be >= 1") for name, size in counts.items()),
                ("heads", even, "dim must be a multiple of 2 x heads"),
                ("head_dim", head_dim is None or (head_dim >= 2 and head_dim % 2 == 0), "must be even"),
                ("kv_heads", sizes.kv_heads < 1 or sizes.heads % sizes.kv_heads == 0, "must divide heads"),
                ("z_loss", self.z_loss >= 0, "must be >= 0"),
                ("rope_base", self.rope_base > 1, "must be > 1"),
                ("norm_eps", 0 < self.norm_eps < 1, "must lie in (0, 1)"),
                ("init_from", self.init_from is None or bool(self.init_from.strip()), "must name a folder"),
            ]
        )

    def sizes(self) -> Sizes:
        """The preset with the overrides applied. Without ``kv_heads``, overriding ``heads`` overrides both."""
        preset = PRESETS[self.preset]
        plain = Sizes(**{field.name: getattr(preset, field.name) for field in fields(Sizes)})
        chosen = {field.name: getattr(self, field.name) for field in fields(Sizes)}
        if chosen["heads"] is not None and chosen["kv_heads"] is None:
            chosen["kv_heads"] = chosen["heads"]
        return replace(plain, **{name: value for name, value in chosen.items() if value is not None})
