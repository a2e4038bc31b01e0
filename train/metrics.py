"""``RUN/metrics.jsonl``: one line a step, for people and plots. The ledger is the truth; this follows it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .step import ReadStep

__all__ = ["MetricsWriter", "StepTimes", "cut_metrics", "step_line"]

_TAIL_BYTES = 1 << 16


class StepTimes:
    """Where a step's time went, in seconds: waiting for the loader, and in all."""

    def __init__(self, loader_wait_s: float, step_s: float) -> None:
        self.loader_wait_s = loader_wait_s
        self.step_s = step_s


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for what is not a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def step_line(read: ReadStep, num_tokens: int, flops_per_token: float, times: StepTimes) -> dict[str, Any]:
    """The metrics of one step.

    Args:
        read: the step.
        num_tokens: tokens of the global batch, padding included.
        flops_per_token: closed form, see ``ModelShape.flops_per_token``.
        times: of this process.
    """
    record = read.record
    rate = num_tokens / max(times.step_s, 1e-9)
    return {
        "step": record.step,
        "first_position": record.first_position,
        "loss": record.loss,
        "perplexity": math.exp(min(record.loss, 700.0)),
        "grad_norm": record.grad_norm,
        "update_norm": record.update_norm,
        "lr": read.lr,
        "label_count": record.label_count,
        "source_loss": {name: total / count for name, (total, count) in record.source_loss.items()},
        "tokens_per_s": round(rate, 1),
        "model_gflop_per_s": round(rate * flops_per_token / 1e9, 3),
        "loader_wait_s": round(times.loader_wait_s, 6),
        "step_s": round(times.step_s, 6),
    }


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


class MetricsWriter:
    """Appends lines of one branch and attempt; optionally TensorBoard files beside them."""

    def __init__(self, path: Path, branch: int, attempt: int, first_step: int, *, tensorboard: Path | None) -> None:
        cut_metrics(path, branch, first_step)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        self._stamp = {"branch": branch, "attempt": attempt}
        self._board: Any = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(tensorboard / f"branch_{branch}"), purge_step=first_step)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; numbers also go to TensorBoard."""
        text = json.dumps(_plain({**self._stamp, **line}), allow_nan=False, ensure_ascii=False)
        self._file.write(text.encode("utf-8") + b"\n")
        if self._board is not None:
            self._show("", line, int(line["step"]))

    def _show(self, prefix: str, line: Mapping[str, Any], step: int) -> None:
        for name, value in line.items():
            if isinstance(value, Mapping):
                self._show(f"{prefix}{name}/", value, step)
            elif isinstance(value, int | float) and name != "step":
                self._board.add_scalar(f"{prefix}{name}", value, step)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._file.close()
        if self._board is not None:
            self._board.close()
            self._board = None
