"""Several opened Datasets as one list of sources: unique names, one sequence length, one tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import RefusedError
from .shards.layout import token_dtype

if TYPE_CHECKING:
    from .shards.dataset import Dataset
    from .shards.manifest import SourceInfo
    from .shards.segments import SegmentTable

__all__ = ["Sources", "open_sources"]


@dataclass(frozen=True)
class Sources:
    """The sources of a run, in the order of its Datasets; a source is known by its place in ``names``.

    Attributes:
        datasets: opened Datasets.
        names: source names.
        dataset_of: index into ``datasets`` for each source.
        seq_len: tokens a sample.
        max_segments: most segments in any sample, padding included.
        filler: token that overwrites what is masked: the tokenizer's EOS, else 0.
        digests: the digest of each Dataset, in order.
    """

    datasets: tuple[Dataset, ...]
    names: tuple[str, ...]
    dataset_of: tuple[int, ...]
    seq_len: int
    max_segments: int
    filler: int
    digests: tuple[str, ...]

    @property
    def digest_by_source(self) -> dict[str, str]:
        """The digest of the Dataset that holds each source, as a Cursor wants them."""
        return {name: self.digests[number] for name, number in zip(self.names, self.dataset_of, strict=True)}

    @property
    def place(self) -> str:
        """The folders or URLs, for messages."""
        return ", ".join(dataset.location for dataset in self.datasets)

    def dataset(self, source: int) -> Dataset:
        """The Dataset that holds a source."""
        return self.datasets[self.dataset_of[source]]

    def info(self, name: str) -> SourceInfo:
        """What the manifest says of a source."""
        dataset = self.datasets[self.dataset_of[self.names.index(name)]]
        return next(info for info in dataset.manifest.sources if info.name == name)

    def shard_samples(self, name: str) -> NDArray[np.int64]:
        """Samples of each shard of a source."""
        return self.datasets[self.dataset_of[self.names.index(name)]].shard_samples(name)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Dtype of stored tokens."""
        return token_dtype(self.datasets[0].manifest.vocab_size)

    def read_samples_into(
        self, source: int, samples_N: NDArray[np.int64], tokens_BT: NDArray[Any], rows_N: NDArray[np.int64]
    ) -> None:
        """Read a source's samples, each verified, into rows of ``tokens_BT``, which has :attr:`dtype`.

        Raises:
            DamageError: file and sample are named.
        """
        self.dataset(source).read_samples_into(self.names[source], samples_N, tokens_BT, rows_N)

    def segments_of(self, source: int, samples_N: NDArray[np.int64]) -> SegmentTable:
        """Segments of a source's samples.

        Raises:
            DamageError: a table is damaged.
        """
        return self.dataset(source).segments_of(self.names[source], samples_N)

    def samples_of_document(self, document: int, proven: bool = True) -> list[tuple[str, NDArray[np.int64]]]:
        """(source name, source sample numbers) that hold a document, over all Datasets; empty if none does; ``proven``
        as in :meth:`shards.dataset.Dataset.samples_of_document`."""
        return [place for dataset in self.datasets for place in dataset.samples_of_document(document, proven)]


def open_sources(datasets: Sequence[Dataset]) -> Sources:
    """Join opened Datasets.

    Raises:
        RefusedError: a source name in two of them, or different sequence lengths, vocabularies or tokenizers.
    """
    if not datasets:
        raise RefusedError("TR-SOURCES-NONE", "no Dataset", expected="one at least")
    first = datasets[0].manifest
    dataset_of: dict[str, int] = {}
    for number, dataset in enumerate(datasets):
        manifest = dataset.manifest
        for what, here, there in (
            ("sequence length", manifest.seq_len, first.seq_len),
            ("vocabulary", manifest.vocab_size, first.vocab_size),
            ("tokenizer", manifest.tokenizer.get("digest"), first.tokenizer.get("digest")),
        ):
            if here != there:
                raise RefusedError(
                    "TR-SOURCES-DIFFER", f"{what} {here}", dataset.location, f"{there} as in the first Dataset"
                )
        for name in dataset.source_names:
            if name in dataset_of:
                other = datasets[dataset_of[name]].location
                raise RefusedError(
                    "TR-SOURCES-TWICE", f"source {name!r} is also in {other}", dataset.location, "unique names"
                )
            dataset_of[name] = number
    if not any(info.num_samples for dataset in datasets for info in dataset.manifest.sources):
        raise RefusedError("TR-SOURCES-NONE", "no source holds a sample", datasets[0].location, "one sample at least")
    eos = first.tokenizer.get("eos_id")
    return Sources(
        datasets=tuple(datasets),
        names=tuple(dataset_of),
        dataset_of=tuple(dataset_of.values()),
        seq_len=first.seq_len,
        max_segments=max(dataset.manifest.max_segments for dataset in datasets),
        filler=eos if isinstance(eos, int) and 0 <= eos < first.vocab_size else 0,
        digests=tuple(dataset.digest for dataset in datasets),
    )
