"""Signing one file, and what that leaves on disk (see ``steps``).

Columns are streamed: one batch is in memory, whatever the file's size. ``file.N.json`` is written last; it holds size
and xxh3-128 of every other file, its own digest, and a stamp of all that shaped them: versions of the text rules and
of Unicode, the parameters of the signatures, what the order key is made of. Whoever loads them verifies them by
streaming and maps them. Shapes: N documents of a file, K permutations.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from loader.canonical import canonical_json, digest_of
from loader.errors import DamageError, RefusedError
from loader.files import digest_bytes, write_atomic
from loader.shards.access import npy_bytes

from ..documents import DocumentBatch, InputFile
from ..formats import FileSummary, RejectSink, read_file, read_options
from ..normalize import RULES_VERSION, SINGLE_N, UNICODE_VERSION, WORD_N
from .columns import ColumnWriter, map_column
from .config import DedupConfig, SignConfig
from .order_keys import order_field, order_keys
from .table import SignedFile

__all__ = [
    "DOCUMENT_DTYPE",
    "is_signed",
    "load_rejects",
    "load_signed",
    "load_summary",
    "missing_order_keys",
    "sign_file",
    "signature_stamp",
    "text_stamp",
]

DOCUMENT_DTYPE = np.dtype(
    [
        ("record", "<i8"),
        ("record_start", "<i8"),
        ("size_bytes", "<i8"),
        ("hash_low", "<u8"),
        ("hash_high", "<u8"),
        ("num_shingles", "<i4"),
        ("order_key", "<i8"),
    ]
)
"""One document; ``order_key`` ranks it by the keep policy (larger is better, 0 unless ``newest`` or ``quality``)."""


def text_stamp() -> dict[str, Any]:
    """What decides which shingles a text has: equal stamps, equal shingles."""
    return {"rules": RULES_VERSION, "unicode": UNICODE_VERSION, "word_n": WORD_N, "single_n": SINGLE_N}


def signature_stamp(config: DedupConfig) -> dict[str, Any]:
    """What decides the signatures of shingles (bands and rows do not): equal stamps, comparable signatures."""
    minhash = config.minhash
    taken = {"num_permutations": minhash.num_permutations, "seed": minhash.seed}
    return {"minhash": taken if "minhash" in config.methods else None, "simhash": "simhash" in config.methods}


def _stamp(inputs: InputFile, config: DedupConfig) -> dict[str, Any]:
    order = [config.keep, order_field(inputs, config.keep)]
    return {"text": text_stamp(), "signatures": signature_stamp(config), "order": order}


def _path(folder: Path, kind: str, file: int) -> Path:
    return folder / f"{kind}.{file:05d}.{'json' if kind == 'file' else 'npy'}"


def _content_hashes(text: pa.LargeStringArray) -> NDArray[np.uint64]:
    """xxh3-128 of each text: (N, 2) uint64, low half first."""
    from ..kernels.documents import text_buffers

    texts = text_buffers(text)
    view = memoryview(texts.data.data)
    stops = texts.offset_N.tolist()
    digest = xxhash.xxh3_128_digest  # the high half first, both big-endian
    halves = b"".join([digest(view[start:stop]) for start, stop in pairwise(stops)])
    return np.frombuffer(halves, ">u8").reshape(-1, 2)[:, ::-1].astype(np.uint64)


def _rows(batch: DocumentBatch, num_shingles_N: NDArray[np.int64], order_key_N: NDArray[np.int64]) -> NDArray[Any]:
    hash_N2 = _content_hashes(batch.text)
    rows = np.zeros(len(batch.text), DOCUMENT_DTYPE)
    rows["record"], rows["record_start"] = batch.record_N, batch.record_start_N
    rows["size_bytes"] = np.diff(np.frombuffer(batch.text.buffers()[1], np.int64)[: len(batch.text) + 1])
    rows["hash_low"], rows["hash_high"] = hash_N2[:, 0], hash_N2[:, 1]
    rows["num_shingles"], rows["order_key"] = num_shingles_N, order_key_N
    return rows


def _column_batches(
    inputs: InputFile, file: int, config: SignConfig, rejects: RejectSink
) -> Iterator[tuple[dict[str, NDArray[Any]], int]]:
    """Columns of batch after batch by kind of part, and how many of its documents have no order key."""
    from ..kernels.documents import DocumentHasher
    from ..kernels.minhash import affine_permutations

    dedup, minhash = config.dedup, config.dedup.minhash
    simhash = "simhash" in dedup.methods
    permutations = affine_permutations(minhash.num_permutations, minhash.seed) if "minhash" in dedup.methods else None
    hasher = DocumentHasher()
    options = read_options(config.ingest, extra_field=order_field(inputs, dedup.keep))
    for batch in read_file(inputs, file, options=options, rejects=rejects):
        count = len(batch.text)
        order_key_N, missing = order_keys(batch.extra_N, count, dedup.keep)
        num_shingles_N = np.zeros(count, np.int64)
        columns: dict[str, NDArray[Any]] = {}
        if permutations is not None or simhash:
            prints = hasher.prints(batch.text, permutations, simhash=simhash)
            num_shingles_N = prints.num_shingles_N
            columns = {"signatures": prints.signature_NK, "simhash": prints.simhash_N}
        yield {"documents": _rows(batch, num_shingles_N, order_key_N), **columns}, missing


def sign_file(inputs: InputFile, file: int, config: SignConfig, folder: Path) -> FileSummary:
    """Read one input file and write its rows, signatures, rejects and, last, its summary.

    Raises:
        ConfigError, DamageError: see ``read_file``.
    """
    shapes = _column_shapes(config.dedup)
    rejects, missing = RejectSink(), 0
    with ExitStack() as stack:
        writers = {
            kind: stack.enter_context(ColumnWriter(_path(folder, kind, file), dtype, row_shape))
            for kind, (dtype, row_shape) in shapes.items()
        }
        for columns, without_key in _column_batches(inputs, file, config, rejects):
            missing += without_key
            for kind, writer in writers.items():
                writer.add(columns[kind])
        parts = {kind: writer.finish() for kind, writer in writers.items()}
    if rejects.summary is None:
        raise AssertionError("a reader ended without a summary")
    data = npy_bytes(rejects.rows)
    write_atomic(_path(folder, "rejects", file), data)
    record = {
        "source": inputs.source,
        "path": inputs.path,
        "stamp": _stamp(inputs, config.dedup),
        "summary": asdict(rejects.summary),
        "missing_order_keys": missing,
        "parts": {**parts, "rejects": {"size_bytes": len(data), "digest": digest_bytes(data)}},
    }
    write_atomic(_path(folder, "file", file), canonical_json({**record, "digest": digest_of(record)}))
    return rejects.summary


def _column_shapes(config: DedupConfig) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Kind of part -> type and shape of one row."""
    shapes: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {"documents": (DOCUMENT_DTYPE, ())}
    if "minhash" in config.methods:
        shapes["signatures"] = (np.dtype("<u4"), (config.minhash.num_permutations,))
    if "simhash" in config.methods:
        shapes["simhash"] = (np.dtype("<u8"), ())
    return shapes


