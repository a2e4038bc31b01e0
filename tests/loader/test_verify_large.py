"""Beyond 2 and 4 GiB, on sparse files: no .mds reaches 2 GiB, sizes and offsets are 64-bit where they must be."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import xxhash
from support.verified import make_splits

from loader.errors import ConfigError, DamageError
from loader.sealed import seal, unseal
from loader.shards import DatasetInfo, InputFile, ShardRecord, make_segments, write_dataset_manifest
from loader.shards.access import hash_regular, npy_bytes
from loader.shards.dataset import open_dataset
from loader.shards.documents import DocumentIndex, encode_documents
from loader.shards.layout import (
    DOCUMENT_DTYPE,
    DOCUMENT_INDEX_DTYPE,
    MAX_SHARD_BYTES,
    SEGMENT_DTYPE,
    ShardName,
    max_samples,
    mds_header,
    mds_size,
)
from loader.shards.reader import TokenFile
from loader.shards.segments import SegmentFile, encode_segments
from loader.shards.verify import verify_dataset, verify_file
from loader.shards.writer import ShardSpec, ShardWriter

SEQ_LEN = 1 << 20
VOCAB_SIZE = 60_000


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_splits(tmp_path_factory.mktemp("large"))


def skip_unless_sparse(path: Path) -> None:
    if path.stat().st_blocks * 512 > path.stat().st_size // 2:
        path.unlink()
        pytest.skip("the file system holds no sparse files")


def test_offsets_in_a_shard_header_fit_32_bits_and_no_shard_reaches_2_gib() -> None:
    for seq_len, vocab_size in ((1 << 20, 60_000), (2048, 200_000), (1, 10)):
        most = max_samples(seq_len, vocab_size)
        assert mds_size(most, seq_len, vocab_size) < MAX_SHARD_BYTES <= mds_size(most + 1, seq_len, vocab_size)
    writer = ShardWriter(Path("nowhere"), ShardSpec("web", 0, 1 << 24, 60_000))
    row = np.zeros((1, 1 << 24), np.uint16)
    huge = np.broadcast_to(row, (64, 1 << 24))
    with pytest.raises(ConfigError, match="TR-SHARD-SIZE"):
        writer.add_samples(huge, np.zeros(64, SEGMENT_DTYPE), np.ones(64, np.int64))


def test_a_sparse_shard_beyond_2_gib_is_refused_by_the_manifest_reader_and_the_verifier(
    splits: list[Path], tmp_path: Path
) -> None:
    """shards.npy that names such a file, with every hash right, is damage before the file is looked at."""
    copy = Path(shutil.copytree(splits[1], tmp_path / "copy"))
    manifest = unseal((copy / "manifest.json").read_bytes(), "manifest")
    rows_R = open_dataset(copy).shards_R.copy()
    num_samples = MAX_SHARD_BYTES // (manifest["seq_len"] * 2) + 1
    size_bytes = mds_size(num_samples, manifest["seq_len"], manifest["vocab_size"])
    assert size_bytes > MAX_SHARD_BYTES
    with open(copy / "web/shard.00000.mds", "r+b") as file:
        file.truncate(size_bytes)
    rows_R["num_samples"][0], rows_R["size_bytes"][0] = num_samples, size_bytes
    data = npy_bytes(rows_R)
    (copy / "shards.npy").write_bytes(data)
    manifest["files_hashed"]["shards.npy"] = {"size_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    manifest["sources"][0]["num_samples"] = int(rows_R["num_samples"].sum())
    (copy / "manifest.json").write_bytes(seal(manifest))
    with pytest.raises(DamageError, match="TR-DATASET-SHARDS"):
        open_dataset(copy)
    assert {finding.code for finding in verify_dataset(copy)} >= {"TR-DATASET-SHARDS"}
    assert "shards.npy" in {finding.file for finding in verify_file(copy, "web/shard.00000.mds")}
    (copy / "web/shard.00000.mds").unlink()


def test_a_token_file_grown_beyond_4_gib_is_another_size(splits: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(splits[1], tmp_path / "copy"))
    dataset = open_dataset(copy)
    for name in ("web/shard.00000.mds", "web/shard.00000.segments", "web/shard.00000.docs", "documents.npy"):
        size_bytes = (copy / name).stat().st_size
        with open(copy / name, "r+b") as file:
            file.truncate(size_bytes + (1 << 32))  # the same low 32 bits of its size
        assert {finding.code for finding in verify_file(copy, name)} == {"TR-FILE-SIZE"}
        with open(copy / name, "r+b") as file:
            file.truncate(size_bytes)
    files = dataset.shard_files(0)
    with open(files.mds, "r+b") as file:
        file.truncate(files.size_bytes + (1 << 32))
    with pytest.raises(DamageError, match="TR-FILE-SIZE"):
        TokenFile(files)
    files.mds.unlink()


def make_largest(folder: Path, hashed: bool) -> int:
    """A Dataset of one shard as large as can be, all zeros but its last token; returns its number of samples."""
    most = max_samples(SEQ_LEN, VOCAB_SIZE)
    place = folder / "web"
    place.mkdir(parents=True)
    name = ShardName(0)
    with open(place / name.mds, "wb") as file:
        file.write(mds_header(most, SEQ_LEN, VOCAB_SIZE))
        file.truncate(mds_size(most, SEQ_LEN, VOCAB_SIZE))
        file.seek(-2, 2)
        file.write(b"\x34\x12")
    skip_unless_sparse(place / name.mds)
    hash_N = np.full(most, xxhash.xxh3_64_intdigest(bytes(2 * SEQ_LEN)), np.uint64)
    hash_N[-1] = xxhash.xxh3_64_intdigest(bytes(2 * SEQ_LEN - 2) + b"\x34\x12")
    starts_N = np.arange(most, dtype=np.int64) * SEQ_LEN % (1 << 32)
    rows_S = make_segments(np.zeros(most, np.int64), 0, starts_N, 0, 1)
    table = SegmentFile(hash_N, np.arange(most + 1, dtype=np.uint32), rows_S)
    (place / name.segments).write_bytes(b"".join(encode_segments(table, SEQ_LEN, 0)))
    (place / name.docs).write_bytes(b"".join(encode_documents(np.array([(7, 0, 0, 0)], DOCUMENT_DTYPE), 0)))
    size_bytes = (place / name.mds).stat().st_size
    hashes = [hash_regular(place / one)[1] for one in (name.segments, name.docs)]
    mds_hash = hash_regular(place / name.mds)[1] if hashed else "0" * 32
    record = ShardRecord("web", 0, most, most, 1, most * SEQ_LEN, 1, size_bytes, mds_hash, *hashes)
    info = DatasetInfo(("web",), SEQ_LEN, VOCAB_SIZE, (record,), (InputFile("web", "a"),), {}, 0, "0")
    write_dataset_manifest(folder, info)
    return most


def test_the_largest_shard_there_can_be_is_read_at_its_end(tmp_path: Path) -> None:
    most = make_largest(tmp_path, hashed=False)
    dataset = open_dataset(tmp_path)
    assert 0 < MAX_SHARD_BYTES - int(dataset.shards_R["size_bytes"][0]) <= 2 * SEQ_LEN + 4
    tokens_NT = dataset.read_samples("web", [most - 1, 0])
    assert (int(tokens_NT[0, -1]), int(tokens_NT[0, :-1].max()), int(tokens_NT[1].max())) == (0x1234, 0, 0)
    (tmp_path / "web" / ShardName(0).mds).unlink()


@pytest.mark.slow
def test_the_largest_shard_there_can_be_is_verified(tmp_path: Path) -> None:
    most = make_largest(tmp_path, hashed=True)
    assert verify_dataset(tmp_path) == []
    path = tmp_path / "web" / ShardName(0).mds
    with open(path, "r+b") as file:
        file.seek(-5, 2)
        file.write(b"\1")
    assert [(finding.file, finding.place) for finding in verify_dataset(tmp_path)] == [
        ("web/shard.00000.mds", f"sample {most - 1}")
    ]
    path.unlink()


@pytest.mark.slow
def test_a_document_index_beyond_4_gib_finds_its_last_documents(tmp_path: Path) -> None:
    count = (1 << 28) + 300
    path = tmp_path / "documents.npy"
    small = npy_bytes(np.zeros(0, DOCUMENT_INDEX_DTYPE))
    data = small.replace(b"(0,)", b"(%d,)" % count)[:-1].rstrip(b" ").ljust(len(small) - 1, b" ") + b"\n"
    last = np.zeros(3, DOCUMENT_INDEX_DTYPE)
    last["id"], last["shard"], last["row"] = [5, 5, 2**64 - 1], [1, 2, 3], [10, 11, 12]
    with open(path, "wb") as file:
        file.write(data)
        file.truncate(len(data) + count * 16)
        file.seek(-48, 2)
        file.write(last.tobytes())
    skip_unless_sparse(path)
    size_bytes, digest = hash_regular(path)
    assert size_bytes > 1 << 32
    index = DocumentIndex(path, size_bytes, digest)
    assert index.num_rows == count
    assert index.find(5).tolist() == [(5, 1, 10), (5, 2, 11)]
    assert index.find(2**64 - 1).tolist() == [(2**64 - 1, 3, 12)]
    assert len(index.find(6)) == 0
    path.unlink()
