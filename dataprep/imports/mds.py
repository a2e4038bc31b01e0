"""MDS (mosaicml-streaming): a folder with ``index.json`` and shards, plain or compressed whole by zstd or gzip.

A shard is u32 count, u32 offset[count + 1], JSON, samples; a sample is a u32 size for each column without a fixed one,
then the columns' bytes (``streaming/base/format/mds``). The tokens column may be ``ndarray[:dtype[:length]]``, whose
header is parsed here, or ``bytes``, whose dtype nobody but the user knows. Nothing else of a sample is looked at: no
pickle, no image.

Shapes: R samples of a shard, C columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import ConfigError
from loader.shards.access import check_relative, check_size

from .base import (
    MAX_INDEX_BYTES,
    TOKEN_DTYPES,
    RecordBatch,
    SetFile,
    SetFormat,
    SetOptions,
    check_hashes,
    damage,
    read_bounded,
    size_of,
)

__all__ = ["MDS"]

_MAX_SHARD_BYTES = 1 << 32  # offsets are u32
_CODECS = {"zstd": "zstd", "gz": "gzip"}
_SHAPE_DTYPES = ("u1", "<u2", "<u4", "<u8")
_VALUE_DTYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
_CHUNK_BYTES = 1 << 22


def _find(path: Path) -> list[SetFile]:
    index = path if path.name == "index.json" else path / "index.json"
    if not index.is_file():
        raise ConfigError("TR-IMPORT-NONE", "no MDS set here", str(path), "a folder with index.json")
    try:
        value = json.loads(read_bounded(index, MAX_INDEX_BYTES))
        shards = value["shards"]
        if value["version"] != 2 or not isinstance(shards, list):
            raise ValueError("no list of shards, version 2")
        return [_set_file(index, number, shard) for number, shard in enumerate(shards)]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damage(f"not an MDS index: {error}", index) from error


def _set_file(index: Path, number: int, shard: Mapping[str, Any]) -> SetFile:
    """One shard as the index has it: its raw file where it lies there, else the compressed one."""
    if shard["format"] != "mds":
        raise damage(f"shard {number} has format {shard['format']!r}", index, "mds")
    raw, packed = shard["raw_data"], shard.get("zip_data")
    folder = index.parent
    raw_path = folder / check_relative(str(raw["basename"]), str(index))
    codec, chosen, path = None, raw, raw_path
    if packed is not None and not raw_path.exists():
        name = str(shard["compression"]).split(":")[0]
        if name not in _CODECS:
            raise ConfigError("TR-IMPORT-COMPRESSION", f"shards compressed by {name!r}", str(index), ", ".join(_CODECS))
        codec, chosen, path = _CODECS[name], packed, folder / check_relative(str(packed["basename"]), str(index))
    hashes = chosen["hashes"]
    if not isinstance(hashes, dict) or not all(type(count) is int for count in (raw["bytes"], chosen["bytes"])):
        raise damage(f"shard {number} has no sizes and hashes", index)
    names, encodings, sizes = (shard[f"column_{what}"] for what in ("names", "encodings", "sizes"))
    if not len(names) == len(encodings) == len(sizes) or type(shard["samples"]) is not int:
        raise damage(f"shard {number} has columns of different numbers", index)
    facts = {
        "codec": codec,
        "raw_bytes": raw["bytes"],
        "file_bytes": chosen["bytes"],
        "hashes": hashes,
        "samples": shard["samples"],
        "names": names,
        "encodings": encodings,
        "sizes": sizes,
    }
    return SetFile(path, (index,), facts)


def _raw_bytes(file: SetFile) -> bytes:
    """The shard's bytes, verified and decompressed; sizes are compared before anything is read."""
    facts = file.facts
    if not 0 < facts["raw_bytes"] < _MAX_SHARD_BYTES or not 0 < facts["file_bytes"] < _MAX_SHARD_BYTES:
        raise damage("a shard of an impossible size", file.path, f"below {_MAX_SHARD_BYTES:,} bytes")
    check_size(file.path, size_of(file.path), facts["file_bytes"])
    data = read_bounded(file.path, facts["file_bytes"])
    check_hashes(file.path, data, facts["hashes"])
    if facts["codec"] is None:
        return data
    import pyarrow as pa

    out = io.BytesIO()
    try:
        with pa.input_stream(pa.BufferReader(data), compression=facts["codec"]) as stream:
            while out.tell() <= facts["raw_bytes"] and (piece := stream.read(_CHUNK_BYTES)):
                out.write(piece)
    except OSError as error:
        raise damage(f"cannot be decompressed: {error}", file.path) from error
    if out.tell() != facts["raw_bytes"]:
        raise damage("decompresses to another size", file.path, f"{facts['raw_bytes']:,} bytes")
    return out.getvalue()


@dataclass(frozen=True)
class _Column:
    """The tokens column: its number; dtype and length where its encoding fixes them; ``plain``: bytes without a
    header."""

    number: int
    dtype: np.dtype[Any] | None
    length: int | None
    plain: bool


