"""Reading one input file whatever its format, and refusing one that changed since it was read first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from loader.errors import ConfigError, RefusedError

from ..documents import DocumentBatch, InputFile
from .arrow import read_arrow
from .base import FileSummary, FormatReader, ReadOptions, ReadRequest, RejectSink
from .huggingface import read_huggingface
from .jsonl import read_jsonl
from .parquet import read_parquet
from .text import read_paragraphs, read_text
from .warc import read_warc

__all__ = ["FORMATS", "read_file"]

FORMATS: Mapping[str, FormatReader] = {
    "arrow": read_arrow,
    "huggingface": read_huggingface,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "text": read_text,
    "text_paragraphs": read_paragraphs,
    "warc": read_warc,
}
"""Format name -> reader. A new format is one file and one line here, under the contract tests of
``test_formats.py``."""


def read_file(
    inputs: InputFile,
    file: int,
    *,
    options: ReadOptions | None = None,
    keep_R: NDArray[np.bool_] | None = None,
    rejects: RejectSink | None = None,
    expected: FileSummary | None = None,
) -> Iterator[DocumentBatch]:
    """Read one input file once, from its start to its end.

    Args:
        inputs: the file; ``file`` is its index in the list of inputs.
        options: limits, batch size, extra field.
        keep_R: bool per record number; records without a True are passed over unread.
        rejects: takes the rejects, and the summary once the file has been read to its end.
        expected: the summary of an earlier pass; the stream must be the same bytes.

    Raises:
        ConfigError: no such file or format.
        DamageError: a compressed stream is cut short or corrupt (after the records in front of it).
        RefusedError: the file is not the one that ``expected`` describes; raised after its last batch.
    """
    reader = FORMATS.get(inputs.format)
    if reader is None:
        raise ConfigError("TR-INPUT-FORMAT", f"no reader for {inputs.format!r}", str(inputs.path), ", ".join(FORMATS))
    sink = rejects if rejects is not None else RejectSink()
    request = ReadRequest(inputs.text_field, options or ReadOptions(), keep_R)
    for batch in reader(inputs.location, request, sink):
        yield DocumentBatch(inputs.source, file, batch.text, batch.record_N, batch.record_start_N, batch.extra_N)
    found = sink.summary
    if expected is not None and found is not None:
        changed = found.stream_hash != expected.stream_hash or found.stream_bytes != expected.stream_bytes
        wanted = expected.num_documents if keep_R is None else int(np.count_nonzero(keep_R))
        if changed or found.num_documents != wanted:
            raise RefusedError(
                "TR-INPUT-CHANGED",
                "the input changed since it was read first",
                str(inputs.location),
                f"{expected.stream_bytes} bytes with xxh3-128 {expected.stream_hash}",
                "start with a fresh output folder",
            )
