"""Hours, failures and price of a run.

hours = FLOPs / (cards x peak x MFU). A cluster then takes longer: cards fail, and each failure costs the way back to
the last checkpoint and a restart; each save stalls. ``cluster_factor`` is that arithmetic, not a rule of thumb:

    factor = 1 / (1 - stall / interval - failures an hour x (interval / 2 + restart))

It is a lower bound: slow cards, evaluations, planned stops and rollbacks are not in it.

``MTBF_CARD_HOURS``: Llama 3 405B had 419 unexpected interruptions in 54 days on 16,384 H100 (Grattafiori et al., 2024,
section 3.3.4). The best interval, sqrt(2 x stall x mean time between failures), is Young's (1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "MTBF_CARD_HOURS",
    "RESTART_S",
    "STAGING_BYTES_PER_S",
    "Failures",
    "card_hours",
    "cluster_factor",
    "young_interval_s",
]

MTBF_CARD_HOURS = 54 * 24 * 16_384 / 419
"""Hours that one card works between unexpected interruptions, about 50,700."""
RESTART_S = 900.0
"""From a failure to the next step: an assumption (detection, a spare machine, start, loading)."""
STAGING_BYTES_PER_S = 20e9
"""A card's state into the host's memory, the stall of an asynchronous save: an assumption (PCIe 5, half of it)."""


def card_hours(flops: float, achieved_flops_per_s: float) -> float:
    """Hours that one card would compute, at what it achieves (peak x MFU)."""
    return flops / achieved_flops_per_s / 3600


@dataclass(frozen=True)
class Failures:
    """What a run loses beside computing.

    Attributes:
        cards: of the cluster. interval_s: between saves. stall_s: of one save. restart_s: of one failure.
        mtbf_card_hours: mean time between failures of one card.
    """

    cards: int
    interval_s: float
    stall_s: float
    restart_s: float = RESTART_S
    mtbf_card_hours: float = MTBF_CARD_HOURS

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of the cluster."""
        return self.mtbf_card_hours * 3600 / self.cards

    @property
    def lost(self) -> float:
        """Share of the time that is no progress; 1 or more: it never ends."""
        return self.stall_s / self.interval_s + (self.interval_s / 2 + self.restart_s) / self.mtbf_s


def cluster_factor(failures: Failures) -> float:
    """How much longer than its computing a run takes; infinite where it fails faster than it saves."""
    return 1 / (1 - failures.lost) if failures.lost < 1 else math.inf


def young_interval_s(failures: Failures) -> float:
    """Seconds between saves that lose least."""
    return math.sqrt(2 * failures.stall_s * failures.mtbf_s)
