"""Files beyond one hashed block: who saves, verifies, uploads and fetches them means the same by their hash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.object_store import FaultProxy, S3Server
from support.remote_datasets import QUICK, proxy

from loader import block_hashes
from loader.block_hashes import BlockDigest, hash_block, hash_blocks, num_blocks
from loader.cli import main
from loader.errors import DamageError
from loader.run_folder import RunPaths, create_run, read_identity
from loader.run_verify import verify_run
from train.checkpoint import Checkpoint, CheckpointFacts, open_checkpoint, save_checkpoint, verify_checkpoint
from train.checkpoint_config import CheckpointConfig
from train.remote_checkpoints import fetch_newest
from train.upload import Uploader

__all__ = ["proxy"]
_DATA = "__0_0.distcp"


def run_in(folder: Path) -> RunPaths:
    paths = RunPaths(folder)
    create_run(paths, {"run_id": "abcd", "datasets": []}, {"version": 1})
    return paths


def save(paths: RunPaths, num_values: int) -> Checkpoint:
    values = torch.randn(num_values, generator=torch.Generator().manual_seed(7))
    return save_checkpoint(paths.checkpoints, {"model.weight": values}, CheckpointFacts(1, 0, 0, 1, {}, {}, {}))


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def test_the_verb_verifies_a_checkpoint_of_more_than_one_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """70 MB as every real model writes them: intact, then a bit of the first, the second, and the last byte."""
    paths = run_in(tmp_path / "run")
    found = save(paths, 17_500_000)
    size_bytes, digest = found.files[_DATA]
    assert size_bytes > block_hashes.BLOCK_BYTES == 64 << 20
    assert len(digest) == 64
    verify_checkpoint(found)
    assert main(["verify", str(paths.root)]) == 0
    assert "intact" in capsys.readouterr().out
    for offset in (0, block_hashes.BLOCK_BYTES + 1000, size_bytes - 1):
        flip(found.path / _DATA, offset)
        assert main(["verify", str(paths.root)]) == DamageError.exit_code
        out = capsys.readouterr().out
        assert "TR-FILE-HASH" in out
        assert f"step_000001/{_DATA}" in out
        flip(found.path / _DATA, offset)
    assert verify_run(paths.root) == []


@pytest.mark.parametrize("size_bytes", [0, 1, 1023, 1024, 1025, 2048, 5000])
def test_every_way_to_the_hash_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    monkeypatch.setattr(block_hashes, "BLOCK_BYTES", 1024)
    path, data = tmp_path / "file", bytes(i * i % 251 for i in range(size_bytes))
    path.write_bytes(data)
    by_block = "".join(hash_block(path, number) for number in range(num_blocks(size_bytes)))
    assert hash_blocks(path) == (size_bytes, by_block)
    for step in (1, 100, 1024, 3000):
        pieces = [data[start : start + step] for start in range(0, size_bytes, step)]
        assert BlockDigest(pieces).hexdigest() == by_block


def test_uploaded_and_fetched_in_several_blocks(
    s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's files and the run's own record (the ledger of a long run) are each longer than a block."""
    monkeypatch.setattr(block_hashes, "BLOCK_BYTES", 1024)
    paths, said = run_in(tmp_path / "run"), list[str]()
    paths.events.write_bytes(b"")
    paths.skips.mkdir()
    (paths.skips / "note").write_bytes(b"x" * 3000)
    found = save(paths, 2000)
    assert len(found.files[_DATA][1]) > 32 * 7
    s3_server.put("blocks", {"made": b""})
    uploader = Uploader("s3://blocks/runs", paths, CheckpointConfig(upload="s3://blocks/runs"), said.append, QUICK)
    uploader.begin(found)
    uploader.finish(None)
    assert ([event["kind"] for event in uploader.take_events()], said) == (["checkpoint_uploaded"], [])
    target = RunPaths(tmp_path / "elsewhere")
    back = fetch_newest("s3://blocks/runs", target, said.append, QUICK)
    assert back is not None
    assert open_checkpoint(back).files == found.files
    assert read_identity(target) == read_identity(paths)
    assert (target.skips / "note").read_bytes() == b"x" * 3000
    (target.skips / "note").unlink()
    assert verify_run(target.root) == []
