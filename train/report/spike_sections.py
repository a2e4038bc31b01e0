"""The spikes of a run as report sections: what was suspected, what the trials said, what was cut, what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loader.page import Block, Facts, Prose, Section, Table
from loader.run_view import RunView

from ..spikes.config import AttributionConfig
from ..spikes.rollback import rollbacks_from
from .cases import OUTCOMES, Case, Event, cases_of, open_alarms, quiet_alarms
from .documents import Told, segment_blocks
from .reasons import how_to_read

if TYPE_CHECKING:
    from loader.order.skips import SkipEntry

__all__ = ["DETECTOR_WORDS", "cases_of_run", "spike_sections"]

_MOST_CASES = 60
_MOST_ENTRIES = 300
_MOST_SOURCES = 100
_FEW = 8
DETECTOR_WORDS = {
    "grad_mean": "the mean gradient norm of some steps was too high",
    "grad_lasting": "the median gradient norm of many steps was too high",
    "grad_middle": "the median gradient norm of some steps was too high",
    "grad_norm": "the gradient norm jumped",
    "loss_mean": "the mean loss of some steps was too high",
    "loss_step": "the loss of one step was too high",
    "non_finite": "something was not finite",
    "source_loss": "the loss was too high for the sources that were read",
    "source_mean": "the mean loss of some steps was too high for the sources that were read",
    "update_norm": "the size of the update jumped",
}
"""Detectors that raise an alarm, as in ``train.spikes.detectors.DETECTORS``, in words, and ``grad_mean`` of runs before
there were medians."""
_TRIALS = {
    "unmasked": "the same steps again, nothing cut",
    "placebo": "the same steps again, as many random innocents cut",
}
_ACTIONS = {
    "give_up": "stop the run",
    "mask": "go back and hide the flagged documents",
    "replace": "go back and leave out the samples of the flagged documents",
    "report": "nothing",
    "skip_range": "go back and leave out all that these steps read",
}


def cases_of_run(view: RunView, events: Sequence[Event]) -> list[Case]:
    """The cases of a run; rollbacks without an event are known from the skip entries."""
    made = {(record.number, record.alarm) for record in rollbacks_from(view.entries)}
    return cases_of(events, made)


def spike_sections(view: RunView, events: Sequence[Event]) -> Iterator[Section]:
    """An overview of all alarms, what is cut, and one section a case."""
    cases = cases_of_run(view, events)
    overview = [*_overview(cases), *_alarm_lists(events)]
    if overview:
        yield Section("Spikes", overview)
    if view.entries:
        told, threshold = _told_of_entries(view, cases), _threshold(view)
        blocks: list[Block] = [_entry_table(view)]
        if any(told):
            noted = {name for one in told for said in one.values() for name in said.get("evidence") or ()}
            blocks.append(Prose(how_to_read(noted, threshold)))
        yield Section("What is cut", [*blocks, *segment_blocks(view, told, threshold)])
    for number, case in enumerate(cases[:_MOST_CASES], 1):
        yield Section(f"Spike {number}", _case_blocks(case))


def _overview(cases: Sequence[Case]) -> list[Block]:
    blocks: list[Block] = []
    if cases:
        rows = [
            (
                number,
                case.verdict.get("branch"),
                case.alarm_step,
                _ACTIONS.get(str(case.verdict.get("action")), case.verdict.get("action")),
                _flagged(case),
                OUTCOMES.get(case.outcome, case.outcome),
            )
            for number, case in enumerate(cases[:_MOST_CASES], 1)
        ]
        heads = ("spike", "branch", "alarm at step", "answer", "flagged", "outcome")
        blocks.append(Table(heads, rows, wide=("answer", "outcome")))
        if len(cases) > _MOST_CASES:
            blocks.append(Prose(f"and {len(cases) - _MOST_CASES:,} more: `tokenreel history` lists all."))
    return blocks


def _alarm_lists(events: Sequence[Event]) -> list[Block]:
    """Alarms that became no case."""
    lists = {
        "Alarms that came to nothing, as the loss did not stay raised": quiet_alarms(events),
        "Alarms that are not answered, as the steps after them were not done or not watched": open_alarms(events),
    }
    blocks: list[Block] = []
    for what, alarms in lists.items():
        if alarms:
            shown = ", ".join(f"{step} (branch {branch})" for branch, step in alarms[:_MOST_CASES])
            more = f" and {len(alarms) - _MOST_CASES:,} more" if len(alarms) > _MOST_CASES else ""
            blocks.append(Prose(f"{what}: at step {shown}{more}."))
    return blocks


def _flagged(case: Case) -> str:
    flagged, window = case.verdict.get("flagged_tokens"), case.verdict.get("window_tokens")
    if flagged is None:
        return ""
    share = f" ({flagged / window:.0%})" if window else ""
    return f"{flagged:,} of {window or 0:,} tokens{share} of the window"


def _case_blocks(case: Case) -> list[Block]:
    verdict, window = case.verdict, case.verdict.get("window", {})
    raised, end = verdict.get("raised") or {}, case.end or {}
    facts = {
        "alarm at step": case.alarm_step,
        "because": "; ".join(_readings(case.alarm)) or None,
        "window of steps": f"{window.get('start')} .. {window.get('stop')}" if window else None,
        "loss from the alarm on, nats a token": raised.get("loss"),
        "expected, by the trend before": raised.get("expected_loss"),
        "parameters still finite": {True: "yes", False: "no"}.get(verdict.get("finite", "")),
        "answer": _ACTIONS.get(str(verdict.get("action")), verdict.get("action")),
        "would have been, without dry_run": verdict.get("would"),
        "why": verdict.get("why"),
        "back to step": verdict.get("checkpoint_step") if case.is_cut else None,
        "flagged tokens": verdict.get("flagged_tokens"),
        "tokens in the window": verdict.get("window_tokens"),
        "clean text compared with": _baseline(verdict.get("baseline")),
        "loss of the same steps after the cut": end.get("loss") if case.is_cut else None,
        "share of the excess that is gone": _percent(end.get("recovered_share")),
    }
    blocks: list[Block] = [Prose(OUTCOMES.get(case.outcome, case.outcome))]
    blocks.append(Facts({name: value for name, value in facts.items() if value is not None}))
    blocks += _trial_blocks(case)
    if verdict.get("sources"):
        blocks.append(_source_table(verdict["sources"]))
    if verdict.get("advice"):
        blocks.append(Prose(str(verdict["advice"])))
    return blocks


def _readings(alarm: Event | None) -> list[str]:
    """What the detectors saw."""
    return [
        f"{DETECTOR_WORDS.get(str(one.get('detector')), one.get('detector'))} ({_deviations(one.get('z'))})"
        for one in (alarm or {}).get("readings", ())
    ]


def _deviations(z: object) -> str:
    return f"{z:.1f} deviations" if isinstance(z, int | float) else "no number"


def _percent(share: object) -> str | None:
    return f"{share:.0%}" if isinstance(share, int | float) else None


def _baseline(baseline: Mapping[str, Any] | None) -> str | None:
    return None if not baseline else f"{baseline['segments']:,} segments of {baseline['steps']:,} steps before"


def _trial_blocks(case: Case) -> list[Block]:
    """The trials of ``confirm: full`` and what they decided."""
    if not case.trials:
        return []
    rows = [
        (
            name,
            _TRIALS.get(name, ""),
            event.get("loss"),
            _percent(event.get("recovered_share")) or "",
            "gone" if event.get("removed") else "still there",
        )
        for name, event in case.trials.items()
    ]
    heads = ("trial", "what was run", "loss, nats a token", "share of the excess that is gone", "the spike is")
    blocks: list[Block] = [Table(heads, rows)]
    decision = case.decision or {}
    if decision.get("decision") == "upheld":
        why = f", {decision['why']}" if decision.get("why") else ""
        blocks.append(
            Prose(f"Verdict of the trials: upheld{why}. Only the cut of the flagged documents is left to try.")
        )
    elif decision.get("decision"):
        blocks.append(Prose(f"Verdict of the trials: not the data, as {decision.get('why') or 'it went without'}."))
    return blocks


def _source_table(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = ("source", "tokens in the window", "flagged tokens", "cut whole")
    rows = [
        (name, part.get("window_tokens"), part.get("flagged_tokens"), "yes" if part.get("whole") else "")
        for name, part in list(sources.items())[:_MOST_SOURCES]
    ]
    return Table(heads, rows)


def _told_of_entries(view: RunView, cases: Sequence[Case]) -> list[Told]:
    """For each skip entry what the investigation that ordered it said of documents."""
    by_case = {}
    for case in cases:
        found = case.verdict.get("documents", ())
        by_case[case.verdict.get("rollback"), case.alarm_step] = {int(str(one["document"]), 16): one for one in found}
    told: list[Told] = []
    for entry in view.entries:
        records = rollbacks_from([entry])
        told.append(by_case.get((records[0].number, records[0].alarm), {}) if records else {})
    return told


def _threshold(view: RunView) -> float:
    """Above which the run flags a document."""
    value = ((view.semantic.get("spikes") or {}).get("attribution") or {}).get("threshold")
    return AttributionConfig().threshold if value is None else float(value)


def _entry_table(view: RunView) -> Table:
    rows = [
        (
            number,
            entry.kind,
            entry.mode,
            entry.source or "",
            _what(entry),
            entry.stamp,
            entry.reason or "by hand",
        )
        for number, entry in enumerate(view.entries[:_MOST_ENTRIES], 1)
    ]
    heads = ("entry", "kind", "mode", "source", "what", "acts from position", "reason")
    return Table(heads, rows, filters=("kind", "mode") if len(rows) > _FEW else None)


def _what(entry: SkipEntry) -> str:
    if entry.kind == "source":
        return "all of it"
    return f"{len(entry.documents):,} documents" if entry.documents else _ranges(entry.ranges)


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{start}:{stop}" for start, stop in ranges[:8])
    return f"{shown} and {len(ranges) - 8} more" if len(ranges) > 8 else shown
