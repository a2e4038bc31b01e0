"""Repetition against its definition in plain Python, cuts against what was left out, datatrove's filters against
themselves, and the screen as a whole."""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datatrove.data import Document
from datatrove.pipeline import filters as datatrove_filters
from datatrove.pipeline import formatters as datatrove_formatters
from datatrove.utils import text as datatrove_text
from datatrove.utils import word_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.dedup_runs import Source, write_sources
from support.text_oracle import tokens_of

from dataprep import normalize
from dataprep.cuts import load_cuts, union_by_record
from dataprep.dedup.config import IngestConfig
from dataprep.documents import InputFile
from dataprep.formats import read_file
from dataprep.kernels.documents import text_buffers
from dataprep.kernels.located import Tokens, split_located
from dataprep.kernels.prose import COUNTS, count_prose
from dataprep.kernels.repetition import FIRST_GRAM_SHARE, periodic_runs, repetition_shares
from dataprep.kernels.words import split_words
from dataprep.quality import QualityDocuments, check_steps, quality_versions
from dataprep.quality.adapter import datatrove_classes
from dataprep.quality.deletions import compose, kept_ranges, to_bytes
from dataprep.quality.judges import Judge
from dataprep.quality.prose import stop_table
from dataprep.quality.screen import FileScreen
from dataprep.screen_config import QualityStep
from loader.errors import ConfigError, JobError

SCRIPTS = ["abc", "ABC", "éÉe\u0301", "中文字", "กาิ", "かな", "😀", "9_", "co\u00adop", "\u0301", "ß", "اَ", "\u200b"]
LARGEST_N = 10


def mixed_text(randomness: random.Random) -> str:
    words = [
        "".join(randomness.choice(randomness.choice(SCRIPTS)) for _ in range(randomness.randrange(1, 5)))
        for _ in range(randomness.randrange(1, 6))
    ]
    separators = [" ", " ", " ", ", ", "\n", "\n\n", "\n\n\n", " \n", "", "-", "\t"]
    parts = [randomness.choice(words) + randomness.choice(separators) for _ in range(randomness.randrange(1, 120))]
    return randomness.choice(["", "", " \n", "\n\n"]) + "".join(parts)


def located_tokens(text: str) -> list[tuple[tuple[bool, str], int, int]]:
    """(token, first byte, byte after it) by the rules as they are written in ``kernels.located``."""
    table = normalize.load_table()
    found: list[tuple[tuple[bool, str], int, int]] = []
    word, kind, start, byte, drops = "", normalize.SEPARATOR, 0, 0, False
    for character in text + " ":
        entry = int(table[ord(character)]) if ord(character) < normalize.TABLE_SIZE else 0
        what = (entry >> 21) & 7
        begins = what == normalize.SINGLE or (what == normalize.WORD and kind == normalize.SINGLE)
        if word and (what == normalize.SEPARATOR or begins):
            found.append(((kind == normalize.SINGLE, word), start, byte))
            word, kind = "", normalize.SEPARATOR
        dropped = what == normalize.COMMON_MARK and (drops or not word)
        if what not in (normalize.SEPARATOR, normalize.IGNORED) and not dropped:
            start = start if word else byte
            word += chr(entry & 0x1FFFFF) + (chr(normalize.TAIL_MARKS[entry >> 25]) if entry >> 25 else "")
            if what in (normalize.WORD, normalize.SINGLE):
                kind, drops = what, bool(entry & (1 << 24))
            elif kind == normalize.SEPARATOR:
                kind, drops = normalize.WORD, False
        byte += len(character.encode())
    return found


def part_shares(parts: Sequence[str], size: int) -> tuple[float, float]:
    seen: set[str] = set()
    repeats = repeated = 0
    for part in parts:
        if part in seen:
            repeats, repeated = repeats + 1, repeated + len(part.encode())
        seen.add(part)
    return repeats / len(parts), repeated / size


