"""Signed columns: the second field of the scanner, order keys, files that are streamed, verified and refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dedup import columns as column_files
from dataprep.dedup import signatures
from dataprep.dedup.columns import ColumnWriter, map_column
from dataprep.dedup.config import DedupConfig, MinHashConfig, SignConfig
from dataprep.dedup.order_keys import NO_KEY, date_key, order_keys, quality_key
from dataprep.dedup.signatures import DOCUMENT_DTYPE, load_signed, load_summary, sign_file
from dataprep.documents import InputFile
from dataprep.formats import ReadOptions, read_file
from loader.errors import DamageError, RefusedError


def write(tmp_path: Path, lines: list[str], **fields: Any) -> InputFile:
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return InputFile("s", 0, str(tmp_path), "a.jsonl", **fields)


def extras(inputs: InputFile, field: str | None, batch_bytes: int = 4 << 20) -> list[bytes] | None:
    options = ReadOptions(batch_bytes=batch_bytes, extra_field=field)
    found: list[bytes] = []
    for batch in read_file(inputs, 0, options=options):
        if batch.extra_N is None:
            return None
        assert len(batch.extra_N) == len(batch.text)
        found += batch.extra_N
    return found


def test_the_extra_field_comes_along_as_it_stands(tmp_path: Path) -> None:
    lines = [
        '{"text":"a","date":"2024-01-01"}',
        '{"date" :  -1.5e3 ,"text":"b"}',
        '{"text":"c"}',
        "",
        '{"date":1,"x":{"date":2},"text":"d","date":[3, "]"]}',
        '{"date":7}',
        '{"d\\u0061te":"caf\\u00e9","te\\u0078t":"e"}',
        '{"text":"f","date":' + "[" * 300 + "]" * 300 + "}",
        '{"text":"g","date":null}',
        '{"text":"h","date":2',
    ]
    inputs = write(tmp_path, lines)
    expected = [b'"2024-01-01"', b"-1.5e3", b"", b'[3, "]"]', b'"caf\\u00e9"', b"", b"null"]
    for batch_bytes in (64, 200, 4 << 20):
        assert extras(inputs, "date", batch_bytes) == expected
        assert extras(inputs, "none", batch_bytes) == [b""] * 7
    assert extras(inputs, None) is None
    assert extras(inputs, "text") == [b'"%c"' % letter for letter in b"abcdefg"]


def test_asking_for_an_extra_field_changes_nothing_else(tmp_path: Path) -> None:
    values = [json.dumps({"text": f"t{i} \\ \u2028", "q": i, "more": {"q": [i]}}) for i in range(300)]
    inputs = write(tmp_path, [*values, "{", '{"text":5,"q":1}'])
    with_field, without = (
        [(b.text.to_pylist(), b.record_N.tolist(), b.record_start_N.tolist()) for b in read_file(inputs, 0, options=o)]
        for o in (ReadOptions(extra_field="q"), ReadOptions())
    )
    assert with_field == without
    assert extras(inputs, "q") == [str(i).encode() for i in range(300)]


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31 23:59:59.5", -1),
        ("2024-02-29T12:30:15.999999-08:00", datetime(2024, 2, 29, 20, 30, 15, tzinfo=UTC).timestamp()),
        ("2024", datetime(2024, 1, 1, tzinfo=UTC).timestamp()),
        ("2024-06", datetime(2024, 6, 1, tzinfo=UTC).timestamp()),
        ("20240229", datetime(2024, 2, 29, tzinfo=UTC).timestamp()),
        (1700000000, 1700000000),
        (-5, -5),
    ],
)
def test_dates(value: object, moment: float) -> None:
    assert date_key(value) == moment


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yesterday",
        "2024-13-01",
        "0001-01-01T00:00+23:00",
        "٢٠٢٤",
        1.5,
        True,
        None,
        [],
        {},
        1 << 62,
        -1 << 63,
        1 << 70,
    ],
)
def test_what_is_no_date_has_no_key(value: object) -> None:
    assert date_key(value) == NO_KEY


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**70), 2**70), min_size=2, max_size=20))
def test_quality_keys_order_like_numbers(values: list[float]) -> None:
    numbers = [float(value) for value in values]
    keys = [quality_key(value) for value in values]
    assert all(key > NO_KEY for key in keys)
    for a, x in zip(numbers, keys, strict=True):
        for b, y in zip(numbers, keys, strict=True):
            assert (a < b) == (x < y)


def test_what_is_no_number_has_no_key() -> None:
    assert {quality_key(value) for value in (None, True, "1", [], math.nan)} == {NO_KEY}
    extra = (b"1", b"NaN", b"Infinity", b"", b'"2"', b"1e999", b"-0.0", b"0", b"[" * 200)
    key_N, missing = order_keys(extra, len(extra), "quality")
    assert missing == 5
    assert key_N[6] == key_N[7] == 0
    assert key_N[5] == key_N.max() > key_N[0] > 0
    assert order_keys(None, 3, "quality") == (pytest.approx(np.full(3, NO_KEY)), 3)
    assert order_keys(extra, len(extra), "longest")[0].tolist() == [0] * len(extra)


def sign(inputs: InputFile, config: DedupConfig, folder: Path) -> dict[str, Any]:
    sign_file(inputs, 0, SignConfig(dedup=config), folder)
    record: dict[str, Any] = json.loads((folder / "file.00000.json").read_bytes())
    return record


def test_order_keys_stand_in_the_rows_and_missing_ones_are_counted(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"document {i}", **({"when": f"2024-01-0{i}"} if i > 2 else {})}) for i in range(6)]
    inputs = write(tmp_path, lines, date_field="when")
    record = sign(inputs, DedupConfig(keep="newest"), tmp_path / "newest")
    assert record["missing_order_keys"] == 3
    key_N = load_signed(tmp_path / "newest", 0).documents["order_key"]
    assert key_N[:3].tolist() == [NO_KEY] * 3
    assert NO_KEY < key_N[3] < key_N[4] < key_N[5]
    record = sign(inputs, DedupConfig(keep="quality"), tmp_path / "quality")
    assert record["missing_order_keys"] == 6
    record = sign(inputs, DedupConfig(), tmp_path / "longest")
    assert record["missing_order_keys"] == 0
    assert not load_signed(tmp_path / "longest", 0).documents["order_key"].any()


def test_columns_of_the_methods_that_are_asked_for(tmp_path: Path) -> None:
    inputs = write(tmp_path, [json.dumps({"text": f"some words of document number {i}"}) for i in range(5)])
    sets = {
        ("exact",): (False, False),
        ("minhash",): (True, False),
        ("simhash",): (False, True),
        ("minhash", "simhash"): (True, True),
    }
    found = {}
    for methods, (has_minhash, has_simhash) in sets.items():
        config = DedupConfig(methods=methods)
        folder = tmp_path / "-".join(methods)
        sign(inputs, config, folder)
        signed = load_signed(folder, 0, config)
        assert (signed.signature_NK is not None, signed.simhash_N is not None) == (has_minhash, has_simhash)
        assert signed.documents.dtype == DOCUMENT_DTYPE
        assert (signed.documents["num_shingles"] == (1 if has_minhash or has_simhash else 0) * 2).all()
        found[methods] = signed
    both = found["minhash", "simhash"]
    assert np.array_equal(both.signature_NK, found["minhash",].signature_NK)
    assert np.array_equal(both.simhash_N, found["simhash",].simhash_N)
    assert both.simhash_N is not None
    assert both.simhash_N.dtype == np.uint64
    assert len(set(both.simhash_N.tolist())) == 5


def test_signatures_of_another_configuration_or_other_rules_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write(tmp_path, ['{"text":"words"}'])
    config = DedupConfig()
    sign(inputs, config, tmp_path / "s")
    same = DedupConfig(minhash=MinHashConfig(bands=16, rows=8), threshold=0.5)
    assert len(load_signed(tmp_path / "s", 0, same).documents) == 1
    others = (
        DedupConfig(minhash=MinHashConfig(seed=2)),
        DedupConfig(minhash=MinHashConfig(num_permutations=136)),
        DedupConfig(methods=("exact",)),
    )
    for other in others:
        with pytest.raises(RefusedError, match=r"TR-DEDUP-OTHER.*parameters(.|\n)*file\.00000\.json"):
            load_signed(tmp_path / "s", 0, other)
    monkeypatch.setattr(signatures, "RULES_VERSION", 99)
    with pytest.raises(RefusedError, match=r"TR-DEDUP-OTHER.*text rules(.|\n)*file\.00000\.json"):
        load_summary(tmp_path / "s", 0)


def test_every_byte_of_signed_files_is_guarded(tmp_path: Path) -> None:
    inputs = write(tmp_path, [json.dumps({"text": f"document {i}"}) for i in range(3)])
    config = DedupConfig(minhash=MinHashConfig(num_permutations=8, bands=2, rows=4))
    sign(inputs, config, tmp_path / "s")
    other = sign(write(tmp_path, ['{"text":"another"}'] * 3), config, tmp_path / "t")
    for name in ("documents.00000.npy", "signatures.00000.npy", "file.00000.json"):
        path = tmp_path / "s" / name
        data = path.read_bytes()
        flips = [data[:at] + bytes([data[at] ^ 32]) + data[at + 1 :] for at in range(0, len(data), 7)]
        stale = (tmp_path / "t" / name).read_bytes()
        for damaged in [*flips, data[:-1], data + b"\0", b"", stale]:
            path.write_bytes(damaged)
            if name.startswith("file") and damaged == stale:
                with pytest.raises(DamageError, match=r"TR-DEDUP-DAMAGED(.|\n)*documents"):
                    load_signed(tmp_path / "s", 0)
                continue
            with pytest.raises(DamageError, match=name.replace(".", r"\.")):
                load_signed(tmp_path / "s", 0)
        path.unlink()
        with pytest.raises(DamageError, match=name.replace(".", r"\.")):
            load_signed(tmp_path / "s", 0)
        path.write_bytes(data)
    assert other["parts"].keys() == {"documents", "signatures", "rejects"}


def test_columns_are_streams_and_leave_nothing_behind_when_they_fail(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    rows = np.arange(60, dtype="<u4").reshape(20, 3)
    with ColumnWriter(path, rows.dtype, (3,)) as writer:
        for start in range(0, 20, 6):
            writer.add(rows[start : start + 6])
        assert not path.exists()
        part = writer.finish()
    assert np.array_equal(np.load(path, allow_pickle=False), rows)
    assert np.array_equal(map_column(path, part), rows)
    assert not map_column(path, part).flags.writeable
    with ColumnWriter(path, rows.dtype, (3,)) as writer:
        writer.add(rows[:0])
        part = writer.finish()
    assert map_column(path, part).shape == (0, 3)
    with ColumnWriter(path, rows.dtype, (3,)) as writer:
        writer.add(rows)  # and something ends it here
    assert map_column(path, part).shape == (0, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["c.npy"]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(column_files.os, "fsync", refuse)
    writer = ColumnWriter(tmp_path / "c.npy", np.dtype("<u8"))
    with pytest.raises(OSError, match=r"c\.npy"), writer:
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_between_two_batches_is_named_and_nothing_stays(tmp_path: Path) -> None:
    """Rows wait in a buffer: the refusal comes when the file is finished, and again when it is closed."""
    code = f"""
import resource, signal, sys
from pathlib import Path
import numpy as np
from dataprep.dedup.columns import ColumnWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
try:
    with ColumnWriter(Path({str(tmp_path)!r}) / "c.npy", np.dtype("<u8")) as writer:
        writer.add(np.zeros(64, np.uint64))
        writer.finish()
except OSError as error:
    sys.exit(0 if str(error.filename).endswith("c.npy") else f"not named: {{error!r}}")
sys.exit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
