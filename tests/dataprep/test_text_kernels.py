"""Word splitting, shingles, sorting and MinHash against plain Python, datasketch and the Unicode database."""

from __future__ import annotations

import random
import unicodedata

import datasketch
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.text_oracle import jaccard, shingles_of, tokens_of

from dataprep import normalize
from dataprep.kernels.documents import DocumentHasher, text_buffers
from dataprep.kernels.minhash import affine_permutations, minhash_values, mix32
from dataprep.kernels.sorting import sort_hashes
from dataprep.kernels.words import split_words

ALPHABETS = [
    "abcxyzABCXYZ019_", "abc ", "éèÉñßſıİ", "αβγΩΣςσά", "абвЯЁйЙ", "中文字漢日", "がかはばぱアガｶﾞー", "กขคาิีึ็่้เโ",
    "ກຂຄາິ", "កខគាិ", "ကခဂာိ", "אבגָּ", "ابتَُِآأ", "कखगािी़क़", "한글가각", "ab\u0301\u0308\u0327", " \t\n.,;:-", "①½²ⅷ٣५３",
    "\u200b\u200d\u00ad\ufe0f\ufeff", "😀\U00020000\U0001f1e6\U000e0100\U00030000\U0010ffff", "\u3099\u309a\u093c",
]  # fmt: skip


def split(text: str, spare: bytes = b"\xff" * 64, before: int = 0) -> NDArray[np.uint64]:
    encoded = text.encode()
    data = np.frombuffer(b"w" * before + encoded + spare, np.uint8).copy()
    tokens = np.empty(len(encoded) + 1, np.uint64)
    count = split_words(data, (before, before + len(encoded)), normalize.load_table(), tokens)
    return tokens[:count].copy()


def random_text(randomness: random.Random) -> str:
    parts = []
    for _ in range(randomness.randrange(1, 30)):
        alphabet = randomness.choice(ALPHABETS)
        parts.append("".join(randomness.choice(alphabet) for _ in range(randomness.choice([1, 2, 3, 7, 8, 9, 20, 90]))))
        parts.append(randomness.choice(["", "", " ", "\n", "."]))
    return "".join(parts)


def test_tokens_are_those_of_the_rules_for_mixed_scripts() -> None:
    randomness = random.Random(5)
    hash_of: dict[tuple[bool, str], int] = {}
    for _ in range(1500):
        text = random_text(randomness)
        expected, found = tokens_of(text), split(text, before=randomness.randrange(70))
        assert len(found) == len(expected), text
        for token, value in zip(expected, found.tolist(), strict=True):
            assert value & 1 == token[0]
            assert hash_of.setdefault(token, value) == value, text
    assert len(set(hash_of.values())) == len(hash_of) > 5000


def test_what_lies_around_a_text_does_not_matter() -> None:
    randomness = random.Random(6)
    for _ in range(200):
        text = random_text(randomness)
        reference = split(text)
        for spare in (b"word" * 16, b"\x80" * 64, bytes(64)):
            assert np.array_equal(split(text, spare, before=randomness.randrange(64)), reference)


SAME = [
    ("Straße CAFÉ", "straße café"), ("caf\u00e9", "cafe\u0301"), ("café", "cafe"), ("ΟΔΟΣ", "οδος"), ("ΆΛΦΑ", "αλφα"),
    ("Ёлка", "елка"), ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"), ("がぎ", "か\u3099き\u3099"), ("ｶﾞ", "ガ"), ("٣٤", "34"),
    ("क़लम", "क\u093cलम"), ("co\u00adop", "coop"), ("a, b!", "a b"), ("İstanbul", "istanbul"), ("葛\ufe00城", "葛城"),
    ("آب", "\u0627\u0653ب"),
]  # fmt: skip
DIFFERENT = [
    ("กา", "กิ"), ("かき", "がき"), ("12 apples", "13 apples"), ("foo_bar", "foobar"), ("foo_bar", "foo bar"), ("כֹּל",
    "כל"), ("کتَب", "کتِب"), ("ab", "ba"), ("中文", "文中"), ("की", "का"), ("aaaaaaaa", "aaaaaaaaa"), ("ß", "ss"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), SAME)
def test_texts_that_count_as_the_same(first: str, second: str) -> None:
    assert np.array_equal(split(first), split(second))


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_texts_that_count_as_different(first: str, second: str) -> None:
    assert not np.array_equal(split(first), split(second))


def test_unspaced_scripts_are_not_one_word() -> None:
    assert len(split("这是一个测试句子")) == 8
    assert len(split("ひらがなカタカナ")) == 8
    assert len(split("ภาษาไทย")) >= 6
    assert len(split("이것은 한국어 문장")) == 3


def test_composed_and_decomposed_forms_of_every_letter_are_one() -> None:
    """All precomposed characters with one mark; exceptions are those the rules cannot see (Hangul, longer chains)."""
    wrong = []
    for code_point in range(normalize.TABLE_SIZE):
        character = chr(code_point)
        parts = unicodedata.normalize("NFD", character)
        if (
            unicodedata.category(character)[0] in "LNM"
            and len(parts) == 2
            and "HANGUL" not in unicodedata.name(character)
        ):
            text = "ab " + character + " cd" if unicodedata.category(character)[0] != "M" else "क" + character
            other = text.replace(character, parts)
            if not np.array_equal(split(text), split(other)):
                wrong.append(f"{code_point:04x}")
    assert wrong == []


