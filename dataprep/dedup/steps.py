"""The two dedup stages as datatrove pipeline steps: sign every document, then decide once.

``SignDocuments`` (any number of tasks; file ``i`` belongs to task ``i % world_size``) writes into its folder, per file index::

    documents.00012.npy   structured: record i8, record_start i8, size_bytes i8, hash_low u8, hash_high u8, num_shingles i4
    signatures.00012.npy  (N, num_permutations) u4; absent unless "minhash" is among the methods
    rejects.00012.npy     structured: record i8, record_start i8, reason u1 (RejectReason)
    file.00012.json       FileSummary: num_records (lines, blank included), num_blank, num_documents, stream_bytes,
                          stream_hash (xxh3-128 of the decompressed bytes), disk_bytes; written last = the file is signed

``DecideDocuments`` (one task, after all of them) reads these and the candidates' texts again, and writes into its own folder::

    status.00012.npy      uint8 per record number of the file (Status), blank lines included
    removed.parquet       document u8, source, file, record, method, witness_document u8, witness_source, witness_file,
                          witness_record, similarity f8; file = relative path; in (source rank, path, record) order
    rejected.parquet      source, file, record, record_start, reason; same order
    counts.json           per source: files, records, blank, documents, bytes, rejected{reason}, removed{method}, held_out,
                          kept, kept_bytes; and the dedup figures (candidates, verified pairs, unverified, miss table);
                          written last = decided

Both are functions of data and configuration: task count, file order and threads change nothing but file indices.
Errors: DamageError (truncated input), RefusedError (input changed since it was signed), JobError (a source over
``max_reject_fraction`` or ``max_removed_fraction``, or without any document).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from ..documents import InputFile
from .config import DecideConfig, SignConfig

__all__ = ["DecideDocuments", "SignDocuments"]


class SignDocuments(PipelineStep):  # type: ignore[misc]
    """Read each input file once: rejects, content hashes, MinHash signatures."""

    name = "sign documents"
    type = "tokenreel"

    def __init__(self, inputs: Sequence[InputFile], config: SignConfig, folder: str | Path) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.folder = Path(folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Sign the files of this task; passes nothing on. Files whose ``file.N.json`` exists are signed already."""
        raise NotImplementedError


class DecideDocuments(PipelineStep):  # type: ignore[misc]
    """Decide the fate of every record from all signatures; one task."""

    name = "decide documents"
    type = "tokenreel"

    def __init__(
        self, inputs: Sequence[InputFile], config: DecideConfig, signed: str | Path, folder: str | Path
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.signed = Path(signed)
        self.folder = Path(folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write status, tables and counts; rank 0 works, other ranks have nothing to do."""
        raise NotImplementedError