def gram_shares(text: str, n: int) -> tuple[float, float]:
    """Shares of the most frequent and of all repeated n-grams, as datatrove's filter counts them, on our tokens."""
    located, size = located_tokens(text), max(len(text.encode()), 1)
    words = [token for token, _, _ in located]
    lengths = [stop - start for _, start, stop in located]
    if 2 * sum(single for single, _ in words) > len(words):
        n = (8 * n + 2) // 5
    grams = [tuple(words[place : place + n]) for place in range(len(words) - n + 1)]
    if not grams:
        return np.nan, np.nan
    gram, count = Counter(grams).most_common(1)[0]
    place = grams.index(gram)
    top = count * (sum(lengths[place : place + n]) + n - 1) / size
    seen: set[tuple[tuple[bool, str], ...]] = set()
    repeated = place = 0
    while place < len(grams):
        if grams[place] in seen:
            repeated += sum(lengths[place : place + n])
            place += n
        else:
            seen.add(grams[place])
            place += 1
    return top, repeated / size


def expected_shares(text: str) -> list[float]:
    size = max(len(text.encode()), 1)
    stripped = text.strip("\t\n\v\f\r\x1c\x1d\x1e\x1f ")
    shares = [*part_shares(re.split(r"\n{2,}", stripped), size), *part_shares(re.split(r"\n+", text), size)]
    shares += [np.nan] * 4
    for n in range(2, LARGEST_N + 1):
        shares += gram_shares(text, n)
    return shares


def found_shares(texts: Sequence[str], limit: float = 1e9) -> tuple[Any, Any]:
    limit_F = np.full(FIRST_GRAM_SHARE + 2 * (LARGEST_N + 1), limit)
    share_NF, column_N = np.full((len(texts), len(limit_F)), np.nan), np.empty(len(texts), np.int64)
    buffers = text_buffers(pa.array(texts, pa.large_string()))
    repetition_shares(buffers, normalize.load_table(), limit_F, share_NF, column_N)
    return share_NF, column_N


def test_tokens_lie_where_the_rules_say() -> None:
    randomness = random.Random(1)
    table = normalize.load_table()
    for _ in range(600):
        text = mixed_text(randomness) * randomness.choice([1, 1, 3])
        encoded, before = text.encode(), randomness.randrange(70)
        data = np.frombuffer(b"w" * before + encoded + b"w" * 64, np.uint8)
        room = len(encoded) // 2 + 64
        tokens = Tokens(np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32))
        count = split_located(data, (before, before + len(encoded)), table, tokens)
        hashes = np.empty(len(encoded) + 64, np.uint64)
        assert count == split_words(data, (before, before + len(encoded)), table, hashes)
        assert np.array_equal(tokens.hash_T[:count], hashes[:count])
        expected = located_tokens(text)
        assert [token for token, _, _ in expected] == tokens_of(text)
        assert [(start, stop) for _, start, stop in expected] == list(
            zip(tokens.start_T[:count].tolist(), tokens.stop_T[:count].tolist(), strict=True)
        )


def test_shares_are_those_of_the_definition() -> None:
    randomness = random.Random(2)
    texts = [
        "a",
        "\n",
        " ",
        "word " * 50,
        "中" * 40,
        "a b a b a b c d " * 9,
        "\n\na\n\n",
        "x\n\nx\n\n\nx",
        "a\nb\na\nb\n",
    ]
    texts += [mixed_text(randomness) for _ in range(400)]
    share_NF, column_N = found_shares(texts)
    assert np.all(column_N == -1)
    for text, share_F in zip(texts, share_NF, strict=True):
        assert np.allclose(share_F, expected_shares(text), rtol=1e-12, atol=0, equal_nan=True), text


def test_the_first_share_over_its_limit_decides() -> None:
    randomness = random.Random(3)
    texts = [mixed_text(randomness) for _ in range(200)]
    for limit in (0.05, 0.3):
        for text, column in zip(texts, found_shares(texts, limit)[1], strict=True):
            over = [place for place, share in enumerate(expected_shares(text)) if share > limit]
            assert column == (over[0] if over else -1)


def marks_of(encoded: bytes, tokens: Sequence[tuple[Any, int, int]]) -> Iterator[int]:
    """Marks of each gap: what lies between two tokens, or a token and an end of the text."""
    borders = [0, *(border for _, start, stop in tokens for border in (start, stop)), len(encoded)]
    for place, (start, stop) in enumerate(zip(borders[::2], borders[1::2], strict=True)):
        gap = encoded[start:stop].decode("latin-1").replace("\x85", "x").replace("\xa0", "x")
        at_end = place in (0, len(tokens))
        yield len(gap.split()) if at_end or len(gap.split()) != 1 or gap != gap.strip() else 0


