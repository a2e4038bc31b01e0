"""``plan`` calls a mesh impossible exactly where training refuses it: training's own building, in one process that
stands for rank 0 of a world whose collectives do nothing, against the plan of the same job.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.apart import apart
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import write_job
from torch.testing._internal.distributed.fake_pg import FakeStore

from loader.errors import ConfigError
from loader.order.skips import SkipList
from loader.run_config import build_plan
from loader.settings import load_config
from loader.sources import Sources
from train.attention import ATTENTION
from train.config import TrainConfig
from train.inputs import InputOptions
from train.job import Job, open_job_sources, resolve_job
from train.model import Decoder
from train.model_shape import ModelShape
from train.parallel.build import Building, build_parts
from train.parallel.config import ParallelConfig
from train.parallel.mesh import Mesh, make_mesh
from train.parallel.pipeline import _Sizes
from train.parallel.refusals import MeshRequest, block_sides, mesh_refusals
from train.parallel.stages import SCHEDULES, num_stages
from train.plan.impossible import Finding
from train.plan.report import plan_training
from train.plan.request import Assumptions, mesh_request
from train.precision import PRECISIONS
from train.state import build_state, model_shape
from train.stepping import batches_to_come
from train.world import World

MODEL = {"dim": 16, "layers": 8, "heads": 4, "kv_heads": 2, "ffn": 16}


@dataclass(frozen=True)
class Place:
    """A Dataset, and where jobs over it are written."""

    made: MadeDataset
    folder: Path
    sources: Sources

    def job(self, batches: list[int], **blocks: Any) -> Job:
        """A job whose ``data.batch`` has a stage of each of these sizes."""
        stages = [{"start": 1000 * number, "global_batch": batch} for number, batch in enumerate(batches)]
        dataset = str(self.made.path.relative_to(self.folder))
        data = {"datasets": [dataset], "batch": stages}
        path = write_job(self.folder, self.made.path, data=data, **{"model": MODEL, **blocks})
        return resolve_job(load_config(path, TrainConfig))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("refusals")
    made = make_dataset(folder / "data", DatasetSpec(documents={"web": 30}, seq_len=32))
    return Place(made, folder, open_job_sources(resolve_job(load_config(write_job(folder, made.path), TrainConfig))))


@lru_cache(maxsize=1)
def _mesh(parallel: ParallelConfig, size: int) -> Mesh:
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    return make_mesh(parallel, 0, size, "cpu")


def refused(job: Job, sources: Sources, size: int) -> str | None:
    """The code with which training refuses to begin, by doing what it does before the first step; None: it begins."""
    config = job.config
    try:
        mesh = _mesh(config.parallel, size) if size > 1 else make_mesh(config.parallel, 0, 1, "cpu")
        state = build_state(config, sources, World(0, size, mesh=mesh))
        if state.pipeline is not None:
            order = build_plan(config.data, sources, SkipList())
            state.pipeline.prepare(batches_to_come(order, 0), config.micro_batch)
    except ConfigError as error:
        return error.code
    return None


def impossible(job: Job, size: int) -> list[Finding]:
    return [one for one in plan_training(job, Assumptions(cards=size)).findings if one.fatal]


def compare(place: Place, job: Job, size: int) -> str | None:
    """The code of both, or None."""
    found, code = impossible(job, size), refused(job, place.sources, size)
    assert bool(found) == (code is not None), (job.config.parallel, job.config.micro_batch, found, code)
    request = mesh_request(job.config, model_shape(job.config, 259, 32), size)
    codes = [one.error.code for one in mesh_refusals(request)]
    assert codes[:1] == ([] if code is None else [code]), "the first that plan names is what training says"
    return code


@pytest.mark.parametrize("pipeline", [2, 4])
@pytest.mark.parametrize("schedule", list(SCHEDULES))
@apart
def test_every_schedule_over_stages_micro_batches_recompute_and_tied(
    schedule: str, pipeline: int, place: Place
) -> None:
    """The product, on real parts: a decoder built for every one, and torch's schedule over it."""
    many = SCHEDULES[schedule].many
    codes = set()
    for per_rank, count, recompute, tied in product(
        (1, 2) if many else (2,), range(1, 2 * pipeline + 4), ("none", "selective", "full"), (False, True)
    ):
        if per_rank == 1 and schedule == "zbv":
            continue
        parallel = {"pipeline": pipeline, "schedule": schedule, "stages_per_rank": per_rank}
        job = place.job(
            [count], micro_batch=1, parallel=parallel, run={"recompute": recompute}, model={**MODEL, "tied": tied}
        )
        codes.add(compare(place, job, pipeline))
    assert None in codes
    assert (len(codes) > 1) == (schedule != "gpipe"), "only gpipe refuses nothing here"


