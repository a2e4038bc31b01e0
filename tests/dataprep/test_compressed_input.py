"""Compressed inputs: equal to plain ones when whole; when cut, an error that names file and last good record."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from dataprep.documents import InputFile
from dataprep.formats import ReadOptions, RejectSink, read_file
from dataprep.formats.decompress import COMPRESSIONS, ByteStream
from loader.errors import DamageError


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".zst": zstd,
    ".zstd": zstd,
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
}


def lines(count: int) -> list[bytes]:
    """JSONL lines that hardly compress."""
    randomness = np.random.default_rng(3)
    return [json.dumps({"text": f"{record} {randomness.bytes(150).hex()}"}).encode() + b"\n" for record in range(count)]


def read(path: Path, batch_bytes: int = 8 << 20) -> tuple[dict[int, str], RejectSink]:
    sink, texts = RejectSink(), {}
    options = ReadOptions(batch_bytes=batch_bytes)
    for batch in read_file(InputFile("s", 0, str(path.parent), path.name), 0, options=options, rejects=sink):
        texts.update(zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True))
    return texts, sink


def collect(path: Path, texts: list[str]) -> None:
    for batch in read_file(InputFile("s", 0, str(path.parent), path.name), 0):
        texts += batch.text.to_pylist()


def test_every_compression_is_tested() -> None:
    assert COMPRESS.keys() == COMPRESSIONS.keys()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_equals_plain(tmp_path: Path, suffix: str) -> None:
    data = b"".join(lines(300))
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(data)
    expected, expected_sink = read(plain)
    compress = COMPRESS[suffix]
    forms = {"one": compress(data), "two frames": compress(data[:1000]) + compress(data[1000:])}
    for name, packed in forms.items():
        path = tmp_path / f"{name}.jsonl{suffix}"
        path.write_bytes(packed)
        for batch_bytes in (5000, 8 << 20):
            texts, sink = read(path, batch_bytes)
            assert texts == expected
            assert sink.summary == expected_sink.summary


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_cut_stream_gives_its_whole_records_and_names_the_last(tmp_path: Path, suffix: str) -> None:
    records = lines(600)
    packed = COMPRESS[suffix](b"".join(records))
    path = tmp_path / f"cut.jsonl{suffix}"
    for cut in (len(packed) // 3, len(packed) - 9, len(packed) - 1):
        path.write_bytes(packed[:cut])
        texts: list[str] = []
        with pytest.raises(DamageError, match="TR-INPUT-TRUNCATED") as caught:
            collect(path, texts)
        assert texts == [json.loads(line)["text"] for line in records[: len(texts)]]
        last = (
            f"last good record {len(texts) - 1} at byte" if texts else "no whole record"
        )  # zstd, bz2: a block is large
        assert last in str(caught.value)
        assert path.name in str(caught.value)
        with ByteStream(path) as stream:  # no byte that can be decoded is lost
            scratch, total = memoryview(bytearray(1 << 20)), 0
            while count := stream.readinto(scratch):
                total += count
            assert stream.failure is not None
        sizes = np.cumsum([len(line) for line in records])
        assert len(texts) == int(np.searchsorted(sizes, total, side="right"))


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_a_flipped_bit_is_never_silent(tmp_path: Path, suffix: str) -> None:
    packed = bytearray(COMPRESS[suffix](b"".join(lines(200))))
    path = tmp_path / f"flipped.jsonl{suffix}"
    path.write_bytes(packed)
    expected = read(path)[0]
    for place in range(20, len(packed) - 12, len(packed) // 12):
        packed[place] ^= 4
        path.write_bytes(packed)
        packed[place] ^= 4
        try:
            found = read(path)[0]
        except DamageError:
            continue
        assert found == expected, "wrong texts without an error"  # some bits of a frame mean nothing


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_garbage_after_the_last_frame_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tail.jsonl{suffix}"
    path.write_bytes(COMPRESS[suffix](b"".join(lines(5))) + b"garbage")
    with pytest.raises(DamageError, match="last good record 4"):
        read(path)


def test_a_file_that_never_began(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl.gz"
    path.write_bytes(gzip.compress(b"x" * 100)[:5])
    with pytest.raises(DamageError, match="no whole record"):
        read(path)


def small_file(suffix: str) -> bytes:
    """Two frames."""
    return COMPRESS[suffix](b'{"text":"one"}\n') + COMPRESS[suffix](b'{"text":"two"}\n')


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_cut_in_every_place_is_damage_but_between_frames(tmp_path: Path, suffix: str) -> None:
    """There no decoder can know; the size and hash of the first read do."""
    packed, border = small_file(suffix), len(COMPRESS[suffix](b'{"text":"one"}\n'))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed)
    assert read(path)[0] == {0: "one", 1: "two"}
    for cut in range(1, len(packed)):
        path.write_bytes(packed[:cut])
        if cut == border:
            assert read(path)[0] == {0: "one"}
            continue
        texts: list[str] = []
        with pytest.raises(DamageError, match="TR-INPUT-TRUNCATED"):
            collect(path, texts)
        assert texts == ["one", "two"][: len(texts)]
        assert not (cut > border and suffix != ".xz") or texts[:1] == ["one"]


def test_every_flipped_bit_of_a_gzip_trailer_is_an_error(tmp_path: Path) -> None:
    packed = bytearray(COMPRESS[".gz"](b'{"text":"one"}\n'))
    path = tmp_path / "a.jsonl.gz"
    for place in range(len(packed) - 8, len(packed)):
        for bit in range(8):
            packed[place] ^= 1 << bit
            path.write_bytes(packed)
            packed[place] ^= 1 << bit
            with pytest.raises(DamageError, match="TR-INPUT-TRUNCATED"):
                read(path)


def test_zeros_behind_a_gzip_member_are_padding(tmp_path: Path) -> None:
    packed = COMPRESS[".gz"](b'{"text":"one"}\n')
    path = tmp_path / "a.jsonl.gz"
    for data in (packed + bytes(3), packed + bytes(700_000), packed + bytes(9) + packed + bytes(1), bytes(4) + packed):
        path.write_bytes(data)
        assert read(path)[0] == dict.fromkeys(range(data.count(packed[:3])), "one")


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("form", ["text", "text_paragraphs"])
def test_text_kinds_read_every_compression(tmp_path: Path, suffix: str, form: str) -> None:
    data = "one é\n\ntwo\n".encode()
    (tmp_path / "plain").write_bytes(data)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](data[:4]) + COMPRESS[suffix](data[4:]))
    found = []
    for name in ("plain", path.name):
        sink, texts = RejectSink(), []
        for batch in read_file(InputFile("s", 0, str(tmp_path), name, format=form), 0, rejects=sink):
            texts += batch.text.to_pylist()
        found.append((texts, sink.summary))
    assert found[0] == found[1]
    assert found[0][0] == (["one é\n\ntwo\n"] if form == "text" else ["one é", "two"])
    path.write_bytes(COMPRESS[suffix](data * 100)[:-5])
    with pytest.raises(DamageError, match=path.name):
        list(read_file(InputFile("s", 0, str(tmp_path), path.name, format=form), 0))
