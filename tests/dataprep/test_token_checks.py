"""What is compared before samples are written: every way in which they could differ from what was tokenised is named,
and nothing of it is published."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.buckets import Bucket, BuildFolders
from dataprep.build import PackDocuments, PackJob, WriteShards
from dataprep.config import PackConfig
from dataprep.pack import PACKERS, pack_window
from dataprep.token_checks import check_window
from dataprep.token_facts import PAIR_DTYPE, TokenFacts
from dataprep.token_store import ByteSums, StoredDocuments, TokenStore
from dataprep.token_windows import WindowSamples, make_window, stream_lengths
from dataprep.tokenize import TOKENISED_DTYPE
from loader.errors import ConfigError, DamageError, RefusedError
from loader.shards.access import npy_bytes
from loader.shards.layout import PADDING_ROW, SEGMENT_DTYPE, SHARD_DTYPE, dtype_name, max_samples, mds_size
from loader.shards.manifest import Manifest, SourceInfo, check_shard_table
from loader.shards.segments import make_segments
from loader.shards.writer import ShardSpec, ShardWriter

FACTS = TokenFacts(40, 1, 2, 0, np.array([0, 0, 0, *range(1, 38)], np.int32))
SEQ_LEN = 16


def make_documents(lengths: list[int]) -> tuple[StoredDocuments, np.ndarray]:
    """Documents of random tokens, and the tokens."""
    rng = np.random.default_rng(sum(lengths))
    ids_T = rng.integers(3, 40, sum(lengths)).astype(np.uint16)
    rows_D = np.zeros(len(lengths), TOKENISED_DTYPE)
    rows_D["num_tokens"] = lengths
    stops = np.cumsum(lengths)
    assert FACTS.lengths_V is not None
    rows_D["num_bytes"] = [
        FACTS.lengths_V[ids_T[stop - n : stop]].sum() for n, stop in zip(lengths, stops, strict=True)
    ]
    rows_D["id"] = rows_D["key"] = np.arange(len(lengths)) + 7
    rows_D["record"] = np.arange(len(lengths))
    rows_D["place"] = stops - lengths
    zeros = np.zeros(len(lengths), np.int64)
    return StoredDocuments(rows_D, zeros, zeros, np.arange(len(lengths)), {}), ids_T


def window_of(lengths: list[int], strategy: str = "best_fit") -> tuple[WindowSamples, StoredDocuments]:
    documents, ids_T = make_documents(lengths)
    packed = pack_window(stream_lengths(documents, FACTS, "web"), SEQ_LEN, 3, strategy)
    return make_window(documents, packed, ids_T, FACTS, SEQ_LEN), documents


@pytest.mark.parametrize("strategy", PACKERS)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_what_was_packed_passes(strategy: str, lengths: list[int]) -> None:
    check_window(*window_of(lengths, strategy), FACTS, "web")


LENGTHS = [3, 40, 9, 14, 1, 0, 22]


def _spoil_token(window: WindowSamples, find: Callable[[WindowSamples], tuple[int, int]], value: int) -> WindowSamples:
    tokens_NT = window.tokens_NT.copy()
    tokens_NT[find(window)] = value
    return replace(window, tokens_NT=tokens_NT)


def _spoil_segment(
    window: WindowSamples, field: str, change: int, pick: Callable[[np.ndarray], np.ndarray]
) -> WindowSamples:
    segments_S = window.segments_S.copy()
    real = np.flatnonzero(pick(segments_S) & (segments_S["document_row"] != PADDING_ROW))[0]
    segments_S[field][real] += np.array(change).astype(segments_S[field].dtype)
    return replace(window, segments_S=segments_S)


def _at(token: int) -> Callable[[WindowSamples], tuple[int, int]]:
    def find(window: WindowSamples) -> tuple[int, int]:
        n, t = np.argwhere(window.tokens_NT == token)[0].tolist()
        return n, t

    return find


def _padding(window: WindowSamples) -> tuple[int, int]:
    sample_S = np.repeat(np.arange(len(window.counts_N)), window.counts_N)
    row = int(np.flatnonzero(window.segments_S["document_row"] == PADDING_ROW)[0])
    return int(sample_S[row]), SEQ_LEN - 1


SPOILS: dict[str, tuple[Callable[[WindowSamples], WindowSamples], str]] = {
    "vocabulary": (lambda w: _spoil_token(w, _at(7), 40), "not below 40"),
    "bos": (lambda w: _spoil_token(w, _at(1), 5), "does not begin with BOS 1"),
    "eos": (lambda w: _spoil_token(w, _at(2), 5), "does not end with EOS 2"),
    "padding": (lambda w: _spoil_token(w, _padding, 9), "padding holds other tokens"),
    "tiles of a sample": (
        lambda w: _spoil_segment(w, "token_start", SEQ_LEN, lambda s: s["token_start"] > 0),
        "do not tile the sample",
    ),
    "a hole before the first": (
        lambda w: _spoil_segment(w, "token_start", 1, lambda s: s["token_start"] == 0),
        "do not tile the sample",
    ),
    "lengths": (
        lambda w: _spoil_segment(w, "token_start", 1, lambda s: s["token_start"] > 0),
        "other tokens than it has",
    ),
    "bytes": (lambda w: _spoil_segment(w, "byte_count", 1, lambda s: s["byte_count"] > 0), "other bytes"),
    "place in the document": (
        lambda w: _spoil_segment(w, "document_token_start", 1, lambda s: s["document_token_start"] > 0),
        "do not tile it",
    ),
    "byte ranges": (
        lambda w: _spoil_segment(w, "byte_start", -1, lambda s: (s["byte_start"] > 0) & (s["byte_count"] > 0)),
        "overlap",
    ),
    "no such document": (
        lambda w: _spoil_segment(w, "document_row", 99, lambda s: s["document_row"] < 99),
        "names no document",
    ),
    "counts": (lambda w: replace(w, counts_N=w.counts_N + 1), "do not add up"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_each_difference_is_named(name: str) -> None:
    spoil, words = SPOILS[name]
    window, documents = window_of(LENGTHS)
    with pytest.raises(DamageError, match=words) as caught:
        check_window(spoil(window), documents, FACTS, "web")
    assert caught.value.code == "TR-SAMPLES-WRONG"
    assert "'web'" in str(caught.value.place)


def test_lost_documents_and_tokens_are_named() -> None:
    window, documents = window_of(LENGTHS)
    rows_D = documents.rows_D.copy()
    rows_D["num_tokens"][4] += 1
    with pytest.raises(DamageError, match="other tokens than it has") as caught:
        check_window(window, replace(documents, rows_D=rows_D), FACTS, "web")
    assert "record 4" in str(caught.value.place)


def _job(folder: Path, facts: TokenFacts) -> PackJob:
    folders = BuildFolders(*(folder / name for name in ("tokenizer", "tokenised", "mix", "pack", "write")))
    pack = PackConfig(SEQ_LEN, "best_fit", 4)
    return PackJob(1, pack, 1 << 20, {"web": (0,)}, folders, (Bucket(0, "web", 0, 0),), facts, mixed=False)


def _store(folder: Path, documents: StoredDocuments, ids_T: np.ndarray) -> None:
    (folder / "tokenised").mkdir()
    (folder / "tokenised/documents.00000.npy").write_bytes(npy_bytes(documents.rows_D))
    (folder / "tokenised/tokens.00000.bin").write_bytes(ids_T.tobytes())


def test_stages_write_shards_and_count(tmp_path: Path) -> None:
    documents, ids_T = make_documents(LENGTHS)
    _store(tmp_path, documents, ids_T)
    job = _job(tmp_path, FACTS)
    PackDocuments(job).run()
    WriteShards(job).run()
    counts = json.loads((tmp_path / "write/shards.00000.json").read_bytes())["counts"]
    streams = [n + 2 for n in LENGTHS]
    assert counts["documents"] == len(LENGTHS)
    assert counts["tokens"] == sum(streams)
    assert counts["padding"] == counts["samples"] * SEQ_LEN - sum(streams)
    assert counts["long_documents"] == sum(n > SEQ_LEN for n in streams)
    assert counts["long_pieces"] == sum(-(-n // SEQ_LEN) for n in streams if n > SEQ_LEN)
    assert counts["fitting_cut"] == 0


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda rows, ids: ids.__setitem__(5, 41), "TR-TOKEN-ID"),
        (lambda rows, ids: rows["num_bytes"].__setitem__(1, 3), "TR-SAMPLES-WRONG"),
        (lambda rows, ids: rows["place"].__setitem__(2, 10_000), "TR-WORK-DAMAGED"),
        (lambda rows, ids: rows["num_tokens"].__setitem__(6, 23), "TR-WORK-DAMAGED"),
    ],
)
def test_damaged_work_is_never_written(
    tmp_path: Path, spoil: Callable[[np.ndarray, np.ndarray], None], code: str
) -> None:
    documents, ids_T = make_documents(LENGTHS)
    spoil(documents.rows_D, ids_T)
    _store(tmp_path, documents, ids_T)
    job = _job(tmp_path, FACTS)
    PackDocuments(job).run()
    with pytest.raises(DamageError) as caught:
        WriteShards(job).run()
    assert caught.value.code == code
    assert not list(tmp_path.rglob("shard.*.mds"))
    assert not (tmp_path / "write/shards.00000.json").exists()


@pytest.mark.parametrize(("field", "value"), [("num_tokens", (1 << 31) - 2), ("num_bytes", 1 << 32)])
def test_documents_that_no_segment_can_describe_are_refused_by_name(field: str, value: int) -> None:
    documents, _ = make_documents([5, 6, 7])
    documents.rows_D[field][1] = value
    with pytest.raises(RefusedError, match="cannot say where its pieces lie") as caught:
        stream_lengths(documents, FACTS, "web")
    assert caught.value.code == "TR-DOCUMENT-LONG"
    assert caught.value.place == "source 'web', input file 0, record 1"
    documents.rows_D[field][1] = value - 1
    stream_lengths(documents, FACTS, "web")


@pytest.mark.parametrize("column", range(5))
def test_segment_numbers_never_wrap(column: int) -> None:
    numbers = [0, 0, 0, 0, 0]
    numbers[column] = 1 << 32
    with pytest.raises(ValueError, match=str(SEGMENT_DTYPE.names[column])):  # type: ignore[index]
        make_segments(*numbers)
    numbers[column] -= 1
    assert int(make_segments(*numbers)[0][column]) == (1 << 32) - 1


def test_a_shard_of_two_gibibytes_is_refused(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, ShardSpec("web", 0, 1 << 20, 40))
    most = max_samples(1 << 20, 40)
    many_NT = np.broadcast_to(np.uint16(3), (2, 1 << 20))
    writer._num_samples = most - 1
    with pytest.raises(ConfigError, match="2 GiB"):
        writer.add_samples(many_NT, make_segments([0, 0], 0, 0, 0, 0), np.array([1, 1]))
    writer.add_samples(many_NT[:1], make_segments([0], 0, 0, 0, 0), np.array([1]))
    assert writer.size_bytes < 1 << 31


@given(st.lists(st.integers(3, 39), max_size=700), st.lists(st.integers(0, 700), max_size=20))
@settings(max_examples=40, deadline=None)
def test_byte_sums(ids: list[int], places: list[int]) -> None:
    ids_T = np.array(ids, np.uint16)
    assert FACTS.lengths_V is not None
    sizes = FACTS.lengths_V[ids_T]
    wanted = [int(sizes[:place].sum()) for place in places if place <= len(ids)]
    place_Q = np.array([place for place in places if place <= len(ids)], np.int64)
    pairs_T = np.zeros(len(ids), PAIR_DTYPE)
    pairs_T["id"], pairs_T["num_bytes"] = ids_T, sizes
    for stored_T, facts in ((ids_T, FACTS), (pairs_T, replace(FACTS, lengths_V=None, paired=True))):
        sums = ByteSums(stored_T, facts)
        assert sums.before(place_Q).tolist() == wanted
        assert sums.total == int(sizes.sum())
    unknown = ByteSums(ids_T, replace(FACTS, lengths_V=None))
    assert unknown.before(place_Q).tolist() == [0] * len(place_Q)


def test_tokens_come_from_many_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    parts = []
    for part in range(5):
        documents, ids_T = make_documents(rng.integers(0, 30, 20).tolist())
        rows_D = documents.rows_D
        rows_D["key"] = np.sort(rng.integers(0, 1 << 62, 20))
        (tmp_path / f"documents.{part:05d}.npy").write_bytes(npy_bytes(rows_D))
        (tmp_path / f"tokens.{part:05d}.bin").write_bytes(ids_T.tobytes())
        parts.append((rows_D, ids_T))
    store = TokenStore(tmp_path, FACTS)
    found = store.documents(Bucket(0, "web", 0, 0), (0, 2, 4))
    assert (np.diff(found.rows_D["key"].astype(np.int64)) > 0).all()
    assert sorted(set(found.part_D.tolist())) == [0, 2, 4]
    tokens = [
        parts[part][1][int(row["place"]) : int(row["place"] + row["num_tokens"])]
        for part, row in zip(found.part_D.tolist(), found.rows_D, strict=True)
    ]
    assert store.tokens(found).tolist() == np.concatenate(tokens).tolist()


def test_totals_are_of_64_bits() -> None:
    """64 shards just below 2 GiB: 6.9e10 tokens in all."""
    samples, seq_len = max_samples(2048, 40), 2048
    rows_R = np.zeros(64, SHARD_DTYPE)
    rows_R["number"] = np.arange(64)
    rows_R["num_samples"] = rows_R["num_segments"] = samples
    rows_R["num_tokens"] = samples * seq_len
    rows_R["size_bytes"] = mds_size(samples, seq_len, 40)
    rows_R["max_segments"] = 1
    total = samples * seq_len * 64
    assert total > 1 << 35
    source = SourceInfo("web", 64, samples * 64, samples * 64, total, 9, 1.0, 0, 0)
    manifest = Manifest((source,), seq_len, 40, dtype_name(40), 1, {}, 0, {}, {}, "0", {}, {}, {})
    check_shard_table(manifest, rows_R, "shards.npy")
    wrong = replace(manifest, sources=(replace(source, num_tokens=total % (1 << 32)),))
    with pytest.raises(DamageError, match="num_tokens"):
        check_shard_table(wrong, rows_R, "shards.npy")
