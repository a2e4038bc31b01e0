"""Dropout: right shares, independent places, and a mask that is a function of the sample and of nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.synthetic import FakeBatch, fake_batch
from torch.utils.checkpoint import checkpoint

from train.attention import ATTENTION
from train.dropout import drop, layer_keys, resolution
from train.inputs import InputOptions, ModelInputs, to_inputs
from train.model import Decoder, ModelShape
from train.model_config import DropoutConfig
from train.parallel.tensor import Spread
from train.precision import PRECISIONS

CPU = torch.device("cpu")
CONFIG = DropoutConfig(residual=0.2, attention=0.1, embedding=0.1)
SHAPE = ModelShape(vocab_size=50, dim=16, layers=2, heads=4, kv_heads=2, ffn=24, seq_len=24, dropout=CONFIG)
PLACES = ("residual", "attention", "embedding")


def build(shape: ModelShape = SHAPE, precision: str = "fp32") -> Decoder:
    return Decoder(shape, ATTENTION["sdpa_loop"], PRECISIONS[precision]).initialize(1)


def inputs(model: Decoder, batch: FakeBatch, rows: slice = slice(None)) -> ModelInputs:
    return to_inputs(batch, InputOptions(CPU, model.backend, model.precision.compute), rows)  # type: ignore[arg-type]


def mask(position: int, layer: int = 0, site: int = 0, *, seed: int = 17, share: float = 0.3) -> torch.Tensor:
    """True where kept: 96 tokens of 128 features."""
    key_B2 = layer_keys(seed, np.array([position]), [layer], 3)[0, site]
    return drop(torch.ones(1, 96, 128), share, key_B2, torch.arange(96))[0] != 0


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.1, 0.5, 0.9])
def test_the_share_is_right_and_the_mean_stays(share: float) -> None:
    keys_LSB2 = layer_keys(3, np.arange(40), [0], 3)
    x = torch.ones(40, 96, 128)
    out = drop(x, share, keys_LSB2[0, 1], torch.arange(96))
    exact, count = resolution(share) / 65536, x.numel()
    deviation = (exact * (1 - exact) / count) ** 0.5
    assert abs(float((out == 0).double().mean()) - exact) <= 5 * deviation
    assert set(out.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - exact)))}
    assert abs(exact - share) < 1e-5


def test_no_row_or_column_is_favoured() -> None:
    """Kept numbers of each token and each feature, summed over 64 samples, spread as independent draws do."""
    kept = torch.stack([mask(position) for position in range(64)]).double()
    for dims in ((0, 1), (0, 2)):
        counts = kept.sum(dim=dims)
        draws = kept.numel() / len(counts)
        chi_square = float(((counts - draws * 0.7) ** 2 / (draws * 0.7 * 0.3)).sum())
        assert abs(chi_square - len(counts)) < 5 * (2 * len(counts)) ** 0.5


def test_masks_of_different_places_are_unrelated() -> None:
    """Neighbouring positions, layers, sites, seeds, tokens and features: correlations within five deviations of 0."""
    one = mask(1000)
    others = [mask(1001), mask(1000 + (1 << 40)), mask(1000, layer=1), mask(1000, site=1), mask(1000, seed=18)]
    others += [one.roll(1, 0), one.roll(1, 1), one.roll(64, 1), one.roll((1, 1), (0, 1))]
    for other in others:
        found = torch.corrcoef(torch.stack((one.flatten(), other.flatten())).double())[0, 1]
        assert abs(float(found)) < 5 / one.numel() ** 0.5


def test_the_bits_are_frozen() -> None:
    """A run resumed by a later version must find the same masks."""
    packed = np.packbits(mask(123_456, layer=7, site=2).numpy())
    assert packed[:8].tobytes().hex() == "7eeffe58edd59b67"


def test_a_slice_of_tokens_or_features_is_a_slice_of_the_mask() -> None:
    x = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    key_B2 = layer_keys(5, np.array([4, 5, 9]), [1], 3)[0, 0]
    whole = drop(x, 0.3, key_B2, torch.arange(24))
    permuted = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drop(x[:, permuted], 0.3, key_B2, permuted), whole[:, permuted])
    assert torch.equal(drop(x[:, 12:], 0.3, key_B2, torch.arange(12, 24)), whole[:, 12:])
    assert torch.equal(drop(x[:, :, 8:], 0.3, key_B2, torch.arange(24), 8), whole[:, :, 8:])
    assert torch.equal(drop(x[1:], 0.3, key_B2[1:], torch.arange(24)), whole[1:])


@pytest.mark.parametrize("place", PLACES)
def test_each_place_drops_something_in_training_and_nothing_in_evaluation(place: str) -> None:
    only = dataclasses.replace(SHAPE, dropout=DropoutConfig(**{place: 0.5}))
    batch, model, plain = fake_batch(0), build(only), build(dataclasses.replace(SHAPE, dropout=None))
    expected = plain.hidden(inputs(plain, batch))
    assert not torch.allclose(model.hidden(inputs(model, batch)), expected)
    assert torch.equal(model.eval().hidden(inputs(model, batch)), expected)


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_a_sample_does_not_depend_on_its_micro_batch_or_step(precision: str) -> None:
    model, batch = build(precision=precision), fake_batch(0)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if precision == "fp32" else {"rtol": 5e-2, "atol": 5e-2}
    with model.precision.autocast(CPU):
        whole = model.hidden(inputs(model, batch))
        for row in range(len(batch.positions_B)):
            alone = model.hidden(inputs(model, batch, slice(row, row + 1)))
            torch.testing.assert_close(alone, whole[row : row + 1], **tolerance)
        later = dataclasses.replace(batch, positions_B=batch.positions_B + 1)
        assert float((model.hidden(inputs(model, later)) - whole).detach().abs().mean()) > 0.1


def test_the_global_random_state_is_neither_read_nor_moved() -> None:
    model, batch = build(), fake_batch(0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = model.hidden(inputs(model, batch))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(model.hidden(inputs(model, batch)), first)


def test_activation_checkpointing_makes_the_same_masks_again() -> None:
    gradients = []
    for again in (False, True):
        model = build()
        if again:
            model.run_block = lambda block, x, shared: checkpoint(
                block, x, shared, use_reentrant=False, preserve_rng_state=False
            )
        model(inputs(model, fake_batch(0)), torch.tensor(10.0))[0].backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        assert torch.equal(first, second)


class _Group:
    """Rank 1 of 2, as far as masks ask."""

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 1


@pytest.mark.parametrize("sequence", [False, True])
def test_ranks_know_which_tokens_and_heads_are_theirs(sequence: bool) -> None:
    model, batch = build(), fake_batch(0)
    model.spread = Spread(_Group(), sequence)  # type: ignore[arg-type]
    tokens = np.array([0, 1, 2, 3, 20, 21, 22, 23])
    given = dataclasses.replace(inputs(model, batch), token_index_T=tokens)
    for masks in model._masks(given):
        assert masks is not None
        assert masks.token_T.tolist() == tokens.tolist()
        assert masks.token_t.tolist() == (tokens[4:] if sequence else tokens).tolist()
        assert masks.first_feature == 8


def test_training_without_positions_is_refused() -> None:
    model = build()
    given = dataclasses.replace(inputs(model, fake_batch(0)), positions_B=None)
    with pytest.raises(RuntimeError, match="positions"):
        model.hidden(given)
