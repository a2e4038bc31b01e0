"""The leading process may take longer over something than processes wait for each other."""

from __future__ import annotations

import time
from pathlib import Path

from support.worlds import run_ranks

from loader.errors import JobError
from train import world as module
from train.world import World, join_world


def test_the_others_hear_that_it_goes_on_until_it_ends(tmp_path: Path) -> None:
    heard = tmp_path / "heard"

    def work(rank: int) -> list[object]:
        module._PULSE_S = 0.01
        share, pulses = World.share, []

        def counted(self: World, *args: object) -> object:
            pulses.append(1)
            if rank == 1 and len(pulses) == 4:
                heard.touch()
            return share(self, *args)  # type: ignore[arg-type]

        World.share = counted  # type: ignore[assignment,method-assign]

        def slow() -> list[int]:
            while not heard.exists():
                time.sleep(0.01)
            return [3, rank]

        def failing() -> None:
            raise JobError("TR-REMOTE-FAILED", "no answer", "s3://bucket")

        with join_world("cpu") as world:
            value = world.share_slowly(slow)
            try:
                world.share_slowly(failing)
            except JobError as error:
                return [value, error.code]
        return [value, None]

    ended = run_ranks(work, 2, tmp_path / "world")
    assert [one.value for one in ended] == [[[3, 0], "TR-REMOTE-FAILED"]] * 2
