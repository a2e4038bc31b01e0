"""The stages ``gauge`` and ``thin``, which exist only where a source is far too large (see ``thin``).

``gauge``, one task a file: ``gauge.<file>.npy`` (``GAUGE_DTYPE``), bytes and tokens of the documents of the sample.
``thin``, one task: ``thin.json``, how far each source goes.

Legend: D documents of a source, G documents of the sample, R records of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.pipeline.base import PipelineStep

from loader.canonical import canonical_json
from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.text.tokenizers import load_tokenizer

from .arrays import load_array
from .dedup.signatures import load_summary
from .documents import Status
from .fates import Fates
from .formats import read_file, read_options
from .job import Job
from .stages import check_unchanged
from .thin import Candidate, cover_count, mix_keys, signed_sizes
from .token_facts import facts_of_tokenizer

__all__ = ["GAUGE_DTYPE", "MOST_TOKENS_A_BYTE", "GaugeDocuments", "ThinDocuments"]

GAUGE_DTYPE = np.dtype([("num_bytes", "<i8"), ("num_tokens", "<i8")])
"""A document of the sample: its text in UTF-8, nothing cut, and its tokens with BOS and EOS."""
MOST_TOKENS_A_BYTE = 12
"""A lossless tokenizer has at most one token a byte; normalising can make eleven bytes of one (U+FDFA under NFKC), each
of which may become a token, and a dummy prefix one more."""


class _Thinning(PipelineStep):  # type: ignore[misc]
    """What both steps know. ``folders``: the sign stage's, that of the stage before, and the one to write to."""

    type = "tokenreel"

    def __init__(
        self, job: Job, fates: Fates, found: Mapping[str, Candidate], folders: tuple[Path, Path, Path]
    ) -> None:
        super().__init__()
        self.job = job
        self.fates = fates
        self.found = found
        self.signed, self.before, self.out = folders


class GaugeDocuments(_Thinning):
    """Tokenise the sample; the stage before is the tokenizer's."""

    name = "gauge documents"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Gauge file ``rank``.

        Raises:
            RefusedError: the file is not, to the byte, the one that was deduplicated.
        """
        rows = []
        source = self.job.inputs[rank].source
        if source in self.found:
            status_R = self.fates.status_of_file(rank)
            record_D = np.flatnonzero(status_R == Status.KEPT)
            key_D, _ = mix_keys(self.job, rank, record_D)
            keep_R = np.zeros(len(status_R), np.bool_)
            keep_R[record_D[key_D <= np.uint64(self.found[source].sample_limit)]] = True
            if keep_R.any():
                rows = self._gauge(rank, keep_R)
        write_atomic(self.out / f"gauge.{rank:05d}.npy", npy_bytes(np.array(rows, GAUGE_DTYPE)))
        self.stat_update("documents", value=len(rows), unit="file")
        return iter(())

    def _gauge(self, rank: int, keep_R: Any) -> list[tuple[int, int]]:
        """Bytes and tokens of the chosen documents of a file."""
        tokenizer = load_tokenizer(self.before / "tokenizer")
        borders = facts_of_tokenizer(tokenizer).num_borders
        expected = load_summary(self.signed, rank)
        options = read_options(self.job.config.ingest)
        rows = []
        check_unchanged([self.job.raw[rank]])
        for batch in read_file(self.job.inputs[rank], rank, options=options, keep_R=keep_R, expected=expected):
            for text in batch.text.to_pylist():
                data = text.encode()
                rows.append((len(data), len(tokenizer.encode(data)[0]) + borders))
        check_unchanged([self.job.raw[rank]])
        return rows


class ThinDocuments(_Thinning):
    """Decide how far each source goes; the stage before is the gauge's."""

    name = "thin documents"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write ``thin.json``."""
        sources = {source: self._source(source, candidate) for source, candidate in self.found.items()}
        write_atomic(self.out / "thin.json", canonical_json({"sources": sources}))
        return iter(())

    def _source(self, source: str, candidate: Candidate) -> dict[str, object]:
        """The row of a source; see ``thin.Thinning``."""
        files = [file for file, inputs in enumerate(self.job.inputs) if inputs.source == source]
        gauge_G = np.concatenate([load_array(self.before / f"gauge.{file:05d}.npy") for file in files])
        keys, sizes = [], []
        for file in files:
            record_D, size_D = signed_sizes(self.signed, self.fates, file)
            keys.append(mix_keys(self.job, file, record_D)[0])
            sizes.append(size_D)
        key_D, size_D = np.concatenate(keys), np.concatenate(sizes)
        order_D = np.argsort(key_D, kind="stable")
        key_D, size_D = key_D[order_D], size_D[order_D]
        count = cover_count(size_D, gauge_G["num_bytes"], gauge_G["num_tokens"], candidate.most_tokens)
        if count is None:
            return {"limit": None}
        beyond = int(size_D[count:].sum())
        ratio = int(gauge_G["num_tokens"].sum()), int(gauge_G["num_bytes"].sum())
        return {
            "limit": f"{int(key_D[count - 1]):016x}",
            "missing_tokens": beyond * ratio[0] // ratio[1],
            "most_missing_tokens": MOST_TOKENS_A_BYTE * (beyond + 2 * (len(size_D) - count)),
        }
