"""What the test's process leaves behind cannot stop the ranks that are forked from it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch.distributed as dist
from support.worlds import run_ranks
from torch._C._distributed_c10d import HashStore


class _Holder:
    """Refers to itself, so that only the collector ends it."""

    def __init__(self, group: Any) -> None:
        self.me, self.group = self, group


def _leave_a_group() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    _Holder(dist.new_group(backend="gloo"))
    dist.destroy_process_group()


def test_a_rank_does_not_end_process_groups_of_its_parent(tmp_path: Path) -> None:
    """Their end would wait for threads that the fork did not take along: this once looked like a deadlock of saves."""
    gc.disable()
    try:
        _leave_a_group()
        ended = run_ranks(lambda rank: gc.collect() >= 0, 1, tmp_path / "world", limit_s=60)
    finally:
        gc.enable()
    assert [(one.code, one.value) for one in ended] == [(0, True)]
