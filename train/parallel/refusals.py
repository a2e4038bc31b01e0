"""What a mesh cannot train, from numbers alone: training raises what these rules find, ``plan`` names it. No torch.

A rule returns all that it finds; :func:`refuse` raises the first. :func:`mesh_refusals` asks every rule, in the order
in which training meets them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loader.errors import ConfigError

from ..model_shape import ModelShape
from .config import ParallelConfig
from .stages import SCHEDULES, num_stages, too_few_blocks

__all__ = [
    "CONTEXT_CUTS",
    "ContextCut",
    "MeshRequest",
    "Refusal",
    "batch_refusals",
    "block_sides",
    "context_refusals",
    "float8_refusals",
    "mesh_refusals",
    "refuse",
    "stage_refusals",
    "tensor_refusals",
    "world_refusals",
]

_FLOAT8_SIDE = 16
_NAMED_SIZES = 8  # of micro-batches in a message


@dataclass(frozen=True)
class Refusal:
    """One reason. ``name``: for scripts, as ``plan`` prints it. ``message``: of this reason. ``error``: what training
    raises, which may name several reasons at once."""

    name: str
    message: str
    error: ConfigError


def _refusal(name: str, error: ConfigError) -> Refusal:
    return Refusal(name, error.message, error)


def refuse(found: Sequence[Refusal]) -> None:
    """Raise the first.

    Raises:
        ConfigError: there is one.
    """
    if found:
        raise found[0].error


@dataclass(frozen=True)
class ContextCut:
    """How a row of ``parallel.context.CONTEXT_METHODS`` cuts: into how many equal pieces a rank, and whether the heads
    are cut too."""

    chunks: int
    splits_heads: bool = False


CONTEXT_CUTS: dict[str, ContextCut] = {"zigzag": ContextCut(2), "ulysses": ContextCut(1, splits_heads=True)}
"""``parallel.context_method`` -> how."""


@dataclass(frozen=True)
class MeshRequest:
    """What is asked of a mesh.

    Attributes:
        shape: of the whole model. parallel: the block of the configuration. num_processes: in all.
        batches: samples of a step, all ranks together, of every stage of ``data.batch``.
        micro_batch: of the configuration. recompute, compile: of ``run``. float8: the blocks multiply in 8 bits.
    """

    shape: ModelShape
    parallel: ParallelConfig
    num_processes: int
    batches: tuple[int, ...]
    micro_batch: int | None = None
    recompute: str = "none"
    compile: bool = False
    float8: bool = False

    @property
    def data_ranks(self) -> int:
        """Ranks that read different samples; one where the processes leave none."""
        parallel = self.parallel
        return max(1, self.num_processes // (parallel.tensor * parallel.pipeline * parallel.context))


def mesh_refusals(asked: MeshRequest) -> list[Refusal]:
    """Everything that training would refuse, in its order; empty: the mesh trains."""
    shape, parallel = asked.shape, asked.parallel
    heads = {name: getattr(shape, name) // parallel.tensor for name in ("heads", "kv_heads")}
    found = world_refusals(parallel, asked.num_processes)
    if parallel.context > 1:
        found += context_refusals(parallel.context_method, {"seq_len": shape.seq_len, **heads}, parallel.context)
    found += tensor_refusals(shape, parallel)
    found += stage_refusals(shape, parallel, asked.recompute, compile=asked.compile)
    if asked.float8:
        found += float8_refusals(block_sides(shape, parallel.tensor))
    return found + batch_refusals(parallel, asked.data_ranks, asked.batches, asked.micro_batch)


def world_refusals(parallel: ParallelConfig, num_processes: int) -> list[Refusal]:
    """Processes that are no product of the dimensions, or data ranks that form no replicas."""
    others = parallel.tensor * parallel.pipeline * parallel.context
    dims = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context}"
    if num_processes % others:
        error = ConfigError(
            "TR-PARALLEL-MESH", f"{num_processes} processes are no multiple of {dims} = {others}", "parallel",
            "processes = data x tensor x pipeline x context",
            "run.processes (or torchrun --nproc-per-node) to match, or another mesh",
        )  # fmt: skip
        return [_refusal("world-not-a-product", error)]
    shared = num_processes // others * parallel.context
    if shared % parallel.replicas:
        error = ConfigError(
            "TR-PARALLEL-MESH", f"{shared} ranks cannot form {parallel.replicas} replicas", "parallel.replicas",
            "a divisor of data x context ranks",
        )  # fmt: skip
        return [_refusal("replicas-not-divisible", error)]
    return []


def _uneven(sizes: Mapping[str, int], divisor: int) -> dict[str, int]:
    return {key: size for key, size in sizes.items() if size % divisor}


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{key} = {size}" for key, size in sizes.items())


def context_refusals(method: str, sizes: Mapping[str, int], ranks: int) -> list[Refusal]:
    """Tokens, then heads, that a context method cannot cut evenly.

    Args:
        method: a row of ``CONTEXT_CUTS``.
        sizes: ``seq_len``, ``heads`` and ``kv_heads`` (of one tensor rank), as far as they are known.
        ranks: of the context dimension.
    """
    cut = CONTEXT_CUTS[method]
    tokens = {key: size for key, size in sizes.items() if key == "seq_len"}
    heads = {key: size for key, size in sizes.items() if key != "seq_len"} if cut.splits_heads else {}
    found = []
    for some, divisor in ((tokens, cut.chunks * ranks), (heads, ranks)):
        uneven = _uneven(some, divisor)
        if not uneven:
            continue
        error = ConfigError(
            "TR-PARALLEL-CONTEXT", f"{method} cannot cut evenly: {_named(uneven)}", "parallel.context",
            f"multiples of {divisor}",
        )  # fmt: skip
        names = {"seq_len": "context", "heads": "heads", "kv_heads": "kv-heads"}
        found += [
            Refusal(f"{names[key]}-not-divisible", f"{key} {size} for {method} is no multiple of {divisor}", error)
            for key, size in uneven.items()
        ]
    return found


def tensor_refusals(shape: ModelShape, parallel: ParallelConfig) -> list[Refusal]:
    """Sizes that tensor ranks cannot share evenly. An uneven vocabulary is cut all the same, while no rank has none."""
    ranks = parallel.tensor
    sizes = {"model.heads": shape.heads, "model.kv_heads": shape.kv_heads, "model.ffn": shape.ffn}
    if parallel.sequence:
        sizes["tokens of a sample on a context rank (parallel.sequence)"] = shape.seq_len // parallel.context
    if parallel.vocabulary and shape.vocab_size < ranks:
        sizes["vocabulary"] = shape.vocab_size
    uneven = _uneven(sizes, ranks)
    error = ConfigError(
        "TR-PARALLEL-TENSOR", f"cannot be cut evenly: {_named(uneven)}", "parallel",
        f"multiples of parallel.tensor = {ranks}",
    )  # fmt: skip
    names = {"model.heads": "heads", "model.kv_heads": "kv-heads", "model.ffn": "ffn", "vocabulary": "vocabulary"}
    return [
        Refusal(f"{names.get(key, 'sequence')}-not-divisible", f"{key} {size} is no multiple of {ranks}", error)
        for key, size in uneven.items()
    ]


def stage_refusals(shape: ModelShape, parallel: ParallelConfig, recompute: str, *, compile: bool) -> list[Refusal]:
    """What a pipeline's schedule cannot do with a model, whatever its batches."""
    if parallel.pipeline == 1:
        return []
    schedule, stages, found = SCHEDULES[parallel.schedule], num_stages(parallel), []
    if schedule.splits_backward and (compile or recompute == "selective"):
        key, expected = ("run.compile", "false") if compile else ("run.recompute", "none or full")
        others = ", ".join(name for name, row in SCHEDULES.items() if not row.splits_backward)
        error = ConfigError(
            "TR-PARALLEL-RECOMPUTE", f"schedule {parallel.schedule} goes backward through a block twice",
            key, f"{expected}, or parallel.schedule: {others}",
        )  # fmt: skip
        found.append(Refusal("backward-in-two", f"{error.message}, which {key} does not allow", error))
    if shape.tied and schedule.folded:
        error = ConfigError(
            "TR-PARALLEL-TIED", f"schedule {parallel.schedule} puts both ends of a tied model on one rank",
            "model.tied", "untied embeddings, or another schedule",
        )  # fmt: skip
        found.append(_refusal("tied-ends-on-one-rank", error))
    if shape.layers < stages:
        found.append(_refusal("fewer-layers-than-stages", too_few_blocks(shape.layers, stages)))
    return found


