"""The machines that a plan is priced for: a row of ``train.hardware`` and what a card alone does not say.

Rent is no property of a card. ``RENT_USD`` holds assumptions (a card-hour in a rented eight-card machine with a fast
network, orders of magnitude of 2025); ``tokenreel plan --price`` replaces them. Eight cards a machine and 400 Gb/s a
card are those of DGX H100, H200 and B200; DGX A100 has 200 Gb/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from loader.errors import ConfigError
from loader.yaml_tree import did_you_mean

from ..hardware import ACCELERATORS, Accelerator, Arithmetic, find_accelerator

__all__ = ["CPU", "RENT_USD", "Cluster", "find_cluster"]

CPU = Accelerator((), dict.fromkeys(get_args(Arithmetic), 79e9), 16_000_000_000, 20e9, 5e9)
"""One core with AVX-512: 79 GFLOP/s in float32 measured on this model; the rest is an order of magnitude. It trains in
every arithmetic, in those of fewer bits at float32's pace at best."""
RENT_USD = {"a100-80gb": 1.5, "h100": 2.5, "h200": 3.0, "b200": 4.5}
"""Assumed USD a card-hour."""
_CARDS = 8
_NETWORK_BYTES_S = 50e9
_NETWORK = {"a100": 25e9, "a100-80gb": 25e9}


@dataclass(frozen=True)
class Cluster:
    """Equal cards in equal machines.

    Attributes:
        name: a key of ``ACCELERATORS``, or cpu. card: its figures.
        peak: FLOP/s of a card in the run's arithmetic. cards: of a machine.
        network_bytes_per_s: one way, a card, to other machines. usd_per_hour: rent of a card, None: not known.
    """

    name: str
    card: Accelerator
    peak: float
    cards: int = _CARDS
    network_bytes_per_s: float = _NETWORK_BYTES_S
    usd_per_hour: float | None = None

    @property
    def device(self) -> str:
        """cpu or cuda."""
        return "cpu" if self.name == "cpu" else "cuda"


def find_cluster(name: str, precision: str, usd_per_hour: float | None = None) -> Cluster:
    """The machines around a card.

    Args:
        name: a key of ``ACCELERATORS``, a device's reported name, or cpu. precision: the configuration's.
        usd_per_hour: rent of a card; None: the assumption, where there is one.

    Raises:
        ConfigError: no such card, or it does not compute in this precision.
    """
    found = ("cpu", CPU) if name.lower() == "cpu" else find_accelerator(name)
    if found is None:
        raise ConfigError(
            "TR-PLAN-CARD", f"no card {name!r}{did_you_mean(name.lower(), ACCELERATORS)}", "--gpu",
            ", ".join(["cpu", *ACCELERATORS]),
        )  # fmt: skip
    key, card = found
    arithmetic: Arithmetic = next((kind for kind in get_args(Arithmetic) if precision.startswith(kind)), "bf16")
    if arithmetic not in card.peak:
        raise ConfigError(
            "TR-PLAN-CARD", f"{key} does not compute in {arithmetic}", "precision", ", ".join(sorted(card.peak))
        )
    cards = 1 if key == "cpu" else _CARDS
    rent = RENT_USD.get(key) if usd_per_hour is None else usd_per_hour
    return Cluster(key, card, card.peak[arithmetic], cards, _NETWORK.get(key, _NETWORK_BYTES_S), rent)
