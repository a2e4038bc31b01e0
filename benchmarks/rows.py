"""What the benchmarks share: a result row, and how CPU seconds are taken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Row", "cpu_s", "paired_cpu_s", "print_rows", "row"]

Row = dict[str, Any]


def row(name: str, value: float, unit: str, **more: Any) -> Row:
    """One result; ``target`` judges ``value``, ``ratio_target`` judges value / peer_value: (relation, bound). A peer
    that was not measured in this run has None, and what must be judged beside it does not hold: it is not judged."""
    peer_value = more.get("peer_value")
    ratio = value / peer_value if peer_value else None
    goals = [(value, more.get("target"), ""), (ratio, more.get("ratio_target"), "ratio ")]
    judged = [_judge(figure, *goal) for figure, goal, _ in goals if goal]
    return {
        "name": name,
        "value": round(value, 5),
        "unit": unit,
        "peer": more.get("peer"),
        "peer_value": None if peer_value is None else round(peer_value, 5),
        "ratio": None if ratio is None else round(ratio, 4),
        "target": " and ".join(f"{what}{goal[0]} {goal[1]}" for _, goal, what in goals if goal) or None,
        "holds": None if not judged or (None in judged and False not in judged) else all(judged),
    }


def _judge(figure: float | None, relation: str, bound: float) -> bool | None:
    if figure is None:
        return None
    return figure <= bound if relation == "<=" else figure >= bound


def cpu_s(work: Callable[[], object], repeats: int = 3, calls: int = 1) -> float:
    """CPU seconds of one call: the least of some repeats, each the mean of ``calls``."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time() - start) / calls)
    return best


def paired_cpu_s(works: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, float]:
    """Least CPU seconds of each, run by turns, so that a busy machine is equally unkind to all."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            best[name] = min(best[name], cpu_s(work, 1))
    return best


def print_rows(rows: list[Row], as_json: bool) -> None:
    """One JSON document, or a table."""
    if as_json:
        print(json.dumps(rows))
        return
    for one in rows:
        peer = ""
        if one["peer"] is not None:
            value = "null" if one["peer_value"] is None else f"{one['peer_value']:,.4g}"
            value += "" if one["ratio"] is None else f" (x{one['ratio']:.3g})"  # a peer may have 0 of something
            peer = f"  {one['peer']} {value}"
        goal = "" if one["target"] is None else f"  [{one['target']}: {_VERDICT[one['holds']]}]"
        print(f"{one['name']:58} {one['value']:12,.4g} {one['unit']:10}{peer}{goal}")


_VERDICT = {True: "holds", False: "FAILS", None: "not judged"}
