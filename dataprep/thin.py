"""Leaving out documents of a source that is far too large before they are tokenised.

The mix keeps the documents with the smallest keys. Where the configuration bounds what it can need of a source, and the
source is many times that, the documents with large keys can never be kept; tokenising them would be in vain. How many
bytes cover the need is estimated on a keyed sample (stage ``gauge``: one more reading of the source's files, which is
tens of times faster than tokenising them), with a margin of 5 % and five standard errors. Whether it did cover it is
known after tokenising: the mix stage refuses if not, so that an estimate never makes a source smaller in silence.

Legend: D documents, G documents of the sample, R records of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loader.text.records import document_ids

from .arrays import load_array
from .documents import Status
from .fates import Fates
from .job import Job
from .keys import document_keys
from .mix_plan import most_tokens
from .stages import read_json

__all__ = [
    "Candidate",
    "ThinnedFates",
    "Thinning",
    "candidates",
    "cover_count",
    "mix_keys",
    "signed_sizes",
    "text_bytes",
]

FAR_TOO_LARGE = 64
"""Bytes of input for each token that the plan can need, from which on a source is thinned; text has 3 to 5."""
SAMPLE_BYTES = 1 << 23
_MIN_SAMPLE = 30
_COMPRESSION = 4  # decompressed over compressed size
_PLAIN = (".jsonl", ".json", ".txt")


@dataclass(frozen=True)
class Candidate:
    """A source that is far too large: ``most_tokens`` that the plan can need of it, and ``sample_limit``: documents
    with keys up to it are the sample."""

    most_tokens: int
    sample_limit: int


def candidates(job: Job) -> dict[str, Candidate]:
    """The sources to thin, from the configuration and the sizes of the raw files alone; usually none.

    ``most_tokens`` is rounded up to three binary digits: a slightly longer plan then tokenises nothing again.
    """
    config = job.config
    if not config.mix.thin:
        return {}
    found = {}
    for source, exact in most_tokens(list(config.sources), config.mix, config.pack.seq_len).items():
        size_bytes = text_bytes(job, source)
        digit = 1 << max(exact.bit_length() - 3, 0)
        most = -(-exact // digit) * digit
        if size_bytes > FAR_TOO_LARGE * most and config.mix.max_epochs.get(source, 1.0) >= 1:
            limit = min((SAMPLE_BYTES << 64) // size_bytes, (1 << 64) - 1)
            found[source] = Candidate(most, limit)
    return found


def text_bytes(job: Job, source: str) -> int:
    """About how many bytes a source's raw files are decompressed: a guess, to size tasks and see what is too large."""
    return sum(
        file.size_bytes * (1 if file.relative.endswith(_PLAIN) else _COMPRESSION)
        for file in job.raw
        if file.source == source
    )


def mix_keys(job: Job, file: int, record_D: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """(keys by which the mix keeps documents, ids) of records of a file."""
    inputs, seed = job.inputs[file], job.config.seed
    ids_D = document_ids(inputs.source, inputs.path, record_D, seed)
    return document_keys(ids_D, seed, "mix"), ids_D


def cover_count(
    size_D: NDArray[np.int64], sample_bytes_G: NDArray[np.int64], sample_tokens_G: NDArray[np.int64], most: int
) -> int | None:
    """How many of the documents in key order hold ``most`` tokens with near certainty; None: not clearly fewer than
    all of them, or the sample is too small to tell.

    The tokens of m documents are estimated by the ratio estimator (Cochran, Sampling Techniques, 1977, chapter 6); its
    relative error has two parts, that of the sample's ratio and that of m documents around the ratio.
    """
    count = len(sample_bytes_G)
    if count < _MIN_SAMPLE or not len(size_D):
        return None
    ratio = float(sample_tokens_G.sum() / sample_bytes_G.sum())
    residual_G = sample_tokens_G - ratio * sample_bytes_G
    spread = float((residual_G**2).sum() / (count - 1)) / float(sample_tokens_G.mean()) ** 2
    number_D = np.arange(1, len(size_D) + 1)
    margin_D = 0.05 + 5 * np.sqrt(spread / count + spread / number_D)
    covered_D = ratio * np.cumsum(size_D) * (1 - margin_D) >= most
    if not covered_D.any():
        return None
    needed = int(np.argmax(covered_D)) + 1
    return needed if needed <= len(size_D) // 2 else None


@dataclass(frozen=True)
class Thinning:
    """What a finished thin stage left out.

    Attributes:
        job: configuration and inputs.
        fates: what became of each record before.
        folder: of the thin stage: ``thin.json``, source -> ``limit`` (largest key that stays, 16 hex digits; null = all
            stay), ``missing_tokens`` and ``most_missing_tokens`` (estimate and upper bound of what is left out).
    """

    job: Job
    fates: Fates
    folder: Path

    def limit(self, source: str) -> int | None:
        """The largest key that stays; None = all stay."""
        limit = self._source(source).get("limit")
        return None if limit is None else int(str(limit), 16)

    def missing_tokens(self, source: str) -> tuple[int, int]:
        """(estimate, upper bound) of the tokens left out."""
        row = self._source(source)
        return int(str(row.get("missing_tokens", 0))), int(str(row.get("most_missing_tokens", 0)))

    def left_out(self, file: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Records and ids of the documents of a file that would be trained on and were left out."""
        limit = self.limit(self.job.inputs[file].source)
        if limit is None:
            return np.zeros(0, np.int64), np.zeros(0, np.uint64)
        record_D = np.flatnonzero(self.fates.status_of_file(file) == Status.KEPT)
        key_D, id_D = mix_keys(self.job, file, record_D)
        out_D = key_D > np.uint64(limit)
        return record_D[out_D], id_D[out_D]

    def _source(self, source: str) -> Mapping[str, object]:
        row: Mapping[str, object] = read_json(self.folder / "thin.json")["sources"].get(source, {})
        return row


@dataclass(frozen=True)
class ThinnedFates(Fates):
    """Fates as the tokenise stage is to see them: what was thinned is not there (``Status.BLANK``)."""

    thinning: Thinning | None = None

    def status_of_file(self, file: int) -> NDArray[np.uint8]:
        """Status of each of the file's R records."""
        status_R = super().status_of_file(file)
        if self.thinning is not None:
            status_R[self.thinning.left_out(file)[0]] = Status.BLANK
        return status_R


def signed_sizes(signed: Path, fates: Fates, file: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(records, bytes without what is cut) of the documents of a file that would be trained on."""
    documents_D = load_array(signed / f"documents.{file:05d}.npy")
    documents_D = documents_D[fates.status_of_file(file)[documents_D["record"]] == Status.KEPT]
    record_D, size_D = documents_D["record"].astype(np.int64), documents_D["size_bytes"].astype(np.int64)
    cut_R = np.zeros(int(record_D.max(initial=-1)) + 1, np.int64)
    for record, ranges in fates.ranges_of_file(file).items():
        if record < len(cut_R):
            cut_R[record] = sum(stop - start for start, stop in ranges)
    size_D -= cut_R[record_D]
    return record_D, size_D
