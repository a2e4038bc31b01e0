"""SimHash fingerprints against plain Python, and the tables that must propose every pair within three bits."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dedup.simhash import (
    MOST_BITS,
    NUM_TABLES,
    block_keys,
    seen_probability,
)
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.minhash import affine_permutations
from dataprep.kernels.simhash import NUM_PLANES, add_shingles, simhash_of

uint64s = st.integers(0, 2**64 - 1)


def oracle(values: list[int]) -> int:
    """Bit b is set where more than half of the values, as often as they occur, have it."""
    return sum(1 << bit for bit in range(64) if 2 * sum((value >> bit) & 1 for value in values) > len(values))


def fingerprint(values: list[int], parts: list[int] | None = None) -> int:
    planes = np.zeros(NUM_PLANES, np.uint64)
    start = 0
    for size in [*(parts or []), len(values)]:
        part = np.array(values[start : start + size], np.uint64)
        add_shingles(part, len(part), planes)
        start += size
    return int(simhash_of(planes, len(values)))


@settings(max_examples=150, deadline=None)
@given(st.lists(uint64s | st.integers(0, 3) | st.just(2**64 - 1), max_size=120), st.lists(st.integers(0, 50)))
def test_fingerprints_are_majorities_however_the_shingles_are_parted(values: list[int], parts: list[int]) -> None:
    assert fingerprint(values) == fingerprint(values, parts) == oracle(values)


def test_many_shingles_carry_into_all_planes() -> None:
    for count in (15, 16, 17, 255, 256, 4096, 70_001):
        ones = [2**64 - 1] * (count // 2 + 1)
        assert fingerprint(ones + [0] * (count - len(ones))) == 2**64 - 1
        assert fingerprint(ones[1:] + [0] * (count - len(ones) + 1)) == 0, "no majority, at most a tie"


def shingle_hashes(text: str) -> list[int]:
    """The shingles of a text with repetitions: every run of five words on its own has one shingle."""
    words = text.replace(".", " ").split()
    runs = [" ".join(words[i : i + 5]) for i in range(max(1, len(words) - 4))] if words else []
    return [int(DocumentHasher().sets(pa.array([run], pa.large_string()))[0][0]) for run in runs]


def test_texts_have_the_fingerprints_of_their_shingles_with_and_without_signatures() -> None:
    randomness = random.Random(4)
    words = ["alpha", "beta", "gamma", "delta", "it", "is"]
    texts = ["", "...", "cat", "one two three", *(" ".join(randomness.choices(words, k=k)) for k in (5, 6, 40, 90))]
    array = pa.array(texts, pa.large_string())
    hasher, permutations = DocumentHasher(), affine_permutations(64, 1)
    alone, both = hasher.prints(array, None, simhash=True), hasher.prints(array, permutations, simhash=True)
    assert alone.simhash_N.tolist() == both.simhash_N.tolist() == [oracle(shingle_hashes(text)) for text in texts]
    assert alone.num_shingles_N.tolist() == [len(shingle_hashes(text)) for text in texts]
    assert alone.signature_NK.shape == (len(texts), 0)
    signature_NK, num_shingles_N = hasher.sign(array, permutations)
    assert np.array_equal(both.signature_NK, signature_NK)
    assert np.array_equal(both.num_shingles_N, num_shingles_N)
    assert len(hasher.prints(array, permutations, simhash=False).simhash_N) == 0


def test_a_document_in_parts_is_the_same_document() -> None:
    """Longer than a part of the kernels: 30,000 tokens, of which only the last differ from a shorter one's."""
    randomness = random.Random(5)
    text = " ".join(randomness.choice("abcdefgh") for _ in range(30_000)) + " 中文字漢日" * 3000
    array = pa.array([text], pa.large_string())
    hasher = DocumentHasher()
    prints = hasher.prints(array, affine_permutations(16, 1), simhash=True)
    values, sizes = hasher.sets(array)
    tokens: list[tuple[int, str]] = [(5, w) for w in text.split()[:30_000]] + [(8, c) for c in "中文字漢日" * 3000]
    starts = [i for i, (n, _) in enumerate(tokens) if i + n <= len(tokens)]
    assert prints.num_shingles_N.tolist() == [len(starts)]
    distinct = Counter(tuple(tokens[i : i + tokens[i][0]]) for i in starts)
    assert sizes.tolist() == [len(distinct)] == [len(set(values.tolist()))]


def proposed(first: int, second: int) -> bool:
    pair = np.array([first, second], np.uint64)
    keys = [block_keys(pair, table) for table in range(NUM_TABLES)]
    return any(key[0] == key[1] for key in keys)


@settings(max_examples=300, deadline=None)
@given(uint64s, st.sets(st.integers(0, 63), max_size=MOST_BITS))
def test_no_pair_within_three_bits_is_missed(value: int, bits: set[int]) -> None:
    assert proposed(value, value ^ sum(1 << bit for bit in bits))


def test_all_places_of_three_bits() -> None:
    """Keys are linear in the bits, so what holds against 0 holds against every fingerprint."""
    bits = np.arange(64, dtype=np.uint64)
    one = np.uint64(1) << bits
    triples = (one[:, None, None] | one[None, :, None] | one[None, None, :]).ravel()
    seen = np.zeros(len(triples), np.bool_)
    for table in range(NUM_TABLES):
        seen |= block_keys(triples, table) == block_keys(np.zeros(1, np.uint64), table)
    assert seen.all()
    four = int(sum(np.uint64(1) << np.uint64(at) for at in (0, 13, 26, 39)))
    assert not proposed(0, four)


def test_tables_do_not_share_keys_and_use_all_bits() -> None:
    value = np.array([2**64 - 1], np.uint64)
    assert len({int(block_keys(value, table)[0]) for table in range(NUM_TABLES)}) == NUM_TABLES == 10
    for bit in range(64):
        flipped = value ^ (np.uint64(1) << np.uint64(bit))
        changed = sum(block_keys(value, t)[0] != block_keys(flipped, t)[0] for t in range(NUM_TABLES))
        assert changed == 4, "each block lies in four tables"


def test_the_model_of_what_is_seen_agrees_with_random_sets() -> None:
    randomness = np.random.default_rng(3)
    for similarity in (0.8, 0.9, 0.95):
        size = 400
        shared = round(2 * size * similarity / (1 + similarity))
        found = 0
        for _ in range(400):
            values = randomness.integers(0, 2**64, 2 * size - shared, np.uint64)
            pair = []
            for part in (values[:size], values[size - shared :]):
                planes = np.zeros(NUM_PLANES, np.uint64)
                add_shingles(part, len(part), planes)
                pair.append(int(simhash_of(planes, len(part))))
            found += (pair[0] ^ pair[1]).bit_count() <= 3
        expected = seen_probability(similarity, 3)
        assert abs(found / 400 - expected) < 4 * (expected * (1 - expected) / 400) ** 0.5 + 0.01
    assert seen_probability(1.0, 0) == 1.0
    assert seen_probability(0.9, 2) < seen_probability(0.9, 3)
