"""Dedup of small corpora against brute force over all pairs: no wrong removal, no leak but an LSH miss, one result."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.dedup_runs import Key, Outcome, Source, configuration, near_copies, run_stages, write_sources
from support.text_oracle import jaccard, shingles_of

from dataprep.dedup.config import DedupConfig, MinHashConfig
from dataprep.documents import InputFile, Status
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.minhash import affine_permutations

THRESHOLD = 0.8
REMOVED = (Status.REMOVED_EXACT, Status.REMOVED_MINHASH)


def texts_of(sources: Mapping[str, Source]) -> dict[Key, str]:
    return {
        (name, path, record): text
        for name, source in sources.items()
        for path, texts in source.files.items()
        for record, text in enumerate(texts)
    }


def random_sources(seed: int, count: int = 60) -> dict[str, Source]:
    randomness = random.Random(seed)
    texts = near_copies(randomness, count)
    opt_outs = [(), (), (), (), ("exact",), ("minhash",), ("exact", "minhash")]
    sources = {}
    for name in ("web", "books", "code"):
        files = {f"part{index}.jsonl": [randomness.choice(texts) for _ in range(8)] for index in range(2)}
        sources[name] = Source(files, randomness.randrange(2), randomness.choice(opt_outs))
    return sources


class Truth:
    """All pairs by brute force, and the bands they share."""

    def __init__(self, sources: Mapping[str, Source], config: DedupConfig) -> None:
        import pyarrow as pa

        self.sources, self.config, self.texts = sources, config, texts_of(sources)
        self.sets = {key: shingles_of(text) for key, text in self.texts.items()}
        permutations = affine_permutations(config.minhash.num_permutations, config.minhash.seed)
        array = pa.array(list(self.texts.values()), pa.large_string())
        self.signatures = dict(zip(self.texts, DocumentHasher().sign(array, permutations)[0], strict=True))

    def share_band(self, a: Key, b: Key) -> bool:
        bands, rows = self.config.minhash.bands, self.config.minhash.rows
        equal = (self.signatures[a] == self.signatures[b])[: bands * rows].reshape(bands, rows)
        return bool(equal.all(axis=1).any())

    def takes_part(self, method: str, a: Key, b: Key) -> bool:
        if method not in self.config.methods or not (self.config.across or a[0] == b[0]):
            return False
        return method not in self.sources[a[0]].opt_out and method not in self.sources[b[0]].opt_out

    def duplicate(self, a: Key, b: Key) -> str | None:
        """The method by which the two are duplicates, by definition."""
        if self.takes_part("exact", a, b) and self.texts[a] == self.texts[b]:
            return "exact"
        if self.takes_part("minhash", a, b) and jaccard(self.sets[a], self.sets[b]) >= self.config.threshold:
            return "minhash"
        return None

    def better(self, a: Key, b: Key) -> bool:
        """The stated priority, but for documents of equal rank and length (where the content hash decides)."""
        return self.order(a) < self.order(b)

    def order(self, key: Key) -> tuple[object, ...]:
        rank = self.sources[key[0]].rank
        if self.config.keep == "first":
            return (rank, key[0], key[1], key[2])
        return (rank, -len(self.texts[key].encode()))


def check_against_truth(truth: Truth, outcome: Outcome) -> int:
    """Assert everything that must hold of one outcome; returns the pairs that LSH missed."""
    kept = {key for key, status in outcome.status.items() if status not in REMOVED}
    assert outcome.status.keys() == truth.texts.keys()
    assert outcome.witness.keys() == outcome.status.keys() - kept
    for key, witness in outcome.witness.items():
        assert witness in kept
        assert truth.order(witness) <= truth.order(key)
        method = truth.duplicate(key, witness)
        assert method is not None, "a wrong removal"
        assert outcome.method[key] == method
        expected = 1.0 if method == "exact" else jaccard(truth.sets[key], truth.sets[witness])
        assert outcome.similarity[key] == pytest.approx(expected, abs=1e-12)
    missed = 0
    for a, b in itertools.combinations(sorted(kept), 2):
        if truth.duplicate(a, b) is not None:
            assert not truth.share_band(a, b), "a leaked pair that shares a band"
            missed += 1
    return missed


@pytest.mark.parametrize("seed", range(24))
def test_removals_are_right_and_complete(tmp_path: Path, seed: int) -> None:
    sources = random_sources(seed)
    config = DedupConfig(
        max_removed_fraction=1.0,
        methods=[("exact", "minhash"), ("minhash",), ("exact",)][seed % 3 if seed % 4 == 0 else 0],
        keep="first" if seed % 5 == 0 else "longest",
        across=seed % 7 != 0,
        minhash=MinHashConfig(seed=1 + seed),
    )
    truth = Truth(sources, config)
    outcome = run_stages(write_sources(tmp_path, sources), configuration(config), tmp_path / "work")
    assert check_against_truth(truth, outcome) <= 1


@pytest.mark.parametrize("seed", range(6))
def test_witness_is_the_best_kept_duplicate(tmp_path: Path, seed: int) -> None:
    """With an order that is known in full, the greedy rule in plain Python gives the same removals and witnesses."""
    sources = random_sources(100 + seed)
    config = DedupConfig(keep="first", max_removed_fraction=1.0)
    truth = Truth(sources, config)
    outcome = run_stages(write_sources(tmp_path, sources), configuration(config), tmp_path / "work")
    kept: list[Key] = []
    witness: dict[Key, Key] = {}
    for key in sorted(truth.texts, key=truth.order):
        found = [other for other in kept if truth.duplicate(key, other) and truth.share_band(key, other)]
        if found:
            witness[key] = found[0]
        else:
            kept.append(key)
    assert outcome.witness == witness
    assert len(witness) > 3


def rearranged(inputs: list[InputFile], seed: int) -> list[InputFile]:
    shuffled = inputs.copy()
    random.Random(seed).shuffle(shuffled)
    return shuffled


@pytest.mark.parametrize("seed", range(4))
def test_file_order_and_task_count_change_nothing(tmp_path: Path, seed: int) -> None:
    sources = random_sources(200 + seed, count=80)
    inputs = write_sources(tmp_path, sources)
    config = configuration(DedupConfig(max_removed_fraction=1.0), fraction=0.3)
    reference = run_stages(inputs, config, tmp_path / "reference")
    tables = {name: (tmp_path / "reference/decided" / name).read_bytes() for name in ("removed.parquet", "counts.json")}
    for variant, num_tasks in enumerate((1, 2, 7)):
        work = tmp_path / f"work{variant}"
        assert run_stages(rearranged(inputs, variant), config, work, num_tasks) == reference
        for name, data in tables.items():
            assert (work / "decided" / name).read_bytes() == data


def test_dedup_of_what_is_left_removes_nothing(tmp_path: Path) -> None:
    sources = random_sources(300, count=40)
    config = configuration(DedupConfig(max_removed_fraction=1.0))
    outcome = run_stages(write_sources(tmp_path / "a", sources), config, tmp_path / "a/work")
    left = {
        name: Source(
            {
                path: [text for record, text in enumerate(texts) if outcome.status[name, path, record] == Status.KEPT]
                or ["nothing else at all"]
                for path, texts in source.files.items()
            },
            source.rank,
            source.opt_out,
        )
        for name, source in sources.items()
    }
    again = run_stages(write_sources(tmp_path / "b", left), config, tmp_path / "b/work")
    strangers = {key for key in again.witness if texts_of(left)[key] != "nothing else at all"}
    assert strangers == set()


SHORT = ["cat", "dog", "cat", "one two three four", "one two three for", "one two three four", "!!!", "???", "!!!"]


def test_short_documents_go_only_as_copies(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": SHORT}, 0)})
    outcome = run_stages(inputs, configuration(DedupConfig(keep="first")), tmp_path / "work")
    assert {key[2] for key in outcome.witness} == {2, 5, 8}
    shutil.rmtree(tmp_path / "work")
    near = run_stages(inputs, configuration(DedupConfig(methods=("minhash",), keep="first")), tmp_path / "work")
    assert {key[2] for key in near.witness} == {2, 5}  # without words there is nothing to compare but the bytes


def test_a_chain_of_near_copies_is_not_one_cluster(tmp_path: Path) -> None:
    """Each document is near its neighbours and far from the rest: transitive rules would keep one, this one every
    other."""
    words = [f"word{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(400)]
    texts = [" ".join(words[start : start + 100]) for start in range(0, 100, 10)]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    outcome = run_stages(inputs, configuration(DedupConfig(keep="first")), tmp_path / "work")
    assert sorted(key[2] for key in outcome.witness) == [1, 3, 5, 7, 9]


def test_links_keep_near_copies_on_one_side(tmp_path: Path) -> None:
    randomness = random.Random(8)
    groups = []
    for group in range(40):
        words = [
            f"g{chr(97 + group % 26)}{chr(97 + group // 26)}{chr(97 + index % 26)}{index // 26 * 'z'}"
            for index in range(60)
        ]
        groups.append([" ".join(words), " ".join(words[:48] + [f"x{chr(97 + j)}" for j in range(12)])])
    texts = [text for pair in groups for text in pair]
    order = list(range(len(texts)))
    randomness.shuffle(order)
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": [texts[index] for index in order]}, 0)})
    outcome = run_stages(inputs, configuration(DedupConfig(), fraction=0.5), tmp_path / "work")
    side = {index: outcome.status["s", "a.jsonl", record] for record, index in enumerate(order)}
    assert set(side.values()) == {Status.KEPT, Status.HELD_OUT}
    assert jaccard(shingles_of(groups[0][0]), shingles_of(groups[0][1])) < THRESHOLD
    parted = sum(side[2 * group] != side[2 * group + 1] for group in range(40))
    assert parted <= 8  # LSH sees a pair at J = 0.63 with probability 0.93; unlinked pairs part half of the time


def test_copies_that_opted_out_stay_and_stay_together(tmp_path: Path) -> None:
    sources = {
        "a": Source({"a.jsonl": [f"text number {chr(97 + i)} of some" for i in range(20)]}, 0, ("exact", "minhash")),
        "b": Source({"b.jsonl": [f"text number {chr(97 + i)} of some" for i in range(20)]}, 1),
    }
    outcome = run_stages(write_sources(tmp_path, sources), configuration(DedupConfig(), 0.5), tmp_path / "work")
    assert outcome.witness == {}
    for record in range(20):
        assert outcome.status["a", "a.jsonl", record] == outcome.status["b", "b.jsonl", record]
    assert len(set(outcome.status.values())) == 2


def test_hold_out_depends_on_ids_and_seed_alone(tmp_path: Path) -> None:
    texts = [" ".join(chr(97 + (index * step) % 26) * (2 + step) for step in range(1, 9)) for index in range(400)]
    texts = [f"{text} {chr(97 + index % 26)}{chr(97 + index // 26)}" for index, text in enumerate(texts)]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    shares = {}
    for seed in (0, 1):
        config = configuration(DedupConfig(methods=("exact",)), 0.1, seed)
        outcome = run_stages(inputs, config, tmp_path / f"work{seed}")
        shares[seed] = {key for key, status in outcome.status.items() if status == Status.HELD_OUT}
        assert 15 <= len(shares[seed]) <= 70
        assert outcome.counts["sources"]["s"]["held_out"] == len(shares[seed])
    assert shares[0] != shares[1]
    larger = run_stages(inputs, configuration(DedupConfig(methods=("exact",)), 0.2, 0), tmp_path / "larger")
    assert shares[0] <= {key for key, status in larger.status.items() if status == Status.HELD_OUT}


def test_large_buckets_are_split_and_counted(tmp_path: Path) -> None:
    """A page of templates: one bucket of many documents that are no duplicates, and some that are."""
    frame = [f"frame{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(70)]
    texts = []
    for index in range(60):
        middle = [f"own{chr(97 + index // 26)}{chr(97 + index % 26)}{chr(97 + j)}" for j in range(25)]
        texts.append(" ".join(frame[:35] + middle + frame[35:]))
    texts += [text + " end" for text in texts[:10]]
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    whole = run_stages(inputs, configuration(DedupConfig(keep="first")), tmp_path / "whole")
    split = run_stages(inputs, configuration(DedupConfig(keep="first", max_bucket=4)), tmp_path / "split")
    assert whole.counts["dedup"]["unverified_pairs"] == 0
    assert split.counts["dedup"]["unverified_pairs"] > 0
    assert {key[2] for key in whole.witness} == set(range(60, 70))
    assert split.witness.keys() <= whole.witness.keys()
    assert split.counts["dedup"]["similarities"] < whole.counts["dedup"]["similarities"]


def test_identical_documents_in_great_number(tmp_path: Path) -> None:
    texts = ["all the same words in each of these documents"] * 500
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    outcome = run_stages(inputs, configuration(DedupConfig(max_bucket=8, max_removed_fraction=1.0)), tmp_path / "work")
    assert len(outcome.witness) == 499
    assert outcome.counts["dedup"]["candidate_documents"] == 0
    assert np.unique(list(outcome.similarity.values())).tolist() == [1.0]
