"""Two splits with every kind of file that a build leaves, and ways to damage one file at a time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash
from support.datasets import DatasetSpec, make_dataset

from loader.sealed import seal, unseal

__all__ = ["EXEMPT", "Bit", "covered_files", "flip", "kind_of", "make_splits", "random_bits"]

EXEMPT = frozenset({"job.json"})
_EXTRA = {
    "tokenizer/tokenizer.json": b'{"kind":"bytes"}' * 9,
    "tokenizer/model.bin": b"model" * 40,
    "removed.parquet": b"PAR1 rows that were removed PAR1",
    "rejected.parquet": b"PAR1 rows that were rejected PAR1",
    "cuts.parquet": b"PAR1 cuts PAR1",
    "contamination.parquet": b"PAR1 hits PAR1",
    "report.html": b"<html><body>a report</body></html>",
}


def make_splits(folder: Path) -> list[Path]:
    """A training and a validation Dataset; the training one has every table beside."""
    spec = DatasetSpec(documents={"web": 14, "code": 6}, seq_len=32, samples_per_shard=12, max_words=14)
    train = make_dataset(folder, spec, "data").path
    validation = make_dataset(folder, DatasetSpec(documents={"web": 3}, seq_len=32), "data-validation").path
    for path, names in ((train, list(_EXTRA)), (validation, ["tokenizer/tokenizer.json", "tokenizer/model.bin"])):
        value = unseal((path / "manifest.json").read_bytes(), "manifest")
        for name in names:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(_EXTRA[name])
            digest = xxhash.xxh3_128_hexdigest(_EXTRA[name])
            value["files_hashed"][name] = {"size_bytes": len(_EXTRA[name]), "xxh3_128": digest}
        (path / "manifest.json").write_bytes(seal(value))
    return [train, validation]


def covered_files(path: Path) -> list[str]:
    """Every file of a Dataset but job.json."""
    return sorted(os.path.relpath(p, path) for p in path.rglob("*") if p.is_file() and p.name not in EXEMPT)


def kind_of(name: str) -> str:
    """``web/shard.00003.mds`` is of kind ``.mds``; files that are there once are their own kind."""
    base = name.rpartition("/")[2]
    return Path(base).suffix if base.startswith("shard.") else base


@dataclass(frozen=True)
class Bit:
    """A bit of a file."""

    path: Path
    name: str
    byte: int
    bit: int

    def __str__(self) -> str:
        return f"{self.path.name}/{self.name} byte {self.byte} bit {self.bit}"


def random_bits(splits: list[Path], count: int, seed: int) -> list[Bit]:
    """``count`` bits: a kind by turns, then a file of the kind, a byte and a bit at random."""
    kinds: dict[str, list[tuple[Path, str]]] = {}
    for path in splits:
        for name in covered_files(path):
            kinds.setdefault(kind_of(name), []).append((path, name))
    rng = random.Random(seed)
    names = sorted(kinds)
    bits = []
    for number in range(count):
        path, name = rng.choice(kinds[names[number % len(names)]])
        bits.append(Bit(path, name, rng.randrange((path / name).stat().st_size), rng.randrange(8)))
    return bits


def flip(bit: Bit) -> Iterator[None]:
    """Flip, wait for the caller, put back; by one byte in place, so that large files cost nothing."""
    file = bit.path / bit.name
    with open(file, "r+b") as data:
        data.seek(bit.byte)
        before = data.read(1)
        data.seek(bit.byte)
        data.write(bytes([before[0] ^ 1 << bit.bit]))
    yield
    with open(file, "r+b") as data:
        data.seek(bit.byte)
        data.write(before)
