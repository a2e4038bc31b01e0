"""One step that several replicas share: all sums come first, then each decides whether it counts, then it updates.

Behind the decision nothing is sent, so a replica whose peers vanish at any moment has either the whole step, with all
of its numbers, or nothing of it. The division of the global batch follows the replicas that are there; the loss is
divided by the labels of the global batch (DESIGN 9), so what a step learns does not depend on the division.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from ..optim import Norms
from ..state import TrainState
from ..step import HEAD, PackedStep, StepOptions, StepPlan, compute_gradients, pack_step
from .members import Members

if TYPE_CHECKING:
    from loader.stream.batch import Batch
    from loader.stream.stream import Stream

__all__ = ["ReplicaSteps", "replica_step"]

_NORMS = slice(HEAD.index("grad_norm"), HEAD.index("finite") + 1)
_STOP, _WAITED = HEAD.index("stop"), HEAD.index("waited_s")


def replica_step(
    state: TrainState, batch: Batch, plan_of: Callable[[int], StepPlan], options: StepOptions, members: Members
) -> PackedStep | None:
    """Train on one step together; None if it does not count here: parameters and optimizer are as they were.

    Args:
        state: the whole model and optimizer. batch: this replica's part of the global batch, maybe empty.
        plan_of: from the labels of the global batch to what is known of the step. options: of a world of one.
    """
    counts = torch.tensor([batch.num_labels, int(members.leads)], dtype=torch.int64)
    members.sum_([counts])
    nll_B = torch.zeros(len(batch.positions_B), dtype=torch.float64)
    zero = torch.zeros(())
    norms = Norms(zero, zero, zero + 1)
    if members.failed:
        members.commit()  # says no, and counts the failure
        return None
    label_count, leaders = (int(count) for count in counts)
    # A replica computes its own samples and no idle ones: nothing is sent during the passes.
    plan = replace(plan_of(label_count), most_samples=max(1, len(batch.positions_B)))
    trains = label_count > 0
    if trains:
        compute_gradients(state, batch, plan, options, nll_B)
        members.sum_([one.grad for one in state.optimizer.parameters if one.grad is not None])
    vector = pack_step(batch, norms, nll_B, options, (0.0, 0.0))
    members.sum_([vector])
    if not members.commit():
        state.optimizer.zero_gradients()
        return None
    members.leaderless = leaders == 0
    if trains:
        norms = state.optimizer.step(plan.lr, vector[0])
        state.optimizer.zero_gradients()
    vector[_NORMS] = torch.stack((norms.gradient.double(), norms.update_square.double(), norms.finite.double()))
    return PackedStep(batch, plan.first_position, plan.lr, label_count, vector, options.source_names)


@dataclass
class ReplicaSteps:
    """The steps of one session: who is there, which samples are this replica's, and the step, until it counts.

    Attributes:
        members: of the run. stream: standing at ``step``, in any division. state, options: see :func:`replica_step`.
        plan_of: (step, labels) -> what is known of the step. step: the next one.
    """

    members: Members
    stream: Stream
    state: TrainState
    options: StepOptions
    plan_of: Callable[[int, int], StepPlan]
    step: int

    def __call__(self, stop: bool) -> PackedStep:
        """Do the next step.

        Args:
            stop: this replica was asked to leave; it alone does.

        Raises:
            Replaced: a peer is ahead and gave its state. JobError: see ``Members``.
        """
        plan_of = partial(self.plan_of, self.step)
        while True:
            self.members.meet()
            begin_s = time.perf_counter()
            batch = self._read()
            waited_s = time.perf_counter() - begin_s
            packed = replica_step(self.state, batch, plan_of, self.options, self.members)
            if packed is None:
                continue
            self.step += 1
            packed.vector[_STOP] = float(stop)
            packed.vector[_WAITED] = waited_s
            return packed

    def _read(self) -> Batch:
        """This replica's part of the step, in the division of those who are there."""
        config = replace(self.stream.config, data_rank=self.members.rank, num_data_ranks=self.members.size)
        if config != self.stream.config or self.stream.next_step != self.step:
            self.stream.load_state_dict(self.stream.state_dict(self.step))
            self.stream.config = config
        return next(self.stream)
