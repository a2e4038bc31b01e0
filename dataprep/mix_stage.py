"""The mix stage: one task that reads every tokenised document's length, shares out the budget, and lists what is left
out.

``mix.json``: rows of ``SourceMix``, and per source the largest kept key (a document stays if its key is not above it).
``mixed_out.parquet``: the documents left out, with the columns of ``removed.parquet`` and method ``mix``.

Legend: D documents of a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError
from loader.files import write_atomic
from loader.text.tokenizers import load_tokenizer

from .arrays import load_array
from .job import Job
from .keys import document_keys
from .mix import SourceMix, keep_prefix, plan_mix, realised
from .stages import read_json
from .tables import REMOVED_SCHEMA, write_parquet

__all__ = ["Mix", "MixDocuments", "read_mix"]


@dataclass(frozen=True)
class Mix:
    """The mix stage's result: ``rows`` per source, ``limits``: source -> largest kept key of purpose "mix"."""

    rows: tuple[SourceMix, ...]
    limits: Mapping[str, int]


def read_mix(folder: Path) -> Mix:
    """The result of a finished mix stage.

    Raises:
        DamageError: it cannot be read.
    """
    content = read_json(folder / "mix.json")
    try:
        rows = tuple(SourceMix(**row) for row in content["rows"])
        return Mix(rows, {source: int(limit, 16) for source, limit in content["limits"].items()})
    except (KeyError, TypeError, ValueError) as error:
        raise DamageError("TR-WORK-DAMAGED", f"the mix cannot be read: {error}", str(folder / "mix.json")) from error


class MixDocuments(PipelineStep):  # type: ignore[misc]
    """See the module. ``folders``: the tokenise and the tokenizer stage's, and the one to write to."""

    name = "mix documents"
    type = "tokenreel"

    def __init__(self, job: Job, folders: tuple[Path, Path, Path]) -> None:
        super().__init__()
        self.job = job
        self.tokenised, self.tokenizer_stage, self.out = folders

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write ``mixed_out.parquet``, then ``mix.json``.

        Raises:
            JobError: a source has nothing left.
            RefusedError: the plan needs a source too often.
        """
        config = self.job.config
        tokenizer = load_tokenizer(self.tokenizer_stage / "tokenizer")
        borders = (tokenizer.bos_id is not None) + (tokenizer.eos_id is not None)
        tables = [load_array(self.tokenised / f"documents.{file:05d}.npy") for file in range(len(self.job.inputs))]
        available, documents = {}, {}
        for source in config.sources:
            table_D, file_D = self._source(source, tables)
            documents[source] = (table_D, file_D)
            available[source] = (len(table_D), int(table_D["num_tokens"].sum()) + borders * len(table_D))
        planned = plan_mix({source: tokens for source, (_, tokens) in available.items()}, config.mix)
        kept, limits, out_tables = {}, {}, []
        for source, (table_D, file_D) in documents.items():
            key_D = document_keys(table_D["id"], config.seed, "mix")
            tokens_D = table_D["num_tokens"].astype(np.int64) + borders
            kept_D = keep_prefix(key_D, tokens_D, planned[source][2])
            kept[source] = (int(kept_D.sum()), int(tokens_D[kept_D].sum()))
            limits[source] = f"{int(key_D[kept_D].max()):016x}"
            out_tables.append(self._removed(source, table_D[~kept_D], file_D[~kept_D]))
        rows = realised(planned, available, kept)
        write_parquet(self.out / "mixed_out.parquet", pa.concat_tables(out_tables))
        content = {"rows": [row.to_json() for row in rows], "limits": limits}
        write_atomic(self.out / "mix.json", canonical_json(content))
        self.stat_update("tokens", value=sum(row.kept_tokens for row in rows), unit="mix")
        return iter(())

    def _source(self, source: str, tables: list[NDArray[np.void]]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Training documents of a source, and the file of each."""
        files = [file for file, inputs in enumerate(self.job.inputs) if inputs.source == source]
        parts = [tables[file][tables[file]["split"] == 0] for file in files]
        owners = [np.full(len(part), file, np.int64) for file, part in zip(files, parts, strict=True)]
        return np.concatenate(parts), np.concatenate(owners)

    def _removed(self, source: str, table_D: NDArray[np.void], file_D: NDArray[np.int64]) -> pa.Table:
        """Documents left out, in order of file and record."""
        order_D = np.lexsort((table_D["record"], file_D))
        table_D, file_D = table_D[order_D], file_D[order_D]
        count = len(table_D)
        paths = [self.job.inputs[file].path for file in file_D.tolist()]
        known = {
            "document": pa.array(table_D["id"]),
            "source": pa.array([source] * count, pa.string()),
            "file": pa.array(paths, pa.string()),
            "record": pa.array(table_D["record"].astype(np.int64)),
            "method": pa.array(["mix"] * count, pa.string()),
        }
        columns = [known.get(field.name, pa.nulls(count, field.type)) for field in REMOVED_SCHEMA]
        return pa.Table.from_arrays(columns, schema=REMOVED_SCHEMA)
