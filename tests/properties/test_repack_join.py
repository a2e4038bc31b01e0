"""Joining undoes packing: tokens, byte sums and gaps of documents come back from their segments, whatever was cut from
them and wherever they were split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cut_segments import GAP_DTYPE
from dataprep.pack import PACKERS, pack_window
from dataprep.repack_join import Joining, join_documents
from dataprep.token_facts import TokenFacts
from dataprep.token_store import StoredDocuments
from dataprep.token_windows import WindowSamples, make_window, stream_lengths
from dataprep.tokenize import TOKENISED_DTYPE
from loader.shards.layout import PADDING_ROW
from loader.shards.segments import SegmentTable

FACTS = TokenFacts(40, 1, 2, 0, np.array([0, 0, 0, *range(1, 38)], np.int32))


def table_of(window: WindowSamples) -> SegmentTable:
    """The window's segments as a reader gives them."""
    segments_S = window.segments_S
    sample_S = np.repeat(np.arange(len(window.counts_N)), window.counts_N)
    start_S = segments_S["token_start"].astype(np.int64)
    stop_S = np.append(start_S[1:], window.tokens_NT.shape[1])
    stop_S[np.cumsum(window.counts_N) - 1] = window.tokens_NT.shape[1]
    padding_S = segments_S["document_row"] == PADDING_ROW
    row_S = np.where(padding_S, 0, segments_S["document_row"].astype(np.int64))
    document_S = window.documents_D[row_S]
    number_S = np.arange(len(segments_S))
    return SegmentTable(
        sample_S, sample_S, number_S, start_S, stop_S - start_S, number_S.astype(np.int32) * 0, row_S,
        document_S["id"], segments_S["document_token_start"].astype(np.int64),
        segments_S["byte_start"].astype(np.int64), segments_S["byte_count"].astype(np.int64),
        document_S["file"].astype(np.int64),
        document_S["record"].astype(np.int64), document_S["record_start"].astype(np.int64), padding_S,
    )  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.dictionaries(st.integers(0, 39), st.integers(1, 9), max_size=3)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(sorted(PACKERS)),
    st.integers(8, 20),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_joining_undoes_packing(
    made: list[tuple[int, dict[int, int]]], strategy: str, seq_len: int, borders: bool
) -> None:
    facts = FACTS if borders else replace(FACTS, bos_id=None, eos_id=None)
    made = [(n, cuts) for n, cuts in made if n or borders]
    rng = np.random.default_rng(len(made))
    ids = [rng.integers(3, 40, n).astype(np.uint16) for n, _ in made]
    gaps = [(d, t, size) for d, (n, cuts) in enumerate(made) for t, size in sorted(cuts.items()) if t < n]
    rows_D = np.zeros(len(made), TOKENISED_DTYPE)
    rows_D["num_tokens"] = [n for n, _ in made]
    assert FACTS.lengths_V is not None
    rows_D["num_bytes"] = [FACTS.lengths_V[own].sum() for own in ids]
    rows_D["cut_bytes"] = [sum(size for d, _, size in gaps if d == document) for document in range(len(made))]
    rows_D["id"] = rng.permutation(len(made)) + 5
    rows_D["record"] = np.arange(len(made))
    zeros = np.zeros(len(made), np.int64)
    documents = StoredDocuments(rows_D, zeros, zeros, np.arange(len(made)), {0: np.array(gaps, GAP_DTYPE)})
    packed = pack_window(stream_lengths(documents, facts, "web"), seq_len, 3, strategy)
    window = make_window(documents, packed, np.concatenate([np.zeros(0, np.uint16), *ids]), facts, seq_len)
    part = join_documents(window.tokens_NT, table_of(window), Joining(64, "best_fit", 0, 17, facts))
    assert sorted(part.rows_D["record"].tolist()) == list(range(len(made)))
    assert (np.diff(part.rows_D["key"].astype(np.float64)) >= 0).all()
    found = {
        int(gap_row): int(record) for gap_row, record in zip(part.rows_D["gap_row"], part.rows_D["record"], strict=True)
    }
    assert sorted((found[int(d)], int(t), int(size)) for d, t, size in part.gaps_G) == gaps
    for row in part.rows_D:
        document, place = int(row["record"]), int(row["place"])
        assert part.stored_T[place : place + int(row["num_tokens"])].tolist() == ids[document].tolist()
        for name in ("id", "num_bytes", "cut_bytes", "num_tokens"):
            assert row[name] == rows_D[name][document]
