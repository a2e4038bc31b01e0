"""Every flipped bit, cut, missing, foreign or forged file of a Dataset is found, by verifying and by reading."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.errors import ConfigError, DamageError, RefusedError, TokenreelError
from loader.sealed import seal, unseal
from loader.shards.access import npy_bytes
from loader.shards.dataset import Dataset, open_dataset
from loader.shards.layout import DOCUMENT_INDEX_DTYPE, HEADER_DTYPE, SHARD_DTYPE
from loader.shards.verify import Finding, verify_dataset

EXEMPT = "job.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 9, "code": 4}, seq_len=32, samples_per_shard=24, max_words=12)
    dataset = make_dataset(tmp_path_factory.mktemp("damage"), spec)
    path = dataset.path
    (path / "tokenizer").mkdir()
    (path / "tokenizer" / "model.bin").write_bytes(b"model" * 20)
    (path / "removed.parquet").write_bytes(b"PAR1 some rows PAR1")
    (path / "report.html").write_bytes(b"<html></html>")
    value = unseal((path / "manifest.json").read_bytes(), "manifest")
    for name in ("tokenizer/model.bin", "removed.parquet", "report.html"):
        value["files_hashed"][name] = record_of(path / name)
    (path / "manifest.json").write_bytes(seal(value))
    return dataset


@pytest.fixture
def copy(made: MadeDataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


def record_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"size_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}


def files_of(path: Path) -> list[str]:
    return sorted(os.path.relpath(p, path) for p in path.rglob("*") if p.is_file())


def read_everything(path: Path, skip: frozenset[str] = frozenset()) -> None:
    dataset = open_dataset(path)
    for source in dataset.source_names:
        samples = np.arange(dataset.shard_samples(source).sum())
        dataset.read_samples(source, samples)
        for document in np.unique(dataset.segments_of(source, samples).document_id_S).tolist():
            dataset.samples_of_document(document)
    dataset.input_files()
    for name in dataset.manifest.files_hashed:
        dataset.read_file(name)


def damaged(path: Path) -> list[Finding]:
    return [finding for finding in verify_dataset(path) if finding.severity == "damage"]


def check_found(path: Path, name: str, what: str) -> None:
    findings = damaged(path)
    assert any(finding.file == name for finding in findings), (what, findings)
    with pytest.raises(DamageError) as caught:
        read_everything(path)
    assert name in str(caught.value), (what, str(caught.value))


def offsets_to_flip(name: str, size_bytes: int, rng: random.Random) -> list[int]:
    """The fixed header of one table of each kind byte by byte, the start of others, and bytes drawn at random."""
    header = 64 if name.startswith("web/") and Path(name).suffix in (".segments", ".docs") else 4
    chosen = [*range(min(header, size_bytes)), size_bytes - 1]
    return chosen + [rng.randrange(size_bytes) for _ in range(8)]


def flip_and_check(path: Path, name: str, positions: list[tuple[int, int]]) -> None:
    file = path / name
    data = file.read_bytes()
    for offset, bit in positions:
        changed = bytearray(data)
        changed[offset] ^= 1 << bit
        file.write_bytes(changed)
        check_found(path, name, f"{name} byte {offset} bit {bit}")
    file.write_bytes(data)


def test_an_untouched_dataset_is_intact(copy: Path) -> None:
    assert verify_dataset(copy) == []
    read_everything(copy)


def test_any_flipped_bit_is_found_and_the_file_named(copy: Path) -> None:
    rng = random.Random(4)
    for name in files_of(copy):
        if name == EXEMPT:
            continue
        size_bytes = (copy / name).stat().st_size
        positions = [(offset, rng.randrange(8)) for offset in offsets_to_flip(name, size_bytes, rng)]
        flip_and_check(copy, name, positions)
    assert verify_dataset(copy) == []


@pytest.mark.slow
def test_bits_spread_over_the_whole_of_every_file_are_found(copy: Path) -> None:
    for name in files_of(copy):
        if name == EXEMPT:
            continue
        size_bytes = (copy / name).stat().st_size
        step = max(1, size_bytes * 8 // 300)
        flip_and_check(copy, name, [divmod(bit, 8) for bit in range(0, size_bytes * 8, step)])


def test_job_json_alone_is_exempt(copy: Path) -> None:
    (copy / EXEMPT).write_bytes(b"anything")
    assert verify_dataset(copy) == []
    (copy / EXEMPT).unlink()
    assert verify_dataset(copy) == []


def test_truncated_extended_and_missing_files(copy: Path) -> None:
    for name in files_of(copy):
        if name == EXEMPT:
            continue
        file = copy / name
        data = file.read_bytes()
        for cut in {0, 1, len(data) // 2, len(data) - 1}:
            file.write_bytes(data[:cut])
            check_found(copy, name, f"{name} cut to {cut}")
        file.write_bytes(data + b"\0")
        check_found(copy, name, f"{name} and a byte more")
        file.unlink()
        if name == "manifest.json":
            with pytest.raises(ConfigError, match="TR-DATASET-NONE"):
                verify_dataset(copy)
        else:
            check_found(copy, name, f"{name} missing")
        file.write_bytes(data)
    assert verify_dataset(copy) == []


def test_links_folders_and_pipes_in_the_place_of_files(copy: Path, tmp_path: Path) -> None:
    for name in ("web/shard.00000.mds", "code/shard.00000.docs", "documents.npy", "tokenizer/model.bin", "shards.npy"):
        file = copy / name
        moved = tmp_path / "moved"
        for place in (
            lambda: file.symlink_to(moved),  # noqa: B023
            file.mkdir,
            lambda: os.mkfifo(file),  # noqa: B023
        ):
            file.rename(moved)
            place()
            check_found(copy, name, name)
            file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
            moved.rename(file)
    (copy / "web").rename(tmp_path / "web")
    (copy / "web").symlink_to(tmp_path / "web")
    assert any(finding.file.startswith("web") for finding in damaged(copy))
    with pytest.raises(DamageError, match="not a folder"):
        open_dataset(copy)


def test_files_that_nothing_names_are_listed_and_are_no_damage(copy: Path, tmp_path: Path) -> None:
    foreign = ["notes.txt", "web/shard.00009.mds", "web/shard.0.mds", ".tmp-1-shards.npy", "index/bands.npy", "code/x"]
    for name in foreign:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"x")
    (copy / "elsewhere").symlink_to(tmp_path)
    findings = verify_dataset(copy)
    assert {finding.severity for finding in findings} == {"unnamed"}
    assert sorted(finding.file for finding in findings) == sorted([*foreign, "elsewhere"])


def test_a_swapped_shard_is_found(copy: Path) -> None:
    one, other = copy / "web" / "shard.00000.segments", copy / "code" / "shard.00000.segments"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)
    assert {finding.file for finding in damaged(copy)} >= {"web/shard.00000.segments", "code/shard.00000.segments"}
    with pytest.raises(DamageError):
        open_dataset(copy).segments_of("web", [0])


def test_a_bad_sample_is_named_and_its_neighbours_are_served(copy: Path, made: MadeDataset) -> None:
    file = copy / "web" / "shard.00000.mds"
    data = bytearray(file.read_bytes())
    sample_bytes = made.spec.seq_len * 2
    data[4096 + 3 * sample_bytes + 4] ^= 1
    file.write_bytes(data)
    dataset = open_dataset(copy)
    with pytest.raises(DamageError, match=r"sample 3 of the shard(?s:.)*shard\.00000\.mds"):
        dataset.read_samples("web", [2, 3, 4])
    assert dataset.read_samples("web", [2, 4]).tolist() == [made.samples["web"][n][0] for n in (2, 4)]
    assert [finding.place for finding in damaged(copy)] == ["sample 3"]


def test_damage_after_opening_raises_instead_of_killing_the_process(copy: Path) -> None:
    """A mapped file that is truncated kills whoever touches it (SIGBUS), so this runs in a process of its own."""
    script = f"""
