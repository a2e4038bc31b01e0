"""muP: after a few steps activations have changed as much at every width, and the best learning rate stays put.

The coordinate check of Yang et al. (2022, appendix D.1): a parametrisation is right when the change of every activation
neither grows nor shrinks with the width.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from support.synthetic import fake_batch
from torch import Tensor

from train.attention import ATTENTION, AttentionBackend
from train.inputs import InputOptions, ModelInputs, to_inputs
from train.model import Decoder, ModelShape
from train.model_config import MupConfig
from train.mup import lr_factor
from train.precision import PRECISIONS

BASE = ModelShape(vocab_size=50, dim=64, layers=2, heads=4, kv_heads=4, ffn=128, seq_len=24)
MUP = MupConfig(base_dim=64, base_head_dim=16)
WIDTHS = (64, 128, 256, 512)
OPTIONS = {"plain": {}, "qk_norm": {"qk_norm": True}, "tied": {"tied": True}, "gqa": {"kv_heads": 2}}


def build(width: int, mup: MupConfig | None, **options: object) -> Decoder:
    """Heads stay four and grow, so that the scale of the scores matters as well."""
    shape = dataclasses.replace(BASE, dim=width, ffn=2 * width, mup=mup, **options)  # type: ignore[arg-type]
    return Decoder(shape, ATTENTION["sdpa_loop"], PRECISIONS["fp32"]).initialize(1)


def _inputs() -> ModelInputs:
    where = InputOptions(torch.device("cpu"), ATTENTION["sdpa_loop"], torch.float32)
    return to_inputs(fake_batch(0), where)  # type: ignore[arg-type]


def adam(model: Decoder, lr: float) -> torch.optim.Optimizer:
    groups = [{"params": [p], "lr": lr * lr_factor(name, model.shape)} for name, p in model.named_parameters()]
    return torch.optim.Adam(groups, lr=lr, betas=(0.9, 0.95))


def activations(model: Decoder, batch: ModelInputs) -> dict[str, Tensor]:
    """What every part adds, queries' scores included, and the logits."""
    found: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: found.__setitem__(name, out.detach()))
        for name, module in model.named_modules()
        if name.endswith(("attention", "ffn"))
    ]

    def attend(q, k, v, layout):  # type: ignore[no-untyped-def]
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        found[f"scores {len(found)}"] = (q @ keys.transpose(-1, -2)).detach() / math.sqrt(q.shape[-1])
        return ATTENTION["sdpa_loop"].attend(q, k, v, layout)

    backend = model.backend
    model.backend = dataclasses.replace(backend, attend=attend)
    with torch.no_grad():
        hidden = model.hidden(batch)
        assert model.head is not None
        found["logits"] = model.shape.logit_scale * hidden @ model.head.weight.T
    model.backend = backend
    for hook in hooks:
        hook.remove()
    return found


def changes(width: int, mup: MupConfig | None, steps: int = 4, **options: object) -> dict[str, float]:
    """Root mean square of each activation's change over a few steps of Adam."""
    model, batch = build(width, mup, **options), _inputs()
    optimizer = adam(model, 5e-3)
    before = activations(model, batch)
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch, torch.tensor(80.0))[0].backward()
        optimizer.step()
    after = activations(model, batch)
    return {name: float((after[name] - before[name]).square().mean().sqrt()) for name in before}


def slopes(mup: MupConfig | None, **options: object) -> dict[str, float]:
    """Exponents e of change ~ width^e; options are checked up to 256, which costs a quarter."""
    widths = WIDTHS[:3] if options else WIDTHS
    found = [changes(width, mup, **options) for width in widths]
    return {name: float(np.polyfit(np.log2(widths), np.log2([c[name] for c in found]), 1)[0]) for name in found[0]}


@pytest.mark.parametrize("options", list(OPTIONS))
def test_coordinate_check(options: str) -> None:
    """Scores are held from above alone: while queries and keys are still unrelated they shrink by the root of C, as the
    paper says of 1 / C at the start."""
    found = slopes(MUP, **OPTIONS[options])
    grown = {name: slope for name, slope in found.items() if slope > 0.25}
    shrunk = {name: slope for name, slope in found.items() if slope < -0.25 and not name.startswith("scores")}
    assert grown | shrunk == {}


