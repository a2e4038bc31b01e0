"""What the first bytes of a file say that it is, where its name says something else.

A gzip file named ``.jsonl`` is the usual case (a download that kept its transfer encoding): read as lines, all of it
would be rejected, and among many good files nobody would see that a whole one is gone.
"""

from __future__ import annotations

import re
from pathlib import Path

from loader.errors import ConfigError

__all__ = ["check_first_bytes", "first_bytes_kind"]

_KINDS = (
    ("gzip", re.compile(rb"\x1f\x8b\x08"), (".gz",)),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd"), (".zst", ".zstd")),
    ("bzip2", re.compile(rb"BZh[1-9]1AY&SY"), (".bz2",)),
    ("xz", re.compile(rb"\xfd7zXZ\0"), (".xz",)),
    ("lz4", re.compile(rb"\x04\x22\x4d\x18"), ()),
    ("zip", re.compile(rb"PK\x03\x04"), ()),
    ("Parquet", re.compile(rb"PAR1\x15"), (".parquet",)),
    ("Arrow IPC", re.compile(rb"ARROW1\0\0"), (".arrow", ".feather")),
)
"""Name, first bytes (none of them begins a text), the suffixes that say the same."""
_READ_BYTES = 16


def first_bytes_kind(path: Path) -> str | None:
    """The name of what ``path`` begins like, None if it is nothing known.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        head = file.read(_READ_BYTES)
    return next((name for name, begin, _ in _KINDS if begin.match(head)), None)


def check_first_bytes(path: Path) -> None:
    """Refuse a file that is something else than its suffix says.

    Raises:
        ConfigError: ``TR-INPUT-FORMAT``, with what it is.
        OSError: it cannot be read.
    """
    found = first_bytes_kind(path)
    suffixes = next((suffixes for name, _, suffixes in _KINDS if name == found), ())
    if found is None or path.suffix.lower() in suffixes:
        return
    named = f"a name that ends in {' or '.join(suffixes)}, and" if suffixes else "another file, or"
    raise ConfigError(
        "TR-INPUT-FORMAT",
        f"the file is {found} by its first bytes, and its name says something else",
        str(path),
        f"{named} the format that fits what is inside",
        f"file {path}",
    )
