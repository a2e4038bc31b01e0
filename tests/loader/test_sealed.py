"""Sealed JSON: any changed bit is found, a torn tail is cut and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import DamageError
from loader.sealed import append_sealed_line, cut_torn_tail, read_sealed, read_sealed_lines, seal, unseal, write_sealed

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_OBJECTS = st.dictionaries(st.text(), _SCALARS | st.lists(_SCALARS, max_size=3), max_size=4)
_EVENTS: list[dict[str, Any]] = [
    {"kind": "resume", "step": 3},
    {"kind": "alarm", "z": 9.5},
    {"kind": "Ω \0", "list": [1]},
]


@given(_OBJECTS)
def test_sealed_object_returns_as_it_went_in(value: dict[str, Any]) -> None:
    value.pop("self_hash", None)
    assert unseal(seal(value), "here") == value


def test_every_flipped_bit_of_a_sealed_file_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_sealed(path, {"run_id": "abc", "datasets": [{"digest": "ff", "path": "../data"}]})
    data = path.read_bytes()
    assert read_sealed(path)["run_id"] == "abc"
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamageError, match=r"run\.json"):
            unseal(bytes(changed), "run.json")
    with pytest.raises(DamageError):
        unseal(data + b"\n", "run.json")


def _write_events(path: Path) -> bytes:
    for event in _EVENTS:
        append_sealed_line(path, event)
    return path.read_bytes()


def test_lines_survive_any_cut_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    data = _write_events(path)
    ends = [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]
    for size in range(0, len(data), 2):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert list(read_sealed_lines(path).values) == _EVENTS[:whole]
        for event in _EVENTS[whole:]:
            append_sealed_line(path, event)
        assert path.read_bytes() == data


def test_every_flipped_bit_of_the_lines_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    data = _write_events(path)
    for bit in [*range(0, 8 * (len(data) - 1), 3), *range(8 * (len(data) - 1), 8 * len(data))]:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(changed))
        with pytest.raises(DamageError, match=r"line [123]"):
            read_sealed_lines(path)


@pytest.mark.parametrize("order", [[1, 2], [0, 2], [0, 2, 1], [0, 0, 1]])
def test_lines_taken_out_or_moved_are_damage(tmp_path: Path, order: list[int]) -> None:
    path = tmp_path / "events.jsonl"
    lines = _write_events(path).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(DamageError, match=r"events\.jsonl line"):
        read_sealed_lines(path)


def test_zeros_of_a_power_loss_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    data = _write_events(path)
    path.write_bytes(data + bytes(100))
    assert cut_torn_tail(path).torn_bytes == 100
    assert path.read_bytes() == data
    path.write_bytes(data[:-1] + b"\0")
    assert list(read_sealed_lines(path).values) == _EVENTS[:-1]
