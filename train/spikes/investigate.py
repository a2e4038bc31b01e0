"""An investigation: score the window and a clean baseline with a frozen checkpoint, attribute, decide, report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from .attribute import Attribution, SegmentColumns, attribute, clean_rows, concatenate
from .baseline import LEAST_BASELINE, read_baseline
from .config import SpikeConfig
from .decide import Case, Finding, as_dry_run, decide
from .records import FrozenModel, InvestigationContext, Verdict
from .rollback import tried_checkpoints
from .score import score_batch

__all__ = ["investigate"]

_NAMED_DOCUMENTS = 500
"""A report names at most so many documents, those with the most tokens first."""


def _score(
    context: InvestigationContext, frozen: FrozenModel, step: int, token_bytes: Sequence[bytes] | None, baseline: bool
) -> SegmentColumns:
    """The rows of a whole step, on every process; each scores its part of the samples."""
    own = score_batch(frozen, context.read_batch(step), token_bytes, baseline, context.most_samples(step))
    return frozen.together(own)


def _documents(
    context: InvestigationContext, sources: Sequence[str], columns: SegmentColumns, found: Attribution
) -> list[dict[str, Any]]:
    """The flagged documents of the window with origin, tokens, score and its five pieces, most tokens first."""
    rows = np.flatnonzero(found.flagged_S)
    ids, first, inverse = np.unique(columns.document_S[rows], return_index=True, return_inverse=True)
    tokens = np.bincount(inverse, columns.num_labels_S[rows]).astype(np.int64)
    order = np.lexsort((ids, -tokens))[:_NAMED_DOCUMENTS]
    weights_R = columns.num_labels_S[rows].astype(np.float64)
    pieces = {
        name: np.bincount(inverse, weights_R * column_S[rows]) / np.maximum(tokens, 1)
        for name, column_S in found.evidence.items()
    }
    names = context.names([int(ids[i]) for i in order])
    return [
        {
            "document": f"{int(ids[i]):016x}",
            "source": sources[int(columns.source_S[rows[first[i]]])],
            "tokens": int(tokens[i]),
            "score": round(float(found.score_S[rows[first[i]]]), 3),
            "evidence": {name: round(float(piece[i]), 2) for name, piece in pieces.items()},
            **names.get(int(ids[i]), {}),
        }
        for i in order
    ]


def _per_source(sources: Sequence[str], columns: SegmentColumns, found: Attribution) -> dict[str, dict[str, Any]]:
    """Tokens of the window, flagged tokens and the share of odd ones, by source."""
    window_S, clean_S = ~columns.baseline_S, clean_rows(columns)
    out: dict[str, dict[str, Any]] = {}
    for source in np.unique(columns.source_S[window_S]).tolist():
        mine = window_S & (columns.source_S == source)
        out[sources[source]] = {
            "window_tokens": int(columns.num_labels_S[mine].sum()),
            "flagged_tokens": int(columns.num_labels_S[mine & found.flagged_S].sum()),
            "baseline_segments": int(np.count_nonzero(clean_S & (columns.source_S == source))),
            "odd_share": found.odd_share.get(source),
            "whole": source in found.whole_sources,
        }
    return out


def investigate(case: Case, context: InvestigationContext, config: SpikeConfig) -> Verdict:
    """Answers an alarm. Reads batches and one checkpoint; changes nothing.

    Every process of the run calls it. Each scores its samples, all get all rows; the leading one decides, so that no
    difference between processors can part them.
    """
    verdict = _answer(case, context, config)
    return as_dry_run(verdict) if config.dry_run else verdict


def _answer(case: Case, context: InvestigationContext, config: SpikeConfig) -> Verdict:
    window = case.window
    frozen = _load_frozen(case, context)
    if frozen is None:
        return _without_checkpoint(case)
    token_bytes = context.token_bytes()
    parts = [_score(context, frozen, step, token_bytes, False) for step in range(window.start, window.stop)]
    clean = partial(_score, context, frozen, token_bytes=token_bytes, baseline=True)
    baseline = read_baseline(clean, (case.first_step, window.start), config.attribution)
    columns = concatenate(parts + baseline)
    told = context.agree(lambda: _conclude(case, context, config, (frozen, columns, len(baseline))).to_json())
    return Verdict.from_json(told)


def _load_frozen(case: Case, context: InvestigationContext) -> FrozenModel | None:
    """The newest checkpoint before the window. A spike that came back gets one older than those that earlier tries went
    back to, while there is one: they may hold its cause."""
    window = case.window
    tried = tried_checkpoints(window, case.rollbacks, finite=case.finite)
    older = context.load_frozen(min(window.start, min(tried) - 1)) if tried else None
    return context.load_frozen(window.start) if older is None else older


def _facts(case: Case) -> dict[str, Any]:
    window = case.window
    return {
        "kind": "verdict",
        "window": {"start": window.start, "alarm": window.alarm, "stop": window.stop},
        "finite": case.finite,
        "raised": case.raised.to_json(),
    }


def _without_checkpoint(case: Case) -> Verdict:
    report = {**_facts(case), "why": "no checkpoint at or before the window"}
    if case.finite:
        return Verdict("report", "reported", report={**report, "action": "report", "outcome": "reported"})
    advice = (
        f"a valid checkpoint with at most {case.window.start} steps: retention (checkpoint.keep_last, ...) keeps "
        "the newest one before a window, unless it was damaged or spikes.lead_steps has grown since"
    )
    told = {**report, "advice": advice}
    return Verdict("give_up", "given_up", report={**told, "action": "give_up", "outcome": "given_up"})


def _conclude(
    case: Case, context: InvestigationContext, config: SpikeConfig, scored: tuple[FrozenModel, SegmentColumns, int]
) -> Verdict:
    """From the scored table (and the number of baseline steps in it) to the verdict."""
    frozen, columns, baseline_steps = scored
    window, report, sources = case.window, _facts(case), context.source_names()
    found: Attribution | None = None
    clean = int(np.count_nonzero(clean_rows(columns)))
    if clean >= LEAST_BASELINE and not columns.baseline_S.all():
        found = attribute(columns, config.attribution)
    first, stop = context.positions_of_steps(window.start, window.stop)
    report["checkpoint_step"] = frozen.step
    report["baseline"] = {"steps": baseline_steps, "segments": clean}
    if found is not None:
        report["window_tokens"], report["flagged_tokens"] = found.window_tokens, found.flagged_tokens
        report["sources"] = _per_source(sources, columns, found)
        report["documents"] = _documents(context, sources, columns, found)
    finding = Finding(frozen.step, frozen.next_position, (first, stop), sources, columns, found)
    return decide(case, finding, config, report)
