"""An investigation: score the window and a clean baseline with a frozen checkpoint, attribute, decide, report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .attribute import Attribution, SegmentColumns, attribute, concatenate, enough_baseline
from .config import SpikeConfig
from .decide import Case, Finding, decide
from .records import FrozenModel, InvestigationContext, Verdict
from .score import score_batch

__all__ = ["investigate"]

_LEAST_BASELINE = 60
"""Fewer clean segments than this say nothing."""
_NAMED_DOCUMENTS = 500
"""A report names at most so many documents, those with the most tokens first."""


def _score(
    context: InvestigationContext, frozen: FrozenModel, step: int, token_bytes: Sequence[bytes] | None, baseline: bool
) -> SegmentColumns:
    return score_batch(frozen, context.read_batch(step), token_bytes, baseline)


def _baseline(
    context: InvestigationContext, frozen: FrozenModel, steps: tuple[int, int], config: SpikeConfig
) -> list[SegmentColumns]:
    """Clean steps before the window, ``steps`` = [first there is, window), newest first, until there are enough
    segments in all and of each source."""
    first, stop = steps
    rules, token_bytes = config.attribution, context.token_bytes()
    parts: list[SegmentColumns] = []
    for step in range(stop - 1, max(first - 1, stop - 1 - rules.max_baseline_steps), -1):
        parts.append(_score(context, frozen, step, token_bytes, True))
        table = concatenate(parts)
        if enough_baseline(table, np.unique(table.source_S).tolist(), rules):
            break
    return parts


def _documents(
    context: InvestigationContext, sources: Sequence[str], columns: SegmentColumns, found: Attribution
) -> list[dict[str, Any]]:
    """The flagged documents of the window with origin, tokens and score, most tokens first."""
    rows = np.flatnonzero(found.flagged_S)
    ids, first, inverse = np.unique(columns.document_S[rows], return_index=True, return_inverse=True)
    tokens = np.bincount(inverse, columns.num_labels_S[rows]).astype(np.int64)
    order = np.lexsort((ids, -tokens))[:_NAMED_DOCUMENTS]
    names = context.names([int(ids[i]) for i in order])
    return [
        {
            "document": f"{int(ids[i]):016x}",
            "source": sources[int(columns.source_S[rows[first[i]]])],
            "tokens": int(tokens[i]),
            "score": round(float(found.score_S[rows[first[i]]]), 3),
            **names.get(int(ids[i]), {}),
        }
        for i in order
    ]


def _per_source(sources: Sequence[str], columns: SegmentColumns, found: Attribution) -> dict[str, dict[str, Any]]:
    """Tokens of the window, flagged tokens and the share of odd ones, by source."""
    window_S = ~columns.baseline_S
    out: dict[str, dict[str, Any]] = {}
    for source in np.unique(columns.source_S[window_S]).tolist():
        mine = window_S & (columns.source_S == source)
        out[sources[source]] = {
            "window_tokens": int(columns.num_labels_S[mine].sum()),
            "flagged_tokens": int(columns.num_labels_S[mine & found.flagged_S].sum()),
            "baseline_segments": int(np.count_nonzero(columns.baseline_S & (columns.source_S == source))),
            "odd_share": found.odd_share.get(source),
            "whole": source in found.whole_sources,
        }
    return out


def investigate(case: Case, context: InvestigationContext, config: SpikeConfig) -> Verdict:
    """Answers an alarm. Reads batches and one checkpoint; changes nothing."""
    window = case.window
    report: dict[str, Any] = {
        "kind": "verdict",
        "window": {"start": window.start, "alarm": window.alarm, "stop": window.stop},
        "finite": case.finite,
        "raised": case.raised.to_json(),
    }
    frozen = context.load_frozen(window.start)
    if frozen is None:
        report["why"] = "no checkpoint at or before the window"
        if case.finite:
            return Verdict("report", "reported", report={**report, "action": "report", "outcome": "reported"})
        return Verdict("give_up", "given_up", report={**report, "action": "give_up", "outcome": "given_up"})
    sources, token_bytes = context.source_names(), context.token_bytes()
    parts = [_score(context, frozen, step, token_bytes, False) for step in range(window.start, window.stop)]
    baseline = _baseline(context, frozen, (case.first_step, window.start), config)
    columns = concatenate(parts + baseline)
    found: Attribution | None = None
    if np.count_nonzero(columns.baseline_S) >= _LEAST_BASELINE and not columns.baseline_S.all():
        found = attribute(columns, config.attribution)
    first, stop = context.positions_of_steps(window.start, window.stop)
    report["checkpoint_step"] = frozen.step
    report["baseline"] = {"steps": len(baseline), "segments": int(np.count_nonzero(columns.baseline_S))}
    if found is not None:
        report["window_tokens"], report["flagged_tokens"] = found.window_tokens, found.flagged_tokens
        report["sources"] = _per_source(sources, columns, found)
        report["documents"] = _documents(context, sources, columns, found)
    finding = Finding(frozen.step, frozen.next_position, (first, stop), sources, columns, found)
    return decide(case, finding, config, report)
