"""One rank of attention over a context group: its outputs and gradients of every case, for comparison with one process.

All cases share the start of the processes, which costs more than they do. Legend as in train/attention/backend.py.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from support.attention import draw_qkv, plain_flash_attn, random_packing
from torch import Tensor

from train.attention import ATTENTION, LayoutOptions
from train.parallel.context import CONTEXT_METHODS, context_attention, context_tokens
from train.parallel.refusals import CONTEXT_CUTS

__all__ = ["ROWS", "B", "C", "Case", "H", "T", "cases", "replaced_segment", "weights"]

B, H, T, C = 3, 8, 48, 16
ROWS = ("sdpa_mask", "sdpa_loop", "flash_attn")
_TIMEOUT = datetime.timedelta(seconds=60)


@dataclass(frozen=True)
class Case:
    """``row`` flash_attn: with a plain kernel in the place of its own."""

    method: str
    row: str
    dtype: torch.dtype
    kv_heads: int
    seed: int
    scale: float | None = None

    @property
    def segment_of_BT(self) -> np.ndarray:
        return random_packing(self.seed, B, T, (1, 4, 12, T)[self.seed % 4])

    def qkv(self, replaced: int | None = None) -> list[Tensor]:
        """Whole samples; everything of segment ``replaced`` is something else, and large."""
        plain = draw_qkv((B, H, T, C), self.kv_heads, self.dtype, self.seed)
        if replaced is None:
            return plain
        other = draw_qkv((B, H, T, C), self.kv_heads, self.dtype, self.seed + 100)
        inside = torch.from_numpy(self.segment_of_BT == replaced)[:, None, :, None]
        return [torch.where(inside, 50 * y.detach(), x.detach()) for x, y in zip(plain, other, strict=True)]


def cases(size: int) -> list[Case]:
    """Every method over every row; heads that one, that few and that each have keys of their own."""
    found = []
    for method in CONTEXT_METHODS:
        fewest = size if CONTEXT_CUTS[method].splits_heads else 1
        for row in ROWS:
            for dtype in (torch.float32, torch.bfloat16):
                found += [Case(method, row, dtype, kv_heads, seed) for seed, kv_heads in enumerate((H, 4, fewest, 4))]
        found.append(Case(method, "sdpa_loop", torch.float32, 4, 6, scale=0.4))
    return found


def weights(dtype: torch.dtype) -> Tensor:
    """What the outputs are multiplied with before they are summed: (B, H, T, C)."""
    return torch.randn(B, H, T, C, generator=torch.Generator().manual_seed(9)).to(dtype)


def replaced_segment(case: Case) -> int:
    """The longest segment: it lies on several ranks."""
    numbers, counts = np.unique(case.segment_of_BT, return_counts=True)
    return int(numbers[counts.argmax()])


def _run(case: Case, replaced: int | None) -> list[Tensor]:
    """This rank's output and its gradients of q, k and v; in a run with a replaced segment its outputs do not count."""
    group = dist.group.WORLD
    assert group is not None
    index = torch.from_numpy(context_tokens(case.method, T, group.rank(), group.size()))
    backend = context_attention(ATTENTION[case.row], case.method, group, T)
    options = LayoutOptions(max_segments=T)
    layout = backend.prepare(case.segment_of_BT, torch.device("cpu"), case.dtype, options)
    # Laid out as the model's: heads behind tokens.
    own = [x.detach()[:, :, index].transpose(1, 2).contiguous().transpose(1, 2) for x in case.qkv(replaced)]
    own = [x.requires_grad_() for x in own]
    out = backend.attend(*own, layout, case.scale)
    inside = torch.from_numpy(case.segment_of_BT == replaced_segment(case))[:, None, index, None]
    counted = out.masked_fill(inside, 0.0) if replaced is not None else out
    (counted * weights(case.dtype)[:, :, index]).sum().backward()
    return [counted.detach(), *(x.grad for x in own if x.grad is not None)]


def main(folder: Path, rank: int, size: int) -> None:
    """Writes ``rank<rank>.pt``: case number -> tensors, and of the runs with a replaced segment."""
    torch.set_num_threads(1)
    method = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=_TIMEOUT)
    found: dict[str, list[Tensor]] = {}
    with plain_flash_attn():
        for number, case in enumerate(cases(size)):
            found[str(number)] = _run(case, None)
            # Only what does not count differs: the loss leaves the segment out in both.
            found[f"{number} replaced"] = _run(case, replaced_segment(case))
            found[f"{number} kept"] = _run(case, -1)
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