@pytest.mark.parametrize("pipeline", [2, 3, 4])
@pytest.mark.parametrize("schedule", list(SCHEDULES))
@apart
def test_the_numbers_of_micro_batches_are_those_that_torch_builds(schedule: str, pipeline: int, place: Place) -> None:
    """Past our own refusal: neither stricter than torch nor laxer."""
    parallel = {"pipeline": pipeline, "schedule": schedule}
    job = place.job([4], parallel=parallel, model={**MODEL, "dim": 8, "head_dim": 2})
    built = build_state(job.config, place.sources, World(0, pipeline, mesh=_mesh(job.config.parallel, pipeline)))
    assert built.pipeline is not None
    stages = num_stages(job.config.parallel)
    for count in range(1, 4 * pipeline + 2):
        runs = SCHEDULES[schedule].runs(count, pipeline, stages)
        with nullcontext() if runs else pytest.raises(ConfigError, match="TR-PARALLEL-PIPELINE"):
            built.pipeline._schedule(count, _Sizes(1, 32))


@pytest.mark.parametrize(
    ("schedule", "batches", "micro_batch", "sizes", "batch"),
    [
        ("interleaved", [5], 1, [5], 6),
        ("zero_bubble", [7, 5], 1, [7], 6),
        ("zero_bubble", [10, 6], 4, [1, 10], None),
        ("1f1b", [1], None, [], 2),
        ("1f1b", [12], None, [1, 2, 3, 4, 6], None),
        ("1f1b", [8, 12], 3, [1, 2, 4], None),
    ],
)
@apart
def test_what_is_expected_trains(
    schedule: str, batches: list[int], micro_batch: int | None, sizes: list[int], batch: int | None, place: Place
) -> None:
    """The sizes named, and no other; the batch and gpipe, where one sample a micro-batch does not do."""
    parallel = {"pipeline": 2, "schedule": schedule}

    def trains(some: list[int], size: int | None, **changes: str) -> bool:
        job = place.job(some, parallel={**parallel, **changes}, micro_batch=size)
        return refused(job, place.sources, 2) is None

    job = place.job(batches, parallel=parallel, micro_batch=micro_batch)
    error = mesh_refusals(mesh_request(job.config, model_shape(job.config, 259, 32), 2))[0].error
    assert error.place == ("micro_batch" if sizes else "data.batch")
    assert [size for size in range(1, max(batches) + 1) if trains(batches, size)] == sizes
    named = " or ".join(map(str, sizes))
    if batch is None:
        assert error.expected == named
        return
    other = f"micro_batch: 1 with {batch} samples, or with parallel.schedule: gpipe, which runs any number"
    assert error.expected == (f"{named}; or {other}" if sizes else other)
    assert trains([batch], 1)
    assert trains(batches, 1, schedule="gpipe")


