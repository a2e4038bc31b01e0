"""The attribution rule on synthetic columns with known culprits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.spikes.attribute import (
    CLIP,
    EVIDENCE,
    WEIGHTS,
    SegmentColumns,
    attribute,
    clean_rows,
    concatenate,
    enough_baseline,
    evidence,
    loss_z,
)
from train.spikes.config import AttributionConfig

CONFIG = AttributionConfig()
POISON = {
    # kind: shift of loss, of head gradient (factor), entropy, order gap, compression and repetition, as measured
    "noise": (3.0, 1.6, 1.0, 0.05, 0.9, 0.0),
    "repeat": (-2.5, 3.0, -3.0, 1.3, 0.05, 0.95),
    "shuffled": (2.2, 1.5, 0.0, 0.1, 0.75, 0.0),
}


def _segments(
    r: np.random.Generator, count: int, source: int, baseline: bool, kind: str | None = None, first: int = 1
) -> SegmentColumns:
    n = np.maximum(2, r.lognormal(4.2, 0.9, count)).astype(np.int64).clip(2, 255)
    between = r.normal(0, 0.4, count)
    loss = 3.6 + 0.3 * (source % 3) + between + r.normal(0, 1, count) * np.sqrt(6.0 / n)
    entropy = np.minimum(np.log(n), 4.2) + r.normal(0, 0.2, count)
    order = 1.5 + r.normal(0, 0.3, count) + r.normal(0, 1, count) / np.sqrt(n)
    pull = np.exp(r.normal(0, 0.1, count)) * (1.0 + 2.0 / np.sqrt(n))
    squeeze = 0.45 + r.normal(0, 0.05, count) + 3.0 / n
    repeated = r.beta(1.5, 8.0, count)
    if kind is not None:
        d_loss, factor, d_entropy, gap, ratio, echo = POISON[kind]
        loss, pull, entropy = loss + d_loss, pull * factor, np.maximum(entropy + d_entropy, 0.0)
        order, squeeze = gap + r.normal(0, 0.05, count), np.full(count, ratio) + 3.0 / n
        repeated = np.full(count, echo)
    return SegmentColumns(
        source_S=np.full(count, source, np.int32),
        document_S=np.arange(first, first + count, dtype=np.uint64),
        step_S=np.zeros(count, np.int64),
        sample_S=np.zeros(count, np.int64),
        num_labels_S=n,
        baseline_S=np.full(count, baseline),
        loss_S=loss,
        token_variance_S=np.full(count, 6.0) * r.uniform(0.7, 1.3, count),
        head_grad_S=pull * np.sqrt(n),
        shuffled_S=loss + order,
        entropy_S=entropy,
        squeeze_S=squeeze,
        repeated_S=repeated,
    )


def _baseline(r: np.random.Generator, per_source: int = 400, sources: int = 3) -> list[SegmentColumns]:
    return [_segments(r, per_source, s, True) for s in range(sources)]


def _recall_and_false(columns: SegmentColumns, flagged: np.ndarray, poison_from: int) -> tuple[float, float]:
    poison = columns.document_S >= poison_from
    window = ~columns.baseline_S
    n = columns.num_labels_S
    return (
        float(n[flagged & poison].sum() / n[poison].sum()),
        float(n[flagged & ~poison].sum() / n[window & ~poison].sum()),
    )


@pytest.mark.parametrize("seed", range(5))
def test_scattered_poison_is_found_and_innocents_are_spared(seed: int) -> None:
    r = np.random.default_rng(seed)
    parts = _baseline(r) + [_segments(r, 60, s, False, first=10_000 * (s + 1)) for s in range(3)]
    parts += [
        _segments(r, 10, s, False, kind, 10**6 + 1000 * s + 100 * k) for s in range(3) for k, kind in enumerate(POISON)
    ]
    columns = concatenate(parts)
    found = attribute(columns, CONFIG)
    recall, false = _recall_and_false(columns, found.flagged_S, 10**6)
    assert recall >= 0.94
    assert false <= 0.03
    assert found.whole_sources == ()
    assert set(found.documents) == set(columns.document_S[found.flagged_S].tolist())
    assert found.flagged_tokens == int(columns.num_labels_S[found.flagged_S].sum())
    assert not found.flagged_S[columns.baseline_S].any()


def test_a_source_without_history_is_flagged_whole_or_not_at_all() -> None:
    r = np.random.default_rng(1)
    window = [_segments(r, 60, s, False, first=10_000 * (s + 1)) for s in range(3)]
    planted = [_segments(r, 15, 7, False, kind, 10**6 + 100 * k) for k, kind in enumerate(POISON)]
    planted.append(_segments(r, 15, 7, False, None, 10**6 + 900))  # some of it looks innocent
    good = _segments(r, 60, 8, False, None, 2 * 10**6)
    columns = concatenate([*_baseline(r), *window, *planted, good])
    found = attribute(columns, CONFIG)
    assert found.whole_sources == (7,)
    assert found.flagged_S[columns.source_S == 7].all()
    assert found.odd_share[7] > 0.2 > found.odd_share[8]
    assert not any(10**6 <= d < 2 * 10**6 for d in found.documents)


def test_a_few_early_segments_are_no_history() -> None:
    r = np.random.default_rng(2)
    early = _segments(r, 5, 7, True, "noise", 5 * 10**6)
    planted = _segments(r, 30, 7, False, "noise", 10**6)
    columns = concatenate([*_baseline(r), early, *[_segments(r, 50, s, False) for s in range(3)], planted])
    assert attribute(columns, CONFIG).whole_sources == (7,)


def test_a_handful_of_documents_is_no_verdict_on_a_source() -> None:
    r = np.random.default_rng(8)
    window = [_segments(r, 60, s, False, first=10_000 * (s + 1)) for s in range(3)]
    few = [_segments(r, 4, 7, False, "noise", 10**6), _segments(r, 2, 7, False, None, 10**6 + 50)]
    found = attribute(concatenate([*_baseline(r), *window, *few]), CONFIG)
    assert found.odd_share[7] > CONFIG.source_share
    assert found.whole_sources == ()
    assert {d for d in found.documents if d >= 10**6} == set(range(10**6, 10**6 + 4))


def test_a_document_is_judged_by_the_token_weighted_mean_of_its_segments() -> None:
    r = np.random.default_rng(3)
    one = _segments(r, 2, 0, False, "noise", 10**6)
    one = dataclasses.replace(one, document_S=np.array([9, 9], np.uint64), num_labels_S=np.array([100, 300]))
    columns = concatenate([*_baseline(r), one])
    found = attribute(columns, CONFIG)
    pieces = evidence(columns, CONFIG)
    total = sum(WEIGHTS.values())
    own = np.sqrt(sum(WEIGHTS[name] * column[-2:] ** 2 for name, column in pieces.items()) / total)
    assert found.score_S[-2:] == pytest.approx([np.average(own, weights=[100, 300])] * 2)


def test_clean_tails_are_calibrated() -> None:
    """About 5 % of clean segments exceed 1.0 in every piece of evidence, whatever its scale."""
    r = np.random.default_rng(4)
    columns = concatenate(_baseline(r, 800))
    for name, column in evidence(columns, CONFIG).items():
        share = float((column > 1.0).mean())
        assert 0.03 <= share <= 0.07, name
        assert column.min() >= 0
        assert column.max() <= CLIP


def test_short_segments_are_not_odd_by_nature() -> None:
    r = np.random.default_rng(5)
    columns = concatenate([*_baseline(r, 600), *[_segments(r, 300, s, False, first=10_000 * s) for s in range(3)]])
    window, short, long = ~columns.baseline_S, columns.num_labels_S < 20, columns.num_labels_S >= 64
    ours = evidence(columns, CONFIG)["surprise"] > 1.0
    naive = np.abs(columns.loss_S - np.median(columns.loss_S))
    naive_odd = naive > np.quantile(naive[columns.baseline_S & long], 0.95)
    assert ours[window & short].mean() < 0.18
    assert naive_odd[window & short].mean() > 1.5 * ours[window & short].mean()


def test_one_repeat_is_nothing_where_clean_text_repeats_nothing() -> None:
    """Short documents: hardly any holds a run of three tokens twice, so neither scale nor quantile says a thing."""
    r = np.random.default_rng(3)
    parts = [*_baseline(r), _segments(r, 40, 0, False, first=5000)]
    columns = concatenate(parts)
    few = r.random(len(columns)) < 0.03
    odd = np.flatnonzero(columns.document_S == 5007)
    few[odd] = True
    n = np.maximum(columns.num_labels_S, 40)
    columns = dataclasses.replace(columns, repeated_S=np.where(few, 6.0 / n, 0.0), num_labels_S=n)
    assert (evidence(columns, CONFIG)["echo"] < 2.5).all()
    assert not attribute(columns, CONFIG).flagged_S[odd].any()
    loud = dataclasses.replace(columns, repeated_S=np.where(columns.document_S == 5007, 0.9, columns.repeated_S))
    assert evidence(loud, CONFIG)["echo"][odd].min() == CLIP


def test_every_piece_of_evidence_counts() -> None:
    assert list(EVIDENCE) == list(WEIGHTS) == ["surprise", "pull", "order", "squeeze", "echo"]
    r = np.random.default_rng(6)
    parts = [_segments(r, 30, 0, False, kind, 10**6 + 100 * i) for i, kind in enumerate(("noise", "repeat"))]
    columns = concatenate([*_baseline(r), *parts])
    seen = {name: column[~columns.baseline_S].reshape(2, 30) for name, column in evidence(columns, CONFIG).items()}
    odd = {name: (np.median(column, axis=1) > 1.0).tolist() for name, column in seen.items()}
    assert {name: any(kinds) for name, kinds in odd.items()} == dict.fromkeys(EVIDENCE, True)
    assert odd["order"][0]
    assert odd["echo"] == [False, True]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), shift=st.floats(-50, 50), scale=st.floats(0.01, 100))
def test_the_rule_knows_no_units(seed: int, shift: float, scale: float) -> None:
    """Shifting or scaling a column alike for everybody changes no score that is a z of its own bin."""
    r = np.random.default_rng(seed)
    columns = concatenate([*_baseline(r, 100), _segments(r, 10, 0, False, "noise", 10**6)])
    moved = dataclasses.replace(
        columns, head_grad_S=columns.head_grad_S * scale, squeeze_S=columns.squeeze_S * scale + shift
    )
    before, after = evidence(columns, CONFIG), evidence(moved, CONFIG)
    np.testing.assert_allclose(after["pull"], before["pull"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(after["squeeze"], before["squeeze"], rtol=1e-3, atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_row_order_does_not_matter(seed: int) -> None:
    r = np.random.default_rng(seed)
    columns = concatenate(
        [*_baseline(r, 80), *[_segments(r, 20, s, False, "repeat", 10**6 + 100 * s) for s in range(2)]]
    )
    order = r.permutation(len(columns))
    mixed = SegmentColumns(**{f.name: getattr(columns, f.name)[order] for f in dataclasses.fields(columns)})
    a, b = attribute(columns, CONFIG), attribute(mixed, CONFIG)
    assert a.documents == b.documents
    np.testing.assert_allclose(a.score_S[order], b.score_S, rtol=1e-9)


NUMBERS = ("loss_S", "token_variance_S", "head_grad_S", "shuffled_S", "squeeze_S", "repeated_S")


def _one_poisoned(seed: int = 9) -> SegmentColumns:
    """Of the window's 90 documents the last one is noise."""
    r = np.random.default_rng(seed)
    window = [_segments(r, 30, s, False, first=10_000 * (s + 1)) for s in range(3)]
    return concatenate([*_baseline(r), *window, _segments(r, 1, 0, False, "noise", 10**6)])


