"""The whole decision against a model in plain Python: priority, opt-outs, three pair methods, screens, Indexes, keep
policies, copies and hold-out, over tiny corpora that were made to be awkward."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from support.dedup_runs import configuration, read_outcome, run_stages, write_screen
from support.text_oracle import jaccard, shingles_of

from dataprep.dedup.config import DecideConfig, DedupConfig, HoldoutConfig, MinHashConfig
from dataprep.dedup.index import WriteIndex
from dataprep.dedup.minhash import estimate_floor
from dataprep.documents import InputFile, Status
from dataprep.holdout import keyed_hash
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.minhash import affine_permutations
from loader.text.records import document_id

METHODS = ("exact", "minhash", "simhash")
REMOVED = {"exact": Status.REMOVED_EXACT, "minhash": Status.REMOVED_MINHASH, "simhash": Status.REMOVED_SIMHASH}
SALT = 9
WORKSPACES: tuple[dict[str, Any], ...] = ({}, {"partitions": 2}, {"partitions": 5}, {"memory_bytes": 1 << 10})


@dataclass
class Doc:
    """A document of the model; ``key`` is its value of the field that the keep policy ranks by."""

    source: str
    path: str
    record: int
    text: str
    rank: int
    opt_out: tuple[str, ...]
    key: float | None = None
    screened: bool = False
    earlier: bool = False
    signature: Any = None
    simhash: int = 0
    shingles: set[int] = field(default_factory=set)

    @property
    def name(self) -> tuple[str, str, int]:
        return self.source, self.path, self.record

    @property
    def id(self) -> int:
        return document_id(self.source, self.path, self.record, SALT)


class Model:
    """The decision by definition, all pairs one after another."""

    def __init__(self, docs: list[Doc], config: DecideConfig) -> None:
        """``docs``: earlier ones first, in their order."""
        self.config, self.dedup = config, config.dedup
        going = [doc for doc in docs if not doc.screened]
        new = sorted((doc for doc in going if not doc.earlier), key=self._priority)
        self.docs = [doc for doc in going if doc.earlier] + new
        minhash = self.dedup.minhash
        permutations = affine_permutations(minhash.num_permutations, minhash.seed)
        texts = pa.array([doc.text for doc in self.docs], pa.large_string())
        prints = DocumentHasher().prints(texts, permutations, simhash=True)
        for doc, signature, simhash in zip(self.docs, prints.signature_NK, prints.simhash_N, strict=True):
            doc.signature, doc.simhash, doc.shingles = signature, int(simhash), shingles_of(doc.text)
        self.witness: dict[int, tuple[int, str, float]] = {}
        self._decide()

    def _priority(self, doc: Doc) -> tuple[Any, ...]:
        place = (doc.source, doc.path, doc.record)
        if self.dedup.keep == "first":
            return (doc.rank, *place)
        data = doc.text.encode()
        ranked = (0.0, 0.0)
        if self.dedup.keep != "longest":
            ranked = (1.0, 0.0) if doc.key is None else (0.0, -doc.key)
        return (doc.rank, *ranked, -len(data), xxhash.xxh3_128_intdigest(data), *place)

    def _proposed(self, method: str, a: Doc, b: Doc, threshold: float) -> bool:
        if not a.shingles or not b.shingles:
            return False
        minhash = self.dedup.minhash
        if method == "simhash":
            return (a.simhash ^ b.simhash).bit_count() <= self.dedup.simhash.max_distance
        equal = a.signature == b.signature
        bands = equal[: minhash.bands * minhash.rows].reshape(minhash.bands, minhash.rows).all(axis=1)
        return bool(bands.any()) and int(equal.sum()) >= estimate_floor(threshold, minhash.num_permutations)

    def _similarity(self, a: Doc, b: Doc) -> float:
        if self.dedup.decision == "leader":
            return float(jaccard(a.shingles, b.shingles))
        if "minhash" in self.dedup.methods:
            return float((a.signature == b.signature).sum()) / len(a.signature)
        return 1 - (a.simhash ^ b.simhash).bit_count() / 64

    def _duplicate(self, a: Doc, b: Doc) -> tuple[str, float] | None:
        if not self.dedup.across and a.source != b.source:
            return None
        for method in METHODS:
            if method not in self.dedup.methods or method in a.opt_out or method in b.opt_out:
                continue
            if method == "exact":
                if a.text == b.text:
                    return method, 1.0
            elif self._proposed(method, a, b, self.dedup.threshold):
                similarity = self._similarity(a, b)
                if similarity >= self.dedup.threshold:
                    return method, similarity
        return None

    def _decide(self) -> None:
        kept: list[int] = []
        for number, doc in enumerate(self.docs):
            found = None
            for other in [] if doc.earlier else kept:
                found = self._duplicate(doc, self.docs[other])
                if found:
                    self.witness[number] = (other, *found)
                    break
            if not found:
                kept.append(number)
        self.kept = kept

    def held_out(self) -> set[int]:
        """The kept documents of the components whose best document is chosen."""
        linked_at, root = self.config.holdout.linked_at, {number: number for number in self.kept}
        for a in self.kept:
            for b in self.kept:
                if b < a and root[a] != root[b] and self._linked(self.docs[a], self.docs[b], linked_at):
                    low, high = sorted((root[a], root[b]))
                    root = {number: low if at == high else at for number, at in root.items()}
        ids = np.array([doc.id for doc in self.docs], np.uint64)
        chosen = keyed_hash(ids, self.config.seed) < np.uint64(int(self.config.holdout.fraction * 2.0**64))
        return {number for number in self.kept if chosen[root[number]]}

    def _linked(self, a: Doc, b: Doc, linked_at: float) -> bool:
        if a.text == b.text:
            return True
        methods = [name for name in self.dedup.methods if name != "exact"]
        return any(self._proposed(name, a, b, linked_at) for name in methods) and self._similarity(a, b) >= linked_at


def words(randomness: random.Random, count: int) -> list[str]:
    return [f"w{chr(97 + randomness.randrange(26))}{chr(97 + randomness.randrange(4))}" for _ in range(count)]


def awkward_texts(randomness: random.Random) -> list[str]:
    """Chains, stars, templates, equal shingle sets of other bytes, short texts, and texts without a shingle."""
    texts = ["!!!", "...", " !", "?", "cat", "Cat", "cat.", "dog", "four words and more", "é", "你好世界", "\u0000 nul"]
    base = words(randomness, randomness.randrange(25, 60))
    chain = base.copy()
    for _ in range(8):
        chain[randomness.randrange(len(chain))] = randomness.choice(words(randomness, 1))
        texts.append(" ".join(chain))
    for step in range(5):
        star = base.copy()
        star[(step * 7) % len(star)] = "spoke"
        texts.append(" ".join(star))
    frame = words(randomness, 40)
    texts += [" ".join([*frame[:20], *words(randomness, size), *frame[20:]]) for size in (1, 1, 2, 2, 6, 12, 25)]
    whole = " ".join(base)
    texts += [whole, whole.upper(), f"{whole}!", f"  {whole}", whole.replace(" ", "\n"), f"{whole} {whole}"]
    return texts


def awkward_sources(randomness: random.Random, names: list[str], first_rank: int = 0) -> list[Doc]:
    texts = awkward_texts(random.Random(randomness.randrange(3)))
    docs = []
    for name in names:
        rank = first_rank + randomness.randrange(2)
        opt_out = randomness.choice([(), (), ("exact",), ("minhash",), ("simhash",), METHODS, ("minhash", "simhash")])
        for path in ("b.jsonl", "a.jsonl"):
            for record in range(randomness.randrange(1, 9)):
                key = randomness.choice([None, 1.0, 2.5, -3.0])
                docs.append(Doc(name, path, record, randomness.choice(texts), rank, opt_out, key))
    return docs


def write_docs(root: Path, docs: list[Doc], keep: str) -> list[InputFile]:
    """Files of the documents; what is no key is missing, null, a word or NaN."""
    files: dict[tuple[str, str], list[Doc]] = {}
    for doc in docs:
        files.setdefault((doc.source, doc.path), []).append(doc)
    inputs = []
    for (source, path), own in files.items():
        lines = []
        for doc in own:
            row: dict[str, Any] = {"text": doc.text}
            key = [{}, {"q": None}, {"q": "high"}, {"q": float("nan")}][len(doc.text) % 4]
            row |= key if doc.key is None else {"q": doc.key}
            lines.append(json.dumps(row) + "\n")
        (root / source).mkdir(parents=True, exist_ok=True)
        (root / source / path).write_text("".join(lines), encoding="utf-8")
        field = "q" if keep == "quality" else None
        one = InputFile(source, own[0].rank, str(root / source), path, opt_out=own[0].opt_out, quality_field=field)
        inputs.append(one)
    return inputs


def check(inputs: list[InputFile], model: Model, decided: Path) -> None:
    outcome = read_outcome(inputs, decided)
    held = model.held_out() if model.config.holdout.fraction else set()
    for number, doc in enumerate(model.docs):
        if not doc.earlier:
            expected = REMOVED[model.witness[number][1]] if number in model.witness else Status.KEPT
            assert outcome.status[doc.name] == (Status.HELD_OUT if number in held else expected), doc
    rows = {
        (row["source"], row["file"], row["record"]): row
        for row in pq.read_table(decided / "removed.parquet").to_pylist()
        if row["reason"] is None
    }
    assert rows.keys() == {model.docs[number].name for number in model.witness}
    for number, (witness, method, similarity) in model.witness.items():
        row = rows[model.docs[number].name]
        best = model.docs[witness]
        found = (row["document"], row["witness_document"], row["witness_source"], row["method"])
        assert found == (model.docs[number].id, best.id, best.source, method)
        assert row["witness_file"] == (None if best.earlier else best.path)
        assert row["similarity"] == pytest.approx(similarity, abs=1e-12)


def random_config(randomness: random.Random) -> DecideConfig:
    methods = randomness.choice([METHODS, METHODS, ("exact", "minhash"), ("minhash",), ("simhash",), ("exact",)])
    minhash = MinHashConfig(*randomness.choice([(128, 25, 5), (64, 16, 4), (64, 8, 8)]), seed=randomness.randrange(9))
    dedup = DedupConfig(
        methods=tuple(randomness.sample(methods, len(methods))),
        decision=randomness.choice(["leader", "leader", "estimate"]),  # type: ignore[arg-type]
        threshold=randomness.choice([0.5, 0.8, 0.8, 1.0]),
        keep=randomness.choice(["longest", "quality", "first"]),  # type: ignore[arg-type]
        across=randomness.random() < 0.7,
        max_removed_fraction=1.0,
        minhash=minhash,
        write_index=True,
        canary=randomness.random() < 0.3,
    )
    config = configuration(dedup, seed=randomness.randrange(5))
    holdout = HoldoutConfig(randomness.choice([0.0, 0.4]), randomness.choice([0.3, 0.5, 0.9]))
    return replace(config, holdout=holdout)


def run_case(work: Path, seed: int) -> int:
    """One random corpus with a screen, against an Index of another one; how many documents dedup removed."""
    randomness = random.Random(seed)
    config = random_config(randomness)
    earlier, indexes = [], []
    if randomness.random() < 0.5:
        old = awkward_sources(randomness, ["s0", "old"], randomness.randrange(2))
        inputs = write_docs(work / "old", old, config.dedup.keep)
        run_stages(inputs, config, work / "first")
        list(WriteIndex(inputs, config, work / "first/signed", work / "first/decided", work / "first").run())
        model = Model(old, config)
        check(inputs, model, work / "first/decided")
        earlier = [replace(model.docs[number], earlier=True) for number in model.kept]
        indexes = [work / "first/index"]
    docs = awkward_sources(randomness, [f"s{number}" for number in range(1 if earlier else 0, 4)])
    if earlier and not config.dedup.across:
        docs = [replace(doc, source="old", path=f"new{doc.path}") if doc.source == "s1" else doc for doc in docs]
    for doc in docs:
        doc.screened = randomness.random() < 0.1
    randomness.shuffle(inputs := write_docs(work / "new", docs, config.dedup.keep))
    verdicts: dict[tuple[str, str], list[int]] = {}
    for doc in docs:
        verdicts.setdefault((doc.source, doc.path), []).append(int(doc.screened))
    write_screen(inputs, verdicts, work / "screen", ["", "taken"])
    model = Model([*earlier, *docs], config)
    outputs = []
    for number, options in enumerate(WORKSPACES):
        screens = [(Status.REMOVED_QUALITY, work / "screen")]
        run_stages(inputs, config, work / f"run{number}", 1, screens=screens, indexes=indexes, **options)
        decided = work / f"run{number}/decided"
        check(inputs, model, decided)
        outputs.append([(decided / name).read_bytes() for name in ("removed.parquet", "counts.json")])
    assert all(output == outputs[0] for output in outputs)
    return len(model.witness)


@pytest.mark.parametrize("seed", range(10))
def test_the_decision_is_that_of_the_model(tmp_path: Path, seed: int) -> None:
    run_case(tmp_path, seed)


@pytest.mark.parametrize(("seed", "opting_out"), [(0, False), (135, False), (137, False), (3, True), (4, True)])
def test_split_buckets_are_the_same_however_the_work_is_cut(tmp_path: Path, seed: int, opting_out: bool) -> None:
    """What is passed over in buckets of too many is no part of the model; the memory changes nothing of it, and what is
    removed has a kept copy all the same."""
    randomness = random.Random(seed)
    config = random_config(randomness)
    dedup = replace(config.dedup, methods=METHODS, decision="leader", threshold=0.9, max_bucket=2, canary=False)
    config = replace(config, dedup=replace(dedup, minhash=MinHashConfig(64, 32, 2)), holdout=HoldoutConfig(0.4))
    docs = awkward_sources(randomness, ["s0", "s1", "s2", "s3"])
    if not opting_out:
        docs = [replace(doc, opt_out=()) for doc in docs]
    inputs = write_docs(tmp_path / "in", docs, dedup.keep)
    outcomes = [
        run_stages(inputs, config, tmp_path / f"run{number}", **options) for number, options in enumerate(WORKSPACES)
    ]
    assert opting_out or outcomes[0].counts["dedup"]["unverified_pairs"] > 0
    assert all(outcome == outcomes[0] for outcome in outcomes)
    text = {doc.name: doc.text for doc in docs}
    for key, witness in outcomes[0].witness.items():
        assert outcomes[0].status[witness] in (Status.KEPT, Status.HELD_OUT)
        alike = jaccard(shingles_of(text[key]), shingles_of(text[witness]))
        assert text[key] == text[witness] or alike == pytest.approx(outcomes[0].similarity[key])
