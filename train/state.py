"""What a training process holds: model, optimizer and random state, built from a configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from loader.sources import Sources

from .attention import choose_attention
from .config import TrainConfig
from .inputs import InputOptions
from .model import Decoder, ModelShape
from .optim import Optimizer
from .precision import PRECISIONS

__all__ = [
    "TrainState",
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
    return {
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "attention": input_options(config, sources).attention.name,
        "threads": torch.get_num_threads(),
    }


def model_shape(config: TrainConfig, vocab_size: int, seq_len: int) -> ModelShape:
    """All sizes of the model of a configuration over Datasets of this vocabulary and sample length."""
    sizes, model = config.model.sizes(), config.model
    return ModelShape(
        vocab_size=vocab_size,
        dim=sizes.dim,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        ffn=sizes.ffn,
        seq_len=seq_len,
        qk_norm=model.qk_norm,
        z_loss=model.z_loss,
        tied=model.tied,
        rope_base=model.rope_base,
    )


def input_options(config: TrainConfig, sources: Sources) -> InputOptions:
    """Device, attention backend and compute dtype of a configuration."""
    device = torch.device(config.run.device)
    attention = choose_attention(config.model.attention, device, sources.seq_len)
    return InputOptions(device, attention, PRECISIONS[config.precision].compute)


def build_model(config: TrainConfig, sources: Sources) -> Decoder:
    """The freshly initialised model on its device; its parameters depend on the configuration alone."""
    options = input_options(config, sources)
    shape = model_shape(config, sources.datasets[0].manifest.vocab_size, sources.seq_len)
    model = Decoder(shape, options.attention, PRECISIONS[config.precision])
    return model.initialize(config.seed).to(options.device)


@dataclass(frozen=True)
class TrainState:
    """Model and optimizer of one process."""

    model: Decoder
    optimizer: Optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint holds as tensors; loading copies into these very tensors.

        The random states are copies: :meth:`loaded` puts them back.
        """
        out = {f"model.{name}": parameter.detach() for name, parameter in self.model.named_parameters()}
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
        """sha256 over names and bytes of all parameters: equal digests mean bit-equal models."""
        total = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            total.update(name.encode() + b"\0")
            total.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()


def build_state(config: TrainConfig, sources: Sources) -> TrainState:
    """Model and optimizer as at step 0."""
    model = build_model(config, sources)
    return TrainState(model, Optimizer(list(model.named_parameters()), config.optimizer))
