"""What each process of a run scores, and how their sums come together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loader.errors import RefusedError

from ..inputs import InputOptions, ModelInputs, to_inputs
from ..model import Decoder
from ..parallel.pipeline import stages_of_rank

if TYPE_CHECKING:
    from loader.stream.batch import Batch

    from ..parallel.pipeline import Pipeline
    from ..world import World

__all__ = ["ALONE", "Share", "forward", "parts_of_rows", "run_stages", "share_of", "staged_forward", "undisturbed"]


Forward = Callable[[Decoder, "Batch", InputOptions], Tensor]


def forward(model: Decoder, batch: Batch, options: InputOptions) -> Tensor:
    """What each label of the batch costs: (B, T) float32, nats, 0 where there is none or another process has it."""
    _, nll = model(to_inputs(batch, options), torch.ones((), device=options.device))
    return _in_place(nll, batch, options)


def _in_place(nll: Tensor, batch: Batch, options: InputOptions) -> Tensor:
    """Losses of this process's tokens at their places in the whole row."""
    if options.token_index_T is None:
        return nll
    nll_BT = nll.new_zeros(batch.tokens_BT.shape)
    nll_BT[:, torch.from_numpy(options.token_index_T).to(nll.device)] = nll
    return nll_BT


def staged_forward(pipeline: Pipeline, group: dist.ProcessGroup) -> Forward:
    """The same through the stages of a pipeline; only the process with the head has losses."""

    def run(model: Decoder, batch: Batch, options: InputOptions) -> Tensor:
        del model  # a part of the pipeline's
        found = run_stages(pipeline, group, to_inputs(batch, options), options.device)
        if found is None:
            return torch.zeros(batch.tokens_BT.shape, dtype=torch.float32, device=options.device)
        return _in_place(found, batch, options)

    return run


def run_stages(
    pipeline: Pipeline, group: dist.ProcessGroup, inputs: ModelInputs, device: torch.device
) -> Tensor | None:
    """One forward pass through the stages of a pipeline, one after the other: training's schedules exist to interleave
    backward passes, and there are none. What the last stage leaves for its labels; None on other processes.
    """
    rank, size = group.rank(), group.size()
    owners = {number: owner for owner in range(size) for number in stages_of_rank(pipeline.config, owner)[0]}
    parts = dict(zip(stages_of_rank(pipeline.config, rank)[0], pipeline.parts, strict=True))
    one, nll = torch.ones((), device=device), dict[int, Tensor]()
    passed: Tensor | None = None
    for number in range(len(owners)):
        part = parts.get(number)
        if part is None:
            continue
        if number and owners[number - 1] != rank:
            rows, tokens = inputs.tokens_BT.shape
            cut = part.spread.group.size() if part.spread.sequence and part.spread.group else 1
            shape = (rows, tokens // cut, part.shape.dim)
            passed = torch.empty(shape, dtype=part.precision.compute, device=device)
            dist.recv(passed, group=group, group_src=owners[number - 1])
        with undisturbed(part):
            given = inputs.tokens_BT if passed is None else passed
            passed = part(given, inputs=inputs, denominator=one, nll=nll, number=0)
        if number + 1 < len(owners) and owners[number + 1] != rank:
            dist.send(passed.contiguous(), group=group, group_dst=owners[number + 1])
    return nll.get(0)


def _keep(tensor: Tensor) -> None:
    del tensor


@dataclass(frozen=True)
class Share:
    """This process among those that hold a copy, or a part, of one model.

    Every process calls the model equally often, since it may be spread over all of them. Processes of the same data
    rank hand it the same rows.

    Attributes:
        rank, size: of the data ranks, which read different rows.
        counts: whether this process speaks for its rows: exactly one process a data rank does.
        scores: whether its losses enter the sums: all processes of a data rank that hold different tokens' do.
        sum_: add a tensor up over all processes, in place.
        forward: runs the model over whole rows, see :func:`forward`; a pipeline brings its own.
    """

    rank: int = 0
    size: int = 1
    counts: bool = True
    scores: bool = True
    sum_: Callable[[Tensor], None] = _keep
    forward: Forward = forward

    def own(self, num_rows: int, rows: int) -> list[range]:
        """The rows of each call of this process: as many calls on every data rank, the last ones short or empty.

        Args:
            num_rows: in all. rows: of one call.
        """
        calls = -(-num_rows // (rows * self.size))
        starts = [(call * self.size + self.rank) * rows for call in range(calls)]
        return [range(min(start, num_rows), min(start + rows, num_rows)) for start in starts]

    def total(self, tensor: Tensor, *, losses: bool = False) -> Tensor:
        """The sum over processes of what each speaks for, on all of them.

        Args:
            losses: it was made of what ``forward`` returned.
        """
        if not (self.scores if losses else self.counts):
            tensor = torch.zeros_like(tensor)
        self.sum_(tensor)
        return tensor

    def need_whole_rows(self, what: str, options: InputOptions) -> None:
        """Refuse what looks at a row's hidden vectors where no process has all of them.

        Raises:
            RefusedError: ``TR-EVALUATE-PARALLEL``.
        """
        if self.forward is not forward or options.token_index_T is not None:
            raise parts_of_rows(what)


def parts_of_rows(what: str) -> RefusedError:
    """What to raise where ``what`` is asked of a mesh on which no process has whole rows."""
    return RefusedError(
        "TR-EVALUATE-PARALLEL", f"whole rows on each process are needed by {what}", "evaluate.tasks",
        "no pipeline and no context parallelism, or other tasks", "tokenreel evaluate RUN, in one process",
    )  # fmt: skip


ALONE = Share()
"""One process."""


def share_of(world: World, pipeline: Pipeline | None = None) -> Share:
    """The share of this process of a world. ``pipeline``: where the model is cut into stages."""
    place, shape, group = world.mesh.place, world.mesh.shape, world.mesh.group("pipeline")
    run = forward if pipeline is None or group is None else staged_forward(pipeline, group)
    return Share(place.data, shape.data, world.counts, world.scores, world.sum_, run)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """No gradients and no dropout inside the block; the mode as before behind it. Neither draws a random number."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
