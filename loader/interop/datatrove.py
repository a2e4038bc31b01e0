"""datatrove: ``SOURCE.ds`` (tokens, document after document), ``.ds.index`` (end of each, in tokens), ``.ds.metadata``.

As ``datatrove.pipeline.tokens.tokenizer.TokenizedFile`` writes them, and ``DatatroveFolderDataset`` reads them: whole
documents, no padding, tokens of 2 or 4 bytes. A document with a gap (see ``walk.py``) counts as one for each run.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from ..shards.layout import token_dtype
from .request import ExportedFile, ExportRequest, HashedFile, PlannedFile, Sink, write_file
from .walk import DocumentPart, DocumentWalk

__all__ = ["metadata_text", "plan_datatrove", "write_datatrove", "write_documents"]

_ENDS_A_WRITE = 1 << 16


def plan_datatrove(request: ExportRequest) -> list[PlannedFile]:
    """The files; an index is longer by 8 bytes for each gap inside a document (none in what ``build`` writes)."""
    planned = []
    for source in request.dataset.manifest.sources:
        if source.name in request.sources:
            token_bytes = token_dtype(request.dataset.manifest.vocab_size).itemsize
            planned.append(PlannedFile(f"{source.name}.ds", source.num_tokens * token_bytes))
            planned.append(PlannedFile(f"{source.name}.ds.index", source.num_documents * 8))
            planned.append(PlannedFile(f"{source.name}.ds.metadata", len(_metadata(request, source.num_tokens))))
    return planned


def write_datatrove(request: ExportRequest) -> list[ExportedFile]:
    """Three files a source.

    Raises:
        DamageError: a shard or documents.npy is not what was written.
    """
    written = []
    walk = DocumentWalk(request.dataset)
    for source in request.sources:
        tokens, ends = HashedFile(request, f"{source}.ds"), HashedFile(request, f"{source}.ds.index")
        num_tokens = 0
        with tokens, ends:
            for row, parts in walk.shards(source):
                num_tokens = write_documents(tokens, ends, parts, num_tokens)
                request.progress(int(request.dataset.shards_R["size_bytes"][row]))
        written += [tokens.record(), ends.record()]
        written.append(write_file(request, f"{source}.ds.metadata", (_metadata(request, num_tokens),)))
    return written


def write_documents(tokens: Sink, ends: Sink, parts: Iterable[DocumentPart], num_tokens: int) -> int:
    """Append documents to a ``.ds`` that holds ``num_tokens`` tokens, and their ends to its index; the tokens it then
    holds."""
    waiting = array("Q")
    for part in parts:
        for piece in part.pieces:
            tokens.write(piece.data.cast("B"))
            num_tokens += len(piece)
        waiting.append(num_tokens)
        if len(waiting) == _ENDS_A_WRITE:
            ends.write(np.array(waiting, "<u8").tobytes())
            waiting = array("Q")
    ends.write(np.array(waiting, "<u8").tobytes())
    return num_tokens


def _metadata(request: ExportRequest, num_tokens: int) -> bytes:
    manifest = request.dataset.manifest
    name = f"{manifest.tokenizer.get('kind', 'tokenizer')}-{manifest.tokenizer.get('digest', 'unknown')}"
    return metadata_text(name, token_dtype(manifest.vocab_size).itemsize, num_tokens).encode("utf-8")


def metadata_text(tokenizer: str, token_bytes: int, num_tokens: int) -> str:
    """The three lines of ``.ds.metadata``: tokenizer and bytes a token, tokens, tokens for people (``humanize.metric``:
    three digits that count)."""
    return f"{tokenizer.replace('|', '-')}|{token_bytes}\n{num_tokens}\n{_metric(num_tokens)}"


def _metric(value: int) -> str:
    exponent = len(str(value)) - 1
    scaled = value / 1000 ** (exponent // 3)
    # Rounding may carry (9,999 -> 10.0 k): then one digit more stands before the point.
    exponent += round(scaled, 2 - exponent % 3) >= 10 ** (exponent % 3 + 1)
    step = exponent // 3
    return f"{value / 1000**step:.{2 - exponent % 3}f} {['', *'kMGTPEZYRQ'][step]}T"
