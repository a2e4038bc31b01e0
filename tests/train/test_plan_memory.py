"""The memory that a plan estimates against the bytes of tensors that really live while our model trains, on the CPU.

Tolerance: 4 % of the whole (parameters, gradients, optimizer, activations, head) at the peak of a step, 6 % of it
without parameters and optimizer, 0.5 % of what one more block keeps. What a kernel uses inside itself is seen by
neither side. Kernels of a GPU keep less (``Kernels``): that
part is arithmetic alone, checked by hand below, and was never measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.live_memory import LiveBytes

from train.attention import ATTENTION
from train.inputs import ModelInputs
from train.model import Decoder
from train.model_shape import ModelShape
from train.optim import Optimizer
from train.optim_config import OptimizerConfig
from train.plan.activations import block_bytes, block_kept_bytes
from train.plan.memory import RankMemory, rank_memory
from train.plan.parameters import count_parameters
from train.plan.pipeline import bubble_fraction, rank_parts, waiting_chunks
from train.plan.sizes import Kernels, MeshSizes, StepSizes
from train.precision import PRECISIONS
from train.recompute import RECOMPUTE

ALONE = MeshSizes()
SMALL = ModelShape(vocab_size=512, dim=128, layers=3, heads=4, kv_heads=4, ffn=320, seq_len=128)


@dataclass(frozen=True)
class Case:
    precision: str = "fp32"
    attention: str = "sdpa_mask"
    recompute: str = "none"
    micro_batches: int = 1
    model: ModelShape = SMALL
    samples: int = 8

    def step(self) -> StepSizes:
        return StepSizes(
            global_batch=self.samples * self.micro_batches,
            micro_batch=self.samples,
            compute_bytes=4 if self.precision == "fp32" else 2,
            recompute=self.recompute,  # type: ignore[arg-type]
            kernels=Kernels.of("cpu", self.attention),
        )


def build(case: Case) -> tuple[Decoder, Optimizer, ModelInputs]:
    sizes, attention = case.model, ATTENTION[case.attention]
    shape = ModelShape(
        sizes.vocab_size, sizes.dim, sizes.layers, sizes.heads, sizes.kv_heads, sizes.ffn, sizes.seq_len,
        qk_norm=sizes.qk_norm, tied=sizes.tied,
    )  # fmt: skip
    precision = PRECISIONS[case.precision]
    model = Decoder(shape, attention, precision).initialize(1)
    model.run_block = RECOMPUTE[case.recompute]
    segment_of_BT = np.zeros((case.samples, sizes.seq_len), np.int64)
    segment_of_BT[:, sizes.seq_len // 2 :] = 1
    tokens_BT = torch.randint(0, sizes.vocab_size, segment_of_BT.shape)
    positions_BT = torch.arange(sizes.seq_len).expand(tokens_BT.shape).contiguous()
    layout = attention.prepare(segment_of_BT, torch.device("cpu"), precision.compute)
    inputs = ModelInputs(tokens_BT, tokens_BT.clone(), positions_BT, layout)
    return model, Optimizer(list(model.named_parameters()), OptimizerConfig()), inputs


def measure(case: Case) -> tuple[int, int]:
    """(bytes at the end of the last forward pass, at the peak of a whole step)."""
    model, optimizer, inputs = build(case)
    known: list[Any] = [*model.parameters(), *(tensor for _, tensor in optimizer.state_tensors())]
    known += [inputs.tokens_BT, inputs.labels_BT, inputs.token_positions_BT]
    known += [inputs.layout] if isinstance(inputs.layout, torch.Tensor) else []
    after = 0
    with LiveBytes(known) as live:
        for _ in range(case.micro_batches):
            objective, nll_BT = model(inputs, torch.tensor(1024.0))
            after = live.live
            objective.backward()
            del objective
        optimizer.step(1e-3, nll_BT.sum())
    return after, live.peak


CASES = [
    Case(),
    Case("bf16"),
    Case("fp32", "sdpa_loop"),
    Case("bf16", "sdpa_loop", micro_batches=2),
    Case("fp32", "sdpa_mask", "full"),
    Case("bf16", "sdpa_loop", "full"),
    Case("fp32", "sdpa_loop", "full", micro_batches=2),
    Case("fp32", "sdpa_mask", "selective"),
    Case("bf16", "sdpa_mask", "selective", model=replace(SMALL, kv_heads=2)),
    Case("fp16"),
    Case("bf16", "sdpa_loop", model=replace(SMALL, kv_heads=2, qk_norm=True)),
    Case("fp32", model=replace(SMALL, vocab_size=6000, tied=True), samples=2),
    Case("bf16", model=replace(SMALL, vocab_size=20_000, seq_len=32, layers=1), samples=2),
    Case("fp32", "sdpa_mask", "full", model=replace(SMALL, dim=256, layers=6, seq_len=64), samples=2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.precision}-{case.attention}-{case.recompute}")
def test_the_peak_is_what_really_lives(case: Case) -> None:
    estimate = rank_memory(case.model, ALONE, case.step())[0]
    _, peak = measure(case)
    fixed = 12 * count_parameters(case.model).total
    assert estimate.peak == pytest.approx(peak, rel=0.04)
    assert estimate.peak - fixed == pytest.approx(peak - fixed, rel=0.06)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.precision}-{case.attention}-{case.recompute}")
def test_one_more_block_keeps_what_is_said(case: Case) -> None:
    more = replace(case, model=replace(case.model, layers=case.model.layers + 1))
    kept = measure(more)[0] - measure(case)[0]
    static = count_parameters(more.model).total - count_parameters(case.model).total
    gradients = 4 if case.micro_batches > 1 else 0
    copied = 2 if case.precision != "fp32" and case.recompute == "none" else 0
    expected = block_kept_bytes(case.model, ALONE, case.step()) + static * (12 + gradients + copied)
    assert kept == pytest.approx(expected, rel=0.005)


def test_recomputing_and_precision_keep_less() -> None:
    whole, full = (block_kept_bytes(SMALL, ALONE, Case(recompute=name).step()) for name in ("none", "full"))
    selective = block_kept_bytes(SMALL, ALONE, Case(recompute="selective").step())
    assert full < selective < whole
    assert full == 8 * 128 * 128 * 4
    assert block_bytes(SMALL, ALONE, Case("bf16").step()) < whole


def seven_b(**changes: Any) -> ModelShape:
    return replace(ModelShape(32_000, 4096, 32, 32, 32, 11_008, 4096), **changes)


def test_a_block_on_a_gpu_by_hand() -> None:
    """7B, bf16, 4,096 tokens: norms 2 x (4 D + 4), two inputs 2 D, four heads' tensors 2 D each, statistics 4 H,
    four feed-forward tensors 2 F each."""
    step = StepSizes(1, 1)
    token = 2 * (4 * 4096 + 4) + 2 * 2 * 4096 + 4 * 2 * 4096 + 4 * 32 + 4 * 2 * 11_008
    assert block_bytes(seven_b(), ALONE, step) == 4096 * token
    halved = block_bytes(seven_b(), replace(ALONE, tensor=2, sequence=True), step)
    assert halved == 4096 * (4 * 4096 + 4 + 2 * 2 * 4096 + (4 * 2 * 4096 + 4 * 32 + 4 * 2 * 11_008) / 2)


def one(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> RankMemory:
    return rank_memory(model, mesh, step)[0]


def test_what_each_way_to_share_the_state_holds() -> None:
    """16 bytes a parameter alone; an eighth of that cut over eight; copies of all matrices, or of two blocks."""
    model, step = seven_b(), StepSizes(8, 1)
    count = count_parameters(model).total
    alone = one(model, ALONE, replace(step, global_batch=1))
    assert (alone.parameters, alone.gradients, alone.optimizer) == (4 * count, 4 * count, 8 * count)
    ddp, zero2, fsdp = (one(model, MeshSizes(8, sharing), step) for sharing in ("ddp", "zero2", "fsdp"))
    assert ddp.parameters == 4 * count
    assert zero2.parameters == fsdp.parameters == count / 2
    assert fsdp.copies < zero2.copies
    assert fsdp.peak < zero2.peak < ddp.peak
    assert one(model, MeshSizes(8, "hsdp", replicas=2), step).parameters == count
    accumulated = one(model, MeshSizes(8), replace(step, global_batch=16))
    assert accumulated.gradients == 4 * count, "ranks keep whole gradients until the last micro-batch"


def test_pipeline_ranks_hold_their_blocks_and_wait_for_fewer() -> None:
    model, step = seven_b(layers=30), StepSizes(16, 1)
    ranks = rank_memory(model, MeshSizes(pipeline=4), step)
    assert [rank.blocks for rank in ranks] == [7, 8, 8, 7]
    assert sum(rank.num_parameters for rank in ranks) == count_parameters(model).total
    tied = rank_memory(replace(model, tied=True), MeshSizes(pipeline=4), step)
    assert sum(rank.num_parameters for rank in tied) == count_parameters(model).total, "both ends hold the table"
    assert [waiting_chunks(MeshSizes(pipeline=4), rank, 16) for rank in range(4)] == [4, 3, 2, 1]
    assert waiting_chunks(MeshSizes(pipeline=4, schedule="gpipe"), 3, 16) == 16
    assert waiting_chunks(MeshSizes(pipeline=4, schedule="interleaved"), 0, 16) == 11
    gpipe = rank_memory(model, MeshSizes(pipeline=4, schedule="gpipe"), step)
    assert gpipe[3].head > 15 * ranks[3].head / 2, "the head's gradient waits with every micro-batch"


def test_stages_are_cut_as_the_trainer_cuts_them() -> None:
    from train.parallel.config import ParallelConfig
    from train.parallel.pipeline import SCHEDULES, parts_of_rank

    for schedule in SCHEDULES:
        config = ParallelConfig(pipeline=4, schedule=schedule)  # type: ignore[arg-type]
        planned = rank_parts(31, MeshSizes(pipeline=4, schedule=schedule))
        for rank, part in enumerate(planned):
            real = parts_of_rank(config, 31, rank)
            assert part.blocks == tuple(len(one.blocks) for one in real)
            assert part.first == any(one.first for one in real)
            assert part.last == any(one.last for one in real)


def test_bubbles() -> None:
    assert bubble_fraction(MeshSizes(pipeline=4), 12) == 3 / 15
    assert bubble_fraction(MeshSizes(pipeline=4, schedule="interleaved"), 12) == 1.5 / 13.5
    assert bubble_fraction(MeshSizes(pipeline=4, schedule="zbv"), 12) == 0.0
    assert bubble_fraction(ALONE, 12) == 0.0
