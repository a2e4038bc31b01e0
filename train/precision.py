"""Number formats: what the matrix products compute in. Master weights, gradients and optimizer state stay float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loader.errors import ConfigError

from .parallel.refusals import float8_refusals, refuse
from .parallel.shards import local

__all__ = ["PRECISIONS", "Precision", "use_float8"]


@dataclass(frozen=True)
class Precision:
    """One way to compute.

    Attributes:
        name: the key in the configuration.
        compute: dtype of activations and matrix products. Parameters are float32 under every entry: AdamW on low
            precision weights raises the loss floor, because small updates round away.
        scaled: the loss is scaled, see ``loss_scale``.
        float8: the matrices of the blocks are multiplied in 8 bits, everything else in ``compute``.
    """

    name: str
    compute: torch.dtype
    scaled: bool = False
    float8: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """The context in which forward passes run; a no-op for float32."""
        if self.compute is torch.float32:
            return nullcontext()
        return torch.autocast(device.type, self.compute)


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("fp32", torch.float32),
    "bf16": Precision("bf16", torch.bfloat16),
    "fp16": Precision("fp16", torch.float16, scaled=True),
    "fp8": Precision("fp8", torch.bfloat16, float8=True),
}
"""``precision`` -> how. An entry needs its rows in the tests of the model and of the precisions."""


def _float8_product(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """x, W -> x W^T in float8 with one scale a tensor, found anew at every product (torchao's "tensorwise").

    Forward in e4m3, gradients in e5m2 (Micikevicius et al., 2022). Where the device multiplies no float8 the numbers
    are rounded to it and multiplied in float32: the same values, slower.

    Raises:
        ConfigError: torchao is missing.
    """
    try:
        from torchao.float8.config import Float8LinearConfig
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
        from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig
    except ImportError as error:
        raise ConfigError(
            "TR-PRECISION-TORCHAO", "precision fp8 needs torchao", "precision", "an installed torchao",
            "pip install 'tokenreel[fp8]'",
        ) from error  # fmt: skip
    emulate = device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9)
    config = Float8LinearConfig(emulate=emulate)
    gemms = (config.gemm_config_output, config.gemm_config_grad_input, config.gemm_config_grad_weight)
    scaled = [ScaledMMConfig(emulate, gemm.use_fast_accum, False, config.pad_inner_dim) for gemm in gemms]
    products = LinearMMConfig(*scaled)
    apply: Any = matmul_with_hp_or_float8_args.apply

    def product(x: Tensor, weight: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            kind = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(kind), weight.to(kind)
        out: Tensor = apply(x, weight.t(), products, config)
        return out

    return product


def use_float8(blocks: nn.Module, device: torch.device) -> None:
    """Let every matrix inside ``blocks`` multiply in float8.

    Raises:
        ConfigError: torchao is missing; or a matrix whose sides on this rank are no multiples of 16, which the hardware
            wants.
    """
    product = _float8_product(device)
    for name, module in blocks.named_modules():
        if hasattr(module, "product"):
            rows, columns = local(module.weight).shape
            refuse(float8_refusals({name: (rows, columns)}))
            module.product = product
