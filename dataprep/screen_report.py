"""What the screens in front of dedup did: counts for the account, and their tables as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .stages import read_json

if TYPE_CHECKING:
    from .pipeline import Pipeline

__all__ = ["BENCHMARK_COLUMNS", "QUALITY_COLUMNS", "benchmark_rows", "quality_rows", "screen_account", "screen_report"]

BENCHMARK_COLUMNS = (
    ("benchmark", "benchmark"),
    ("split", "split"),
    ("items", "items"),
    ("unmatchable", "unmatchable"),
    ("items hit", "items_hit"),
    ("documents hit", "documents_hit"),
    ("of them frequent only", "documents_hit_by_frequent_only"),
)
"""Heading and key of each column of the benchmark table."""
QUALITY_COLUMNS = ("source", "filter", "reason", "documents", "bytes")


def screen_account(pipeline: Pipeline) -> dict[str, Any]:
    """What each screen that the job has did (JSON-able).

    Returns:
        ``{"quality": {source: {"read", "kept", "dropped": {filter: {reason: counts}}, "cut": {filter: counts},
        "opted_out"}}, "decontaminate": the stage's report.json}``; counts are documents and bytes.
    """
    account: dict[str, Any] = {}
    if "quality" in pipeline.stages:
        account["quality"] = _quality(pipeline, pipeline.folder("quality"))
    if "decontaminate" in pipeline.stages:
        account["decontaminate"] = read_json(pipeline.folder("decontaminate") / "report.json")
    return account


def _quality(pipeline: Pipeline, folder: Path) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    for number, file in enumerate(pipeline.job.inputs):
        report = read_json(folder / f"screen.{number:05d}.json")["report"]
        sources[file.source] = _added(sources[file.source], report) if file.source in sources else report
    return sources


def _added(one: Any, other: Any) -> Any:
    """Two reports of one shape: numbers are added, what only one has is taken over."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [*one, *(key for key in other if key not in one)]
        return {key: _added(one.get(key), other.get(key)) for key in keys}
    if one is None or other is None:
        return other if one is None else one
    return one + other if isinstance(one, int) else one


def benchmark_rows(report: Mapping[str, Any]) -> list[list[str | int]]:
    """Rows of the benchmark table (``BENCHMARK_COLUMNS``)."""
    return [[entry[key] for _, key in BENCHMARK_COLUMNS] for entry in report["benchmarks"]]


def quality_rows(sources: Mapping[str, Any]) -> list[list[str | int]]:
    """Rows of the quality table (``QUALITY_COLUMNS``); a filter that cut text has a row with the reason ``cut``."""
    rows: list[list[str | int]] = []
    for source, report in sources.items():
        for name, reasons in report["dropped"].items():
            rows += [[source, name, reason, c["documents"], c["bytes"]] for reason, c in sorted(reasons.items())]
        rows += [[source, name, "cut", c["documents"], c["bytes"]] for name, c in report["cut"].items()]
    return rows


def screen_report(pipeline: Pipeline) -> tuple[dict[str, Any], str]:
    """What the screens did, as JSON and as text; the job's screens must be finished."""
    account = screen_account(pipeline)
    lines: list[str] = []
    if "quality" in account:
        rows = quality_rows(account["quality"])
        lines += ["quality", *(_table(QUALITY_COLUMNS, rows) if rows else ["  no document was dropped"]), ""]
    if "decontaminate" in account:
        report, folder = account["decontaminate"], pipeline.folder("decontaminate")
        heads = [head for head, _ in BENCHMARK_COLUMNS]
        lines += ["decontamination", *_table(heads, benchmark_rows(report))]
        canary = report["canary"]
        if canary is not None:
            lines.append("canary: " + ", ".join(f"{name} {count}" for name, count in canary.items()))
        account["hits"] = str(folder / "contamination.parquet")
        account["frequent"] = str(folder / "frequent.parquet")
        lines += ["", f"hits      {account['hits']}", f"frequent  {account['frequent']}"]
    return account, "\n".join(lines).rstrip()


def _table(heads: Sequence[str], rows: Sequence[Sequence[str | int]]) -> list[str]:
    """Rows as aligned text: words to the left, numbers to the right."""
    cells = [list(heads), *([cell if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    words = [isinstance(cell, str) for cell in rows[0]] if rows else [True] * len(heads)
    return [
        "  "
        + "  ".join(c.ljust(w) if word else c.rjust(w) for c, w, word in zip(row, widths, words, strict=True)).rstrip()
        for row in cells
    ]
