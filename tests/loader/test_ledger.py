"""Ledger: records return as written, a torn tail is cut, damage anywhere else is named."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import DamageError, RefusedError
from loader.ledger import LedgerRecord, LedgerWriter, ledger_path, list_attempts, read_intact_records, read_ledger_file
from loader.settings import child_environment


def _record(step: int, num_sources: int = 2) -> LedgerRecord:
    return LedgerRecord(
        step, step * 8, step * 8 + 8, 500 + step, (step * 0x9E3779B97F4A7C15) % 2**64, 2.5 + step, 0.5,
        source_loss=[1.0 * step] * num_sources, source_labels=[3 * step] * num_sources,
    )  # fmt: skip


def _write(folder: Path, steps: range, attempt: int = 0) -> Path:
    with LedgerWriter(folder, 0, attempt, 2) as writer:
        for step in steps:
            writer.append(_record(step))
    return ledger_path(folder, 0, attempt)


def test_records_return_as_written(tmp_path: Path) -> None:
    file = read_ledger_file(_write(tmp_path, range(5, 9)))
    assert (file.branch, file.attempt, file.num_sources, file.torn_bytes) == (0, 0, 2, 0)
    assert file.records_N["step"].tolist() == [5, 6, 7, 8]
    assert file.records_N["token_digest"].tolist() == [_record(step).token_digest for step in range(5, 9)]
    assert file.records_N["source_labels_S"].tolist() == [[3 * step] * 2 for step in range(5, 9)]
    assert np.isnan(file.records_N["update_norm"]).all()
    assert list_attempts(tmp_path, 0) == [0]
    assert list_attempts(tmp_path, 3) == []


def test_every_cut_is_a_torn_tail_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = _write(tmp_path, range(4))
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        done = len(read_ledger_file(path).records_N)
        _write(tmp_path, range(done, 4))
        assert path.read_bytes() == data


def test_zeros_behind_the_last_record_are_cut(tmp_path: Path) -> None:
    path = _write(tmp_path, range(4))
    data = path.read_bytes()
    path.write_bytes(data + bytes(300))
    assert len(read_ledger_file(path).records_N) == 4
    _write(tmp_path, range(0))
    assert path.read_bytes() == data


def test_a_disk_that_is_full_for_a_step_leaves_nothing_of_it(tmp_path: Path) -> None:
    """The system takes a part of such a write without a word. Behind that part nothing could be read again."""
    code = """
import resource, signal, sys
from pathlib import Path
from loader.ledger import LedgerRecord, LedgerWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with LedgerWriter(Path(sys.argv[1]), 0, 0, 2) as writer:
    for step in range(4):
        if step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 40, hard))
            try:
                writer.append(LedgerRecord(step, 0, 8, 500, 7))
            except OSError as error:
                print(error.errno)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.append(LedgerRecord(step, 0, 8, 500, 7))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{errno.EFBIG}\n", done.stderr
    file = read_ledger_file(ledger_path(tmp_path, 0, 0))
    assert file.records_N["step"].tolist() == [0, 1, 2, 3]
    assert file.torn_bytes == 0


def test_records_before_a_damaged_one_can_still_be_read(tmp_path: Path) -> None:
    path = _write(tmp_path, range(4))
    data = bytearray(path.read_bytes())
    size = (len(data) - 64) // 4
    data[64 + 2 * size + 9] ^= 4
    path.write_bytes(bytes(data))
    file = read_intact_records(path)
    assert file.records_N["step"].tolist() == [0, 1]
    assert file.damage is not None
    assert "record 2" in str(file.damage)
    with pytest.raises(DamageError, match="record 2"):
        read_ledger_file(path)


@given(bit=st.integers(min_value=0))
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, bit: int) -> None:
    path = _write(tmp_path_factory.mktemp("ledger"), range(3))
    data = bytearray(path.read_bytes())
    bit %= 8 * len(data)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))
    with pytest.raises(DamageError, match=r"0\.bin"):
        read_ledger_file(path)


def test_a_record_taken_out_of_the_middle_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path, range(4))
    data = path.read_bytes()
    size = (len(data) - 64) // 4
    path.write_bytes(data[: 64 + size] + data[64 + 2 * size :])
    with pytest.raises(DamageError, match="record 1"):
        read_ledger_file(path)
    with pytest.raises(DamageError, match="record 1"):
        LedgerWriter(tmp_path, 0, 0, 2)


def test_steps_follow_each_other(tmp_path: Path) -> None:
    _write(tmp_path, range(3))
    with LedgerWriter(tmp_path, 0, 0, 2) as writer, pytest.raises(ValueError, match="step 4 after step 2"):
        writer.append(_record(4))


def test_another_number_of_sources_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, range(3))
    with pytest.raises(RefusedError):
        LedgerWriter(tmp_path, 0, 0, 3)


def test_foreign_files_are_named(tmp_path: Path) -> None:
    _write(tmp_path, range(1))
    (tmp_path / "0" / "01.bin").write_bytes(b"")
    with pytest.raises(DamageError, match=r"01\.bin"):
        list_attempts(tmp_path, 0)


def test_a_record_is_on_disk_at_once(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, 0, 0, 2)
    writer.append(_record(0))
    assert len(read_ledger_file(writer.path).records_N) == 1
    writer.close()
    writer.close()


def test_a_later_version_is_refused_not_called_damaged(tmp_path: Path) -> None:
    path = _write(tmp_path, range(2))
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[56:64] = xxhash.xxh3_64_intdigest(bytes(data[:56])).to_bytes(8, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(RefusedError, match="version 2"):
        read_ledger_file(path)
