"""What the demo tells at its end, read back from what the Dataset and the run left on disk. No torch."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Named", "Story", "read_story", "story_text"]

_PLANTED = "planted"
_SMOOTH_STEPS = 8
_SHOWN_NAMES = 8


@dataclass(frozen=True)
class Named:
    """A planted document that the tool named: its id, kind, Origin, and tokens in the window."""

    document: str
    kind: str
    file: str
    record: int
    tokens: int


@dataclass(frozen=True)
class Story:
    """What happened, in numbers.

    Attributes:
        folder: where. seed: of everything.
        sources: per source documents and bytes of text. removed: per dedup method documents removed.
        alarm_step, window: the alarm and the steps under suspicion; None if there was none.
        outcome: of the rollback: recovered, not_recovered, replaced .. or None.
        planted_tokens, named_tokens: planted tokens in the window, and those of them that were named.
        wrong_tokens, clean_tokens: the same for everything that was not planted.
        learned_tokens: planted tokens that reached the final parameters.
        named: planted documents that were named, most tokens first.
        loss_before, loss_spike, loss_after, loss_end: mean losses, nats: before the alarm, of the recorded branch
        from the
            alarm to the window's end, of the same steps after the cut, and of the last steps.
        found: at least 90 % of the planted tokens in the window were named and cut.
        commands: what looks further.
    """

    folder: str
    seed: int
    sources: Mapping[str, Mapping[str, int]]
    removed: Mapping[str, int]
    alarm_step: int | None
    window: Mapping[str, int] | None
    outcome: str | None
    planted_tokens: int
    named_tokens: int
    wrong_tokens: int
    clean_tokens: int
    learned_tokens: int
    named: tuple[Named, ...]
    loss_before: float | None
    loss_spike: float | None
    loss_after: float | None
    loss_end: float | None
    found: bool
    commands: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def _mean_loss(ledger_N: NDArray[Any], start: int, stop: int) -> float | None:
    """Mean loss of steps ``[start, stop)``, by labels; None without a label."""
    rows = ledger_N[(ledger_N["step"] >= start) & (ledger_N["step"] < stop) & (ledger_N["label_count"] > 0)]
    return float(np.average(rows["loss"], weights=rows["label_count"])) if len(rows) else None


def _removed(dataset: Path) -> dict[str, int]:
    """Documents removed, by method."""
    import pyarrow.parquet as pq

    path = dataset / "removed.parquet"
    if not path.is_file():
        return {}
    methods = pq.read_table(path, columns=["method"]).column("method").to_pylist()
    return dict(sorted(Counter(str(method) for method in methods).items()))


def _named(documents: Sequence[Mapping[str, Any]], corpus: Path) -> tuple[Named, ...]:
    """The planted ones among a verdict's documents; the kind is what the corpus says it planted there."""
    import json

    kinds: dict[str, list[str]] = {}
    out = []
    for told in documents:
        if told["source"] != _PLANTED or "file" not in told:
            continue
        name = Path(told["file"]).name
        if name not in kinds:
            lines = (corpus / _PLANTED / name).read_bytes().split(b"\n")
            kinds[name] = [json.loads(line)["path"].partition("/")[0] for line in lines if line]
        record = int(told["record"])
        out.append(Named(told["document"], kinds[name][record], told["file"], record, int(told["tokens"])))
    return tuple(out)


