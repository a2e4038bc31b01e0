"""What became of each alarm: a run's events joined to cases, and their outcomes in words. Pure functions of events.

An alarm that was asked about has a verdict; with ``confirm: full`` come trials and their decision; a verdict that cuts
is followed by a rollback, and the steps done again say whether it helped (``outcome``). A run that was killed replays
its steps and may say a thing twice: a verdict on the same window of the same branch goes on with the same case.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CUTTING", "OUTCOMES", "Case", "Event", "cases_of", "open_alarms", "quiet_alarms"]

Event = Mapping[str, Any]

OUTCOMES: dict[str, str] = {
    "confirmed": "confirmed: the spike came back without the cut and with a cut of random innocents, and is gone with "
    "this one. These documents caused it.",
    "given_up": "given up: the run was stopped, because it kept spiking or had nothing to go back to.",
    "not_data": "not the data: the spike was gone without this cut too, so the documents did not cause it.",
    "not_recovered": "not recovered: after the cut the same steps were still more than half as high above what was "
    "expected.",
    "range_skipped": "range skipped: no document stood out and the parameters were broken, so all that the steps had "
    "read was left out, and the loss is back.",
    "recovered": "recovered: after the cut the same steps lost at least half of what they had been too high.",
    "replaced": "replaced: the samples of the flagged documents were left out and the next ones of their sources read "
    "in their place; the same steps lost at least half of what they had been too high.",
    "reported": "reported: nothing was cut and the run went on.",
    "waiting": "waiting: the cut was made; the run has not yet done the steps again that will tell.",
}
"""Every outcome, as ``events.jsonl`` names it (``waiting``: none yet), in words."""

CUTTING = ("mask", "replace", "skip_range")
"""Actions of a verdict that cut something."""


@dataclass
class Case:
    """One window of steps under suspicion.

    Attributes:
        verdict: the newest one on it. alarm: the event that opened it.
        trials: name -> event, with ``confirm: full``. decision: on them.
        rollback: the event, if one was made. end: the ``outcome`` event.
    """

    verdict: Event
    alarm: Event | None = None
    trials: dict[str, Event] = field(default_factory=dict)
    decision: Event | None = None
    rollback: Event | None = None
    end: Event | None = None

    @property
    def window(self) -> tuple[int, int] | None:
        """Steps ``[start, stop)`` under suspicion."""
        window = self.verdict.get("window")
        return None if not window else (int(window["start"]), int(window["stop"]))

    @property
    def alarm_step(self) -> int | None:
        """The step that raised the alarm."""
        window = self.verdict.get("window", {})
        return None if window.get("alarm") is None else int(window["alarm"])

    @property
    def is_cut(self) -> bool:
        """A rollback answered it."""
        return self.rollback is not None

    @property
    def outcome(self) -> str:
        """A key of ``OUTCOMES``, or what else the events say."""
        if self.end is not None:
            return str(self.end["outcome"])
        if self.rollback is not None:
            return "waiting"
        return "given_up" if self.verdict.get("action") == "give_up" else "reported"


def cases_of(events: Iterable[Event], made: Container[tuple[int, int]] = ()) -> list[Case]:
    """The cases of a run, oldest first.

    Args:
        events: as in ``events.jsonl``, oldest first.
        made: (number, alarm step) of rollbacks that skip entries remember: a run that was killed between opening a
            branch and saying so has no event of it.
    """
    cases: list[Case] = []
    alarm: Event | None = None
    for event in events:
        kind, case = event.get("kind"), cases[-1] if cases else None
        if kind == "alarm":
            alarm = event
        elif kind == "verdict":
            if case is None or not _goes_on(case, event):
                case = Case(event)
                cases.append(case)
            case.verdict, case.alarm = event, _of_same_step(alarm, event) or case.alarm
        elif case is not None and kind == "trial":
            case.trials[str(event.get("trial"))] = event
        elif case is not None and kind == "confirm":
            case.decision = event
        elif kind == "rollback" and case is not None and _answers(case, event):
            case.rollback = event
        elif kind == "outcome":
            told = [one for one in cases if one.verdict.get("rollback") == event.get("rollback")]
            if told:
                told[-1].end = event
    for case in cases:
        if case.rollback is None and _ordered(case) and (case.verdict["rollback"], case.alarm_step) in made:
            case.rollback = {"kind": "rollback"}
    return cases


def _answers(case: Case, rollback: Event) -> bool:
    """Whether the verdict ordered this rollback; those made by hand answer nothing."""
    return _ordered(case) and case.rollback is None and case.end is None and rollback.get("action") != "rollback"


def _ordered(case: Case) -> bool:
    return case.verdict.get("action") in CUTTING and case.verdict.get("rollback") is not None


def _goes_on(case: Case, verdict: Event) -> bool:
    same = all(case.verdict.get(key) == verdict.get(key) for key in ("branch", "rollback", "window"))
    return same and case.end is None and case.rollback is None


def _of_same_step(alarm: Event | None, verdict: Event) -> Event | None:
    step = verdict.get("window", {}).get("alarm")
    return alarm if alarm is not None and alarm.get("step") == step else None


def quiet_alarms(events: Sequence[Event]) -> list[tuple[int, int]]:
    """(branch, step) of alarms that came to nothing: the loss did not stay raised."""
    return [_alarm_of(event) for event in events if event.get("kind") == "alarm_over" and not _is_unwatched(event)]


def open_alarms(events: Sequence[Event]) -> list[tuple[int, int]]:
    """(branch, step) of alarms without an answer: those in which the watch was switched off, and the newest one of all
    where the run ended, or stands, before its answer."""
    found: list[tuple[int, int]] = []
    waiting: tuple[int, int] | None = None
    for event in events:
        kind = event.get("kind")
        if kind == "alarm":
            waiting = _alarm_of(event)
        elif kind in ("alarm_over", "verdict", "rollback"):
            waiting = None
        elif kind in ("start", "resume") and waiting is not None and int(event.get("step", 0)) <= waiting[1]:
            waiting = None  # from a checkpoint before it: the same steps raise it again
        if kind == "alarm_over" and _is_unwatched(event):
            found.append(_alarm_of(event))
    return [*dict.fromkeys([*found, *([] if waiting is None else [waiting])])]


def _alarm_of(event: Event) -> tuple[int, int]:
    return int(event.get("branch", 0)), int(event.get("alarm", event.get("step", 0)))


def _is_unwatched(event: Event) -> bool:
    """An alarm that was dropped: nobody saw what the loss did."""
    return bool(event.get("why"))
