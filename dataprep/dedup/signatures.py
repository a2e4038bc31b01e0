"""Signing one file, and what that leaves on disk (see ``steps``). Shapes: N documents of a file, K permutations."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError
from loader.files import digest_bytes, write_atomic
from loader.shards.access import npy_bytes

from ..documents import DocumentBatch, InputFile
from ..formats import FileSummary, ReadOptions, RejectSink, read_file
from ..normalize import RULES_VERSION, UNICODE_VERSION
from .config import SignConfig
from .table import SignedFile

__all__ = ["DOCUMENT_DTYPE", "is_signed", "load_rejects", "load_signed", "load_summary", "sign_file"]

DOCUMENT_DTYPE = np.dtype(
    [
        ("record", "<i8"),
        ("record_start", "<i8"),
        ("size_bytes", "<i8"),
        ("hash_low", "<u8"),
        ("hash_high", "<u8"),
        ("num_shingles", "<i4"),
    ]
)
_LOW_64 = (1 << 64) - 1


def _path(folder: Path, kind: str, file: int) -> Path:
    return folder / f"{kind}.{file:05d}.{'json' if kind == 'file' else 'npy'}"


def _content_hashes(text: pa.LargeStringArray) -> NDArray[np.uint64]:
    """xxh3-128 of each text: (N, 2) uint64, low half first."""
    from ..kernels.documents import text_buffers

    texts = text_buffers(text)
    view = memoryview(texts.data.data)
    stops = texts.offset_N.tolist()
    digest = xxhash.xxh3_128_intdigest
    digests = [digest(view[start:stop]) for start, stop in pairwise(stops)]
    low = np.fromiter((value & _LOW_64 for value in digests), np.uint64, len(digests))
    return np.stack((low, np.fromiter((value >> 64 for value in digests), np.uint64, len(digests))), axis=1)


def _rows(batch: DocumentBatch, num_shingles_N: NDArray[np.int32]) -> NDArray[Any]:
    hash_N2 = _content_hashes(batch.text)
    rows = np.zeros(len(batch.text), DOCUMENT_DTYPE)
    rows["record"], rows["record_start"] = batch.record_N, batch.record_start_N
    rows["size_bytes"] = np.diff(np.frombuffer(batch.text.buffers()[1], np.int64)[: len(batch.text) + 1])
    rows["hash_low"], rows["hash_high"], rows["num_shingles"] = hash_N2[:, 0], hash_N2[:, 1], num_shingles_N
    return rows


def sign_file(inputs: InputFile, file: int, config: SignConfig, folder: Path) -> FileSummary:
    """Read one input file and write its rows, signatures, rejects and, last, its summary.

    Raises:
        ConfigError, DamageError: see ``read_file``.
    """
    from ..kernels.documents import DocumentHasher
    from ..kernels.minhash import affine_permutations

    minhash = config.dedup.minhash
    signing = "minhash" in config.dedup.methods
    permutations = affine_permutations(minhash.num_permutations, minhash.seed)
    rejects, hasher = RejectSink(), DocumentHasher()
    rows, signatures = [np.zeros(0, DOCUMENT_DTYPE)], [np.zeros((0, minhash.num_permutations), np.uint32)]
    options = ReadOptions(line_limit_bytes=config.ingest.line_limit_bytes)
    for batch in read_file(inputs, file, options=options, rejects=rejects):
        num_shingles_N = np.zeros(len(batch.text), np.int32)
        if signing:
            signature_NK, num_shingles_N = hasher.sign(batch.text, permutations)
            signatures.append(signature_NK)
        rows.append(_rows(batch, num_shingles_N))
    if rejects.summary is None:
        raise AssertionError("a reader ended without a summary")
    parts = {"documents": npy_bytes(np.concatenate(rows)), "rejects": npy_bytes(rejects.rows)}
    if signing:
        parts["signatures"] = npy_bytes(np.concatenate(signatures))
    for kind, data in parts.items():
        write_atomic(_path(folder, kind, file), data)
    record = {
        "source": inputs.source,
        "path": inputs.path,
        "rules": [RULES_VERSION, UNICODE_VERSION],
        "summary": asdict(rejects.summary),
        "parts": {kind: digest_bytes(data) for kind, data in parts.items()},
    }
    write_atomic(_path(folder, "file", file), canonical_json(record))
    return rejects.summary


def is_signed(inputs: InputFile, file: int, folder: Path) -> bool:
    """Whether the summary of this very file is there (the stage's digest answers for the configuration)."""
    try:
        record = json.loads(_path(folder, "file", file).read_bytes())
    except (OSError, ValueError):
        return False
    return (record.get("source"), record.get("path")) == (inputs.source, inputs.path)


def _load_record(folder: Path, file: int) -> dict[str, Any]:
    path = _path(folder, "file", file)
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        if record["rules"] != [RULES_VERSION, UNICODE_VERSION]:
            raise ValueError(f"made by text rules {record['rules']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamageError(
            "TR-DEDUP-SIGNED", f"the file is not signed: {error}", str(path), "a finished signing stage"
        ) from error
    return record


def _load_part(folder: Path, kind: str, file: int) -> NDArray[Any]:
    path = _path(folder, kind, file)
    expected = _load_record(folder, file)["parts"].get(kind)
    data = path.read_bytes() if path.exists() else b""
    if digest_bytes(data) != expected:
        raise DamageError("TR-DEDUP-DAMAGED", "not the bytes that were written", str(path), f"xxh3-128 {expected}")
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def load_summary(folder: Path, file: int) -> FileSummary:
    """The summary of a signed file.

    Raises:
        DamageError: the file is not signed, or by other text rules.
    """
    return FileSummary(**_load_record(folder, file)["summary"])


def load_rejects(folder: Path, file: int) -> NDArray[Any]:
    """Rejects (``REJECT_DTYPE``) of a signed file.

    Raises:
        DamageError: missing or damaged.
    """
    return _load_part(folder, "rejects", file)


def load_signed(folder: Path, file: int) -> SignedFile:
    """Documents and signatures of a signed file.

    Raises:
        DamageError: missing or damaged.
    """
    has_signatures = "signatures" in _load_record(folder, file)["parts"]
    signature_NK = _load_part(folder, "signatures", file) if has_signatures else None
    return SignedFile(_load_part(folder, "documents", file), signature_NK)
