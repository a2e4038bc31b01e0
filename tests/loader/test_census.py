"""What documents are, counted from shards, against the oracle's own tokens; sampled, and with missing borders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import BOS, EOS, DatasetSpec, MadeDataset, make_dataset

from loader.errors import DamageError
from loader.shards import DatasetInfo, InputFile, ShardSpec, ShardWriter, make_segments, write_dataset_manifest
from loader.shards import census as census_module
from loader.shards.census import count_documents
from loader.shards.dataset import open_dataset
from loader.shards.describe import inspect_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 50, "code": 12}, seq_len=48, samples_per_shard=5)
    return make_dataset(tmp_path_factory.mktemp("census"), spec)


def oracle(made: MadeDataset, source: str) -> dict[str, Any]:
    tokens: dict[int, list[int]] = {}
    pieces = 0
    cuts: dict[int, int] = {}
    for sample, segments in made.samples[source]:
        for piece in segments:
            if piece.document is not None:
                pieces += 1
                cuts[piece.document.id] = cuts.get(piece.document.id, 0) + 1
                tokens.setdefault(piece.document.id, []).extend(sample[piece.token_start : piece.token_stop])
    lengths = [len(t) for t in tokens.values()]
    num_bytes = sum(len(made.documents[one].text.encode()) for one in tokens)
    return {
        "documents": len(tokens),
        "borders": len(tokens),
        "bos_fraction": np.mean([t[0] == BOS for t in tokens.values()]),
        "eos_fraction": np.mean([t[-1] == EOS for t in tokens.values()]),
        "tokens": {"mean": np.mean(lengths), "median": np.median(lengths), "longest": max(lengths)},
        "bytes_per_token": num_bytes / sum(lengths),
        "segments_per_sample": pieces / len(made.samples[source]),
        "split": sum(count > 1 for count in cuts.values()),
    }


def test_exact_counts_are_the_oracles(made: MadeDataset) -> None:
    found = count_documents(made.open(), exact=True)
    assert list(found) == ["web", "code"]
    for source, counted in found.items():
        shards = counted.pop("shards")
        assert shards == {"read": len(made.shard_samples[source]), "of": len(made.shard_samples[source])}
        assert counted.pop("exact") is True
        assert counted == oracle(made, source)


def test_a_sample_says_how_large_it_is(made: MadeDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "_SAMPLED_SHARDS", 6)
    monkeypatch.setattr(census_module, "_SAMPLED_DOCUMENTS", 2)
    found = count_documents(made.open())
    whole = {source: oracle(made, source) for source in found}
    assert found == count_documents(made.open())
    web = found["web"]
    assert (web["exact"], web["shards"]) == (False, {"read": 3, "of": len(made.shard_samples["web"])})
    assert 0 < web["borders"] <= 3 * 2
    assert web["borders"] < web["documents"] < whole["web"]["documents"]
    assert (web["bos_fraction"], web["eos_fraction"]) == (1.0, 1.0)
    assert web["tokens"]["longest"] <= whole["web"]["tokens"]["longest"]


def test_a_small_dataset_is_counted_whole_without_being_asked(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 5}))
    counted = inspect_dataset(made.path, "sampled")["sources"][0]["counted"]
    assert (counted["exact"], counted["documents"]) == (True, 5)
    assert "counted" not in inspect_dataset(made.path)["sources"][0]


def test_missing_borders_show(tmp_path: Path) -> None:
    """Four documents: one without BOS, two without EOS, one of them cut in two."""
    writer = ShardWriter(tmp_path, ShardSpec("web", 0, 6, 100))
    rows = [writer.add_document(i + 1, 0, i, 0) for i in range(4)]
    writer.add_sample(np.array([1, 5, 0, 6, 7, 0]), make_segments([0, 3], rows[:2], [0, 0], [0, 0], [4, 3]))
    writer.add_sample(np.array([1, 8, 8, 8, 1, 9]), make_segments([0, 4], rows[2:], [0, 0], [0, 0], [9, 5]))
    writer.add_sample(np.array([8, 8, 8, 8, 8, 8]), make_segments([0], [rows[2]], [4], [9], [7]))
    tokenizer = {"bos_id": 1, "eos_id": 0}
    info = DatasetInfo(("web",), 6, 100, (writer.close(),), (InputFile("web", "a"),), tokenizer, 0, "0")
    write_dataset_manifest(tmp_path, info)
    counted = count_documents(open_dataset(tmp_path))["web"]
    assert (counted["bos_fraction"], counted["eos_fraction"], counted["split"]) == (0.75, 0.5, 1)
    assert counted["tokens"] == {"mean": 18 / 4, "median": 3.0, "longest": 10}
    assert counted["bytes_per_token"] == 28 / 18
    assert counted["segments_per_sample"] == 5 / 3


def test_no_border_id_means_no_fraction(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, ShardSpec("web", 0, 4, 100))
    row = writer.add_document(1, 0, 0, 0)
    writer.add_sample(np.array([1, 5, 0, 6]), make_segments([0], [row], [0], [0], [4]))
    info = DatasetInfo(("web", "none"), 4, 100, (writer.close(),), (InputFile("web", "a"),), {"bos_id": None}, 0, "0")
    write_dataset_manifest(tmp_path, info)
    counted = count_documents(open_dataset(tmp_path))
    assert (counted["web"]["bos_fraction"], counted["web"]["eos_fraction"]) == (None, None)
    assert (counted["none"]["documents"], counted["none"]["tokens"]["mean"]) == (0, None)


def test_damage_is_found_while_counting(made: MadeDataset, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made.path, tmp_path / "copy"))
    for path in copy.glob("web/*.mds"):
        data = bytearray(path.read_bytes())
        data[4096::96] = bytes(byte ^ 1 for byte in data[4096::96])
        path.write_bytes(data)
    with pytest.raises(DamageError, match=r"\.mds"):
        inspect_dataset(copy, "sampled")
    assert inspect_dataset(copy)["digest"] == made.digest
