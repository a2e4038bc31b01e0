"""Replicas that are killed and come back while the run goes on: every step stays what one process makes of it."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.replicas import (
    STEPS,
    Replica,
    at_step,
    job_in,
    lighthouse,
    pair,
    start_replica,
    steps_done,
    wait_until,
)
from support.training import ledger, train

from loader.errors import ConfigError
from loader.files import TEMPORARY_PREFIX
from loader.run_folder import RunPaths, lock_run, read_events
from loader.run_verify import verify_run
from train.checkpoint import list_checkpoints

ALIKE = ("step", "first_position", "next_position", "label_count", "token_digest", "lr", "source_labels_S")
CLOSE = ("loss", "grad_norm", "update_norm")


@pytest.fixture(scope="module", autouse=True)
def _torchft() -> None:
    """Loaded once, ahead of the forks; it starts no thread by itself."""
    os.environ.setdefault("RUST_LOG", "error")
    pytest.importorskip("torchft")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder, DatasetSpec(seq_len=32, seed=1, documents={"web": 8}), "held-out")
    return make_dataset(folder, DatasetSpec(seq_len=32))


@pytest.fixture(scope="module")
def alone(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run of one process that nothing disturbed."""
    folder = tmp_path_factory.mktemp("alone")
    assert train(job_in(folder, made, None)).outcome == "finished"
    return folder / "run"


def counts(root: Path) -> list[int]:
    """How many replicas there were, one number a change that a leader saw."""
    return [event["count"] for event in read_events(RunPaths(root)) if event["kind"] == "replicas"]


def evaluations(root: Path) -> dict[int, float]:
    """Step -> held-out loss."""
    return {event["step"]: event["loss"] for event in read_events(RunPaths(root)) if event["kind"] == "evaluation"}


def saved_steps(root: Path) -> list[int]:
    return [checkpoint.facts.step for checkpoint in list_checkpoints(RunPaths(root).checkpoints)[0]]


def check_as_alone(root: Path, alone: Path, ended: list[Replica], missed: int = 2) -> None:
    """Each step consumed the same tokens and learned the same to rounding; the replicas hold the same bits, and the end
    is saved. ``missed``: evaluations that nobody may have written; one is missed if the leader goes just then."""
    left, right = ledger(alone), ledger(root)
    assert len(right) == STEPS
    for name in ALIKE:
        assert left[name].tobytes() == right[name].tobytes(), name
    for name in CLOSE:
        assert np.max(np.abs(left[name] - right[name])) <= 5e-6, name
    asked, as_alone = evaluations(root), evaluations(alone)
    assert len(asked) >= len(as_alone) - missed
    assert all(abs(loss - as_alone[step]) <= 5e-6 for step, loss in asked.items())
    results = [replica.result for replica in ended]
    assert {(result["outcome"], result["step"]) for result in results} == {("finished", STEPS)}
    assert len({result["parameters"] for result in results}) == 1
    assert max(saved_steps(root)) == STEPS
    assert [finding for finding in verify_run(root) if finding.severity == "damage"] == []


@pytest.mark.slow
def test_a_killed_follower_changes_no_step(made: MadeDataset, tmp_path: Path, alone: Path) -> None:
    root = tmp_path / "run"
    with pair(tmp_path, made) as (_, first, second):
        at_step(root, steps_done(root) + 20)
        second.kill()
        wait_until(first.has_ended, "the end")
    assert first.code == 0, first.result
    assert counts(root) == [1, 2, 1]
    check_as_alone(root, alone, [first])


@pytest.mark.slow
def test_a_killed_leader_is_followed_and_comes_back(made: MadeDataset, tmp_path: Path, alone: Path) -> None:
    root = tmp_path / "run"
    with pair(tmp_path, made) as (job, first, second):
        at_step(root, steps_done(root) + 10)
        unfinished = root / "checkpoints" / f"{TEMPORARY_PREFIX}9-0123abcd-step_000007"  # as if killed while it saved
        unfinished.mkdir()
        first.kill()
        wait_until(lambda: "this replica leads now" in second.said, "another leader")
        wait_until(lambda: not unfinished.exists(), "what was never finished to go")
        with start_replica(job, "c") as third:
            wait_until(lambda: "joined at step" in third.said, "the first replica again")
            wait_until(lambda: second.has_ended() and third.has_ended(), "the end")
    assert (second.code, third.code) == (0, 0), (second.result, third.result)
    assert counts(root) == [1, 2, 1, 2]
    check_as_alone(root, alone, [second, third])


