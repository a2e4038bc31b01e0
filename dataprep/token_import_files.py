"""The first stage of ``import``: the records of each file of a token set as a part of a token store.

Legend: R records of a batch, D documents of a part, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError, RefusedError
from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.shards.manifest import InputFile
from loader.text.records import document_ids

from .config import PackConfig, ShardsConfig
from .cut_segments import GAP_DTYPE
from .imports import IMPORTS
from .imports.base import RecordBatch, SetFile, SetOptions, check_length
from .kernels.token_runs import copy_runs
from .keys import document_keys
from .stages import RawFile
from .token_facts import TokenFacts
from .token_store import PART_DTYPE, ByteSums

__all__ = ["FoundFiles", "ImportFiles", "ImportOptions"]


@dataclass(frozen=True)
class ImportOptions:
    """What to import, and how to pack it.

    Attributes:
        format: key of ``IMPORTS``.
        sources: source -> paths.
        set: column and dtype of tokens.
        tokenizer: a tokenizer folder, or None.
        vocab_size: None: the tokenizer's.
        pad_id: None: the tokenizer's, else 0.
        pack, shards, seed: as in a build.
        keep_samples: every record is a sample already.
    """

    format: str
    sources: Mapping[str, tuple[Path, ...]]
    set: SetOptions
    tokenizer: Path | None
    vocab_size: int | None
    pad_id: int | None
    pack: PackConfig
    shards: ShardsConfig = field(default_factory=ShardsConfig)
    seed: int = 17
    keep_samples: bool = False


@dataclass(frozen=True)
class FoundFiles:
    """Files of all sources, in order, with the folder that each source's paths are relative to."""

    files: tuple[SetFile, ...]
    owners: tuple[str, ...]
    roots: Mapping[str, Path]
    raw: tuple[RawFile, ...]

    def relative(self, file: int) -> str:
        """Path of a file, below its source's root."""
        return self.files[file].path.relative_to(self.roots[self.owners[file]]).as_posix()

    def input_files(self) -> tuple[InputFile, ...]:
        """As files.txt lists them: the files with tokens, with the sizes and hashes that were read."""
        by_path = {raw.path: raw for raw in self.raw}
        found = []
        for number, file in enumerate(self.files):
            raw = by_path[str(file.path)]
            found.append(InputFile(self.owners[number], self.relative(number), raw.size_bytes, raw.digest))
        return tuple(found)


class ImportFiles(PipelineStep):  # type: ignore[misc]
    """Read file ``rank`` and leave its records as part ``rank`` of a token store."""

    name = "import tokens"
    type = "tokenreel"

    def __init__(self, options: ImportOptions, found: FoundFiles, facts: TokenFacts, out: Path) -> None:
        super().__init__()
        self.options = options
        self.found = found
        self.facts = facts
        self.out = out

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Read file ``rank``.

        Raises:
            DamageError: it is not what its index says, or holds an id outside the vocabulary.
            RefusedError: with ``keep_samples``, a record of another length; a record of 2^31 tokens or more.
        """
        tables: list[NDArray[np.void]] = []
        counts = {"records": 0, "empty": 0, "tokens": 0}
        write_atomic(self.out / f"tokens.{rank:05d}.bin", self._runs(rank, tables, counts))
        write_atomic(self.out / f"gaps.{rank:05d}.npy", npy_bytes(np.zeros(0, GAP_DTYPE)))
        table_D = np.concatenate([np.zeros(0, PART_DTYPE), *tables])
        table_D = table_D[np.argsort(table_D["key"], kind="stable")]
        write_atomic(self.out / f"counts.{rank:05d}.json", canonical_json(counts))
        write_atomic(self.out / f"documents.{rank:05d}.npy", npy_bytes(table_D))
        self.stat_update("documents", value=len(table_D), unit="file")
        return iter(())

    def _runs(self, rank: int, tables: list[NDArray[np.void]], counts: dict[str, int]) -> Iterator[bytes]:
        """Tokens batch by batch, each batch's records sorted by key; their rows go to ``tables``."""
        place = 0
        for batch in IMPORTS[self.options.format].read(self.found.files[rank], self.options.set):
            self._check(rank, batch)
            ids_T = batch.ids_T.astype(self.facts.stored_dtype, copy=False)
            stop_R = np.cumsum(batch.num_tokens_R)
            start_R = stop_R - batch.num_tokens_R
            real_R = np.flatnonzero(batch.num_tokens_R > 0)
            rows_D = self._rows(rank, batch, real_R)
            sums = ByteSums(ids_T, self.facts)
            rows_D["num_bytes"] = sums.before(stop_R[real_R]) - sums.before(start_R[real_R])
            order_D = np.argsort(rows_D["key"], kind="stable")
            rows_D, real_R = rows_D[order_D], real_R[order_D]
            sizes_D = batch.num_tokens_R[real_R]
            start_D = np.cumsum(sizes_D) - sizes_D
            rows_D["place"] = place + start_D
            place += len(ids_T)
            tables.append(rows_D)
            counts["records"] += len(batch.num_tokens_R)
            counts["empty"] += len(batch.num_tokens_R) - len(real_R)
            counts["tokens"] += len(ids_T)
            out_T = np.empty_like(ids_T)
            copy_runs(out_T, start_D, ids_T, start_R[real_R], sizes_D)
            yield out_T.tobytes()

    def _rows(self, rank: int, batch: RecordBatch, real_R: NDArray[np.int64]) -> NDArray[np.void]:
        rows_D = np.zeros(len(real_R), PART_DTYPE)
        records = batch.first_record + real_R
        rows_D["id"] = document_ids(self.found.owners[rank], self.found.relative(rank), records, self.options.seed)
        rows_D["key"] = document_keys(rows_D["id"], self.options.seed, "bucket")
        rows_D["record"] = rows_D["gap_row"] = records
        rows_D["record_start"] = batch.start_R[real_R]
        rows_D["num_tokens"] = batch.num_tokens_R[real_R]
        rows_D["file"] = rank
        return rows_D

    def _check(self, rank: int, batch: RecordBatch) -> None:
        """Ids inside the vocabulary; lengths that a Dataset can hold, and that were promised."""
        path = self.found.files[rank].path
        ids_T, num_tokens_R = batch.ids_T, batch.num_tokens_R
        vocab_size = self.facts.vocab_size
        if len(num_tokens_R):
            record = int(np.argmax(num_tokens_R))
            check_length(int(num_tokens_R[record]), path, batch.first_record + record)  # before anything is read
        if len(ids_T) and not 0 <= int(ids_T.min()) <= int(ids_T.max()) < vocab_size:
            token = int(np.argmax((ids_T < 0) | (ids_T >= vocab_size)))
            record = batch.first_record + int(np.searchsorted(np.cumsum(num_tokens_R), token, side="right"))
            raise DamageError(
                "TR-TOKEN-ID",
                f"token id {int(ids_T[token])} is outside the vocabulary",
                f"{path} record {record}",
                f"ids from 0 to {vocab_size - 1:,}",
                "a larger --vocab-size, or the right --dtype",
            )
        wrong_R = num_tokens_R != self.options.pack.seq_len
        if self.options.keep_samples and wrong_R.any():
            record = int(np.argmax(wrong_R))
            raise RefusedError(
                "TR-IMPORT-SAMPLE",
                f"a record of {int(num_tokens_R[record]):,} tokens is no sample",
                f"{path} record {batch.first_record + record}",
                f"{self.options.pack.seq_len:,} tokens in every record",
                "leave out --keep-samples: records are then packed as documents",
            )
