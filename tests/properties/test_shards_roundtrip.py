"""Whatever is written comes back: any packing of any documents into any shards, read in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.shards import (
    PADDING_ROW,
    DatasetInfo,
    InputFile,
    ShardSpec,
    ShardWriter,
    make_segments,
    max_samples,
    open_dataset,
    write_dataset_manifest,
)
from loader.shards.documents import DocumentIndex
from loader.shards.layout import DOCUMENT_INDEX_DTYPE, mds_header, mds_header_size, mds_size
from loader.shards.manifest import SourceInfo, files_from_text, files_to_text
from loader.shards.verify import verify_dataset

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)


@st.composite
def samples(draw: st.DrawFn, seq_len: int) -> list[tuple[int, int | None, tuple[int, int, int]]]:
    """The segments of one sample: (token start, document number or None for padding, the three provenance numbers)."""
    starts = sorted(draw(st.sets(st.integers(1, seq_len - 1), max_size=4)) if seq_len > 1 else set())
    segments: list[tuple[int, int | None, tuple[int, int, int]]] = [
        (start, draw(st.integers(0, 3)), (draw(U32), draw(U32), draw(U32))) for start in [0, *starts]
    ]
    if draw(st.booleans()):
        segments[-1] = (segments[-1][0], None, (0, 0, 0))
    return segments


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, int, list[list[list[tuple[int, int | None, tuple[int, int, int]]]]]]:
    """(seq_len, vocabulary, shards of samples of segments)."""
    seq_len = draw(st.sampled_from([1, 2, 7, 64]))
    vocab_size = draw(st.sampled_from([2, 256, 1 << 16, (1 << 16) + 1, 1 << 31]))
    shards = draw(st.lists(st.lists(samples(seq_len), min_size=1, max_size=5), min_size=1, max_size=3))
    return seq_len, vocab_size, shards


@settings(max_examples=40, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_everything_written_comes_back(world: tuple[int, int, list[list[list[tuple]]]], rng: object) -> None:  # type: ignore[type-arg]
    seq_len, vocab_size, shards = world
    generator = np.random.default_rng(rng.getrandbits(32))  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records, tokens, segments = [], [], []
        for number, shard in enumerate(shards):
            writer = ShardWriter(folder, ShardSpec("web", number, seq_len, vocab_size))
            rows: dict[int, int] = {}
            for sample in shard:
                for _, document, _ in sample:
                    if document is not None and document not in rows:
                        rows[document] = writer.add_document(2**64 - 1 - document, 0, document, 2**62 + document)
                tokens.append(generator.integers(0, vocab_size, seq_len))
                table = [
                    (start, PADDING_ROW if document is None else rows[document], *numbers)
                    for start, document, numbers in sample
                ]
                writer.add_sample(tokens[-1], make_segments(*np.array(table).T))
                segments.append(sample)
            records.append(writer.close())
        files = (InputFile("web", "a.jsonl", 3, "0" * 32),)
        write_dataset_manifest(folder, DatasetInfo(("web",), seq_len, vocab_size, tuple(records), files, {}, 1, "0"))
        dataset = open_dataset(folder)
        order_N = generator.integers(0, len(tokens), 9)
        assert (dataset.read_samples("web", order_N) == np.array(tokens)[order_N]).all()
        table_S = dataset.segments_of("web", order_N)
        expected = []
        for index, number in enumerate(order_N.tolist()):
            stops = [start for start, _, _ in segments[number][1:]] + [seq_len]
            for (start, document, numbers), stop in zip(segments[number], stops, strict=True):
                origin = (0, -1, 0, 0) if document is None else (2**64 - 1 - document, 0, document, 2**62 + document)
                expected.append((index, start, stop - start, *numbers, document is None, *origin))
        found = zip(
            table_S.sample_index_S.tolist(),
            table_S.token_start_S.tolist(),
            table_S.num_tokens_S.tolist(),
            table_S.document_token_start_S.tolist(),
            table_S.byte_start_S.tolist(),
            table_S.byte_count_S.tolist(),
            table_S.padding_S.tolist(),
            table_S.document_id_S.tolist(),
            table_S.file_S.tolist(),
            table_S.record_S.tolist(),
            table_S.record_start_S.tolist(),
            strict=True,
        )
        assert list(found) == expected
        for document in range(4):
            wanted = {n for n, sample in enumerate(segments) if document in [d for _, d, _ in sample]}
            places = dataset.samples_of_document(2**64 - 1 - document)
            assert {n for _, numbers in places for n in numbers.tolist()} == wanted
        assert verify_dataset(folder) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 5000), st.sampled_from([2, 1 << 16, 1 << 17]))
def test_header_and_sizes_agree(num_samples: int, seq_len: int, vocab_size: int) -> None:
    header = mds_header(num_samples, seq_len, vocab_size)
    assert len(header) == mds_header_size(num_samples, seq_len, vocab_size)
    assert len(header) % 4096 == 0
    offsets_N = np.frombuffer(header, "<u4", num_samples + 1, 4)
    assert int(offsets_N[0]) == len(header)
    assert int(offsets_N[-1]) == mds_size(num_samples, seq_len, vocab_size)
    size_bytes = mds_size(num_samples, seq_len, vocab_size)
    assert max_samples(seq_len, vocab_size, size_bytes) == num_samples
    assert max_samples(seq_len, vocab_size, size_bytes - 1) == num_samples - 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40) | U64, st.integers(0, 9)), max_size=1200), st.data())
def test_document_index_finds_all_rows_of_an_id(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    from loader.files import digest_bytes
    from loader.shards.access import npy_bytes
    from loader.shards.documents import sort_index

    rows_M = np.array([(a, b, i) for i, (a, b) in enumerate(pairs)], DOCUMENT_INDEX_DTYPE)
    content = npy_bytes(sort_index(rows_M))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "documents.npy"
        path.write_bytes(content)
        index = DocumentIndex(path, len(content), digest_bytes(content))
        assert index.num_rows == len(pairs)
        wanted = data.draw(st.lists(st.sampled_from([a for a, _ in pairs]), max_size=5)) if pairs else []
        for document in [*wanted, 0, 40, 41, 2**64 - 1]:
            found = index.find(document).tolist()
            assert found == [(a, b, i) for i, (a, b) in enumerate(pairs) if a == document]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.integers(-1, 2**62))))
def test_input_files_come_back(entries: list[tuple[str, int]]) -> None:
    files = tuple(
        InputFile("web", path, size)
        for path, size in entries
        if not path.startswith("/") and {"", ".", ".."}.isdisjoint(path.split("/"))
    )
    sources = (SourceInfo("web", 0, 0, 0, 0, 0, 0.0, 0, len(files)),)
    assert files_from_text(files_to_text(files), sources, "files.txt") == files
