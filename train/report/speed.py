"""How fast a run was and what held it up, from metrics.jsonl. No checksum covers that file, so what is torn or foreign
in it is passed over: it is a view, not a record.

Legend: N steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.page import Block, Chart, Prose, Table
from loader.page_assets import PALETTE

from .curves import block_means

__all__ = ["read_speed", "speed_blocks"]

_SHOWN = {
    "tokens_per_s": ("Tokens a second of the whole job, padding included.", "tokens/s"),
    "mfu": ("Model FLOPs utilisation: what the model needs at this rate, as a share of the devices' peak.", "share"),
    "loader_wait_share": ("Share of the step spent waiting for data.", "share"),
    "host_memory_share": ("Share of the machine's memory in use.", "share"),
    "device_memory_share": ("Share of the device's memory reserved.", "share"),
}
_WARNING_KEYS = ("branch", "step", "what", "share", "limit")
_MOST_WARNINGS = 300


def read_speed(path: Path, records_N: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """The measured values of the steps of a ledger, NaN where there is none: name -> value_N.

    Args:
        path: of metrics.jsonl; it may be missing. records_N: ``step`` and ``branch`` say which lines count.
    """
    wanted = {(int(record["branch"]), int(record["step"])): row for row, record in enumerate(records_N)}
    found = {name: np.full(len(records_N), np.nan) for name in _SHOWN}
    if not path.exists():
        return found
    with open(path, "rb") as file:
        for text in file:
            try:
                line = json.loads(text)
                row = wanted.get((line["branch"], line["step"]))
            except (ValueError, KeyError, TypeError):
                continue
            for name in _SHOWN if row is not None else ():
                value = line.get(name)
                if isinstance(value, int | float):
                    found[name][row] = value
    return found


def speed_blocks(path: Path, records_N: NDArray[Any], events: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A chart of each thing that was measured, and the warnings."""
    measured = read_speed(path, records_N)
    blocks: list[Block] = []
    for name, (caption, unit) in _SHOWN.items():
        if not np.isfinite(measured[name]).any():
            continue
        x, y = block_means(records_N["step"], measured[name], np.ones(len(records_N)))
        trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": name, "line": {"color": PALETTE[0]}}
        trace |= {"x": [round(float(value), 2) for value in x], "y": [float(f"{value:.5g}") for value in y]}
        axis: dict[str, Any] = {"title": {"text": unit}, "rangemode": "tozero"}
        if unit == "share":
            axis["tickformat"] = ".1%"
        blocks.append(Chart(caption, [trace], {"xaxis": {"title": {"text": "step"}}, "yaxis": axis}))
    warnings = [event for event in events if event.get("kind") == "warning"]
    if warnings:
        rows = [tuple(event.get(key) for key in _WARNING_KEYS) for event in warnings[-_MOST_WARNINGS:]]
        blocks.append(Table(("branch", "step", "warning", "measured share", "limit"), rows))
    return blocks or [Prose("metrics.jsonl holds nothing of these steps.")]
