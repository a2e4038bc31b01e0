"""AdamW against the textbook in float64, its measures, the skipped update, and learning rates by position."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from train.loss_scale import LossScale
from train.optim import Optimizer, Shared
from train.optim_config import OptimizerConfig, ScheduleConfig
from train.schedule import SCHEDULES, learning_rate

CONFIG = OptimizerConfig(lr=1e-2, betas=(0.8, 0.9), weight_decay=0.3, clip_norm=0.5)


def make(config: OptimizerConfig = CONFIG) -> tuple[list[nn.Parameter], Optimizer]:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (5,), (2, 6))]
    return parameters, Optimizer([(f"p{i}", p) for i, p in enumerate(parameters)], config)


def give_gradients(parameters: list[nn.Parameter], step: int, scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale
    return [parameter.grad.double() for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("clip", [None, 0.5, 1e9])
def test_update_is_adamw(clip: float | None) -> None:
    config = OptimizerConfig(lr=1e-2, betas=(0.8, 0.9), weight_decay=0.3, clip_norm=clip)
    parameters, optimizer = make(config)
    exact = [parameter.detach().double() for parameter in parameters]
    first = [torch.zeros_like(x) for x in exact]
    second = [torch.zeros_like(x) for x in exact]
    for step in range(1, 6):
        gradients = give_gradients(parameters, step)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
        factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        lr, moved = 1e-2 / step, 0.0
        for i, gradient in enumerate(gradients):
            first[i] = 0.8 * first[i] + 0.2 * gradient * factor
            second[i] = 0.9 * second[i] + 0.1 * (gradient * factor) ** 2
            update = lr * (first[i] / (1 - 0.8**step)) / ((second[i] / (1 - 0.9**step)).sqrt() + config.eps)
            decay = 0.3 if exact[i].ndim > 1 else 0.0
            exact[i] = exact[i] * (1 - lr * decay) - update
            moved += float((update**2).sum())
        norms = optimizer.step(lr, torch.tensor(1.0))
        assert float(norms.gradient) == pytest.approx(norm, rel=1e-5)
        assert float(norms.update_square) == pytest.approx(moved, rel=2e-4)
        assert float(norms.finite) == 1.0
    for parameter, right in zip(parameters, exact, strict=True):
        torch.testing.assert_close(parameter.double(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("broken", ["gradient", "loss"])
def test_a_step_that_is_not_finite_changes_nothing(broken: str) -> None:
    parameters, optimizer = make()
    give_gradients(parameters, 0)
    optimizer.step(1e-2, torch.tensor(1.0))
    before = [p.detach().clone() for p in parameters] + [t.clone() for _, t in optimizer.state_tensors()]
    give_gradients(parameters, 1)
    if broken == "gradient":
        assert parameters[1].grad is not None
        parameters[1].grad[2] = float("inf")
    norms = optimizer.step(1e-2, torch.tensor(float("nan") if broken == "loss" else 1.0))
    after = [p.detach() for p in parameters] + [t for _, t in optimizer.state_tensors()]
    assert float(norms.finite) == 0.0
    assert float(norms.update_square) == 0.0
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_a_loss_that_is_not_finite_elsewhere_stops_this_rank_too() -> None:
    """Or the ranks' weights would drift apart."""
    parameters = [nn.Parameter(torch.ones(3, 2))]
    elsewhere = torch.tensor([4.0, float("nan")], dtype=torch.float64)  # squares of the gradients there, loss there
    optimizer = Optimizer([("p", parameters[0])], CONFIG, Shared(lambda tensor: tensor.add_(elsewhere)))
    parameters[0].grad = torch.ones(3, 2)
    norms = optimizer.step(1e-2, torch.tensor(1.0))
    assert (float(norms.finite), float(norms.gradient)) == (0.0, pytest.approx(math.sqrt(10)))
    assert bool((parameters[0] == 1).all())


@pytest.mark.parametrize(("scale", "finite"), [(8.0, 1.0), (1.0, 0.0)])
def test_an_overflow_that_the_scale_explains_is_no_broken_step(scale: float, finite: float) -> None:
    parameters = [nn.Parameter(torch.ones(3, 2))]
    optimizer = Optimizer([("p", parameters[0])], CONFIG, scale=LossScale(torch.tensor(scale)))
    parameters[0].grad = torch.full((3, 2), float("inf"))
    norms = optimizer.step(1e-2, torch.tensor(1.0))
    assert (float(norms.finite), float(norms.update_square)) == (finite, 0.0)
    assert bool((parameters[0] == 1).all())


@pytest.mark.parametrize("kind", list(SCHEDULES))
def test_schedules_warm_up_peak_and_end(kind: str) -> None:
    total = None if kind == "constant" else 1000
    schedule = ScheduleConfig(kind=kind, warmup_positions=100, total_positions=total, final_fraction=0.1)  # type: ignore[arg-type]
    rates = [learning_rate(position, 2.0, schedule) for position in range(1500)]
    assert [rates[0], rates[49], rates[100]] == pytest.approx([0.02, 1.0, 2.0])
    assert np.all(np.diff(rates[:101]) >= 0)
    assert np.all(np.diff(rates[100:]) <= 1e-12)
    assert rates[1000] == rates[-1] == pytest.approx(2.0 if kind == "constant" else 0.2)


def test_shapes_of_the_decays() -> None:
    middle = {
        kind: learning_rate(500, 1.0, ScheduleConfig(kind=kind, total_positions=1000, final_fraction=0.0))  # type: ignore[arg-type]
        for kind in ("linear", "cosine", "wsd")
    }
    assert middle == {"linear": pytest.approx(0.5), "cosine": pytest.approx(0.5), "wsd": 1.0}
    wsd = ScheduleConfig(kind="wsd", total_positions=1000, final_fraction=0.0, decay_fraction=0.2)
    assert learning_rate(900, 1.0, wsd) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"kind": "cosine"}, "total_positions"),
        ({"kind": "constant", "total_positions": 5}, "total_positions"),
        ({"kind": "linear", "total_positions": 5, "warmup_positions": 5}, "total_positions"),
        ({"final_fraction": 1.5}, "final_fraction"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(values: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        ScheduleConfig(**values)  # type: ignore[arg-type]
