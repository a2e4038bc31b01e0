"""``confirm: full``: which innocents a placebo takes, what trials decide, and one whole run with a planted source."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bumps import SPIKES, BumpedWatch, spec, spikes
from support.datasets import DatasetSpec, make_dataset
from support.spikes import World, step_records
from support.training import train, write_job
from support.worlds import run_ranks

from loader.run_folder import RunPaths, read_events
from loader.runs import read_branches, read_skips
from loader.settings import load_config
from train import loop
from train.config import TrainConfig
from train.process import train_process
from train.spikes.attribute import Attribution, SegmentColumns, attribute, concatenate
from train.spikes.config import AttributionConfig, DetectorConfig, SpikeConfig
from train.spikes.confirm import Confirmation, innocents, trials_of
from train.spikes.decide import judge_recovery
from train.spikes.records import Verdict
from train.spikes.rollback import RollbackRecord, rollbacks_from
from train.spikes.score import score_batch
from train.spikes.watch import SpikeWatch

STAGES = [(0, {"left": 0.5, "right": 0.5})]
CONFIG = SpikeConfig(
    patience=8,
    max_cut_fraction=0.5,
    confirm="full",
    detectors=DetectorConfig(warmup_steps=40, window_steps=32),
    attribution=AttributionConfig(baseline_segments=300, baseline_source_segments=60),
)
SPIKE_AT = 120


def scored(world: World) -> tuple[SegmentColumns, Attribution]:
    frozen = world.load_frozen(100)
    assert frozen is not None
    parts = [score_batch(frozen, world.read_batch(step), None, step < 112) for step in range(72, 128)]
    columns = concatenate(parts)
    return columns, attribute(columns, CONFIG.attribution)


def verdict_on(world: World, config: SpikeConfig = CONFIG, *, broken: bool = False) -> Verdict:
    watch = SpikeWatch(config, STAGES)
    for record in step_records(200, bump=lambda step: 1.0 if step >= SPIKE_AT else 0.0):
        finite = not broken or record.step < SPIKE_AT
        if watch.observe(dataclasses.replace(record, finite=finite)).kind == "investigate":
            return watch.investigate(world)
    raise AssertionError("no investigation")


def test_innocents_are_as_many_reproducible_and_another_key_s_are_others() -> None:
    columns, found = scored(World(bad_from=SPIKE_AT, planted=False, checkpoints=(0, 100)))
    chosen, tokens = innocents(columns, found, "a")
    flagged = set(columns.document_S[found.flagged_S].tolist())
    assert chosen
    assert not flagged & set(chosen)
    assert set(chosen) <= set(columns.document_S[~columns.baseline_S].tolist())
    counted = columns.num_labels_S[np.isin(columns.document_S, chosen) & ~columns.baseline_S].sum()
    assert found.flagged_tokens <= tokens == counted <= found.flagged_tokens + 48
    order = np.random.default_rng(0).permutation(len(columns))
    turned = SegmentColumns(**{f.name: getattr(columns, f.name)[order] for f in dataclasses.fields(columns)})
    assert innocents(turned, dataclasses.replace(found, flagged_S=found.flagged_S[order]), "a") == (chosen, tokens)
    assert innocents(columns, found, "b")[0] != chosen


def test_only_a_cut_by_attribution_gets_trials() -> None:
    world = World(bad_from=SPIKE_AT, planted=False, checkpoints=(0, 100))
    verdict = verdict_on(world)
    (placebo,) = verdict.placebo
    assert (verdict.action, placebo.kind, placebo.mode, placebo.stamp) == ("mask", "documents", "mask", 800)
    assert not set(placebo.documents) & set(verdict.entries[0].documents)
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    replaced = verdict_on(world, dataclasses.replace(CONFIG, max_cut_fraction=0.01))
    assert (replaced.action, replaced.placebo[0].mode) == ("replace", "drop")
    assert not verdict_on(world, dataclasses.replace(CONFIG, dry_run=True)).placebo
    assert not verdict_on(world, dataclasses.replace(CONFIG, confirm="continue")).placebo
    nothing_odd = verdict_on(World(bad_from=10**9, checkpoints=(0, 100)), broken=True)
    assert (nothing_odd.action, nothing_odd.placebo) == ("skip_range", ())


def case_of(tmp_path: Path, *, finite: bool = True) -> Confirmation:
    verdict = verdict_on(World(bad_from=SPIKE_AT, planted=False, checkpoints=(0, 100)))
    record = dataclasses.replace(rollbacks_from(verdict.entries)[-1], recorded_loss=4.0, expected_loss=3.0)
    entries = tuple(dataclasses.replace(entry, evidence=record.evidence()) for entry in verdict.entries)
    return Confirmation(RunPaths(tmp_path), 0, dataclasses.replace(verdict, entries=entries), finite)


@pytest.mark.parametrize(
    ("unmasked", "placebo", "decision"),
    [
        ([4.0, 4.0], [4.1, 3.9], "upheld"),
        ([4.0, 4.0], [3.4, 3.5], "not_data"),
        ([3.0, 3.2], [4.0, 4.0], "not_data"),
        ([float("nan"), 4.0], [float("nan")], "upheld"),
    ],
)
def test_a_spike_that_goes_without_the_cut_is_not_in_the_data(
    tmp_path: Path, unmasked: list[float], placebo: list[float], decision: str
) -> None:
    case = case_of(tmp_path)
    assert case.read() == {}
    found = {"unmasked": case.result(unmasked), "placebo": case.result(placebo)}
    decided = case.decide(found)
    assert decided["decision"] == decision
    case.write({**found, **decided})
    assert case.read() == {**found, **decided}
    assert case.goes_on(decision) == (decision == "not_data")
    assert not case_of(tmp_path, finite=False).goes_on(decision)  # there is nothing to go on with
    record = rollbacks_from(case.with_trials(found, decision).entries)[-1]
    assert record.upheld == (decision == "upheld")
    outcome = judge_recovery(record, [3.1, 3.1])
    assert outcome["outcome"] == ("confirmed" if decision == "upheld" else "not_data")
    assert outcome["trials"] == {name: found[name]["loss"] for name in found}
    assert judge_recovery(record, [4.0, 4.0])["outcome"] == "not_recovered"


def test_results_of_another_cut_are_not_taken(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    case.write({"unmasked": case.result([4.0])})
    found: dict[str, Any] = {name: case.result([3.0]) for name in ("unmasked", "placebo")}
    less = dataclasses.replace(case.verdict.placebo[0], documents=case.verdict.placebo[0].documents[1:])
    for other in (
        dataclasses.replace(case, branch=1),
        dataclasses.replace(case, verdict=dataclasses.replace(case.verdict, placebo=(less,))),
    ):
        assert other.read() == {}
        case.write({**found, **case.decide(found)})
        # But that it was not the data holds for this window of this branch, whatever is flagged in it the next time.
        assert bool(other.read()) == (other.branch == 0)
        case.write({"unmasked": case.result([4.0])})


def _at(case: Confirmation, alarm: int, lead: int = 8, patience: int = 8) -> Confirmation:
    """The same question about an alarm at another step."""
    record = dataclasses.replace(case.record, start=alarm - lead, alarm=alarm, stop=alarm + patience)
    entries = tuple(dataclasses.replace(entry, evidence=record.evidence()) for entry in case.verdict.entries)
    return dataclasses.replace(case, verdict=dataclasses.replace(case.verdict, entries=entries))


@pytest.mark.parametrize(
    ("alarm", "is_answered"),
    [
        (SPIKE_AT, True),
        (SPIKE_AT + 1, True),  # where arithmetic is not repeated bit by bit, the alarm may come a step later
        (SPIKE_AT - 1, True),  # ... or earlier
        (SPIKE_AT + 7, True),
        (SPIKE_AT + 8, False),  # the first step that the trials did not run; its window begins inside of theirs
        (SPIKE_AT + 15, False),
        (SPIKE_AT - 12, False),
        (SPIKE_AT - 9, False),  # its window reaches into theirs
    ],
)
def test_what_was_decided_about_a_window_answers_its_own_alarm_alone(
    tmp_path: Path, alarm: int, is_answered: bool
) -> None:
    case = case_of(tmp_path)
    found = {name: case.result([3.0]) for name in ("unmasked", "placebo")}
    case.write({**found, **case.decide(found)})
    assert bool(_at(case, alarm).read()) == is_answered


def test_without_innocents_the_unmasked_trial_runs_alone_and_confirms_nothing(tmp_path: Path) -> None:
    world = World(bad_from=SPIKE_AT - 8, share=1.0, planted=False, checkpoints=(0, 100))
    verdict = verdict_on(world, dataclasses.replace(CONFIG, max_cut_fraction=1.0))
    assert (verdict.action, verdict.placebo, verdict.report["placebo_tokens"]) == ("mask", (), 0)
    assert trials_of(verdict) == ("unmasked",)
    assert trials_of(Verdict.from_json(json.loads(json.dumps(verdict.to_json())))) == ("unmasked",)
    case = Confirmation(RunPaths(tmp_path), 0, verdict, True)
    high = float(case.record.recorded_loss or 0.0)
    for loss, decision, outcome in ((high, "upheld", "recovered"), (0.0, "not_data", "not_data")):
        found = {"unmasked": case.result([loss])}
        decided = case.decide(found)
        assert decided["decision"] == decision
        assert ("no innocents" in decided["why"]) == (decision == "upheld")
        case.write({**found, **decided})
        assert case.read() == {**found, **decided}
        record = rollbacks_from(case.with_trials(found, decision).entries)[-1]
        assert set(record.trials or ()) == {"unmasked"}
        assert judge_recovery(record, [0.0])["outcome"] == outcome


@pytest.mark.parametrize("tried", [("unmasked",), ("unmasked", "placebo")])
def test_what_is_decided_is_not_tried_again_though_another_cut_has_other_trials(
    tmp_path: Path, tried: tuple[str, ...]
) -> None:
    """The steps done again may flag more, or less, and leave no innocents, or some."""
    case = case_of(tmp_path)
    alone = {**case.verdict.report, "placebo_tokens": 0}
    other = dataclasses.replace(case, verdict=dataclasses.replace(case.verdict, placebo=(), report=alone))
    first, then = (other, case) if len(tried) == 1 else (case, other)
    assert first.missing({}) == list(tried)
    assert first.missing({"unmasked": {}}) == list(tried[1:])
    found = {name: first.result([3.0 if name == tried[-1] else 4.0]) for name in tried}
    decided = {**found, **first.decide(found)}
    assert decided["decision"] == "not_data"
    first.write(decided)
    again = then.read()
    assert (again, then.missing(again)) == (decided, [])
    assert then.decide(again)["decision"] == "not_data"
    assert set(rollbacks_from(then.with_trials(again, "not_data").entries)[-1].trials or ()) == set(tried)


def test_which_verdicts_ask_for_trials() -> None:
    world = World(bad_from=SPIKE_AT, planted=False, checkpoints=(0, 100))
    assert trials_of(verdict_on(world)) == ("unmasked", "placebo")
    assert trials_of(verdict_on(world, dataclasses.replace(CONFIG, dry_run=True))) == ()
    assert trials_of(verdict_on(world, dataclasses.replace(CONFIG, confirm="continue"))) == ()
    assert trials_of(verdict_on(World(bad_from=10**9, checkpoints=(0, 100)), broken=True)) == ()


def test_a_run_without_innocents_makes_the_unmasked_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read counts as odd here. The spike is only told, so that the same steps do not show it again."""
    monkeypatch.setattr(loop, "SpikeWatch", BumpedWatch)
    monkeypatch.setattr(BumpedWatch, "worse", {0: (15, 16, 17)})
    monkeypatch.setattr(BumpedWatch, "broken", {})
    made = make_dataset(tmp_path, spec())
    job: dict[str, Any] = {
        "steps": 22,
        "model": {"dim": 16, "layers": 1, "heads": 2, "ffn": 24},
        "checkpoint": {"every_steps": 6, "keep_last": 3},
        "data": {"datasets": [str(made.path)], "batch": [{"start": 0, "global_batch": 8}]},
        "spikes": spikes(confirm="full", attribution={**SPIKES["attribution"], "threshold": 1e-9}),
    }
    found = train(write_job(tmp_path, made.path, **job))
    events = read_events(RunPaths(tmp_path / "run"))
    verdicts = [event for event in events if event["kind"] == "verdict"]
    assert {(one["placebo_tokens"], one["flagged_tokens"] == one["window_tokens"]) for one in verdicts} == {(0, True)}
    assert [event["trial"] for event in events if event["kind"] == "trial"] == ["unmasked"]
    assert [event["outcome"] for event in events if event["kind"] == "outcome"] == ["not_data"]
    assert (found.outcome, found.rollbacks, read_skips(RunPaths(tmp_path / "run"))) == ("finished", 0, [])


