"""Canaries: copies that are planted in memory must be found, or the job fails.

Up to 64 documents, chosen by keyed hash, get a copy at the lowest priority: their text and two words more (an equal
text without ``minhash``; with ``decision: estimate``, where nothing is read, their signature with a twentieth of the
rows changed). A copy shapes nothing else: it can remove and link no one. ``union_find`` has none: its clusters would
count them. A copy is due to be found if its original is kept, its similarity is at or above the threshold, banding
would miss such a pair less than once in a million, and no pair of it was passed over in a bucket of too many. Costs
one more read of up to 64 files.

Shapes: P documents in the order of the files, C canaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from loader.errors import JobError

from ..documents import InputFile, Status
from ..formats import read_file, read_options
from ..holdout import keyed_hash
from .candidates import ReadSets
from .config import DecideConfig, DedupConfig
from .decide import Decision
from .minhash import miss_probability
from .signatures import DOCUMENT_DTYPE
from .table import DocumentTable, SignedFile

__all__ = ["NO_CANARIES", "Canaries", "plant"]

_MOST_CANARIES = 64
_FEWEST_SHINGLES = 20
_EXTRA_WORDS = " tokenreel canary"
_LOWEST_RANK = (1 << 31) - 1
_MISS = 1e-6
_STEP = 20
_SALT = 0x43414E41


@dataclass(frozen=True)
class Canaries:
    """What was planted.

    Attributes:
        inputs: an imaginary file of one document each, behind all real ones.
        signed: what signing would have left of each.
        sets: shingle set of each (uint64, sorted); empty where nothing is read.
        position_C: int64, position of each original among the documents of all files.
        similarity_C: float64, of each copy to its original.
    """

    inputs: tuple[InputFile, ...]
    signed: tuple[SignedFile, ...]
    sets: tuple[NDArray[np.uint64], ...]
    position_C: NDArray[np.int64]
    similarity_C: NDArray[np.float64]

    def behind(self, num_files: int, load: Callable[[int], SignedFile]) -> Callable[[int], SignedFile]:
        """A loader of the real files and, behind them, of the imaginary ones."""
        return lambda file: load(file) if file < num_files else self.signed[file - num_files]

    def with_sets(self, table: DocumentTable, read_sets: ReadSets) -> ReadSets:
        """A reader of sets that knows the copies' too."""
        first = len(table.file_N) - len(self.inputs)
        file_first = len(table.start_F) - 1 - len(self.inputs)

        def read(document_C: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]]:
            yield from read_sets(document_C[document_C < first])
            for document in document_C[document_C >= first]:
                elements = self.sets[table.file_N[document] - file_first]
                yield np.array([document]), np.array([len(elements)]), elements

        return read if self.inputs else read_sets

    def check(self, table: DocumentTable, decision: Decision, config: DedupConfig) -> int:
        """How many copies were due to be found, and were.

        Raises:
            JobError: ``TR-DEDUP-CANARY``: one that was due is kept.
        """
        first = table.num_earlier
        original_C = table.number_P[first + self.position_C]
        copy_C = table.number_P[len(table.number_P) - len(self.inputs) :]
        if not len(copy_C):
            return 0
        exact = "minhash" not in config.methods and "exact" in config.methods
        due_C = decision.status_N[original_C] == Status.KEPT
        if not exact:
            misses = np.array([miss_probability(similarity, config.minhash) for similarity in self.similarity_C])
            due_C &= (self.similarity_C >= config.threshold) & (misses < _MISS)
        due_C &= ~(decision.passed_N[copy_C] & (decision.status_N[copy_C] == Status.KEPT))
        missed = np.flatnonzero(due_C & (decision.status_N[copy_C] == Status.KEPT))
        if len(missed):
            one = original_C[missed[0]]
            place = f"copy of document {table.record_N[one]} of file {self.inputs[missed[0]].path}"
            raise JobError(
                "TR-DEDUP-CANARY",
                f"{len(missed)} of {int(due_C.sum())} planted copies were not found",
                place,
                "every planted copy is found",
                "report this: the dedup of this installation does not work",
            )
        return int(due_C.sum())


NO_CANARIES = Canaries((), (), (), np.zeros(0, np.int64), np.zeros(0))


def plant(
    inputs: Sequence[InputFile],
    config: DecideConfig,
    load: Callable[[int], SignedFile],
    screened: Callable[[int], NDArray[np.bool_] | None],
    id_P: NDArray[np.uint64],
) -> Canaries:
    """Choose originals and make their copies; ``id_P``: ids of the documents of all files, by position."""
    start_F = np.concatenate(([0], np.cumsum([len(load(file).documents) for file in range(len(inputs))])))
    eligible_P = np.concatenate(
        [np.zeros(0, np.bool_), *(_eligible(inputs[f], load(f), screened(f), config.dedup) for f in range(len(inputs)))]
    )
    place_E = np.flatnonzero(eligible_P)
    order_E = np.argsort(keyed_hash(id_P[place_E], config.seed ^ _SALT), kind="stable")
    position_C = np.sort(place_E[order_E[:_MOST_CANARIES]])
    file_C = np.searchsorted(start_F, position_C, side="right") - 1
    imaginary: list[InputFile] = []
    signed: list[SignedFile] = []
    sets: list[NDArray[np.uint64]] = []
    similarities: list[float] = []
    for file in np.unique(file_C).tolist():
        row_C = position_C[file_C == file] - start_F[file]
        source = inputs[file]
        for copy, elements, similarity in _copies(source, file, load(file), row_C, config):
            path = f"{source.path} (canary {len(imaginary)})"
            imaginary.append(InputFile(source.source, _LOWEST_RANK, source.root, path, opt_out=source.opt_out))
            signed.append(copy)
            sets.append(elements)
            similarities.append(similarity)
    return Canaries(tuple(imaginary), tuple(signed), tuple(sets), position_C, np.array(similarities, np.float64))


