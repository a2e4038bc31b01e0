"""datatrove: ``NAME.ds`` (tokens, document after document), ``NAME.ds.index`` (u64 end of each document, in tokens),
``NAME.ds.metadata`` (``tokenizer|bytes a token``, then the number of tokens); as its ``TokenizedFile`` writes them.

Shapes: R documents of a batch, D documents of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loader.errors import ConfigError

from .base import (
    BATCH_TOKENS,
    MAX_INDEX_BYTES,
    RecordBatch,
    SetFile,
    SetFormat,
    SetOptions,
    damage,
    map_tokens,
    payload_paths,
    read_bounded,
)

__all__ = ["DATATROVE"]

_MAX_METADATA_BYTES = 1 << 16


def _find(path: Path) -> list[SetFile]:
    files = []
    for tokens in payload_paths(path, ".ds", "datatrove token file"):
        index, metadata = (tokens.with_name(tokens.name + end) for end in (".index", ".metadata"))
        if not index.is_file():
            raise ConfigError(
                "TR-IMPORT-INDEX",
                "the token file has no index: where its documents end is not known",
                str(tokens),
                str(index),
                "tokenise with save_index",
            )
        files.append(SetFile(tokens, (index, *((metadata,) if metadata.is_file() else ())), {}))
    return files


def _token_bytes(file: SetFile, last: int) -> int:
    """Bytes a token: of the metadata, which must agree with the file's size; else what size and index make it."""
    size_bytes = file.path.stat().st_size
    if len(file.beside) > 1:
        path = file.beside[1]
        lines = read_bounded(path, _MAX_METADATA_BYTES).decode("utf-8", "replace").split("\n")
        _, found, size = lines[0].rpartition("|")
        total = lines[1] if len(lines) > 1 else ""
        if not found or size not in ("2", "4") or not (total.isascii() and total.isdecimal() and len(total) < 20):
            raise damage(f"no metadata of a token file: {lines[0][:80]!r}", path, "tokenizer|2 or tokenizer|4, tokens")
        if int(total) * int(size) != size_bytes:
            raise damage(
                f"the file has {size_bytes:,} bytes", file.path, f"{total} tokens of {size} bytes, as the metadata says"
            )
        return int(size)
    for width in (2, 4):
        if last * width == size_bytes:
            return width
    raise damage(f"the file has {size_bytes:,} bytes", file.path, f"{last:,} tokens of 2 or 4 bytes")


def _read(file: SetFile, options: SetOptions) -> Iterator[RecordBatch]:
    index = file.beside[0]
    size_bytes = index.stat().st_size
    if size_bytes % 8:
        raise damage(f"an index of {size_bytes:,} bytes", index, "8 bytes a document")
    ends_D: NDArray[np.uint64] = map_tokens(index, np.dtype("<u8"))
    last = int(ends_D[-1]) if len(ends_D) else 0
    width = _token_bytes(file, last)
    tokens = map_tokens(file.path, np.dtype(f"<u{width}"))
    if last != len(tokens):
        raise damage(f"the file has {len(tokens):,} tokens", file.path, f"{last:,}, where the index ends")
    step = MAX_INDEX_BYTES // 256
    before = first = 0
    while first < len(ends_D):
        block_D = ends_D[first : first + step]
        starts_D = np.concatenate([[np.uint64(before)], block_D[:-1]])
        wrong_D = (starts_D > block_D) | (block_D > len(tokens))
        if wrong_D.any():
            raise damage("ends of documents do not rise", index, None, first + int(np.argmax(wrong_D)))
        stop = max(1, int(np.searchsorted(block_D, before + BATCH_TOKENS, side="right")))
        ends_R, starts_R = block_D[:stop].astype(np.int64), starts_D[:stop].astype(np.int64)
        yield RecordBatch(first, tokens[before : int(ends_R[-1])], ends_R - starts_R, starts_R * width)
        before, first = int(ends_R[-1]), first + stop


DATATROVE = SetFormat(_find, _read)
