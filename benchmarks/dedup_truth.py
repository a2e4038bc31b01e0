"""Exact truth of the dedup benchmark: every pair of documents with a Jaccard similarity of at least 0.5.

    python benchmarks/dedup_truth.py [--folder FOLDER] [--quick] [--check]

The sets are the shingle sets that dedup itself compares by. Pairs come from prefix filtering (Chaudhuri et al., "A
primitive operator for similarity joins", 2006): with the shingles of each set in one global order, rarest first, two
sets of similarity >= t share one of their first ``size - ceil(t size) + 1`` shingles. Every pair that does is
compared exactly; nothing is sampled. The result is kept beside the corpus under its digest and the version of the
text rules. ``--check`` compares a sample with sets of Python strings, made without compiled code.

Shapes: N documents, S shingles of all documents, X entries of prefixes, P pairs, B bands.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_corpus import DEFAULT_FOLDER, Corpus, ensure_corpus
from dataprep.documents import InputFile
from dataprep.formats import read_file
from dataprep.kernels.bands import band_keys
from dataprep.kernels.documents import DocumentHasher
from dataprep.kernels.jaccard import Sets, similarity_of
from dataprep.kernels.jit import kernel
from dataprep.kernels.minhash import affine_permutations
from dataprep.normalize import RULES_VERSION

__all__ = [
    "FLOOR",
    "Truth",
    "all_pairs",
    "band_keys_of",
    "check_truth",
    "judge",
    "load_truth",
    "proposed_pairs",
    "recall_curve",
    "theory",
]

FLOOR = 0.5
_COUNT_BITS = 28
THRESHOLDS = (0.8, 0.7, 0.5)


@dataclass(frozen=True)
class Truth:
    """Pairs ``first_P < second_P`` of document numbers (int32) with exact similarity ``similarity_P`` (float64) of at
    least ``FLOOR``, and the documents' ids in order."""

    first_P: NDArray[np.int32]
    second_P: NDArray[np.int32]
    similarity_P: NDArray[np.float64]
    ids: list[str]

    def mask(self, ids: Collection[str] | NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Bool per document of a set of ids; an array of bool by document is passed through."""
        if isinstance(ids, np.ndarray):
            return ids
        wanted = set(ids)
        found = np.fromiter((id_ in wanted for id_ in self.ids), np.bool_, len(self.ids))
        if int(found.sum()) != len(wanted):
            raise ValueError("ids of documents that this corpus does not have")
        return found


@kernel
def _count_shingles(value_S: Any, bits: int) -> Any:
    """How many documents have each shingle, by its low bits (so at least that many), at most 65,535."""
    counts = np.zeros(1 << bits, np.uint16)
    mask = np.uint64((1 << bits) - 1)
    for i in range(value_S.shape[0]):
        place = np.int64(value_S[i] & mask)
        if counts[place] < 65535:
            counts[place] += np.uint16(1)
    return counts


@kernel
def _prefixes(sets: Any, counts: Any, bits: int, floor: float) -> Any:
    """Keys (uint64: count, then 48 bits of the hash) and documents (int32) of all prefixes, shingles that no second
    document can have left out."""
    value_S, start_N, stop_N = sets
    num = start_N.shape[0]
    total = 0
    longest = 0
    for d in range(num):
        size = stop_N[d] - start_N[d]
        total += min(size, size - np.int64(np.ceil(floor * size - 1e-9)) + 1)
        longest = max(longest, size)
    mask = np.uint64((1 << bits) - 1)
    key_X = np.empty(total, np.uint64)
    document_X = np.empty(total, np.int32)
    scratch = np.empty(longest, np.uint64)
    count = 0
    for d in range(num):
        size = stop_N[d] - start_N[d]
        for i in range(size):
            value = value_S[start_N[d] + i]
            scratch[i] = (np.uint64(counts[np.int64(value & mask)]) << np.uint64(48)) | (value >> np.uint64(16))
        scratch[:size].sort()
        for i in range(min(size, size - np.int64(np.ceil(floor * size - 1e-9)) + 1)):
            if (scratch[i] >> np.uint64(48)) > np.uint64(1):
                key_X[count] = scratch[i]
                document_X[count] = d
                count += 1
    return key_X[:count].copy(), document_X[:count].copy()


@kernel
def _join(sets: Any, key_X: Any, document_X: Any, floor: float) -> Any:
    """Pairs at or above ``floor`` among documents that share a key; entries are sorted by key, then document."""
    num = sets.start_N.shape[0]
    entry_N = np.zeros(num + 1, np.int64)
    for x in range(document_X.shape[0]):
        entry_N[document_X[x] + 1] += 1
    for d in range(num):
        entry_N[d + 1] += entry_N[d]
    place_X = np.empty(document_X.shape[0], np.int64)
    free_N = entry_N.copy()
    for x in range(document_X.shape[0]):
        place_X[free_N[document_X[x]]] = x
        free_N[document_X[x]] += 1
    seen_N = np.full(num, -1, np.int64)
    first_P = np.empty(1 << 16, np.int32)
    second_P = np.empty(1 << 16, np.int32)
    similarity_P = np.empty(1 << 16, np.float64)
    count = 0
    for d in range(num):
        size = sets.stop_N[d] - sets.start_N[d]
        for e in range(entry_N[d], entry_N[d + 1]):
            x = place_X[e]
            other = x - 1
            while other >= 0 and key_X[other] == key_X[x]:
                o = np.int64(document_X[other])
                other -= 1
                if seen_N[o] == d:
                    continue
                seen_N[o] = d
                other_size = sets.stop_N[o] - sets.start_N[o]
                if min(size, other_size) < floor * max(size, other_size):
                    continue
                similarity = similarity_of(sets, o, d, floor)
                if similarity >= floor:
                    if count == first_P.shape[0]:
                        first_P = np.concatenate((first_P, np.empty_like(first_P)))
                        second_P = np.concatenate((second_P, np.empty_like(second_P)))
                        similarity_P = np.concatenate((similarity_P, np.empty_like(similarity_P)))
                    first_P[count] = o
                    second_P[count] = d
                    similarity_P[count] = similarity
                    count += 1
    return first_P[:count].copy(), second_P[:count].copy(), similarity_P[:count].copy()


def all_pairs(sets: Sets, floor: float = FLOOR) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Every pair (first < second) with Jaccard similarity >= ``floor``, and the similarity, ordered by document."""
    bits = min(_COUNT_BITS, max(10, len(sets.value_S).bit_length() + 2))
    key_X, document_X = _prefixes(sets, _count_shingles(sets.value_S, bits), bits, floor)
    order = np.argsort(key_X, kind="stable")
    first_P, second_P, similarity_P = _join(sets, key_X[order], document_X[order], floor)
    order = np.lexsort((second_P, first_P))
    return first_P[order], second_P[order], similarity_P[order]


def load_truth(corpus: Corpus) -> Truth:
    """The truth about a corpus, computed at the first call (45 CPU seconds and 2.1 GB for 650 MB of text)."""
    path = corpus.folder / f"truth-{corpus.digest}-rules{RULES_VERSION}.npz"
    ids = [record["id"] for record in corpus.records()]
    if not path.exists():
        sets, text_hash_N = _sets_of(corpus)
        first_P, second_P, similarity_P = all_pairs(sets)
        first_Q, second_Q = _equal_texts_without_words(sets, text_hash_N)
        pairs = {
            "first_P": np.concatenate((first_P, first_Q)),
            "second_P": np.concatenate((second_P, second_Q)),
            "similarity_P": np.concatenate((similarity_P, np.ones(len(first_Q)))),
        }
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **pairs)
        partial.replace(path)
    with np.load(path, allow_pickle=False) as stored:
        return Truth(stored["first_P"], stored["second_P"], stored["similarity_P"], ids)