def test_without_trials_nothing_is_called_confirmed() -> None:
    record = RollbackRecord(0, 112, 120, 128, 100, 800, "mask", 4.0, 3.0)
    assert judge_recovery(record, [3.0])["outcome"] == "recovered"
    assert RollbackRecord(**json.loads(json.dumps(record.evidence()))["spike"]) == record


def planted_texts() -> dict[str, list[str]]:
    rng = random.Random(3)
    words = ("the", "reel", "winds", "on", "under", "and", "while", "tokens", "stream", "past", "ends", "again")

    def sentence() -> str:
        return " ".join(rng.choice(words) for _ in range(rng.randrange(4, 14)))

    def noise() -> str:
        return "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(25, 60)))

    clean = {name: [sentence() for _ in range(500)] for name in ("web", "code")}
    return {**clean, "planted": [noise() for _ in range(150)]}


def planted_job(folder: Path, dataset: Path, **overrides: Any) -> Path:
    """Noise enters by a source of its own at step 64, at 30 % of the samples."""
    stages: list[dict[str, Any]] = [
        {"start": 0, "weights": {"web": 0.5, "code": 0.5}},
        {"start": 512, "weights": {"web": 0.35, "code": 0.35, "planted": 0.3}},
    ]
    folder.mkdir()
    data = {"datasets": ["../data"], "batch": [{"start": 0, "global_batch": 8}], "mixture": stages}
    spikes = {
        "enabled": True,
        "patience": 6,
        "lead_steps": 4,
        "max_cut_fraction": 0.5,
        "confirm": "full",
        "detectors": {"warmup_steps": 30, "window_steps": 24},
        "attribution": {"baseline_segments": 300, "baseline_source_segments": 60},
    }
    return write_job(
        folder,
        dataset,
        steps=84,
        data=data,
        model={"dim": 32, "layers": 2, "heads": 2, "ffn": 64},
        optimizer={"lr": 1e-2},
        checkpoint={"every_steps": 10, "keep_last": 9},
        spikes=spikes,
        **overrides,
    )


