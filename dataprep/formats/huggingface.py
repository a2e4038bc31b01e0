"""Files of a Hugging Face dataset on disk (``*.arrow`` as ``save_to_disk`` writes them, ``*.parquet``), through
datatrove's ``HuggingFaceDatasetReader``.

Each input stays one file: it goes to ``datasets`` alone, streamed, with the builder that its suffix names: no network,
no code of the dataset, no cache left behind. datatrove drops rows without text and numbers the rest; its adapter sees
every row, so rows are numbered there. Where ``datasets`` gives a file up (one bad byte is enough for it), the format's
own reader goes on from that row, so that a bad record costs itself here too. ``datasets`` holds a row group or record
batch in memory, with a copy or two; a file with one of more than 64 MiB is left to the format's own reader.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader.errors import TokenreelError
from loader.text.arrow_records import ArrowSource, open_schema
from loader.text.extras import need_extra
from loader.text.huggingface_records import huggingface_kind
from loader.text.parquet_records import (
    column_chunks,
    group_rows,
    is_text_type,
    open_parquet,
    rows_at_once,
)

from ..documents import RejectReason
from .arrow import Expansion, is_damage, read_arrow
from .base import RawBatch, ReadRequest, RejectSink
from .collect import Collector
from .columns import json_of, wanted_columns
from .decompress import BombGuard, ByteStream, missing
from .parquet import damage, read_parquet

__all__ = ["read_huggingface"]

_ROWS_AT_ONCE = 1000
_ROW_BYTES = 8
_CHUNK_BYTES = 1 << 20
_LARGEST_BYTES = 64 << 20


def read_huggingface(path: Path, request: ReadRequest, rejects: RejectSink) -> Iterator[RawBatch]:
    """Read the text column of one file of a Hugging Face dataset.

    Raises:
        ConfigError: there is no such file; no such column; ``TR-INPUT-EXTRA``: ``datasets`` is missing.
        DamageError: see the readers of Arrow and Parquet; the rows in front of it have been yielded.
    """
    need_extra("hf", path)
    kind = huggingface_kind(path)
    with ByteStream(path, request.options) as stream:
        while stream.read(_CHUNK_BYTES):
            pass
        found = (stream.position, stream.stream_hash)
    reader = read_arrow if kind == "arrow" else read_parquet
    shape = _shape(path, kind, request)
    collector = Collector(request, rejects)
    rows = _Rows(request, shape.stop_P, collector)
    if shape.is_text and shape.largest_bytes <= _LARGEST_BYTES:
        yield from _read_rows(path, kind, (request, shape), rows)
    if rows.number < shape.num_rows or shape.is_cut:
        keep_R = np.ones(shape.num_rows, np.bool_) if request.keep_R is None else request.keep_R.copy()
        keep_R[: rows.number] = False
        rest = RejectSink()
        for batch in reader(path, replace(request, keep_R=keep_R), rest):
            collector.num_documents += len(batch.text)
            yield batch
        rejects.add(rest.rows)
    collector.finish(shape.num_rows, 0, found)


def _read_rows(path: Path, kind: str, job: tuple[ReadRequest, _Shape], rows: _Rows) -> Iterator[RawBatch]:
    """Batches of rows as datatrove hands them on, up to where ``datasets`` gives up."""
    with tempfile.TemporaryDirectory() as cache:
        documents = _documents(path, kind, job, rows.adapter, cache)
        while True:
            try:
                with _offline():
                    document = next(documents, None)
            except TokenreelError:
                raise
            except Exception:  # whatever datasets raises: our own reader finds the row and says what is wrong
                break
            if document is None:
                break
            rows.take(document)
            if rows.collector.is_full and (batch := rows.collector.batch()) is not None:
                yield batch
        rows.flush(rows.number)
        if (batch := rows.collector.batch()) is not None:
            yield batch


def _scan_options() -> dict[str, Any]:
    """What keeps a row group out of memory and verifies pages, as far as the installed ``datasets`` lets one say it."""
    import pyarrow.dataset as ds

    config = import_module("datasets.packaged_modules.parquet.parquet").ParquetConfig
    if "fragment_scan_options" not in config.__dataclass_fields__:  # before 4.2
        return {}
    return {
        "fragment_scan_options": ds.ParquetFragmentScanOptions(
            use_buffered_stream=True, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
        )
    }


@contextmanager
def _offline() -> Iterator[None]:
    """While inside, ``datasets`` asks its hub nothing: it would count even the loading of a local file there."""
    config: Any = import_module("datasets").config
    names = [name for name in ("HF_HUB_OFFLINE", "HF_UPDATE_DOWNLOAD_COUNTS") if hasattr(config, name)]
    before = {name: getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, name == "HF_HUB_OFFLINE")
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _documents(
    path: Path, kind: str, job: tuple[ReadRequest, _Shape], adapter: Callable[..., dict[str, Any]], cache: str
) -> Iterator[Any]:
    """datatrove's documents of a file."""
    from datatrove.pipeline.readers import HuggingFaceDatasetReader

    request, shape = job
    options: dict[str, Any] = {"data_files": {"train": [str(path.absolute())]}, "split": "train", "cache_dir": cache}
    if kind == "parquet":
        columns = [request.text_field, *([request.options.extra_field] if shape.has_extra else [])]
        options.update(batch_size=shape.rows_at_once, columns=columns, **_scan_options())
    reader = HuggingFaceDatasetReader(
        kind,
        dataset_options=options,
        streaming=True,
        batch_size=shape.rows_at_once,
        text_key=request.text_field,
        adapter=adapter,
    )
    documents: Iterator[Any] = reader.run(None, 0, 1)
    return documents


