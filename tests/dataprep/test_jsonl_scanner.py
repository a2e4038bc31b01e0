"""The JSONL scanner against hostile lines, a mutation fuzz, and what surrounds lines: blocks, limits, BOM,
selection."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.jsonl_oracle import HOSTILE, judge

from dataprep.documents import InputFile, RejectReason
from dataprep.formats import FileSummary, ReadOptions, RejectSink, read_file
from dataprep.formats.json_values import decode_by_blocks, decode_by_segments
from dataprep.kernels.vectors import COMPRESSES
from loader.errors import ConfigError, RefusedError

GOOD = b'{"text":"neighbour"}'
LABELS = {int(reason): reason.label for reason in RejectReason}


@dataclass
class Found:
    """Everything a pass over a file gave."""

    texts: dict[int, str] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    rejects: dict[int, str] = field(default_factory=dict)
    reject_starts: dict[int, int] = field(default_factory=dict)
    summary: FileSummary | None = None


def scan(path: Path, options: ReadOptions | None = None, keep: np.ndarray | None = None) -> Found:
    found, sink = Found(), RejectSink()
    for batch in read_file(
        InputFile("s", 0, str(path.parent), path.name), 0, options=options, keep_R=keep, rejects=sink
    ):
        batch.text.validate(full=True)
        for record, start, text in zip(
            batch.record_N.tolist(), batch.record_start_N.tolist(), batch.text.to_pylist(), strict=True
        ):
            assert record not in found.texts
            found.texts[record], found.starts[record] = text, start
    for row in sink.rows:
        found.rejects[int(row["record"])] = LABELS[int(row["reason"])]
        found.reject_starts[int(row["record"])] = int(row["record_start"])
    found.summary = sink.summary
    return found


def scan_bytes(tmp_path: Path, data: bytes, options: ReadOptions | None = None) -> Found:
    path = tmp_path / "input.jsonl"
    path.write_bytes(data)
    return scan(path, options)


def test_the_collection_is_large_and_the_judge_agrees_with_it() -> None:
    assert len(HOSTILE) >= 80
    assert len({kind for kind, _, _ in HOSTILE}) == len(HOSTILE)
    assert [(kind, judge(line)) for kind, line, verdict in HOSTILE if judge(line) != verdict] == []


def test_each_hostile_line_between_good_neighbours(tmp_path: Path) -> None:
    wrong = []
    for kind, line, (verdict, detail) in HOSTILE:
        found = scan_bytes(tmp_path, GOOD + b"\n" + line + b"\n" + GOOD + b"\n")
        texts, rejects = {0: "neighbour", 2: "neighbour"}, {}
        if verdict == "document":
            texts[1] = str(detail)
        elif verdict == "reject":
            rejects[1] = detail
        if (found.texts, found.rejects) != (texts, rejects):
            wrong.append((kind, found.rejects, found.texts.get(1, "")[:60]))
        assert found.summary is not None
        assert found.summary.num_blank == (verdict == "blank")
        assert found.summary.num_records == 3
    assert wrong == []


def test_each_hostile_line_as_the_last_without_newline(tmp_path: Path) -> None:
    for kind, line, (verdict, detail) in HOSTILE:
        if len(line) > 10_000 or verdict == "blank":
            continue
        found = scan_bytes(tmp_path, GOOD + b"\n" + line)
        assert found.texts.get(1) == (detail if verdict == "document" else None), kind
        assert found.rejects.get(1) == (detail if verdict == "reject" else None), kind


PIECES = [
    b'"', b"\\", b"\\u", b"\\ud83d", b"\\ude00", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\xe2\x82\xac",
    b"\xf0\x9f\x98\x80", b"\xed", b"\xa0", b"\x80", b"\xff", b"\xc0", b"\xf4", b"0", b"-", b"1e5", b"null", b"true",
    b"NaN", b"-Infinity", b'"text"', b"\r", b"\t", b"\x00", b"\xef\xbb\xbf", b'"text":"z"', b',"text":"z"', b"\n",
]  # fmt: skip


def mutate(lines: list[bytes], randomness: random.Random) -> bytes:
    line = bytearray(randomness.choice(lines))
    if randomness.random() < 0.5 and line[:1] == b"{":
        line[1:1] = b" " * randomness.randrange(70)  # so that 64 byte borders fall everywhere
    for _ in range(randomness.choice([0, 1, 1, 2, 3])):
        place, kind = randomness.randrange(len(line) + 1), randomness.random()
        if kind < 0.35:
            line[place:place] = randomness.choice(PIECES)
        elif kind < 0.6:
            del line[place : place + randomness.randrange(1, 4)]
        elif kind < 0.8 and place < len(line):
            line[place] = randomness.randrange(256)
        elif kind < 0.9:
            del line[place:]
        else:
            other = randomness.choice(lines)
            line[place:] = other[randomness.randrange(len(other) + 1) :]
    return bytes(line)


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_lines_are_judged_as_the_oracle_does(tmp_path: Path, seed: int) -> None:
    randomness = random.Random(seed)
    short = [
        line for _, line, (verdict, _) in HOSTILE for _ in range(1 + 3 * (verdict == "document")) if len(line) < 2000
    ]
    lines = [GOOD, *b"\n".join(mutate(short, randomness) for _ in range(4000)).split(b"\n")]
    found = scan_bytes(tmp_path, b"\n".join(lines) + b"\n", ReadOptions(batch_bytes=1 << 14))
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    expected = [judge(line) for line in lines]
    texts = {record: text for record, (verdict, text) in enumerate(expected) if verdict == "document"}
    assert len(texts) > 600
    assert {record for record in texts if found.texts.get(record) != texts[record]} == set()
    assert found.texts.keys() == texts.keys()
    assert found.rejects.keys() == {record for record, (verdict, _) in enumerate(expected) if verdict == "reject"}
    for record, start in {**found.starts, **found.reject_starts}.items():
        assert start == starts[record]
    other = sum(found.rejects[record] != expected[record][1] for record in found.rejects)
    assert other <= 0.05 * len(found.rejects)  # a line with several faults may be named after another of them


@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 12, 1 << 20])
def test_the_size_of_blocks_changes_nothing(tmp_path: Path, batch_bytes: int) -> None:
    data = b"\n".join(line for _, line, _ in HOSTILE if len(line) < 20_000)
    path = tmp_path / "input.jsonl"
    path.write_bytes(data)
    limits = [ReadOptions(5000, 8 << 20), ReadOptions(5000, batch_bytes)]
    reference, found = (scan(path, options) for options in limits)
    assert "too-long" in reference.rejects.values()
    assert found == reference


def test_a_line_over_the_limit_is_one_reject(tmp_path: Path) -> None:
    limit = 1000
    lines = [b'{"text":"' + b"x" * (size - 11) + b'"}' for size in (limit - 1, limit, limit + 1, 50 * limit, 20)]
    assert [len(line) for line in lines[:3]] == [999, 1000, 1001]
    for batch_bytes in (64, 1 << 20):
        found = scan_bytes(tmp_path, b"\n".join(lines), ReadOptions(limit, batch_bytes))
        assert found.texts.keys() == {0, 1, 4}
        assert found.rejects == {2: "too-long", 3: "too-long"}
        assert found.starts[4] == sum(len(line) + 1 for line in lines[:4])
        last = scan_bytes(tmp_path, b"\n".join(lines[:4]), ReadOptions(limit, batch_bytes))
        assert last.rejects == {2: "too-long", 3: "too-long"}


def test_a_bom_at_the_start_of_the_file_is_passed_over(tmp_path: Path) -> None:
    found = scan_bytes(tmp_path, b"\xef\xbb\xbf" + GOOD + b"\n" + GOOD)
    assert found.texts == {0: "neighbour", 1: "neighbour"}
    assert found.starts == {0: 3, 1: 3 + len(GOOD) + 1}
    assert scan_bytes(tmp_path, b"\xef\xbb\xbf").texts == {}


def test_empty_and_blank_files(tmp_path: Path) -> None:
    for data, records in ((b"", 0), (b"\n", 1), (b"\n\n \r\n", 3), (b" ", 1)):
        found = scan_bytes(tmp_path, data)
        assert found.texts == {} == found.rejects
        assert found.summary is not None
        assert (found.summary.num_records, found.summary.num_blank) == (records, records)
        assert found.summary.stream_bytes == len(data)


def test_another_text_field(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text('{"text":"a","é content":"b"}\n{"text":"a"}\n{"\\u00e9 content":"c"}\n')
    batches = list(read_file(InputFile("s", 0, str(tmp_path), path.name, text_field="é content"), 0))
    assert [text for batch in batches for text in batch.text.to_pylist()] == ["b", "c"]


def test_selected_records_only(tmp_path: Path) -> None:
    lines = [line for _, line, _ in HOSTILE if len(line) < 20_000]
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"\n".join(lines))
    everything = scan(path)
    keep = np.zeros(len(lines), np.bool_)
    chosen = sorted(everything.texts)[::3]
    keep[chosen] = True
    found = scan(path, keep=keep)
    assert found.texts == {record: everything.texts[record] for record in chosen}
    assert found.rejects == {}


@pytest.mark.parametrize("change", ["flip", "append", "shorten", "gone"])
def test_a_file_that_changed_since_the_first_pass_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"\n".join([GOOD] * 10) + b"\n")
    inputs = InputFile("s", 0, str(tmp_path), path.name)
    summary = scan(path).summary
    keep = np.ones(10, np.bool_)
    assert sum(len(batch.text) for batch in read_file(inputs, 0, keep_R=keep, expected=summary)) == 10
    data = path.read_bytes()
    changes = {"flip": data.replace(b"bour", b"bear", 1), "append": data + GOOD, "shorten": data[:-30], "gone": b""}
    path.write_bytes(changes[change])
    with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
        list(read_file(inputs, 0, keep_R=keep, expected=summary))


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        list(read_file(InputFile("s", 0, str(tmp_path), "nowhere.jsonl"), 0))
    with pytest.raises(ConfigError, match="csv"):
        list(read_file(InputFile("s", 0, str(tmp_path), "nowhere.csv", format="csv"), 0))


def decode(decoder: Callable[..., tuple[int, int]], line: bytes, start: int) -> tuple[int, bytes]:
    """Where the string at ``line[start:]`` ends, or -reason, and its bytes."""
    data = np.frombuffer(line + b"\n" + bytes(64), np.uint8).copy()
    out = np.zeros(len(line) + 128, np.uint8)
    stop, end = decoder(data, np.int64(start), out, np.int64(3))
    return int(stop), out[3 : int(end)].tobytes() if stop > 0 else b""


DECODERS = [decode_by_segments] + [decode_by_blocks] * COMPRESSES
STRING_PIECES = [
    b"\\n", b"\\\\", b'\\"', b"\\/", b"\\t", b"\\b\\f\\r", b"\\u0041", b"\\ud83d\\ude00", b"\\u20ac", b"plain", b"x",
    "é中😀".encode(), b" " * 61, b"\\\\" * 40, b"\\n" * 64,
]  # fmt: skip
BAD_PIECES = [b"\\x", b"\\", b"\\u12", b"\\ud83d", b"\\ude00", b"\t", b"\x00", b"\\\xe9", b"\\\x8e", b"\\\n"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STRING_PIECES), max_size=30), st.integers(0, 66), st.sampled_from(["", *BAD_PIECES]))
def test_both_decoders_of_strings_are_the_standard_library(pieces: list[bytes], shift: int, bad: bytes | str) -> None:
    string = b"".join([b"p" * shift, *pieces])
    for decoder in DECODERS:
        whole = b'{"' + string + b'", "neighbour\\n": 1}'
        assert decode(decoder, whole, 2) == (3 + len(string), json.loads(b'"' + string + b'"').encode())
        assert decode(decoder, whole[: 2 + len(string)], 2) == (-int(RejectReason.SYNTAX), b"")  # never closed
    if isinstance(bad, bytes):
        broken = string + bad + b"z" * (len(pieces) % 3) + b'", '
        assert len({decode(decoder, broken, 0) for decoder in DECODERS}) == 1
        assert decode(DECODERS[0], broken, 0)[0] in (-int(RejectReason.SYNTAX), -int(RejectReason.SURROGATE))


def test_every_escape_at_every_place_of_a_block() -> None:
    for byte in range(256):
        for place in (0, 1, 5, 61, 62, 63, 64, 65, 127):
            line = b"a" * place + b"\\" + bytes([byte]) + b"z" * 70 + b'"'
            legal = byte in b'"\\/bfnrt'
            for decoder in DECODERS:
                stop, text = decode(decoder, line, 0)
                assert (stop > 0) == legal, (byte, place)
                if legal:
                    assert text == json.loads(b'"' + line).encode()


def test_lines_are_found_across_stretches(tmp_path: Path) -> None:
    """The scanner looks for lines a stretch ahead: what a line holds above 127 must be known across their borders."""
    for size in (65_000, 65_536, 131_072, 200_000):
        lines = [b"x" * size, "é".encode() + b"x" * size, b"x" * size + "é".encode(), b"x" * size + b"\xff", b"y"]
        found = scan_bytes(tmp_path, b"\n".join(b'{"text":"' + line + b'"}' for line in lines))
        assert found.rejects == {3: RejectReason.UTF8.label}
        assert [found.texts[at] for at in (0, 1, 2, 4)] == [lines[at].decode() for at in (0, 1, 2, 4)]
    many = b"".join(b'{"text":"%d"}\n' % at for at in range(40_000))
    assert scan_bytes(tmp_path, many).texts == {at: str(at) for at in range(40_000)}


def test_lines_larger_than_any_block_and_ids_of_any_kind(tmp_path: Path) -> None:
    """What is large, and the fields that others take for keys: ids are data, whatever they are."""
    texts = {2: "x" * (2 << 20), 4: "é" * (5 << 20)}
    lines = [
        b'{"id":null,"text":"a"}',
        b'{"id":17,"text":"b"}',
        b'{"text":"' + texts[2].encode() + b'","id":{"x":[1]}}',
        b'{"id":"0","id":"1","text":"d","m":' + b"[" * 3_000_000,
        b'{"id":"1","text":"' + texts[4].encode() + b'"}',
        b'{"id":"1","text":"f"}\r',
        b'{"id":"1","text":"f"}',
    ]
    for batch_bytes in (1 << 16, 8 << 20):
        found = scan_bytes(tmp_path, b"\n".join(lines), ReadOptions(batch_bytes=batch_bytes))
        assert found.texts == {0: "a", 1: "b", 5: "f", 6: "f", **texts}
        assert found.rejects == {3: "depth"}