@pytest.mark.slow
def test_a_leader_that_is_asked_to_leave_saves_and_the_other_goes_on(
    made: MadeDataset, tmp_path: Path, alone: Path
) -> None:
    root = tmp_path / "run"
    with pair(tmp_path, made) as (_, first, second):
        first.kill(signal.SIGTERM)
        wait_until(first.has_ended, "the leader's leave")
        wait_until(second.has_ended, "the end")
    assert (first.code, second.code) == (0, 0), (first.result, second.result)
    assert first.result["outcome"] == "stopped"
    assert 5 < first.result["step"] < STEPS
    check_as_alone(root, alone, [second])


@pytest.mark.slow
def test_all_killed_and_started_again(made: MadeDataset, tmp_path: Path, alone: Path) -> None:
    """Nobody lives who could give a state: the newest checkpoint does."""
    root = tmp_path / "run"
    with lighthouse(tmp_path) as address:
        job = job_in(tmp_path, made, address)
        with start_replica(job, "a") as first, start_replica(job, "b") as second:
            at_step(root, 30)
            second.kill()
            first.kill()
        with start_replica(job, "c") as third, start_replica(job, "d") as fourth:
            wait_until(lambda: third.has_ended() and fourth.has_ended(), "the end")
    assert (third.code, fourth.code) == (0, 0), (third.result, fourth.result)
    check_as_alone(root, alone, [third, fourth])


@pytest.mark.slow
def test_a_replica_of_another_configuration_is_refused(made: MadeDataset, tmp_path: Path, alone: Path) -> None:
    root = tmp_path / "run"
    with lighthouse(tmp_path) as address:
        job = job_in(tmp_path, made, address)
        other = job_in(tmp_path / "other", made, address, output="../run", optimizer={"lr": 0.5})
        with start_replica(job, "a") as first:
            at_step(root, 5)
            with start_replica(other, "b") as second:
                wait_until(second.has_ended, "a refusal")
                assert second.result["told"] == "TR-REPLICA-CONFIG"
                wait_until(first.has_ended, "the end")
    assert first.code == 0, first.result
    check_as_alone(root, alone, [first])


@pytest.mark.slow
def test_too_few_replicas_wait_for_more(made: MadeDataset, tmp_path: Path, alone: Path) -> None:
    root = tmp_path / "run"
    with lighthouse(tmp_path) as address:
        job = job_in(tmp_path, made, address, {"min_replicas": 2})
        with start_replica(job, "a") as first:
            wait_until(lambda: "1 of 2 replicas" in first.said or first.has_ended(), "a wait")
            assert steps_done(root) == 0
            with start_replica(job, "b") as second:
                wait_until(lambda: first.has_ended() and second.has_ended(), "the end")
    assert (first.code, second.code) == (0, 0), (first.result, second.result)
    assert first.said.count("1 of 2 replicas") == 1
    assert counts(root) == [2]
    check_as_alone(root, alone, [first, second])


@pytest.mark.slow
def test_too_few_replicas_end_after_the_longest_wait(made: MadeDataset, tmp_path: Path) -> None:
    with lighthouse(tmp_path) as address:
        job = job_in(tmp_path, made, address, {"min_replicas": 2, "quorum_timeout_s": 3})
        with start_replica(job, "a") as first:
            wait_until(first.has_ended, "an error")
    assert first.result["told"] == "TR-REPLICA-QUORUM"
    assert "1 of 2 for 3 s" in first.result["text"]
    assert "next: torchft_lighthouse --min_replicas 2" in first.result["text"]
    assert steps_done(tmp_path / "run") == 0


def leave_alone(root: Path, leader: Replica, follower: Replica) -> None:
    """Kill the leader; the follower stands still until it is woken, so it cannot take the lock."""
    at_step(root, steps_done(root) + 5)
    follower.kill(signal.SIGSTOP)
    leader.kill()


