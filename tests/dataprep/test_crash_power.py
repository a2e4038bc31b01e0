"""The disk that forgets, on its own: only what was synced survives for sure, the rest as it happens."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from support.syscalls import SUPPORTED, Action, Call, trace
from support.syscalls_power import Disk

from loader.files import make_folder, remove_folder, remove_stale_temporaries, write_atomic

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="system calls are traced on Linux x86-64 alone")


class Watching:
    """A disk that follows calls and stops none."""

    def __init__(self, root: Path) -> None:
        self.disk = Disk(root)

    def before(self, call: Call) -> Action:
        self.disk.before(call)
        return None

    def after(self, call: Call, result: int) -> None:
        self.disk.after(call, result)


def survivors(root: Path, mode: str, body: Callable[[], object], seed: int = 0) -> dict[str, bytes]:
    """What is left of ``root`` when the power goes right after ``body``."""
    watching = Watching(root)
    assert trace(lambda: int(body() is NotImplemented), str(root), watching) == 0
    watching.disk.lose_power(random.Random(seed), mode)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def synced(path: Path, data: bytes, *, folder: bool) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if folder:
        descriptor = os.open(path.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def test_what_is_not_synced_may_be_lost(tmp_path: Path) -> None:
    """The model itself: content without fsync, names without fsync of their folder, folders without that of theirs."""
    root = tmp_path / "disk"
    root.mkdir()
    (root / "old").write_bytes(b"old content")
    (root / "gone").write_bytes(b"removed")

    def body() -> None:
        synced(root / "kept", b"synced", folder=True)
        (root / "old").write_bytes(b"new")
        synced(root / "nameless", b"synced", folder=False)
        (root / "gone").unlink()
        (root / "folder").mkdir()
        synced(root / "folder" / "inside", b"synced", folder=True)

    assert survivors(root, "least", body) == {"kept": b"synced", "old": b"old content", "gone": b"removed"}


@pytest.mark.slow
def test_anything_else_may_survive(tmp_path: Path) -> None:
    seen = set()
    for seed in range(60):
        root = tmp_path / str(seed)
        root.mkdir()

        def body(root: Path = root) -> None:
            (root / "a").write_bytes(b"1234")
            (root / "a").rename(root / "b")

        seen |= set(survivors(root, "some", body, seed).items())
    assert {("a", b""), ("b", b""), ("b", b"\0\0\0\0"), ("b", b"1234")} <= seen


def test_durable_files_are(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    for mode in ("least", "order", "some"):
        survived = survivors(root, mode, lambda: write_atomic(root / "deep" / "er" / "file", b"whole"))
        assert survived == {"deep/er/file": b"whole"}
        assert survivors(root, mode, lambda: make_folder(root / "deep" / "new")) == survived
        assert (root / "deep" / "new").is_dir()
        survivors(root, mode, lambda: remove_folder(root / "deep"))
        assert not (root / "deep").exists()
        remove_stale_temporaries(root)
        assert list(root.iterdir()) == []
