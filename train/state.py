"""What a training process holds: model, optimizer and random state, built from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from loader.sources import Sources

from .attention import Choice, pick_attention
from .config import TrainConfig
from .inputs import InputOptions
from .loss_scale import LossScale
from .model import Decoder, ModelShape
from .model_shape import shape_of
from .mup import lr_factor
from .optim import Optimizer, Shared
from .parallel.build import Building, build_parts, copies_of, digest_of, prepare_blocks, sum_tied_gradients
from .parallel.mesh import Mesh
from .parallel.pipeline import Pipeline
from .parallel.tensor import sum_partial_gradients
from .precision import PRECISIONS
from .world import World

__all__ = [
    "TrainState",
    "build_frozen_parts",
    "build_model",
    "build_state",
    "computes_bfloat16",
    "input_options",
    "machine",
    "model_shape",
    "set_up_torch",
]


def set_up_torch(config: TrainConfig) -> None:
    """Fix everything in torch that could make two runs differ: seed, threads, algorithms."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.run.threads)
    torch.use_deterministic_algorithms(True)
    # A debugging aid that would cost a pass over memory at every allocation.
    cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = False


def computes_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 in hardware; without it every product is converted and slow."""
    cpu: Any = torch.cpu
    return bool(cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())


def machine(config: TrainConfig, sources: Sources) -> dict[str, str | int]:
    """What could make the same run round differently elsewhere; for job.json."""
    chosen = _attention(config, sources)
    return {
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "attention": chosen.backend.name,
        "attention_reason": chosen.reason,
        "threads": torch.get_num_threads(),
    }


def model_shape(config: TrainConfig, vocab_size: int, seq_len: int) -> ModelShape:
    """All sizes of the model of a configuration over Datasets of this vocabulary and sample length."""
    return shape_of(config.model, vocab_size, seq_len)


def _attention(config: TrainConfig, sources: Sources) -> Choice:
    shape, compute = _shape(config, sources), PRECISIONS[config.precision].compute
    device = torch.device(config.run.device)
    return pick_attention(config.model.attention, device, compute, sources.seq_len, shape.head_dim)


def input_options(config: TrainConfig, sources: Sources, mesh: Mesh | None = None) -> InputOptions:
    """Device, attention backend and compute dtype of a configuration.

    Args:
        mesh: where this process stands; None: alone, with whole samples and a whole model.
    """
    device = torch.device(config.run.device)
    attention = _attention(config, sources).backend
    options = InputOptions(device, attention, PRECISIONS[config.precision].compute)
    group = None if mesh is None else mesh.group("context")
    if group is None:
        return options
    from .parallel.context import check_context_sizes, context_attention, context_tokens

    shape = _shape(config, sources)
    heads = {name: getattr(shape, name) // config.parallel.tensor for name in ("heads", "kv_heads")}
    check_context_sizes(config.parallel.context_method, {"seq_len": sources.seq_len, **heads}, group.size())
    method, length = config.parallel.context_method, sources.seq_len
    index_T = context_tokens(method, length, group.rank(), group.size())
    return replace(options, attention=context_attention(attention, method, group, length), token_index_T=index_T)


def build_model(config: TrainConfig, sources: Sources) -> Decoder:
    """The freshly initialised whole model on its device, for scoring: blocks run as they are, not compiled. Its
    parameters depend on the configuration alone."""
    return _whole(_plain(_building(config, input_options(config, sources))), _shape(config, sources), config.seed)


def _whole(building: Building, shape: ModelShape, seed: int) -> Decoder:
    model = Decoder(shape, building.inputs.attention, building.precision)
    prepare_blocks(model, building)
    return model.initialize(seed).to(building.inputs.device)


def build_frozen_parts(config: TrainConfig, sources: Sources, world: World) -> list[Decoder]:
    """This rank's parts of a second model of the run, for a checkpoint to fill; it draws no random number."""
    if world.size == 1:
        return [build_model(config, sources)]
    plain = _plain(_building(config, input_options(config, sources, world.mesh)))
    return build_parts(_shape(config, sources), replace(plain, seed=None), world.mesh)


def _plain(building: Building) -> Building:
    """As for a model without a backward pass, of which only a few forward passes are wanted."""
    return replace(building, recompute="none", compile=False)


def _building(config: TrainConfig, inputs: InputOptions) -> Building:
    run = config.run
    return Building(
        config.parallel, inputs, PRECISIONS[config.precision], config.seed, recompute=run.recompute, compile=run.compile
    )


def _shape(config: TrainConfig, sources: Sources) -> ModelShape:
    return model_shape(config, sources.datasets[0].manifest.vocab_size, sources.seq_len)


@dataclass(frozen=True)
class TrainState:
    """Model and optimizer of one process.

    Attributes:
        parts: this rank's parts of the model; one, unless a pipeline gives a rank several stages.
        optimizer: over all parts. world: the process group. pipeline: runs the parts, or None.
    """

    parts: tuple[Decoder, ...]
    optimizer: Optimizer
    world: World = field(default_factory=World)
    pipeline: Pipeline | None = None

    @property
    def model(self) -> Decoder:
        """The model, or this rank's first part of it."""
        return self.parts[0]

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Of all parts, in the order of the whole model; names are those of the whole model."""
        return [item for part in self.parts for item in part.named_parameters()]

    def complete_gradients(self) -> None:
        """Add up, behind the backward pass, what single ranks saw only a part of."""
        for part in self.parts:
            sum_partial_gradients(part, part.spread)
        sum_tied_gradients(self.parts, self.world.mesh)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint holds as tensors; loading copies into these very tensors.

        The random states are copies: :meth:`loaded` puts them back.
        """
        out: dict[str, Tensor] = {f"model.{name}": parameter.detach() for name, parameter in self.named_parameters()}
        out.update({f"optimizer.{name}": tensor for name, tensor in self.optimizer.state_tensors()})
        out["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available() and next(self.model.parameters()).is_cuda:
            out["random.cuda"] = torch.cuda.get_rng_state()
        return out

    @staticmethod
    def loaded(tensors: Mapping[str, Tensor]) -> None:
        """Set the random states to those that were loaded into ``tensors``."""
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"])

    def digest(self) -> str:
        """sha256 over names and bytes of all parameters, equal on every rank and mesh: equal digests mean bit-equal
        models. Every process calls it: the parts of a parameter are gathered one after the other.
        """
        return digest_of(self.named_parameters(), self.world)


def build_state(config: TrainConfig, sources: Sources, world: World | None = None) -> TrainState:
    """Model and optimizer as at step 0, cut over the ranks of ``world``; the values do not depend on the mesh.

    Raises:
        ConfigError: sizes that the mesh cannot cut.
    """
    shape, world = _shape(config, sources), world or World()
    mesh = world.mesh
    inputs = input_options(config, sources, mesh)
    alone = world.size == 1
    building = _building(config, inputs)
    parts = [_whole(building, shape, config.seed)] if alone else build_parts(shape, building, mesh)
    shared = None if alone else Shared(world.sum_, lambda name, value: copies_of(name, value, shape.tied, mesh))
    optimizer = Optimizer(
        [item for part in parts for item in part.named_parameters()],
        config.optimizer,
        shared,
        lambda name: lr_factor(name, shape),
        LossScale().to(inputs.device) if PRECISIONS[config.precision].scaled else None,
    )
    staged = mesh.shape.pipeline > 1
    pipeline = Pipeline(cast(Any, parts), config.parallel, mesh, inputs.device) if staged else None
    return TrainState(tuple(parts), optimizer, world, pipeline)
