"""The verbs about a run's data: ``locate``, ``skip``, ``history``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_options import Output, output_options
from .errors import ConfigError, RefusedError
from .path_kind import refuse_missing
from .remote.store import is_url

if TYPE_CHECKING:
    from .order.skips import SkipEntry
    from .run_view import RunView
    from .runs import RunPaths

__all__ = ["history", "locate", "parse_range", "skip"]

_Folder = click.Path(file_okay=False)
_MAX_SKIPPED_POSITIONS = 1 << 24  # what goes with them is counted one by one


def parse_range(text: str, option: str) -> tuple[int, int]:
    """``A:B`` as a half-open range of whole numbers; ``A`` alone is ``A:A+1``.

    Raises:
        ConfigError: something else, or an empty range.
    """
    start, colon, stop = text.partition(":")
    if start.isdecimal() and (stop.isdecimal() if colon else not stop):
        first, last = int(start), int(stop) if colon else int(start) + 1
        if first < last:
            return first, last
    raise ConfigError("TR-CLI-RANGE", f"no range: {text!r}", option, "A:B with 0 <= A < B; B itself is not in it")


@dataclass(frozen=True)
class _Query:
    """What ``locate`` is asked; exactly one of the first five is set."""

    step: int | None
    position: str | None
    document: str | None
    grep: str | None
    twice: bool
    branch: int | None
    steps: str | None
    stop_step: int | None
    text: bool
    root: tuple[str, ...]

    def check(self) -> None:
        given = (self.step, self.position, self.document, self.grep, self.twice or None)
        asked = sum(value is not None for value in given)
        if asked != 1:
            raise ConfigError(
                "TR-LOCATE-QUESTION", f"{asked} questions", "tokenreel locate",
                "exactly one of --step, --position, --document, --grep, --twice",
            )  # fmt: skip
        self._refuse(self.steps is not None and self.grep is None, "--steps", "--grep")
        alone = self.stop_step is not None and self.document is None and not self.twice
        self._refuse(alone, "--stop-step", "--document or --twice")
        self._refuse(self.text and self.step is None and self.position is None, "--text", "--step or --position")

    def check_dataset(self) -> None:
        """Refuse what only a run can answer."""
        for value, option in ((self.branch, "--branch"), (self.steps, "--steps"), (self.stop_step, "--stop-step")):
            self._refuse(value is not None, option, "the folder of a run")

    @staticmethod
    def _refuse(useless: bool, option: str, needed: str) -> None:
        """An option that would be passed over in silence is an error."""
        if useless:
            raise ConfigError("TR-LOCATE-OPTION", f"{option} goes with {needed}", "tokenreel locate", needed)


@click.command()
@click.argument("folder", type=_Folder, metavar="PATH")
@click.option("--step", type=click.IntRange(min=0), help="What this step reads.")
@click.option("--position", metavar="A:B", help="What lies at these positions of the order.")
@click.option("--document", metavar="ID", help="Where and when a document (16 hex digits) is read.")
@click.option("--grep", metavar="TEXT", help="What was read that holds this text.")
@click.option("--twice", is_flag=True, help="The first step that reads again what was read before.")
@click.option("--branch", type=click.IntRange(min=0), help="As this branch saw it; default: the current one.")
@click.option("--steps", metavar="A:B", help="With --grep: only these steps.")
@click.option("--stop-step", type=click.IntRange(min=0), help="With --document, --twice: up to this step, done or not.")
@click.option("--text", is_flag=True, help="With --step or --position: show the text of each segment.")
@click.option("--root", multiple=True, metavar="[SOURCE=]FOLDER", help="Where the input files are.")
@output_options
def locate(output: Output, folder: str, **options: Any) -> None:
    """Which documents did this step of a RUN see; which steps see this document; where does a DATASET hold it."""
    from .runs import is_run

    query = _Query(**options)
    query.check()
    if not is_url(folder):
        refuse_missing(folder)
    if is_run(Path(folder)):
        from .run_view import open_run

        result = _locate_in_run(open_run(Path(folder), query.branch), query)
    else:
        result = _locate_in_dataset(folder, query)
    from .run_text import located_text

    if result.get("matches_ledger") is False:
        output.note("warning: these are not the tokens that the ledger recorded for the step")
    if "searched_rows" in result:
        read, rows = result["searched_rows"]
        output.note(
            f"note: {read:,} of {rows:,} rows of documents.npy were read: each place shown is proven by its shard's own"
            " tables, that there is no other one is not"
        )
    output.result(result, lambda: located_text(result))


def _locate_in_run(view: RunView, query: _Query) -> dict[str, Any]:
    from .grep import SegmentTexts
    from .lookup import parse_document
    from .repeats import first_repeats
    from .run_past import documents_over_time, grep_over_time, positions_over_time, step_over_time
    from .text.roots import parse_roots

    def texts(one: RunView) -> SegmentTexts:
        return SegmentTexts(one.sources.datasets, parse_roots(query.root))

    stop = view.next_position if query.stop_step is None else int(view.plan.first_position(query.stop_step))
    if query.twice:
        return first_repeats(view, stop)
    if query.document is not None:
        return documents_over_time(view, parse_document(query.document), stop)
    if query.grep is not None:
        first, last = (0, view.num_steps) if query.steps is None else parse_range(query.steps, "--steps")
        view.plan.next_position(last - 1)  # refuses steps behind the plan's end before anything is read
        return grep_over_time(view, query.grep, range(first, last), texts)
    if query.step is not None:
        parts = [step_over_time(view, query.step)]
    else:
        parts = positions_over_time(view, *parse_range(query.position or "", "--position"))
    for one, result in parts if query.text else ():
        texts(one).with_text(one.sources, result["samples"])
    return parts[0][1] if len(parts) == 1 else _joined(view, [result for _, result in parts])


def _joined(view: RunView, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answers of several plans about one range of positions."""
    return {
        "branch": view.branch.number,
        "positions": [parts[0]["positions"][0], parts[-1]["positions"][1]],
        "cut": [position for part in parts for position in part["cut"]],
        "behind_end": [position for part in parts for position in part["behind_end"]],
        "samples": [sample for part in parts for sample in part["samples"]],
    }