def _broken(columns: SegmentColumns, row: int, value: float, names: tuple[str, ...]) -> SegmentColumns:
    changed = {name: getattr(columns, name).copy() for name in names}
    for column in changed.values():
        column[row] = value
    return dataclasses.replace(columns, **changed)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("names", [*((name,) for name in NUMBERS), NUMBERS])
def test_a_baseline_row_that_is_no_number_is_left_out(value: float, names: tuple[str, ...]) -> None:
    columns = _one_poisoned()
    without = SegmentColumns(**{f.name: np.delete(getattr(columns, f.name), 17) for f in dataclasses.fields(columns)})
    found, wanted = attribute(_broken(columns, 17, value, names), CONFIG), attribute(without, CONFIG)
    assert found.documents == wanted.documents == (10**6,)
    assert np.delete(found.score_S, 17).tobytes() == wanted.score_S.tobytes()
    assert np.isfinite(found.score_S).all()
    assert (found.flagged_tokens, found.window_tokens) == (wanted.flagged_tokens, wanted.window_tokens)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("names", [*((name,) for name in NUMBERS), NUMBERS])
def test_a_document_whose_own_numbers_overflow_is_flagged(value: float, names: tuple[str, ...]) -> None:
    """Broken numbers are as odd as it gets, in every piece; what else is in the window is judged as before."""
    columns = _one_poisoned()
    found, wanted = attribute(_broken(columns, -1, value, names), CONFIG), attribute(columns, CONFIG)
    assert found.documents == (10**6,)
    assert found.score_S[-1] == CLIP
    assert {name: float(piece[-1]) for name, piece in found.evidence.items()} == dict.fromkeys(EVIDENCE, CLIP)
    assert found.score_S[:-1].tobytes() == wanted.score_S[:-1].tobytes()
    assert found.flagged_tokens == wanted.flagged_tokens


