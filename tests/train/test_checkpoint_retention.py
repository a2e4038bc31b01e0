"""Retention: what stays by number and by day, and that no schedule of savers and removers loses the last good one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.files import digest_bytes
from loader.sealed import write_sealed
from train import checkpoint as checkpoint_module
from train import retention
from train.checkpoint import Checkpoint, CheckpointFacts, list_checkpoints, pin, remove_unfinished, verify_checkpoint
from train.retention import newest_of_days, remove_older

DAY_S = 86_400.0


def small(folder: Path, number: int, time_s: float = 0.0) -> Checkpoint:
    """A checkpoint without tensors, of the same form: what retention looks at."""
    facts = CheckpointFacts(number, 0, 0, number, {}, {}, {}, time_s)
    temporary = folder / checkpoint_module._make_temporary(folder, facts)
    data = b"%d" % number
    (temporary / "__0_0.distcp").write_bytes(data)
    files = {"__0_0.distcp": (len(data), digest_bytes(data))}
    name = checkpoint_module._commit(temporary, number, checkpoint_module._commit_value(files, facts))
    return Checkpoint(folder / name, facts, files)


def numbers(folder: Path) -> list[int]:
    return [found.facts.number for found in list_checkpoints(folder)[0]]


def test_last_few_one_a_day_and_pinned_ones_stay(tmp_path: Path) -> None:
    made = [small(tmp_path, number, DAY_S * (number // 3) + 7) for number in range(12)]
    pin(made[1])
    removed = remove_older(tmp_path, made[-2:], newest_of_days(made, 3))
    # days: 0 1 2 | 3 4 5 | 6 7 8 | 9 10 11, of which the last three count
    assert numbers(tmp_path) == [1, 5, 8, 10, 11]
    assert len(removed) == 7
    assert remove_older(tmp_path, made[-2:], []) == [made[5].path, made[8].path]


@given(clocks=st.lists(st.floats(-1e13, 1e13) | st.integers(0, 9).map(lambda day: DAY_S * day), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_clock_that_jumps_neither_hides_the_newest_nor_keeps_two_of_a_day(clocks: list[float]) -> None:
    made = [
        Checkpoint(Path(str(number)), CheckpointFacts(number, 0, 0, number, {}, {}, {}, time_s), {})
        for number, time_s in enumerate(clocks)
    ]
    for days in (0, 1, 3, 99):
        kept = newest_of_days(made, days)
        labels = [retention.day_of(one) for one in kept]
        assert len(set(labels)) == len(labels) <= days
        assert kept[:1] == made[-1:][:days]
        for one in kept:  # the newest of its day
            assert one.facts.number == max(m.facts.number for m in made if retention.day_of(m) == retention.day_of(one))


def schedule(folder: Path, rng: random.Random) -> Iterator[Callable[[], None]]:
    """One writer's life as steps that others may come between: save, commit, verify, list, remove, begin again."""
    own: list[Checkpoint] = []
    while True:
        known = list_checkpoints(folder)[0]
        number = max((one.facts.number for one in known), default=-1) + 1
        facts = CheckpointFacts(number, 0, 0, number, {}, {}, {}, DAY_S * rng.randrange(4))
        yield
        try:
            temporary = folder / checkpoint_module._make_temporary(folder, facts)
            yield
            data = rng.randbytes(9)
            (temporary / "__0_0.distcp").write_bytes(data)
            yield
            files = {"__0_0.distcp": (len(data), digest_bytes(data))}
            name = checkpoint_module._commit(temporary, number, checkpoint_module._commit_value(files, facts))
        except OSError:  # another one removed what it took for a dead writer's: this save failed, and says so
            continue
        own = [*own, Checkpoint(folder / name, facts, files)]
        yield
        if rng.random() < 0.7:
            try:
                verify_checkpoint(own[-1])  # as the saver does before anything is removed
                remove_older(folder, own[-rng.randrange(1, 3) :], newest_of_days(own, rng.randrange(3)))
            except checkpoint_module.DamageError:  # another one removed it: nothing is removed here
                pass
        yield
        if rng.random() < 0.1:
            remove_unfinished(folder)


@pytest.mark.parametrize("seed", range(25))
def test_writers_and_a_remover_never_leave_less_than_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers without a lock, and another remover, in a random order; between any two calls that change the folder
    one checkpoint is whole."""
    rng, folder = random.Random(seed), tmp_path / "checkpoints"
    small(folder, 0)
    checks = [0]

    def check() -> None:
        checks[0] += 1
        good, damaged = list_checkpoints(folder)
        assert not damaged
        assert good
        verify_checkpoint(good[-1])

    rename, remove = retention.os.rename, shutil.rmtree

    def checked_rename(*args: object) -> None:
        rename(*args)  # type: ignore[arg-type]
        check()

    monkeypatch.setattr(retention.os, "rename", checked_rename)
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: (remove(path, ignore_errors), check()))
    lives = [schedule(folder, random.Random(f"{seed} {number}")) for number in range(2)]
    for _ in range(120):
        next(rng.choice(lives))
        if rng.random() < 0.1:
            known = list_checkpoints(folder)[0]
            remove_older(folder, known[-rng.randrange(1, 4) :])
        check()
    assert checks[0] > 120


def test_a_record_that_never_was_sealed_is_no_checkpoint(tmp_path: Path) -> None:
    """What cannot be read is neither counted nor removed."""
    made = [small(tmp_path, number) for number in range(4)]
    (made[0].path / "COMMIT.json").write_bytes(b"")
    write_sealed(made[1].path / "COMMIT.json", {"format": "else"})
    assert [path.name for path in remove_older(tmp_path, made[-1:])] == ["step_000002"]
    assert made[0].path.is_dir()
    assert made[1].path.is_dir()
