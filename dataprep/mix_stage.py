"""The mix stage: one task that reads every tokenised document's length, plans, and lists what is left out.

``mix.json``: rows of ``SourceMix``, the plan's stages, and per source the largest kept key (a document stays if its key
is not above it). ``mixed_out.parquet``: the documents left out, with the columns of ``removed.parquet`` and method
``mix``; those that were thinned before tokenising are among them, so it does not show where they were left out.

Legend: D documents of a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError, JobError
from loader.files import write_atomic

from .arrays import load_array
from .job import Job
from .keys import document_keys
from .mix import SourceMix, keep_cover, realised
from .mix_plan import MixPlan, PlannedStage, plan_mix
from .stages import read_json
from .tables import REMOVED_SCHEMA, write_parquet
from .thin import Thinning
from .token_facts import read_facts

__all__ = ["Mix", "MixDocuments", "read_mix"]

_LEFT_OUT_DTYPE = np.dtype([("file", "<i8"), ("record", "<i8"), ("id", "<u8")])


@dataclass(frozen=True)
class Mix:
    """The mix stage's result.

    Attributes:
        rows: of each source.
        stages: of the plan.
        limits: source -> largest kept key of purpose "mix".
        held_out_tokens: source -> tokens of its validation documents, which the mix leaves alone.
    """

    rows: tuple[SourceMix, ...]
    stages: tuple[PlannedStage, ...]
    limits: Mapping[str, int]
    held_out_tokens: Mapping[str, int]


def read_mix(folder: Path) -> Mix:
    """The result of a finished mix stage.

    Raises:
        DamageError: it cannot be read.
    """
    content = read_json(folder / "mix.json")
    try:
        rows = tuple(SourceMix(**row) for row in content["rows"])
        stages = tuple(PlannedStage(**stage) for stage in content["stages"])
        limits = {source: int(limit, 16) for source, limit in content["limits"].items()}
        return Mix(rows, stages, limits, {s: int(tokens) for s, tokens in content["held_out_tokens"].items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamageError("TR-WORK-DAMAGED", f"the mix cannot be read: {error}", str(folder / "mix.json")) from error


class MixDocuments(PipelineStep):  # type: ignore[misc]
    """See the module. ``folders``: the tokenise and the tokenizer stage's, and the one to write to; ``thinning``: what
    was left out before tokenising."""

    name = "mix documents"
    type = "tokenreel"

    def __init__(self, job: Job, folders: tuple[Path, Path, Path], thinning: Thinning | None = None) -> None:
        super().__init__()
        self.job = job
        self.tokenised, self.tokenizer_stage, self.out = folders
        self.thinning = thinning

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write ``mixed_out.parquet``, then ``mix.json``.

        Raises:
            JobError: a source has nothing left, or thinning left too little of it.
            RefusedError: the plan needs a source too often, or not at all.
        """
        config = self.job.config
        borders = read_facts(self.tokenizer_stage).num_borders
        tables = [load_array(self.tokenised / f"documents.{file:05d}.npy") for file in range(len(self.job.inputs))]
        documents = {source: self._source(source, tables, 0) for source in config.sources}
        thinned = {source: self._thinned(source) for source in config.sources}
        found = {s: int(t["num_tokens"].sum()) + borders * len(t) for s, (t, _) in documents.items()}
        missing = {s: self.thinning.missing_tokens(s) if self.thinning else (0, 0) for s in config.sources}
        # at most so many tokens were thinned; the plan must not take the source for one that runs out
        plan = plan_mix({s: found[s] + missing[s][1] for s in found}, config.mix, config.pack.seq_len)
        self._check_thinned(plan, found, thinned)
        kept, limits, out_tables = {}, {}, []
        for source, (table_D, file_D) in documents.items():
            key_D = document_keys(table_D["id"], config.seed, "mix")
            tokens_D = table_D["num_tokens"].astype(np.int64) + borders
            kept_D = keep_cover(key_D, tokens_D, plan.keep_tokens[source])
            kept[source] = (int(kept_D.sum()), int(tokens_D[kept_D].sum()))
            limits[source] = f"{int(key_D[kept_D].max()):016x}"
            left_out_D = _left_out(file_D[~kept_D], table_D["record"][~kept_D], table_D["id"][~kept_D])
            out_tables.append(self._removed(source, np.concatenate([left_out_D, thinned[source]])))
        available = {s: (len(documents[s][0]) + len(thinned[s]), found[s] + missing[s][0]) for s in found}
        rows = realised(plan, available, kept, {source: len(left_D) for source, left_D in thinned.items()})
        write_parquet(self.out / "mixed_out.parquet", pa.concat_tables(out_tables))
        content = {
            "rows": [row.to_json() for row in rows],
            "stages": [asdict(stage) for stage in plan.stages],
            "limits": limits,
            "held_out_tokens": self._held_out_tokens(tables, borders),
        }
        write_atomic(self.out / "mix.json", canonical_json(content))
        self.stat_update("tokens", value=sum(row.kept_tokens for row in rows), unit="mix")
        return iter(())

    def _held_out_tokens(self, tables: list[NDArray[np.void]], borders: int) -> dict[str, int]:
        held_out = {source: self._source(source, tables, 1)[0] for source in self.job.config.sources}
        return {s: int(t["num_tokens"].sum()) + borders * len(t) for s, t in held_out.items()}

    def _source(
        self, source: str, tables: list[NDArray[np.void]], split: int
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Documents of a source in a split, and the file of each."""
        files = self._files(source)
        parts = [tables[file][tables[file]["split"] == split] for file in files]
        owners = [np.full(len(part), file, np.int64) for file, part in zip(files, parts, strict=True)]
        return np.concatenate(parts), np.concatenate(owners)

    def _files(self, source: str) -> list[int]:
        return [file for file, inputs in enumerate(self.job.inputs) if inputs.source == source]

    def _thinned(self, source: str) -> NDArray[np.void]:
        """Documents of a source that were left out before tokenising."""
        parts = [np.zeros(0, _LEFT_OUT_DTYPE)]
        if self.thinning is not None:
            for file in self._files(source):
                record_D, id_D = self.thinning.left_out(file)
                parts.append(_left_out(np.full(len(record_D), file), record_D, id_D))
        return np.concatenate(parts)

    def _check_thinned(self, plan: MixPlan, found: Mapping[str, int], thinned: Mapping[str, NDArray[np.void]]) -> None:
        """Refuse to make a source smaller than planned because an estimate fell short."""
        for source, budget in plan.keep_tokens.items():
            if len(thinned[source]) and found[source] < budget:
                raise JobError(
                    "TR-MIX-THIN",
                    f"source {source!r} was thinned by an estimate of its tokens that fell short: {found[source]:,} "
                    f"tokens were kept, the plan needs {budget:,}",
                    source,
                    "documents whose tokens a byte are those of the sample",
                    "run again with --set mix.thin=false, which tokenises every document",
                )

    def _removed(self, source: str, left_out_D: NDArray[np.void]) -> pa.Table:
        """Documents left out, in order of file and record."""
        left_out_D = left_out_D[np.lexsort((left_out_D["record"], left_out_D["file"]))]
        count = len(left_out_D)
        paths = [self.job.inputs[file].path for file in left_out_D["file"].tolist()]
        known = {
            "document": pa.array(left_out_D["id"]),
            "source": pa.array([source] * count, pa.string()),
            "file": pa.array(paths, pa.string()),
            "record": pa.array(left_out_D["record"]),
            "method": pa.array(["mix"] * count, pa.string()),
        }
        columns = [known.get(field.name, pa.nulls(count, field.type)) for field in REMOVED_SCHEMA]
        return pa.Table.from_arrays(columns, schema=REMOVED_SCHEMA)


def _left_out(file_D: NDArray[Any], record_D: NDArray[Any], id_D: NDArray[Any]) -> NDArray[np.void]:
    rows_D = np.zeros(len(file_D), _LEFT_OUT_DTYPE)
    rows_D["file"], rows_D["record"], rows_D["id"] = file_D, record_D, id_D
    return rows_D
