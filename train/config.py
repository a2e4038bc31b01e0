"""The configuration of a training run: frozen dataclasses behind ``tokenreel train CONFIG``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loader.run_config import DataConfig

from .checkpoint_config import CheckpointConfig
from .config_checks import require
from .evaluate_config import EvaluateConfig
from .model_config import ModelConfig
from .optim_config import AnnealConfig, OptimizerConfig, ScheduleConfig
from .parallel.config import ParallelConfig
from .replicas.config import TorchftConfig
from .spikes.config import SpikeConfig
from .wandb_config import WandbConfig

__all__ = [
    "CheckpointConfig",
    "EvaluateConfig",
    "RunConfig",
    "TrainConfig",
]

_MOST = 1024
"""Of processes or threads on one machine: with a million threads OpenMP dies of a segmentation fault."""


@dataclass(frozen=True)
class RunConfig:
    """The ``run:`` block: where and how it computes; enters no digest.

    Attributes:
        processes: to start on this machine when no launcher does; under torchrun it is what torchrun says.
        restarts: how often all of them are started again after one was killed or failed without a reason that would
            come again; under torchrun it is what torchrun says.
        threads: compute threads of a process; another number may round differently.
        device: ``cpu``, or ``cuda``: that of each process's local rank. log_every: steps between lines of progress.
        recompute: what the backward pass computes again to save memory (a row of ``train.recompute.RECOMPUTE``).
        compile: compile every block by ``torch.compile``; rounds differently, and the first steps take minutes.
        reader_threads: threads that read ahead. tensorboard: also write event files. wandb: where on W&B, or null.
        peak_tflops: what one device could do in this precision, for the utilisation; null: by the table of devices,
            which knows no processors.
        torchft: this process is one of several replicas that come and go while the run goes on, or null.
        cache: folder for what is fetched of Datasets at URLs, relative to the configuration's folder; null: the user's
            cache folder. One folder serves all processes of a machine; it must lie on a local disk.
        cache_bytes: most bytes of shards kept there; null: all that the disk has but a twentieth of it, and never
            less than half of what the cache and the free space together hold.
    """

    processes: int = 1
    restarts: int = 0
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    log_every: int = 10
    recompute: Literal["none", "selective", "full"] = "none"
    compile: bool = False
    reader_threads: int = 1
    tensorboard: bool = False
    wandb: WandbConfig | None = None
    peak_tflops: float | None = None
    torchft: TorchftConfig | None = None
    cache: str | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        require(
            [
                ("processes", 1 <= self.processes <= _MOST, f"must lie in 1 .. {_MOST:,}"),
                ("restarts", self.restarts >= 0, "must be >= 0"),
                ("threads", 1 <= self.threads <= _MOST, f"must lie in 1 .. {_MOST:,}"),
                ("log_every", self.log_every >= 1, "must be >= 1"),
                ("reader_threads", 1 <= self.reader_threads <= _MOST, f"must lie in 1 .. {_MOST:,}"),
                ("peak_tflops", self.peak_tflops is None or self.peak_tflops > 0, "must be > 0 or null"),
                ("cache", self.cache is None or bool(self.cache.strip()), "must name a folder"),
                *self._replica_checks(),
                ("cache_bytes", self.cache_bytes is None or self.cache_bytes >= 1, "must be >= 1 or null"),
            ]
        )

    def _replica_checks(self) -> list[tuple[str, bool, str]]:
        """What a replica cannot be; refused by name rather than tried."""
        alone = self.torchft is None
        return [
            ("processes", alone or self.processes == 1, "must be 1 with torchft: each replica is started by itself"),
            ("device", alone or self.device == "cpu", "must be cpu with torchft: NCCL was never tried there"),
        ]


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
    anneal: AnnealConfig | None = None
    precision: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    spikes: SpikeConfig = field(default_factory=SpikeConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        require(
            [
                ("output", bool(self.output.strip()), "must name a folder"),
                ("steps", self.steps >= 1, "must be >= 1"),
                ("seed", 0 <= self.seed < 1 << 63, "must lie in 0 .. 2^63"),
                ("micro_batch", self.micro_batch is None or self.micro_batch >= 1, "must be >= 1 or null"),
                *self._replica_checks(),
            ]
        )

    def _replica_checks(self) -> list[tuple[str, bool, str]]:
        """What replicas cannot do together; refused by name rather than approximated."""
        alone, parallel = self.run.torchft is None, self.parallel
        return [
            ("parallel.data", alone or parallel.data == "ddp", "must be ddp with run.torchft: nothing is cut there"),
            *(
                (f"parallel.{name}", alone or getattr(parallel, name) == 1, "must be 1 with run.torchft")
                for name in ("tensor", "pipeline", "context")
            ),
            ("spikes.enabled", alone or not self.spikes.enabled, "must be false with run.torchft: no rollbacks there"),
            ("checkpoint.upload", alone or self.checkpoint.upload is None, "must be null with run.torchft"),
        ]
