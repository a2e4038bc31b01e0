"""The quality screen as a datatrove pipeline step: every filter of a configuration, in order, on every document.

``QualityDocuments`` (any number of tasks; file ``i`` belongs to task ``i % world_size``) writes into its folder, per
file index::

    verdict.00012.npy     uint8 per record number: 0 = goes on, k = dropped for label k
    cuts.00012.npy        what filters that shorten texts left out (``dataprep.cuts.CUT_DTYPE``, method = filter)
    screen.00012.json     {"labels": ["", "<filter>: <reason>", ...], "report": {...}}; written last = the file is done

The first filter that drops a document decides. Text that is not cut stays as it is, byte for byte, so a filter may only
leave parts out; the filters after it see what is left. All three files are functions of the file and the configuration.

Shapes: N documents of a batch, R records of a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from loader.canonical import canonical_json
from loader.files import write_atomic
from loader.shards.access import npy_bytes

from ..cuts import save_cuts
from ..dedup.config import IngestConfig
from ..documents import InputFile
from ..formats import RejectSink, read_file, read_options
from ..screen_config import QualityStep
from .check import ReadyStep, make_steps
from .screen import FileScreen

__all__ = ["QualityDocuments"]


class QualityDocuments(PipelineStep):  # type: ignore[misc]
    """Judge every document of each input file."""

    name = "quality filters"
    type = "tokenreel"

    def __init__(
        self,
        inputs: Sequence[InputFile],
        steps: Sequence[QualityStep],
        ingest: IngestConfig,
        folder: str | Path,
    ) -> None:
        super().__init__()
        self.inputs = tuple(inputs)
        self.steps = tuple(steps)
        self.ingest = ingest
        self.folder = Path(folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Judge the files of this task; passes nothing on. Files whose ``screen.N.json`` exists are done.

        Raises:
            ConfigError: see ``make_steps``.
            JobError: ``TR-QUALITY-FAILED`` (a filter raised), ``TR-QUALITY-REWRITES`` (it changed what it kept).
        """
        mine = [file for file in range(rank, len(self.inputs), world_size) if not self._is_done(file)]
        ready = make_steps(self.steps) if mine else []
        for file in mine:
            with self.track_time("file"):
                report = self._screen(file, ready)
            self.stat_update("documents", value=report["read"]["documents"], unit="file")
            self.stat_update("kept", value=report["kept"]["documents"], unit="file")
        yield from ()

    def _path(self, file: int) -> Path:
        return self.folder / f"screen.{file:05d}.json"

    def _is_done(self, file: int) -> bool:
        try:
            return "labels" in json.loads(self._path(file).read_bytes())
        except (OSError, ValueError, TypeError):
            return False

    def _screen(self, file: int, ready: Sequence[ReadyStep]) -> dict[str, Any]:
        inputs = self.inputs[file]
        screen = FileScreen(inputs, ready)
        rejects = RejectSink()
        options = read_options(self.ingest)
        for batch in read_file(inputs, file, options=options, rejects=rejects):
            screen.add(batch)
        if rejects.summary is None:
            raise AssertionError("a reader ended without a summary")
        report = screen.report()
        write_atomic(self.folder / f"verdict.{file:05d}.npy", npy_bytes(screen.verdicts(rejects.summary.num_records)))
        save_cuts(self.folder, file, screen.cuts())
        write_atomic(self._path(file), canonical_json({"labels": screen.labels, "report": report}))
        return report
