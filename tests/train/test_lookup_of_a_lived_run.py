"""A run that lived through stops, skips by hand, a spike and rollbacks: what ``locate``, ``replay`` and ``history`` say
of it, compared at every step of every branch with what an observer inside of the trainer saw it consume.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bumps import BumpedWatch, spec, spikes
from support.datasets import MadeDataset, decode, make_dataset
from support.training import ledger, losses, train, write_job

from loader.cli import main
from loader.order.skips import SkipEntry
from loader.run_folder import RunPaths
from loader.run_view import open_run
from loader.runs import next_attempt, read_branches, read_skips
from loader.stream.batch import IGNORED_LABEL
from train import session
from train.step import train_step

STEPS = 30


@dataclass
class Observer:
    """What the trainer was given: (branch, step) -> the batch of the last time, and the steps of each attempt."""

    root: Path
    batches: dict[tuple[int, int], Any] = field(default_factory=dict)
    attempts: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def see(self, batch: Any) -> None:
        paths = RunPaths(self.root)
        branch = read_branches(paths)[-1].number
        self.batches[branch, batch.step] = batch
        # Its ledger is there already, so the next one is the one after.
        self.attempts.setdefault((branch, next_attempt(paths, branch) - 1), []).append(batch.step)


@dataclass(frozen=True)
class Lived:
    made: MadeDataset
    root: Path
    seen: Observer


def command(*words: str) -> dict[str, Any]:
    """A command's JSON, got as a user gets it."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main([*words, "--json"])
    assert code == 0, out.getvalue()
    return dict(json.loads(out.getvalue()))


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    folder = tmp_path_factory.mktemp("lived")
    made = make_dataset(folder, spec())
    root = folder / "run"
    seen = Observer(root)

    def observed(state: Any, batch: Any, *args: Any, **options: Any) -> Any:
        seen.see(batch)
        return train_step(state, batch, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.loop.SpikeWatch", BumpedWatch)
        patch.setattr(BumpedWatch, "worse", {0: (19, 20, 21)})
        patch.setattr(BumpedWatch, "broken", {})
        patch.setattr(session, "train_step", observed)
        live(made, folder, str(root))
    return Lived(made, root, seen)


def live(made: MadeDataset, folder: Path, root: str) -> None:
    """Two sittings, cuts by hand between them, a spike in the second, a rollback by hand, more cuts, two sittings."""
    job = write_job(
        folder, made.path, steps=STEPS, spikes=spikes(), optimizer={"lr": 2e-2},
        checkpoint={"every_steps": 6, "keep_last": 9},
        data={"datasets": ["data"], "batch": [{"start": 0, "global_batch": 8}]},
    )  # fmt: skip
    assert train(job, "steps=9").branch == 0
    ahead = command("locate", root, "--step", "11")["samples"]
    command("skip", root, "--document", ahead[0]["segments"][0]["document"], "--reason", "by hand")
    command("skip", root, "--source", "web", "--samples", "40:44", "--mode", "drop")
    command("skip", root, "--positions", "84:90")
    assert train(job, "steps=25").branch == 1
    assert command("rollback", root, "--to", "14")["step"] == 12
    command("skip", root, "--steps", "16:17")
    ahead = command("locate", root, "--step", "18")["samples"]
    command("skip", root, "--document", ahead[3]["segments"][0]["document"], "--mode", "drop")
    assert train(job, "steps=20").branch == 2
    assert train(job).branch == 2


def all_steps(lived: Lived) -> Iterator[tuple[int, int, Any]]:
    """(branch asked about, step, the batch that its step was made of)."""
    for branch in (0, 1, 2):
        records = ledger(lived.root, branch)
        assert len(records) == {0: 22, 1: 25, 2: STEPS}[branch]
        for step, record in enumerate(records):
            yield branch, step, lived.seen.batches[int(record["branch"]), step]


def expected_segments(batch: Any) -> list[tuple[Any, ...]]:
    table = batch.segments
    return [
        (
            int(batch.positions_B[table.sample_index_S[row]]),
            f"{int(table.document_id_S[row]):016x}",
            int(table.token_start_S[row]),
            int(table.token_start_S[row] + table.num_tokens_S[row]),
            bool(table.masked_S[row]),
        )
        for row in np.flatnonzero(~table.padding_S)
    ]


def check_text(lived: Lived, batch: Any, row: int, segment: Mapping[str, Any], source: str) -> None:
    """The tokens that were trained on are the bytes of that document, as the test wrote it."""
    tokens = batch.tokens_BT[row, segment["token_start"] : segment["token_stop"]]
    labels = batch.labels_BT[row, segment["token_start"] : segment["token_stop"]]
    if segment["masked"]:
        assert (tokens == batch.filler).all()
        assert (labels == IGNORED_LABEL).all()
        return
    document = lived.made.documents[int(segment["document"], 16)]
    raw = document.text.encode()[segment["byte_start"] : segment["byte_stop"]]
    assert decode(tokens.tolist()) == raw
    assert (segment["record"], source) == (document.record, document.source)
    assert document.path.endswith(segment["file"])
    assert labels[:-1].tolist() == tokens[1:].tolist()


def test_the_run_went_as_told(lived: Lived) -> None:
    branches = read_branches(RunPaths(lived.root))
    assert [(one.parent, one.from_step) for one in branches] == [(None, 0), (0, 12), (1, 12)]
    kinds = [(entry.kind, entry.mode) for entry in read_skips(RunPaths(lived.root))]
    assert kinds[:3] == [("documents", "mask"), ("samples", "drop"), ("positions", "drop")]
    assert kinds[-2:] == [("positions", "drop"), ("documents", "drop")]
    assert len(kinds) >= 6
    assert losses(lived.root, 0)[:12] == losses(lived.root, 2)[:12]
    assert losses(lived.root, 0)[12:] != losses(lived.root, 2)[12:22]


def test_locate_says_what_was_consumed_at_every_step_of_every_branch(lived: Lived) -> None:
    masked = 0
    for branch, step, batch in all_steps(lived):
        found = command("locate", str(lived.root), "--step", str(step), "--branch", str(branch))
        assert (found["consumed"], found["matches_ledger"]) == (True, True)
        assert found["token_digest"] == f"{batch.token_digest:016x}"
        assert [sample["position"] for sample in found["samples"]] == batch.positions_B.tolist()
        told = [
            (sample["position"], one["document"], one["token_start"], one["token_stop"], one["masked"])
            for sample in found["samples"]
            for one in sample["segments"]
        ]
        assert told == expected_segments(batch), (branch, step)
        for row, sample in enumerate(found["samples"]):
            assert sample["sample"] == batch.sample_B[row]
            for segment in sample["segments"]:
                check_text(lived, batch, row, segment, sample["source"])
                masked += segment["masked"]
    assert masked >= 8


@pytest.mark.parametrize("branch", [0, 1, 2])
def test_replay_says_what_was_consumed_at_every_step(lived: Lived, branch: int) -> None:
    batches = {step: batch for own, step, batch in all_steps(lived) if own == branch}
    found = command(
        "replay",
        str(lived.root),
        "--steps",
        f"6:{len(batches)}",
        "--branch",
        str(branch),
        "--checkpoint",
        "step_000012",
    )
    assert found["checkpoint_step"] == 12
    assert found["baseline_segments"] >= 60
    clean: list[float] = []
    noise: list[float] = []
    for told in found["steps"]:
        batch = batches[told["step"]]
        assert told["matches_ledger"]
        assert told["token_digest"] == f"{batch.token_digest:016x}"
        rows = {int(position): row for row, position in enumerate(batch.positions_B)}
        keys = ("position", "document", "token_start", "token_stop", "masked")
        assert [tuple(one[key] for key in keys) for one in told["segments"]] == expected_segments(batch)
        for segment in told["segments"]:
            check_text(lived, batch, rows[segment["position"]], segment, segment["source"])
            if segment["num_labels"] >= 8:
                assert segment["head_gradient_norm"] > 0
                text = lived.made.documents[int(segment["document"], 16)].text
                (clean if " " in text else noise).append(segment["z"])
    # What z is for: noise is several deviations above, text around nothing.
    assert len(noise) >= 3
    assert abs(float(np.median(clean))) < 1.5
    assert min(noise) > float(np.quantile(clean, 0.9))
    assert float(np.median(noise)) > 3


def test_documents_are_found_at_the_steps_that_read_them(lived: Lived) -> None:
    """The other way round, for every eighth document of the current branch."""
    readings: dict[str, set[tuple[int, bool]]] = {}
    for branch, step, batch in all_steps(lived):
        if branch == 2:
            for _, document, _, _, masked in expected_segments(batch):
                readings.setdefault(document, set()).add((step, masked))
    for document in sorted(readings)[::8]:
        found = command("locate", str(lived.root), "--document", document)
        assert {(one["step"], one["masked"]) for one in found["readings"]} == readings[document]


def test_history_tells_every_attempt_branch_and_cut(lived: Lived) -> None:
    found = command("history", str(lived.root))
    told = {
        (branch["branch"], attempt["attempt"]): attempt["steps"]
        for branch in found["branches"]
        for attempt in branch["attempts"]
    }
    assert told == {key: [steps[0], steps[-1] + 1] for key, steps in lived.seen.attempts.items()}
    for key, steps in lived.seen.attempts.items():
        assert steps == list(range(steps[0], steps[-1] + 1)), key
    assert [
        SkipEntry.from_json({k: v for k, v in one.items() if k not in ("number", "branch")}) for one in found["skips"]
    ] == read_skips(RunPaths(lived.root))
    assert [one["branch"] for one in found["skips"]][:3] == [0, 0, 0]
    kinds = [event["kind"] for event in found["events"]]
    for kind, count in {"alarm": 1, "raised": 1, "verdict": 1, "rollback": 2, "outcome": 2, "skip": 5}.items():
        assert kinds.count(kind) == count, kind
    # The steps of the spike were done in both later branches, and each time it was gone.
    outcomes = [event for event in found["events"] if event["kind"] == "outcome"]
    assert [(one["branch"], one["outcome"]) for one in outcomes] == [(1, "recovered"), (2, "recovered")]
    assert open_run(lived.root).branch.number == found["current_branch"] == 2
