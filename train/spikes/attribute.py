"""Which documents of a window look unlike the clean steps before it: a pure numpy rule over a table of segments.

Five pieces of evidence per segment, three of them taken with the frozen weights of one checkpoint, each a robust z
against the clean baseline:

    surprise   loss, within the source; its scale is sqrt(between-document variance + token variance / n): short
               segments are not odd by nature
    pull       log(head gradient norm / sqrt(n)), within the source, by length bin
    order      log(loss of the same tokens shuffled - loss), low side, of all sources by length bin: order says nothing
               in noise, and something in any text that somebody wrote, whatever its source
    squeeze    compression ratio of the bytes, within the source, by length bin
    echo       share of runs of three tokens that occurred before in the segment, high side, within the source

"Within the source" means against the clean segments of the segment's own source, of all sources where it has no history
there. Each z is divided by its own clean 95 % quantile, so 1.0 means "as odd as the oddest 5 % of clean segments", and
cut off at ``CLIP``; the score is the root mean square of the five by ``WEIGHTS``: order and echo count double, since
little else tells poison from a good new domain. A document gets the token-weighted mean of its segments in the window.
A source without history (fewer than ``_LEAST`` clean segments, but ``source_documents`` documents in the window) is
flagged whole when ``source_share`` of its tokens are odd and ``source_flagged_share`` belong to flagged documents: a
good new domain looks odd too, but few of its documents look that odd.

A row with a number that is none (a loss that overflows) is no reference and has a score of ``CLIP`` in every piece; a
document of the window that holds one has that score as a whole: what breaks sound weights is as odd as it gets. How
this came about: docs/attribution.md.

Legend: S segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .config import AttributionConfig

__all__ = [
    "EVIDENCE",
    "WEIGHTS",
    "Attribution",
    "SegmentColumns",
    "attribute",
    "clean_rows",
    "concatenate",
    "enough_baseline",
    "evidence",
    "loss_z",
]

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
_LEAST_ORDER = 0.1
"""Nats; what order says below this is nothing. Noise lies below it, a language that the model does not know at 0.5."""
_ORDER_TOKENS = 32
"""Order counts in full from so many labels on."""
_ECHO_TOKENS = 32
"""Below so many labels hardly anything can repeat: such segments are no reference, and count half."""
_ECHO_FLOOR = 0.5
"""A source's scale of repetition is at least this share of the pooled one."""
_ECHO_SCALE = 0.075
"""Least scale of repetition: sources of real text have 0.08 to 0.14, short texts that repeat nothing would have 0."""


