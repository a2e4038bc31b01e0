"""``RUN/metrics.jsonl``: a line a step and a line an evaluation, for people and plots. It follows the ledger."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loader.files import append_whole
from loader.run_folder import RunPaths

from .sinks import SinkPlace

__all__ = ["JsonlSink", "cut_metrics"]

_TAIL_BYTES = 1 << 16


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for what is not a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _lines_backwards(data: bytes) -> list[tuple[int, bytes]]:
    """(offset, line) of the whole lines in ``data``, last first."""
    out, start = [], 0
    while (stop := data.find(b"\n", start)) >= 0:
        out.append((start, data[start:stop]))
        start = stop + 1
    return out[::-1]


def cut_metrics(path: Path, branch: int, step: int) -> int:
    """Cut the torn tail of a killed writer and the lines of ``branch`` from ``step`` on: those steps are done again.

    Lines of other branches are history and stay. Reads backwards, only as far as needed. Returns the bytes cut.
    """
    if not path.exists():
        return 0
    size_bytes = path.stat().st_size
    window_bytes = _TAIL_BYTES
    while True:
        offset = max(0, size_bytes - window_bytes)
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
        first = 0 if offset == 0 else data.find(b"\n") + 1
        keep = data.rfind(b"\n") + 1
        found = False
        for start, line in _lines_backwards(data[first:]):
            if _is_before(line, branch, step):
                found = True
                break
            keep = first + start
        if found or offset == 0:
            break
        window_bytes *= 4
    if not found and offset == 0 and not data[:keep]:
        keep = 0
    if offset + keep < size_bytes:
        os.truncate(path, offset + keep)
    return size_bytes - offset - keep


def _is_before(line: bytes, branch: int, step: int) -> bool:
    try:
        value = json.loads(line)
        return bool(value["branch"] != branch or value["step"] < step)
    except (ValueError, KeyError, TypeError):
        return False


class JsonlSink:
    """Appends to ``RUN/metrics.jsonl``, each line with branch and attempt, one unbuffered write a line: a killed
    process leaves whole lines but for the last, which the next attempt cuts together with the steps it does again.
    """

    def __init__(self, place: SinkPlace) -> None:
        path = RunPaths(place.root).metrics
        cut_metrics(path, place.branch, place.first_step)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._stamp = {"branch": place.branch, "attempt": place.attempt}

    def write(self, line: Mapping[str, Any]) -> None:
        """See ``Sink``."""
        text = json.dumps(_plain({**self._stamp, **line}), allow_nan=False, ensure_ascii=False)
        append_whole(self._file, text.encode("utf-8") + b"\n")

    def flush(self) -> None:
        """Nothing: every line went to the system at once; it is not synced, as the ledger holds what matters."""

    def close(self) -> None:
        """See ``Sink``."""
        self._file.close()
