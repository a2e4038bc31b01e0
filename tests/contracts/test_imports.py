"""Every format of token sets, written by its own maker's library where that can run: what was written is what the
Dataset holds, named by file and record; what is damaged, hostile or not said is refused by name."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builds import run
from support.corpora import make_corpus, write_config
from support.megatron import megatron_reader
from support.tokenizer_models import small_model, small_policy

from dataprep.imports import IMPORTS
from dataprep.imports.base import SetOptions
from dataprep.repack import RepackOptions, repack
from dataprep.run import prepare, run_build
from loader.cli import main
from loader.cli_options import Output
from loader.errors import ConfigError, DamageError
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.verify import verify_dataset
from loader.stream.store import StoreOptions, look_into_dataset
from loader.text.records import RecordPlace
from loader.text.roots import TextSource
from loader.text.tokenizers import load_tokenizer, write_tokenizer

Records = list[list[int]]
VOCABULARY = 300
RNG = np.random.default_rng(8)
RECORDS: Records = [RNG.integers(0, VOCABULARY, size).tolist() for size in (5, 1, 40, 33, 16, 7, 16, 90, 2)]


def write_mds(
    folder: Path,
    records: Records,
    encoding: str = "ndarray:uint16",
    compression: str | None = None,
    dtype: str = "uint16",
    size_limit: int = 400,
) -> None:
    from streaming import MDSWriter

    columns = {"aa": "int", "tokens": encoding, "zz": "str"}
    options: dict[str, Any] = {"compression": compression, "hashes": ["sha1", "xxh3_64"], "size_limit": size_limit}
    with MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for number, record in enumerate(records):
            ids = np.array(record, dtype)
            writer.write(
                {"aa": number, "tokens": ids.tobytes() if encoding == "bytes" else ids, "zz": "x" * (number % 5)}
            )


def write_megatron(prefix: Path, records: Records, dtype: str = "uint16", pieces: int = 2) -> None:
    """As ``indexed_dataset.py`` lays it out: each record in several sequences."""
    code = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}[dtype]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    sizes, borders = [], [0]
    with open(prefix.with_suffix(".bin"), "wb") as file:
        for record in records:
            for part in np.array_split(np.array(record, dtype), pieces):
                file.write(part.tobytes())
                sizes.append(len(part))
            borders.append(len(sizes))
    width = np.dtype(dtype).itemsize
    pointers = (np.cumsum(sizes) - sizes) * width
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(borders))
    arrays = (np.array(sizes, "<i4"), pointers.astype("<i8"), np.array(borders, "<i8"))
    prefix.with_suffix(".idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))


def write_megatron_stock(prefix: Path, records: Records) -> None:
    """By Megatron's own writer."""
    import torch

    reader = megatron_reader()
    if reader is None:
        pytest.skip("megatron-core is not installed")
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = reader.__init__.__globals__["IndexedDatasetBuilder"](str(prefix) + ".bin", dtype=np.uint16)
    for record in records:
        builder.add_item(torch.tensor(record))
        builder.end_document()
    builder.finalize(str(prefix) + ".idx")


def write_datatrove(folder: Path, records: Records, name: str = "a.ds", width: int = 2, metadata: bool = True) -> None:
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    folder.mkdir(parents=True, exist_ok=True)
    file = TokenizedFile(
        str(folder), name, token_size=width, save_final_metadata=metadata, tokenizer_name_or_path="some/tokenizer"
    )
    for record in records:
        file.write(record, None)
    file.close()


