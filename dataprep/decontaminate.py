"""Decontamination as three datatrove stages: index the benchmark items, search every file, judge once.

Rule: a document is contaminated by an item if it holds at least ``threshold`` of the item's distinct n-grams (13
words by the rules of ``dataprep.normalize``, so whatever the wrapping, case, punctuation, NFC or NFD; composed Hangul
excepted), however long the document is. An item with fewer than n words must occur whole, in one piece; below
``min_words`` words it is listed as unmatchable. An item is its question with the gold answer. As leaks write
something between them, it counts with each of ``joints`` there as well, and with ``question_alone`` a question of n
words or more counts by itself; the best of these scores is the item's. n-grams of ``allow`` texts are no part of any
item. n-grams that more than ``frequent_documents`` documents hold are *reported* as frequent, and hits that rest on
nothing else are marked; they still count until someone has looked at them and allows them, since what is frequent may
be a saying, or a leak with many copies.

``IndexItems`` (one task) reads the items, writes the index (see ``decontamination.index``) and ``canary.json``, having
planted a sample of the items and found all of them.

``FindItems`` (file ``i`` belongs to task ``i % world_size``) writes what each file holds (``decontamination.files``).

``JudgeDocuments`` (one task) writes::

    verdict.00012.npy      uint8 per record: 0 = goes on, k = label k. drop: what is contaminated; cut: of that, what
                           would be left with white space at most; report: nothing
    cuts.00012.npy         CUT_DTYPE, method "decontaminate"; empty unless action is cut
    screen.00012.json      {"labels": ["", "decontaminate: gsm8k", ...], "report": {documents, contaminated}}
    contamination.parquet  every hit: document u8, source, file, record, benchmark, split, item, score, matched, grams,
                           byte_start, byte_stop, ngram (the rarest that matched), ngram_documents, frequent
    frequent.parquet       n-grams of items in more than frequent_documents documents: ngram, documents, items, and
                           benchmark, split, item of the first item that holds it
    items.parquet          every item: benchmark, split, item, words, grams, status, documents_hit
    report.json            the rule; per benchmark and split items, matchable, unmatchable, duplicate, allowed,
                           items_hit, documents_hit, documents_hit_by_frequent_only; documents per source; canary;
                           written last

Only documents that earlier screens let go on are searched and counted, and none of sources that opt out of
``decontaminate``. All outputs are functions of data and configuration, whatever the tasks and the order of files.
Errors: ConfigError (items missing or malformed), JobError (a benchmark without matchable items, a planted item not
found), DamageError (truncated input).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import RefusedError
from loader.files import write_atomic
from loader.shards.access import npy_bytes

from .cuts import CUT_DTYPE, save_cuts
from .decontamination.canary import check_canary
from .decontamination.files import FileFound, is_searched, load_found, search_file
from .decontamination.index import ItemIndex, build_index, check_matchable, load_index, save_index
from .decontamination.items import items_identity, read_items
from .decontamination.report import count_documents, hit_table, write_report
from .decontamination.search import ItemFinder
from .documents import InputFile
from .formats import ReadOptions
from .screen_config import DecontaminateConfig
from .stages import read_json

__all__ = ["FindItems", "IndexItems", "JudgeDocuments", "items_identity"]

METHOD = "decontaminate"


class IndexItems(PipelineStep):  # type: ignore[misc]
    """Read the items, index them, and show on planted ones that they are found.

    Args:
        config, base: the rule, and the folder of relative paths.
        folder: where to write.
        salt: of the planted sample.
        expected: ``items_identity`` as the stage's digest has it; None = any.
    """

    name = "index benchmark items"
    type = "tokenreel"

    def __init__(
        self,
        config: DecontaminateConfig,
        base: str | Path,
        folder: str | Path,
        salt: int,
        expected: Sequence[object] | None = None,
    ) -> None:
        super().__init__()
        self.expected = expected
        self.config = config
        self.base = Path(base)
        self.folder = Path(folder)
        self.salt = salt

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write the index; rank 0 works, other ranks have nothing to do.

        Raises:
            RefusedError: the items are not the expected ones.
        """
        if rank == 0:
            with self.track_time("job"):
                items = read_items(self.config, self.base)
                if self.expected is not None and items_identity(self.config, self.base) != list(self.expected):
                    raise RefusedError(
                        "TR-INPUT-CHANGED",
                        "benchmark items changed while the job was running",
                        "decontaminate.benchmarks",
                        "the items that were there when it began",
                        "run the same command again; it starts from the new items",
                    )
                index = build_index(items, self.config)
                check_matchable(index, self.config)
                save_index(index, self.folder)
                canary: dict[str, int] | None = None
                if self.config.canary:
                    canary = check_canary(load_index(self.folder), self.config.threshold, self.salt)
                write_atomic(self.folder / "canary.json", canonical_json({"canary": canary}))
            self.stat_update("items", value=len(index.items), unit="job")
        yield from ()


