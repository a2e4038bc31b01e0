"""The configuration of a training run: frozen dataclasses behind ``tokenreel train CONFIG``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from loader.run_config import DataConfig

from .spikes.config import SpikeConfig

__all__ = [
    "PRESETS",
    "CheckpointConfig",
    "EvaluateConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Preset",
    "RunConfig",
    "ScheduleConfig",
    "TrainConfig",
]


def _require(checks: Iterable[tuple[str, bool, str]]) -> None:
    """Raise a ValueError with one ``key: message`` line for each failed check."""
    problems = [f"{key}: {message}" for key, good, message in checks if not good]
    if problems:
        raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class Preset:
    """Sizes of a named model: width, blocks, query heads, key/value heads, feed-forward width."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int


PRESETS: dict[str, Preset] = {"tiny": Preset(dim=128, layers=3, heads=4, kv_heads=4, ffn=384)}
"""Named sizes. An entry needs its rows in the tests of the model."""


@dataclass(frozen=True)
class ModelConfig:
    """The ``model:`` block. Vocabulary and sample length come from the Datasets.

    Attributes:
        preset: a key of ``PRESETS``; the five sizes below override it one by one.
        dim, layers, heads, kv_heads, ffn: see ``Preset``.
        qk_norm: RMSNorm on queries and keys. z_loss: weight of the squared log partition function (1e-4 is common).
        tied: the head shares the embedding's weights. rope_base: base of the rotary frequencies.
        attention: a row of ``train.attention.ATTENTION``; null takes the default of device and sample length.
    """

    preset: Literal["tiny"] = "tiny"
    dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    qk_norm: bool = False
    z_loss: float = 0.0
    tied: bool = False
    rope_base: float = 10000.0
    attention: Literal["sdpa_mask", "sdpa_loop"] | None = None

    def __post_init__(self) -> None:
        sizes = self.sizes()
        _require(
            [
                (
                    "dim",
                    min(sizes.dim, sizes.layers, sizes.heads, sizes.kv_heads, sizes.ffn) >= 1,
                    "sizes must be > 0",
                ),
                ("heads", sizes.heads < 1 or sizes.dim % (2 * sizes.heads) == 0, "dim must be a multiple of 2 x heads"),
                ("kv_heads", sizes.kv_heads < 1 or sizes.heads % sizes.kv_heads == 0, "must divide heads"),
                ("z_loss", self.z_loss >= 0, "must be >= 0"),
                ("rope_base", self.rope_base > 1, "must be > 1"),
            ]
        )

    def sizes(self) -> Preset:
        """The preset with the overrides applied. Without ``kv_heads``, overriding ``heads`` overrides both."""
        preset = PRESETS[self.preset]
        chosen = {name: getattr(self, name) for name in ("dim", "layers", "heads", "kv_heads", "ffn")}
        if chosen["heads"] is not None and chosen["kv_heads"] is None:
            chosen["kv_heads"] = chosen["heads"]
        return replace(preset, **{name: value for name, value in chosen.items() if value is not None})


