"""Pipeline parallelism: consecutive blocks on consecutive ranks, micro-batches passed along by torch's schedules.

Sources: GPipe (Huang et al., 2019), 1F1B and interleaved (Narayanan et al., 2021), zero bubble and its V form (Qi et
al., 2023 and 2024), all from ``torch.distributed.pipelining``. The loss needs no scaling behind it: every micro-batch's
objective is already its share of the global batch's.

Shape legend: B samples of a micro-batch, T tokens of a sample on this rank, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, schedules

from loader.errors import ConfigError

from ..inputs import ModelInputs, micro_batches
from ..model import Decoder, Part
from .config import ParallelConfig
from .mesh import Mesh
from .refusals import batch_refusals, refuse
from .stages import SCHEDULES, split_blocks, stages_of_rank

__all__ = ["SCHEDULES", "Pipeline", "StageDecoder", "parts_of_rank", "stages_of_rank"]


def parts_of_rank(config: ParallelConfig, layers: int, rank: int) -> list[Part]:
    """The parts of the model that a pipeline rank holds.

    Raises:
        ConfigError: see :func:`split_blocks`.
    """
    stages, count = stages_of_rank(config, rank)
    blocks = split_blocks(layers, count)
    return [Part(blocks[stage], first=stage == 0, last=stage == count - 1) for stage in stages]


class StageDecoder(Decoder):
    """A decoder's part as a pipeline stage: it returns one tensor and leaves the labels' losses in a list."""

    def forward(  # type: ignore[override]
        self, hidden_BTD: Tensor, *, inputs: ModelInputs, denominator: Tensor, nll: dict[int, Tensor], number: int
    ) -> Tensor:
        """Hidden vectors (B, T, D) for the next stage, or the objective as one number in the last.

        Args:
            hidden_BTD: what the stage before returned; the first stage gets the tokens and looks them up.
            inputs, denominator: as ``Decoder.forward``. nll: where the last stage leaves nll_BT under ``number``.
        """
        out, nll_BT = super().forward(inputs, denominator, None if self.part.first else hidden_BTD)
        if self.part.last:
            nll[number] = nll_BT
        return out


@dataclass(frozen=True)
class _Sizes:
    rows: int
    tokens: int


class Pipeline:
    """Runs the micro-batches of a step through the stages.

    Args:
        parts: this rank's stages, in the order of :func:`stages_of_rank`.
        config: the ``parallel:`` block. mesh: of the world. device: where the stages live.
    """

    def __init__(self, parts: Sequence[StageDecoder], config: ParallelConfig, mesh: Mesh, device: torch.device) -> None:
        self.parts, self.config, self._device = list(parts), config, device
        self._stages, self._count = stages_of_rank(config, mesh.place.pipeline)
        group = mesh.group("pipeline")
        assert group is not None
        self._group: dist.ProcessGroup = group
        self._sequence = mesh.shape.tensor if config.sequence else 1
        self._data_ranks, self._tokens = mesh.shape.data, parts[0].shape.seq_len // mesh.shape.context
        self._built: dict[tuple[int, _Sizes], Any] = {}

    @property
    def has_head(self) -> bool:
        """Whether this rank computes the losses."""
        return any(part.part.last for part in self.parts)

    def prepare(self, global_batches: Iterable[int], micro_batch: int | None) -> None:
        """Build the schedules of all batches to come, so that one that cannot run is refused before the first step.

        Args:
            global_batches: samples of a step, all ranks together. micro_batch: of the configuration.

        Raises:
            ConfigError: data ranks or micro-batches of unequal size; a number of them that the schedule does not run.
        """
        batches = sorted(set(global_batches))
        refuse(batch_refusals(self.config, self._data_ranks, batches, micro_batch))
        for batch in batches:
            slices = micro_batches(batch // self._data_ranks, micro_batch)
            self._schedule(len(slices), _Sizes(slices[0].stop, self._tokens))

    def _schedule(self, count: int, sizes: _Sizes) -> Any:
        key = (count, sizes)
        if key not in self._built:
            row = SCHEDULES[self.config.schedule]
            stages = [self._stage(part, number, sizes) for part, number in zip(self.parts, self._stages, strict=True)]
            try:
                self._built[key] = getattr(schedules, row.torch_class)(
                    stages if row.many else stages[0], count, loss_fn=lambda out, target: out, scale_grads=False
                )
            except ValueError as error:  # another torch with other rules than ours
                raise ConfigError(
                    "TR-PARALLEL-PIPELINE", f"{count} micro-batches of {sizes.rows} samples: {error}",
                    "parallel.schedule", "gpipe, which runs any number",
                ) from error  # fmt: skip
        return self._built[key]

    def _stage(self, part: StageDecoder, number: int, sizes: _Sizes) -> PipelineStage:
        width, compute = part.shape.dim, part.precision.compute
        hidden = torch.empty(
            sizes.rows, sizes.tokens // self._sequence, width, dtype=compute, device="meta", requires_grad=True
        )
        tokens = torch.empty(sizes.rows, sizes.tokens, dtype=torch.int64, device="meta")
        objective = torch.empty((), dtype=torch.float32, device="meta", requires_grad=True)
        return PipelineStage(
            part, number, self._count, self._device,
            input_args=tokens if number == 0 else hidden,
            output_args=objective if number == self._count - 1 else hidden,
            group=self._group,
        )  # fmt: skip

    def run(self, micro_batches: Sequence[ModelInputs], denominator: Tensor) -> list[Tensor]:
        """Forward and backward of a step; gradients are left in the parameters.

        Returns:
            nll_BT of every micro-batch on the rank with the head, nothing elsewhere.

        Raises:
            ConfigError: a number of micro-batches that the schedule does not run.
        """
        shape = micro_batches[0].tokens_BT.shape
        schedule = self._schedule(len(micro_batches), _Sizes(*shape))
        nll: dict[int, Tensor] = {}
        keywords = [
            {"inputs": inputs, "denominator": denominator, "nll": nll, "number": number}
            for number, inputs in enumerate(micro_batches)
        ]
        arguments: dict[str, Any] = {"kwarg_mbs": keywords}
        if 0 in self._stages:
            arguments["arg_mbs"] = [(inputs.tokens_BT,) for inputs in micro_batches]
        if self.has_head:
            arguments["target_mbs"] = [inputs.labels_BT for inputs in micro_batches]
        schedule.step(return_outputs=False, **arguments)
        return [nll[number] for number in range(len(micro_batches))] if self.has_head else []
