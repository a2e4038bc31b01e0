"""Kernels on hostile bytes: no read beyond the spare bytes, malformed UTF-8, huge documents, nowhere to keep code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.hostile_texts import MALFORMED, documents_of, prints_of

from dataprep.kernels.cache import writable_folder
from dataprep.kernels.documents import Buffers, DocumentHasher, text_buffers
from dataprep.kernels.words import TOKEN_SPARE, split_part, split_words
from dataprep.normalize import load_table

ROOT = Path(__file__).resolve().parents[2]


def tokens_of(data: bytes, after: bytes) -> NDArray[np.uint64]:
    buffer = np.frombuffer(data + after, np.uint8).copy()
    tokens = np.empty(len(data) + 1, np.uint64)
    return tokens[: split_words(buffer, (0, len(data)), load_table(), tokens)].copy()


@pytest.mark.parametrize("before", [b"", b"word ", b"w" * 63, b"\xe4\xb8\xad" * 21, b" " * 60 + b"wo"])
def test_malformed_bytes_give_tokens_that_what_follows_does_not_change(before: bytes) -> None:
    for bad in MALFORMED:
        for data in (before + bad, before + bad + b" rest", bad + before):
            found = tokens_of(data, bytes(64))
            assert len(found) <= len(data)
            for after in (b"\xbf" * 64, b"w" * 64, b"\xff" * 64):
                assert np.array_equal(tokens_of(data, after), found), (data, after)


def test_malformed_bytes_do_not_reach_their_neighbours() -> None:
    good = "one two three four five six seven 中文字漢日".encode()
    (reference,) = (tokens_of(good, bytes(64)),)
    for bad in MALFORMED:
        assert np.array_equal(tokens_of(bad + b" \n. " + good, bytes(64))[-len(reference) :], reference)
        assert np.array_equal(tokens_of(good + b" . \n" + bad, bytes(64))[: len(reference)], reference)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(["word", " ", "é", "中", "กา", "x" * 70, "\u0301", "。", "\u00ad", "😀", "_9", "ſ " * 20])
    ),
    st.integers(1, 40),
    st.binary(max_size=3),
)
def test_a_text_in_parts_of_any_size_has_the_same_tokens(pieces: list[str], limit: int, end: bytes) -> None:
    data = "".join(pieces).encode() + end
    expected = tokens_of(data, bytes(64))
    buffer = np.frombuffer(data + bytes(64), np.uint8).copy()
    token_T = np.empty(limit + TOKEN_SPARE, np.uint64)
    parts, at = [np.zeros(0, np.uint64)], 0
    while at < len(data):
        count, at = split_part(buffer, (at, len(data)), load_table(), token_T, (0, limit))
        assert count >= limit or at >= len(data)
        parts.append(token_T[:count].copy())
    assert np.array_equal(np.concatenate(parts), expected)


GUARDED = """
from support.hostile_texts import run_before_a_guarded_page
run_before_a_guarded_page()
print("unharmed")
"""


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))), **environment},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_nothing_is_read_beyond_the_spare_bytes() -> None:
    """Buffers end right before a page that may not be touched: one byte too many ends the process."""
    assert "unharmed" in run_python(GUARDED)


def test_huge_documents_of_one_kind() -> None:
    found = {name: prints_of(data) for name, data in documents_of(3 << 20)}
    numbers = {name: int(prints.num_shingles_N[0]) for name, prints in found.items()}
    assert numbers["letter"] == 1
    assert numbers["letters"] == (3 << 20) // 2 - 4
    assert numbers["spaces"] == numbers["emoji"] == numbers["high"] == 0
    assert numbers["ideographs"] == (3 << 20) // 15 * 5 - 7
    assert numbers["line"] == (3 << 20) // 26 * 5 - 4
    assert int(found["spaces"].simhash_N[0]) == 0
    emoji = "😀" * 200
    assert prints_of(emoji.encode()).num_shingles_N.tolist() == [0]


def test_sets_of_a_document_in_which_all_differs_and_in_which_all_is_the_same() -> None:
    hasher = DocumentHasher()
    words = " ".join(f"{number:x}" for number in range(400_000))
    values, sizes = hasher.sets(pa.array([words, "a " * 400_000], pa.large_string()))
    assert sizes.tolist() == [399_996, 1]
    assert (np.diff(values[:399_996].astype(np.float64)) >= 0).all()
    assert len(np.unique(values)) == len(values)


HUGE = """
import resource
from support.hostile_texts import documents_of, prints_of
prints_of(b"warm up " * 100)
for name, data in documents_of(100 << 20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prints_of(data)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 220, (name, grown)  # one copy of the text with its spare bytes, and nothing that grows with it
print("bounded")
"""


@pytest.mark.slow
def test_documents_of_100_mb_take_no_memory_of_their_own() -> None:
    assert "bounded" in run_python(HUGE)


USE_ONE_KERNEL = """
import numpy as np
from dataprep.kernels import jit
from dataprep.kernels.bands import band_keys
key = np.zeros(2, np.uint64)
band_keys(np.arange(8, dtype=np.uint32).reshape(2, 4), 0, 4, key)
import numba
print(jit._ON_DISK, numba.config.CACHE_DIR, key.tolist())
"""


def test_kernels_work_where_their_folder_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    here = run_python(USE_ONE_KERNEL, NUMBA_CACHE_DIR=str(blocked / "cache"), TMPDIR=str(tmp_path))
    on_disk, folder, keys = here.strip().split(" ", 2)
    assert on_disk == "True"
    assert Path(folder).parent == tmp_path
    assert any(Path(folder).rglob("*.nbi"))
    assert Path(folder).stat().st_mode & 0o077 == 0
    no_folder = f"import tempfile; tempfile.gettempdir = lambda: {str(blocked)!r}\n"
    nowhere = run_python(no_folder + USE_ONE_KERNEL, NUMBA_CACHE_DIR=str(blocked / "cache"))
    assert nowhere.startswith("False")
    assert nowhere.strip().endswith(keys)


def test_a_temporary_folder_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    wanted, open_to_all, ours = tmp_path / "file" / "x", tmp_path / "open", tmp_path / "ours"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (tmp_path / "link").symlink_to(ours)
    assert writable_folder(wanted, [open_to_all, tmp_path / "link"]) is None
    assert writable_folder(wanted, [open_to_all, ours]) == ours
    assert writable_folder(tmp_path / "wanted", [ours]) == tmp_path / "wanted"


def test_buffers_without_spare_bytes_are_copied() -> None:
    data = b"one two three"
    tight = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)])), pa.py_buffer(data))
    texts = text_buffers(tight)
    assert isinstance(texts, Buffers)
    assert len(texts.data) >= len(data) + 64
