"""Which files of a source a format takes where the configuration names none; light to import.

One entry a format of ``FORMATS``; the contract test compares the two tables.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEFAULT_PATTERNS"]


def _compressible(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"**/*{suffix}" for suffix in suffixes) + _compressed(*suffixes)


def _compressed(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"**/*{suffix}{codec}" for suffix in suffixes for codec in (".zst", ".zstd", ".gz", ".bz2", ".xz"))


DEFAULT_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "arrow": ("**/*.arrow", "**/*.feather", *_compressed(".arrow")),
    # as save_to_disk names them: the cache-*.arrow beside them hold what a map made of the same rows
    "huggingface": ("**/data-*.arrow", "**/dataset.arrow", "**/*.parquet"),
    "jsonl": _compressible(".jsonl"),
    "parquet": ("**/*.parquet",),
    "text": _compressible(".txt"),
    "text_paragraphs": _compressible(".txt"),
    "warc": _compressible(".warc", ".wet"),
}
"""Format -> glob patterns."""
