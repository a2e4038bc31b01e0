"""From a configuration and a few assumptions to the sizes that the arithmetic takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loader.errors import ConfigError

from ..config import TrainConfig
from ..model_config import PRESETS
from ..model_shape import ModelShape, shape_of
from ..parallel.config import ParallelConfig
from ..parallel.refusals import MeshRequest
from .cluster import Cluster, find_cluster
from .sizes import Kernels, MeshSizes, StepSizes

__all__ = ["Assumptions", "attention_name", "cluster_of", "mesh_request", "mesh_sizes", "model_sizes", "step_sizes"]

_DENSE_TOKENS = 256  # up to here the CPU's default is the dense mask
_FLASH_HEADS = (8, 256)  # numbers of a head: a multiple of the first, at most the second
_FLEX_HEADS = 16  # at least
_DEFAULT_VOCABULARY = 32_000


@dataclass(frozen=True)
class Assumptions:
    """What no configuration says.

    Attributes:
        cards: processes in all; None: the configuration's. card: a row of ``train.hardware``; None: by the device.
        mfu: useful FLOP/s over the peak. price: USD a card-hour; None: the card's assumption.
        factor: time over computing time; None: from failures and saves.
        vocab_size, seq_len: where no Dataset is there; None: 32,000 and the preset's context.
    """

    cards: int | None = None
    card: str | None = None
    mfu: float = 0.4
    price: float | None = None
    factor: float | None = None
    vocab_size: int | None = None
    seq_len: int | None = None


def attention_name(config: TrainConfig, cluster: Cluster, model: ModelShape) -> str:
    """The attention backend that the run would choose: the named one, or the default of ``train.attention.choice``."""
    if config.model.attention is not None:
        return str(config.model.attention)
    if cluster.device == "cpu":
        return "sdpa_mask" if model.seq_len <= _DENSE_TOKENS else "sdpa_loop"
    step, most = _FLASH_HEADS
    ampere = "bf16" in cluster.card.peak  # what came before multiplies no bfloat16
    if config.precision != "fp32" and ampere and model.head_dim % step == 0 and model.head_dim <= most:
        return "torch_varlen"
    return "flex" if model.head_dim >= _FLEX_HEADS else "sdpa_mask"


def model_sizes(config: TrainConfig, vocab_size: int | None, seq_len: int | None) -> ModelShape:
    """The model; None: what the field uses at this size."""
    preset = PRESETS[config.model.preset]
    return shape_of(config.model, vocab_size or _DEFAULT_VOCABULARY, seq_len or preset.context)


def mesh_sizes(parallel: ParallelConfig) -> MeshSizes:
    """The mesh but for its data ranks, which the number of processes says."""
    return MeshSizes(
        sharing=parallel.data,
        replicas=parallel.replicas,
        tensor=parallel.tensor,
        sequence=parallel.sequence,
        vocabulary=parallel.vocabulary,
        pipeline=parallel.pipeline,
        schedule=parallel.schedule,
        stages_per_rank=parallel.stages_per_rank,
        context=parallel.context,
        context_method=parallel.context_method,
    )


def mesh_request(config: TrainConfig, model: ModelShape, num_processes: int) -> MeshRequest:
    """What training would ask of the mesh."""
    return MeshRequest(
        shape=model,
        parallel=config.parallel,
        num_processes=num_processes,
        batches=tuple(stage.global_batch for stage in config.data.batch),
        micro_batch=config.micro_batch,
        recompute=config.run.recompute,
        compile=config.run.compile,
        float8=config.precision == "fp8",
    )


def step_sizes(config: TrainConfig, mesh: MeshSizes, kernels: Kernels) -> StepSizes:
    """The largest step of the run; without ``micro_batch`` a rank computes its whole share at once."""
    batch = max(stage.global_batch for stage in config.data.batch)
    share = max(1, -(-batch // mesh.data))
    micro_batch = share if config.micro_batch is None else min(config.micro_batch, share)
    return StepSizes(
        global_batch=batch,
        micro_batch=micro_batch,
        compute_bytes=4 if config.precision == "fp32" else 2,
        recompute=config.run.recompute,
        kernels=kernels,
    )


def cluster_of(config: TrainConfig, assumed: Assumptions) -> Cluster:
    """The machines: those named, else the device's: one CPU core, or an H100.

    Raises:
        ConfigError: no such card; a share of the peak, a price or a factor that cannot be.
    """
    for name, value, good in (
        ("--mfu", assumed.mfu, 0 < assumed.mfu <= 1),
        ("--price", assumed.price, assumed.price is None or assumed.price >= 0),
        ("--cluster-factor", assumed.factor, assumed.factor is None or assumed.factor >= 1),
    ):
        if not good:
            raise ConfigError("TR-PLAN-ASSUMPTION", f"{name} {value} cannot be", name, "a share above 0, at most 1; a "
                              "price of at least 0; a factor of at least 1")  # fmt: skip
    default = "cpu" if config.run.device == "cpu" else "h100"
    found = find_cluster(assumed.card or default, config.precision, assumed.price)
    if config.run.peak_tflops is None or assumed.card is not None:
        return found
    return replace(found, peak=config.run.peak_tflops * 1e12)