WRITERS: dict[str, list[tuple[str, Callable[[Path, Records], None], Sequence[str]]]] = {
    "mds": [
        ("fixed dtype", write_mds, ()),
        ("dtype in each sample", lambda p, r: write_mds(p, r, "ndarray", dtype="int64"), ()),
        ("zstd", lambda p, r: write_mds(p, r, "ndarray:uint32", "zstd", "uint32"), ()),
        ("gzip", lambda p, r: write_mds(p, r, compression="gz"), ()),
        ("bytes", lambda p, r: write_mds(p, r, "bytes", dtype="int64"), ("--dtype", "int64")),
    ],
    "megatron": [
        ("several sequences", lambda p, r: write_megatron(p / "set", r), ()),
        ("stock", lambda p, r: write_megatron_stock(p / "set", r), ()),
        *(
            (dtype, lambda p, r, dtype=dtype: write_megatron(p / "set", r, dtype, 1), ())  # type: ignore[misc]
            for dtype in ("int16", "int32", "int64")
        ),
    ],
    "datatrove": [
        ("two bytes", write_datatrove, ()),
        ("four bytes", lambda p, r: write_datatrove(p, r, width=4), ()),
        ("no metadata", lambda p, r: write_datatrove(p, r, metadata=False), ()),
    ],
}
CASES = [
    pytest.param(name, write, options, id=f"{name}, {what}")
    for name, cases in WRITERS.items()
    for what, write, options in cases
]


def records_of(dataset: Dataset) -> dict[tuple[str, str, int], list[int]]:
    """(source, file, record) -> its tokens, joined from all segments."""
    pieces: dict[tuple[str, str, int], list[tuple[int, list[int]]]] = {}
    for source in dataset.source_names:
        samples_N = np.arange(int(dataset.shard_samples(source).sum()))
        tokens_NT, table = dataset.read_samples(source, samples_N), dataset.segments_of(source, samples_N)
        for row in np.flatnonzero(~table.padding_S).tolist():
            start, count = int(table.token_start_S[row]), int(table.num_tokens_S[row])
            ids = tokens_NT[table.sample_index_S[row], start : start + count].tolist()
            place = (source, dataset.file_path(int(table.file_S[row])), int(table.record_S[row]))
            pieces.setdefault(place, []).append((int(table.document_token_start_S[row]), ids))
    return {place: [i for _, ids in sorted(parts) for i in ids] for place, parts in pieces.items()}


def read_set(name: str, folder: Path) -> None:
    for file in IMPORTS[name].find(folder):
        for batch in IMPORTS[name].read(file, SetOptions()):
            batch.ids_T.sum()


def test_every_format_has_its_cases() -> None:
    assert set(WRITERS) == set(IMPORTS)


@pytest.mark.parametrize(("name", "write", "options"), CASES)
def test_what_was_written_is_read(
    name: str, write: Callable[[Path, Records], None], options: Sequence[str], tmp_path: Path
) -> None:
    write(tmp_path, RECORDS)
    form = IMPORTS[name]
    found, start = [], -1
    for file in form.find(tmp_path):
        record = 0
        for batch in form.read(file, SetOptions(dtype=options[1] if options else None)):
            assert batch.first_record == record
            stops = np.cumsum(batch.num_tokens_R).tolist()
            found += [batch.ids_T[stop - n : stop].tolist() for stop, n in zip(stops, batch.num_tokens_R, strict=True)]
            record += len(stops)
            for start in batch.start_R.tolist():
                assert start >= 0
    assert found == RECORDS
    assert start > 0