def is_signed(inputs: InputFile, file: int, folder: Path) -> bool:
    """Whether the summary of this very file is there (the stage's digest answers for the configuration)."""
    try:
        record = json.loads(_path(folder, "file", file).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and (record.get("source"), record.get("path")) == (inputs.source, inputs.path)


def _load_record(folder: Path, file: int) -> dict[str, Any]:
    path = _path(folder, "file", file)
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        if record.pop("digest") != digest_of(record):
            raise ValueError("not the record that was written")
        stamp = record["stamp"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            "TR-DEDUP-SIGNED", f"the file is not signed: {error}", str(path), "a finished signing stage"
        ) from error
    _check_same(path, "text rules", stamp["text"], text_stamp())
    return record


def _check_same(path: Path, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise RefusedError(
            "TR-DEDUP-OTHER",
            f"signed by other {what}: {canonical_json(found).decode().strip()}",
            str(path),
            canonical_json(expected).decode().strip(),
            "start with a fresh output folder",
        )


def load_summary(folder: Path, file: int) -> FileSummary:
    """The summary of a signed file.

    Raises:
        DamageError: the file is not signed.
        RefusedError: it was signed by other text rules.
    """
    return FileSummary(**_load_record(folder, file)["summary"])


def missing_order_keys(folder: Path, file: int) -> int:
    """Documents of a signed file whose date or quality could not be read; 0 without such a policy.

    Raises:
        DamageError: the file is not signed.
        RefusedError: it was signed by other text rules.
    """
    return int(_load_record(folder, file)["missing_order_keys"])


def load_rejects(folder: Path, file: int) -> NDArray[Any]:
    """Rejects (``REJECT_DTYPE``) of a signed file.

    Raises:
        DamageError: missing or damaged.
        RefusedError: signed by other text rules.
    """
    path = _path(folder, "rejects", file)
    expected = _load_record(folder, file)["parts"]["rejects"]
    data = path.read_bytes() if path.exists() else b""
    if digest_bytes(data) != expected["digest"]:
        raise DamageError(
            "TR-DEDUP-DAMAGED", "not the bytes that were written", str(path), f"xxh3-128 {expected['digest']}"
        )
    array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def load_signed(folder: Path, file: int, config: DedupConfig | None = None, *, verify: bool = True) -> SignedFile:
    """Documents, signatures and fingerprints of a signed file, verified and mapped (read-only).

    Args:
        folder: of the signing stage.
        file: index of the file.
        config: if given, signatures of other parameters are refused.
        verify: False where this process has verified the same files before (see ``map_column``).

    Raises:
        DamageError: missing or damaged, naming the file.
        RefusedError: signed by other text rules or parameters, naming the file.
    """
    record = _load_record(folder, file)
    if config is not None:
        found = record["stamp"]["signatures"]
        _check_same(_path(folder, "file", file), "signature parameters", found, signature_stamp(config))
    parts: dict[str, NDArray[Any]] = {
        kind: map_column(_path(folder, kind, file), part, verify=verify)
        for kind, part in record["parts"].items()
        if kind != "rejects"
    }
    if parts["documents"].dtype != DOCUMENT_DTYPE:
        raise DamageError("TR-DEDUP-DAMAGED", "rows of another form", str(_path(folder, "documents", file)))
    return SignedFile(parts["documents"], parts.get("signatures"), parts.get("simhash"))