def _locate_in_dataset(location: str, query: _Query) -> dict[str, Any]:
    from .grep import SegmentTexts, grep_dataset
    from .lookup import document_places, parse_document
    from .stream.store import look_into_dataset
    from .text.roots import parse_roots

    query.check_dataset()
    dataset = look_into_dataset(location)
    if query.document is not None:
        return document_places(dataset, parse_document(query.document))
    if query.grep is not None:
        return grep_dataset(dataset, query.grep, SegmentTexts([dataset], parse_roots(query.root)))
    raise ConfigError("TR-LOCATE-RUN", "a Dataset has no steps", location, "the folder of a run, or --document, --grep")


@click.command()
@click.argument("folder", type=_Folder, metavar="RUN")
@click.option("--steps", metavar="A:B", help="Drop the positions of these steps.")
@click.option("--positions", metavar="A:B", help="Drop these positions.")
@click.option("--document", multiple=True, metavar="ID", help="Cut a document (16 hex digits); may be repeated.")
@click.option("--source", help="The source of --samples; alone: all of it.")
@click.option("--samples", metavar="A:B", help="Cut these samples of --source.")
@click.option("--mode", type=click.Choice(["mask", "drop"]), help="Default: drop for steps and positions, else mask.")
@click.option("--reason", default="", help="Why; kept with the entry.")
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be cut, write nothing.")
@output_options
def skip(output: Output, folder: str, **options: Any) -> None:
    """Cut data from a RUN's future: an immutable entry that acts from the run's next position on.

    To cut what was read already, go back first: tokenreel rollback RUN --to STEP.
    """
    from .collateral import collateral_of
    from .cut_already import cut_already
    from .order.skips import SkipList
    from .run_config import build_plan
    from .run_data import numbered_in_force
    from .run_folder import refuse_half
    from .run_text import skip_text
    from .run_view import open_run
    from .runs import append_event, append_skips, lock_run

    plan_only = bool(options.pop("plan_only"))
    paths = _existing_run(folder)
    with lock_run(paths):
        refuse_half(paths)
        view = open_run(paths.root)
        entry = _skip_entry(view, options)
        number = len(view.entries) + 1
        entries, _ = numbered_in_force((*view.entries, entry), view.force, view.sources)
        # This refuses what would leave nothing.
        build_plan(view.data, view.sources, SkipList(entries.values()), view.force.start)
        collateral = collateral_of(view.plan, view.sources, entry)
        entries.pop(number, None)
        already = cut_already(view.plan, view.sources, entry, entries)
        nothing_new = already is not None and already.new_tokens == 0
        written = not plan_only and not nothing_new
        if written:
            (number,) = append_skips(paths, [entry])
            append_event(
                paths, "skip", view.branch.number, view.num_steps, number=number, mode=entry.mode, cut=entry.kind,
                stamp=entry.stamp, reason=entry.reason,
            )  # fmt: skip
    result = {
        "number": None if nothing_new else number,
        "written": written,
        "entry": entry.to_json(),
        "collateral": collateral,
        "new_tokens": collateral["tokens"] if already is None else already.new_tokens,
        "cut_already_by": [] if already is None else list(already.by),
    }
    output.result(result, lambda: skip_text(result))