def test_the_coordinate_check_fails_for_the_standard_parametrisation() -> None:
    assert min(slopes(None).values()) > 0.25


def test_scores_of_related_queries_and_keys_do_not_grow() -> None:
    """q = k of unit variance: q k x query_scale / sqrt(C) has the base width's mean at every width."""
    for width in WIDTHS:
        shape = build(width, MUP).shape
        assert shape.head_dim * shape.query_scale / math.sqrt(shape.head_dim) == pytest.approx(math.sqrt(16))


def test_at_the_base_width_nothing_differs() -> None:
    plain, mup = build(64, None), build(64, MUP)
    for (name, first), second in zip(plain.named_parameters(), mup.parameters(), strict=True):
        assert torch.equal(first, second), name
    assert {lr_factor(name, mup.shape) for name, _ in mup.named_parameters()} == {1.0}
    assert (mup.shape.logit_scale, mup.shape.query_scale) == (1.0, 1.0)


def test_learning_rates_by_hand() -> None:
    model = build(256, MUP, qk_norm=True)
    found = {name: lr_factor(name, model.shape) for name, _ in model.named_parameters()}
    block = [f"attention.{name}.weight" for name in ("q", "k", "v", "out")]
    block += [f"ffn.{name}.weight" for name in ("gate", "up", "down")]
    assert {name for name, factor in found.items() if factor == 0.25} == {
        f"blocks.{number}.{name}" for number in range(2) for name in block
    }
    assert set(found.values()) == {0.25, 1.0}
    assert {lr_factor(name, build(256, None).shape) for name in found} == {1.0}


def test_tied_first_logits_do_not_grow_with_the_width() -> None:
    for mup in (None, MUP):
        spreads = [float(activations(build(w, mup, tied=True), _inputs())["logits"].std()) for w in (64, 512)]
        assert 0.1 < spreads[0] < 1.0
        assert spreads[1] <= 1.2 * spreads[0]


ROWS, TOKENS, STEPS = 16, 24, 40
RATES = tuple(2.0**-e for e in (9, 8, 7, 6, 5, 4))


def language(seed: int, backend: AttentionBackend) -> ModelInputs:
    """Sequences of a fixed random language: each token allows four successors."""
    successors = torch.randint(0, 50, (50, 4), generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.empty(ROWS, TOKENS + 1, dtype=torch.int64)
    tokens[:, 0] = torch.randint(0, 50, (ROWS,), generator=generator)
    choice = torch.randint(0, 4, (ROWS, TOKENS), generator=generator)
    for place in range(TOKENS):
        tokens[:, place + 1] = successors[tokens[:, place], choice[:, place]]
    segment_of_BT = np.repeat(np.arange(ROWS)[:, None], TOKENS, axis=1)
    layout = backend.prepare(segment_of_BT, torch.device("cpu"), torch.float32)
    return ModelInputs(tokens[:, :-1], tokens[:, 1:], torch.arange(TOKENS).expand(ROWS, TOKENS), layout)


def trained_loss(width: int, mup: MupConfig | None, lr: float) -> float:
    """Mean loss of the last five of 40 steps, the learning rate falling to 0."""
    model = build(width, mup)
    optimizer, losses = adam(model, lr), []
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(language(step, model.backend), torch.tensor(float(ROWS * TOKENS)))[0]
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return sum(losses[-5:]) / 5


@pytest.mark.slow
def test_the_best_learning_rate_stays_put_over_widths() -> None:
    """Found at 64 and used at 256: as good as any there under muP, far off without it."""
    narrow = [trained_loss(64, MUP, lr) for lr in RATES]  # at the base width both are one
    best = narrow.index(min(narrow))
    assert 0 < best < len(RATES) - 1
    wide, standard = ([trained_loss(256, mup, lr) for lr in RATES] for mup in (MUP, None))
    assert wide[best] <= min(wide) + 0.02
    assert wide[best] <= narrow[best]
    assert standard[best] >= min(standard) + 0.3