def expected_counts(text: str, stop_words: Sequence[str]) -> list[int]:
    tokens = located_tokens(text)
    encoded = text.encode()
    words = [(word, encoded[start:stop].decode()) for (single, word), start, stop in tokens if not single]
    pieces = [encoded[start:stop].decode() for _, start, stop in tokens]
    spaces = "\t\n\v\f\r\x1c\x1d\x1e\x1f "
    lines = [line.strip(spaces) for line in (text[:-1] if text.endswith("\n") else text).split("\n")]
    return [
        len(tokens),
        len(words),
        sum(len(piece) for _, piece in words),
        sum(any(not character.isascii() or character.isalpha() for character in piece) for piece in pieces),
        len({tokens_of(word)[0] for word in stop_words} & {token for token, _, _ in tokens}),
        sum(marks_of(encoded, tokens)),
        text.count("#"),
        text.count("...") + text.count("…"),
        len(lines),
        sum(line.startswith(("-", "•")) for line in lines),
        sum(line.endswith(("...", "…")) for line in lines),
    ]


def test_counts_of_prose_are_those_of_the_definition() -> None:
    randomness = random.Random(8)
    marks = [
        "-",
        "•",
        "...",
        "....",
        "…",
        "#",
        "##",
        ".",
        "\n",
        "\r\n",
        "the",
        "The",
        "Of",
        " ",
        " ",
        "中",
        "1874",
        "_",
        "é",
    ]
    texts = ["".join(randomness.choices(marks, k=randomness.randrange(1, 60))) for _ in range(300)]
    texts += [mixed_text(randomness) for _ in range(200)]
    stop_words = ("the", "of", "the", "中", "ß")
    table = normalize.load_table()
    found = np.zeros((len(texts), len(COUNTS)), np.int64)
    count_prose(text_buffers(pa.array(texts, pa.large_string())), table, stop_table(stop_words, table), found)
    for text, counts in zip(texts, found.tolist(), strict=True):
        assert counts == expected_counts(text, stop_words), text


def expected_runs(
    elements: Sequence[Any], places: Sequence[tuple[int, int]], lag: int, repeats: int
) -> tuple[int, int]:
    covered: set[int] = set()
    longest = place = 0
    while place < len(elements):
        stop = place
        while stop + lag < len(elements) and elements[stop] == elements[stop + lag]:
            stop += 1
        if stop - place >= (repeats - 1) * lag:
            first, last = places[place][0], places[stop + lag - 1][1]
            covered |= set(range(first, last))
            longest = max(longest, last - first)
        place = stop + 1
    return len(covered), longest


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.text("ab c", min_size=1, max_size=5), st.integers(1, 12)), max_size=8), st.integers(2, 5))
def test_periodic_runs_are_all_found(parts: list[tuple[str, int]], repeats: int) -> None:
    text = "".join(part * count for part, count in parts)
    located = located_tokens(text)
    expected = np.zeros(4, int)
    for lag in range(1, 5):
        words = expected_runs([token for token, _, _ in located], [place[1:] for place in located], lag, repeats)
        letters = expected_runs(text, [(place, place + 1) for place in range(len(text))], lag, repeats)
        expected = np.maximum(expected, (*words, *letters))
    found = np.zeros((1, 4), np.int64)
    texts = text_buffers(pa.array([text], pa.large_string()))
    periodic_runs(texts, normalize.load_table(), (4, repeats), found)
    assert found[0].tolist() == expected.tolist()


@settings(max_examples=150, deadline=None)
@given(st.text("ab \n\r\u2028é😀.", max_size=60), st.lists(st.booleans(), min_size=60, max_size=60))
def test_whatever_is_left_out_is_found(before: str, mask: list[bool]) -> None:
    after = "".join(character for character, keep in zip(before, mask, strict=False) if keep)
    ranges = kept_ranges(before, after)
    assert ranges is not None
    left = "".join(before[start:stop] for start, stop in ranges)
    assert " ".join(left.split()) == " ".join(after.split())
    assert len(left) == len(after)
    encoded = before.encode()
    assert b"".join(encoded[start:stop] for start, stop in to_bytes(before, ranges)) == left.encode()


