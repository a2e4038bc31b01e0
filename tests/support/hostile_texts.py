"""Hostile bytes for kernels: malformed UTF-8, huge documents of one kind, buffers that end before a guarded page."""

from __future__ import annotations

import base64
import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataprep.formats.jsonl import _sink
from dataprep.formats.scanner import ScanInput, scan_lines
from dataprep.kernels.documents import Buffers, DocumentHasher, Prints, split_shingles, take_prints
from dataprep.kernels.minhash import affine_permutations
from dataprep.kernels.words import split_words
from dataprep.normalize import load_table

MALFORMED = [
    *(sequence.encode()[:size] for sequence in "éÿ中\uffff😀\U0010ffff" for size in range(1, len(sequence.encode()))),
    *(bytes([byte]) for byte in range(0x80, 0x100)),
    b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf", b"\xf8\x88\x80\x80\x80", b"\xff" * 70,
    b"\x80" * 130, b"\xe4" * 65, b"\xf0" * 200,
]  # fmt: skip
"""Truncated sequences, lone continuation bytes, bytes that never occur, overlong forms, surrogates, too large ones."""


def documents_of(size: int) -> Iterator[tuple[str, bytes]]:
    """Documents of ``size`` bytes, each of one kind."""
    yield "letter", b"a" * size
    yield "letters", b"a " * (size // 2)
    yield "line", b"the quick brown fox jumps " * (size // 26)
    yield "spaces", b" " * size
    yield "base64", base64.b64encode(np.random.default_rng(1).bytes(size * 3 // 4))
    yield "ideographs", "中文字漢日".encode() * (size // 15)
    yield "emoji", "😀👍🏽\u200d".encode() * (size // 15)
    yield "high", b"\xff" * size


def prints_of(data: bytes) -> Prints:
    """Prints of one document."""
    buffer = pa.py_buffer(data + bytes(64))
    text = pa.LargeStringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)])), buffer)
    return DocumentHasher().prints(text, affine_permutations(16, 1), simhash=True)


def run_before_a_guarded_page() -> None:
    """Run the kernels on texts and lines whose 64 spare bytes end where a page begins that nobody may touch: one byte
    too many ends the process."""
    page = mmap.PAGESIZE
    whole = np.frombuffer(mmap.mmap(-1, 5 * page), np.uint8)
    no_access = 0
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(whole.ctypes.data + 4 * page), page, no_access) != 0:
        raise OSError("mprotect")
    data = whole[: 4 * page]
    texts = [b"", b"w", b"word", b"w" * 64, b"w" * 200, b"one two three", b" " * 65, "中".encode() * 50]
    texts += ["😀".encode() * 200, "café ".encode() * 30, *MALFORMED, *(b"word " * 13 + bad for bad in MALFORMED)]
    for text in texts:
        _run_on_text(data, text)
        for line in (b'{"text":"' + text + b'"}', b'{"text":"' + text, text, b'{"text":1,"date":-Inf', b'{"text":n'):
            _run_on_line(data, line + b"\n")


def _place(data: NDArray[np.uint8], bytes_: bytes) -> tuple[int, int]:
    stop = len(data) - 64
    data[stop - len(bytes_) : stop] = np.frombuffer(bytes_, np.uint8)
    return stop - len(bytes_), stop


def _run_on_text(data: NDArray[np.uint8], text: bytes) -> None:
    start, stop = _place(data, text)
    table, room = load_table(), len(text) + 64
    tokens = np.empty(4096 + 128, np.uint64)
    split_words(data, (start, stop), table, tokens)
    texts = Buffers(data, np.array([start, stop], np.int64))
    split_shingles(texts, table, tokens, np.empty(room, np.uint64), np.empty(1, np.int64))
    hasher = DocumentHasher()
    prints = Prints(np.empty((1, 16), np.uint32), np.empty(1, np.uint64), np.empty(1, np.int64))
    take_prints(texts, table, hasher._part, affine_permutations(16, 1), prints)


def _run_on_line(data: NDArray[np.uint8], line: bytes) -> None:
    start, stop = _place(data, line)
    sink = _sink(b"text", b"date")._replace(text=np.empty(len(line) + 128, np.uint8))
    text_key, extra_key = np.frombuffer(b"text", np.uint8), np.frombuffer(b"date", np.uint8)
    scan_lines(ScanInput(data, text_key, extra_key, np.zeros(0, np.uint8), 1 << 20), start, stop, sink)
