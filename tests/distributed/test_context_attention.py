"""Attention over tokens that lie on several processes: outputs and gradients are those of one, no document leaks.

One start of the processes a world serves all its cases. Two processes in the fast suite, four in the slow one.

Legend as in train/attention/backend.py.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import context_steps
from support.attention import dense_attention, relative_error
from support.context_steps import Case, cases, replaced_segment, weights
from support.worlds import run_ranks
from torch import Tensor

from loader.errors import ConfigError
from train.attention import ATTENTION
from train.parallel.context import CONTEXT_METHODS, check_context_sizes, context_attention, context_tokens

TIMEOUT_S = 240
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]
CPU = torch.device("cpu")
Results = dict[str, list[Tensor]]


def start(folder: Path, size: int) -> list[Results]:
    """What every rank found."""
    ended = run_ranks(lambda rank: context_steps.main(folder, rank, size), size, folder / "world", limit_s=TIMEOUT_S)
    assert [one.code for one in ended] == [0] * size, ended
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Results]]:
    found: dict[int, list[Results]] = {}

    def of(size: int) -> list[Results]:
        if size not in found:
            found[size] = start(tmp_path_factory.mktemp(f"context{size}"), size)
        return found[size]

    return of


def whole(parts: list[Results], key: str, case: Case) -> list[Tensor]:
    """Outputs and gradients of all ranks in the samples' order."""
    index = np.concatenate(
        [context_tokens(case.method, context_steps.T, rank, len(parts)) for rank in range(len(parts))]
    )
    joined = [torch.cat(tensors, dim=2) for tensors in zip(*(part[key] for part in parts), strict=True)]
    return [torch.empty_like(x).index_copy_(2, torch.from_numpy(index), x) for x in joined]


@pytest.mark.parametrize("size", SIZES)
def test_outputs_and_gradients_are_those_of_one_process(size: int, results: Callable[[int], list[Results]]) -> None:
    parts = results(size)
    errors = {}
    for number, case in enumerate(cases(size)):
        exact = [x.detach().double().requires_grad_() for x in case.qkv()]
        expected = dense_attention(*exact, case.segment_of_BT, case.scale)
        (expected * weights(case.dtype).double()).sum().backward()
        out, *gradients = whole(parts, str(number), case)
        limit = 1e-5 if case.dtype is torch.float32 else 2e-2
        found = [float((out.double() - expected.detach()).abs().max())]
        found += [relative_error(mine, x.grad) for mine, x in zip(gradients, exact, strict=True)]
        if max(found) > limit:
            errors[case] = found
    assert errors == {}


@pytest.mark.parametrize("size", SIZES)
def test_nothing_leaks_between_segments(size: int, results: Callable[[int], list[Results]]) -> None:
    """The longest segment replaced: outputs and gradients of the others keep every bit, its own gradients are zero."""
    parts = results(size)
    for number, case in enumerate(cases(size)):
        kept, replaced = (whole(parts, f"{number} {which}", case) for which in ("kept", "replaced"))
        inside = torch.from_numpy(case.segment_of_BT == replaced_segment(case))[:, None, :, None]
        for x, y in zip(kept, replaced, strict=True):
            assert torch.equal(x, y), case
            assert not x.masked_select(inside.expand_as(x)).any(), case
        if case.segment_of_BT.max() >= context_steps.B:
            assert kept[1].any(), "a comparison of zeros would pass anything"


def test_the_cases_cover_the_tables() -> None:
    found = cases(2)
    assert {case.method for case in found} == set(CONTEXT_METHODS)
    assert {case.row for case in found} == set(context_steps.ROWS)
    # torch_varlen shares everything but one call with flash_attn, see test_attention_backends.py.
    assert set(ATTENTION) - set(context_steps.ROWS) == {"torch_varlen", "flex"}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("method", list(CONTEXT_METHODS))
def test_every_token_lies_on_one_rank(method: str, size: int) -> None:
    parts = [context_tokens(method, 48, rank, size) for rank in range(size)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(48))
    assert {(len(part), part.dtype) for part in parts} == {(48 // size, np.dtype(np.int64))}
    if method == "zigzag":
        assert len({int((part + 1).sum()) for part in parts}) == 1, "scores of one long segment, equal on every rank"
        assert context_tokens(method, 16, 0, 2).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    else:
        assert context_tokens(method, 16, 1, 2).tolist() == list(range(8, 16))


def a_group(size: int) -> Any:
    return types.SimpleNamespace(size=lambda: size, rank=lambda: 0)


@pytest.mark.parametrize(
    ("method", "sizes", "size", "named"),
    [
        ("zigzag", {"seq_len": 10}, 2, "zigzag cannot cut evenly: seq_len = 10"),
        ("ulysses", {"seq_len": 10}, 4, "ulysses cannot cut evenly: seq_len = 10"),
        ("ulysses", {"seq_len": 8, "heads": 6, "kv_heads": 2}, 4, "ulysses cannot cut evenly: heads = 6, kv_heads = 2"),
    ],
)
def test_what_does_not_divide_is_refused(method: str, sizes: dict[str, int], size: int, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as raised:
        check_context_sizes(method, sizes, size)
    assert raised.value.code == "TR-PARALLEL-CONTEXT"
    if len(sizes) == 1:
        for refused in (
            lambda: context_tokens(method, sizes["seq_len"], 0, size),
            lambda: context_attention(ATTENTION["sdpa_loop"], method, a_group(size), sizes["seq_len"]),
        ):
            with pytest.raises(ConfigError, match=named):
                refused()
    check_context_sizes("zigzag", {"seq_len": 8, "heads": 3, "kv_heads": 1}, 2)


def test_heads_that_do_not_divide_are_refused_before_anything_is_sent() -> None:
    backend = context_attention(ATTENTION["sdpa_loop"], "ulysses", a_group(2), 8)
    q, k = torch.zeros(1, 4, 4, 8), torch.zeros(1, 1, 4, 8)
    layout = backend.prepare(np.zeros((1, 8), np.int32), CPU, torch.float32)
    with pytest.raises(ConfigError, match="kv_heads = 1"):
        backend.attend(q, k, k, layout)


@pytest.mark.parametrize("method", list(CONTEXT_METHODS))
def test_layouts_are_of_whole_samples(method: str) -> None:
    backend = context_attention(ATTENTION["sdpa_loop"], method, a_group(2), 16)
    with pytest.raises(ValueError, match="whole samples"):
        backend.prepare(np.zeros((1, 8), np.int32), CPU, torch.float32)


@pytest.mark.parametrize("method", list(CONTEXT_METHODS))
def test_a_group_of_one_changes_nothing(method: str) -> None:
    assert context_attention(ATTENTION["sdpa_loop"], method, a_group(1), 16) is ATTENTION["sdpa_loop"]
