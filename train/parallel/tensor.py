"""Tensor parallelism: every matrix cut over a group, heads and feed-forward columns apart, activations summed.

The two functions of Shoeybi et al. (Megatron-LM, 2019) and the two of Korthikanti et al. (sequence parallelism, 2022),
written as seams that the model passes through: ``enter`` before matrices cut by columns, ``leave`` behind matrices cut
by rows. Without a group each of them is the identity.

    plain:     enter = identity   | sum the gradient        leave = sum | identity
    sequence:  enter = gather T   | sum and scatter T       leave = sum and scatter T | gather T

Shape legend: B samples, T tokens of a sample, t = T / ranks, D model width, V vocabulary, v this rank's rows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import embedding, pad

from .shards import local

__all__ = ["ALONE", "Spread", "cut_model", "sum_partial_gradients"]

_COLUMNS = ("attention.q", "attention.k", "attention.v", "ffn.gate", "ffn.up")
_ROWS = ("attention.out", "ffn.down")
_Group = dist.ProcessGroup
_Move = Callable[[Tensor, _Group], Tensor]


def _sum(x: Tensor, group: _Group) -> Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(out, group=group)
    return out


def _gather(x_BtD: Tensor, group: _Group) -> Tensor:
    parts = [torch.empty_like(x_BtD, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(parts, x_BtD.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def _scatter_sum(x_BTD: Tensor, group: _Group) -> Tensor:
    parts = [part.contiguous() for part in x_BTD.chunk(group.size(), dim=1)]
    out = torch.empty_like(parts[0])
    dist.reduce_scatter(out, parts, group=group)
    return out


def _own_tokens(x_BTD: Tensor, group: _Group) -> Tensor:
    return x_BTD.chunk(group.size(), dim=1)[group.rank()].contiguous()


def _same(x: Tensor, group: _Group) -> Tensor:
    del group
    return x.view_as(x)


class _Seam(torch.autograd.Function):
    """One move of activations forward, its adjoint backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: _Group, moves: tuple[_Move, _Move]) -> Tensor:
        ctx.group, ctx.back = group, moves[1]
        return moves[0](x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0], ctx.group), None, None


@dataclass(frozen=True)
class Spread:
    """Over which ranks one forward pass is spread.

    Attributes:
        group: the tensor group, or None: everything on this rank.
        sequence: between the seams each rank holds T / ranks tokens of every sample.
        vocabulary: embedding and head are cut by vocabulary rows too; else every rank holds them whole.
    """

    group: dist.ProcessGroup | None = None
    sequence: bool = False
    vocabulary: bool = True

    def _move(self, x: Tensor, forward: _Move, backward: _Move) -> Tensor:
        assert self.group is not None
        return cast(Tensor, _Seam.apply(x, self.group, (forward, backward)))

    def enter(self, x: Tensor) -> Tensor:
        """(B, t or T, D) -> (B, T, D), before matrices cut by columns."""
        if self.group is None:
            return x
        return self._move(x, _gather, _scatter_sum) if self.sequence else self._move(x, _same, _sum)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """Partial sums (B, T, D) -> (B, t or T, D), behind matrices cut by rows."""
        if self.group is None:
            return x_BTD
        return self._move(x_BTD, _scatter_sum, _gather) if self.sequence else self._move(x_BTD, _sum, _same)

    def embed(self, tokens_BT: Tensor, weight_VD: Tensor) -> Tensor:
        """The embedding's rows: (B, t or T, D)."""
        weight = local(weight_VD)
        if self.group is None:
            return embedding(tokens_BT, weight)
        if not self.vocabulary:
            whole_BTD = embedding(tokens_BT, weight)
            return self._move(whole_BTD, _own_tokens, _gather) if self.sequence else whole_BTD
        rows_BT = tokens_BT - self.vocabulary_start(weight_VD)
        outside_BT = (rows_BT < 0) | (rows_BT >= weight.shape[0])
        if not weight.shape[0]:  # a rank may hold no row at all
            weight = pad(weight, (0, 0, 0, 1))
        own_BTD = embedding(rows_BT.masked_fill(outside_BT, 0), weight)
        return self.leave(own_BTD.masked_fill(outside_BT[..., None], 0.0))

    def to_head(self, hidden: Tensor) -> Tensor:
        """(B, t or T, D) -> (B, T, D), before the head."""
        if self.group is None or (not self.vocabulary and not self.sequence):
            return hidden
        return self.enter(hidden) if self.vocabulary else self._move(hidden, _gather, _own_tokens)

    @property
    def head_group(self) -> dist.ProcessGroup | None:
        """The group over which the head's vocabulary is cut, or None."""
        return self.group if self.vocabulary else None

    def vocabulary_start(self, weight_VD: Tensor) -> int:
        """The first vocabulary entry of this rank; torch cuts into equal pieces, the last ones shorter or empty."""
        if self.group is None or not self.vocabulary:
            return 0
        rows = weight_VD.shape[0]  # of the whole: a cut weight is a DTensor
        return min(-(-rows // self.group.size()) * self.group.rank(), rows)


ALONE = Spread()
"""Everything on this rank."""


def _cut(module: nn.Module, mesh: DeviceMesh, dim: int) -> None:
    weight = cast(Tensor, module.weight)
    group = mesh.get_group()
    size = -(-weight.shape[dim] // group.size())
    start = min(size * group.rank(), weight.shape[dim])
    own = weight.detach().narrow(dim, start, min(size, weight.shape[dim] - start)).contiguous()
    spread = DTensor.from_local(own, mesh, [Shard(dim)], run_check=False, shape=weight.shape, stride=weight.stride())
    module.register_parameter("weight", nn.Parameter(spread))


def cut_model(model: nn.Module, mesh: DeviceMesh, *, vocabulary: bool) -> None:
    """Replace the weights of a model by this rank's part of them, in place.

    Args:
        model: a ``Decoder``, on any device, "meta" too.
        mesh: the one-dimensional tensor mesh.
        vocabulary: cut embedding and head as well.
    """
    for name, module in list(model.named_modules()):
        if name.endswith(_COLUMNS):
            _cut(module, mesh, 0)
        elif name.endswith(_ROWS):
            _cut(module, mesh, 1)
    if not vocabulary:
        return
    embedding_, head = getattr(model, "embedding", None), getattr(model, "head", None)
    tied = embedding_ is not None and head is not None and embedding_.weight is head.weight
    for module_ in (embedding_, None if tied else head):
        if module_ is not None:
            _cut(module_, mesh, 0)
    if tied:
        cast(nn.Module, head).register_parameter("weight", cast(Any, embedding_).weight)


def sum_partial_gradients(model: nn.Module, spread: Spread) -> None:
    """Sum over the tensor group what each rank saw only a part of; call it between backward and the update.

    The norms of queries and keys see the heads of one rank; with ``sequence`` every other norm sees its tokens only.
    DTensor raises no error when this is left out: the ranks drift apart in silence.
    """
    if spread.group is None:
        return
    for name, parameter in model.named_parameters():
        partial = name.endswith(("q_norm.weight", "k_norm.weight")) or (spread.sequence and parameter.ndim == 1)
        if partial and parameter.grad is not None:
            dist.all_reduce(local(parameter.grad), group=spread.group)