def test_one_broken_segment_of_many_flags_its_document() -> None:
    columns = _one_poisoned()
    rows = np.flatnonzero(~columns.baseline_S)[:10]
    document_S = columns.document_S.copy()
    document_S[rows] = 77
    columns = dataclasses.replace(columns, document_S=document_S)
    assert 77 not in attribute(columns, CONFIG).documents
    found = attribute(_broken(columns, int(rows[3]), np.nan, ("loss_S",)), CONFIG)
    assert 77 in found.documents
    assert (found.score_S[rows] == CLIP).all()


def test_a_new_source_of_broken_documents_is_flagged_whole() -> None:
    r = np.random.default_rng(11)
    planted = _segments(r, 30, 7, False, "noise", 10**6)
    planted = dataclasses.replace(planted, loss_S=np.full(30, np.nan))
    columns = concatenate(
        [*_baseline(r), *[_segments(r, 30, s, False, first=10_000 * (s + 1)) for s in range(3)], planted]
    )
    assert attribute(columns, CONFIG).whole_sources == (7,)


def test_a_baseline_of_nothing_but_broken_rows_is_none() -> None:
    r = np.random.default_rng(12)
    columns = concatenate([*_baseline(r, 300), *[_segments(r, 30, s, False) for s in range(3)]])
    broken = dataclasses.replace(columns, loss_S=np.where(columns.baseline_S, np.nan, columns.loss_S))
    with pytest.raises(ValueError, match="baseline"):
        attribute(broken, CONFIG)
    assert not clean_rows(broken).any()
    assert np.isnan(loss_z(broken)).all()
    assert not enough_baseline(broken, [0, 1, 2], CONFIG)
    assert enough_baseline(columns, [0, 1, 2], CONFIG)


def test_z_of_the_loss_outlives_one_broken_row() -> None:
    """``replay`` prints it beside each segment."""
    columns = _one_poisoned()
    z = loss_z(_broken(columns, 17, np.nan, NUMBERS))
    assert np.isfinite(np.delete(z, 17)).all()
    assert loss_z(columns)[-1] == pytest.approx(z[-1], rel=0.05)


def test_no_baseline_is_an_error_and_too_little_is_seen() -> None:
    r = np.random.default_rng(7)
    with pytest.raises(ValueError, match="baseline"):
        attribute(_segments(r, 10, 0, False), CONFIG)
    table = concatenate(_baseline(r, 300))
    assert enough_baseline(table, [0, 1, 2], CONFIG)
    assert not enough_baseline(table, [0, 1, 2, 3], CONFIG)
    assert not enough_baseline(concatenate(_baseline(r, 299)), [0, 1, 2], CONFIG)