@dataclass(frozen=True)
class SegmentColumns:
    """One row per scored segment; all arrays of the same length.

    Attributes:
        source_S: index into ``sources``. document_S: document ids. step_S: the step that held it.
        sample_S: source sample number. num_labels_S: labels, at least 1.
        baseline_S: True for clean baseline segments, False for those of the window.
        loss_S: mean loss, nats. token_variance_S: variance of the token losses.
        head_grad_S: Frobenius norm of the head gradient of the summed loss.
        shuffled_S: mean loss of the same tokens shuffled. entropy_S: of the token histogram,
        nats; no evidence, a figure for comparisons.
        squeeze_S: compressed bytes / bytes. repeated_S: share of runs of three tokens that occurred before.
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
    repeated_S: Floats

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


def _rows(c: SegmentColumns, rows: Mask) -> SegmentColumns:
    return SegmentColumns(**{f.name: getattr(c, f.name)[rows] for f in fields(SegmentColumns)})


def _sound_rows(c: SegmentColumns) -> Mask:
    """Rows whose numbers all are some."""
    numbers = (c.loss_S, c.token_variance_S, c.head_grad_S, c.shuffled_S, c.squeeze_S, c.repeated_S)
    sound_S: Mask = np.logical_and.reduce([np.isfinite(column) for column in numbers])
    return sound_S


def clean_rows(columns: SegmentColumns) -> Mask:
    """The rows that a window is compared with: those of the baseline, but for broken ones."""
    return columns.baseline_S & _sound_rows(columns)


def enough_baseline(columns: SegmentColumns, sources: Sequence[int], config: AttributionConfig) -> bool:
    """Whether the baseline rows suffice: in all, and of each of ``sources``."""
    own = columns.source_S[clean_rows(columns)]
    counts = [int(np.count_nonzero(own == source)) for source in sources]
    return len(own) >= config.baseline_segments and all(c >= config.baseline_source_segments for c in counts)


def _location_scale(x: Floats) -> tuple[float, float]:
    middle = float(np.median(x))
    return middle, 1.4826 * float(np.median(np.abs(x - middle))) + _TINY


def _z_binned(c: SegmentColumns, x: Floats, config: AttributionConfig, by_source: bool = True) -> Floats:
    """Robust z by length bin, and by source where the source has enough segments in the bin."""
    long_S = c.num_labels_S >= config.long_tokens
    z = np.full(len(x), np.nan)
    for in_bin in (long_S, ~long_S):
        reference = c.baseline_S & in_bin
        pooled = _location_scale(x[reference] if reference.sum() >= _LEAST else x[c.baseline_S])
        if not by_source:
            z[in_bin] = (x[in_bin] - pooled[0]) / pooled[1]
            continue
        for source in np.unique(c.source_S[in_bin]):
            mine = in_bin & (c.source_S == source)
            own = reference & mine
            middle, scale = _location_scale(x[own]) if own.sum() >= _LEAST else pooled
            z[mine] = (x[mine] - middle) / max(scale, _SCALE_FLOOR * pooled[1])
    return z


def _z_echo(c: SegmentColumns) -> Floats:
    """Repetition as robust z by source; the logarithm stretches what is repeated nearly whole."""
    x = -np.log(1.05 - c.repeated_S)
    long_S = c.num_labels_S >= _ECHO_TOKENS
    reference = c.baseline_S & long_S
    if not reference.any():
        reference = c.baseline_S
    pooled = _location_scale(x[reference])
    z = np.full(len(c), np.nan)
    for source in np.unique(c.source_S):
        mine = c.source_S == source
        own = reference & mine
        middle, scale = _location_scale(x[own]) if own.sum() >= _LEAST else pooled
        z[mine] = (x[mine] - middle) / max(scale, _ECHO_FLOOR * pooled[1], _ECHO_SCALE)
    z[~long_S] *= 0.5
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


def loss_z(c: SegmentColumns) -> Floats:
    """Loss of every row as z against the clean rows of its source, of all where they are too few (NaN without any); its
    variance is between-document variance + token variance / n."""
    clean_S = clean_rows(c)
    z = np.full(len(c), np.nan)
    if not clean_S.any():
        return z
    pooled = _between_documents(c, clean_S)
    for source in np.unique(c.source_S):
        mine = c.source_S == source
        own = clean_S & mine
        enough = np.count_nonzero(own & (c.num_labels_S >= _LONG_ENOUGH)) >= _LEAST
        middle, between, token_variance = _between_documents(c, own) if enough else pooled
        z[mine] = (c.loss_S[mine] - middle) / np.sqrt(between + token_variance / c.num_labels_S[mine])
    return z


def _calibrate(
    c: SegmentColumns, oddness: Floats, config: AttributionConfig, floor: float = 0.5, least: float = _TINY
) -> Floats:
    """Oddness over its clean quantile, at least ``least``; per source where the source has enough clean segments, and
    then at least ``floor`` of all sources' quantile."""
    pooled = max(float(np.quantile(oddness[c.baseline_S], config.quantile)), least)
    out: Floats = oddness / pooled
    for source in np.unique(c.source_S):
        mine = c.source_S == source
        own = mine & c.baseline_S
        if own.sum() >= _LEAST_TAIL:
            out[mine] = oddness[mine] / max(float(np.quantile(oddness[own], config.quantile)), floor * pooled, least)
    return out