@pytest.mark.parametrize("name", WRITERS)
def test_a_set_becomes_a_dataset(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, write, options = WRITERS[name][0]
    write(tmp_path / "in/one", RECORDS)
    write(tmp_path / "in/two", RECORDS[::-1])
    arguments = [f"web={tmp_path}/in/one", f"web={tmp_path}/in/two", f"code={tmp_path}/in/two", "--format", name]
    arguments += ["--seq-len", "16", "--vocab-size", str(VOCABULARY), "--shard-bytes", "5000", *options]
    result = run(capsys, "import", *arguments, "--output", tmp_path / "out", "--workers", "2")
    dataset = open_dataset(tmp_path / "out")
    assert verify_dataset(dataset.path) == []
    found = records_of(dataset)
    for source, prefix, records in (
        ("web", "one/", RECORDS),
        ("web", "two/", RECORDS[::-1]),
        ("code", "", RECORDS[::-1]),
    ):
        mine = [(place, ids) for place, ids in found.items() if place[0] == source and place[1].startswith(prefix)]
        assert [ids for _, ids in sorted(mine)] == records
    for file in dataset.input_files():
        root = tmp_path / ("in" if file.source == "web" else "in/two")
        assert (root / file.path).stat().st_size == file.size_bytes
    row = result["sources"]["web"]
    assert row["records"] == row["trained"] == 2 * len(RECORDS)
    assert row["trained_tokens"] == 2 * sum(map(len, RECORDS))
    assert row["packing"]["fitting_cut"] == 0
    assert "Imported records" in (dataset.path / "report.html").read_text()
    alone = run(capsys, "import", *arguments, "--output", tmp_path / "again", "--workers", "1")
    assert alone["digest"] == result["digest"]
    assert run(capsys, "import", *arguments, "--output", tmp_path / "out") == result
    taken = run(capsys, "import", *arguments, "--seed", "3", "--output", tmp_path / "out", code=4)
    assert taken["error"]["code"] == "TR-OUTPUT-TAKEN"
    small = run(capsys, "import", *arguments, "--output", tmp_path / "x", "--vocab-size", "200", code=3)
    assert small["error"]["code"] == "TR-TOKEN-ID"
    assert "record" in small["error"]["place"]
    assert not (tmp_path / "x").exists()


def test_samples_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [RNG.integers(0, VOCABULARY, 16).tolist() for _ in range(20)]
    write_mds(tmp_path / "in", samples, "ndarray:uint16:16")
    arguments = [f"web={tmp_path}/in", "--format", "mds", "--seq-len", "16", "--vocab-size", str(VOCABULARY)]
    run(capsys, "import", *arguments, "--keep-samples", "--output", tmp_path / "out")
    dataset = open_dataset(tmp_path / "out")
    assert sorted(dataset.read_samples("web", np.arange(20)).tolist()) == sorted(samples)
    assert dataset.num_segments("web") == 20
    write_mds(tmp_path / "other", [*samples, samples[0][1:]], size_limit=10_000)
    arguments[0] = f"web={tmp_path}/other"
    wrong = run(capsys, "import", *arguments, "--keep-samples", "--output", tmp_path / "x", code=4)
    assert wrong["error"]["code"] == "TR-IMPORT-SAMPLE"
    assert "record 20" in wrong["error"]["place"]


def test_empty_records_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_datatrove(tmp_path / "in", [[], [5, 6], [], [7]])
    result = run(
        capsys, "import", f"web={tmp_path}/in", "--format", "datatrove", "--seq-len", "8", "--vocab-size", "9",
        "--output", tmp_path / "out",
    )  # fmt: skip
    row = result["sources"]["web"]
    assert (row["records"], row["empty"], row["trained"]) == (4, 2, 2)
    with pytest.raises(ConfigError) as caught:
        TextSource(open_dataset(tmp_path / "out"), {}).texts(0, [RecordPlace(0, 1)])
    assert caught.value.code == "TR-TEXT-TOKENS"
    assert records_of(open_dataset(tmp_path / "out")) == {("web", "a.ds", 1): [5, 6], ("web", "a.ds", 3): [7]}


def test_exported_sets_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ``export`` writes of an imported Dataset holds the same records."""
    write_datatrove(tmp_path / "in", RECORDS)
    common = ["--seq-len", "16", "--vocab-size", str(VOCABULARY)]
    run(capsys, "import", f"web={tmp_path}/in", "--format", "datatrove", "--output", tmp_path / "out", *common)
    assert (
        main(["export", str(tmp_path / "out"), "--format", "megatron", "--output", str(tmp_path / "meg"), "--quiet"])
        == 0
    )
    run(capsys, "import", f"web={tmp_path}/meg", "--format", "megatron", "--output", tmp_path / "back", *common)
    back = records_of(open_dataset(tmp_path / "back"))
    assert sorted(back.values()) == sorted(RECORDS)


def test_a_lossless_tokenizer_gives_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fsspec  # type: ignore[import-untyped]

    config = write_config(tmp_path / "built/build.yaml", make_corpus(tmp_path / "corpus"))
    built = run_build(prepare(config, (), read_only=False), Output(quiet=True))
    folder = tmp_path / "tokenizer"
    shutil.copytree(Path(built["output"]) / "tokenizer", folder)
    (folder / "notes").mkdir()  # not of the tokenizer, and so not of the Dataset
    (folder / "notes.txt").write_text("mine")
    tokenizer = load_tokenizer(folder)
    texts = ["one text", "naïve 東京 \x00", "x" * 200]
    ids = [[*tokenizer.encode(text)[0].tolist(), tokenizer.eos_id] for text in texts]
    write_megatron(tmp_path / "in/set", ids, "int32")
    run(
        capsys, "import", f"web={tmp_path}/in", "--format", "megatron", "--seq-len", "8", "--tokenizer", folder,
        "--output", tmp_path / "out",
    )  # fmt: skip
    repack(tmp_path / "out", tmp_path / "repacked", RepackOptions(32), 1, Output(quiet=True))
    for path in (tmp_path / "out", tmp_path / "repacked"):
        dataset = open_dataset(path)
        assert verify_dataset(path) == []
        kept = sorted(file.name for file in (path / "tokenizer").iterdir())
        assert kept == ["sentencepiece.model", "tokenizer.json"]
        samples_N = np.arange(int(dataset.shard_samples("web").sum()))
        tokens_NT, table = dataset.read_samples("web", samples_N), dataset.segments_of("web", samples_N)
        for row in np.flatnonzero(~table.padding_S).tolist():
            start, first = int(table.token_start_S[row]), int(table.byte_start_S[row])
            own_T = tokens_NT[table.sample_index_S[row], start : start + int(table.num_tokens_S[row])]
            text = texts[int(table.record_S[row])].encode()
            assert tokenizer.decode_bytes(own_T) == text[first : first + int(table.byte_count_S[row])]
        assert sum(int(count) for count in table.byte_count_S) == sum(len(text.encode()) for text in texts)
        assert dataset.manifest.tokenizer["digest"] == tokenizer.digest
        fsspec.filesystem("memory").put(str(path), f"/imported/{path.name}", recursive=True)
        there = look_into_dataset(f"memory://imported/{path.name}", StoreOptions(tmp_path / "cache"))
        for one in (dataset, there):  # by ranges nothing is fetched but the tokenizer, which must lie on a disk
            looked_up = TextSource(one, {}).texts(0, [RecordPlace(0, record) for record in range(len(texts))])
            assert [looked_up[RecordPlace(0, record)] for record in range(len(texts))] == texts


def test_an_id_that_no_tokenizer_knows_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A padded vocabulary: what the text look-up cannot decode is not passed over."""
    tokenizer = write_tokenizer(tmp_path / "tokenizer", "tiktoken", small_model("tiktoken"), small_policy("tiktoken"))
    known = tokenizer.encode("one")[0].tolist()
    write_megatron(tmp_path / "in/set", [[*known, tokenizer.vocab_size + 3, *known]], "int32")
    run(
        capsys, "import", f"web={tmp_path}/in", "--format", "megatron", "--seq-len", "8", "--tokenizer",
        tmp_path / "tokenizer", "--vocab-size", str(tokenizer.vocab_size + 64), "--output", tmp_path / "out",
    )  # fmt: skip
    place = RecordPlace(0, 0)
    assert TextSource(open_dataset(tmp_path / "out"), {}).texts(0, [place]) == {place: "one\ufffdone"}


# Damage: (format, what is done to the set, words of the error).
def _patch(name: str, place: int, data: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = next(folder.rglob(name))
        content = bytearray(path.read_bytes())
        at = place if place >= 0 else len(content) + place
        content[at : at + len(data)] = data
        path.write_bytes(content)

    return spoil


def _cut(name: str, count: int) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = next(folder.rglob(name))
        path.write_bytes(path.read_bytes()[:-count])

    return spoil


def _index(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change index.json, and the hash that it gives of a shard as the change left it."""

    def spoil(folder: Path) -> None:
        path = folder / "index.json"
        value = json.loads(path.read_bytes())
        change(value["shards"][0])
        path.write_text(json.dumps(value))

    return spoil


def _shard(place: int, data: bytes) -> Callable[[Path], None]:
    """Patch the first shard and leave no hash of it."""

    def spoil(folder: Path) -> None:
        _patch("shard.00000.mds", place, data)(folder)
        _index(lambda shard: shard["raw_data"].update(hashes={}))(folder)

    return spoil


HUGE = struct.pack("<Q", 1 << 61)
DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("mds", _patch("shard.00000.mds", -3, b"\xff"), "sha1"),
    ("mds", _cut("shard.00001.mds", 4), "bytes"),
    ("mds", _index(lambda s: s["raw_data"].update(basename="../shard.00000.mds")), "unsafe name"),
    ("mds", _index(lambda s: s["raw_data"].update(basename="/etc/passwd")), "unsafe name"),
    ("mds", _index(lambda s: s["raw_data"].update(bytes=1 << 40)), "impossible size"),
    ("mds", _index(lambda s: s["raw_data"]["hashes"].update(crc=1)), "unknown kind"),
    ("mds", _index(lambda s: s.update(samples=3_000_000_000)), "samples"),
    ("mds", _index(lambda s: s.pop("column_sizes")), "not an MDS index"),
    ("mds", _index(lambda s: s.update(column_sizes=[-8, None, None])), "impossible sizes"),
    ("mds", _shard(0, b"\xff\xff\xff\xff"), "samples"),
    ("mds", _shard(4, b"\x01\x00\x00\x00"), "offsets"),
    ("mds", _shard(8, b"\xff\xff\xff\x7f"), "offsets"),
    ("megatron", _patch("set.idx", 0, b"X"), "does not begin like"),
    ("megatron", _patch("set.idx", 17, b"\x07"), "dtype code 7"),
    ("megatron", _patch("set.idx", 17, b"\x63"), "dtype code 99"),
    ("megatron", _patch("set.idx", 18, HUGE), "bytes"),
    ("megatron", _patch("set.idx", 26, HUGE), "bytes"),
    ("megatron", _patch("set.idx", 34, b"\xff\xff\xff\x7f"), "does not lie in the file"),
    ("megatron", _patch("set.idx", 34, b"\xff\xff\xff\xff"), "does not lie in the file"),
    ("megatron", _patch("set.idx", -16, HUGE), "do not rise"),
    ("megatron", _patch("set.idx", -8, HUGE), "end at the last sequence"),
    ("megatron", _cut("set.idx", 1), "bytes"),
    ("megatron", _cut("set.bin", 2), "does not lie in the file"),
    ("megatron", _cut("set.bin", 1), "no whole number"),
    ("datatrove", _cut("a.ds", 2), "bytes"),
    ("datatrove", _cut("a.ds.index", 1), "an index of"),
    ("datatrove", _cut("a.ds.index", 8), "tokens"),
    ("datatrove", _patch("a.ds.index", 0, HUGE), "do not rise"),
    ("datatrove", _patch("a.ds.index", -8, HUGE), "tokens"),
    ("datatrove", _patch("a.ds.metadata", 0, b"|" * 18), "no metadata"),
]


@pytest.mark.parametrize(("name", "spoil", "words"), DAMAGE)
def test_damaged_and_hostile_sets_are_named(
    name: str, spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    _, write, _ = WRITERS[name][0]
    write(tmp_path, RECORDS)
    spoil(tmp_path)
    with pytest.raises(DamageError, match=words) as caught:
        read_set(name, tmp_path)
    assert str(tmp_path) in str(caught.value.place) or "unsafe" in words


def test_a_compressed_bomb_is_stopped_at_the_size_it_gives(tmp_path: Path) -> None:
    write_mds(tmp_path, RECORDS, compression="gz")
    path = tmp_path / "shard.00000.mds.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    path.write_bytes(packer.compress(bytes(1 << 27)) + packer.flush())
    _index(lambda shard: shard["zip_data"].update(bytes=path.stat().st_size, hashes={}))(tmp_path)
    with pytest.raises(DamageError, match="another size"):
        list(IMPORTS["mds"].read(IMPORTS["mds"].find(tmp_path)[0], SetOptions()))


@pytest.mark.parametrize(
    ("options", "code", "exit_code"),
    [
        (("--format", "mds", "--vocab-size", "300"), "TR-IMPORT-DTYPE", 2),
        (("--format", "mds", "--vocab-size", "300", "--column", "text"), "TR-IMPORT-COLUMN", 2),
        (("--format", "mds", "--vocab-size", "300", "--column", "zz"), "TR-IMPORT-COLUMN", 2),
        (("--format", "mds", "--vocab-size", "300", "--dtype", "int65"), "TR-CONFIG-NAME", 2),
        (("--format", "mds", "--vocab-size", "300", "--strategy", "x"), "TR-CONFIG-NAME", 2),
        (("--format", "mds"), "TR-IMPORT-VOCABULARY", 2),
        (("--format", "mds", "--vocab-size", "300", "--pad-id", "300"), "TR-IMPORT-VOCABULARY", 2),
        (("--format", "parquet", "--vocab-size", "300"), "TR-CONFIG-NAME", 2),
        (("--format", "megatron", "--vocab-size", "300"), "TR-IMPORT-NONE", 2),
        (("--format", "datatrove", "--vocab-size", "300"), "TR-IMPORT-NONE", 2),
    ],
)
def test_what_is_not_said_is_asked_for(
    options: Sequence[str], code: str, exit_code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mds(tmp_path / "in", RECORDS, "bytes", dtype="int64")
    arguments = (f"web={tmp_path}/in", *options, "--seq-len", "16", "--output", tmp_path / "out")
    error = run(capsys, "import", *arguments, code=exit_code)["error"]
    assert error["code"] == code
    assert error["expected"]


def test_pickled_columns_are_no_tokens_and_harmless_beside_them(tmp_path: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(tmp_path), columns={"p": "pkl", "tokens": "ndarray:uint16"}) as writer:
        writer.write({"p": {"a": 1}, "tokens": np.array([3, 4], np.uint16)})
    (file,) = IMPORTS["mds"].find(tmp_path)
    (batch,) = IMPORTS["mds"].read(file, SetOptions())
    assert batch.ids_T.tolist() == [3, 4]


def test_a_token_file_without_its_index_is_refused(tmp_path: Path) -> None:
    write_datatrove(tmp_path, RECORDS)
    (tmp_path / "a.ds.index").unlink()
    with pytest.raises(ConfigError) as caught:
        IMPORTS["datatrove"].find(tmp_path)
    assert caught.value.code == "TR-IMPORT-INDEX"


def test_offsets_beyond_four_gibibytes(tmp_path: Path) -> None:
    """Sparse files: the last record lies beyond 2^32 bytes and 2^31 tokens."""
    tokens = (1 << 31) + 5
    for suffix in (".ds", ".bin"):
        with open(tmp_path / f"big{suffix}", "wb") as file:
            file.truncate(2 * tokens)
            file.seek(2 * (tokens - 3))
            file.write(np.array([7, 8, 9], "<u2").tobytes())
    np.array([0, tokens - 3, tokens], "<u8").tofile(tmp_path / "big.ds.index")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 1, 2)
    arrays = (np.array([3], "<i4"), np.array([2 * (tokens - 3)], "<i8"), np.array([0, 1], "<i8"))
    (tmp_path / "big.idx").write_bytes(head + b"".join(array.tobytes() for array in arrays))
    (file,) = IMPORTS["megatron"].find(tmp_path)
    (batch,) = IMPORTS["megatron"].read(file, SetOptions())
    assert batch.ids_T.tolist() == [7, 8, 9]
    assert batch.start_R.tolist() == [2 * (tokens - 3)]
    (file,) = IMPORTS["datatrove"].find(tmp_path)
    *_, batch = IMPORTS["datatrove"].read(file, SetOptions())
    assert batch.ids_T[-3:].tolist() == [7, 8, 9]
    assert batch.start_R.tolist()[-1] == 2 * (tokens - 3)
