"""The contract of every row of ``ATTENTION``: right values and gradients, and nothing leaks between documents.

Rows that need a CUDA device run there; elsewhere they are skipped with the reason. What does not depend on their
kernels (packing, borders, grouped heads, arguments) is tested everywhere, with plain kernels in their place.

Legend as in train/attention/backend.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.attention import (
    dense_attention,
    draw_qkv,
    plain_flash_attn,
    plain_torch_flash,
    random_packing,
    relative_error,
)
from torch import Tensor

from loader.errors import ConfigError
from train.attention import (
    ATTENTION,
    AttentionBackend,
    Availability,
    LayoutOptions,
    available_backends,
    choose_attention,
    pick_attention,
    segment_borders,
)
from train.attention.torch_varlen import newer_kernels
from train.model_config import ModelConfig

B, H, K, T, C = 4, 4, 2, 48, 16
WHOLE = LayoutOptions()
CPU = torch.device("cpu")
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
# One segment as long as T; a segment of one token between others; padding of two tokens at the end; all of one token.
SEGMENT_OF_BT = np.stack(
    [np.zeros(T, int), np.repeat([1, 2, 3], [1, 35, 12]), np.repeat([4, 5], [46, 2]), np.arange(6, T + 6)]
)
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (2e-2, 2e-2)}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
SUBSTITUTES = {"torch_varlen": plain_torch_flash, "flash_attn": plain_flash_attn}
ROWS = [*ATTENTION, *(f"{name} with a plain kernel" for name in SUBSTITUTES)]


@pytest.fixture(params=ROWS)
def row(request: pytest.FixtureRequest) -> Iterator[tuple[AttentionBackend, bool]]:
    """A backend, and whether a plain kernel stands in for its own."""
    name, _, plain = request.param.partition(" with")
    with SUBSTITUTES[name]() if plain else contextlib.nullcontext():
        yield ATTENTION[name], bool(plain)


def need(row: tuple[AttentionBackend, bool], dtype: torch.dtype, device: str = "cpu") -> AttentionBackend:
    """The backend, or a skip that says why it cannot run here."""
    backend, plain = row
    if plain and device == "cpu":
        return backend
    availability = backend.available(torch.device(device), dtype, C)
    if plain:
        pytest.skip("plain kernels are for the CPU")
    if not availability:
        pytest.skip(f"{backend.name} on {device} in {dtype} needs {availability}")
    return backend


def run(
    backend: AttentionBackend, qkv: list[Tensor], options: LayoutOptions = WHOLE, scale: float | None = None
) -> Tensor:
    layout = backend.prepare(SEGMENT_OF_BT, qkv[0].device, qkv[0].dtype, options)
    return backend.attend(*qkv, layout, scale)


def weighted(out: Tensor) -> Tensor:
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
    return (out * weights.to(out.device, torch.float64 if out.dtype is torch.float64 else torch.float32)).sum()


def zigzag(ranks: int, rank: int) -> LayoutOptions:
    chunk = T // (2 * ranks)
    ranges = ((rank * chunk, (rank + 1) * chunk), (T - (rank + 1) * chunk, T - rank * chunk))
    return LayoutOptions(query_ranges=ranges)


RANGES = [
    None,
    *((zigzag(ranks, rank).query_ranges) for ranks in (1, 2, 4) for rank in range(ranks)),
    ((7, 8),),
    ((30, 48), (0, 5), (5, 11)),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [H, K, 1])
@DTYPES
def test_values_and_gradients_are_those_of_float64(row: Any, dtype: torch.dtype, heads: int, device: str) -> None:
    backend = need(row, dtype, device)
    for scale, options in ((None, WHOLE), (0.11, LayoutOptions(max_segments=T))):
        qkv = draw_qkv((B, H, T, C), heads, dtype, device=device)
        exact = [x.detach().double().cpu().requires_grad_() for x in qkv]
        out, expected = run(backend, qkv, options, scale), dense_attention(*exact, SEGMENT_OF_BT, scale)
        weighted(out).backward()
        weighted(expected).backward()
        value_error, gradient_error = TOLERANCE[dtype]
        assert out.dtype is dtype
        assert (out.double().cpu() - expected).abs().max() <= value_error
        for mine, right in zip(qkv, exact, strict=True):
            assert relative_error(mine.grad, right.grad) <= gradient_error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranges", RANGES, ids=str)
@DTYPES
def test_queries_may_be_parts_of_the_samples(row: Any, dtype: torch.dtype, ranges: Any, device: str) -> None:
    """Context parallelism: q holds some tokens of each sample, keys and values whole samples."""
    backend = need(row, dtype, device)
    qkv = draw_qkv((B, H, T, C), K, dtype, device=device)
    exact = [x.detach().double().cpu().requires_grad_() for x in qkv]
    index = np.concatenate([np.arange(*pair) for pair in ranges or ((0, T),)])
    out = run(backend, [qkv[0][:, :, index], *qkv[1:]], LayoutOptions(T, ranges))
    expected = dense_attention(exact[0][:, :, index], *exact[1:], SEGMENT_OF_BT, queries=index)
    weighted(out).backward()
    weighted(expected).backward()
    value_error, gradient_error = TOLERANCE[dtype]
    assert (out.double().cpu() - expected).abs().max() <= value_error
    for mine, right in zip(qkv, exact, strict=True):
        assert relative_error(mine.grad, right.grad) <= gradient_error


@pytest.mark.parametrize("seed", range(4))
def test_random_packings(row: Any, seed: int) -> None:
    backend = need(row, torch.float32)
    segment_of_BT = random_packing(seed, 3, 30, 8)
    qkv = [x.detach() for x in draw_qkv((3, H, 30, C), K, torch.float32, seed)]
    for options in (WHOLE, LayoutOptions(9, ((3, 20), (20, 26)))):
        layout = backend.prepare(segment_of_BT, CPU, torch.float32, options)
        index = np.arange(30) if options.query_ranges is None else np.arange(3, 26)
        out = backend.attend(qkv[0][:, :, index], *qkv[1:], layout)
        expected = dense_attention(qkv[0][:, :, index], *qkv[1:], segment_of_BT, queries=index)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [WHOLE, zigzag(2, 1)], ids=["whole", "zigzag"])
@pytest.mark.parametrize("device", DEVICES)
@DTYPES
def test_nothing_leaks_between_segments(row: Any, dtype: torch.dtype, device: str, options: LayoutOptions) -> None:
    """Everything of one segment replaced: outputs and gradients of all others keep every bit."""
    backend = need(row, dtype, device)
    index = np.concatenate([np.arange(*pair) for pair in options.query_ranges or ((0, T),)])
    first, other = (draw_qkv((B, H, T, C), K, dtype, seed, device) for seed in (0, 1))
    for segment in (0, 1, 2, 5, 6):
        inside = torch.from_numpy(segment == SEGMENT_OF_BT)[:, None, :, None].to(device)
        second = [
            torch.where(inside, x.detach() * 50, y.detach()).requires_grad_() for x, y in zip(other, first, strict=True)
        ]
        outs = [run(backend, [q[:, :, index], *kv], options) for q, *kv in (first, second)]
        assert torch.equal(*(out.masked_fill(inside[:, :, index], 0) for out in outs))
        for out, qkv in zip(outs, (first, second), strict=True):
            for x in qkv:
                x.grad = None
            (out.masked_fill(inside[:, :, index], 0).float() ** 2).sum().backward()
        for x, y in zip(first, second, strict=True):
            assert x.grad is not None
            assert y.grad is not None
            assert torch.equal(x.grad, y.grad)
            assert not x.grad.masked_select(inside.expand_as(x.grad)).any()


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_seen_of_the_future(row: Any, device: str) -> None:
    dtype = torch.bfloat16
    backend = need(row, dtype, device)
    first = draw_qkv((B, H, T, C), K, dtype, device=device)
    second = [x.detach().clone() for x in first]
    for x in second:
        x[:, :, 20:] += 1.0
    assert torch.equal(*(run(backend, qkv)[:, :, :20] for qkv in (first, second)))


def test_a_segment_does_not_depend_on_its_neighbours_in_the_batch(row: Any) -> None:
    backend = need(row, torch.float32)
    qkv = [x.detach() for x in draw_qkv((B, H, T, C), K, torch.float32)]
    whole = run(backend, qkv)
    for index in range(B):
        rows = slice(index, index + 1)
        layout = backend.prepare(SEGMENT_OF_BT[rows], CPU, torch.float32)
        alone = backend.attend(*(x[rows] for x in qkv), layout)
        torch.testing.assert_close(alone, whole[rows], rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("ranges", [None, ((0, 128), (170, 300))], ids=["whole", "parts"])
def test_flex_forward_values_on_the_cpu(ranges: Any) -> None:
    """Blocks of 128: some seen whole, some in part, some never, the last one sticks out.

    Eager mode looks at the mask alone, so the lists of blocks that the CUDA kernels read are compared by themselves.
    """
    num_tokens = 300
    segment_of_BT = np.stack([np.repeat([0, 1], [298, 2]), np.repeat([2, 3, 4], [127, 130, 43])])
    qkv = [x.detach() for x in draw_qkv((2, 4, num_tokens, C), 2, torch.float32)]
    index = np.concatenate([np.arange(*pair) for pair in ranges or ((0, num_tokens),)])
    layout = ATTENTION["flex"].prepare(segment_of_BT, CPU, torch.float32, LayoutOptions(None, ranges))
    mine = ATTENTION["flex"].attend(qkv[0][:, :, index], *qkv[1:], layout, 0.2)
    right = dense_attention(qkv[0][:, :, index], *qkv[1:], segment_of_BT, 0.2, index)
    torch.testing.assert_close(mine, right, rtol=0, atol=1e-5)
    blocks = layout.to_dense()[:, 0]
    assert (blocks == 0).any()
    assert (layout.full_kv_num_blocks > 0).any()
    allowed = segment_of_BT[:, index, None] == segment_of_BT[:, None, :]
    allowed &= index[:, None] >= np.arange(num_tokens)
    for block in np.ndindex(blocks.shape):
        sample, rows, columns = block[0], *(slice(128 * i, 128 * (i + 1)) for i in block[1:])
        assert bool(blocks[block]) == allowed[sample, rows, columns].any()
        count = int(layout.full_kv_num_blocks[sample, 0, block[1]])
        seen_whole = block[2] in layout.full_kv_indices[sample, 0, block[1], :count].tolist()
        assert seen_whole == (allowed[sample, rows, columns].all() and 128 * (block[2] + 1) <= num_tokens)


def test_borders() -> None:
    assert segment_borders(SEGMENT_OF_BT[:3]) == [[0, 48], [0, 1, 36, 48], [0, 46, 48]]


def test_shapes_do_not_depend_on_the_packing() -> None:
    """One graph for all batches, and borders equal to those that the loader pads."""
    prepare = ATTENTION["torch_varlen"].prepare
    for ranges in (None, zigzag(2, 0).query_ranges):
        layouts = [
            prepare(segment_of_BT, CPU, torch.bfloat16, LayoutOptions(20, ranges))
            for segment_of_BT in (SEGMENT_OF_BT[:3], random_packing(0, 3, T, 20), np.zeros((3, T), np.int32))
        ]
        assert len({(len(x.cu_query_S), len(x.cu_key_S), x.max_query, x.max_key) for x in layouts}) == 1
    expected = [0, 48, 49, 84, 96, 142] + [144] * 55
    assert prepare(SEGMENT_OF_BT[:3], CPU, torch.bfloat16, LayoutOptions(20)).cu_query_S.tolist() == expected
    with pytest.raises(ValueError, match="max_segments = 2"):
        prepare(SEGMENT_OF_BT, CPU, torch.bfloat16, LayoutOptions(2))


def test_rows_that_never_run_here_are_named() -> None:
    """The list that a reader of a green run must know."""
    never = {
        name: str(backend.available(torch.device(device), dtype, C))
        for name, backend in ATTENTION.items()
        for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16))
        if not any(name in available_backends(torch.device(d), torch.bfloat16, C) for d in DEVICES)
    }
    if not torch.cuda.is_available():
        assert set(never) == {"torch_varlen", "flash_attn", "flex"}
    assert all(never.values())
    if never:
        pytest.skip(f"never executed here, but for what plain kernels and eager mode show: {never}")


def test_every_row_can_be_named_in_a_configuration() -> None:
    hint = typing.get_type_hints(ModelConfig)["attention"]
    names = [name for part in typing.get_args(hint) for name in typing.get_args(part)]
    assert names == list(ATTENTION)


def test_the_default_on_the_cpu_and_named_rows() -> None:
    for num_tokens in (64, 256, 257, 4096):
        choice = pick_attention(None, CPU, torch.float32, num_tokens)
        assert choice.backend.available(CPU, torch.float32)
        assert choice.backend is choose_attention(None, CPU, num_tokens)
        assert choice.backend.name in choice.reason
    assert pick_attention("sdpa_mask", CPU, torch.float32, 4096).backend.name == "sdpa_mask"
    assert {backend.name for backend in ATTENTION.values()} == set(ATTENTION)


@pytest.mark.parametrize("name", ["torch_varlen", "flash_attn", "flex"])
def test_a_named_row_that_cannot_run_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        pick_attention(name, CPU, torch.float32, 512, 20)
    assert raised.value.code == "TR-ATTENTION-UNAVAILABLE"
    assert "a CUDA device" in raised.value.message
    if name != "flex":
        assert "float16 or bfloat16 (not float32)" in raised.value.message
        assert "a multiple of 8" in raised.value.message
    if name == "flash_attn":
        assert "the package flash-attn" in raised.value.message
        assert raised.value.next_command == "pip install 'tokenreel[flash]'"
    assert raised.value.expected == "null, or one of sdpa_loop, sdpa_mask"


def test_the_package_is_not_missed_where_it_is() -> None:
    with plain_flash_attn():
        assert str(ATTENTION["flash_attn"].available(CPU, torch.bfloat16, C)) == "a CUDA device"
        assert ATTENTION["flash_attn"].start(CPU) == "flash-attn 2.8.3"


@pytest.mark.parametrize(
    ("works", "taken"),
    [
        (("torch_varlen", "flash_attn", "flex"), "torch_varlen"),
        (("flash_attn", "flex"), "flash_attn"),
        (("flex",), "flex"),
        ((), "sdpa_mask"),
    ],
)
def test_the_order_on_cuda(monkeypatch: pytest.MonkeyPatch, works: tuple[str, ...], taken: str) -> None:
    """Every row that was passed over is in the reason, with what it lacks."""
    for name in ("torch_varlen", "flash_attn", "flex"):
        availability = Availability() if name in works else Availability((f"{name} dust",))
        fake = dataclasses.replace(ATTENTION[name], available=lambda *_, a=availability: a, start=lambda device: "fast")
        monkeypatch.setitem(ATTENTION, name, fake)
    choice = pick_attention(None, torch.device("cuda"), torch.bfloat16, 4096)
    assert choice.backend.name == taken
    assert choice.reason.startswith(f"attention {taken}: default on cuda")
    assert ("(fast)" in choice.reason) == (taken != "sdpa_mask")
    passed = ("torch_varlen", "flash_attn", "flex", "sdpa_mask")
    for name in passed[: passed.index(taken)]:
        assert f"not {name}, which needs {name} dust" in choice.reason


def test_newer_flash_kernels_serve_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert newer_kernels(9) == newer_kernels(10) == []
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.0.0")
    assert newer_kernels(9) == newer_kernels(10) == ["FA4"]
    assert newer_kernels(8) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert newer_kernels(9) == ["FA3", "FA4"]
    assert newer_kernels(10) == ["FA4"]


class _Registry:
    """torch's registry of flash kernels, with one that does not load."""

    def __init__(self) -> None:
        self.active: str | None = None

    def current(self) -> str | None:
        return self.active

    def activate(self, name: str) -> None:
        if name == "FA3":
            raise RuntimeError("no backward kernels")
        self.active = name


def test_a_kernel_that_does_not_load_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _Registry()
    monkeypatch.setattr("torch.nn.attention.current_flash_attention_impl", registry.current)
    monkeypatch.setattr("torch.nn.attention.activate_flash_attention_impl", registry.activate)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    start = ATTENTION["torch_varlen"].start
    monkeypatch.setattr("train.attention.torch_varlen.newer_kernels", lambda major: ["FA3"])
    expected = "kernels: torch's own; FA3 is installed and does not load: no backward kernels"
    assert start(CPU) == expected
    monkeypatch.setattr("train.attention.torch_varlen.newer_kernels", lambda major: ["FA3", "FA4"])
    assert start(CPU) == start(CPU) == "kernels: FA4"