def _read(file: SetFile, options: SetOptions) -> Iterator[RecordBatch]:
    facts = file.facts
    if options.column not in facts["names"]:
        raise ConfigError(
            "TR-IMPORT-COLUMN", f"no column {options.column!r}", str(file.path), ", ".join(map(str, facts["names"]))
        )
    column = _column(file, facts["names"].index(options.column), options)
    data = _raw_bytes(file)
    count = int.from_bytes(data[:4], "little")
    if count != facts["samples"] or 8 + 4 * count > len(data):
        raise damage(f"the shard has {count:,} samples", file.path, f"{facts['samples']:,}, as the index says")
    offset_R = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
    falling = np.diff(offset_R) < 0
    if falling.any() or int(offset_R[0]) < 8 + 4 * count or int(offset_R[-1]) != len(data):
        record = int(np.argmax(falling)) if falling.any() else None
        raise damage("offsets of samples do not rise to the end of the shard", file.path, None, record)
    begin_R, end_R = _column_bounds(file, data, offset_R, column.number)
    pieces: list[NDArray[np.integer[Any]]] = []
    for record, (begin, end) in enumerate(zip(begin_R.tolist(), end_R.tolist(), strict=True)):
        at, dtype = _values(file, data, (begin, end), column, record)
        if (end - at) % dtype.itemsize or (column.length is not None and end - at != column.length * dtype.itemsize):
            raise damage(
                f"{end - at} bytes are no {column.length or 'whole number of'} {dtype}", file.path, None, record
            )
        pieces.append(np.frombuffer(data, dtype, (end - at) // dtype.itemsize, at))
    ids_T = np.concatenate(pieces) if pieces else np.zeros(0, np.uint16)
    if ids_T.dtype.kind not in "iu":  # numpy makes floats of u8 and i8
        raise damage("tokens of signed and unsigned 64-bit integers in one shard", file.path)
    yield RecordBatch(0, ids_T, np.array([len(piece) for piece in pieces], np.int64), offset_R[:-1])


def _column(file: SetFile, number: int, options: SetOptions) -> _Column:
    """What the encoding of the tokens column says."""
    encoding = str(file.facts["encodings"][number])
    if encoding == "bytes":
        if options.dtype is None:
            raise ConfigError(
                "TR-IMPORT-DTYPE",
                f"column {options.column!r} holds bytes: the dtype of its tokens stands nowhere",
                str(file.path),
                ", ".join(TOKEN_DTYPES),
                "--dtype int64, as llm-foundry wrote them",
            )
        return _Column(number, np.dtype(TOKEN_DTYPES[options.dtype]), None, True)
    kind, _, rest = encoding.partition(":")
    name, _, shape = rest.partition(":")
    if kind != "ndarray" or (name and name not in TOKEN_DTYPES) or (shape and not _is_count(shape)):
        raise ConfigError(
            "TR-IMPORT-COLUMN", f"column of encoding {encoding!r} holds no tokens", str(file.path), "ndarray or bytes"
        )
    return _Column(number, np.dtype(TOKEN_DTYPES[name]) if name else None, int(shape) if shape else None, False)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _column_bounds(
    file: SetFile, data: bytes, offset_R: NDArray[np.int64], column: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the column's bytes begin and end in each sample."""
    sizes = file.facts["sizes"]
    variable = [c for c, size in enumerate(sizes) if size is None]
    fixed = [size for size in sizes if size is not None]
    if any(type(size) is not int or not 0 <= size < _MAX_SHARD_BYTES for size in fixed):
        raise damage("columns of impossible sizes", file.path)
    head = 4 * len(variable)
    count = len(offset_R) - 1
    short = np.diff(offset_R) < head
    if short.any():
        raise damage("a sample is shorter than its header", file.path, None, int(np.argmax(short)))
    view = np.frombuffer(data, np.uint8)
    size_RV = np.zeros((count, len(variable)), np.int64)
    for v in range(len(variable)):
        for byte in range(4):
            size_RV[:, v] |= view[offset_R[:-1] + 4 * v + byte].astype(np.int64) << (8 * byte)
    total_R = size_RV.sum(1) + sum(fixed) + head
    wrong = total_R != np.diff(offset_R)
    if wrong.any():
        raise damage("sizes of a sample's columns do not add up to it", file.path, None, int(np.argmax(wrong)))
    begin_R = offset_R[:-1] + head
    for c in range(column):
        begin_R = begin_R + (size_RV[:, variable.index(c)] if sizes[c] is None else sizes[c])
    size_R = size_RV[:, variable.index(column)] if sizes[column] is None else np.full(count, sizes[column], np.int64)
    return begin_R, begin_R + size_R


def _values(
    file: SetFile, data: bytes, bounds: tuple[int, int], column: _Column, record: int
) -> tuple[int, np.dtype[Any]]:
    """Where the values of a sample's array begin, and their dtype: past the array's header, if it has one."""
    at, end = bounds
    dtype = column.dtype
    if column.plain:
        assert dtype is not None
        return at, dtype
    if dtype is None:
        if at >= end or data[at] not in _VALUE_DTYPES:
            raise damage("an array of no integers", file.path, None, record)
        dtype, at = np.dtype(_VALUE_DTYPES[data[at]]), at + 1
    if column.length is None:
        shape_dtype = np.dtype(_SHAPE_DTYPES[data[at] & 3]) if at < end else np.dtype("u1")
        if at + 1 + shape_dtype.itemsize > end or data[at] >> 2 != 1:
            raise damage("an array of another number of axes than one", file.path, None, record)
        found = int(np.frombuffer(data, shape_dtype, 1, at + 1)[0])
        at += 1 + shape_dtype.itemsize
        if found * dtype.itemsize != end - at:
            raise damage(f"an array of {found} tokens in {end - at} bytes", file.path, None, record)
    return at, dtype


MDS = SetFormat(_find, _read)
