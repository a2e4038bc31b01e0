"""Real text of the running Python installation, as JSONL sources: what ``tokenreel demo`` is fed with.

Four sources: the standard library's code, installed packages' code, docstrings extracted from both, and packages'
metadata, readmes and licences. Paths are sorted and caps fixed, so the same environment gives the same bytes. Nothing
is cleaned up: vendored copies, licences that many packages carry and shared docstrings are real duplicates.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .files import write_atomic

__all__ = ["CorpusCaps", "Record", "gather", "write_source"]

Record = tuple[str, str]
"""(where the text comes from, the text)."""

_SMALLEST_BYTES = 40
_META_SUFFIXES = (".md", ".rst", ".txt")
_META_NAMES = ("METADATA", "LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")
_NO_CODE = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "encodings"})


@dataclass(frozen=True)
class CorpusCaps:
    """How much of each source is taken, bytes of text; a top-level package gives at most ``package_bytes``."""

    stdlib_bytes: int = 6_000_000
    packages_bytes: int = 6_000_000
    docs_bytes: int = 1_600_000
    meta_bytes: int = 2_500_000
    package_bytes: int = 250_000
    file_bytes: int = 100_000


def _walk(root: Path, skip: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Files below ``root``, in sorted order of folders and names; links are not followed."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in skip)
        for name in sorted(names):
            path = Path(folder, name)
            if not path.is_symlink():
                yield path


def _read(path: Path, largest: int) -> str | None:
    """The file's text; None when it is too small, too large, unreadable or not UTF-8."""
    try:
        if not _SMALLEST_BYTES <= path.stat().st_size <= largest:
            return None
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text.strip() else None


def _code(root: Path, prefix: str, caps: CorpusCaps) -> Iterator[Record]:
    for path in _walk(root, _NO_CODE):
        if path.suffix == ".py":
            text = _read(path, caps.file_bytes)
            if text is not None:
                yield f"{prefix}/{path.relative_to(root).as_posix()}", text


def _package_code(root: Path, caps: CorpusCaps) -> Iterator[Record]:
    """Code of installed packages, each up to ``package_bytes``: many packages rather than the first few whole."""
    try:
        tops = sorted(p for p in root.iterdir() if p.is_dir() and not p.is_symlink() and p.name not in _NO_CODE)
    except OSError:
        return
    for top in tops:
        if not top.name.endswith((".dist-info", ".data")):
            yield from _capped(_code(top, f"site-packages/{top.name}", caps), caps.package_bytes)


def _meta(root: Path, caps: CorpusCaps) -> Iterator[Record]:
    for path in _walk(root, frozenset({"__pycache__"})):
        named = path.name.upper().startswith(_META_NAMES) and path.suffix not in (".py", ".pyc")
        if named or (path.suffix in _META_SUFFIXES and path.name != "RECORD"):
            text = _read(path, caps.file_bytes)
            if text is not None:
                yield f"site-packages/{path.relative_to(root).as_posix()}", text


def _docstrings(code: Iterable[Record]) -> Iterator[Record]:
    for where, text in code:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found = ast.get_docstring(node)
                if found and len(found) >= _SMALLEST_BYTES and _is_text(found):
                    yield f"{where}:{getattr(node, 'lineno', 1)}", found


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: a docstring may hold an escaped lone surrogate."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _capped(records: Iterable[Record], limit: int) -> Iterator[Record]:
    """Records until their text exceeds ``limit`` bytes in all."""
    size = 0
    for where, text in records:
        size += len(text.encode("utf-8"))
        if size > limit:
            return
        yield where, text


def gather(caps: CorpusCaps) -> dict[str, list[Record]]:
    """The four sources of real text: ``stdlib``, ``packages``, ``docs``, ``meta``."""
    paths = sysconfig.get_paths()
    stdlib, packages = Path(paths["stdlib"]), Path(paths["purelib"])
    # a virtual environment holds packages of its own; the base installation's are taken where it has none
    code = list(_capped(_code(stdlib, "lib", caps), caps.stdlib_bytes))
    package_code = list(_capped(_package_code(packages, caps), caps.packages_bytes))
    return {
        "stdlib": code,
        "packages": package_code,
        "docs": list(_capped(_docstrings([*code, *package_code]), caps.docs_bytes)),
        "meta": list(_capped(_meta(packages, caps), caps.meta_bytes)),
    }


def _compress_zst(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress(data)


def _compress_gz(data: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("", "wb", 6, out, mtime=0) as file:  # no name, no time: the same bytes every day
        file.write(data)
    return out.getvalue()


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": lambda data: data,
    ".jsonl.zst": _compress_zst,
    ".jsonl.gz": _compress_gz,
}


def write_source(folder: Path, records: list[Record], suffixes: tuple[str, ...]) -> int:
    """Writes a source as ``part-0.jsonl``, ``part-1.jsonl.zst`` .., one file per suffix, records dealt in runs.

    Returns:
        Bytes of text written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    share = -(-len(records) // len(suffixes))
    for i, suffix in enumerate(suffixes):
        lines = [
            json.dumps({"path": where, "text": text}, ensure_ascii=False)
            for where, text in records[i * share :][:share]
        ]
        data = "".join(line + "\n" for line in lines).encode("utf-8")
        path = folder / f"part-{i}{suffix}"
        wanted = _COMPRESS[suffix](data)
        if not path.exists() or path.read_bytes() != wanted:  # an unchanged file keeps its time: a rerun is a no-op
            write_atomic(path, wanted)
    return sum(len(text.encode("utf-8")) for _, text in records)