def _verdict(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The rollback that the story is about: the one whose window held the most planted tokens; empty without any."""

    def planted_tokens(event: Mapping[str, Any]) -> int:
        return int(event.get("sources", {}).get(_PLANTED, {}).get("window_tokens", 0))

    verdicts = [e for e in events if e.get("kind") == "verdict" and e.get("rollback") is not None]
    return max(verdicts, key=planted_tokens, default={})


def _commands(folder: Path, verdict: Mapping[str, Any], named: Sequence[Named]) -> tuple[str, ...]:
    run, data = shlex.quote(str(folder / "run")), shlex.quote(str(folder / "data"))
    commands = [f"tokenreel history {run}"]
    if verdict:
        alarm = verdict["window"]["alarm"]
        commands.append(f"tokenreel locate {run} --step {alarm} --branch {verdict['branch']}")
        commands.append(f"tokenreel replay {run} --steps {alarm}:{alarm + 2} --branch {verdict['branch']}")
    if named:
        commands.append(f"tokenreel locate {run} --document {named[0].document}")
        commands.append(f"tokenreel skip {run} --document {named[0].document} --plan")
    commands += [f"tokenreel report {run}", f"tokenreel verify {run}", f"tokenreel verify {data}"]
    commands.append(f"tokenreel inspect {data}")
    return tuple(commands)


def read_story(folder: Path, told: Mapping[str, Any]) -> Story:
    """Reads the story back from ``folder``; ``told`` is its demo.json.

    Raises:
        DamageError: something there is not what was written.
    """
    from .run_view import open_run
    from .runs import ledger_of, read_events

    view = open_run(folder / "run")
    events = read_events(view.paths)
    verdict = _verdict(events)
    outcomes = [e for e in events if e.get("kind") == "outcome" and e.get("rollback") == verdict.get("rollback")]
    window = verdict.get("window")
    recorded_N, final_N = ledger_of(view.paths, int(verdict.get("branch", 0))), view.ledger_N
    planted = view.sources.names.index(_PLANTED)
    shares: Mapping[str, Mapping[str, Any]] = verdict.get("sources", {})
    own = shares.get(_PLANTED, {"window_tokens": 0, "flagged_tokens": 0})
    others = [share for name, share in shares.items() if name != _PLANTED]
    named = _named(verdict.get("documents", ()), folder / "corpus")
    losses: list[float | None] = [None, None, None]
    if window is not None:
        alarm, stop = int(window["alarm"]), int(window["stop"])
        losses = [
            _mean_loss(recorded_N, alarm - _SMOOTH_STEPS, alarm),
            _mean_loss(recorded_N, alarm, stop),
            _mean_loss(final_N, alarm, stop),
        ]
    planted_tokens, named_tokens = int(own["window_tokens"]), int(own["flagged_tokens"])
    return Story(
        folder=str(folder),
        seed=int(told["seed"]),
        sources=told["sources"],
        removed=_removed(folder / "data"),
        alarm_step=None if window is None else int(window["alarm"]),
        window=window,
        outcome=outcomes[-1]["outcome"] if outcomes else None,
        planted_tokens=planted_tokens,
        named_tokens=named_tokens,
        wrong_tokens=sum(int(share["flagged_tokens"]) for share in others),
        clean_tokens=sum(int(share["window_tokens"]) for share in others),
        learned_tokens=int(final_N["source_labels_S"][:, planted].sum()),
        named=named,
        loss_before=losses[0],
        loss_spike=losses[1],
        loss_after=losses[2],
        loss_end=_mean_loss(final_N, len(final_N) - _SMOOTH_STEPS, len(final_N)),
        found=planted_tokens > 0 and named_tokens >= 0.9 * planted_tokens,
        commands=_commands(folder, verdict, named),
    )


def _nats(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.2f}"


def story_text(story: Story) -> str:
    """The story for people."""
    lines = [f"tokenreel demo, seed {story.seed}, in {story.folder}", "", "Text"]
    for name, counts in story.sources.items():
        lines.append(f"  {name:10} {counts['documents']:7,} documents {counts['text_bytes'] / 1e6:7.2f} MB")
    lines += ["", "Removed as duplicates (each with its witness in data/removed.parquet)"]
    lines += [f"  {method:10} {count:7,} documents" for method, count in story.removed.items()] or ["  none"]
    lines += ["", "Training"]
    if story.window is None:
        lines.append("  no rollback took place: see `history` below")
    else:
        lines.append(f"  alarm at step {story.alarm_step}; outcome of rolling back and cutting: {story.outcome}")
        lines.append(
            f"  loss (nats a token): {_nats(story.loss_before)} before, {_nats(story.loss_spike)} in the spike, "
            f"{_nats(story.loss_after)} for the same steps after the cut, {_nats(story.loss_end)} at the end"
        )
        recall = story.named_tokens / max(1, story.planted_tokens)
        wrong = story.wrong_tokens / max(1, story.clean_tokens)
        lines.append(
            f"  named: {recall:.1%} of the {story.planted_tokens:,} planted tokens in the window, "
            f"{len(story.named)} planted documents; {wrong:.1%} of the innocent tokens were cut with them"
        )
        lines.append(f"  planted tokens that reached the final parameters: {story.learned_tokens:,}")
    if story.named:
        lines += ["", "Some of the documents it named (corpus file : record)"]
        seen: dict[str, Named] = {}
        for found in story.named:
            seen.setdefault(found.kind, found)
        for found in list(seen.values())[:_SHOWN_NAMES]:
            lines.append(f"  {found.document}  {found.kind:12} {found.file} : {found.record}")
    lines += ["", "Look further", *(f"  {command}" for command in story.commands)]
    return "\n".join(lines)