@pytest.mark.parametrize(
    ("before", "after"), [("ab", "ba"), ("a b", "b a"), ("aaa", "aaaa"), ("x@y.org", "email@example.com"), ("", "a")]
)
def test_what_is_no_deletion_is_none(before: str, after: str) -> None:
    assert kept_ranges(before, after) is None


def test_cuts_are_whole_lines_where_lines_were_dropped() -> None:
    before = (
        "Keep this line.\r\n== nav ==\r\n  Keep this too [1] and this.  \r\nKeep\r\nlast line here.\u2028end of it."
    )
    after = "Keep this line.\nKeep this too  and this.\nlast line here.\nend of it."
    ranges = kept_ranges(before, after)
    assert ranges is not None
    assert [before[start:stop] for start, stop in ranges] == [
        "Keep this line.", "\n", "Keep this too ", " and this.", "\n", "last line here.\u2028end of it.",
    ]  # fmt: skip


def test_sentences_that_are_joined_otherwise_keep_the_white_space_of_the_original() -> None:
    before = "Of ink.[3]\nTwo is here.\n\nThree\tis last.\n"
    ranges = kept_ranges(before, "Of ink.  Two is here. Three\tis last.")
    assert ranges is not None
    assert [before[start:stop] for start, stop in ranges] == ["Of ink.", "\nTwo is here.\n\nThree\tis last."]
    assert kept_ranges("Of ink.Two is.[3]Three.", "Of ink. Two is. Three.") == [(0, 14), (17, 23)]


def test_no_sentence_begins_in_one_that_was_left_out() -> None:
    before = "They said it. In the north it is. It is late.\nThis goes. These stay."
    for after, expected in [
        ("They said it. It is late.\nThese stay.", ["They said it. ", "It is late.\n", "These stay."]),
        ("They said it. It is late. These stay.", ["They said it. ", "It is late", ". These stay."]),
    ]:
        ranges = kept_ranges(before, after)
        assert ranges is not None
        assert [before[start:stop] for start, stop in ranges] == expected


def test_deletions_are_found_in_linear_time() -> None:
    lines = [f"line {index} of many, " + "x" * (index % 40) for index in range(60_000)]
    assert kept_ranges("\n".join(lines), "\n".join(lines[::3])) is not None
    assert kept_ranges("ab" * 400_000, "a" * 400_000 + "b") is not None
    assert kept_ranges("ab" * 400_000, "b" * 400_000 + "a") is None
    assert kept_ranges("\n" * 400_000 + "a", "\n" * 400_000) is not None