def _surprise(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, np.abs(loss_z(c)), config)


def _pull(c: SegmentColumns, config: AttributionConfig) -> Floats:
    pull_S = np.log(c.head_grad_S / np.sqrt(c.num_labels_S) + _TINY)
    return _calibrate(c, np.abs(_z_binned(c, pull_S, config)), config)


def _order(c: SegmentColumns, config: AttributionConfig) -> Floats:
    said_S = np.log(np.maximum(c.shuffled_S - c.loss_S, 0.0) + _LEAST_ORDER)
    weight_S = np.minimum(1.0, c.num_labels_S / _ORDER_TOKENS)  # a few tokens have hardly another order
    return _calibrate(c, -weight_S * _z_binned(c, said_S, config, by_source=False), config, floor=1.0)


def _squeeze(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, np.abs(_z_binned(c, c.squeeze_S, config)), config)


def _echo(c: SegmentColumns, config: AttributionConfig) -> Floats:
    return _calibrate(c, _z_echo(c), config, least=1.0)  # clean text that repeats nothing has a quantile of 0


EVIDENCE: dict[str, Callable[[SegmentColumns, AttributionConfig], Floats]] = {
    "surprise": _surprise,
    "pull": _pull,
    "order": _order,
    "squeeze": _squeeze,
    "echo": _echo,
}
"""Every piece of evidence; each returns one calibrated column, 1.0 = the clean quantile."""
WEIGHTS = {"surprise": 1.0, "pull": 1.0, "order": 2.0, "squeeze": 1.0, "echo": 2.0}
"""What the square of each piece counts in the mean."""


def evidence(columns: SegmentColumns, config: AttributionConfig) -> dict[str, Floats]:
    """The calibrated columns, cut off at ``CLIP`` (and at 0 below for one-sided evidence); ``CLIP`` of broken rows."""
    sound_S = _sound_rows(columns)
    kept = columns if sound_S.all() else _rows(columns, sound_S)
    out: dict[str, Floats] = {}
    for name, piece in EVIDENCE.items():
        out[name] = np.full(len(columns), CLIP)
        out[name][sound_S] = np.clip(piece(kept, config), 0.0, CLIP)
    return out


def _combined(pieces: dict[str, Floats]) -> Floats:
    """Weighted root mean square of the evidence."""
    weights = [WEIGHTS[name] for name in pieces]
    score_S: Floats = np.sqrt(np.average([column**2 for column in pieces.values()], axis=0, weights=weights))
    return score_S


def _by_document(c: SegmentColumns, score_S: Floats) -> Floats:
    """Window rows: the token-weighted mean over their document's rows in the window; ``CLIP`` where one is broken."""
    out = score_S.copy()
    rows = np.flatnonzero(~c.baseline_S)
    if not len(rows):
        return out
    _, inverse = np.unique(c.document_S[rows], return_inverse=True)
    weights = c.num_labels_S[rows].astype(np.float64)
    means = np.bincount(inverse, weights * score_S[rows]) / np.bincount(inverse, weights)
    means[np.unique(inverse[~_sound_rows(c)[rows]])] = CLIP
    out[rows] = means[inverse]
    return out


def attribute(columns: SegmentColumns, config: AttributionConfig) -> Attribution:
    """Applies the rule.

    Raises:
        ValueError: when the table holds no sound baseline row: there is nothing to compare with.
    """
    clean_S = clean_rows(columns)
    if not clean_S.any():
        raise ValueError("attribution needs baseline segments")
    pieces = evidence(columns, config)
    score_S = _by_document(columns, _combined(pieces))
    window_S = ~columns.baseline_S
    whole: list[int] = []
    odd_share: dict[int, float] = {}
    for source in np.unique(columns.source_S[window_S]):
        mine = window_S & (columns.source_S == source)
        if np.count_nonzero(clean_S & (columns.source_S == source)) >= _LEAST:
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
