"""Small files for a cache folder: their bytes by name, what a manifest says of them, and a store that is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import xxhash

from loader.stream.cache_folder import Fetch, Wanted

__all__ = ["NAMES", "SIZE", "TOP", "data_of", "fetch_of", "there", "wanted"]

TOP = "0" * 32


def data_of(name: str) -> bytes:
    """The bytes of a file; as many for all names of one length."""
    return name.encode() * 100


NAMES = [f"shard.{number:05d}.mds" for number in range(8)]
SIZE = len(data_of(NAMES[0]))


def wanted(name: str, size: int | None = None) -> Wanted:
    """What the manifest says of a file."""
    data = data_of(name)
    digest = xxhash.xxh3_128_hexdigest(data)
    return Wanted(f"{TOP}/web/{name}", len(data) if size is None else size, digest, f"s3://bucket/{name}")


def fetch_of(name: str, asked: list[str]) -> Fetch:
    """A store that notes in ``asked`` what it is asked for."""

    def fetch(target: Path, advance: Callable[[int], None]) -> str:
        asked.append(name)
        target.parent.mkdir(parents=True)
        target.write_bytes(data_of(name))
        advance(len(data_of(name)))
        return xxhash.xxh3_128_hexdigest(data_of(name))

    return fetch


def there(root: Path) -> set[str]:
    """The files in a cache."""
    return {path.name for path in (root / TOP).rglob("*.mds")}
