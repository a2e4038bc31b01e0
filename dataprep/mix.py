"""Mixing by tokens: how long the plan is, what each source gives, how much of it is kept, how often it will be seen.

Mixing only takes away: the documents of a source with the smallest keyed hashes are kept until its budget is full, so
a larger
budget keeps the earlier documents. Nothing is repeated on disk; a source that the plan needs more than once is
repeated by the
loader. The realised shares become the Dataset's default Mixture.

Legend: D documents of a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from loader.errors import JobError, RefusedError

from .config import MixConfig

__all__ = ["SourceMix", "keep_prefix", "mix_table", "plan_mix", "realised"]


@dataclass(frozen=True)
class SourceMix:
    """What one source gives to the plan.

    Attributes:
        source: its name.
        available_tokens, available_documents: after deduplication and hold-out.
        ratio: share asked for.
        planned_tokens: tokens of the plan that come from it, repeats counted.
        budget_tokens: unique tokens of them, at most ``available_tokens``.
        kept_tokens, kept_documents: what whole documents make of the budget; equal to the budget until decided.
        share: realised share of the plan, by tokens.
        epochs: planned over kept tokens.
    """

    source: str
    available_tokens: int
    available_documents: int
    ratio: float
    planned_tokens: int
    budget_tokens: int
    kept_tokens: int
    kept_documents: int
    share: float
    epochs: float

    def to_json(self) -> dict[str, str | int | float]:
        """As a JSON-able dictionary."""
        return asdict(self)


def plan_mix(tokens: Mapping[str, int], config: MixConfig) -> dict[str, tuple[float, int, int]]:
    """Share out the plan's tokens.

    Args:
        tokens: source -> tokens available.
        config: ratios, total, epochs and what happens when a source runs out.

    Returns:
        source -> (ratio, planned tokens, unique tokens to keep).

    Raises:
        JobError: a source has no tokens (``TR-MIX-EMPTY``).
        RefusedError: the plan needs a source more often than ``max_epochs`` allows (``TR-MIX-EPOCHS``).
    """
    for source, available in tokens.items():
        if available <= 0:
            raise JobError(
                "TR-MIX-EMPTY",
                f"source {source!r} has no documents left to mix",
                source,
                "at least one document after deduplication and hold-out",
                "remove the source, or look at removed.parquet and rejected.parquet",
            )
    if config.ratios is None and config.total_tokens is None:
        whole = sum(tokens.values())
        return {source: (available / whole, available, available) for source, available in tokens.items()}
    weights = dict(config.ratios) if config.ratios is not None else {s: float(t) for s, t in tokens.items()}
    whole_weight = sum(weights.values())
    ratios = {source: weights[source] / whole_weight for source in tokens}
    planned = _planned_tokens(tokens, ratios, config)
    return {source: (ratios[source], planned[source], min(planned[source], tokens[source])) for source in tokens}


def _planned_tokens(tokens: Mapping[str, int], ratios: Mapping[str, float], config: MixConfig) -> dict[str, int]:
    """Tokens of the plan per source, under the policy for sources that run out."""
    one_epoch = config.total_tokens is None or config.exhaustion != "repeat"
    unlimited = {source: float("inf") for source in tokens if not one_epoch}
    limits = {source: config.max_epochs.get(source, unlimited.get(source, 1.0)) * tokens[source] for source in tokens}
    longest = min(limits[source] / ratios[source] for source in tokens)
    if config.total_tokens is None:
        return {source: int(longest * ratios[source]) for source in tokens}
    total = config.total_tokens
    if total <= longest:
        return {source: round(total * ratios[source]) for source in tokens}
    if config.exhaustion == "stop":
        return {source: int(longest * ratios[source]) for source in tokens}
    if config.exhaustion == "renormalise":
        return _renormalised(limits, ratios, total)
    source = min(tokens, key=lambda name: limits[name] / ratios[name])
    raise RefusedError(
        "TR-MIX-EPOCHS",
        f"source {source!r} would be seen {total * ratios[source] / tokens[source]:.2f} times",
        f"mix.max_epochs.{source}",
        f"at most {config.max_epochs[source]:g} epochs, that is total_tokens <= {int(longest)}",
        "lower mix.total_tokens or the source's ratio, raise max_epochs, or set mix.exhaustion",
    )


def _renormalised(limits: Mapping[str, float], ratios: Mapping[str, float], total: int) -> dict[str, int]:
    """Sources that run out give all they may; the others share the rest by their ratios, as often as needed."""
    fixed: dict[str, float] = {}
    while True:
        rest = total - sum(fixed.values())
        open_ratios = {source: ratios[source] for source in ratios if source not in fixed}
        weight = sum(open_ratios.values())
        over = [source for source, ratio in open_ratios.items() if rest * ratio / weight > limits[source]]
        if not over:
            shared = {source: rest * ratio / weight for source, ratio in open_ratios.items()}
            return {source: round({**shared, **fixed}[source]) for source in ratios}
        fixed.update({source: limits[source] for source in over})


def keep_prefix(key_D: NDArray[np.uint64], tokens_D: NDArray[np.int64], budget_tokens: int) -> NDArray[np.bool_]:
    """The documents with the smallest keys whose tokens together stay within the budget (the first one always).

    Monotone: a larger budget keeps the same documents and more.
    """
    order_D = np.argsort(key_D, kind="stable")
    stop_D = np.cumsum(tokens_D[order_D])
    count = int(np.searchsorted(stop_D, budget_tokens, side="right"))
    kept_D = np.zeros(len(key_D), np.bool_)
    kept_D[order_D[: max(count, min(1, len(key_D)))]] = True
    return kept_D


def realised(
    planned: Mapping[str, tuple[float, int, int]],
    available: Mapping[str, tuple[int, int]],
    kept: Mapping[str, tuple[int, int]],
) -> tuple[SourceMix, ...]:
    """Planned and kept side by side, with realised shares.

    Args:
        planned: of ``plan_mix``.
        available, kept: source -> (documents, tokens).
    """
    seen = {}
    for source, (_, planned_tokens, budget_tokens) in planned.items():
        repeated = planned_tokens > budget_tokens
        seen[source] = planned_tokens if repeated else kept[source][1]
    whole = sum(seen.values())
    return tuple(
        SourceMix(
            source=source,
            available_tokens=available[source][1],
            available_documents=available[source][0],
            ratio=ratio,
            planned_tokens=planned_tokens,
            budget_tokens=budget_tokens,
            kept_tokens=kept[source][1],
            kept_documents=kept[source][0],
            share=seen[source] / whole,
            epochs=seen[source] / kept[source][1],
        )
        for source, (ratio, planned_tokens, budget_tokens) in planned.items()
    )


def mix_table(rows: tuple[SourceMix, ...]) -> str:
    """The table that is printed before shards are written."""
    width = max(6, *(len(row.source) for row in rows))
    head = f"{'source':<{width}} {'available':>14} {'planned':>14} {'kept':>14} {'ratio':>8} {'share':>8} {'epochs':>7}"
    lines = [
        f"{row.source:<{width}} {row.available_tokens:>14,} {row.planned_tokens:>14,} {row.kept_tokens:>14,}"
        f" {100 * row.ratio:>7.2f}% {100 * row.share:>7.2f}% {row.epochs:>7.3f}"
        for row in rows
    ]
    total = (
        f"{'total':<{width}} {sum(r.available_tokens for r in rows):>14,} {sum(r.planned_tokens for r in rows):>14,}"
        f" {sum(r.kept_tokens for r in rows):>14,}"
    )
    return "\n".join(["tokens", head, *lines, total])