@dataclass(frozen=True)
class OptimizerConfig:
    """The ``optimizer:`` block (AdamW).

    Attributes:
        lr: peak learning rate. betas, eps: Adam's. weight_decay: decoupled, on matrices.
        clip_norm: largest L2 norm of the gradients; null does not clip.
    """

    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        _require(
            [
                ("lr", 0 < self.lr < float("inf"), "must be > 0"),
                ("betas", all(0 <= beta < 1 for beta in self.betas), "must lie in [0, 1)"),
                ("eps", self.eps > 0, "must be > 0"),
                ("weight_decay", self.weight_decay >= 0, "must be >= 0"),
                ("clip_norm", self.clip_norm is None or self.clip_norm > 0, "must be > 0 or null"),
            ]
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """The ``schedule:`` block; everything counts positions (samples of the plan), not steps.

    Attributes:
        kind: a row of ``train.optim.SCHEDULES``.
        warmup_positions: linear warm-up.
        total_positions: where the decay ends; needed by every kind but ``constant``.
        final_fraction: of the peak, at the end. decay_fraction: of the positions after the warm-up (``wsd`` only).
    """

    kind: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    warmup_positions: int = 0
    total_positions: int | None = None
    final_fraction: float = 0.1
    decay_fraction: float = 0.2

    def __post_init__(self) -> None:
        total = self.total_positions
        _require(
            [
                ("warmup_positions", self.warmup_positions >= 0, "must be >= 0"),
                ("total_positions", self.kind == "constant" or total is not None, f"{self.kind} needs it"),
                ("total_positions", self.kind != "constant" or total is None, "constant has no end"),
                ("total_positions", total is None or total > self.warmup_positions, "must lie behind the warm-up"),
                ("final_fraction", 0 <= self.final_fraction <= 1, "must lie in [0, 1]"),
                ("decay_fraction", 0 < self.decay_fraction <= 1, "must lie in (0, 1]"),
            ]
        )


@dataclass(frozen=True)
class CheckpointConfig:
    """The ``checkpoint:`` block: how often to save (and at the end), how many to keep (and pinned ones)."""

    every_steps: int = 100
    keep_last: int = 3

    def __post_init__(self) -> None:
        _require(
            [("every_steps", self.every_steps >= 1, "must be >= 1"), ("keep_last", self.keep_last >= 1, "must be >= 1")]
        )


@dataclass(frozen=True)
class EvaluateConfig:
    """The ``evaluate:`` block: held-out perplexity of every source over ``samples`` samples each; 0 steps is off."""

    every_steps: int = 0
    samples: int = 64

    def __post_init__(self) -> None:
        _require(
            [("every_steps", self.every_steps >= 0, "must be >= 0"), ("samples", self.samples >= 1, "must be >= 1")]
        )


@dataclass(frozen=True)
class RunConfig:
    """The ``run:`` block: where and how it computes; enters no digest.

    Attributes:
        threads: compute threads of a process; another number may round differently.
        device: ``cpu``; others follow with tests of their own. log_every: steps between lines of progress.
        reader_threads: threads that read ahead. tensorboard: also write event files.
        cache: folder for what is fetched of Datasets at URLs, relative to the configuration's folder; null: the user's
            cache folder. One folder serves all processes of a machine; it must lie on a local disk.
        cache_bytes: most bytes of shards kept there; null: what the disk has, but for a twentieth.
    """

    threads: int = 1
    device: Literal["cpu"] = "cpu"
    log_every: int = 10
    reader_threads: int = 1
    tensorboard: bool = False
    cache: str | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        _require(
            [
                ("threads", self.threads >= 1, "must be >= 1"),
                ("log_every", self.log_every >= 1, "must be >= 1"),
                ("reader_threads", self.reader_threads >= 1, "must be >= 1"),
                ("cache", self.cache is None or bool(self.cache.strip()), "must name a folder"),
                ("cache_bytes", self.cache_bytes is None or self.cache_bytes >= 1, "must be >= 1 or null"),
            ]
        )


@dataclass(frozen=True)
class TrainConfig:
    """A training job.

    Attributes:
        version: of this format.
        output: the RUN folder, relative to the configuration's folder.
        data: Datasets, order, mixture, batch sizes (``loader.run_config``).
        steps: train until so many steps are done; may be raised later.
        seed: of the initial parameters.
        validation: held-out Datasets, relative to the configuration's folder.
        micro_batch: samples of one forward pass; null: the whole batch. The loss does not depend on it, rounding does.
    """

    version: Literal[1]
    output: str
    data: DataConfig
    steps: int
    seed: int = 17
    validation: tuple[str, ...] = ()
    micro_batch: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: Literal["fp32", "bf16"] = "bf16"
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    spikes: SpikeConfig = field(default_factory=SpikeConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        _require(
            [
                ("output", bool(self.output.strip()), "must name a folder"),
                ("steps", self.steps >= 1, "must be >= 1"),
                ("seed", 0 <= self.seed < 1 << 63, "must lie in 0 .. 2^63"),
                ("micro_batch", self.micro_batch is None or self.micro_batch >= 1, "must be >= 1 or null"),
            ]
        )
