"""Paragraphs of any bytes against a splitter that goes line by line, whatever the size of blocks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.documents import InputFile, RejectReason
from dataprep.formats import ReadOptions, RejectSink, read_file
from loader.text.records import RecordPlace, read_texts

BOM = b"\xef\xbb\xbf"
LABELS = {int(reason): reason.label for reason in RejectReason}
PIECES = [
    b"a", b"b c", b"\n", b"\n\n", b"\n \n", b" ", b"\t", b"\r", b"\r\n", b"\r\n\r\n", b"\v\f", b"\xff",
    "é\u3000".encode(), b"    ", b"xyz" * 10, BOM, b"\x1c", b"\x00", b" " * 70,
]  # fmt: skip


def split(data: bytes, limit: int) -> tuple[dict[int, tuple[int, str]], dict[int, str]]:
    """(start, text) of each paragraph, and why others are rejected, by number."""
    offset = len(BOM) if data.startswith(BOM) else 0
    paragraphs: list[tuple[int, list[bytes]]] = []
    inside = False
    for line in data[offset:].split(b"\n"):
        if line.strip(b" \t\r\v\f"):
            if not inside:
                paragraphs.append((offset, []))
            paragraphs[-1][1].append(line)
        inside = bool(line.strip(b" \t\r\v\f"))
        offset += len(line) + 1
    documents, rejects = {}, {}
    for number, (start, lines) in enumerate(paragraphs):
        text = b"\n".join(lines)
        text = text[:-1] if text.endswith(b"\r") else text
        try:
            documents[number] = (start, text.decode())
            if len(text) > limit:
                rejects[number] = "too-long"
        except UnicodeDecodeError:
            rejects[number] = "too-long" if len(text) > limit else "utf8"
    return {number: found for number, found in documents.items() if number not in rejects}, rejects


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=50).map(b"".join),
    st.sampled_from([20, 1000]),
    st.sampled_from([1, 64, 1 << 20]),
)
def test_paragraphs_are_those_of_a_splitter_by_lines(data: bytes, limit: int, batch_bytes: int) -> None:
    expected = split(data, limit)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(data)
        sink, found = RejectSink(), {}
        options = ReadOptions(limit, batch_bytes)
        inputs = InputFile("s", 0, folder, path.name, format="text_paragraphs")
        for batch in read_file(inputs, 0, options=options, rejects=sink):
            places = zip(batch.record_start_N.tolist(), batch.text.to_pylist(), strict=True)
            found.update(zip(batch.record_N.tolist(), places, strict=True))
        rejects = {int(row["record"]): LABELS[int(row["reason"])] for row in sink.rows}
        assert (found, rejects) == expected
        assert sink.summary is not None
        assert sink.summary.num_records == len(found) + len(rejects)
        wanted = [RecordPlace(start, number) for number, (start, _) in found.items()]
        again = read_texts(path, "text_paragraphs", "text", wanted)
        assert [again[place] for place in wanted] == [text for _, text in found.values()]


def test_long_white_space_is_blank_or_too_long_whatever_the_blocks(tmp_path: Path) -> None:
    spaces = b" " * 50_000
    data = b"one\n" + spaces + b"\n" + spaces + b"x\n\ntwo\n\n" + spaces + b"\n\n" + b"three" + spaces + b"\n\nfour"
    (tmp_path / "a.txt").write_bytes(data)
    for batch_bytes in (1, 1000, 1 << 20):
        sink, texts = RejectSink(), {}
        inputs = InputFile("s", 0, str(tmp_path), "a.txt", format="text_paragraphs")
        for batch in read_file(inputs, 0, options=ReadOptions(100, batch_bytes), rejects=sink):
            texts.update(zip(batch.record_N.tolist(), batch.text.to_pylist(), strict=True))
        rejects = sink.rows["record"].tolist()
        assert {number for number, text in texts.items() if text in ("two", "four")} == {2, 4}
        assert rejects in ([0, 1, 3], [1, 3])
        assert (0 in rejects) != (texts.get(0) == "one")