def _eligible(
    inputs: InputFile, signed: SignedFile, taken_R: NDArray[np.bool_] | None, config: DedupConfig
) -> NDArray[np.bool_]:
    """Documents of one file whose copy some method is bound to find."""
    method = "minhash" if "minhash" in config.methods else "exact"
    eligible: NDArray[np.bool_] = np.full(len(signed.documents), method in config.methods, np.bool_)
    if method in inputs.opt_out:
        eligible[:] = False
    if method == "minhash":
        eligible &= signed.documents["num_shingles"] >= _FEWEST_SHINGLES
    if taken_R is not None:
        eligible &= ~taken_R[signed.documents["record"]]
    return eligible


def _copies(
    inputs: InputFile, file: int, signed: SignedFile, row_C: NDArray[np.int64], config: DecideConfig
) -> Iterator[tuple[SignedFile, NDArray[np.uint64], float]]:
    """Copies of documents of one file: what signing would leave, shingle set, similarity to the original."""
    if "minhash" not in config.dedup.methods:
        for row in row_C.tolist():
            simhash_N = signed.simhash_N[row : row + 1] if signed.simhash_N is not None else None
            yield SignedFile(signed.documents[row : row + 1].copy(), None, simhash_N), np.zeros(0, np.uint64), 1.0
    elif config.dedup.decision == "estimate":
        assert signed.signature_NK is not None
        for row in row_C.tolist():
            signature_NK = np.array(signed.signature_NK[row : row + 1])
            documents = signed.documents[row : row + 1].copy()
            signature_NK[:, _changed_rows(signature_NK.shape[1], int(documents["hash_low"][0]))] ^= np.uint32(1)
            documents["hash_low"] ^= np.uint64(1)
            simhash_N = None if signed.simhash_N is None else np.array(signed.simhash_N[row : row + 1])
            agree = float((signature_NK == signed.signature_NK[row]).mean())
            yield SignedFile(documents, signature_NK, simhash_N), np.zeros(0, np.uint64), agree
    else:
        yield from _near_copies(inputs, file, signed, row_C, config)


def _changed_rows(num_rows: int, key: int) -> NDArray[np.int64]:
    """A twentieth of the rows of a signature, drawn: at even distances they would be in all of the longer bands."""
    order_K: NDArray[np.int64] = np.argsort(keyed_hash(np.arange(num_rows, dtype=np.uint64), key), kind="stable")
    return order_K[: -(-num_rows // _STEP)]


def _near_copies(
    inputs: InputFile, file: int, signed: SignedFile, row_C: NDArray[np.int64], config: DecideConfig
) -> Iterator[tuple[SignedFile, NDArray[np.uint64], float]]:
    from ..kernels.documents import DocumentHasher
    from ..kernels.minhash import affine_permutations

    dedup = config.dedup
    keep_R = np.zeros(int(signed.documents["record"].max()) + 1, np.bool_)
    keep_R[signed.documents["record"][row_C]] = True
    options = read_options(config.ingest)
    texts = [
        text for batch in read_file(inputs, file, options=options, keep_R=keep_R) for text in batch.text.to_pylist()
    ]
    hasher = DocumentHasher()
    permutations = affine_permutations(dedup.minhash.num_permutations, dedup.minhash.seed)
    for text in texts:
        copy = text + _EXTRA_WORDS
        both = pa.array([text, copy], pa.large_string())
        values, sizes = hasher.sets(both)
        first, second = values[: sizes[0]], values[sizes[0] :]
        shared = len(np.intersect1d(first, second, assume_unique=True))
        prints = hasher.prints(both.slice(1), permutations, simhash="simhash" in dedup.methods)
        data = copy.encode()
        documents = np.zeros(1, DOCUMENT_DTYPE)
        digest = xxhash.xxh3_128_intdigest(data)
        documents["hash_low"], documents["hash_high"] = digest & ((1 << 64) - 1), digest >> 64
        documents["size_bytes"], documents["num_shingles"] = len(data), prints.num_shingles_N[0]
        simhash_N = prints.simhash_N if "simhash" in dedup.methods else None
        similarity = shared / max(1, len(first) + len(second) - shared)
        yield SignedFile(documents, prints.signature_NK, simhash_N), second, similarity