class FindItems(PipelineStep):  # type: ignore[misc]
    """Search input files for the indexed items.

    Args:
        inputs: all input files.
        config: the rule.
        index, folder: what :class:`IndexItems` wrote, and where to write.
        screens: folders of the screens in front, whose verdicts say which records are looked at.
        options: how files are read.
    """

    name = "find benchmark items"
    type = "tokenreel"

    def __init__(
        self,
        inputs: Sequence[InputFile],
        config: DecontaminateConfig,
        index: str | Path,
        folder: str | Path,
        screens: Sequence[str | Path] = (),
        options: ReadOptions | None = None,
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.index = Path(index)
        self.folder = Path(folder)
        self.screens = tuple(Path(screen) for screen in screens)
        self.options = options or ReadOptions()

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Search the files of this task; passes nothing on. Files with a ``found.N.json`` are done already."""
        files = [f for f in range(rank, len(self.inputs), world_size) if not is_searched(self.folder, f)]
        finder = ItemFinder(load_index(self.index, with_texts=False), self.config.threshold) if files else None
        for file in files:
            if finder is not None:
                with self.track_time("file"):
                    found = search_file(self.inputs[file], file, finder, self.options, (self.folder, self.screens))
                self.stat_update("documents", value=found.num_documents, unit="file")
                self.stat_update("contaminated", value=len(np.unique(found.hits["record"])), unit="file")
        yield from ()


class JudgeDocuments(PipelineStep):  # type: ignore[misc]
    """Turn what all files hold into verdicts, cuts and the report.

    Args:
        inputs, config: as for :class:`FindItems`.
        index, found, folder: what the two stages in front wrote, and where to write.
        salt: of document ids.
    """

    name = "judge contamination"
    type = "tokenreel"

    def __init__(
        self,
        inputs: Sequence[InputFile],
        config: DecontaminateConfig,
        index: str | Path,
        found: str | Path,
        folder: str | Path,
        salt: int,
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.config = config
        self.index = Path(index)
        self.found = Path(found)
        self.folder = Path(folder)
        self.salt = salt

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write everything; rank 0 works, other ranks have nothing to do."""
        if rank == 0:
            with self.track_time("job"):
                self._judge()
        yield from ()

    def _judge(self) -> None:
        index = load_index(self.index)
        found = [load_found(self.found, file) for file in range(len(self.inputs))]
        hits = hit_table(self.inputs, index, found, self.config, self.salt)
        for file, one in enumerate(found):
            self._write_file(file, one, index)
        counts: dict[str, Any] = {"sources": self._count_sources(found)}
        counts["canary"] = read_json(self.index / "canary.json")["canary"]
        write_report(self.folder, index, hits, count_documents(index, found), self.config, counts)
        self.stat_update("hits", value=len(hits), unit="job")

    def _write_file(self, file: int, one: FileFound, index: ItemIndex) -> None:
        labels = ["", *(f"{METHOD}: {name}" for name in sorted(self.config.benchmarks))]
        verdict_R = np.zeros(one.num_records, np.uint8)
        emptied, cuts_C = set(one.emptied.tolist()), np.zeros(0, CUT_DTYPE)
        if self.config.action != "report":
            for record, benchmark in _worst(one, index).items():
                if self.config.action == "drop" or record in emptied:
                    verdict_R[record] = labels.index(f"{METHOD}: {benchmark}")
        if self.config.action == "cut":
            cuts_C = _cuts(one.ranges[~np.isin(one.ranges["record"], one.emptied)])
        report = {
            "documents": one.num_documents,
            "contaminated": len(np.unique(one.hits["record"])),
            "cut_bytes": int(cuts_C["byte_count"].sum()),
            "searched": one.searched,
        }
        write_atomic(self.folder / f"verdict.{file:05d}.npy", npy_bytes(verdict_R))
        save_cuts(self.folder, file, cuts_C)
        write_atomic(self.folder / f"screen.{file:05d}.json", canonical_json({"labels": labels, "report": report}))

    def _count_sources(self, found: Sequence[FileFound]) -> Mapping[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for inputs, one in zip(self.inputs, found, strict=True):
            mine = counts.setdefault(inputs.source, {"documents": 0, "contaminated": 0, "matched_bytes": 0})
            mine["documents"] += one.num_documents
            mine["contaminated"] += len(np.unique(one.hits["record"]))
            mine["matched_bytes"] += int(one.ranges["byte_count"].sum())
        return counts


def _worst(one: FileFound, index: ItemIndex) -> dict[int, str]:
    """Record -> benchmark of the item of which the document holds the largest share (of equals the first item)."""
    worst: dict[int, tuple[float, int]] = {}
    hits = one.hits
    names = ("record", "item", "form", "matched")
    for record, item, form, matched in zip(*(hits[name].tolist() for name in names), strict=True):
        rank = (-matched / int(index.grams_F[form]), item)
        worst[record] = min(worst.get(record, rank), rank)
    return {record: index.items[item].benchmark for record, (_, item) in worst.items()}


def _cuts(ranges: NDArray[Any]) -> NDArray[Any]:
    rows = np.zeros(len(ranges), CUT_DTYPE)
    for name in ("record", "byte_start", "byte_count"):
        rows[name] = ranges[name]
    rows["method"] = METHOD.encode()
    return rows
