"""Checks of a window's samples before they are written: what was packed is what was tokenised, and nothing else.

They look at the finished samples alone, and at what tokenising said of the documents; nothing of how the samples were
made is used, so that a mistake there shows here (peers lost BOS for weeks, and one token of each document in an index).

Legend: D documents of the window, S segments, N samples, T tokens of a sample.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loader.errors import DamageError
from loader.shards.layout import PADDING_ROW

from .token_facts import TokenFacts
from .token_store import StoredDocuments
from .token_windows import WindowSamples

__all__ = ["check_window"]


def check_window(window: WindowSamples, documents: StoredDocuments, facts: TokenFacts, source: str) -> None:
    """Compare a window's samples with its documents.

    Raises:
        DamageError: ``TR-SAMPLES-WRONG``, naming the first wrong document or sample: a token id outside the vocabulary;
            segments that do not tile their sample or their document; a document whose tokens or bytes do not add up;
            a document that does not begin with BOS or end with EOS where the policy says so; padding that is none.
    """
    tokens_NT, segments_S = window.tokens_NT, window.segments_S
    num_samples, seq_len = tokens_NT.shape
    if tokens_NT.size and int(tokens_NT.max()) >= facts.vocab_size:
        sample = int(np.argmax((tokens_NT >= facts.vocab_size).any(1)))
        raise _wrong(f"a token id is not below {facts.vocab_size:,}", f"sample {sample} of the window", source)
    sample_S = np.repeat(np.arange(num_samples), window.counts_N)
    if len(sample_S) != len(segments_S):
        raise _wrong("segments a sample do not add up to the segments", "window", source)
    start_S = segments_S["token_start"].astype(np.int64)
    first_S = np.diff(sample_S, prepend=-1) != 0
    stop_S = np.full(len(start_S), seq_len)
    stop_S[:-1] = np.where(first_S[1:], seq_len, start_S[1:])
    _all_right(
        (stop_S > start_S) & ((start_S == 0) == first_S),
        "segments do not tile the sample",
        lambda i: f"sample {int(sample_S[i])} of the window",
        source,
    )
    padding_S = segments_S["document_row"] == PADDING_ROW
    for row in np.flatnonzero(padding_S).tolist():
        if (tokens_NT[sample_S[row], start_S[row] : stop_S[row]] != facts.pad_id).any():
            raise _wrong("padding holds other tokens", f"sample {int(sample_S[row])} of the window", source)
    real = ~padding_S
    _check_documents(
        window,
        documents,
        facts,
        (sample_S[real], start_S[real], stop_S[real], segments_S[real]),
        source,
    )


def _check_documents(
    window: WindowSamples,
    documents: StoredDocuments,
    facts: TokenFacts,
    segments: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.void]],
    source: str,
) -> None:
    """Sums, tiling and borders of each document, from its segments alone (sample, start, stop, row)."""
    sample_S, start_S, stop_S, rows_S = segments
    place = documents.place
    document_S = rows_S["document_row"].astype(np.int64)
    count = len(documents.rows_D)
    if len(document_S) and int(document_S.max()) >= count:
        raise _wrong("a segment names no document", f"document {int(document_S.max())} of {count}", source)
    length_D = documents.rows_D["num_tokens"].astype(np.int64) + facts.num_borders
    found_D = np.bincount(document_S, stop_S - start_S, count).astype(np.int64)
    _all_right(found_D == length_D, "its segments have other tokens than it has", place, source)
    bytes_D = np.bincount(document_S, rows_S["byte_count"].astype(np.float64), count).astype(np.int64)
    _all_right(
        bytes_D == documents.rows_D["num_bytes"].astype(np.int64), "its segments have other bytes", place, source
    )
    order_S = np.lexsort((rows_S["document_token_start"], document_S))
    document_S, rows_S = document_S[order_S], rows_S[order_S]
    sample_S, start_S, stop_S = sample_S[order_S], start_S[order_S], stop_S[order_S]
    within_S = np.cumsum(stop_S - start_S) - (stop_S - start_S)
    first_S = np.diff(document_S, prepend=-1) != 0
    within_S -= np.repeat(within_S[first_S], np.diff(np.append(np.flatnonzero(first_S), len(first_S))))
    tiled_S = rows_S["document_token_start"].astype(np.int64) == within_S
    _all_right(tiled_S, "its segments do not tile it", lambda i: place(int(document_S[i])), source)
    byte_start_S = rows_S["byte_start"].astype(np.int64)
    byte_stop_S = byte_start_S + rows_S["byte_count"].astype(np.int64)
    risen_S = first_S.copy()
    risen_S[1:] |= byte_start_S[1:] >= byte_stop_S[:-1]
    _all_right(risen_S, "byte ranges of its segments overlap", lambda i: place(int(document_S[i])), source)
    last_S = np.append(first_S[1:], True)[: len(first_S)]
    if facts.bos_id is not None:
        begins_D = window.tokens_NT[sample_S[first_S], start_S[first_S]] == facts.bos_id
        _all_right(begins_D, f"it does not begin with BOS {facts.bos_id}", place, source)
    if facts.eos_id is not None:
        ends_D = window.tokens_NT[sample_S[last_S], stop_S[last_S] - 1] == facts.eos_id
        _all_right(ends_D, f"it does not end with EOS {facts.eos_id}", place, source)


def _all_right(right: NDArray[np.bool_], message: str, place: Callable[[int], str], source: str) -> None:
    """Refuse what is not right everywhere; ``place`` names an index."""
    if not right.all():
        raise _wrong(message, place(int(np.argmin(right))), source)


def _wrong(message: str, place: str, source: str) -> DamageError:
    return DamageError(
        "TR-SAMPLES-WRONG",
        f"packed samples are not what was tokenised: {message}",
        f"source {source!r}, {place}",
        "the documents as tokenised, whole and once",
        "remove the work folder and run again; if it repeats, please report it",
    )
