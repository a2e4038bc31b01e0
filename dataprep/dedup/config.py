"""Settings of ingest, dedup and hold-out: frozen, light to import, usable as they are inside a job's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "DecideConfig",
    "DedupConfig",
    "HoldoutConfig",
    "IngestConfig",
    "MinHashConfig",
    "NgramConfig",
    "SignConfig",
    "SimHashConfig",
]


def _check(*rules: tuple[str, bool]) -> None:
    """Raise what ``loader.settings`` shows at its key: one ``key: message`` a line."""
    broken = [message for message, holds in rules if not holds]
    if broken:
        raise ValueError("\n".join(broken))


@dataclass(frozen=True)
class IngestConfig:
    """How strictly input is read.

    Attributes:
        max_reject_fraction: a source with a larger share of rejected records fails the job.
        line_limit_bytes: a longer record is rejected (``too-long``); bounds memory.
        max_expansion: a compressed file that yields more than so many times its size is refused as a bomb, once it
            has yielded 64 MiB.
        max_stream_bytes: no file yields more, decompressed.
    """

    max_reject_fraction: float = 0.01
    line_limit_bytes: int = 64 << 20
    max_expansion: float = 1000.0
    max_stream_bytes: int = 1 << 42

    def __post_init__(self) -> None:
        _check(
            ("max_reject_fraction: from 0 to 1", 0 <= self.max_reject_fraction <= 1),
            ("line_limit_bytes: from 1 to 2^30", 1 <= self.line_limit_bytes <= 1 << 30),
            ("max_expansion: from 1 to 10^6", 1 <= self.max_expansion <= 1e6),
            ("max_stream_bytes: from 1 to 2^60", 1 <= self.max_stream_bytes <= 1 << 60),
        )


@dataclass(frozen=True)
class MinHashConfig:
    """MinHash signatures and their bands; ``bands * rows <= num_permutations``, permutations in eights."""

    num_permutations: int = 128
    bands: int = 25
    rows: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        fits = 0 < self.bands * self.rows <= self.num_permutations and self.bands > 0
        _check(
            ("num_permutations: a multiple of 8, from 8 to 4096", self.num_permutations in range(8, 4097, 8)),
            ("bands: bands x rows from 1 to num_permutations", fits),
            ("seed: from 0 to 2^32 - 1", 0 <= self.seed < 1 << 32),
        )


@dataclass(frozen=True)
class SimHashConfig:
    """64-bit SimHash: pairs whose fingerprints differ in at most ``max_distance`` bits are proposed. It finds almost
    identical documents: at distance 3 it sees 2 % of the pairs at Jaccard 0.8, 15 % at 0.9, 61 % at 0.97 and 85 % at
    0.99 (measured on real files and edits of them)."""

    max_distance: int = 3

    def __post_init__(self) -> None:
        _check(("max_distance: from 0 to 3", 0 <= self.max_distance <= 3))


@dataclass(frozen=True)
class NgramConfig:
    """Passages that occur in several documents: words covered by n-grams whose first occurrence, by priority and
    offset, lies elsewhere are cut. ``n``: words of an n-gram."""

    n: int = 50

    def __post_init__(self) -> None:
        _check(("n: from 8 to 1000", 8 <= self.n <= 1000))


@dataclass(frozen=True)
class DedupConfig:
    """Document dedup.

    Attributes:
        methods: keys of ``dataprep.dedup.METHODS``; pair methods only propose, ``ngram`` cuts passages.
        decision: ``leader`` verifies every removal by exact similarity; ``union_find`` is datatrove's rule (whole
            clusters go, nothing is verified); ``estimate`` is the leader rule by the signatures' agreement alone, for
            text that cannot be read again.
        threshold: exact Jaccard similarity of shingle sets from which a document is a duplicate.
        keep: which of two duplicates of one source stays; ``newest`` and ``quality`` rank by the sources'
            ``date`` and ``quality`` fields.
        across: also between sources (the source of better rank wins).
        against: folders of Indexes that earlier runs left, relative to the configuration file: their documents are
            kept already and outrank all new ones.
        write_index: leave an Index of what is kept, for later runs.
        max_removed_fraction: a source that loses a larger share of its documents fails the job.
        minhash, simhash, ngram: parameters of the methods.
        max_bucket: larger buckets are split by further signature rows; what that hides is counted.
        canary: copies planted in memory must be found, or the job fails.
    """

    methods: tuple[str, ...] = ("exact", "minhash")
    decision: Literal["leader", "union_find", "estimate"] = "leader"
    threshold: float = 0.8
    keep: Literal["longest", "newest", "quality", "first"] = "longest"
    across: bool = True
    against: tuple[str, ...] = ()
    write_index: bool = False
    max_removed_fraction: float = 0.9
    minhash: MinHashConfig = field(default_factory=MinHashConfig)
    simhash: SimHashConfig = field(default_factory=SimHashConfig)
    ngram: NgramConfig = field(default_factory=NgramConfig)
    max_bucket: int = 8192
    canary: bool = False

    def __post_init__(self) -> None:
        from . import METHODS

        unknown = [name for name in self.methods if name not in METHODS]
        fits = not self.against or self.decision != "union_find"
        _check(
            (f"methods: no method {', '.join(map(repr, unknown))}; there are {', '.join(METHODS)}", not unknown),
            ("methods: each once", len(set(self.methods)) == len(self.methods)),
            ("threshold: above 0, at most 1", 0 < self.threshold <= 1),
            ("max_removed_fraction: from 0 to 1", 0 <= self.max_removed_fraction <= 1),
            ("max_bucket: from 2 to 2^30", 2 <= self.max_bucket <= 1 << 30),
            ("against: not with decision union_find, whose clusters know no document that stays", fits),
        )


@dataclass(frozen=True)
class HoldoutConfig:
    """Validation documents.

    Attributes:
        fraction: share of each source's documents, by keyed hash of the document id; 0 switches hold-out off.
        linked_at: kept documents linked by verified pairs at this similarity go to the same side.
    """

    fraction: float = 0.01
    linked_at: float = 0.5

    def __post_init__(self) -> None:
        _check(
            ("fraction: from 0, below 1", 0 <= self.fraction < 1),
            ("linked_at: above 0, at most 1", 0 < self.linked_at <= 1),
        )


@dataclass(frozen=True)
class SignConfig:
    """Everything that shapes what ``SignDocuments`` writes."""

    ingest: IngestConfig = field(default_factory=IngestConfig)
    dedup: DedupConfig = field(default_factory=DedupConfig)


@dataclass(frozen=True)
class DecideConfig:
    """Everything that shapes what ``DecideDocuments`` writes.

    Attributes:
        ingest, dedup, holdout: as configured.
        salt: salt of the document ids (stamped in the manifest).
        seed: key of the hold-out hash.
    """

    ingest: IngestConfig = field(default_factory=IngestConfig)
    dedup: DedupConfig = field(default_factory=DedupConfig)
    holdout: HoldoutConfig = field(default_factory=HoldoutConfig)
    salt: int = 0
    seed: int = 0
