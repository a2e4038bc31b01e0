"""A checkpoint's weights for scoring, on one process or cut over a mesh as the run's own are.

The running model is not borrowed: its weights would have to be saved, replaced and brought back, and whatever failed in
between would leave a run with other weights. A second copy costs a process a quarter of what training holds for each
parameter (weights, gradients and two moments), is loaded from the files that a restart would read, and is gone when the
investigation ends; nothing of the run is touched.

Shape legend: B samples, T tokens of a sample, t those on this rank, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from loader.sources import Sources

from .checkpoint import Checkpoint, load_tensors
from .evaluate.share import run_stages, undisturbed
from .head import VocabularyCut
from .inputs import InputOptions, ModelInputs, idle_inputs, to_inputs
from .job import Job
from .model import Decoder
from .parallel.context import context_tokens
from .parallel.pipeline import Pipeline
from .spikes.gather import gather_rows
from .spikes.records import FrozenModel
from .state import build_frozen_parts, input_options
from .world import World

if TYPE_CHECKING:
    from loader.stream.batch import Batch

__all__ = ["frozen_model"]

_Run = Callable[[ModelInputs], Tensor | None]


def frozen_model(job: Job, sources: Sources, checkpoint: Checkpoint, world: World | None = None) -> FrozenModel:
    """The weights of a verified checkpoint in a model of their own; the global random state stays as it is.

    Args:
        job, sources: the run. checkpoint: saved on any mesh.
        world: over whose mesh the model is cut; every process calls it. None: this process alone, with all of it.

    Raises:
        DamageError: it holds no tensors of this model.
    """
    world = world or World()
    parts = build_frozen_parts(job.config, sources, world)
    named = [item for part in parts for item in part.named_parameters()]
    load_tensors(checkpoint, {f"model.{name}": parameter.detach() for name, parameter in named}, world)
    last = next((part for part in parts if part.part.last), None)
    weight_VD = torch.empty(0, parts[0].shape.dim) if last is None else _head_rows(last)
    for part in parts:
        _give_hidden(part)
    options = input_options(job.config, sources, world.mesh)
    run = _runner(job, parts, world, options)
    place, facts = world.mesh.place, checkpoint.facts
    speaks = last is not None and place.tensor == 0 and place.context == 0
    return FrozenModel(
        facts.step,
        int(facts.cursor["next_position"]),
        lambda batch: _hidden(run, batch, (job, world, options)),
        weight_VD,
        parts[0].shape.logit_scale,
        None if last is None else _cut(last),
        last is not None,
        (lambda rows: gather_rows(rows, world, speaks)) if world.size > 1 else (lambda rows: rows),
    )


def _cut(part: Decoder) -> VocabularyCut | None:
    group, head = part.spread.head_group, part.head
    if group is None or head is None:
        return None
    return VocabularyCut(group, part.spread.vocabulary_start(head.weight), head.weight.shape[0])


def _head_rows(part: Decoder) -> Tensor:
    """This tensor rank's rows of the head in full precision; before the first forward pass gathers them in another."""
    assert part.head is not None
    weight, cut = part.head.weight.detach(), _cut(part)
    if not isinstance(weight, DTensor):
        return weight
    whole_VD = weight.full_tensor()
    if cut is None:
        return whole_VD
    size = -(-cut.rows // cut.group.size())
    return whole_VD[cut.start : cut.start + size].clone()


def _give_hidden(part: Decoder) -> None:
    """Let ``forward`` end in front of the head. It is still called, not ``hidden``: FSDP gathers around it."""
    spread = part.spread

    def instead(hidden: Tensor, inputs: ModelInputs, denominator: Tensor) -> tuple[Tensor, Tensor]:
        del inputs, denominator
        hidden_BtD = spread.to_head(hidden)
        return hidden_BtD, hidden_BtD

    cast(Any, part).loss = instead


def _runner(job: Job, parts: list[Decoder], world: World, options: InputOptions) -> _Run:
    """One forward pass: hidden vectors (B, t, D), or None on a process without the end of the model."""
    group = world.mesh.group("pipeline")
    if group is None:
        one = torch.ones((), device=options.device)

        def run(inputs: ModelInputs) -> Tensor | None:
            with undisturbed(parts[0]):
                hidden_BtD: Tensor = parts[0](inputs, one)[0]
            return hidden_BtD

        return run
    pipeline = Pipeline(cast(Any, parts), job.config.parallel, world.mesh, options.device)
    return lambda inputs: run_stages(pipeline, group, inputs, options.device)


@torch.no_grad()
def _hidden(run: _Run, batch: Batch, setting: tuple[Job, World, InputOptions]) -> Tensor:
    """Hidden vectors of whole samples, (B, T, D); empty without the end of the model."""
    job, world, options = setting
    num_samples, seq_len = batch.tokens_BT.shape
    found = run(to_inputs(batch, options) if num_samples else idle_inputs(batch, options))
    if found is None:
        return torch.empty(num_samples, seq_len, 0, device=options.device)
    group = world.mesh.group("context")
    if group is not None:
        found = _whole_samples(found, group, job.config.parallel.context_method)
    return found[:num_samples]


def _whole_samples(hidden_BtD: Tensor, group: dist.ProcessGroup, method: str) -> Tensor:
    """The tokens of all ranks of a context group at their places in the samples."""
    parts = [torch.empty_like(hidden_BtD, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, hidden_BtD.contiguous(), group=group)
    seq_len = hidden_BtD.shape[1] * group.size()
    index_T = np.concatenate([context_tokens(method, seq_len, rank, group.size()) for rank in range(group.size())])
    hidden_BTD = hidden_BtD.new_empty(hidden_BtD.shape[0], seq_len, hidden_BtD.shape[2])
    hidden_BTD[:, torch.from_numpy(index_T).to(hidden_BtD.device)] = torch.cat(parts, dim=1)
    return hidden_BTD
