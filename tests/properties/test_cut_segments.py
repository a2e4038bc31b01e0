"""Segments around cuts: every one stands for one contiguous range of the document's text, whatever was cut and wherever
the document is split over samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from dataprep.cut_segments import GAP_DTYPE, PieceRanges, split_at_gaps, window_gaps
from dataprep.cuts import CUT_DTYPE, kept_pieces, union_by_record
from dataprep.kernels.pack import split_documents


@dataclass(frozen=True)
class Document:
    """A text as the bytes of its own tokens, and the cut ranges in front of some of them."""

    token_bytes: list[int]
    gaps: dict[int, int]


@composite
def documents(draw: DrawFn) -> Document:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    gaps = draw(st.dictionaries(st.integers(0, len(sizes) - 1), st.integers(1, 9), max_size=4))
    return Document(sizes, gaps)


@settings(deadline=None, max_examples=150)
@given(st.lists(documents(), min_size=1, max_size=6), st.integers(2, 9), st.booleans(), st.booleans())
def test_segments_are_the_contiguous_runs(found: list[Document], seq_len: int, bos: bool, eos: bool) -> None:
    own_D = np.array([len(document.token_bytes) for document in found])
    document_P, start_P, num_P = split_documents(own_D + bos + eos, seq_len)
    base_D = np.cumsum(own_D) - own_D
    own_start = np.clip(start_P - bos, 0, own_D[document_P])
    own_stop = np.clip(start_P + num_P - bos, 0, own_D[document_P])
    pieces = PieceRanges(
        np.arange(len(document_P)),
        np.zeros(len(document_P), np.int64),
        document_P.astype(np.int64),
        start_P.astype(np.int64),
        num_P.astype(np.int64),
        base_D[document_P],
        base_D[document_P] + own_start,
        base_D[document_P] + own_stop,
        ((start_P == 0) & bos).astype(np.int64),
    )
    byte_stop_T = np.concatenate([[0], np.cumsum([size for d in found for size in d.token_bytes])])
    rows = [(d, token, size) for d, document in enumerate(found) for token, size in sorted(document.gaps.items())]
    gaps = window_gaps(np.arange(len(found)), np.zeros(len(found), np.int64), base_D, {0: np.array(rows, GAP_DTYPE)})
    columns = split_at_gaps(pieces, gaps, byte_stop_T.take)
    expected = []
    for p, (d, start, count) in enumerate(zip(document_P, start_P, num_P, strict=True)):
        runs: list[list[int]] = []  # token start in the piece, first byte, bytes
        place = 0
        for token, size in enumerate(found[d].token_bytes):
            place += found[d].gaps.get(token, 0)
            stream = token + bos
            if start <= stream < start + count:
                if not runs or (token in found[d].gaps and runs[-1][2]):
                    runs.append([stream - start if runs else 0, place, 0])
                runs[-1][2] += size
            place += size
        if not runs:  # BOS or EOS alone
            runs = [[0, 0 if start == 0 else place, 0]]
        expected += [(p, d, start + first, first, at, size) for first, at, size in runs]
    got = zip(
        columns.sample_S.tolist(),
        columns.document_S.tolist(),
        columns.document_token_start_S.tolist(),
        columns.token_start_S.tolist(),
        columns.byte_start_S.tolist(),
        columns.byte_count_S.tolist(),
        strict=True,
    )
    assert list(got) == expected


def test_without_gaps_pieces_are_segments() -> None:
    one = np.array([0, 1])
    pieces = PieceRanges(one, one * 0, one, one * 0, one * 0 + 3, one * 3, one * 3, one * 3 + 3, one * 0)
    columns = split_at_gaps(pieces, window_gaps(one, one * 0, one * 3, {}), (np.arange(7) * 2).take)
    assert columns.byte_start_S.tolist() == [0, 0]
    assert columns.byte_count_S.tolist() == [6, 6]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=10), st.integers(1, 45))
def test_kept_pieces_are_the_complement(cuts: list[tuple[int, int, int]], size: int) -> None:
    """Of any overlapping ranges, against one flag a byte."""
    rows_C = np.zeros(len(cuts), CUT_DTYPE)
    for i, (record, start, count) in enumerate(cuts):
        rows_C["record"][i], rows_C["byte_start"][i], rows_C["byte_count"][i] = record, start, min(count, size - start)
    rows_C = rows_C[rows_C["byte_count"] > 0]
    ranges = union_by_record(rows_C)
    for record in range(3):
        mine = ranges.get(record, [])
        assert all(one[1] < other[0] for one, other in pairwise(mine))  # what touches is one range
        kept = np.ones(size, np.bool_)
        for row in rows_C[rows_C["record"] == record]:
            kept[int(row["byte_start"]) : int(row["byte_start"] + row["byte_count"])] = False
        flags = np.zeros(size, np.bool_)
        for start, stop in kept_pieces(ranges.get(record, []), size):
            assert start < stop
            assert not flags[start:stop].any()
            flags[start:stop] = True
        assert (flags == kept).all()
