"""Scores of segments against oracles: autograd, a full V x D gradient, and plain loops."""

from __future__ import annotations

import dataclasses
import zlib

import numpy as np
import pytest
import torch
from support.spikes import SEQ_LEN, VOCABULARY, World, make_batch

from train.spikes import score
from train.spikes.records import FrozenModel
from train.spikes.score import score_batch, shuffle_batch


def _random_model(dim: int, scale: float, seed: int) -> FrozenModel:
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(VOCABULARY, dim, generator=generator)
    weight = torch.randn(VOCABULARY, dim, generator=generator) * 0.3
    return FrozenModel(
        step=0,
        next_position=0,
        hidden=lambda batch: embedding[torch.from_numpy(batch.tokens_BT.astype(np.int64))].cumsum(1) * 0.2,
        head_weight_VD=weight,
        logit_scale=scale,
    )


def _oracle(frozen: FrozenModel, batch: object) -> list[tuple[float, float, float, int]]:
    """(loss, variance, head gradient norm, labels) by autograd, one segment at a time, in table order."""
    hidden = frozen.hidden(batch)  # type: ignore[arg-type]
    table = batch.segments  # type: ignore[attr-defined]
    out = []
    for s in range(len(table)):
        b, start = int(table.sample_index_S[s]), int(table.token_start_S[s])
        stop = start + int(table.num_tokens_S[s])
        labels = torch.from_numpy(batch.labels_BT[b, start:stop].astype(np.int64))  # type: ignore[attr-defined]
        if (labels >= 0).sum() == 0:
            continue
        weight = frozen.head_weight_VD.double().requires_grad_()
        logits = frozen.logit_scale * hidden[b, start:stop].double() @ weight.T
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
        losses.sum().backward()
        known = losses[labels >= 0].detach()
        assert weight.grad is not None
        out.append((float(known.mean()), float(known.var(unbiased=False)), float(weight.grad.norm()), len(known)))
    return out


@pytest.mark.parametrize("dim", [4, 24, 200])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_losses_and_head_gradients_equal_autograd(dim: int, scale: float) -> None:
    batch = World(seed=3, bad_from=0).read_batch(2)
    frozen = _random_model(dim, scale, seed=dim)
    columns = score_batch(frozen, batch, None, baseline=False)
    wanted = _oracle(frozen, batch)
    assert len(columns) == len(wanted) > 8
    got = zip(columns.loss_S, columns.token_variance_S, columns.head_grad_S, columns.num_labels_S, strict=True)
    for have, want in zip(got, wanted, strict=True):
        assert have[0] == pytest.approx(want[0], rel=1e-4)
        assert have[1] == pytest.approx(want[1], rel=1e-3, abs=1e-4)
        assert have[2] == pytest.approx(want[2], rel=1e-3)
        assert have[3] == want[3]


def test_tiled_vocabulary_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = World(seed=4).read_batch(1)
    frozen = _random_model(16, 1.0, seed=1)
    whole = score_batch(frozen, batch, None, baseline=True)
    monkeypatch.setattr(score, "LOGIT_BUDGET", SEQ_LEN * 10)
    monkeypatch.setattr(score, "GRADIENT_TILE", 7)
    monkeypatch.setattr(score, "CHUNK_TOKENS", SEQ_LEN * 3)
    tiled = score_batch(frozen, batch, None, baseline=True)
    for field in dataclasses.fields(whole):
        np.testing.assert_allclose(getattr(tiled, field.name), getattr(whole, field.name), rtol=1e-4, atol=1e-6)


def test_shuffling_keeps_segments_first_tokens_and_label_multisets() -> None:
    batch = World(seed=5).read_batch(7)
    shuffled = shuffle_batch(batch)
    moved = 0
    table = batch.segments
    for s in range(len(table)):
        b, start = int(table.sample_index_S[s]), int(table.token_start_S[s])
        piece = slice(start, start + int(table.num_tokens_S[s]))
        before, after = batch.tokens_BT[b, piece], shuffled.tokens_BT[b, piece]
        assert before[0] == after[0]
        assert sorted(before) == sorted(after)
        if not table.padding_S[s]:
            assert shuffled.labels_BT[b, piece].tolist() == [*after[1:].tolist(), -100]
        moved += int((before != after).any())
    assert moved > 8
    again = shuffle_batch(batch)
    np.testing.assert_array_equal(again.tokens_BT, shuffled.tokens_BT)
    elsewhere = shuffle_batch(dataclasses.replace(batch, positions_B=batch.positions_B + 1))
    assert (elsewhere.tokens_BT != shuffled.tokens_BT).any()


def test_masked_and_padded_segments_are_not_scored() -> None:
    r = np.random.default_rng(0)
    batch = make_batch(
        0, [(0, [(1, r.integers(0, 9, 20)), (2, r.integers(0, 9, 20))]), (1, [(3, r.integers(0, 9, 1))])]
    )
    batch.labels_BT[0, 20:40] = -100  # as the loader masks
    columns = score_batch(_random_model(8, 1.0, 0), batch, None, baseline=False)
    assert columns.document_S.tolist() == [1]


def test_entropy_and_compression_are_those_of_the_segment() -> None:
    tokens = np.array([5, 7, 7, 9, 9, 9, 9])
    names = [bytes([t]) for t in range(VOCABULARY)]
    batch = make_batch(0, [(0, [(11, tokens)])])
    frozen = _random_model(8, 1.0, 0)
    columns = score_batch(frozen, batch, names, baseline=False)
    share = np.array([2, 4]) / 6
    assert columns.entropy_S[0] == pytest.approx(-(share * np.log(share)).sum())
    raw = bytes(tokens.tolist())
    assert columns.squeeze_S[0] == pytest.approx(len(zlib.compress(raw, 6)) / len(raw))
    assert score_batch(frozen, batch, None, False).squeeze_S[0] != columns.squeeze_S[0]


def test_a_batch_without_labels_gives_no_rows() -> None:
    batch = make_batch(0, [(0, [])])
    assert len(score_batch(_random_model(8, 1.0, 0), batch, None, False)) == 0
