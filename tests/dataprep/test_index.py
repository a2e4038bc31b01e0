"""The Index of what a job kept: its contents by an oracle, its order, and what is refused."""

from __future__ import annotations

import json
import os
import random
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.dedup_runs import Source, configuration, near_copies, write_sources
from support.text_oracle import shingles_of

from dataprep.dedup import index as index_module
from dataprep.dedup.config import DecideConfig, DedupConfig, MinHashConfig, SignConfig
from dataprep.dedup.index import INDEX_DTYPE, Index, WriteIndex, load_index
from dataprep.dedup.signatures import load_signed
from dataprep.dedup.steps import DecideDocuments, SignDocuments
from dataprep.documents import InputFile, Status
from dataprep.kernels.documents import DocumentHasher
from loader.canonical import canonical_json, digest_of
from loader.errors import DamageError, RefusedError
from loader.text.records import document_id

TEXTS = near_copies(random.Random(8), 40)
SOURCES = {
    "web": Source({"b.jsonl": [*TEXTS[:20], ""], "a.jsonl": TEXTS[20:33]}, 1, ("simhash",)),
    "books": Source({"c.jsonl": TEXTS[33:]}, 0),
}


def config_of(**changes: Any) -> DecideConfig:
    return configuration(DedupConfig(**changes), 0.2)


def decide(inputs: Sequence[InputFile], signed: Path, decided: Path) -> list[tuple[int, int]]:
    """Statuses and ranks as a decision leaves them, by a draw: (file, record) of the kept ones, best first."""
    decided.mkdir(parents=True, exist_ok=True)
    randomness = random.Random(2)
    ranked: list[tuple[int, int, int]] = []
    rows = {(file, row) for file in range(len(inputs)) for row in range(len(load_signed(signed, file).documents))}
    by_name = sorted(rows, key=lambda place: (inputs[place[0]].path, place[1]))  # whatever the order of the files
    rank_of = dict(zip(by_name, randomness.sample(range(1000), len(by_name)), strict=True))
    fate_of = {
        place: randomness.choice([Status.KEPT] * 3 + [Status.HELD_OUT, Status.REMOVED_EXACT]) for place in by_name
    }
    for file in range(len(inputs)):
        documents = load_signed(signed, file).documents
        summary = json.loads((signed / f"file.{file:05d}.json").read_bytes())["summary"]
        status_R = np.full(summary["num_records"], Status.REJECTED, np.uint8)
        rank_N = np.array([rank_of[file, row] for row in range(len(documents))], np.int64)
        for row, record in enumerate(documents["record"].tolist()):
            status_R[record] = fate_of[file, row]
            if status_R[record] in (Status.KEPT, Status.HELD_OUT):
                ranked.append((rank_of[file, row], file, record))
            else:
                rank_N[row] = -1
        np.save(decided / f"status.{file:05d}.npy", status_R)
        np.save(decided / f"rank.{file:05d}.npy", rank_N)
    return [(file, record) for _, file, record in sorted(ranked)]


def build(
    tmp_path: Path, config: DecideConfig, inputs: Sequence[InputFile] | None = None
) -> tuple[Path, list[InputFile], list[tuple[int, int]]]:
    files = list(inputs) if inputs is not None else write_sources(tmp_path / "text", SOURCES)
    list(SignDocuments(files, SignConfig(config.ingest, config.dedup), tmp_path / "signed").run())
    order = decide(files, tmp_path / "signed", tmp_path / "decided")
    list(WriteIndex(files, config, tmp_path / "signed", tmp_path / "decided", tmp_path / "stage").run())
    return tmp_path / "stage" / "index", files, order


def text_of(inputs: Sequence[InputFile], file: int, record: int) -> str:
    text: str = json.loads(inputs[file].location.read_text(encoding="utf-8").split("\n")[record])["text"]
    return text


def set_of(index: Index, place: int) -> list[int]:
    return index.set_value_S[index.set_start_N[place] : index.set_stop_N[place]].tolist()


