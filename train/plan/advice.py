"""How a configuration compares with what the field does: learning rate, batch, context, tokens a parameter.

Figures by size as the presets hold them (125M and 1.3B after GPT-3, 7B and 70B after Llama 2). A remark is no error:
it says that something lies far off, and by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..model_shape import ModelShape
from ..presets import PRESETS
from .parameters import count_parameters

__all__ = ["FIELD", "OPTIMAL_TOKENS_A_PARAMETER", "FieldRow", "field_row", "optimal_tokens", "remarks"]

OPTIMAL_TOKENS_A_PARAMETER = 20
"""Hoffmann et al. (2022), table 3: 1.5 T tokens for 67 B parameters and much the same at every size."""
_FAR_LR, _FAR_BATCH, _FAR_CONTEXT, _FAR_TOKENS = 3.0, 4.0, 4.0, 4.0
_LARGEST_STEP = 10.0  # of parameters, from the nearest row


@dataclass(frozen=True)
class FieldRow:
    """What the field trains a size with; batch in tokens, lowest and highest."""

    name: str
    parameters: float
    lr: float
    batch_tokens: tuple[int, int]
    context: int


FIELD: tuple[FieldRow, ...] = tuple(
    FieldRow(name, parameters, PRESETS[name].lr, PRESETS[name].batch_tokens, PRESETS[name].context)
    for name, parameters in (("125M", 125e6), ("1.3B", 1.3e9), ("7B", 6.7e9), ("70B", 69e9))
)
"""Ascending in size."""


def field_row(parameters: int) -> FieldRow | None:
    """The row nearest in size on a logarithmic scale; None where all are more than ten times away."""
    nearest = min(FIELD, key=lambda row: abs(math.log(parameters / row.parameters)))
    return nearest if abs(math.log(parameters / nearest.parameters)) <= math.log(_LARGEST_STEP) else None


def optimal_tokens(model: ModelShape) -> int:
    """Tokens at which parameters and data are in balance for their FLOPs."""
    return OPTIMAL_TOKENS_A_PARAMETER * count_parameters(model).total


def _off(name: str, value: float, low: float, high: float, far: float) -> str | None:
    if low / far < value < high * far:
        return None
    ratio = value / high if value > high else low / value
    word = "above" if value > high else "below"
    usual = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
    return f"{name} {value:.6g} is {ratio:.1f}x {word} the field's {usual}"


def remarks(model: ModelShape, lr: float, batch_tokens: int, planned_tokens: int) -> list[str]:
    """What lies far off, one sentence each."""
    found: list[str] = []
    parameters = count_parameters(model).total
    row = field_row(parameters)
    if row is None:
        found.append("no row of the field's table is within ten times this size: no advice on lr, batch, context")
    else:
        low, high = row.batch_tokens
        for remark in (
            _off("learning rate", lr, row.lr, row.lr, _FAR_LR),
            _off("batch (tokens)", batch_tokens, low, high, _FAR_BATCH),
            _off("context", model.seq_len, row.context, row.context, _FAR_CONTEXT),
        ):
            found += [] if remark is None else [f"{remark} for {row.name}"]
    ratio = planned_tokens / parameters
    if ratio < OPTIMAL_TOKENS_A_PARAMETER / _FAR_TOKENS:
        found.append(f"{ratio:.1f} tokens a parameter: a smaller model would reach more with the same FLOPs")
    elif ratio > OPTIMAL_TOKENS_A_PARAMETER * _FAR_TOKENS:
        found.append(f"{ratio:.0f} tokens a parameter: past the optimum of training, towards cheap use afterwards")
    return found