@pytest.mark.parametrize(
    ("names", "size", "batches", "blocks"),
    [
        ([], 2, [1], {"parallel": {"data": "ddp"}}),
        ([], 2, [1], {"parallel": {"pipeline": 2, "schedule": "gpipe"}}),
        ([], 2, [2], {"parallel": {"pipeline": 2, "schedule": "interleaved"}, "micro_batch": 1}),
        (["micro-batches-not-in-rounds"], 2, [5], {"parallel": {"pipeline": 2, "schedule": "interleaved"},
                                                   "micro_batch": 1}),
        (["tied-ends-on-one-rank"], 2, [4], {"parallel": {"pipeline": 2, "schedule": "zbv"}, "micro_batch": 1,
                                             "model": {**MODEL, "tied": True}}),
        (["backward-in-two"], 2, [4], {"parallel": {"pipeline": 2, "schedule": "zero_bubble"}, "micro_batch": 1,
                                       "run": {"recompute": "selective"}}),
        (["backward-in-two"], 2, [4], {"parallel": {"pipeline": 2, "schedule": "zbv"}, "micro_batch": 1,
                                       "run": {"compile": True}}),
        (["fewer-micro-batches-than-stages"], 4, [3, 8], {"parallel": {"pipeline": 4}, "micro_batch": 1}),
        (["micro-batches-unequal"], 2, [4, 7, 8], {"parallel": {"pipeline": 2}, "micro_batch": 2}),
        (["batch-not-divisible"], 4, [5, 4], {"parallel": {"pipeline": 2}, "micro_batch": 1}),
        (["fewer-layers-than-stages"], 4, [16], {"parallel": {"pipeline": 4, "schedule": "zbv"}, "micro_batch": 1,
                                                 "model": {**MODEL, "layers": 7}}),
        (["world-not-a-product"], 3, [4], {"parallel": {"tensor": 2}}),
        (["replicas-not-divisible"], 2, [4], {"parallel": {"data": "hsdp", "replicas": 4}}),
        (["kv-heads-not-divisible"], 4, [4], {"parallel": {"tensor": 4}}),
        (["context-not-divisible"], 3, [4], {"parallel": {"context": 3}}),
        (["kv-heads-not-divisible"], 4, [4], {"parallel": {"context": 4, "context_method": "ulysses"}}),
        (["sequence-not-divisible"], 3, [4], {"parallel": {"tensor": 3, "sequence": True},
                                              "model": {**MODEL, "heads": 3, "kv_heads": 3, "ffn": 48, "dim": 12,
                                                        "head_dim": 4}}),
        ([], 8, [16], {"parallel": {"tensor": 2, "pipeline": 2, "context": 2, "data": "fsdp"}, "micro_batch": 4}),
    ],
)  # fmt: skip
@apart
def test_each_refusal_has_its_name(
    names: list[str], size: int, batches: list[int], blocks: dict[str, Any], place: Place
) -> None:
    job = place.job(batches, **blocks)
    assert [one.name for one in impossible(job, size)] == names
    assert (compare(place, job, size) is not None) == bool(names)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("change", [{}, {"dim": 24, "head_dim": 8}, {"ffn": 40}, {"kv_heads": 2}, {"kv_heads": 4}])
@apart
def test_matrices_in_8_bits_are_looked_at(change: dict[str, int], tensor: int, place: Place) -> None:
    pytest.importorskip("torchao", reason="fp8 needs torchao")
    sizes = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 64, **change}
    job = place.job([4], model=sizes, precision="fp8", parallel={"tensor": tensor})
    code = compare(place, job, tensor)
    assert code == (None if not change or change == {"kv_heads": 4} or (change == {"kv_heads": 2} and tensor == 1)
                    else "TR-PRECISION-SIZES")  # fmt: skip


@pytest.mark.parametrize(("vocabulary", "whole", "right"), [(3, False, False), (3, True, True), (4, False, True)])
@apart
def test_a_vocabulary_of_fewer_entries_than_tensor_ranks(vocabulary: int, whole: bool, right: bool) -> None:
    shape = ModelShape(vocabulary, 16, 1, 4, 4, 16, 32)
    parallel = ParallelConfig(tensor=4, vocabulary=not whole)
    names = [one.name for one in mesh_refusals(MeshRequest(shape, parallel, 4, (4,)))]
    assert names == ([] if right else ["vocabulary-not-divisible"])
    inputs = InputOptions(torch.device("cpu"), ATTENTION["sdpa_loop"], torch.float32)
    building = Building(parallel, inputs, PRECISIONS["fp32"], 1)
    with nullcontext() if right else pytest.raises(ConfigError, match="TR-PARALLEL-TENSOR"):
        build_parts(shape, building, _mesh(parallel, 4))


def test_the_sides_of_matrices_are_the_models(place: Place) -> None:
    shape = model_shape(place.job([4]).config, 259, 32)
    block = Decoder(shape, ATTENTION["sdpa_loop"], PRECISIONS["fp32"]).blocks["0"]
    found = {name: tuple(one.weight.shape) for name, one in block.named_modules() if hasattr(one, "product")}
    assert found == block_sides(shape, 1)
