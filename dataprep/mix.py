"""What the mix makes of each source: documents kept up to a budget, and planned, kept and realised side by side.

Mixing only takes away: the documents of a source with the smallest keyed hashes are kept until they cover its budget,
so a larger budget keeps the earlier documents. Documents are whole, so a source keeps up to one document more than its
budget. That costs disk, not accuracy: shares are realised by the default Mixture, which reads each source at the share
that was asked for and so leaves the surplus unread. Nothing is repeated on disk; the loader repeats.

Legend: D documents of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from .mix_plan import MixPlan, PlannedStage

__all__ = ["SourceMix", "keep_cover", "keep_prefix", "mix_table", "realised", "stages_table", "text_table"]


@dataclass(frozen=True)
class SourceMix:
    """What one source gives to the plan.

    Attributes:
        source: its name.
        available_tokens, available_documents: after deduplication and hold-out; tokens of a thinned source are
            estimated.
        ratio: share of the plan asked for.
        planned_tokens: tokens of the plan that come from it, repeats counted.
        budget_tokens: unique tokens to keep, at most ``available_tokens``.
        kept_tokens, kept_documents: what whole documents make of the budget.
        share: share of the plan that it gets, by tokens.
        error: ``share`` minus ``ratio``; 0 unless sources run out or borders of stages are rounded.
        epochs: planned over kept tokens.
        thinned_documents: of those left out, how many were never tokenised.
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
    error: float
    epochs: float
    thinned_documents: int = 0

    def to_json(self) -> dict[str, str | int | float]:
        """As a JSON-able dictionary."""
        return asdict(self)


def keep_prefix(key_D: NDArray[np.uint64], tokens_D: NDArray[np.int64], budget_tokens: int) -> NDArray[np.bool_]:
    """The documents with the smallest keys whose tokens together stay within the budget (the first one always).

    Monotone: a larger budget keeps the same documents and more.
    """
    return _keep_first(key_D, tokens_D, lambda stop_D: int(np.searchsorted(stop_D, budget_tokens, side="right")))


def keep_cover(key_D: NDArray[np.uint64], tokens_D: NDArray[np.int64], budget_tokens: int) -> NDArray[np.bool_]:
    """The documents with the smallest keys, as few as cover the budget (all, if they do not; the first one always).

    Monotone: a larger budget keeps the same documents and more. Without its last document what is kept would not
    suffice.
    """
    return _keep_first(key_D, tokens_D, lambda stop_D: int(np.searchsorted(stop_D, budget_tokens, side="left")) + 1)


def _keep_first(
    key_D: NDArray[np.uint64], tokens_D: NDArray[np.int64], count_of: Callable[[NDArray[np.int64]], int]
) -> NDArray[np.bool_]:
    """The documents with the smallest keys, as many as ``count_of`` finds in the running sums of their tokens."""
    order_D = np.argsort(key_D, kind="stable")
    kept_D = np.zeros(len(key_D), np.bool_)
    kept_D[order_D[: max(1, count_of(np.cumsum(tokens_D[order_D])))]] = True
    return kept_D


def realised(
    plan: MixPlan,
    available: Mapping[str, tuple[int, int]],
    kept: Mapping[str, tuple[int, int]],
    thinned: Mapping[str, int],
) -> tuple[SourceMix, ...]:
    """Planned and kept side by side, with realised shares.

    Args:
        plan: of ``plan_mix``.
        available, kept: source -> (documents, tokens).
        thinned: source -> documents left out before they were tokenised.
    """
    rows = []
    for source, ratio in plan.ratios.items():
        planned_tokens = plan.planned_tokens(source)
        share = planned_tokens / plan.total_tokens
        rows.append(
            SourceMix(
                source=source,
                available_tokens=available[source][1],
                available_documents=available[source][0],
                ratio=ratio,
                planned_tokens=planned_tokens,
                budget_tokens=plan.keep_tokens[source],
                kept_tokens=kept[source][1],
                kept_documents=kept[source][0],
                share=share,
                error=share - ratio,
                epochs=planned_tokens / kept[source][1],
                thinned_documents=thinned.get(source, 0),
            )
        )
    return tuple(rows)


def mix_table(rows: tuple[SourceMix, ...]) -> str:
    """The table of sources that is printed before shards are written."""
    cells = [["source", "available", "planned", "kept", "asked", "share", "error", "epochs"]]
    for row in rows:
        about = "~" if row.thinned_documents else ""
        cells.append(
            [
                row.source,
                f"{about}{row.available_tokens:,}",
                f"{row.planned_tokens:,}",
                f"{row.kept_tokens:,}",
                f"{100 * row.ratio:.2f}%",
                f"{100 * row.share:.2f}%",
                f"{100 * row.error:+.3f}%",
                f"{row.epochs:.3f}",
            ]
        )
    sums = [sum(getattr(row, f"{name}_tokens") for row in rows) for name in ("available", "planned", "kept")]
    cells.append(["total", *(f"{number:,}" for number in sums), "", "", "", ""])
    lines = ["tokens", *text_table(cells)]
    if any(row.thinned_documents for row in rows):
        lines.append("~ estimated: documents that no plan of this length needs were not tokenised")
    return "\n".join(lines)


def stages_table(stages: Sequence[PlannedStage]) -> str:
    """The stages of the plan by tokens; a stage is broken where a source runs out."""
    cells = [["stage", "from token", "tokens", "shares"]]
    for stage in stages:
        length = stage.stop_tokens - stage.start_tokens
        shares = "  ".join(f"{source} {100 * count / length:.2f}%" for source, count in stage.tokens.items())
        cells.append([str(stage.asked), f"{stage.start_tokens:,}", f"{length:,}", shares])
    return "\n".join(["stages", *text_table(cells, left=(0, 3))])


def text_table(cells: Sequence[Sequence[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Lines of a table; the first row is its head, columns ``left`` are aligned left, the others right."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        padded = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
    return lines
