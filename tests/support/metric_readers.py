"""What each metrics sink left on disk, read back without its own code: (branch, step) -> name -> number."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["READERS", "read_jsonl", "read_tensorboard", "read_wandb"]

Read = dict[tuple[int, int], dict[str, float]]


def _flat(prefix: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}/{key}" if prefix else key, item)
    elif isinstance(value, int | float):
        yield prefix, float(value)


def read_jsonl(root: Path) -> Read:
    """Lines of metrics.jsonl; null is no number."""
    out: Read = {}
    for text in (root / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        numbers = dict(_flat("", {key: line[key] for key in line if key not in ("branch", "attempt", "step")}))
        out.setdefault((line["branch"], line["step"]), {}).update(numbers)
    return out


def read_tensorboard(root: Path) -> Read:
    """As TensorBoard itself would show them, forgotten steps left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out: Read = {}
    for folder in sorted((root / "tensorboard").iterdir()):
        branch = int(folder.name.removeprefix("branch_"))
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                numbers = out.setdefault((branch, event.step), {})
                assert tag not in numbers, f"{tag} of step {event.step} twice"
                numbers[tag] = event.value
    return out


def _wandb_records(path: Path) -> Iterator[bytes]:
    """Records of a LevelDB log behind a header of 7 bytes: blocks of 32 KiB, of pieces (checksum, length, kind)."""
    data, offset, whole = path.read_bytes(), 7, b""
    while offset + 7 <= len(data):
        left = 32768 - offset % 32768
        if left < 7:
            offset += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, offset)
        if not kind:
            break
        whole += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def _finished_records(path: Path) -> list[Any]:
    """All records of an offline run; W&B's own process may write the last ones after ``finish`` returned."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline_s = time.monotonic() + 60
    while True:
        records = [Record.FromString(data) for data in _wandb_records(path)]
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        assert time.monotonic() < deadline_s, f"{path} has no end"
        time.sleep(0.02)


def read_wandb(root: Path) -> Read:
    """History of the offline runs below RUN/wandb, later attempts over earlier ones."""
    out: Read = {}
    for path in sorted((root / "wandb").glob("offline-run-*/run-*.wandb")):
        for record in _finished_records(path):
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if items:
                values = {key: float(json.loads(text)) for key, text in items.items()}
                step = int(values["_step"])
                numbers = {key: value for key, value in values.items() if not key.startswith("_")}
                branch = int(numbers.pop("branch"))
                numbers.pop("attempt")
                out.setdefault((branch, step), {}).update(numbers)
    return out


READERS = {"jsonl": read_jsonl, "tensorboard": read_tensorboard, "wandb": read_wandb}
"""Sink -> reader."""
