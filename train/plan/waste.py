"""Plans that can be run and should not be: sources read too often, and runs that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

from .impossible import Finding
from .tokens import SourceTokens

__all__ = ["LONG_CPU_HOURS", "LONG_HOURS", "MOST_EPOCHS", "waste_warnings"]

MOST_EPOCHS = 4.0
"""Up to here repeated tokens are nearly worth new ones, and soon little beyond: Muennighoff et al. (2023), 'Scaling
Data-Constrained Language Models'."""
LONG_HOURS = 90 * 24.0
"""Whatever the cards: the longest published runs take about so long."""
LONG_CPU_HOURS = 24.0
"""On processors alone: a day. What takes longer wants a card."""


def waste_warnings(sources: Sequence[SourceTokens], hours: float | None, device: str) -> list[Finding]:
    """One finding for each source that is read too often, and one for the run's length; none is fatal.

    Args:
        sources: of the plan. hours: of the run; None: it never ends, which is said elsewhere. device: ``cpu`` or a
            card's.
    """
    found = [
        Finding(
            "source-repeated",
            f"{source.name} is read {source.epochs:,.1f} times; beyond about {MOST_EPOCHS:g} epochs repeated tokens "
            "lose their value (Muennighoff et al., 2023): fewer steps, a smaller share, or more documents",
            fatal=False,
        )
        for source in sources
        if source.epochs is not None and source.epochs > MOST_EPOCHS
    ]
    if hours is None:
        return found
    if device == "cpu" and hours > LONG_CPU_HOURS:
        message = f"{_length(hours)} on processors; better run.device: cuda, a smaller model or fewer steps"
        found.append(Finding("long-run", f"{message}; `--gpu h100` says what a card would take", fatal=False))
    elif hours > LONG_HOURS:
        found.append(Finding("long-run", f"{_length(hours)}: more cards, a smaller model or fewer steps", fatal=False))
    return found


def _length(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours < 48 else f"{hours / 24:,.1f} days"