def check_confirmed(root: Path) -> None:
    paths = RunPaths(root)
    events = read_events(paths)
    outcomes = [event for event in events if event["kind"] == "outcome"]
    assert [event["outcome"] for event in outcomes] == ["confirmed"], events
    cut = {(entry.kind, entry.source) for entry in read_skips(paths)}
    assert cut & {("source", "planted"), ("documents", None)}
    trials = {event["trial"]: event for event in events if event["kind"] == "trial"}
    assert not trials["unmasked"]["removed"]
    assert not trials["placebo"]["removed"]
    assert outcomes[0]["loss"] < trials["unmasked"]["loss"]
    assert len(read_branches(paths)) == 2


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process, beside its Dataset."""
    folder = tmp_path_factory.mktemp("planted")
    made = make_dataset(folder, DatasetSpec(seq_len=64, texts=planted_texts()))
    found = train(planted_job(folder / "alone", made.path))
    assert (found.outcome, found.branch) == ("finished", 1)
    return folder / "alone" / "run"


@pytest.mark.slow
def test_a_planted_source_is_confirmed(alone: Path) -> None:
    check_confirmed(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("fsdp", {"parallel": {"data": "fsdp"}, "micro_batch": 2}),
        ("tensor", {"parallel": {"tensor": 2, "sequence": True}}),
        ("pipeline", {"parallel": {"pipeline": 2}, "micro_batch": 2}),
        ("context", {"parallel": {"context": 2}}),
    ],
)
def test_two_processes_cut_what_one_cuts(alone: Path, name: str, mesh: dict[str, Any]) -> None:
    """From the first alarm to the confirmed outcome, every decision on a mesh."""
    folder = alone.parents[1]
    job = planted_job(folder / name, folder / "data", **mesh)

    def work(rank: int) -> list[Any]:
        found = train_process(load_config(job, TrainConfig), lambda line: None)[0]
        return [found.branch, found.rollbacks, found.parameters]

    ended = run_ranks(work, 2, folder / f"world-{name}", limit_s=500)
    assert [one.code for one in ended] == [0, 0], ended
    assert ended[0].value == ended[1].value
    root = folder / name / "run"
    check_confirmed(root)
    mine, theirs = ([e.to_json() for e in read_skips(RunPaths(run))] for run in (root, alone))
    for entry in (*mine, *theirs):
        del entry["evidence"]  # losses, to the last bit
    assert mine == theirs
    asked = [
        [(e["kind"], e["step"]) for e in read_events(RunPaths(run)) if e["kind"] in ("alarm", "verdict", "outcome")]
        for run in (root, alone)
    ]
    assert asked[0] == asked[1]
