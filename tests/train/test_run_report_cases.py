"""What the report says of alarms: events joined to cases, outcomes and evidence in words."""

from __future__ import annotations

from typing import Any

import pytest

from train.report.cases import CUTTING, OUTCOMES, cases_of, quiet_alarms
from train.report.reasons import EVIDENCE_WORDS, reason_of
from train.report.spike_sections import DETECTOR_WORDS
from train.spikes.attribute import EVIDENCE
from train.spikes.decide import judge_recovery
from train.spikes.detectors import DETECTORS
from train.spikes.rollback import RollbackRecord

WINDOW = {"start": 20, "alarm": 24, "stop": 32}


def event(kind: str, branch: int = 0, step: int = 31, **own: Any) -> dict[str, Any]:
    return {"kind": kind, "branch": branch, "step": step, "time_s": 0.0, **own}


def verdict(
    action: str = "mask", rollback: int | None = 0, window: dict[str, int] = WINDOW, **own: Any
) -> dict[str, Any]:
    ordered = {} if rollback is None else {"rollback": rollback}
    return event("verdict", window=window, action=action, **ordered, **own)


def rolled_back(branch: int = 1) -> dict[str, Any]:
    return event("rollback", branch, 16, action="mask", entries=1)


def told(events: list[dict[str, Any]], **more: Any) -> list[tuple[str, bool]]:
    return [(case.outcome, case.is_cut) for case in cases_of(events, **more)]


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([verdict("report", None)], ("reported", False)),
        ([verdict("give_up", None)], ("given_up", False)),
        ([verdict(), rolled_back()], ("waiting", True)),
        *(
            ([verdict(), rolled_back(), event("outcome", 1, rollback=0, outcome=name)], (name, True))
            for name in ("recovered", "replaced", "range_skipped", "confirmed", "not_recovered")
        ),
        ([verdict("report", 0, would="mask")], ("reported", False)),  # dry_run
        ([verdict("report", None), event("rollback", 1, 8, action="rollback")], ("reported", False)),  # by hand
        ([verdict(), event("rollback", 1, 8, action="rollback")], ("reported", False)),
    ],
)
def test_each_ending_is_told(events: list[dict[str, Any]], outcome: tuple[str, bool]) -> None:
    assert told([event("alarm", step=24), *events]) == [outcome]
    assert OUTCOMES[outcome[0]]


def test_what_trials_clear_is_not_cut_and_the_next_one_has_the_same_number() -> None:
    first = [
        verdict(),
        event("trial", trial="unmasked", removed=True),
        event("trial", trial="placebo", removed=False),
        event("confirm", decision="not_data", why="the same data do not spike again"),
        verdict(),  # the steps behind the checkpoint are done again, and ask again
        event("outcome", rollback=0, outcome="not_data"),
    ]
    later = {"start": 50, "alarm": 54, "stop": 62}
    second = [verdict(window=later), rolled_back(), event("outcome", 1, rollback=0, outcome="recovered")]
    cases = cases_of([*first, *second])
    assert [(case.outcome, case.is_cut, case.window) for case in cases] == [
        ("not_data", False, (20, 32)),
        ("recovered", True, (50, 62)),
    ]
    assert list(cases[0].trials) == ["unmasked", "placebo"]
    assert cases[0].decision is not None
    assert not cases[1].trials


def test_a_spike_that_comes_back_is_a_case_of_its_own() -> None:
    again = event("verdict", 1, window=WINDOW, action="mask", rollback=1)
    ends = [
        event("outcome", 1, rollback=0, outcome="not_recovered"),
        event("outcome", 2, rollback=1, outcome="recovered"),
    ]
    assert told([verdict(), rolled_back(), ends[0], again, rolled_back(2), ends[1]]) == [
        ("not_recovered", True),
        ("recovered", True),
    ]


def test_a_rollback_that_a_kill_left_without_an_event_is_known_from_its_entry() -> None:
    assert told([verdict()]) == [("reported", False)]
    assert told([verdict()], made={(0, 24)}) == [("waiting", True)]
    assert told([verdict()], made={(0, 25)}) == [("reported", False)]


def test_alarms_are_joined_to_their_verdict_or_were_quiet() -> None:
    alarm = event("alarm", step=24, readings=[{"detector": "loss_step", "z": 9.0}])
    events = [event("alarm", step=3), event("alarm_over", step=9, alarm=3), alarm, verdict()]
    assert cases_of(events)[0].alarm == alarm
    assert quiet_alarms(events) == [(0, 3)]


def test_every_outcome_and_every_piece_of_evidence_has_words() -> None:
    record = RollbackRecord(0, 20, 24, 32, 16, 64, "mask", 5.0, 4.0)
    actions = [RollbackRecord(**{**vars(record), "action": action}) for action in CUTTING]
    trials = {"unmasked": 5.0, "placebo": 5.0}
    tried = [RollbackRecord(**{**vars(record), "trials": trials, "upheld": upheld}) for upheld in (True, False)]
    names = {judge_recovery(one, [loss])["outcome"] for one in (*actions, *tried) for loss in (4.0, 5.0)}
    assert names | {"reported", "given_up", "waiting"} == set(OUTCOMES)
    assert set(EVIDENCE) <= set(EVIDENCE_WORDS)
    assert {name for name in DETECTORS if name != "plateau"} <= set(DETECTOR_WORDS)  # a plateau is only reported


def test_reasons_name_the_strongest_evidence_first() -> None:
    evidence = {"surprise": 1.1, "pull": 0.2, "excess": 2.0, "order": 5.0, "squeeze": 1.4}
    said = reason_of({"score": 3.0, "evidence": evidence}, 1.7)
    places = [said.index(f"({name} ") for name in ("order", "excess", "squeeze")]
    assert places == sorted(places)
    assert "surprise" not in said  # three suffice
    assert "pull" not in said
    quiet = dict.fromkeys(evidence, 0.9)
    assert reason_of({"score": 1.8, "evidence": quiet}, 1.7) == (
        "a little odd in every way, together above the threshold (score 1.8 > 1.7)"
    )
    assert reason_of({"score": 9.0, "evidence": quiet}, 1.7, is_whole=True).endswith("this document alone is not odd")
    assert "whole" in reason_of({"score": 9.0, "evidence": evidence}, 1.7, is_whole=True)
    assert "score 2.5 > 1.7" in reason_of({"score": 2.5}, 1.7)  # of a run that noted no evidence
