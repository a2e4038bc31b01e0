"""WARC: what datatrove's reader gives, and everything that it drops in silence, named or counted."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from datatrove.pipeline.readers import WarcReader
from support.warc import NO_ENCODING, warc_record

from dataprep.documents import InputFile, RejectReason
from dataprep.formats import ReadOptions, RejectSink, read_file
from loader.errors import ConfigError, DamageError
from loader.text.records import RecordPlace, read_texts

RUSSIAN = "<html><body>Это обычная страница на русском языке, каких много.</body></html>"
RECORDS: dict[str, tuple[bytes, str | None]] = {
    "about": (warc_record(b"software: none\r\n", kind="warcinfo", mime=None), None),
    "page": (warc_record("<html>é 中文</html>".encode()), "<html>é 中文</html>"),
    "request": (warc_record(b"GET / HTTP/1.0\r\n\r\n", kind="request", mime=None), None),
    "another encoding": (warc_record(RUSSIAN.encode("cp1251")), RUSSIAN),
    "type by content": (warc_record(b"<!DOCTYPE html><html>x</html>", mime=None), "<!DOCTYPE html><html>x</html>"),
    "image": (warc_record(b"\x89PNG\r\n\x1a\n", mime="image/png"), None),
    "image by content": (warc_record(b"\x89PNG\r\n\x1a\n" + bytes(100), mime=None), None),
    "plain text of WET": (warc_record("just\ntext é".encode(), kind="conversion", mime="text/plain"), "just\ntext é"),
    "packed by HTTP": (
        warc_record(gzip.compress(b"<html>packed</html>"), http="Content-Encoding: gzip\r\n"),
        "<html>packed</html>",
    ),
    "in chunks": (
        warc_record(b"5\r\n<html\r\n2\r\n>x\r\n0\r\n\r\n", http="Transfer-Encoding: chunked\r\n"),
        "<html>x",
    ),
    "line ends": (warc_record(b"<html>\r\n\r\nWARC/1.0\r\n\r\n</html>"), "<html>\r\n\r\nWARC/1.0\r\n\r\n</html>"),
}
TEXTS = {number: text for number, (_, text) in enumerate(RECORDS.values()) if text is not None}
DATA = b"".join(record for record, _ in RECORDS.values())


def read(path: Path, options: ReadOptions | None = None) -> tuple[dict[RecordPlace, str], RejectSink]:
    sink, found = RejectSink(), {}
    inputs = InputFile("s", 0, str(path.parent), path.name, format="warc")
    for batch in read_file(inputs, 0, rejects=sink, options=options):
        starts = zip(batch.record_start_N.tolist(), batch.record_N.tolist(), strict=True)
        found.update(zip((RecordPlace(*start) for start in starts), batch.text.to_pylist(), strict=True))
    return found, sink


def collect(path: Path, texts: list[str]) -> None:
    for batch in read_file(InputFile("s", 0, str(path.parent), path.name, format="warc"), 0):
        texts += batch.text.to_pylist()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


@pytest.mark.parametrize("suffix", PACK)
def test_texts_are_datatroves_and_the_rest_is_counted(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.warc{suffix}"
    path.write_bytes(b"".join(PACK[suffix](record) for record, _ in RECORDS.values()))
    found, sink = read(path)
    assert {place.record: text for place, text in found.items()} == TEXTS
    starts = [DATA.index(record) for record, _ in RECORDS.values()]
    assert all(place.record_start == starts[place.record] for place in found)
    assert len(sink.rows) == 0
    assert sink.summary is not None
    assert (sink.summary.num_records, sink.summary.num_blank) == (len(RECORDS), len(RECORDS) - len(TEXTS))
    if suffix in ("", ".gz", ".zst"):
        documents = WarcReader(str(tmp_path), glob_pattern=path.name).run()
        assert [document.text for document in documents] == list(found.values())
    for wanted in (list(found), list(found)[-1:], list(found)[1::2]):
        assert read_texts(path, "warc", "text", wanted) == {place: found[place] for place in wanted}


def test_records_that_datatrove_drops_or_dies_of_are_rejects(tmp_path: Path) -> None:
    good = warc_record(b"<html>good</html>")
    no_url = good.replace(b"WARC-Target-URI: http://example.org/\r\n", b"")
    utf7 = warc_record(b"<html>" + "\u65e5\u672c".encode("utf-16"))
    records = {
        "no encoding": (warc_record(NO_ENCODING), RejectReason.UTF8),
        "no URL": (no_url, RejectReason.SYNTAX),
        "empty": (warc_record(b""), RejectReason.EMPTY),
        "no HTTP header": (warc_record(b"\r\n", http=None), RejectReason.EMPTY),
        "no HTTP at all": (warc_record(b"<html>\r\n\r\nx</html>", http=None), None),
        "white space": (warc_record(b" \r\n"), RejectReason.EMPTY),
        "broken packing": (
            warc_record(gzip.compress(b"<html>x")[:-9] + b"\xff", http="Content-Encoding: gzip\r\n"),
            None,
        ),
        "binary": (utf7, None),
    }
    (tmp_path / "a.warc").write_bytes(b"".join(good + record for record, _ in records.values()) + good)
    found, sink = read(tmp_path / "a.warc")
    assert [found[place] for place in found if place.record % 2 == 0] == ["<html>good</html>"] * (len(records) + 1)
    reasons = {int(row["record"]): int(row["reason"]) for row in sink.rows}
    for number, (name, (_, reason)) in enumerate(records.items()):
        if reason is not None:
            assert reasons.get(2 * number + 1) == reason, name


def test_a_date_for_the_keep_policy(tmp_path: Path) -> None:
    (tmp_path / "a.warc").write_bytes(DATA)
    inputs = InputFile("s", 0, str(tmp_path), "a.warc", format="warc")
    for field, value in (("date", b'"2026-01-01T00:00:00Z"'), ("url", b'"http://example.org/"'), ("none", b"")):
        for batch in read_file(inputs, 0, options=ReadOptions(extra_field=field)):
            assert batch.extra_N == (value,) * len(batch.text)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_cut_record_is_damage_and_no_short_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.warc{suffix}"
    texts = list(TEXTS.values())
    borders = [match.start() for match in re.finditer(b"WARC/1.0\r\nWARC-Type", DATA)] + [len(DATA)]
    for cut in range(1, len(DATA), 31):
        if any(border - 4 <= cut <= border for border in borders):
            continue  # between two records no reader can see it
        path.write_bytes(PACK[suffix](DATA[:cut]))
        found: list[str] = []
        with pytest.raises(DamageError, match=path.name):
            collect(path, found)
        assert found == texts[: len(found)]


def test_what_is_no_warc_is_damage(tmp_path: Path) -> None:
    good = warc_record(b"<html>good</html>")
    wrong_length = good.replace(b"Content-Length: ", b"Content-Length: 1")
    length = next(line for line in good.split(b"\r\n") if line.startswith(b"Content-Length"))
    broken = {
        "an empty line in front": b"\n" + good,
        "no record": b"hello\n",
        "something between records": good + b"hello\r\n" + good,
        "a length that is too long": wrong_length,
        "a length that is too short": good.replace(length, b"Content-Length: 9") + good,
        "a length below zero": good.replace(length, b"Content-Length: -9") + good,
        "no number": good.replace(length, b"Content-Length: many") + good,
        "no length": good.replace(length + b"\r\n", b"") + good,
        "NUL": b"\0",
    }
    for data in broken.values():
        (tmp_path / "a.warc").write_bytes(data)
        with pytest.raises(DamageError, match=r"a\.warc"):
            read(tmp_path / "a.warc")
    (tmp_path / "a.warc").write_bytes(b"WARC/1.0\r\nX: " + b"x" * (9 << 20))
    with pytest.raises(DamageError, match="headers"):
        read(tmp_path / "a.warc")


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "a.warc").write_bytes(DATA)
    place = next(iter(read(tmp_path / "a.warc")[0]))
    for name in ("warcio", "magic", "cchardet"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ConfigError, match=r"TR-INPUT-EXTRA(.|\n)*tokenreel\[warc\]"):
                read(tmp_path / "a.warc")
            with pytest.raises(ConfigError, match="TR-INPUT-EXTRA"):
                read_texts(tmp_path / "a.warc", "warc", "text", [place])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ConfigError, match=r"TR-INPUT-EXTRA(.|\n)*tokenreel\[hf\]"):
            list(read_file(InputFile("s", 0, str(tmp_path), "a.arrow", format="huggingface"), 0))