import os, sys
from pathlib import Path
from loader.errors import DamageError
from loader.shards import open_dataset
dataset = open_dataset(Path({str(copy)!r}))
dataset.read_samples("web", [0, 1])
document = int(dataset.segments_of("web", [0]).document_id_S[0])
dataset.find_document(document)
os.truncate(Path({str(copy)!r}) / "web" / "shard.00000.mds", 4096)
os.truncate(Path({str(copy)!r}) / "documents.npy", 100)
caught = 0
for read in (lambda: dataset.read_samples("web", [1]), lambda: dataset.find_document(document)):
    try:
        read()
    except DamageError as error:
        caught += "TR-FILE-SIZE" in str(error)
sys.exit(0 if caught == 2 else 1)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, timeout=60, check=False)
    assert done.returncode == 0


def forge_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and give it a right self-hash: what somebody does who means harm."""
    value = unseal((path / "manifest.json").read_bytes(), "manifest")
    change(value)
    (path / "manifest.json").write_bytes(seal(value))


def forge_file(path: Path, name: str, data: bytes) -> None:
    (path / name).write_bytes(data)
    forge_manifest(path, lambda value: value["files_hashed"].update({name: record_of(path / name)}))


HUGE = [2**63, 2**62, 2**40, -1, 1e300, None, "1", True, [], {}]


def check_refused(path: Path, what: str) -> None:
    with pytest.raises(TokenreelError) as caught:
        read_everything(path)
    assert isinstance(caught.value, DamageError | RefusedError), what
    try:
        assert damaged(path), what
    except RefusedError:
        pass


@pytest.mark.parametrize(
    "key", ["seq_len", "vocab_size", "max_segments", "version", "format", "dtype", "salt", "sources", "files_hashed"]
)
def test_a_forged_manifest_is_damage_not_a_crash(copy: Path, key: str) -> None:
    original = unseal((copy / "manifest.json").read_bytes(), "manifest")
    for value in HUGE:
        if key == "salt" and value in (2**63, 2**62, 2**40):
            continue
        forge_manifest(copy, lambda manifest: manifest.update({**original, key: value}))  # noqa: B023
        check_refused(copy, f"{key} = {value!r}")


@pytest.mark.parametrize(
    "key",
    ["num_shards", "num_samples", "num_segments", "num_tokens", "num_documents", "share", "file_start", "file_stop"],
)
def test_forged_counts_of_a_source(copy: Path, key: str) -> None:
    original = unseal((copy / "manifest.json").read_bytes(), "manifest")
    for value in HUGE:
        sources = [dict(source) for source in original["sources"]]
        sources[0][key] = value
        forge_manifest(copy, lambda manifest: manifest.update({**original, "sources": sources}))  # noqa: B023
        findings = damaged(copy)
        assert findings, f"{key} = {value!r}"


@pytest.mark.parametrize("name", ["..", "a/b", "/etc", "", ".hidden", "a\\b", "a\0b", "tokenizer", "x" * 300, 5])
def test_forged_source_names(copy: Path, name: object) -> None:
    def rename(manifest: dict[str, Any]) -> None:
        manifest["sources"][0]["name"] = name

    forge_manifest(copy, rename)
    check_refused(copy, repr(name))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", "tokenizer/", ""])
def test_forged_file_names(copy: Path, name: str) -> None:
    forge_manifest(
        copy, lambda manifest: manifest["files_hashed"].update({name: manifest["files_hashed"]["shards.npy"]})
    )
    check_refused(copy, name)


def test_forged_input_files_and_missing_entries(copy: Path) -> None:
    text = (copy / "files.txt").read_bytes()
    for line in (b"../../etc/passwd\t-\t-\n", b"/etc/passwd\t-\t-\n", b"one column\n", b"a\tx\t-\n", b"\xff\t-\t-\n"):
        forge_file(copy, "files.txt", line + text[text.index(b"\n") + 1 :])
        check_refused(copy, repr(line))
    forge_file(copy, "files.txt", text)
    for name in ("shards.npy", "documents.npy", "files.txt", "web/index.json"):
        original = unseal((copy / "manifest.json").read_bytes(), "manifest")
        forge_manifest(copy, lambda manifest: manifest["files_hashed"].pop(name))  # noqa: B023
        check_refused(copy, name)
        (copy / "manifest.json").write_bytes(seal(original))


@pytest.mark.parametrize("field", [name for name in SHARD_DTYPE.names or () if not name.endswith("_hash")])
def test_forged_shard_rows(copy: Path, field: str) -> None:
    rows_R = open_dataset(copy).shards_R
    most = np.iinfo(SHARD_DTYPE[field]).max
    for value in (most, most // 2 + 1, 0):
        changed_R = rows_R.copy()
        changed_R[field][0] = value
        if changed_R[field][0] == rows_R[field][0]:
            continue
        forge_file(copy, "shards.npy", npy_bytes(changed_R))
        check_refused(copy, f"{field} = {value}")


def test_forged_npy_headers(copy: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.system, (f"touch {copy}/exploded",))

    real = (copy / "shards.npy").read_bytes()
    for description in (
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (4611686018427387904,), }",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (), }",
        "(" * 3000,
        "__import__('os').system('true')",
        "[" * 50,
    ):
        header = description.encode().ljust(118, b" ")[:60000] + b"\n"
        forged = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pickle.dumps(Bomb())
        for name in ("shards.npy", "documents.npy"):
            before = (copy / name).read_bytes()
            forge_file(copy, name, forged)
            check_refused(copy, description[:60])
            forge_file(copy, name, before)
    assert not (copy / "exploded").exists()
    assert (copy / "shards.npy").read_bytes() == real


def forge_table(path: Path, name: str, field: str, data: bytes) -> None:
    """A side table with right hashes everywhere: in its own header, in shards.npy, in the manifest."""
    body = bytearray(data)
    body[HEADER_DTYPE.itemsize - 8 : HEADER_DTYPE.itemsize] = bytes(8)
    body[HEADER_DTYPE.itemsize - 8 : HEADER_DTYPE.itemsize] = xxhash.xxh3_64_intdigest(bytes(body)).to_bytes(
        8, "little"
    )
    (path / name).write_bytes(body)
    rows_R = open_dataset(path).shards_R.copy()
    rows_R[field][0] = np.frombuffer(xxhash.xxh3_128_digest(bytes(body)), np.uint8)
    forge_file(path, "shards.npy", npy_bytes(rows_R))


def test_forged_segment_tables(copy: Path) -> None:
    name = "web/shard.00000.segments"
    data = (copy / name).read_bytes()
    num_samples = int(open_dataset(copy).shards_R["num_samples"][0])
    offsets, rows = 64 + 8 * num_samples, 64 + 12 * num_samples + 4
    for place, what in (
        (offsets, "first offset"),
        (offsets + 4, "second offset"),
        (offsets + 4 * num_samples, "last offset"),
        (rows, "token start"),
        (rows + 24, "next token start"),
        (rows + 4, "document row"),
        (16, "number of samples"),
        (24, "number of rows"),
        (8, "version"),
    ):
        changed = bytearray(data)
        changed[place : place + 4] = (0xFFFFFFF0).to_bytes(4, "little")
        forge_table(copy, name, "segments_hash", bytes(changed))
        check_refused(copy, what)
    forge_table(copy, name, "segments_hash", data)
    assert damaged(copy) == []


def test_forged_documents(copy: Path) -> None:
    name = "web/shard.00000.docs"
    data = (copy / name).read_bytes()
    for place, what in ((64 + 24, "file"), (64, "id")):
        changed = bytearray(data)
        changed[place : place + 4] = (0xFFFFFFF0).to_bytes(4, "little")
        forge_table(copy, name, "docs_hash", bytes(changed))
        assert damaged(copy), what
    forge_table(copy, name, "docs_hash", data)
    rows_M = np.frombuffer((copy / "documents.npy").read_bytes()[128:], DOCUMENT_INDEX_DTYPE).copy()
    for field, value in (("id", 3), ("shard", 2**32 - 1), ("row", 2**32 - 1), ("row", 1)):
        changed_M = rows_M.copy()
        changed_M[field][-1] = value
        forge_file(copy, "documents.npy", npy_bytes(changed_M))
        assert damaged(copy), field
        with pytest.raises(DamageError):
            look_up_all(open_dataset(copy), changed_M["id"].tolist())
    forge_file(copy, "documents.npy", npy_bytes(rows_M[::-1].copy()))
    check_refused(copy, "unsorted")


def look_up_all(dataset: Dataset, documents: list[int]) -> None:
    for document in documents:
        dataset.samples_of_document(document)


def test_a_later_version_is_refused_not_called_damage(copy: Path) -> None:
    forge_manifest(copy, lambda manifest: manifest.update(version=2))
    with pytest.raises(RefusedError, match="TR-DATASET-VERSION"):
        open_dataset(copy)


def test_deeply_nested_and_enormous_json(copy: Path) -> None:
    for data in (b"[" * 100_000, b'{"a":' * 5000, b'{"salt":' + b"9" * 5000 + b"}", b"", b"\xff\xfe", b"null", b"[]"):
        (copy / "manifest.json").write_bytes(data)
        with pytest.raises(DamageError):
            open_dataset(copy)
    nested: Any = {}
    for _ in range(700):
        nested = {"a": nested}
    text = json.dumps({"config": nested}).encode()
    (copy / "manifest.json").write_bytes(text)
    with pytest.raises(DamageError):
        open_dataset(copy)