def test_composed_ranges_are_ranges_of_the_original() -> None:
    randomness = random.Random(4)
    for _ in range(200):
        original = "".join(randomness.choice("abcdef") for _ in range(40))
        borders = sorted(randomness.sample(range(41), 8))
        pieces = list(zip(borders[::2], borders[1::2], strict=True))
        text = "".join(original[start:stop] for start, stop in pieces)
        inner_borders = sorted(randomness.sample(range(len(text) + 1), min(4, len(text) // 2 * 2)))
        inner = list(zip(inner_borders[::2], inner_borders[1::2], strict=True))
        expected = "".join(text[start:stop] for start, stop in inner)
        assert "".join(original[start:stop] for start, stop in compose(pieces, inner)) == expected


class PlainTokenizer(word_tokenizers.WordTokenizer):  # type: ignore[misc]
    """Words and punctuation marks, and sentences, by two expressions: in place of spaCy, which no lock holds."""

    def word_tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text)

    def sent_tokenize(self, text: str) -> list[str]:
        return [text[start:stop].strip() for start, stop in self.span_tokenize(text)]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        stops = [match.end() for match in re.finditer(r"[.!?](?=\s)", text)] + [len(text)]
        return list(zip([0, *stops[:-1]], stops, strict=True))


@pytest.fixture
def english(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """datatrove's language ``eng`` without spaCy."""
    caches = (word_tokenizers.load_word_tokenizer, datatrove_text.split_into_parts)
    monkeypatch.setattr(word_tokenizers, "load_tokenizer_assignments", lambda: {"eng": PlainTokenizer})
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


SENTENCES = [
    "The ferry was late again and nobody on the pier seemed to mind it.", "Please enable javascript to see this page.",
    "She had written to the museum with three questions about the map [12] and the ink.[3]", "- a bullet without end",
    "Terms of use and our cookie policy apply to everything.", "lorem ipsum dolor sit amet.", "==== ---- ====", "Yes.",
    "It is said that the bridge was paid for with salt, and that this is why it rusts.", "Read more...", "*** * ***",
    "Would you have believed that of all people he would come back?", "He laughed {as usual} and left.", "", "   ",
    "In the north they bake it with rye, and with barley where the ground is too wet for that.", "42 17 9000 # # #",
    "Über die Brücke fuhr ein Zug, and everyone counted the wagons.", "漢字の行です。これは文です。", "• point",
]  # fmt: skip


def web_texts(seed: int, count: int = 120) -> list[str]:
    randomness = random.Random(seed)
    good = [sentence for sentence in SENTENCES if len(sentence) > 60]
    texts = []
    for _ in range(count):
        pool = randomness.choice([SENTENCES, good, good + randomness.sample(SENTENCES, 3)])
        lines = [
            " ".join(randomness.sample(pool, randomness.randrange(1, 4))) for _ in range(randomness.randrange(1, 12))
        ]
        lines = [randomness.choice(["", "", "  "]) + line for line in lines]
        ends = randomness.choice(["\n", "\n", "\r\n", "\n\n", "\u2028"])
        texts.append(ends.join(lines) + randomness.choice(["", ends]) + randomness.choice(["", "  "]) or "x")
    return [text for text in texts if text]


ADAPTED: list[tuple[str, Mapping[str, Any]]] = [
    ("GopherQualityFilter", {"min_doc_words": 20}),
    ("GopherRepetitionFilter", {}),
    ("GopherRepetitionFilter", {"top_n_grams": [[2, 0.1]], "dup_line_frac": None}),
    ("C4QualityFilter", {}),
    ("C4QualityFilter", {"split_paragraph": False, "min_num_sentences": 2}),
    ("C4ParagraphFilter", {}),
    ("FineWebQualityFilter", {"stop_chars": [".", "?"]}),
    ("RegexFilter", {"regex_exp": "javascript|lorem"}),
    ("SymbolLinesFormatter", {}),
    ("SymbolLinesFormatter", {"symbols_to_remove": ["=", "-", " "]}),
    ("PIIFormatter", {"email_replacement": [""], "ip_replacement": [""]}),
]


def directly(name: str, options: Mapping[str, Any], text: str) -> tuple[str | None, str]:
    """(reason or None, text afterwards) of datatrove called without us."""
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    kind = getattr(datatrove_filters, name, None) or getattr(datatrove_formatters, name)
    step = kind(**options)
    if not hasattr(step, "filter"):
        return None, step.format(text)
    document = Document(text=text, id="1")
    result = step.filter(document)
    keeps, reason = result if isinstance(result, tuple) else (result, None)
    return (None if keeps else reason or "dropped"), document.text


def screen(tmp_path: Path, inputs: Sequence[InputFile], steps: Sequence[QualityStep], tasks: int = 1) -> Path:
    folder = tmp_path / f"screened{tasks}"
    for rank in range(tasks):
        list(QualityDocuments(inputs, steps, IngestConfig(), folder).run(None, rank, tasks))
    return folder


def outcome(folder: Path, texts: Sequence[str], file: int = 0) -> list[tuple[str, str]]:
    """(label, what is left of the text) by record."""
    labels = json.loads((folder / f"screen.{file:05d}.json").read_bytes())["labels"]
    verdicts = np.load(folder / f"verdict.{file:05d}.npy", allow_pickle=False)
    assert verdicts.dtype == np.uint8
    cuts = union_by_record(load_cuts([folder], file))
    found = []
    for record, text in enumerate(texts):
        kept = bytearray(text.encode())
        for start, stop in reversed(cuts.get(record, [])):
            del kept[start:stop]
        found.append((labels[verdicts[record]], kept.decode()))
    return found


@pytest.mark.usefixtures("english")
@pytest.mark.parametrize(("name", "options"), ADAPTED)
def test_datatrove_filters_judge_as_they_do_alone(tmp_path: Path, name: str, options: Mapping[str, Any]) -> None:
    texts = [*web_texts(5), "write to someone@example.org or 8.8.8.8 and no one else, please."]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    found = outcome(screen(tmp_path, inputs, [QualityStep(datatrove=name, options=options)]), texts)
    changed = dropped = 0
    for text, (label, left) in zip(texts, found, strict=True):
        reason, after = directly(name, options, text)
        if reason is None and after != text and not after.strip():
            reason = "nothing left"
        assert label == ("" if reason is None else f"{name}: {reason}")
        assert "".join(left.split()) == "".join((after if reason is None else text).split())
        if "split_paragraph" not in options and reason is None:
            assert left.replace("\u2028", "\n") == after.replace("\u2028", "\n")
        changed += reason is None and after != text
        dropped += reason is not None
    assert changed + dropped > 0


def test_unigram_probabilities_come_from_the_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, english: None
) -> None:
    from datatrove.pipeline.filters import unigram_log_probs

    (tmp_path / "unigram_freq.csv").write_text("word,count\nthe,100\nferry,2\nwas,50\n", encoding="utf-8")
    monkeypatch.setattr(unigram_log_probs, "cached_assets_path", lambda **_: tmp_path)
    texts = ["The ferry was the ferry", "zzz yyy xxx"]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    found = outcome(screen(tmp_path, inputs, [QualityStep(datatrove="UnigramLogProbFilter")]), texts)
    assert [label for label, _ in found] == ["", "UnigramLogProbFilter: dropped"]


@pytest.mark.usefixtures("english")
def test_filters_that_shorten_compose_and_see_what_is_left(tmp_path: Path) -> None:
    texts = ["== a ==\nKeep this ==\n-- b --\nx@y.org tail é\n", "== only ==\n", "nothing here", "short\n==\nline"]
    steps = [
        QualityStep(
            datatrove="SymbolLinesFormatter", options={"symbols_to_remove": ["=", " ", "a", "o", "n", "l", "y"]}
        ),
        QualityStep(filter="length", options={"min_bytes": 12}),
        QualityStep(datatrove="SymbolLinesFormatter", options={"symbols_to_remove": ["-", " ", "b"]}),
        QualityStep(datatrove="PIIFormatter", options={"email_replacement": [""]}),
    ]
    with pytest.raises(ConfigError):
        check_steps([*steps, QualityStep(datatrove="SymbolLines")])
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    folder = screen(tmp_path, inputs, steps)
    assert outcome(folder, texts) == [
        ("", "Keep this ==\n tail é"),
        ("SymbolLinesFormatter: nothing left", texts[1]),
        ("", texts[2]),
        ("length: min_bytes", texts[3]),
    ]
    report = json.loads((folder / "screen.00000.json").read_bytes())["report"]
    sizes = [len(text.encode()) for text in texts]
    assert report["read"] == {"documents": 4, "bytes": sum(sizes)}
    assert report["kept"] == {"documents": 2, "bytes": sizes[0] + sizes[2]}
    assert report["dropped"]["length"] == {"min_bytes": {"documents": 1, "bytes": sizes[3]}}
    assert report["cut"] == {
        "SymbolLinesFormatter": {"documents": 1, "bytes": len("== a ==\n" + "-- b --\n" + "\n")},
        "PIIFormatter": {"documents": 1, "bytes": len("x@y.org")},
    }


def test_a_rewriting_step_fails_the_job_and_says_where(tmp_path: Path) -> None:
    texts = ["no address", "é write to someone@example.org now"]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    with pytest.raises(JobError) as error:
        screen(tmp_path, inputs, [QualityStep(datatrove="PIIFormatter")])
    assert error.value.code == "TR-QUALITY-REWRITES"
    assert "PIIFormatter" in error.value.message
    assert error.value.place == f"{inputs[0].location} record 1 byte {len('é write to '.encode())} of the text"


@pytest.mark.usefixtures("english")
def test_a_filter_that_raises_fails_the_job_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainTokenizer, "word_tokenize", lambda self, text: re.findall("[a-z]+", text))
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": ["some words of a text.", "1, 2, 3, " * 20 + "."]}, 0)})
    with pytest.raises(JobError, match="FineWebQualityFilter failed on a document: ZeroDivisionError") as error:
        screen(tmp_path, inputs, [QualityStep(datatrove="FineWebQualityFilter")])
    assert error.value.code == "TR-QUALITY-FAILED"
    assert error.value.place == f"{inputs[0].location} record 1"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"filter": "gopher_repetitoin"}, "TR-QUALITY-UNKNOWN", "did you mean 'gopher_repetition'"),
    ({"datatrove": "GopherQualityFiltr"}, "TR-QUALITY-UNKNOWN", "did you mean 'GopherQualityFilter'"),
    ({"datatrove": "os.system"}, "TR-QUALITY-UNKNOWN", "os.system"),
    ({"datatrove": "BaseFilter"}, "TR-QUALITY-UNKNOWN", "BaseFilter"),
    ({"datatrove": "LambdaFilter"}, "TR-QUALITY-OPTIONS", "filter_function"),
    ({"datatrove": "RegexFilter"}, "TR-QUALITY-OPTIONS", "regex_exp: missing"),
    ({"datatrove": "RegexFilter", "options": {"regex_exp": 3}}, "TR-QUALITY-OPTIONS", "regex_exp: 3"),
    ({"datatrove": "RegexFilter", "options": {"regex_exp": "("}}, "TR-QUALITY-OPTIONS", "RegexFilter fails"),
    (
        {"datatrove": "C4ParagraphFilter", "options": {"exclusion_writer": "x"}},
        "TR-QUALITY-OPTIONS",
        "exclusion_writer",
    ),
    ({"datatrove": "SamplerFilter", "options": {"rat": 0.5}}, "TR-QUALITY-OPTIONS", "did you mean 'rate'"),
    ({"datatrove": "SamplerFilter", "options": {"rate": True}}, "TR-QUALITY-OPTIONS", "rate: True"),
    ({"filter": "length"}, "TR-QUALITY-OPTIONS", "at least one"),
    ({"filter": "length", "options": {"min_word": 3}}, "TR-QUALITY-OPTIONS", "did you mean 'min_words'"),
    ({"filter": "length", "options": {"min_words": 3.5}}, "TR-QUALITY-OPTIONS", "min_words: 3.5"),
    ({"filter": "gopher_repetition", "options": {"top_n_grams": [[2, "x"]]}}, "TR-QUALITY-OPTIONS", "top_n_grams"),
    ({"filter": "gopher_quality", "options": {"stop_words": ["two words"]}}, "TR-QUALITY-OPTIONS", "is not one word"),
    ({"filter": "gopher_repetition", "options": {"dup_n_grams": [[99, 0.1]]}}, "TR-QUALITY-OPTIONS", "from 2 to"),
]