def test_the_shipped_table_is_what_the_rules_make() -> None:
    if unicodedata.unidata_version != normalize.UNICODE_VERSION:
        pytest.skip("made from another Unicode version")
    assert np.array_equal(normalize.load_table(), normalize.make_table())


def test_ascii_entries_fold_by_bit_five() -> None:
    table = normalize.load_table()
    for code_point in range(128):
        is_word = chr(code_point).isalnum() or chr(code_point) == "_"
        assert ((int(table[code_point]) >> 21) & 7 == normalize.WORD) == is_word
        if is_word:
            assert int(table[code_point]) & 0x1FFFFF == code_point | 0x20


def as_arrow(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab c 中文กา.", max_size=60), max_size=8))
def test_shingle_sets_have_the_sizes_and_overlaps_of_the_rules(texts: list[str]) -> None:
    values, sizes = DocumentHasher().sets(as_arrow(texts))
    stops = np.cumsum(sizes)
    sets = [set(values[stop - size : stop].tolist()) for stop, size in zip(stops, sizes, strict=True)]
    expected = [shingles_of(text) for text in texts]
    assert [len(one) for one in sets] == [len(one) for one in expected]
    for first, wanted in zip(sets, expected, strict=True):
        for second, other in zip(sets, expected, strict=True):
            assert len(first & second) == len(wanted & other)
    for stop, size in zip(stops, sizes, strict=True):
        assert np.all(np.diff(values[stop - size : stop].astype(object)) > 0)


def test_short_texts_are_one_shingle_of_everything() -> None:
    hasher = DocumentHasher()
    for text, size in (
        ("", 0),
        ("...", 0),
        ("cat", 1),
        ("one two three four", 1),
        ("a b c d e", 1),
        ("a b c d e f", 2),
    ):
        assert hasher.sets(as_arrow([text]))[1].tolist() == [size]
    assert len(hasher.sets(as_arrow(["中文测试一二三"]))[0]) == 1
    assert len(hasher.sets(as_arrow(["中文测试一二三四五"]))[0]) == 2
    assert jaccard(shingles_of("cat"), shingles_of("dog")) == 0.0
    assert hasher.sets(as_arrow(["cat"]))[0] != hasher.sets(as_arrow(["dog"]))[0]


@pytest.mark.parametrize(("num_permutations", "seed"), [(128, 1), (112, 7), (8, 3)])
def test_signatures_are_bit_identical_with_datasketch(num_permutations: int, seed: int) -> None:
    permutations = affine_permutations(num_permutations, seed)
    prototype = datasketch.MinHash(num_perm=num_permutations, seed=seed, hashfunc=int, scheme="affine32")
    for ours, theirs in zip(permutations, prototype.permutations, strict=True):
        assert np.array_equal(ours, theirs)
    randomness = np.random.default_rng(seed)
    for count in (0, 1, 2, 63, 64, 65, 200, 4095, 4097, 9000):
        hashes = randomness.integers(0, 1 << 32, count, dtype=np.uint32)
        oracle = datasketch.MinHash(num_perm=num_permutations, seed=seed, hashfunc=int, scheme="affine32")
        oracle.update_batch(hashes.tolist())
        values = np.zeros(count, np.uint32)
        values[:count] = [mix32(value) for value in hashes]
        ours = np.empty(num_permutations, np.uint32)
        minhash_values(values, count, permutations, ours)
        assert np.array_equal(ours, oracle.hashvalues)


def test_signatures_of_texts_are_those_of_their_shingles() -> None:
    texts = [
        "the quick brown fox jumps over the lazy dog",
        "short",
        "",
        "中文测试一二三四五六七",
        "a b c d e f " * 2000,
    ]
    permutations = affine_permutations(128, 1)
    signatures, counts = DocumentHasher().sign(as_arrow(texts), permutations)
    for text, signature, count in zip(texts, signatures, counts.tolist(), strict=True):
        values, _ = DocumentHasher().sets(as_arrow([text]))
        oracle = datasketch.MinHash(num_perm=128, seed=1, hashfunc=int, scheme="affine32")
        oracle.update_batch([int(value) & 0xFFFFFFFF for value in values])
        assert np.array_equal(signature, oracle.hashvalues)
        assert count >= len(values)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**63, 2**63 + 5), max_size=300))
def test_sorting(values: list[int]) -> None:
    unsorted, ordered = np.array(values, np.uint64), np.empty(len(values), np.uint64)
    sort_hashes(unsorted, len(values), ordered, np.empty(1 << 16, np.int64))
    assert ordered.tolist() == sorted(values)


def test_buffers_of_sliced_and_tight_arrays() -> None:
    whole = as_arrow(["one two", "three", "", "four five six"])
    for array in (whole, whole.slice(1, 2), whole.slice(3), whole.slice(0, 0), as_arrow([])):
        texts = text_buffers(array)
        assert len(texts.data) >= int(texts.offset_N[-1]) + 64
        found = [bytes(texts.data[a:b]).decode() for a, b in zip(texts.offset_N[:-1], texts.offset_N[1:], strict=True)]
        assert found == array.to_pylist()
        sizes = DocumentHasher().sets(array)[1].tolist()
        assert sizes == [len(shingles_of(text)) for text in array.to_pylist()]
