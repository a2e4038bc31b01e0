"""Decisions under any memory, partitions, files and methods are those of the rule in plain Python."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.dedup_runs import Key, Outcome, Source, configuration, near_copies, run_stages, write_screen, write_sources
from support.text_oracle import jaccard, shingles_of

from dataprep.dedup import METHODS
from dataprep.dedup.config import DecideConfig, DedupConfig
from dataprep.dedup.minhash import estimate_floor
from dataprep.documents import REMOVED, InputFile, Status
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.minhash import affine_permutations

LABELS = ("", "too short", "too odd")
WORKSPACES: tuple[Mapping[str, Any], ...] = (
    {"partitions": 2},
    {"partitions": 7},
    {"memory_bytes": 1 << 16},
    {"memory_bytes": 1 << 20, "partitions": 3},
)


def make_sources(randomness: random.Random) -> dict[str, Source]:
    texts = [*near_copies(randomness, 70), "", "?"]
    texts += [f"{text}!" for text in texts[:12]]
    opt_outs = [(), (), (), ("exact",), ("minhash",), ("simhash",), ("exact", "minhash", "simhash")]
    sources = {}
    for name in ("web", "books", "code"):
        files = {f"part{index}.jsonl": [randomness.choice(texts) for _ in range(14)] for index in range(2)}
        sources[name] = Source(files, randomness.randrange(2), randomness.choice(opt_outs))
    return sources


def make_screens(
    inputs: list[InputFile], randomness: random.Random, folder: Path
) -> tuple[list[tuple[Status, Path]], dict[Key, Status]]:
    """Two screens with random verdicts, and what they take."""
    screens, taken = [], {}
    for status in (Status.REMOVED_QUALITY, Status.REMOVED_CONTAMINATED):
        verdicts = {}
        for one in inputs:
            count = len(one.location.read_bytes().splitlines())
            verdicts[one.source, one.path] = [randomness.choice([0, 0, 0, 0, 0, 1, 2]) for _ in range(count)]
        write_screen(inputs, verdicts, folder / status.method, LABELS)
        screens.append((status, folder / status.method))
        for (source, path), values in verdicts.items():
            for record, value in enumerate(values):
                if value:
                    taken.setdefault((source, path, record), status)
    return screens, taken


class Oracle:
    """The greedy rule over all pairs, with what methods propose by their definitions."""

    def __init__(self, sources: Mapping[str, Source], config: DedupConfig) -> None:
        self.sources, self.config = sources, config
        self.texts = {
            (name, path, record): text
            for name, source in sources.items()
            for path, texts in source.files.items()
            for record, text in enumerate(texts)
            if text
        }
        array = pa.array(list(self.texts.values()), pa.large_string())
        permutations = affine_permutations(config.minhash.num_permutations, config.minhash.seed)
        prints = DocumentHasher().prints(array, permutations, simhash=True)
        self.signatures = dict(zip(self.texts, prints.signature_NK, strict=True))
        self.fingerprints = dict(zip(self.texts, prints.simhash_N.tolist(), strict=True))
        self.sets = {key: shingles_of(text) for key, text in self.texts.items()}

    def takes_part(self, method: str, *keys: Key) -> bool:
        return method in self.config.methods and all(method not in self.sources[key[0]].opt_out for key in keys)

    def similarity(self, a: Key, b: Key) -> float:
        if self.config.decision == "leader":
            return jaccard(self.sets[a], self.sets[b])
        return float((self.signatures[a] == self.signatures[b]).mean())

    def duplicate(self, a: Key, b: Key) -> float | None:
        """The similarity if some method that both take part in says so."""
        if self.takes_part("exact", a, b) and self.texts[a] == self.texts[b]:
            return 1.0
        if not (self.sets[a] and self.sets[b]):
            return None
        equal = self.signatures[a] == self.signatures[b]
        minhash = self.config.minhash
        bands = equal[: minhash.bands * minhash.rows].reshape(minhash.bands, minhash.rows).all(axis=1).any()
        by_rows = bands and equal.sum() >= estimate_floor(self.config.threshold, minhash.num_permutations)
        by_bits = (self.fingerprints[a] ^ self.fingerprints[b]).bit_count() <= self.config.simhash.max_distance
        if not ((self.takes_part("minhash", a, b) and by_rows) or (self.takes_part("simhash", a, b) and by_bits)):
            return None
        similarity = self.similarity(a, b)
        return similarity if similarity >= self.config.threshold else None

    def decide(self, taken: Mapping[Key, Status]) -> dict[Key, tuple[Key, float]]:
        """Removed document -> witness and similarity, for ``keep: first``."""
        kept: list[Key] = []
        gone: dict[Key, tuple[Key, float]] = {}
        for key in sorted(self.texts, key=lambda key: (self.sources[key[0]].rank, key)):
            if key in taken:
                continue
            found = [(other, s) for other in kept if (s := self.duplicate(key, other)) is not None]
            if found:
                gone[key] = found[0]
            else:
                kept.append(key)
        return gone


def outputs_of(folder: Path, inputs: list[InputFile]) -> dict[str, bytes]:
    """Bytes of everything a decision writes, statuses by the names of their files."""
    found = {
        name: (folder / name).read_bytes()
        for name in ("removed.parquet", "rejected.parquet", "superseded.parquet", "counts.json")
    }
    for file, one in enumerate(inputs):
        found[f"{one.source}/{one.path}"] = (folder / f"status.{file:05d}.npy").read_bytes()
    return found


def check_against_oracle(oracle: Oracle, outcome: Outcome, taken: Mapping[Key, Status]) -> int:
    gone = oracle.decide(taken)
    assert outcome.witness == {key: witness for key, (witness, _) in gone.items()}
    for key, (_, similarity) in gone.items():
        assert outcome.similarity[key] == pytest.approx(similarity, abs=1e-12)
    for key, status in taken.items():
        assert outcome.status[key] in (status, Status.REJECTED)
    kept = {key for key, status in outcome.status.items() if status in (Status.KEPT, Status.HELD_OUT)}
    assert set(outcome.witness.values()) <= kept
    for source, count in outcome.counts["sources"].items():
        assert count["documents"] == count["kept"] + count["held_out"] + sum(count["removed"].values()), source
    return len(gone)


@pytest.mark.parametrize("decision", ["leader", "estimate"])
@pytest.mark.parametrize("seed", range(3))
def test_any_workspace_gives_what_the_rule_gives(tmp_path: Path, seed: int, decision: Any) -> None:
    randomness = random.Random(seed)
    sources = make_sources(randomness)
    inputs = write_sources(tmp_path, sources)
    dedup = DedupConfig(
        methods=("exact", "minhash", "simhash"), keep="first", decision=decision, max_removed_fraction=1.0
    )
    config = configuration(dedup, fraction=0.2)
    screens, taken = make_screens(inputs, randomness, tmp_path / "screens")
    outcome = run_stages(inputs, config, tmp_path / "reference", screens=screens)
    assert check_against_oracle(Oracle(sources, dedup), outcome, taken) > 5
    expected = outputs_of(tmp_path / "reference/decided", inputs)
    for number, options in enumerate(WORKSPACES):
        work = tmp_path / f"work{number}"
        run_stages(inputs, config, work, screens=screens, **options)
        assert outputs_of(work / "decided", inputs) == expected
    order = list(range(len(inputs)))
    randomness.shuffle(order)
    shuffled = [inputs[file] for file in order]
    shuffled_screens = []
    for status, folder in screens:
        target = tmp_path / f"shuffled-{status.method}"
        target.mkdir()
        for place, file in enumerate(order):
            for name in ("verdict.{:05d}.npy", "screen.{:05d}.json"):
                (target / name.format(place)).write_bytes((folder / name.format(file)).read_bytes())
        shuffled_screens.append((status, target))
    run_stages(shuffled, config, tmp_path / "shuffled", screens=shuffled_screens, partitions=3)
    assert outputs_of(tmp_path / "shuffled/decided", shuffled) == expected


def surviving_texts(sources: Mapping[str, Source], outcome: Outcome) -> list[str]:
    return sorted(
        sources[source].files[path][record]
        for (source, path, record), status in outcome.status.items()
        if status == Status.KEPT
    )


def test_the_same_texts_survive_in_renamed_files(tmp_path: Path) -> None:
    randomness = random.Random(77)
    texts = near_copies(randomness, 120)
    config = configuration(DedupConfig(max_removed_fraction=1.0))
    found = []
    for number, names in enumerate((("a", "b", "c"), ("z", "y", "x"))):
        files = {f"{name}.jsonl": texts[place::3] for place, name in enumerate(names)}
        sources = {"s": Source(files, 0)}
        outcome = run_stages(write_sources(tmp_path / str(number), sources), config, tmp_path / f"{number}/work")
        found.append(surviving_texts(sources, outcome))
    assert found[0] == found[1]


@pytest.mark.parametrize("methods", [("minhash",), ("exact", "minhash"), ("exact", "minhash", "simhash")])
def test_clusters_leave_one_of_each_and_name_it(tmp_path: Path, methods: tuple[str, ...]) -> None:
    sources = make_sources(random.Random(5))
    inputs = write_sources(tmp_path, sources)
    config = configuration(DedupConfig(methods=methods, decision="union_find", max_removed_fraction=1.0))
    outcome = run_stages(inputs, config, tmp_path / "reference")
    kept = {key for key, status in outcome.status.items() if status == Status.KEPT}
    assert set(outcome.witness.values()) <= kept
    assert len(outcome.witness) > 10
    removed = {key for key, status in outcome.status.items() if status in REMOVED}
    assert removed == outcome.witness.keys()
    expected = outputs_of(tmp_path / "reference/decided", inputs)
    for number, options in enumerate(WORKSPACES):
        work = tmp_path / f"work{number}"
        run_stages(inputs, config, work, **options)
        assert outputs_of(work / "decided", inputs) == expected


def test_clusters_are_those_of_all_documents(tmp_path: Path) -> None:
    from dataprep.dedup.union_find import cluster_roots

    texts = near_copies(random.Random(6), 150)
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts[:70], "b.jsonl": texts[70:]}, 0)})
    dedup = DedupConfig(methods=("minhash",), decision="union_find", max_removed_fraction=1.0)
    outcome = run_stages(inputs, configuration(dedup), tmp_path / "work", partitions=4)
    permutations = affine_permutations(128, dedup.minhash.seed)
    signature_NK, _ = DocumentHasher().sign(pa.array(texts, pa.large_string()), permutations)
    file_N = np.repeat([0, 1], [70, 80])
    record_N = np.concatenate([np.arange(70), np.arange(80)])
    root_N = cluster_roots(signature_NK, file_N, record_N, dedup.minhash)
    keys = [("s", "ab"[file] + ".jsonl", int(record)) for file, record in zip(file_N, record_N, strict=True)]
    assert outcome.witness == {keys[d]: keys[root] for d, root in enumerate(root_N.tolist()) if root != d}


def big_bucket(count: int) -> list[str]:
    """One text and near copies of it, each with a word of its own: similar to the first one, not to each other."""
    randomness = random.Random(1)
    words = [f"common{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(120)]
    texts = [" ".join([*words, "and", "the", "end"])]
    for number in range(count):
        copy = words.copy()
        copy[randomness.randrange(3)] = f"own{number}"
        copy[-1 - randomness.randrange(3)] = f"other{number}"
        texts.append(" ".join(copy))
    return texts


def test_a_bucket_of_many_near_copies_costs_one_comparison_each(tmp_path: Path) -> None:
    texts = big_bucket(20_000)
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    config = configuration(DedupConfig(keep="first", max_bucket=64, max_removed_fraction=1.0))
    outcome = run_stages(inputs, config, tmp_path / "small", memory_bytes=4 << 20)
    assert set(outcome.witness.values()) == {("s", "a.jsonl", 0)}
    assert len(outcome.witness) == len(texts) - 1
    assert outcome.counts["dedup"]["signatures_compared"] <= 2 * len(texts)
    assert outcome.counts["dedup"]["unverified_pairs"] == 0


@pytest.mark.parametrize("decision", ["leader", "estimate"])
def test_parts_of_buckets_that_keep_too_many_are_the_same_in_any_workspace(tmp_path: Path, decision: Any) -> None:
    """Templates fill their buckets with kept documents; other components in the same group overflow nothing."""
    randomness = random.Random(31)
    texts = near_copies(randomness, 60)
    for template in range(3):
        frame = [f"frame{template}{chr(97 + place)}" for place in range(26)] * 2
        for number in range(25):
            middle = [f"own{template}x{number // 2}y{place}" for place in range(randomness.choice([8, 12, 16]))]
            texts.append(" ".join([*frame[:26], *middle, *frame[26:]]))
    randomness.shuffle(texts)
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts[:70], "b.jsonl": texts[70:]}, 0)})
    dedup = DedupConfig(methods=("exact", "minhash", "simhash"), decision=decision, max_bucket=3)
    config = configuration(replace(dedup, max_removed_fraction=1.0), fraction=0.2)
    outcome = run_stages(inputs, config, tmp_path / "reference")
    assert outcome.counts["dedup"]["unverified_pairs"] > 0
    expected = outputs_of(tmp_path / "reference/decided", inputs)
    for number, options in enumerate(WORKSPACES):
        work = tmp_path / f"work{number}"
        run_stages(inputs, config, work, **options)
        assert outputs_of(work / "decided", inputs) == expected


def test_texts_are_not_read_again_for_estimates(tmp_path: Path) -> None:
    from dataprep.dedup.config import SignConfig
    from dataprep.dedup.steps import DecideDocuments, SignDocuments

    texts = near_copies(random.Random(9), 60)
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": texts}, 0)})
    config: DecideConfig = configuration(DedupConfig(decision="estimate", max_removed_fraction=1.0))
    list(SignDocuments(inputs, SignConfig(config.ingest, config.dedup), tmp_path / "signed").run())
    inputs[0].location.unlink()
    list(DecideDocuments(inputs, config, tmp_path / "signed", tmp_path / "decided").run())
    assert (np.load(tmp_path / "decided/status.00000.npy") != Status.KEPT).sum() > 5


def test_every_pair_method_is_at_work_in_these_tests() -> None:
    assert {name for name, method in METHODS.items() if method.kind == "pairs"} == {"exact", "minhash", "simhash"}
