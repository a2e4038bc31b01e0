"""Megatron-LM: ``PREFIX.bin`` (tokens) and ``PREFIX.idx``, whose layout ``loader.interop.megatron`` quotes.

A document is the sequences between two borders of ``doc_idx``, one after the other, wherever in the ``.bin`` they lie;
sequences that several documents share are read for each.

Shapes: S sequences, D documents of the file, R of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import ConfigError

from ..kernels.token_runs import copy_runs
from .base import (
    BATCH_TOKENS,
    RecordBatch,
    SetFile,
    SetFormat,
    SetOptions,
    check_length,
    damage,
    map_tokens,
    payload_paths,
    size_of,
)

__all__ = ["MEGATRON"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
"""Dtype codes of ``megatron/core/datasets/indexed_dataset.py``; 6 and 7 are no tokens."""


def _find(path: Path) -> list[SetFile]:
    named = path.with_suffix(".idx") if path.suffix in (".bin", ".idx") and not path.is_dir() else path
    files = []
    for index in payload_paths(named, ".idx", "Megatron index"):
        tokens = index.with_suffix(".bin")
        if not tokens.is_file():
            raise ConfigError("TR-IMPORT-NONE", "the index has no token file", str(index), str(tokens))
        files.append(SetFile(tokens, (index,), {}))
    return files


@dataclass(frozen=True)
class _Index:
    dtype: np.dtype[Any]
    num_tokens_S: NDArray[np.int32]
    pointer_S: NDArray[np.int64]
    border_D: NDArray[np.int64]


def _read_index(path: Path) -> _Index:
    """The index, mapped: counts are compared with the file's size before anything is made of them."""
    size_bytes = size_of(path)
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise damage(f"an index of {size_bytes:,} bytes", path, f"at least {_HEAD.size}")
    magic, version, code, num_sequences, num_borders = _HEAD.unpack(head)
    if magic != _MAGIC or version != 1:
        raise damage("the file does not begin like a Megatron index", path, "MMIDIDX, version 1")
    if code not in _DTYPES or code in (6, 7):
        raise damage(f"dtype code {code} is not one of tokens", path, "an integer's: 1, 2, 3, 4, 5, 8")
    needed = _HEAD.size + 12 * num_sequences + 8 * num_borders
    modes = num_sequences  # i8 a sequence, where the set is multimodal
    if size_bytes not in (needed, needed + modes):
        raise damage(f"the file has {size_bytes:,} bytes", path, f"{needed:,} for {num_sequences:,} sequences")
    data = np.memmap(path, np.uint8, "r")

    def column(start: int, dtype: str, count: int) -> NDArray[Any]:
        return np.frombuffer(data, dtype, count, start) if count else np.zeros(0, dtype)

    start = _HEAD.size
    return _Index(
        np.dtype(_DTYPES[code]),
        column(start, "<i4", num_sequences),
        column(start + 4 * num_sequences, "<i8", num_sequences),
        column(start + 12 * num_sequences, "<i8", num_borders),
    )


def _read(file: SetFile, options: SetOptions) -> Iterator[RecordBatch]:
    path = file.beside[0]
    index = _read_index(path)
    tokens = map_tokens(file.path, index.dtype)
    width = index.dtype.itemsize
    _check(index, len(tokens), file.path, path)
    sizes_S = index.num_tokens_S
    first = 0
    while first + 1 < len(index.border_D):
        # As many documents as fit a batch: at most a block of borders is looked at, whatever the file's size.
        borders = index.border_D[first : first + 1 + (1 << 16)]
        low, high = int(borders[0]), int(borders[-1])
        stops = np.concatenate([[0], np.cumsum(sizes_S[low:high], dtype=np.int64)])
        ends = stops[borders - low]
        stop = max(1, int(np.searchsorted(ends, BATCH_TOKENS, side="right")) - 1)
        check_length(int(ends[1]), file.path, first)  # sequences may be shared: a small file can name a huge document
        borders, ends = borders[: stop + 1], ends[: stop + 1]
        high = int(borders[-1])
        lengths_S = sizes_S[low:high].astype(np.int64)
        ids_T = np.empty(int(ends[-1]), index.dtype)
        copy_runs(ids_T, stops[: high - low], tokens, index.pointer_S[low:high] // width, lengths_S)
        start_R = np.zeros(stop, np.int64)
        filled = borders[:-1] < borders[1:]
        start_R[filled] = index.pointer_S[borders[:-1][filled]]
        yield RecordBatch(first, ids_T, np.diff(ends), start_R)
        first += stop


def _check(index: _Index, num_tokens: int, tokens: Path, path: Path) -> None:
    """Sequences inside the ``.bin``, documents that rise from 0 to the last sequence."""
    width = index.dtype.itemsize
    border_D = index.border_D
    if not len(border_D) or int(border_D[0]) != 0 or int(border_D[-1]) != len(index.num_tokens_S):
        raise damage("documents do not begin at 0 and end at the last sequence", path)
    falling = border_D[1:] < border_D[:-1]  # no difference: it could overflow
    if falling.any():
        raise damage("borders of documents do not rise", path, None, int(np.argmax(falling)))
    place_S = index.pointer_S // width
    wrong_S = (index.num_tokens_S < 0) | (index.pointer_S < 0) | (index.pointer_S % width != 0)
    wrong_S |= (place_S > num_tokens) | (index.num_tokens_S > num_tokens - place_S)
    if wrong_S.any():
        sequence = int(np.argmax(wrong_S))
        record = int(np.searchsorted(border_D, sequence, side="right")) - 1
        raise damage(f"sequence {sequence} does not lie in the file", tokens, f"{num_tokens:,} tokens", record)


MEGATRON = SetFormat(_find, _read)
