"""Steps of a small model on any mesh, for comparison with one process: losses, norms and the parameters' digest.

A case is JSON: {"name": ..., "parallel": {...}, "model": {...}, "precision": ..., "micro_batch": ..., "rows": ...}. All
cases of one world share the start of the processes, see ``parity_cases.run_world``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from loader.errors import ConfigError
from loader.stream.batch import rank_span
from train.ahead import CountedBatches
from train.attention import ATTENTION
from train.inputs import InputOptions
from train.loss_scale import LossScale
from train.model import Decoder, ModelShape
from train.model_config import DropoutConfig, MupConfig, RopeScaling
from train.optim import Optimizer, Shared
from train.optim_config import OptimizerConfig
from train.parallel.build import Building, build_parts, copies_of, prepare_blocks
from train.parallel.config import ParallelConfig
from train.parallel.mesh import Mesh
from train.parallel.pipeline import Pipeline
from train.precision import PRECISIONS
from train.state import TrainState
from train.step import StepOptions, StepPlan, train_step
from train.world import World, join_world

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.synthetic import FakeBatch, fake_batch

__all__ = ["NAMES", "SHAPE", "Case", "Outcome", "main", "run_case"]

NAMES = ("web", "code", "books")
SHAPE = ModelShape(vocab_size=53, dim=32, layers=4, heads=4, kv_heads=4, ffn=48, seq_len=24, qk_norm=True, z_loss=1e-4)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """One mesh (or none) and what it trains."""

    name: str
    parallel: Mapping[str, Any]
    model: Mapping[str, Any]
    precision: str = "fp32"
    attention: str = "sdpa_loop"
    micro_batch: int | None = None
    rows: int = 8
    steps: int = 10
    lr: float = 2e-3
    loss_scale: float = 65536.0
    recompute: str = "none"
    compile: bool = False

    def shape(self) -> ModelShape:
        blocks = {"dropout": DropoutConfig, "mup": MupConfig, "rope_scaling": RopeScaling}
        given = {key: blocks[key](**value) if key in blocks else value for key, value in self.model.items()}
        return replace(SHAPE, **given)


@dataclass(frozen=True)
class Outcome:
    """Of every step."""

    loss: list[float]
    grad_norm: list[float]
    update_norm: list[float]
    label_count: list[int]
    token_digest: list[int]
    source_loss: list[dict[str, list[float]]]
    parameters: str


def batch_of(case: Case, step: int) -> FakeBatch:
    """Labels are thinned unevenly, so that ranks and micro-batches have different numbers of them."""
    whole = fake_batch(step, rows=case.rows, seq_len=case.shape().seq_len, vocab_size=case.shape().vocab_size)
    labels_BT = whole.labels_BT.copy()
    labels_BT[0] = -100
    labels_BT[1, 3:] = -100
    return replace(whole, labels_BT=labels_BT)


def slice_of(batch: FakeBatch, rank: int, ranks: int) -> FakeBatch:
    span = rank_span(len(batch.positions_B), rank, ranks)
    rows = slice(span.start, span.stop)
    names = ("positions_B", "source_B", "tokens_BT", "labels_BT", "token_positions_BT", "segment_of_BT")
    digest = batch.token_digest if rank == 0 else 0
    cu_seqlens_C = batch.cu_seqlens_C[: (span.stop - span.start) * 3 + 1]
    kept = {name: getattr(batch, name)[rows] for name in names}
    return replace(batch, **kept, token_digest=digest, cu_seqlens_C=cu_seqlens_C)


def build(case: Case, world: World) -> tuple[TrainState, InputOptions]:
    shape, precision = case.shape(), PRECISIONS[case.precision]
    inputs = InputOptions(CPU, ATTENTION[case.attention], precision.compute)
    optimizer = OptimizerConfig(lr=case.lr)
    mesh, parallel = world.mesh, ParallelConfig(**case.parallel)
    scale = LossScale(torch.tensor(case.loss_scale)) if precision.scaled else None
    building = Building(parallel, inputs, precision, 3, case.recompute, case.compile)
    if world.size == 1:
        model = Decoder(shape, inputs.attention, precision)
        prepare_blocks(model, building)
        named = list(model.initialize(3).named_parameters())
        return TrainState((model,), Optimizer(named, optimizer, scale=scale)), inputs
    group = mesh.group("context")
    if group is not None:
        from train.parallel.context import context_attention, context_tokens

        index_T = context_tokens(parallel.context_method, shape.seq_len, group.rank(), group.size())
        spread = context_attention(inputs.attention, parallel.context_method, group, shape.seq_len)
        inputs = replace(inputs, attention=spread, token_index_T=index_T)
    parts = build_parts(shape, replace(building, inputs=inputs), mesh)
    named = [item for part in parts for item in part.named_parameters()]
    shared = Shared(world.sum_, lambda name, parameter: copies_of(name, parameter, shape.tied, mesh))
    pipeline = Pipeline(parts, parallel, mesh, CPU) if mesh.shape.pipeline > 1 else None  # type: ignore[arg-type]
    if pipeline is not None:
        pipeline.prepare([case.rows], case.micro_batch)
    return TrainState(tuple(parts), Optimizer(named, optimizer, shared, scale=scale), world, pipeline), inputs


def run_case(case: Case, world: World) -> Outcome:
    """Train ``case.steps`` steps; equal on every rank."""
    state, inputs = build(case, world)
    each = case.parallel.get("reduce") == "each"
    options = StepOptions(inputs, case.micro_batch, NAMES, world, state.pipeline, each)
    place, ranks = world.mesh.place, world.mesh.shape.data
    reads = []
    mine = (slice_of(batch_of(case, step), place.data, ranks) for step in range(case.steps))
    batches = CountedBatches(mine, world, case.steps)  # type: ignore[arg-type]
    for step in range(case.steps):
        counted = batches.take()
        plan = StepPlan(step * case.rows, -(-case.rows // ranks), case.lr, counted.label_count())
        reads.append(train_step(state, counted.batch, plan, options).read())
    records = [read.record for read in reads]
    return Outcome(
        [record.loss for record in records],
        [record.grad_norm for record in records],
        [record.update_norm for record in records],
        [record.label_count for record in records],
        [read.token_digest for read in reads],
        [{name: [*pair] for name, pair in sorted(record.source_loss.items())} for record in records],
        state.digest(),
    )


def main(out: str, cases: Sequence[str]) -> None:
    """All cases on this process of a world; the leading one appends their outcomes to ``out``."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with join_world("cpu") as whole:
        for text in cases:
            case = Case(**json.loads(text))
            found = _outcome(case, whole)
            if whole.leads:
                with open(out, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"case": case.name, **found}) + "\n")
            whole.barrier()


def _outcome(case: Case, whole: World) -> dict[str, Any]:
    """A refusal must come from every process alike, or the others would wait."""
    try:
        return vars(run_case(case, replace(whole, mesh=_mesh(case, whole))))
    except ConfigError as error:
        return error.to_json()


def _mesh(case: Case, world: World) -> Mesh:
    from train.parallel.mesh import make_mesh

    return make_mesh(ParallelConfig(**case.parallel), world.rank, world.size, "cpu")
