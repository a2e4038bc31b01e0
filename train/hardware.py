"""Accelerators and what their makers promise: the one table for utilisation (metrics) and for plans. No torch.

Peaks are dense (without structured sparsity) and with float32 accumulation, from the makers' data sheets; what a card
reaches in practice is 5 to 30 % less. Sizes are decimal, as the data sheets give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["ACCELERATORS", "Accelerator", "Arithmetic", "find_accelerator"]

Arithmetic = Literal["fp8", "bf16", "fp16", "fp32"]
"""What a matrix product multiplies; fp32 means true float32 (TF32 is switched off in training)."""

_GB = 1_000_000_000
_TERA = 1e12


@dataclass(frozen=True)
class Accelerator:
    """One kind of device, as one process sees it (a dual-die card that shows two devices is two).

    Attributes:
        marks: words that its reported name holds, lower case; all of them must be there.
        peak: FLOP/s by arithmetic; what it cannot do is missing.
        memory_bytes: on the device. memory_bytes_per_s: its bandwidth.
        link_bytes_per_s: to its neighbours in one machine, one direction (NVLink, Infinity Fabric), or PCIe's.
    """

    marks: tuple[str, ...]
    peak: Mapping[Arithmetic, float]
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float


def _card(
    marks: str, tera: tuple[float | None, float | None, float], memory_gb: int, rates_gb: tuple[float, float]
) -> Accelerator:
    """A row: marks; TFLOP/s of fp8, bf16 (and fp16), fp32; GB; GB/s of memory and link."""
    fp8, half, single = tera
    given: dict[Arithmetic, float | None] = {"fp8": fp8, "bf16": half, "fp16": half, "fp32": single}
    peak = {name: value * _TERA for name, value in given.items() if value is not None}
    return Accelerator(tuple(marks.split()), peak, memory_gb * _GB, rates_gb[0] * _GB, rates_gb[1] * _GB)


def _volta() -> Accelerator:
    """V100: half precision without bfloat16."""
    peak: dict[Arithmetic, float] = {"fp16": 125 * _TERA, "fp32": 15.7 * _TERA}
    return Accelerator(("v100",), peak, 32 * _GB, 900.0 * _GB, 150.0 * _GB)


ACCELERATORS: dict[str, Accelerator] = {
    "gb300": _card("gb300", (5000, 2500, 80), 288, (8000, 900)),
    "gb200": _card("gb200", (5000, 2500, 80), 186, (8000, 900)),
    "b300": _card("b300", (4500, 2250, 75), 288, (8000, 900)),
    "b200": _card("b200", (4500, 2250, 75), 180, (8000, 900)),
    "gh200": _card("gh200", (1978.9, 989.4, 67), 96, (4000, 450)),
    "h200-nvl": _card("h200 nvl", (1671, 835.5, 60), 141, (4800, 450)),
    "h200": _card("h200", (1978.9, 989.4, 67), 141, (4800, 450)),
    "h100-nvl": _card("h100 nvl", (1671, 835.5, 60), 94, (3900, 300)),
    "h100-pcie": _card("h100 pcie", (1513, 756.5, 51), 80, (2000, 300)),
    "h100": _card("h100", (1978.9, 989.4, 67), 80, (3350, 450)),
    "h800": _card("h800", (1978.9, 989.4, 67), 80, (3350, 200)),
    "h20": _card("h20", (296, 148, 44), 96, (4000, 450)),
    "a100-80gb": _card("a100 80gb", (None, 312, 19.5), 80, (2039, 300)),
    "a100": _card("a100", (None, 312, 19.5), 40, (1555, 300)),
    "a800": _card("a800", (None, 312, 19.5), 80, (2039, 200)),
    "a40": _card("a40", (None, 149.7, 37.4), 48, (696, 56)),
    "a30": _card("a30", (None, 165, 10.3), 24, (933, 100)),
    "a10g": _card("a10g", (None, 70, 31.5), 24, (600, 32)),
    "a10": _card("a10", (None, 125, 31.2), 24, (600, 32)),
    "l40s": _card("l40s", (733, 362, 91.6), 48, (864, 32)),
    "l40": _card("l40", (362, 181, 90.5), 48, (864, 32)),
    "l4": _card("l4", (242, 121, 30.3), 24, (300, 32)),
    "rtx-4090": _card("4090", (330.3, 165.2, 82.6), 24, (1008, 32)),
    "rtx-3090": _card("3090", (None, 71, 35.6), 24, (936, 56)),
    "v100": _volta(),
    "mi355x": _card("mi355x", (5000, 2500, 157.3), 288, (8000, 538)),
    "mi325x": _card("mi325x", (2614.9, 1307.4, 163.4), 256, (6000, 448)),
    "mi300x": _card("mi300x", (2614.9, 1307.4, 163.4), 192, (5300, 448)),
    "mi250x": _card("mi250x", (None, 191.5, 47.9), 64, (1638, 200)),
}
"""Name -> accelerator. Where two rows fit a device's name, the one with more and longer marks is meant."""


def find_accelerator(device_name: str) -> tuple[str, Accelerator] | None:
    """The row of a device's reported name (``torch.cuda.get_device_name``), or of a key of the table; None if unknown.

    ``NVIDIA H100 80GB HBM3`` is ``h100``, ``NVIDIA H100 PCIe`` is ``h100-pcie``.
    """
    words = device_name.lower().replace("-", " ").replace("_", " ").split()
    fitting = [
        (name, card) for name, card in ACCELERATORS.items() if all(_has_mark(words, mark) for mark in card.marks)
    ]
    return max(fitting, key=lambda found: (len(found[1].marks), sum(map(len, found[1].marks))), default=None)


def _has_mark(words: list[str], mark: str) -> bool:
    """Whole words only: ``l4`` is not in ``l40s``, nor ``a10`` in ``a100``."""
    return mark in words
