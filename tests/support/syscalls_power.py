"""A disk that forgets: what may be left of a folder when the power goes, from the calls that were made on it.

Only what was synced survives for sure. Of a file that is the content of its last ``fsync``; of what came later nothing,
its beginning, all of it, or zeros of the right length may be there. Of a folder it is the entries at its own last
``fsync``; each later change of an entry (create, link, rename, unlink) is there or not on its own, in any order between
folders, except that changes of one name or of one file keep their order and that a rename is one change. So a synced
file in a folder whose own entry was not synced is gone.

Harsher than ext4, xfs or btrfs are (there a file's ``fsync`` keeps its first name, and changes of entries keep their
order); the model of Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, with renames that are atomic.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from .syscalls import Call

__all__ = ["Disk"]

_DEEDS = {"write", "truncate", "fallocate", "mmap"}


@dataclass(frozen=True)
class _Change:
    """A change of entries (folder, name): taken away, and set to a file."""

    removed: tuple[tuple[int, str], ...]
    added: tuple[tuple[int, str, int], ...]

    @property
    def touched(self) -> set[object]:
        return {*self.removed, *((folder, name) for folder, name, _ in self.added), *(ino for _, _, ino in self.added)}


@dataclass
class Disk:
    """Follows the calls below ``root``; see the module.

    Attributes:
        entries: durable ones, folder -> name -> file, by inode number.
        dirty: durable content of files that changed since.
        pending: changes of entries that are not durable.
    """

    root: Path
    entries: dict[int, dict[str, int]] = field(default_factory=dict)
    dirty: dict[int, bytes] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)
    _held: dict[int, int] = field(default_factory=dict)
    _coming: dict[int, tuple[bool, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder, names, files in os.walk(self.root):
            inside = {name: os.lstat(os.path.join(folder, name)).st_ino for name in (*names, *files)}
            self.entries[os.stat(folder).st_ino] = inside

    def close(self) -> None:
        """Let go of removed files."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def before(self, call: Call) -> None:
        """Keep what the call would destroy."""
        if call.name in _DEEDS:
            self._soil(f"/proc/{call.pid}/fd/{call.fd}" if call.fd >= 0 else call.path)
        elif call.name == "open":
            exists = os.path.exists(call.path)
            self._coming[call.pid] = (not exists, 0)
            if exists and call.flags & os.O_TRUNC:
                self._soil(call.path)
        elif call.name in ("unlink", "rmdir"):
            self._coming[call.pid] = (False, self._hold(call.path))
        elif call.name == "rename":
            self._hold(call.target)
            self._coming[call.pid] = (False, os.lstat(call.path).st_ino if os.path.lexists(call.path) else 0)

    def after(self, call: Call, result: int) -> None:
        """Note what it did."""
        created, ino = self._coming.pop(call.pid, (False, 0))
        if result < 0:
            return
        if call.name == "fsync":
            self._sync(f"/proc/{call.pid}/fd/{call.fd}")
        elif call.name == "open" and created:
            ino = self._add(call.path)
            self.dirty[ino] = b""
        elif call.name == "mkdir":
            self.entries[self._add(call.path)] = {}
        elif call.name in ("unlink", "rmdir"):
            self.pending.append(_Change((self._place(call.path),), ()))
        elif call.name == "rename":
            self.pending.append(_Change((self._place(call.path),), ((*self._place(call.target), ino),)))
        elif call.name == "link":
            self._add(call.target)

    def lose_power(self, rng: random.Random, mode: str) -> None:
        """Make the folder what it may be after a loss of power now; no process may be using it.

        ``mode``: ``least`` nothing survives that need not; ``order`` a random beginning of the changes of entries, any
        of the contents; ``some`` any of either.
        """
        survivors = self._survivors(rng, mode)
        entries = {folder: dict(names) for folder, names in self.entries.items()}
        for change in survivors:
            _apply(entries, change)
        fresh = self.root.with_name(self.root.name + ".after")
        paths = {}
        for folder, _, files in os.walk(self.root):
            for name in files:
                path = os.path.join(folder, name)
                paths[os.lstat(path).st_ino] = path
        fresh.mkdir()
        self._build(fresh, entries, os.stat(self.root).st_ino, (rng, mode, paths))
        shutil.rmtree(self.root)
        fresh.rename(self.root)
        self.close()

    def _survivors(self, rng: random.Random, mode: str) -> list[_Change]:
        if mode == "least":
            return []
        if mode == "order":
            return self.pending[: rng.randrange(len(self.pending) + 1)]
        chosen, lost = [], set[object]()
        share = rng.random()
        for change in self.pending:
            if change.touched & lost or rng.random() > share:
                lost |= change.touched
            else:
                chosen.append(change)
        return chosen

    def _build(
        self,
        target: Path,
        entries: dict[int, dict[str, int]],
        folder: int,
        how: tuple[random.Random, str, dict[int, str]],
    ) -> None:
        rng, mode, paths = how
        for name, ino in sorted(entries[folder].items()):
            place = target / name
            if ino in entries:
                place.mkdir()
                self._build(place, entries, ino, how)
            elif ino not in self.dirty and ino in paths:
                os.link(paths[ino], place)
            else:
                path = paths.get(ino) or f"/proc/self/fd/{self._held[ino]}"
                place.write_bytes(self._content(ino, Path(path).read_bytes(), rng, mode))

    def _content(self, ino: int, now: bytes, rng: random.Random, mode: str) -> bytes:
        if ino not in self.dirty:
            return now
        durable = self.dirty[ino]
        kind = "lost" if mode == "least" else rng.choice(("lost", "zeros", "torn", "whole"))
        if kind == "lost":
            return durable
        kept = durable if now.startswith(durable) else b""  # what was appended behind it may be lost, not itself
        if kind == "zeros":
            return kept + bytes(len(now) - len(kept))
        return now if kind == "whole" else now[: rng.randrange(len(kept), len(now) + 1)]

    def _place(self, path: str) -> tuple[int, str]:
        folder, name = os.path.split(path)
        return os.stat(folder).st_ino, name

    def _add(self, path: str) -> int:
        ino = os.lstat(path).st_ino
        self.pending.append(_Change((), ((*self._place(path), ino),)))
        return ino

    def _hold(self, path: str) -> int:
        """Keep an inode alive, so that its number and content are not lost; its number, 0 if there is none."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return 0
        ino = os.fstat(fd).st_ino
        if ino in self._held:
            os.close(fd)
        else:
            self._held[ino] = fd
        return ino

    def _soil(self, path: str) -> None:
        try:
            ino = os.stat(path).st_ino
            if ino not in self.dirty:
                self.dirty[ino] = Path(path).read_bytes()
        except OSError:
            return

    def _sync(self, path: str) -> None:
        ino = os.stat(path).st_ino
        if ino not in self.entries:
            self.dirty.pop(ino, None)
            return
        chosen = [self._concerns(change, ino) for change in self.pending]
        for last in range(len(chosen) - 1, -1, -1):  # what a durable change rests on is durable as well
            if chosen[last]:
                for one in range(last):
                    chosen[one] |= bool(self.pending[one].touched & self.pending[last].touched)
        for change, durable in zip(self.pending, chosen, strict=True):
            if durable:
                _apply(self.entries, change)
        self.pending = [change for change, durable in zip(self.pending, chosen, strict=True) if not durable]

    @staticmethod
    def _concerns(change: _Change, folder: int) -> bool:
        """A rename between folders is durable with its target; anything else with its folder."""
        places = change.added or change.removed
        return any(place[0] == folder for place in places)


def _apply(entries: dict[int, dict[str, int]], change: _Change) -> None:
    for folder, name in change.removed:
        entries.get(folder, {}).pop(name, None)
    for folder, name, ino in change.added:
        entries.setdefault(folder, {})[name] = ino
