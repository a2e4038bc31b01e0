"""``confirm: full``: was it the flagged documents, or would anything have done? Pure rules, and their state on disk.

Two trials run the steps from the checkpoint to the window's end again, before anything is cut: one without a cut, one
that masks (or drops) as many tokens of random innocents. A cause in the data shows in both. Where the window holds no
innocent there is no placebo: the other trial runs alone, and nothing is called confirmed. What a trial found is
sealed in ``RUN/trials/`` under a key of all that shaped it, so a run killed at any moment either finds the result or
makes the same one again.

Sources: placebo and unmasked arm as in a controlled experiment; the innocents are drawn by a keyed hash, no generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import xxhash

from loader.canonical import digest_of
from loader.files import remove_stale_temporaries
from loader.run_folder import RunPaths, finite_json
from loader.sealed import read_sealed, write_sealed

from .attribute import Attribution, SegmentColumns
from .records import Verdict
from .rollback import RollbackRecord, recovered, rollbacks_from

if TYPE_CHECKING:
    from loader.order.skips import SkipEntry

__all__ = ["Confirmation", "innocents", "placebo_entries", "trials_of"]

_UNMASKED, _PLACEBO = "unmasked", "placebo"
_TOKENS: Final = "placebo_tokens"
"""In the report of a verdict that asks for trials."""


def trials_of(verdict: Verdict) -> tuple[str, ...]:
    """The trials that a verdict asks for, in the order in which they run; a range skip, for one, has none."""
    if verdict.placebo:
        return _UNMASKED, _PLACEBO
    return (_UNMASKED,) if verdict.report.get(_TOKENS) == 0 else ()


def innocents(columns: SegmentColumns, found: Attribution, key: str) -> tuple[tuple[int, ...], int]:
    """Random documents of the window that are not flagged, with as many tokens as those that are: (ids, tokens).

    All of them where there are too few. The draw is a function of ``key`` and of the documents alone.
    """
    guilty = set(np.unique(columns.document_S[found.flagged_S]).tolist())
    window_S = ~columns.baseline_S
    ids, inverse = np.unique(columns.document_S[window_S], return_inverse=True)
    tokens = np.bincount(inverse, columns.num_labels_S[window_S]).astype(np.int64)
    drawn = sorted(
        (xxhash.xxh3_64_intdigest(f"{key}\0{document}".encode()), document, int(count))
        for document, count in zip(ids.tolist(), tokens.tolist(), strict=True)
        if document not in guilty
    )
    chosen: list[int] = []
    total = 0
    for _, document, count in drawn:
        if total >= found.flagged_tokens:
            break
        chosen.append(document)
        total += count
    return tuple(sorted(chosen)), total


def placebo_entries(
    record: RollbackRecord, columns: SegmentColumns, found: Attribution
) -> tuple[tuple[SkipEntry, ...], int]:
    """What the placebo cuts, in the way of the real cut, and its tokens in the window; nothing without innocents."""
    from loader.order.skips import SkipEntry

    documents, tokens = innocents(columns, found, f"{record.number}:{record.start}:{record.alarm}:{record.stop}")
    mode: Literal["drop", "mask"] = "drop" if record.action == "replace" else "mask"
    if not documents:
        return (), 0
    return (SkipEntry("documents", mode, record.next_position, None, (), documents, "placebo"),), tokens


@dataclass(frozen=True)
class Confirmation:
    """The trials of one verdict, and where their results lie.

    Attributes:
        paths: of the run. branch: the one under suspicion. verdict: with ``placebo``. finite: its parameters are.
    """

    paths: RunPaths
    branch: int
    verdict: Verdict
    finite: bool

    @property
    def record(self) -> RollbackRecord:
        """What is about to be rolled back."""
        return rollbacks_from(self.verdict.entries)[-1]

    @property
    def _key(self) -> str:
        record = self.record
        cuts = [
            [entry.kind, entry.mode, entry.stamp, entry.source, list(map(list, entry.ranges)), list(entry.documents)]
            for entry in (*self.verdict.entries, *self.verdict.placebo)
        ]
        window = [record.number, record.start, record.alarm, record.stop, record.checkpoint_step, record.next_position]
        return str(digest_of({"branch": self.branch, "window": window, "cuts": cuts}))[:16]

    def read(self) -> dict[str, Any]:
        """Results so far: trial -> {losses, loss, ..}, and ``decision`` once there is one.

        Where arithmetic is not repeated bit by bit, the steps that are done again behind a ``not_data`` may flag other
        documents, and raise the alarm a step sooner or later: what was decided about this window then still holds, or
        the question would never end. It is the window of the alarm that it holds, no other: windows begin before their
        alarms, so that those of the next spike may share steps with this one, which no trial was made for.

        Raises:
            DamageError: a file is damaged.
        """
        folder, record = self.paths.root / "trials", self.record
        path = folder / f"{self._key}.json"
        if path.exists():
            return dict(read_sealed(path)["found"])
        for other in sorted(folder.glob("[!.]*.json")):
            value = read_sealed(other)
            holds_it = value["start"] <= record.alarm < value["stop"]
            if holds_it and value["branch"] == self.branch and value["found"].get("decision") == "not_data":
                return dict(value["found"])
        return {}

    def missing(self, found: Mapping[str, Any]) -> list[str]:
        """The trials that are still to run, in order; none once it is decided."""
        return [] if "decision" in found else [name for name in trials_of(self.verdict) if name not in found]

    def write(self, found: Mapping[str, Any]) -> None:
        """Keep the results, durably and in one piece; the leading process of a run does."""
        record = self.record
        facts = {"branch": self.branch, "start": record.start, "alarm": record.alarm, "stop": record.stop}
        folder = self.paths.root / "trials"
        folder.mkdir(exist_ok=True)
        remove_stale_temporaries(folder)  # of a process that was killed here; the run's lock is held
        placebo = [entry.to_json() for entry in self.verdict.placebo]
        write_sealed(folder / f"{self._key}.json", {**finite_json({**facts, "found": found}), "placebo": placebo})

    def result(self, losses: Sequence[float]) -> dict[str, Any]:
        """What a trial found: losses of the steps from the alarm to the window's end, nats."""
        gone, share, mean = recovered(self.record, losses)
        own = [loss if math.isfinite(loss) else None for loss in losses]
        return {"losses": own, "loss": mean, "recovered_share": share, "removed": gone}

    def decide(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """``upheld``, or ``not_data``: the spike is gone without the cut too."""
        if "decision" in found:  # about this window, perhaps by trials of another cut
            return {"decision": found["decision"], "why": found["why"]}
        trials = trials_of(self.verdict)
        gone = [name for name in trials if found[name]["removed"]]
        why = {
            _UNMASKED: "the same data do not spike again",
            _PLACEBO: "masking random innocents removes the spike too",
        }
        if not gone and _PLACEBO not in trials:
            return {"decision": "upheld", "why": "without a placebo, as the window holds no innocents"}
        return {"decision": "not_data" if gone else "upheld", "why": "; ".join(why[name] for name in gone)}

    def goes_on(self, decision: str) -> bool:
        """Nothing is cut: it was not the data, and the parameters are still there to go on with."""
        return decision == "not_data" and self.finite

    def with_trials(self, found: Mapping[str, Any], decision: str) -> Verdict:
        """The verdict whose entries remember the trials."""
        told = {name: found[name]["loss"] for name in (_UNMASKED, _PLACEBO) if name in found}
        record = replace(self.record, trials=told, upheld=decision == "upheld")
        entries = tuple(replace(entry, evidence=record.evidence()) for entry in self.verdict.entries)
        return replace(self.verdict, entries=entries)
