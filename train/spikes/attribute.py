"""Which documents of a window look unlike the clean steps before it: a pure numpy rule over a table of segments.

Five pieces of evidence per segment, all taken with the frozen weights of one checkpoint, each a robust z against the
clean baseline of the segment's own source (of all sources where its source has no history there):

    surprise   loss; its scale is sqrt(between-document variance + token variance / n): short segments are not odd by
               nature
    pull       log(head gradient norm / sqrt(n)), by length bin
    excess     loss - entropy of the segment's own tokens: the model predicts no better than the bag of tokens, or far
               worse
    order      loss of the same tokens shuffled - loss, low side: order says nothing in noise and in repetition alike
    squeeze    compression ratio of the bytes

Each |z| is divided by its own clean 95 % quantile, so 1.0 means "as odd as the oddest 5 % of clean segments"; the
score is the root mean square of the five, each cut off at ``CLIP``. A document gets the token-weighted mean of its
segments in the window. A source without history (fewer than ``_LEAST`` clean segments, but ``source_documents``
documents in the window) is flagged whole when two fifths of its tokens are odd and 15 % belong to flagged documents: a
good new domain looks odd too, but few of its documents look that odd.

Legend: S segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .config import AttributionConfig

__all__ = ["EVIDENCE", "Attribution", "SegmentColumns", "attribute", "concatenate", "enough_baseline", "evidence"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CLIP = 5.0
"""No single piece of evidence counts for more than this."""
WHOLE_SOURCE_SCORE = 9.0
"""The score a segment carries when its whole source is flagged."""
_LEAST = 12
"""A location and scale need at least so many segments; below, those of all sources stand in."""
_LEAST_TAIL = 60
"""A quantile of one source needs at least so many segments."""
_LONG_ENOUGH = 48
"""Between-document variance is read off segments of at least so many labels."""
_SCALE_FLOOR = 0.25
"""A source's scale is at least this share of the pooled one."""
_TINY = 1e-9


@dataclass(frozen=True)
class SegmentColumns:
    """One row per scored segment; all arrays of the same length.

    Attributes:
        source_S: index into ``sources``. document_S: document ids. step_S: the step that held it.
        sample_S: source sample number. num_labels_S: labels, at least 1.
        baseline_S: True for clean baseline segments, False for those of the window.
        loss_S: mean loss, nats. token_variance_S: variance of the token losses.
        head_grad_S: Frobenius norm of the head gradient of the summed loss.
        shuffled_S: mean loss of the same tokens shuffled. entropy_S: of the token histogram, nats.
        squeeze_S: compressed bytes / bytes.
    """

    source_S: NDArray[np.int32]
    document_S: NDArray[np.uint64]
    step_S: NDArray[np.int64]
    sample_S: NDArray[np.int64]
    num_labels_S: NDArray[np.int64]
    baseline_S: Mask
    loss_S: Floats
    token_variance_S: Floats
    head_grad_S: Floats
    shuffled_S: Floats
    entropy_S: Floats
    squeeze_S: Floats

    def __len__(self) -> int:
        return len(self.source_S)


@dataclass(frozen=True)
class Attribution:
    """What the rule found.

    Attributes:
        score_S: per row of the table (baseline rows keep their own segment's score).
        flagged_S: rows of the window that are flagged.
        documents: flagged document ids outside of wholly flagged sources, ascending.
        whole_sources: indices of sources flagged whole.
        window_tokens, flagged_tokens: labels in the window, and those flagged.
        odd_share: per source without history the share of its tokens that is odd.
        evidence: the five calibrated columns, for reports.
    """

    score_S: Floats
    flagged_S: Mask
    documents: tuple[int, ...]
    whole_sources: tuple[int, ...]
    window_tokens: int
    flagged_tokens: int
    odd_share: dict[int, float]
    evidence: dict[str, Floats]


def concatenate(parts: Sequence[SegmentColumns]) -> SegmentColumns:
    """The rows of several tables in order (at least one)."""
    return SegmentColumns(
        **{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(SegmentColumns)}
    )


def enough_baseline(columns: SegmentColumns, sources: Sequence[int], config: AttributionConfig) -> bool:
    """Whether the baseline rows suffice: in all, and of each of ``sources``."""
    own = columns.source_S[columns.baseline_S]
    counts = [int(np.count_nonzero(own == source)) for source in sources]
    return len(own) >= config.baseline_segments and all(c >= config.baseline_source_segments for c in counts)


def _location_scale(x: Floats) -> tuple[float, float]:
    middle = float(np.median(x))
    return middle, 1.4826 * float(np.median(np.abs(x - middle))) + _TINY


def _z_binned(c: SegmentColumns, x: Floats, config: AttributionConfig) -> Floats:
    """Robust z by source and length bin; a bin with too few own segments takes the pooled location and scale."""
    long_S = c.num_labels_S >= config.long_tokens
    z = np.full(len(x), np.nan)
    for in_bin in (long_S, ~long_S):
        reference = c.baseline_S & in_bin
        pooled = _location_scale(x[reference] if reference.sum() >= _LEAST else x[c.baseline_S])
        for source in np.unique(c.source_S[in_bin]):
            mine = in_bin & (c.source_S == source)
            own = reference & mine
            middle, scale = _location_scale(x[own]) if own.sum() >= _LEAST else pooled
            z[mine] = (x[mine] - middle) / max(scale, _SCALE_FLOOR * pooled[1])
    return z