def test_an_index_holds_the_kept_documents_best_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_GATHER_ROWS", 7)
    monkeypatch.setattr(index_module, "_GATHER_VALUES", 50)
    config = config_of()
    folder, inputs, order = build(tmp_path, config)
    index = load_index(folder, config.dedup)
    assert index.documents.dtype == INDEX_DTYPE
    assert len(index.documents) == len(order) > 20
    assert [(s.name, s.rank, s.opt_out) for s in index.sources] == [("books", 0, ()), ("web", 1, ("simhash",))]
    assert (index.keep, index.salt) == ("longest", 9)
    hasher = DocumentHasher()
    for place, (file, record) in enumerate(order):
        row, text = index.documents[place], text_of(inputs, file, record)
        source = inputs[file]
        assert row["id"] == document_id(source.source, source.path, record, 9)
        assert index.sources[row["source"]].name == source.source
        assert row["size_bytes"] == len(text.encode())
        values, _ = hasher.sets(pa.array([text], pa.large_string()))
        assert set_of(index, place) == values.tolist() == sorted(set(values.tolist()))
        assert len(values) == len(shingles_of(text))
        signed = load_signed(tmp_path / "signed", file)
        mine = int(np.flatnonzero(signed.documents["record"] == record)[0])
        assert index.signature_NK is not None
        assert signed.signature_NK is not None
        assert np.array_equal(index.signature_NK[place], signed.signature_NK[mine])
        for name in ("hash_low", "hash_high", "num_shingles", "order_key"):
            assert row[name] == signed.documents[mine][name]
    assert index.simhash_N is None
    assert sorted(path.name for path in folder.iterdir()) == [
        "documents.npy", "index.json", "set_stops.npy", "sets.bin", "signatures.npy",
    ]  # fmt: skip


def test_the_order_of_files_changes_no_byte(tmp_path: Path) -> None:
    config = config_of()
    first, inputs, _ = build(tmp_path / "x", config)
    second, _, _ = build(tmp_path / "y", config, inputs[::-1])
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_an_index_of_nothing(tmp_path: Path) -> None:
    config = config_of(methods=("exact",))
    inputs = write_sources(tmp_path / "text", {"s": Source({"a.jsonl": []}, 0)})
    folder, _, _ = build(tmp_path, config, inputs)
    index = load_index(folder, config.dedup)
    assert len(index.documents) == len(index.set_value_S) == len(index.set_start_N) == 0
    assert index.signature_NK is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"minhash": MinHashConfig(seed=2)}, r"minhash .*'seed': 1.* is not .*'seed': 2"),
        ({"minhash": MinHashConfig(num_permutations=256)}, r"minhash .*128.* is not .*256"),
        ({"methods": ("exact",)}, r"methods \['exact', 'minhash'\] is not \['exact'\]"),
    ],
)
def test_another_stamp_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    folder, _, _ = build(tmp_path, config_of())
    with pytest.raises(RefusedError, match=r"TR-INDEX-OTHER.*" + named + r"(.|\n)*index\.json"):
        load_index(folder, DedupConfig(**changes))


def test_what_plays_no_part_in_sets_and_signatures_may_differ(tmp_path: Path) -> None:
    folder, _, order = build(tmp_path, config_of())
    other = DedupConfig(threshold=0.6, keep="first", minhash=MinHashConfig(bands=16, rows=8), across=False)
    assert len(load_index(folder, other).documents) == len(order)


def test_other_text_rules_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _, _ = build(tmp_path, config_of())
    monkeypatch.setattr("dataprep.dedup.signatures.UNICODE_VERSION", "99.0.0")
    with pytest.raises(RefusedError, match=r"TR-INDEX-OTHER.*text .*14\.0\.0.*99\.0\.0"):
        load_index(folder, DedupConfig())


