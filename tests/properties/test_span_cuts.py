"""Span cuts of random corpora against a table of all n-grams: the same ranges, witnesses and removals, exactly, for any
memory, number of tasks and order of files."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dedup_runs import Source, write_sources
from support.span_runs import Decided, check_spans, read_spans, reordered, run_spans, span_bytes, span_config

from dataprep.documents import Status
from dataprep.spans.store import sorted_order

N = 8
SEPARATORS = (" ", " ", " ", ", ", "\n", " \u2028", "", "\0", " \U0001f642 ")
WORDS = ("a", "b", "a", "cafe\u0301", "caf\u00e9", "B", "\u4e2d", "\u0e01\u0e33", "\u00addog", "Ωmega", "𝔘")


def texts_of(seed: int, count: int) -> list[str]:
    """Texts that share passages, among them periodic, empty and short ones, and some built from others' parts."""
    randomness = random.Random(seed)
    vocabulary = [f"w{index}" for index in range(30)]
    texts: list[list[str]] = []
    for _ in range(count):
        kind = randomness.random()
        if kind < 0.1:
            texts.append([randomness.choice(WORDS)] * randomness.randrange(30))
        elif kind < 0.2:
            period = [randomness.choice(WORDS) for _ in range(randomness.randrange(1, 12))]
            texts.append(period * randomness.randrange(1, 6))
        elif kind < 0.3:
            texts.append([randomness.choice(WORDS) for _ in range(randomness.randrange(N + 2))])
        else:
            parts: list[str] = []
            for _ in range(randomness.randrange(1, 5)):
                if texts and randomness.random() < 0.6:
                    other = randomness.choice(texts)
                    start = randomness.randrange(len(other) + 1)
                    parts += other[start : start + randomness.randrange(25)]
                else:
                    words = randomness.choice([vocabulary, WORDS])
                    parts += [randomness.choice(words) for _ in range(randomness.randrange(20))]
            texts.append(parts)
    return [
        randomness.choice(["", "", "\u201c", " "])
        + "".join(word + randomness.choice(SEPARATORS) for word in words)
        + randomness.choice(["", "."])
        for words in texts
    ]


def make_job(root: Path, seed: int, count: int = 24) -> Decided:
    """Texts over three sources and five files, in random priority; some removed, held out, or opted out."""
    randomness = random.Random(seed)
    texts = [text if text.strip() else "." for text in texts_of(seed, count)]
    names = [("web", "a.jsonl"), ("web", "b.jsonl"), ("books", "a.jsonl"), ("code", "x/a.jsonl"), ("code", "b.jsonl")]
    files: dict[tuple[str, str], list[str]] = {name: [] for name in names}
    for text in texts:
        files[randomness.choice(names)].append(text)
    sources = {
        source: Source(
            {path: part for (other, path), part in files.items() if other == source},
            rank,
            randomness.choice([(), (), ("ngram",), ("exact",)]) if rank else (),
        )
        for rank, source in enumerate(("web", "books", "code"))
    }
    inputs = write_sources(root, sources)
    keyed = {(*name, record): text for name, part in files.items() for record, text in enumerate(part)}
    order = sorted(keyed)
    randomness.shuffle(order)
    statuses = [Status.KEPT] * 6 + [Status.HELD_OUT, Status.REMOVED_EXACT, Status.REMOVED_QUALITY]
    return Decided(inputs, keyed, order, {key: randomness.choice(statuses) for key in keyed})


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_cuts_are_those_of_a_table_of_all_ngrams(seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        across = seed % 4 != 0
        job = make_job(Path(name), seed)
        folders = run_spans(job, span_config(N + seed % 3, across=across), Path(name, "work"))
        check_spans(job, read_spans(job, folders), N + seed % 3, across=across)


@pytest.mark.parametrize("seed", range(2))
def test_memory_tasks_and_order_of_files_change_nothing(tmp_path: Path, seed: int) -> None:
    job = make_job(tmp_path, seed, 150)
    config = span_config(N)
    reference = span_bytes(run_spans(job, config, tmp_path / "reference"))
    assert any(len(np.load(tmp_path / f"reference/spans/cuts.{file:05d}.npy")) > 3 for file in range(5))
    small = run_spans(job, config, tmp_path / "small", num_tasks=3, memory_bytes=1 << 10)
    assert span_bytes(small) == reference
    assert list(small.anchors.glob("sorted.*.00001.npy"))
    assert len(list(small.grams.glob("grams.*.npy"))) > 10
    shuffled = list(enumerate(job.inputs))
    random.Random(seed).shuffle(shuffled)
    folders = run_spans(reordered(job, [one for _, one in shuffled]), config, tmp_path / "shuffled", num_tasks=2)
    for place, (before, _) in enumerate(shuffled):
        for kind in ("cuts", "status"):
            assert (folders.spans / f"{kind}.{place:05d}.npy").read_bytes() == reference[f"{kind}.{before:05d}.npy"]
    for name in ("removed.parquet", "spans.json"):
        assert (folders.spans / name).read_bytes() == reference[name]


@given(
    st.lists(st.integers(0, 7) | st.integers(2**64 - 8, 2**64 - 1) | st.sampled_from([2**40, 2**40 + 1]), max_size=60)
)
def test_order_of_hashes_is_stable_even_where_their_top_bits_are_equal(values: list[int]) -> None:
    hash_G = np.array(values, np.uint64)
    assert sorted_order(hash_G).tolist() == np.argsort(hash_G, kind="stable").tolist()