@pytest.mark.parametrize(("step", "code", "message"), WRONG)
def test_wrong_filters_are_refused_before_anything_is_read(step: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_steps([QualityStep(filter="periodic"), QualityStep(**step)])
    assert error.value.code == code
    assert message in error.value.message
    assert error.value.place == "quality[1]"


@pytest.mark.parametrize("name", ["URLFilter", "LanguageFilter", "FTFYFormatter", "GopherQualityFilter"])
def test_what_a_filter_needs_is_asked_for_at_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from datatrove.utils import _import_utils

    monkeypatch.setattr(_import_utils, "_is_package_available", lambda package: False)
    caches = (word_tokenizers.load_word_tokenizer, datatrove_text.split_into_parts)
    for cache in caches:
        cache.cache_clear()
    with pytest.raises(ConfigError) as error:
        check_steps([QualityStep(datatrove=name)])
    assert error.value.code == "TR-QUALITY-MISSING"
    assert str(error.value.next_command).startswith("pip install ")


def test_every_filter_of_datatrove_is_known_and_none_downloads_to_be_named() -> None:
    known = datatrove_classes()
    assert {"GopherQualityFilter", "C4BadWordsFilter", "FTFYFormatter", "URLFilter"} <= known.keys()
    assert not {"BaseFilter", "BaseFormatter"} & known.keys()
    assert quality_versions([QualityStep(filter="periodic")]) == {"filters": 1}
    assert "datatrove" in quality_versions([QualityStep(datatrove="RegexFilter")])


def test_versions_of_what_datatrove_judges_with_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "ftfy":
            raise importlib.metadata.PackageNotFoundError(name)
        return f"{name} 1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = quality_versions([QualityStep(filter="periodic"), QualityStep(datatrove="GopherQualityFilter")])
    assert found["datatrove"] == "datatrove 1"
    assert found["spacy"] == "spacy 1"
    assert "ftfy" not in found


def test_files_do_not_depend_on_tasks_and_done_files_stay(tmp_path: Path) -> None:
    files = {f"{name}.jsonl": web_texts(seed, 40) for seed, name in enumerate("abc")}
    inputs = write_sources(
        tmp_path,
        {"s": Source(files, 0), "t": Source(files, 1, ("quality",)), "u": Source(files, 2, ("SamplerFilter",))},
    )
    steps = [
        QualityStep(datatrove="SamplerFilter", options={"rate": 0.6}),
        QualityStep(filter="gopher_repetition"),
        QualityStep(datatrove="SymbolLinesFormatter"),
        QualityStep(filter="periodic", options={"repeats": 4}),
    ]
    first, second = screen(tmp_path, inputs, steps, 1), screen(tmp_path, inputs, steps, 4)
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert len(names) == 27
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    reports = [json.loads((first / f"screen.{file:05d}.json").read_bytes())["report"] for file in range(9)]
    sampled = [report["dropped"]["SamplerFilter"].get("dropped", {"documents": 0})["documents"] for report in reports]
    assert all(5 < count < 30 for count in sampled[:3])
    assert sampled[3:] == [0] * 6
    assert all(report["kept"] == report["read"] and report["cut"] == {} for report in reports[3:6])
    assert [report["opted_out"] for report in reports[::3]] == [[], [step.name for step in steps], ["SamplerFilter"]]
    before = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    screen(tmp_path, inputs, steps, 1)
    assert before == {path.name: path.stat().st_mtime_ns for path in first.iterdir()}


def test_more_reasons_than_a_byte_has_values_share_the_last_label(tmp_path: Path) -> None:
    texts = [f"text number {index}" for index in range(400)]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    reasons = tuple(f"reason {index}" for index in range(200))

    def judge_by(rest: int) -> Judge:
        def judge(text: pa.LargeStringArray) -> NDArray[np.uint8]:
            numbers = [int(value.as_py().rsplit(" ", 1)[1]) for value in text]
            return np.array([number // 2 + 1 if number % 2 == rest else 0 for number in numbers], np.uint8)

        return Judge(reasons, judge)

    screened = FileScreen(inputs[0], [("even", judge_by(0)), ("odd", judge_by(1))])
    for batch in read_file(inputs[0], 0):
        screened.add(batch)
    verdicts = screened.verdicts(400)
    assert len(screened.labels) == 256
    assert screened.labels[-1] == "odd: other"
    assert [screened.labels[verdict] for verdict in verdicts[::2].tolist()] == [f"even: {reason}" for reason in reasons]
    assert screened.labels[verdicts[109]] == "odd: other" == screened.labels[verdicts[399]]
    report = screened.report()
    assert report["dropped"]["odd"]["other"]["documents"] == 200 - 54
    assert report["kept"] == {"documents": 0, "bytes": 0}


def test_rejects_and_blank_lines_go_on(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": ["x"]}, 0)})
    (tmp_path / "s/a.jsonl").write_bytes(b'{"text": "tiny"}\n\n{"text": 3}\n{"text": "quite a bit longer"}\n')
    folder = screen(tmp_path, inputs, [QualityStep(filter="length", options={"min_words": 2})])
    assert np.load(folder / "verdict.00000.npy", allow_pickle=False).tolist() == [1, 0, 0, 0]
