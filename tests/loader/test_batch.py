"""A batch against an oracle in plain Python loops, made from the documents and never from the Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
from support.datasets import EOS, DatasetSpec, MadeDataset, decode, make_dataset

from loader.order import SkipEntry
from loader.stream.batch import Batch, read_batch, read_positions, slice_batch
from loader.stream.open import OrderOptions, open_stream

SEGMENT_NUMBERS = dict[str, list[int]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("batch"), DatasetSpec(seq_len=48, samples_per_shard=10))


def _entries(made: MadeDataset) -> list[SkipEntry]:
    web = [document.id for document in made.documents.values() if document.source == "web"]
    return [
        SkipEntry("documents", "mask", 16, documents=tuple(web[:20])),
        SkipEntry("samples", "mask", 40, "code", ((3, 30),)),
        SkipEntry("segments", "mask", 24, "books", ((5, 25),)),
        SkipEntry("positions", "drop", 50, ranges=((60, 75),)),
        SkipEntry("samples", "drop", 30, "web", ((0, 40),)),
    ]


def _masked(made: MadeDataset, position: int, source: str, sample: int, segment: int, document: int) -> bool:
    """The meaning of the entries above, spelled out."""
    documents, samples, segments = _entries(made)[:3]
    return (
        (position >= documents.stamp and document in documents.documents)
        or (position >= samples.stamp and source == "code" and 3 <= sample < 30)
        or (position >= segments.stamp and source == "books" and 5 <= segment < 25)
    )


def _expected(made: MadeDataset, batch: Batch, names: tuple[str, ...], skips: bool) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = {"tokens": [], "labels": [], "places": [], "starts": [], "digest": []}
    seq_len = made.spec.seq_len
    for row, (position, number, sample) in enumerate(
        zip(batch.positions_B.tolist(), batch.source_B.tolist(), batch.sample_B.tolist(), strict=True)
    ):
        source = names[number]
        tokens, pieces = made.samples[source][sample]
        first_segment = sum(len(earlier) for _, earlier in made.samples[source][:sample])
        seen, labels, places = list(tokens), [-100] * seq_len, [0] * seq_len
        for index, piece in enumerate(pieces):
            document = piece.document
            masked = skips and document is not None and _masked(
                made, position, source, sample, first_segment + index, document.id
            )  # fmt: skip
            rows["starts"].append(row * seq_len + piece.token_start)
            for at in range(piece.token_start, piece.token_stop):
                places[at] = at - piece.token_start
                if masked:
                    seen[at] = EOS
                elif document is not None and at + 1 < piece.token_stop:
                    labels[at] = tokens[at + 1]
        rows["tokens"].append(seen)
        rows["labels"].append(labels)
        rows["places"].append(places)
        marks = []
        for index, piece in enumerate(pieces):
            silent = all(labels[at] == -100 for at in range(piece.token_start, piece.token_stop - 1))
            if piece.token_stop - piece.token_start == 1:
                silent = piece.document is None or (
                    skips and _masked(made, position, source, sample, first_segment + index, piece.document.id)
                )
            marks.append(2 * piece.token_start + silent)
        seed = xxhash.xxh3_64(np.array(marks, "<u4").tobytes(), seed=position).intdigest()
        rows["digest"].append(xxhash.xxh3_64(np.array(seen, "<u2").tobytes(), seed=seed).intdigest())
    return rows


@pytest.mark.parametrize("skips", [False, True])
def test_batch_equals_the_oracle(made: MadeDataset, skips: bool) -> None:
    order = OrderOptions(seed=3, skips=_entries(made) if skips else ())
    with open_stream(made.path, 7, order) as stream:
        names = stream.sources.names
        num_masked = 0
        for _ in range(60):
            batch = next(stream)
            expected = _expected(made, batch, names, skips)
            assert batch.tokens_BT.tolist() == expected["tokens"]
            assert batch.labels_BT.tolist() == expected["labels"]
            assert batch.token_positions_BT.tolist() == expected["places"]
            total = batch.tokens_BT.size
            length = 7 * stream.sources.max_segments + 1
            starts = expected["starts"]
            assert batch.cu_seqlens_C.tolist() == starts + [total] * (length - len(starts))
            assert batch.token_digest == sum(expected["digest"]) % 2**64
            owner = np.repeat(np.arange(len(starts)), np.diff([*starts, total]))
            assert batch.segment_of_BT.reshape(-1).tolist() == owner.tolist()
            num_masked += int(batch.segments.masked_S.sum())
    assert bool(num_masked) == skips


def test_every_token_names_its_document(made: MadeDataset) -> None:
    with open_stream(made.path, 16) as stream:
        for _ in range(20):
            batch = next(stream)
            segments = batch.segments
            for index in range(len(segments)):
                row, start = int(segments.sample_index_S[index]), int(segments.token_start_S[index])
                tokens = batch.tokens_BT[row, start : start + int(segments.num_tokens_S[index])].tolist()
                if segments.padding_S[index]:
                    assert not decode(tokens)
                    continue
                document = made.documents[int(segments.document_id_S[index])]
                first = int(segments.byte_start_S[index])
                text = document.text.encode()[first : first + int(segments.byte_count_S[index])]
                assert decode(tokens) == text
                assert int(segments.record_S[index]) == document.record
                assert int(segments.record_start_S[index]) == document.record_start


@pytest.mark.parametrize("micro", [1, 2, 3, 5, 16])
def test_micro_batches_are_the_batch(made: MadeDataset, micro: int) -> None:
    with open_stream(made.path, 16, OrderOptions(skips=_entries(made))) as stream:
        for _ in range(4):
            batch = next(stream)
        parts = [slice_batch(batch, start, start + micro) for start in range(0, 16, micro)]
        for name in ("tokens_BT", "labels_BT", "token_positions_BT", "positions_B"):
            assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(batch, name))
        assert sum(part.token_digest for part in parts) % 2**64 == batch.token_digest
        assert sum(part.num_labels for part in parts) == batch.num_labels
        for part in parts:
            alone = read_positions(stream.plan, stream.sources, part.positions_B)
            assert np.array_equal(part.cu_seqlens_C, alone.cu_seqlens_C)
            assert np.array_equal(part.segment_of_BT, alone.segment_of_BT)
            assert np.array_equal(part.segments.sample_index_S, alone.segments.sample_index_S)


def test_positions_in_any_order_are_the_rows_of_that_order(made: MadeDataset) -> None:
    """Also far apart and one of them twice: each row as it is alone."""
    with open_stream(made.path, 16, OrderOptions(skips=_entries(made))) as stream:
        positions_B = np.array([90, 3, 41, 5000, 3, 42, 0])
        batch = read_positions(stream.plan, stream.sources, positions_B)
        assert batch.positions_B.tolist() == positions_B.tolist()
        for row in range(len(positions_B)):
            alone = read_positions(stream.plan, stream.sources, positions_B[row : row + 1])
            for name in ("tokens_BT", "labels_BT", "token_positions_BT", "source_B", "sample_B", "epoch_B"):
                assert np.array_equal(getattr(batch, name)[row], getattr(alone, name)[0])
            assert batch.row_digest_B[row] == alone.row_digest_B[0]
            mine = batch.segments.take(batch.segments.sample_index_S == row)
            for name in ("document_id_S", "masked_S", "position_S", "segment_S", "byte_start_S"):
                assert np.array_equal(getattr(mine, name), getattr(alone.segments, name))


def test_a_rank_without_samples_gets_an_empty_batch(made: MadeDataset) -> None:
    with open_stream(made.path, 2) as stream:
        parts = [read_batch(stream.plan, stream.sources, 3, rank, 3) for rank in range(3)]
        assert [len(part.positions_B) for part in parts] == [0, 1, 1]
        assert parts[0].tokens_BT.shape == (0, 48)
        assert parts[0].cu_seqlens_C.tolist() == [0]
        assert (parts[0].token_digest, parts[0].num_labels) == (0, 0)
        assert {part.next_position for part in parts} == {8}


def test_changed_content_changes_the_digest(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream, open_stream(made.path, 4, OrderOptions(seed=18)) as other:
        assert next(stream).token_digest != next(other).token_digest