def _between_documents(c: SegmentColumns, rows: Mask) -> tuple[float, float, float]:
    """Location of the loss, its between-document variance, and the mean token variance, of the given baseline rows."""
    long_rows = rows & (c.num_labels_S >= _LONG_ENOUGH)
    if not long_rows.any():
        long_rows = rows
    middle, scale = _location_scale(c.loss_S[long_rows])
    token_variance = float(np.average(np.maximum(c.token_variance_S[rows], 0.05), weights=c.num_labels_S[rows]))
    between = scale * scale - token_variance / float(np.median(c.num_labels_S[long_rows]))
    return middle, max(between, (0.4 * scale) ** 2), token_variance


def _z_loss(c: SegmentColumns) -> Floats:
    """Loss as z whose variance is between-document variance + token variance / n."""
    pooled = _between_documents(c, c.baseline_S)
    z = np.full(len(c), np.nan)
    for source in np.unique(c.source_S):
        mine = c.source_S == source
        own = c.baseline_S & mine
        enough = np.count_nonzero(own & (c.num_labels_S >= _LONG_ENOUGH)) >= _LEAST
        middle, between, token_variance = _between_documents(c, own) if enough else pooled
        z[mine] = (c.loss_S[mine] - middle) / np.sqrt(between + token_variance / c.num_labels_S[mine])
    return z


def _calibrate(c: SegmentColumns, z: Floats, config: AttributionConfig, low_side: bool = False) -> Floats:
    """|z| (or -z) over its clean quantile, per source where the source has enough clean segments."""
    oddness = -z if low_side else np.abs(z)
    pooled = max(float(np.quantile(oddness[c.baseline_S], config.quantile)), _TINY)
    out: Floats = oddness / pooled
    for source in np.unique(c.source_S):
        mine = c.source_S == source
        own = mine & c.baseline_S
        if own.sum() >= _LEAST_TAIL:
            out[mine] = oddness[mine] / max(float(np.quantile(oddness[own], config.quantile)), 0.5 * pooled)
    return out


def _surprise(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, _z_loss(c), config)


def _pull(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, _z_binned(c, np.log(c.head_grad_S / np.sqrt(c.num_labels_S) + _TINY), config), config)


def _excess(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, _z_binned(c, c.loss_S - c.entropy_S, config), config)


def _order(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, _z_binned(c, c.shuffled_S - c.loss_S, config), config, low_side=True)


def _squeeze(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, _z_binned(c, c.squeeze_S, config), config)


EVIDENCE: dict[str, Callable[[SegmentColumns, AttributionConfig], Floats]] = {
    "surprise": _surprise,
    "pull": _pull,
    "excess": _excess,
    "order": _order,
    "squeeze": _squeeze,
}
"""Every piece of evidence; each returns one calibrated column, 1.0 = the clean quantile."""


def evidence(columns: SegmentColumns, config: AttributionConfig) -> dict[str, Floats]:
    """The calibrated columns, cut off at ``CLIP`` (and at 0 below for one-sided evidence)."""
    return {name: np.clip(piece(columns, config), 0.0, CLIP) for name, piece in EVIDENCE.items()}


def _by_document(c: SegmentColumns, score_S: Floats) -> Floats:
    """Window rows: the token-weighted mean over their document's rows in the window."""
    out = score_S.copy()
    rows = np.flatnonzero(~c.baseline_S)
    if not len(rows):
        return out
    _, inverse = np.unique(c.document_S[rows], return_inverse=True)
    weights = c.num_labels_S[rows].astype(np.float64)
    means = np.bincount(inverse, weights * score_S[rows]) / np.bincount(inverse, weights)
    out[rows] = means[inverse]
    return out


def attribute(columns: SegmentColumns, config: AttributionConfig) -> Attribution:
    """Applies the rule.

    Raises:
        ValueError: when the table holds no baseline row: there is nothing to compare with.
    """
    if not columns.baseline_S.any():
        raise ValueError("attribution needs baseline segments")
    pieces = evidence(columns, config)
    score_S = _by_document(columns, np.sqrt(np.mean([column**2 for column in pieces.values()], axis=0)))
    window_S = ~columns.baseline_S
    whole: list[int] = []
    odd_share: dict[int, float] = {}
    for source in np.unique(columns.source_S[window_S]):
        mine = window_S & (columns.source_S == source)
        if np.count_nonzero(columns.baseline_S & (columns.source_S == source)) >= _LEAST:
            continue  # it has a history
        weights = columns.num_labels_S[mine]
        odd_share[int(source)] = float(np.average(score_S[mine] > config.source_threshold, weights=weights))
        flagged_share = float(np.average(score_S[mine] > config.threshold, weights=weights))
        enough = len(np.unique(columns.document_S[mine])) >= config.source_documents
        if enough and odd_share[int(source)] > config.source_share and flagged_share > config.source_flagged_share:
            whole.append(int(source))
            score_S[mine] = WHOLE_SOURCE_SCORE
    flagged_S = window_S & (score_S > config.threshold)
    single = flagged_S & ~np.isin(columns.source_S, whole)
    return Attribution(
        score_S=score_S,
        flagged_S=flagged_S,
        documents=tuple(int(d) for d in np.unique(columns.document_S[single])),
        whole_sources=tuple(whole),
        window_tokens=int(columns.num_labels_S[window_S].sum()),
        flagged_tokens=int(columns.num_labels_S[flagged_S].sum()),
        odd_share=odd_share,
        evidence=pieces,
    )