def block_sides(shape: ModelShape, tensor_ranks: int) -> dict[str, tuple[int, int]]:
    """The matrices of a block as a tensor rank holds them: name -> rows, columns."""
    query, key, ffn = (size // tensor_ranks for size in (shape.query_width, shape.key_width, shape.ffn))
    return {
        "attention.q": (query, shape.dim),
        "attention.k": (key, shape.dim),
        "attention.v": (key, shape.dim),
        "attention.out": (shape.dim, query),
        "ffn.gate": (ffn, shape.dim),
        "ffn.up": (ffn, shape.dim),
        "ffn.down": (shape.dim, ffn),
    }


def float8_refusals(sides: Mapping[str, tuple[int, int]]) -> list[Refusal]:
    """The first matrix that the hardware does not multiply in 8 bits. ``sides``: name -> rows, columns on a rank."""
    for name, (rows, columns) in sides.items():
        if rows % _FLOAT8_SIDE or columns % _FLOAT8_SIDE:
            error = ConfigError(
                "TR-PRECISION-SIZES", f"{name} is {rows} x {columns} here", "precision", "multiples of 16 under fp8"
            )
            message = f"{name} is {rows} x {columns} on a rank: fp8 wants multiples of 16"
            return [Refusal("float8-sides", message, error)]
    return []


def batch_refusals(
    parallel: ParallelConfig, data_ranks: int, batches: Iterable[int], micro_batch: int | None
) -> list[Refusal]:
    """Batches that a pipeline cannot cut into micro-batches that its schedule runs; without a pipeline all can be cut.

    Args:
        data_ranks: of the mesh. batches: samples of a step, all ranks together. micro_batch: of the configuration.
    """
    if parallel.pipeline == 1:
        return []
    all_of_them = sorted(set(batches))
    samples_of = {batch: batch // data_ranks for batch in all_of_them if batch % data_ranks == 0}
    found = []
    for batch in all_of_them:
        if batch not in samples_of:
            error = ConfigError(
                "TR-PARALLEL-BATCH", f"{batch} samples on {data_ranks} data ranks", "data.batch",
                "with a pipeline: a multiple of the data ranks",
            )  # fmt: skip
            message = f"global batch {batch} is no multiple of {data_ranks} data ranks, as a pipeline wants it"
            found.append(Refusal("batch-not-divisible", message, error))
            continue
        samples = samples_of[batch]
        size = min(samples, micro_batch or samples)
        if _cuts(parallel, samples, size):
            continue
        remedy = _what_runs(parallel, data_ranks, samples, list(samples_of.values()))
        found.append(_uncut(parallel, samples, size, remedy))
    return found


def _uncut(parallel: ParallelConfig, samples: int, size: int, remedy: tuple[str, str]) -> Refusal:
    """Why a data rank's samples do not go through the pipeline."""
    if samples % size:
        message = f"{samples} samples a data rank in micro-batches of {size}"
        error = ConfigError("TR-PARALLEL-BATCH", message, *remedy)
        return Refusal("micro-batches-unequal", f"{message} are unequal, which no pipeline runs", error)
    count, schedule = samples // size, SCHEDULES[parallel.schedule]
    if schedule.takes == "stages":
        name, why = "fewer-micro-batches-than-stages", f"at least as many as the {num_stages(parallel)} stages"
    else:
        name = "micro-batches-not-in-rounds"
        why = f"fewer than {2 * parallel.pipeline}, or {count // parallel.pipeline} equal rounds of them"
    message = f"{count} micro-batches of {size} samples a data rank; schedule {parallel.schedule} runs {why}"
    return _refusal(name, ConfigError("TR-PARALLEL-PIPELINE", message, *remedy))


def _cuts(parallel: ParallelConfig, samples: int, size: int) -> bool:
    """Whether micro-batches of ``size`` (or fewer, if the rank has fewer samples) are equal, and are run."""
    size = min(samples, size)
    runs = SCHEDULES[parallel.schedule].runs(samples // size, parallel.pipeline, num_stages(parallel))
    return samples % size == 0 and runs


def _what_runs(parallel: ParallelConfig, data_ranks: int, samples: int, all_samples: Sequence[int]) -> tuple[str, str]:
    """The key to change and to what: sizes of micro-batches that suit all batches; where one sample is none of them,
    another batch too."""
    most = max(all_samples)
    small = [size for size in range(1, math.isqrt(most) + 1) if most % size == 0]
    divisors = sorted({*small, *(most // size for size in small)})
    good = [size for size in divisors if all(_cuts(parallel, some, size) for some in all_samples)]
    sizes = " or ".join(map(str, good[:_NAMED_SIZES]))
    if good[:1] == [1]:
        return "micro_batch", sizes
    more = samples
    while not _cuts(parallel, more, 1):
        more += 1
    batch = f"{more * data_ranks} samples, or with " if more > samples else ""
    other = f"micro_batch: 1 with {batch}parallel.schedule: gpipe, which runs any number"
    return ("micro_batch", f"{sizes}; or {other}") if good else ("data.batch", other)