def _existing_run(folder: str) -> RunPaths:
    """The paths of a run that is there: locking must not make a folder."""
    from .runs import RunPaths, read_identity

    refuse_missing(folder, "the folder of a run")
    paths = RunPaths(Path(folder))
    read_identity(paths)
    return paths


def _skip_entry(view: RunView, options: dict[str, Any]) -> SkipEntry:
    """The entry that the options ask for, stamped with the run's next position."""
    from .lookup import parse_document
    from .order.skips import SkipEntry

    given = [name for name in ("steps", "positions", "document", "source") if options[name]]
    expected = "exactly one of --steps, --positions, --document, --source [--samples]"
    if len(given) != 1 or (options["samples"] and given != ["source"]):
        if options["samples"] and "source" not in given:
            raise ConfigError("TR-SKIP-QUESTION", "--samples without --source: of which?", "tokenreel skip", expected)
        names = ", ".join(f"--{name}" for name in given)
        raise ConfigError("TR-SKIP-QUESTION", f"given: {names or 'nothing'}", "tokenreel skip", expected)
    kind, mode = given[0], options["mode"]
    common: dict[str, Any] = {
        "stamp": view.next_position,
        "reason": options["reason"],
        "evidence": {"by": "tokenreel skip"},
    }
    if kind in ("steps", "positions"):
        if mode == "mask":
            raise ConfigError("TR-SKIP-MODE", "positions cannot be masked", f"--{kind}", "--mode drop")
        ranges = (_future_positions(view, kind, options[kind]),)
        return SkipEntry(kind="positions", mode="drop", ranges=ranges, **common)
    if kind == "document":
        documents = tuple(sorted({parse_document(text) for text in options["document"]}))
        _check_documents(view, documents)
        return SkipEntry(kind="documents", mode=mode or "mask", documents=documents, **common)
    source = options["source"]
    if source not in view.sources.names:
        raise ConfigError(
            "TR-SKIP-SOURCE", f"no source {source!r}", "--source", f"one of {', '.join(view.sources.names)}"
        )
    if not options["samples"] and mode != "drop":
        return SkipEntry(kind="source", mode="mask", source=source, **common)
    num_samples = int(view.sources.shard_samples(source).sum())
    start, stop = parse_range(options["samples"], "--samples") if options["samples"] else (0, num_samples)
    if stop > num_samples:
        raise ConfigError("TR-SKIP-SAMPLES", f"{source!r} has {num_samples} samples", "--samples", f"0:{num_samples}")
    return SkipEntry(kind="samples", mode=mode or "mask", source=source, ranges=((start, stop),), **common)


def _check_documents(view: RunView, documents: Sequence[int]) -> None:
    for document in documents:
        if not view.sources.samples_of_document(document):
            raise ConfigError(
                "TR-SKIP-DOCUMENT", f"no Dataset of the run holds {document:016x}", "--document", "a known id"
            )


def _future_positions(view: RunView, kind: str, text: str) -> tuple[int, int]:
    """The range of positions, which must lie ahead: an entry acts only from its stamp on."""
    start, stop = parse_range(text, f"--{kind}")
    step = start
    if kind == "steps":
        start, stop = int(view.plan.first_position(start)), int(view.plan.next_position(stop - 1))
    elif start < view.next_position:
        step = next((s for s in range(view.num_steps) if view.ledger_N["next_position"][s] > start), 0)
    if start < view.next_position:
        raise RefusedError(
            "TR-SKIP-PAST",
            f"position {start} was read already; the run stands at position {view.next_position}",
            f"--{kind} {text}",
            "positions that are still to come",
            f"tokenreel rollback {view.paths.root} --to {step}",
        )
    if stop - start > _MAX_SKIPPED_POSITIONS:
        raise ConfigError(
            "TR-SKIP-RANGE", f"{stop - start:,} positions", f"--{kind} {text}",
            f"at most {_MAX_SKIPPED_POSITIONS:,}; fewer `steps` in the configuration end a run",
        )  # fmt: skip
    return start, stop


@click.command()
@click.argument("folder", type=_Folder, metavar="RUN")
@output_options
def history(output: Output, folder: str) -> None:
    """Branches, spikes, cuts and resumes of a RUN as a timeline."""
    from .history import history_of
    from .run_text import history_text

    result = history_of(_existing_run(folder))
    output.result(result, lambda: history_text(result))