@dataclass(frozen=True)
class _Shape:
    """What is known of a file before it is read: ``stop_P`` rows up to the end of each row group or record batch,
    ``largest_bytes`` of the largest of them, ``is_cut`` whether there is damage behind the last."""

    stop_P: NDArray[np.int64]
    is_text: bool
    has_extra: bool
    rows_at_once: int
    largest_bytes: int
    is_cut: bool = False

    @property
    def num_rows(self) -> int:
        """All rows."""
        return int(self.stop_P[-1]) if len(self.stop_P) else 0


def _shape(path: Path, kind: str, request: ReadRequest) -> _Shape:
    try:
        if kind == "arrow":
            return _arrow_shape(path, request)
        with open_parquet(path) as file:
            schema = file.schema_arrow
            is_text, has_extra = _columns(path, schema, request)
            rows = group_rows(file)
            fewest, largest = _group_sizes(path, file, request) if is_text else (_ROWS_AT_ONCE, 0)
            return _Shape(np.cumsum(np.array(rows, np.int64)), is_text, has_extra, fewest, largest)
    except FileNotFoundError as error:
        raise missing(path, error) from error
    except Exception as error:
        if not is_damage(error):
            raise
        raise damage(path, "its footer" if kind == "parquet" else "its schema", error) from error


def _group_sizes(path: Path, file: Any, request: ReadRequest) -> tuple[int, int]:
    """Rows to read at once, and bytes of the largest row group; if one is damaged, more than is left to ``datasets``:
    the format's own reader gives the rows in front of it."""
    fewest, largest, field = _ROWS_AT_ONCE, 0, [request.text_field]
    try:
        for group in range(file.metadata.num_row_groups):
            fewest = min(fewest, rows_at_once(path, file, group, field, request.options.batch_bytes))
            sizes = (chunk.total_uncompressed_size for chunk in column_chunks(file, group, field))
            largest = max(largest, sum(sizes))
    except Exception as error:
        if not is_damage(error):
            raise
        return fewest, _LARGEST_BYTES + 1
    return fewest, largest


def _columns(path: Path, schema: pa.Schema, request: ReadRequest) -> tuple[bool, bool]:
    text_field, *extra = wanted_columns(path, schema.names, request)
    return is_text_type(schema.field(text_field).type), bool(extra)


def _arrow_shape(path: Path, request: ReadRequest) -> _Shape:
    schema = open_schema(path)
    is_text, has_extra = _columns(path, schema, request)
    guard = BombGuard(path, path.stat().st_size, request.options)
    expansion = Expansion(path, request.options)
    sizes = [0]

    def seen(data: bytes | memoryview) -> None:
        sizes[-1] += len(data)

    source = ArrowSource(path, [schema.names.index(request.text_field)], seen=seen, check=expansion.check)
    rows, is_cut = [], False
    try:
        for batch in source.reader:
            guard.add(_ROW_BYTES * batch.num_rows)
            rows.append(batch.num_rows)
            sizes[-1] = max(sizes[-1], batch.nbytes)
            sizes.append(0)
        source.finish()
    except Exception as error:
        if not is_damage(error):
            raise
        is_cut = True
    finally:
        source.close()
    return _Shape(np.cumsum(np.array(rows, np.int64)), is_text, has_extra, _ROWS_AT_ONCE, max(sizes), is_cut)


@dataclass
class _Rows:
    """Numbers the rows as datatrove's adapter sees them, and keeps documents and rejects in their order.

    Attributes:
        number: rows seen.
    """

    request: ReadRequest
    stop_P: NDArray[np.int64]
    collector: Collector
    number: int = 0
    _bad: deque[tuple[int, RejectReason]] = field(default_factory=deque)

    def adapter(self, _reader: object, data: dict[str, Any], _path: str, _id: int | str) -> dict[str, Any]:
        """One row for datatrove: its text, its number as id; a row without text is dropped there and noted here."""
        record, self.number = self.number, self.number + 1
        text = data.get(self.request.text_field)
        if not isinstance(text, str) or not text:
            self._bad.append((record, RejectReason.EMPTY if text == "" else RejectReason.TEXT_TYPE))
            text = ""
        extra = data.get(self.request.options.extra_field or "")
        return {"text": text, "id": str(record), "metadata": {"extra": extra}}

    def _start(self, record: int) -> int:
        return int(np.searchsorted(self.stop_P, record, side="right"))

    def flush(self, before: int) -> None:
        """Hand on the rows without text before ``before``."""
        while self._bad and self._bad[0][0] < before:
            record, reason = self._bad.popleft()
            self.collector.reject(record, self._start(record), reason)

    def take(self, document: Any) -> None:
        """A document of datatrove's."""
        record = int(document.id)
        self.flush(record)
        extra = json_of(document.metadata["extra"]) if self.request.options.extra_field else b""
        self.collector.add(record, self._start(record), document.text.encode("utf-8", "surrogatepass"), extra)
