"""Contract over ``EXPORTS``: each format read back by the library that it is for, equal to what the documents were.

``READERS`` has a row a format; a format without its row does not exist. Megatron's reader is its own file, loaded alone
(the package wants a GPU stack); where megatron-core is not installed, the layout it documents is read instead.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import VOCAB_SIZE, DatasetSpec, Document, MadeDataset, make_dataset
from support.megatron import megatron_classes

from loader.errors import ConfigError, DamageError, RefusedError
from loader.interop.export import EXPORTS, ExportOptions, bytes_to_read, export_dataset, plan_export
from loader.sealed import read_sealed, write_sealed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 40, "code": 15}, seq_len=48, samples_per_shard=10, max_words=60)
    return make_dataset(tmp_path_factory.mktemp("exports"), spec)


def documents_of(made: MadeDataset, source: str) -> list[tuple[Document, list[int]]]:
    """(document, its tokens) in the order of exports: by first shard; those that go on in later shards last, by id."""
    tokens: dict[int, list[int]] = {}
    shards: dict[int, list[int]] = {}
    for number, (sample, pieces) in enumerate(made.samples[source]):
        for piece in pieces:
            if piece.document is not None:
                tokens.setdefault(piece.document.id, []).extend(sample[piece.token_start : piece.token_stop])
                shards.setdefault(piece.document.id, []).append(number // made.spec.samples_per_shard)
    place = {one: rank for rank, one in enumerate(tokens)}
    shared = {one: min(held) != max(held) for one, held in shards.items()}
    order = sorted(tokens, key=lambda one: (min(shards[one]), shared[one], one if shared[one] else place[one]))
    assert any(shared.values())
    return [(made.documents[one], tokens[one]) for one in order]


# MDS ------------------------------------------------------------------------------------------------------------------


def streaming() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("streaming", exc_type=ImportError)


def read_mds(made: MadeDataset, out: Path) -> None:
    stock = streaming()
    wanted = {source: [tokens for tokens, _ in samples] for source, samples in made.samples.items()}
    for folder, samples in (
        (out, [*wanted["web"], *wanted["code"]]),
        (out / "web", wanted["web"]),
        (out / "code", wanted["code"]),
    ):
        theirs = stock.StreamingDataset(local=str(folder), shuffle=False, batch_size=1, validate_hash="xxh3_128")
        assert [theirs[number]["tokens"].tolist() for number in range(len(theirs))] == samples


# Megatron -------------------------------------------------------------------------------------------------------------


def read_megatron(made: MadeDataset, out: Path) -> None:
    per_shard = made.spec.samples_per_shard
    for reader in megatron_classes():
        for source, samples in made.samples.items():
            for number in range(len(made.shard_samples[source])):
                wanted: dict[int, list[list[int]]] = {}
                for tokens, pieces in samples[number * per_shard : (number + 1) * per_shard]:
                    for piece in pieces:
                        if piece.document is not None:
                            mine = wanted.setdefault(piece.document.id, [])
                            mine.append(tokens[piece.token_start : piece.token_stop])
                view = reader(str(out / source / f"shard.{number:05d}"))
                borders = view.document_indices.tolist()
                found = [[view[i].tolist() for i in range(a, b)] for a, b in itertools.pairwise(borders)]
                assert found == list(wanted.values())
                assert len(view) == borders[-1]
                del view


# datatrove ------------------------------------------------------------------------------------------------------------


def read_datatrove(made: MadeDataset, out: Path) -> None:
    pytest.importorskip("torch")
    from datatrove.pipeline.tokens.merger import load_doc_ends
    from datatrove.utils.dataset import DatatroveFolderDataset

    seq_len = 15
    for source in made.samples:
        documents = documents_of(made, source)
        stream = [token for _, tokens in documents for token in tokens]
        positions = [place for _, tokens in documents for place in range(len(tokens))]
        dataset = DatatroveFolderDataset(
            str(out), seq_len, filename_pattern=f"{source}.ds", token_size=2, return_positions=True
        )
        assert len(dataset) == len(stream) // (seq_len + 1)
        for number in range(len(dataset)):
            item = dataset[number]
            window = slice(number * (seq_len + 1), (number + 1) * (seq_len + 1))
            assert item["input_ids"].tolist() == stream[window]
            # A document that began before the window counts from the window's start.
            begun = positions[window.start]
            wanted = [place - begun if place == begun + i else place for i, place in enumerate(positions[window])]
            assert item["positions"].tolist() == wanted
        with open(out / f"{source}.ds.index", "rb") as file:
            ends = [int(end) for end in load_doc_ends(file)]
        assert ends == np.cumsum([len(tokens) for _, tokens in documents]).tolist()
        first_line, count, _ = (out / f"{source}.ds.metadata").read_text().split("\n")
        assert (first_line.split("|")[1], int(count)) == ("2", len(stream))


# Parquet --------------------------------------------------------------------------------------------------------------


def read_parquet(made: MadeDataset, out: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    for source in made.samples:
        rows = [row for part in sorted((out / source).iterdir()) for row in pq.read_table(part).to_pylist()]
        assert [(row["document"], row["input_ids"]) for row in rows] == [
            (document.id, tokens) for document, tokens in documents_of(made, source)
        ]
        for row in rows:
            document = made.documents[row["document"]]
            origin = (document.source, document.path, document.record, document.record_start)
            assert (row["source"], row["file"], row["record"], row["record_start"]) == origin
            assert row["first_token"] == 0
            assert sum(row["segment_tokens"]) == len(row["input_ids"])
            text = document.text.encode()
            parts = [text[a : a + n] for a, n in zip(row["byte_start"], row["byte_count"], strict=True)]
            assert b"".join(parts) == text
            for sample, count in zip(row["sample"], row["segment_tokens"], strict=True):
                assert 0 < count <= len(made.samples[source][sample][0])


READERS: dict[str, Callable[[MadeDataset, Path], None]] = {
    "mds": read_mds,
    "megatron": read_megatron,
    "datatrove": read_datatrove,
    "parquet": read_parquet,
}
LINKED = [(form, link) for form in sorted(EXPORTS) for link in (False, True) if EXPORTS[form].links or not link]


def test_every_format_has_a_reader() -> None:
    assert set(READERS) == set(EXPORTS)


@pytest.mark.usefixtures("stock_turn")
@pytest.mark.parametrize(("form", "link"), LINKED)
def test_an_export_is_read_by_its_own_stack(made: MadeDataset, tmp_path: Path, form: str, link: bool) -> None:
    out = tmp_path / "out"
    options = ExportOptions(form, link=link)
    planned = plan_export(made.path, out, options)
    total = bytes_to_read(made.path, out, options)
    assert list(tmp_path.iterdir()) == []
    seen: list[int] = []
    result = export_dataset(made.path, out, options, seen.append)
    READERS[form](made, out)
    record = read_sealed(out / "export.json")
    sizes = {file["name"]: file["size_bytes"] for file in record["files"]}
    assert record["dataset"] == made.digest
    assert sizes == {name: (out / name).stat().st_size for name in sizes}
    assert sorted(sizes) == sorted(
        str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.name != "export.json"
    )
    names = {file["name"] for file in planned["files"]}
    assert set(sizes) == names if form != "parquet" else set(sizes) < names  # some shards begin no document
    for file in planned["files"] if form != "parquet" else ():
        linked = (out / file["name"]).is_symlink()
        assert (linked, file["size_bytes"]) == (link and linked, 0 if linked else sizes[file["name"]])
    assert sum(seen) == total == int(made.open().shards_R["size_bytes"].sum())
    assert result["written"]
    assert bytes_to_read(made.path, out, options) is None
    assert plan_export(made.path, out, options)["finished"]
    assert not export_dataset(made.path, out, options)["written"]
    links = [path for path in out.rglob("*") if path.is_symlink()]
    assert bool(links) == link
    assert not any(Path(path.readlink()).is_absolute() for path in links)


@pytest.mark.parametrize("form", sorted(EXPORTS))
def test_equal_exports_are_equal_bytes_and_one_source_is_enough(made: MadeDataset, tmp_path: Path, form: str) -> None:
    for name in ("one", "two"):
        export_dataset(made.path, tmp_path / name, ExportOptions(form, ("code",)))
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert files
    assert not any("web" in str(name) for name in files)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.usefixtures("stock_turn")
@pytest.mark.parametrize(
    ("form", "split", "module"),
    [
        ("mds", "", "streaming"),
        ("mds", "train", "streaming"),
        ("datatrove", "", "datatrove.utils.dataset"),
        ("parquet", "", "datasets"),
    ],
)
def test_the_printed_expression_opens_the_export(
    made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, split: str, module: str
) -> None:
    result = export_dataset(made.path, tmp_path / "it's out", ExportOptions(form, split=split))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(module, exc_type=ImportError)
        top = module.partition(".")[0]
        if form == "parquet":
            monkeypatch.setattr(sys.modules[top].config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
        opened = eval(result["read_with"], {top: sys.modules[top]})
    tokens = sum(source.num_tokens for source in made.open().manifest.sources)
    counts = {
        "mds": sum(len(samples) for samples in made.samples.values()),
        "datatrove": sum(source.num_tokens // (made.spec.seq_len + 1) for source in made.open().manifest.sources),
        "parquet": len(made.documents),
    }
    assert (len(opened), tokens > 0) == (counts[form], True)


def test_huggingface_datasets_read_the_parquet_rows(made: MadeDataset, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    export_dataset(made.path, tmp_path / "out", ExportOptions("parquet", ("web",)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = datasets.load_dataset(
            "parquet", data_files=str(tmp_path / "out/web/*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert table["input_ids"][:] == [tokens for _, tokens in documents_of(made, "web")]
        ids = table.with_format("torch")[0]["input_ids"]
    assert ids.tolist() == documents_of(made, "web")[0][1]


@pytest.mark.usefixtures("stock_turn")
def test_a_split_folder_is_what_llm_foundry_reads(made: MadeDataset, tmp_path: Path) -> None:
    export_dataset(made.path, tmp_path / "out", ExportOptions("mds", split="train"))
    theirs = streaming().StreamingDataset(
        local=str(tmp_path / "out"), split="train", shuffle=False, batch_size=1, validate_hash="xxh3_128"
    )
    assert len(theirs) == sum(len(samples) for samples in made.samples.values())
    sample = theirs[len(theirs) - 1]
    # StreamingTextDataset._read_binary_tokenized_sample takes an array column of this name.
    assert (list(sample), type(sample["tokens"]).__name__) == (["tokens"], "ndarray")
    assert sample["tokens"].tolist() == made.samples["code"][-1][0]


@pytest.mark.parametrize(("form", "link"), LINKED)
def test_a_damaged_dataset_exports_nothing(made: MadeDataset, tmp_path: Path, form: str, link: bool) -> None:
    copy = Path(shutil.copytree(made.path, tmp_path / "data"))
    names = ["web/shard.00001.mds"]
    names += [] if form == "mds" else ["web/shard.00000.segments"]
    names += [] if form in ("mds", "megatron") else ["documents.npy"]
    for name in names:
        data = (copy / name).read_bytes()
        changed = bytearray(data)
        changed[-3] ^= 16
        (copy / name).write_bytes(changed)
        with pytest.raises(DamageError) as caught:
            export_dataset(copy, tmp_path / "out", ExportOptions(form, link=link))
        assert name in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
        (copy / name).write_bytes(data)
    export_dataset(copy, tmp_path / "out", ExportOptions(form, link=link))


def test_other_output_is_refused_and_untouched(made: MadeDataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export_dataset(made.path, out, ExportOptions("datatrove"))
    for options in (ExportOptions("parquet"), ExportOptions("datatrove", ("web",))):
        with pytest.raises(RefusedError, match="TR-EXPORT-OTHER"):
            export_dataset(made.path, out, options)
        with pytest.raises(RefusedError, match="TR-EXPORT-OTHER"):
            plan_export(made.path, out, options)
    other = make_dataset(tmp_path, DatasetSpec(documents={"web": 3}), "other")
    with pytest.raises(RefusedError, match="TR-EXPORT-OTHER"):
        export_dataset(other.path, out, ExportOptions("datatrove"))
    READERS["datatrove"](made, out)
    (out / "web.ds").write_bytes(b"")
    with pytest.raises(DamageError, match="TR-EXPORT-DAMAGED"):
        export_dataset(made.path, out, ExportOptions("datatrove"))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(RefusedError, match="TR-EXPORT-OTHER"):
        export_dataset(made.path, foreign, ExportOptions("mds"))
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


def test_whoever_comes_second_is_refused_and_a_forged_record_is_damage(made: MadeDataset, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def come_first(_: int) -> None:
        out.mkdir(exist_ok=True)
        (out / "theirs").write_bytes(b"x")

    with pytest.raises(RefusedError, match="TR-EXPORT-OTHER"):
        export_dataset(made.path, out, ExportOptions("datatrove"), come_first)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]
    export_dataset(made.path, tmp_path / "mine", ExportOptions("datatrove"))
    record = read_sealed(tmp_path / "mine/export.json")
    for files in ([{"name": "../out/theirs", "size_bytes": 1}], [{"name": 7}], [7], 7, [{"size_bytes": 1}]):
        write_sealed(tmp_path / "mine/export.json", {**record, "files": files})
        with pytest.raises(DamageError, match=r"TR-EXPORT-DAMAGED|TR-NAME-UNSAFE"):
            export_dataset(made.path, tmp_path / "mine", ExportOptions("datatrove"))


def test_options_and_places_that_make_no_sense(made: MadeDataset, tmp_path: Path) -> None:
    for output, options, code in (
        (tmp_path / "out", ExportOptions("hdf5"), "TR-EXPORT-FORMAT"),
        (tmp_path / "out", ExportOptions("parquet", link=True), "TR-EXPORT-OPTION"),
        (tmp_path / "out", ExportOptions("megatron", split="train"), "TR-EXPORT-OPTION"),
        (tmp_path / "out", ExportOptions("mds", split="../up"), "TR-EXPORT-OPTION"),
        (tmp_path / "out", ExportOptions("mds", split="export.json"), "TR-EXPORT-OPTION"),
        (tmp_path / "out", ExportOptions("mds", ("nothing",)), "TR-SOURCE-UNKNOWN"),
        (made.path / "mds", ExportOptions("mds"), "TR-EXPORT-OUTPUT"),
        (made.path.parent, ExportOptions("mds"), "TR-EXPORT-OUTPUT"),
        (made.path, ExportOptions("mds"), "TR-EXPORT-OUTPUT"),
    ):
        with pytest.raises(ConfigError, match=code):
            export_dataset(made.path, output, options)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_removed(made: MadeDataset, tmp_path: Path) -> None:
    dead, alive, other = (tmp_path / name for name in (".tmp-999999999-out", ".tmp-1-out", ".tmp-999999999-else"))
    for folder in (dead, alive, other):
        folder.mkdir()
        (folder / "part").write_bytes(b"x")
    export_dataset(made.path, tmp_path / "out", ExportOptions("datatrove"))
    assert (dead.exists(), alive.exists(), other.exists()) == (False, True, True)


def test_folders_made_for_an_export_survive_a_power_loss(
    made: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    export_dataset(made.path, tmp_path / "new" / "deep" / "out", ExportOptions("datatrove"))
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "deep")} <= synced


def test_the_export_names_tokens_and_documents(made: MadeDataset, tmp_path: Path) -> None:
    record = export_dataset(made.path, tmp_path / "out", ExportOptions("datatrove"))
    tokens = {source: sum(len(t) for _, t in documents_of(made, source)) for source in made.samples}
    assert record["totals"] == {"num_tokens": sum(tokens.values()), "num_documents": len(made.documents)}
    assert VOCAB_SIZE < 1 << 16
    assert json.dumps(record)