@pytest.mark.slow
def test_a_follower_that_reaches_the_end_alone_saves_it(made: MadeDataset, tmp_path: Path, alone: Path) -> None:
    """The run's lock is held until behind the last step, as by a leader that was asked to leave and saves for long."""
    root = tmp_path / "run"
    with pair(tmp_path, made) as (_, first, second):
        leave_alone(root, first, second)
        with lock_run(RunPaths(root)):
            second.kill(signal.SIGCONT)
            waiting = f"step {STEPS}: waiting for its checkpoint"
            wait_until(lambda: waiting in second.said or second.has_ended(), "the last step")
            assert steps_done(root) < STEPS
        wait_until(second.has_ended, "the end")
    assert second.code == 0, second.result
    check_as_alone(root, alone, [second], missed=4)


@pytest.mark.slow
def test_the_last_one_that_is_asked_to_leave_saves_what_it_did_alone(made: MadeDataset, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with pair(tmp_path, made) as (_, first, second):
        leave_alone(root, first, second)
        with lock_run(RunPaths(root)):
            second.kill(signal.SIGTERM)
            second.kill(signal.SIGCONT)
            wait_until(lambda: "waiting for its checkpoint" in second.said or second.has_ended(), "its leave")
            assert not second.has_ended()
        wait_until(second.has_ended, "the end")
    assert second.code == 0, second.result
    assert second.result["outcome"] == "stopped"
    assert steps_done(root) == second.result["step"] == max(saved_steps(root)) < STEPS
    assert [finding for finding in verify_run(root) if finding.severity == "damage"] == []


@pytest.mark.slow
def test_an_end_that_cannot_be_saved_is_no_success(made: MadeDataset, tmp_path: Path) -> None:
    root = tmp_path / "run"
    with pair(tmp_path, made, {"quorum_timeout_s": 20}) as (_, first, second):
        leave_alone(root, first, second)
        with lock_run(RunPaths(root)):
            second.kill(signal.SIGCONT)
            wait_until(second.has_ended, "an error")
    assert second.result["told"] == "TR-REPLICA-UNSAVED"
    assert max(saved_steps(root)) < STEPS


@pytest.mark.slow
def test_a_follower_that_slept_goes_on_from_what_the_dead_leader_saved(
    made: MadeDataset, tmp_path: Path, alone: Path
) -> None:
    root = tmp_path / "run"
    # The leader waits so long for the one that sleeps.
    with pair(tmp_path, made, {"timeout_s": 5}) as (_, first, second):
        at_step(root, steps_done(root) + 5)
        second.kill(signal.SIGSTOP)
        slept_at = steps_done(root)
        wait_until(lambda: max(saved_steps(root)) > slept_at + 2, "a checkpoint without the second replica")
        first.kill()
        saved = max(saved_steps(root))
        second.kill(signal.SIGCONT)
        wait_until(second.has_ended, "the end")
    assert second.code == 0, second.result
    assert "behind the run's folder" in second.said
    begins = [int(found) for found in re.findall(r"attempt \d+: from step (\d+)", second.said)]
    assert begins[0] <= slept_at + 1
    assert begins[-1] == saved < STEPS
    check_as_alone(root, alone, [second])


@pytest.mark.slow
def test_a_missing_lighthouse_is_named(made: MadeDataset, tmp_path: Path) -> None:
    address = "http://127.0.0.1:9"
    torchft = {"lighthouse": address, "host": "127.0.0.1", "timeout_s": 1}
    with start_replica(job_in(tmp_path, made, None, run={"torchft": torchft}), "a") as lost:
        wait_until(lost.has_ended, "an error")
    assert lost.result["told"] == "TR-REPLICA-QUORUM"
    assert address in lost.result["text"]


def test_the_extra_is_named_where_the_package_is_missing(
    made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)  # as Python itself marks a module that cannot be imported
    with pytest.raises(ConfigError, match=r"TR-REPLICA-PACKAGE(.|\n)*tokenreel\[torchft\]"):
        train(job_in(tmp_path, made, "http://127.0.0.1:9"))