def _sets_of(corpus: Corpus) -> tuple[Sets, list[int]]:
    """Shingle sets and text hashes of all documents, in their order."""
    hasher = DocumentHasher()
    values, sizes = [], []
    text_hash_N: list[int] = []
    for path in corpus.files:
        for batch in read_file(InputFile(path.stem, 0, str(corpus.folder), path.name), 0):
            value_S, size_N = hasher.sets(batch.text)
            values.append(value_S)
            sizes.append(size_N)
            text_hash_N += [xxhash.xxh3_64_intdigest(text.as_buffer()) for text in batch.text]
    stop_N = np.cumsum(np.concatenate(sizes), dtype=np.int64)
    if len(stop_N) != corpus.documents:
        raise RuntimeError(f"{len(stop_N)} of {corpus.documents} documents were read")
    return Sets(np.concatenate(values), np.concatenate(([0], stop_N[:-1])), stop_N), text_hash_N


def _equal_texts_without_words(sets: Sets, text_hash_N: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pairs of equal texts that have no shingles: copies of each other, though no sets show it."""
    groups: dict[int, list[int]] = {}
    for d in np.flatnonzero(sets.start_N == sets.stop_N).tolist():
        groups.setdefault(text_hash_N[d], []).append(d)
    pairs = [(group[i], b) for group in groups.values() for j, b in enumerate(group) for i in range(j)]
    pair_Q2 = np.array(pairs, np.int32).reshape(-1, 2)
    return pair_Q2[:, 0], pair_Q2[:, 1]


def judge(
    truth: Truth,
    removed: Collection[str] | NDArray[np.bool_],
    considered: Collection[str] | NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """What a removal did, by the truth.

    Args:
        removed: ids of removed documents, or bool per document.
        considered: the documents that took part, where it was a slice.

    Returns:
        ``removed`` documents; ``wrong_0.8`` (0.7, 0.5): those without a kept document of that similarity, and their
        share of the removed; ``pairs_0.8``: pairs at or above 0.8, ``leaked_0.8``: those with both documents kept
        (also at 0.9).
    """
    removed_N = truth.mask(removed)
    inside_N = np.ones(len(truth.ids), np.bool_) if considered is None else truth.mask(considered)
    if np.any(removed_N & ~inside_N):
        raise ValueError("documents were removed that took no part")
    kept_N = inside_N & ~removed_N
    best_N = np.zeros(len(truth.ids))
    for one_P, other_P in ((truth.first_P, truth.second_P), (truth.second_P, truth.first_P)):
        kept_P = kept_N[one_P]
        np.maximum.at(best_N, other_P[kept_P], truth.similarity_P[kept_P])
    total = int(removed_N.sum())
    result: dict[str, float] = {"documents": int(inside_N.sum()), "removed": total}
    for threshold in THRESHOLDS:
        wrong = int(np.sum(removed_N & (best_N < threshold)))
        result[f"wrong_{threshold}"] = wrong
        result[f"wrong_share_{threshold}"] = wrong / total if total else 0.0
    within_P = inside_N[truth.first_P] & inside_N[truth.second_P]
    both_P = kept_N[truth.first_P] & kept_N[truth.second_P]
    for threshold in (0.8, 0.9):
        result[f"pairs_{threshold}"] = int(np.sum(within_P & (truth.similarity_P >= threshold)))
        result[f"leaked_{threshold}"] = int(np.sum(both_P & (truth.similarity_P >= threshold)))
    return result


def band_keys_of(corpus: Corpus, bands: int = 25, rows: int = 5, permutations: int = 128, seed: int = 1) -> Any:
    """Keys (uint64, B x N) that documents are proposed by: equal keys of a band make a pair."""
    hasher, drawn = DocumentHasher(), affine_permutations(permutations, seed)
    parts = []
    for path in corpus.files:
        for batch in read_file(InputFile(path.stem, 0, str(corpus.folder), path.name), 0):
            signature_NK, _ = hasher.sign(batch.text, drawn)
            key_BN = np.zeros((bands, len(signature_NK)), np.uint64)
            for band in range(bands):
                band_keys(signature_NK, band * rows, rows, key_BN[band])
            parts.append(key_BN)
    return np.concatenate(parts, axis=1)


def proposed_pairs(truth: Truth, key_BN: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each true pair shares the key of any band."""
    proposed_P = np.zeros(len(truth.first_P), np.bool_)
    for key_N in key_BN:
        proposed_P |= key_N[truth.first_P] == key_N[truth.second_P]
    return proposed_P


def theory(similarity: NDArray[np.float64], bands: int = 25, rows: int = 5) -> NDArray[np.float64]:
    """Share of pairs of a similarity that independent permutations propose: ``1 - (1 - s^rows)^bands``."""
    return np.asarray(1.0 - (1.0 - similarity**rows) ** bands, np.float64)


def recall_curve(
    truth: Truth, proposed_P: NDArray[np.bool_], width: float = 0.02, bands: int = 25, rows: int = 5
) -> list[dict[str, float]]:
    """Recall of proposals by bins of similarity from ``FLOOR`` to 1: ``low``, ``high`` (the last includes 1),
    ``pairs``, ``proposed``, ``recall``, and ``theory``, which is the mean over the pairs of the bin."""
    num_bins = round((1.0 - FLOOR) / width)
    edges = np.linspace(FLOOR, 1.0, num_bins + 1)
    bin_P = np.clip(np.searchsorted(edges, truth.similarity_P + 1e-12, "right") - 1, 0, num_bins - 1)
    expected_P = theory(truth.similarity_P, bands, rows)
    rows_out = []
    for index in range(num_bins):
        in_bin = bin_P == index
        pairs = int(in_bin.sum())
        row = {"low": float(edges[index]), "high": float(edges[index + 1]), "pairs": pairs}
        row["proposed"] = int(proposed_P[in_bin].sum())
        row["recall"] = row["proposed"] / pairs if pairs else 1.0
        row["theory"] = float(expected_P[in_bin].mean()) if pairs else float(theory(edges[index : index + 1])[0])
        rows_out.append(row)
    return rows_out


def check_truth(corpus: Corpus, truth: Truth, documents: int = 300, pairs: int = 300, seed: int = 1) -> int:
    """Pairs that were compared with sets of Python strings: all of some documents (half of them with a near copy),
    and some of the truth's. Raises RuntimeError where a similarity differs, or a pair is missing or made up."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support.text_oracle import jaccard, shingles_of

    generator = np.random.default_rng(seed)
    num = len(truth.ids)
    chosen_P = generator.permutation(len(truth.first_P))[:pairs]
    near = truth.second_P[generator.permutation(len(truth.second_P))[: documents // 4]].tolist()
    near += truth.first_P[np.isin(truth.second_P, near)][: documents // 4].tolist()
    sample = sorted({*near, *generator.permutation(num)[: documents // 2].tolist()})
    wanted = {*sample, *truth.first_P[chosen_P].tolist(), *truth.second_P[chosen_P].tolist()}
    sets = {d: shingles_of(record["text"]) for d, record in enumerate(corpus.records()) if d in wanted}
    known = {}
    inside = np.isin(truth.first_P, sample) & np.isin(truth.second_P, sample)
    inside[chosen_P] = True
    for p in np.flatnonzero(inside).tolist():
        known[int(truth.first_P[p]), int(truth.second_P[p])] = float(truth.similarity_P[p])
    compared = {*known, *((a, b) for b in sample for a in sample if a < b)}
    for a, b in compared:
        exact = jaccard(sets[a], sets[b])
        found = known.get((a, b), 0.0)
        if found != (exact if exact >= FLOOR else 0.0) and (sets[a] or sets[b]):
            raise RuntimeError(f"{truth.ids[a]} and {truth.ids[b]}: similarity {exact}, but the truth has {found}")
    return len(compared)


def main() -> None:
    """Compute, optionally check, print counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    corpus = ensure_corpus(options.folder, options.quick)
    start = time.process_time()
    truth = load_truth(corpus)
    print(f"{len(truth.ids):,} documents, {corpus.bytes / 1e6:.1f} MB, {time.process_time() - start:.1f} CPU seconds")
    for threshold in (0.5, 0.7, 0.8, 0.9, 1.0):
        print(f"pairs at or above {threshold}: {int(np.sum(truth.similarity_P >= threshold)):,}")
    if options.check:
        print(f"{check_truth(corpus, truth):,} pairs agree with sets of Python strings")


if __name__ == "__main__":
    main()