def test_damage_is_found_in_every_file(tmp_path: Path) -> None:
    config = config_of()
    folder, _, _ = build(tmp_path, config)
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        path = folder / name
        data = path.read_bytes()
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        for damaged in (flipped, data[:-1], data + b"0", b"", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(DamageError, match=name.replace(".", r"\.")):
                load_index(folder, config.dedup)
        path.write_bytes(data)
    assert len(load_index(folder, config.dedup).documents) > 0


def test_a_record_that_no_index_has_is_refused(tmp_path: Path) -> None:
    """It comes from elsewhere: a digest of its own says nothing of what it names."""
    config = config_of()
    folder, _, _ = build(tmp_path, config)
    path = folder / "index.json"
    record = json.loads(path.read_bytes())
    del record["digest"]
    files = record["files"]
    elsewhere = {f"{folder}/sets.bin" if name == "sets.bin" else name: part for name, part in files.items()}
    fewer = {name: part for name, part in files.items() if name != "set_stops.npy"}
    no_count = {name: value for name, value in record.items() if name != "count"}
    wrong = [{**record, "files": elsewhere}, {**record, "files": {**files, "../x.npy": files["documents.npy"]}}]
    for changed in (*wrong, {**record, "files": fewer}, no_count):
        path.write_bytes(canonical_json({**changed, "digest": digest_of(changed)}))
        with pytest.raises(DamageError, match="TR-INDEX-DAMAGED"):
            load_index(folder, config.dedup)
    del record["version"]
    path.write_bytes(canonical_json({**record, "digest": digest_of(record)}))
    with pytest.raises(RefusedError, match="version None"):
        load_index(folder, config.dedup)


def test_what_was_decided_must_fit(tmp_path: Path) -> None:
    config = config_of()
    _, inputs, _ = build(tmp_path, config)
    path = tmp_path / "decided" / "rank.00001.npy"
    data = path.read_bytes()
    rank_N = np.load(path)
    step = WriteIndex(inputs, config, tmp_path / "signed", tmp_path / "decided", tmp_path / "again")
    for wrong, named in ((rank_N[1:], "rank.00001"), (np.zeros_like(rank_N), "decided"), (None, "rank.00001")):
        path.unlink()
        if wrong is not None:
            np.save(path, wrong)
        with pytest.raises(DamageError, match=r"TR-INDEX-(DECIDED|RANKS)(.|\n)*" + named):
            list(step.run())
        path.write_bytes(data)
    assert not (tmp_path / "again/index/index.json").exists()
    list(step.run(None, 1, 2))
    inputs[0].location.write_text(json.dumps({"text": "other"}) + "\n", encoding="utf-8")
    with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
        list(step.run())
    assert [path.name for path in (tmp_path / "again/index").glob(".tmp*")] == []


def test_an_index_of_a_real_decision_in_its_priority_order(tmp_path: Path) -> None:
    config = config_of(write_index=True, methods=("exact", "minhash", "simhash"))
    inputs = write_sources(tmp_path / "text", SOURCES)
    list(SignDocuments(inputs, SignConfig(config.ingest, config.dedup), tmp_path / "signed").run())
    list(DecideDocuments(inputs, config, tmp_path / "signed", tmp_path / "decided").run())
    list(WriteIndex(inputs, config, tmp_path / "signed", tmp_path / "decided", tmp_path / "stage").run())
    index = load_index(tmp_path / "stage/index", config.dedup)
    kept = [
        (file, record)
        for file in range(len(inputs))
        for record, status in enumerate(np.load(tmp_path / f"decided/status.{file:05d}.npy").tolist())
        if status in (Status.KEPT, Status.HELD_OUT)
    ]
    ids = {document_id(inputs[file].source, inputs[file].path, record, 9): (file, record) for file, record in kept}
    assert len(kept) > 10
    assert sorted(index.documents["id"].tolist()) == sorted(ids)
    places = [ids[number] for number in index.documents["id"].tolist()]
    order = [(inputs[file].rank, -len(text_of(inputs, file, record).encode())) for file, record in places]
    assert order == sorted(order)
    assert index.simhash_N is not None
    assert len(index.simhash_N) == len(kept)


def test_many_files_need_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_OPEN_FILES", 4)
    config = config_of()
    texts = near_copies(random.Random(1), 40)
    inputs = write_sources(tmp_path / "text", {"s": Source({f"{i:02d}.jsonl": [t] for i, t in enumerate(texts)}, 0)})
    list(SignDocuments(inputs, SignConfig(config.ingest, config.dedup), tmp_path / "signed").run())
    order = decide(inputs, tmp_path / "signed", tmp_path / "decided")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 25, hard))
    try:
        list(WriteIndex(inputs, config, tmp_path / "signed", tmp_path / "decided", tmp_path / "stage").run())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(load_index(tmp_path / "stage/index", config.dedup).documents) == len(order) > 20
