"""Writing and reading Datasets against an oracle that never reads them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.errors import ConfigError, DamageError, JobError, RefusedError
from loader.shards import (
    PADDING_ROW,
    DatasetInfo,
    InputFile,
    SegmentTable,
    ShardRecord,
    ShardSpec,
    ShardWriter,
    make_segments,
    max_samples,
    open_dataset,
    write_dataset_manifest,
)
from loader.shards.cache import Cache
from loader.shards.layout import mds_size


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("made"))


def one_shard(folder: Path, number: int = 0, document: int = 5, source: str = "web") -> ShardRecord:
    writer = ShardWriter(folder, ShardSpec(source, number, 8, 100))
    row = writer.add_document(document, 0, number, 0)
    writer.add_sample(np.arange(8), make_segments([0, 6], [row, PADDING_ROW], [0, 0], [0, 0], [9, 0]))
    return writer.close()


def info(*shards: ShardRecord, **changes: object) -> DatasetInfo:
    values: dict[str, object] = {
        "sources": ("web",),
        "seq_len": 8,
        "vocab_size": 100,
        "shards": shards,
        "files": (InputFile("web", "a.jsonl"),),
        "tokenizer": {"digest": "x"},
        "salt": 0,
        "package_version": "0",
    }
    return DatasetInfo(**{**values, **changes})  # type: ignore[arg-type]


def test_every_sample_and_segment_equals_the_oracle(made: MadeDataset) -> None:
    dataset = made.open()
    assert dataset.source_names == tuple(made.samples)
    for source, samples in made.samples.items():
        assert dataset.shard_samples(source).tolist() == made.shard_samples[source]
        order_N = np.random.default_rng(1).permutation(len(samples))
        order_N = np.concatenate([order_N, order_N[:5]])
        tokens_NT = dataset.read_samples(source, order_N)
        assert tokens_NT.tolist() == [samples[n][0] for n in order_N]
        table = dataset.segments_of(source, order_N)
        first_segment = np.cumsum([0] + [len(pieces) for _, pieces in samples])
        expected = []
        for index, sample in enumerate(order_N.tolist()):
            for number, piece in enumerate(samples[sample][1]):
                document = piece.document
                expected.append(
                    (
                        index,
                        sample,
                        first_segment[sample] + number,
                        piece.token_start,
                        piece.token_stop - piece.token_start,
                        sample // made.spec.samples_per_shard,
                        0 if document is None else document.id,
                        piece.document_token_start,
                        piece.byte_start,
                        piece.byte_stop - piece.byte_start,
                        "" if document is None else document.path,
                        0 if document is None else document.record,
                        0 if document is None else document.record_start,
                        document is None,
                    )
                )
        paths = ["" if f < 0 else dataset.file_path(f) for f in table.file_S.tolist()]
        found = zip(
            table.sample_index_S.tolist(),
            table.source_sample_S.tolist(),
            table.segment_S.tolist(),
            table.token_start_S.tolist(),
            table.num_tokens_S.tolist(),
            table.shard_S.tolist(),
            table.document_id_S.tolist(),
            table.document_token_start_S.tolist(),
            table.byte_start_S.tolist(),
            table.byte_count_S.tolist(),
            paths,
            table.record_S.tolist(),
            table.record_start_S.tolist(),
            table.padding_S.tolist(),
            strict=True,
        )
        assert list(found) == expected
        assert dataset.num_segments(source) == first_segment[-1]


def test_every_document_is_found_in_its_samples(made: MadeDataset) -> None:
    dataset = made.open()
    where: dict[int, set[tuple[str, int]]] = {document: set() for document in made.documents}
    for source, samples in made.samples.items():
        for number, (_, pieces) in enumerate(samples):
            for piece in pieces:
                if piece.document is not None:
                    where[piece.document.id].add((source, number))
    spread = 0
    for document, expected in where.items():
        found = dataset.samples_of_document(document)
        assert {(source, n) for source, numbers in found for n in numbers.tolist()} == expected
        places = dataset.find_document(document)
        assert [place.source for place in places] == [source for source, _ in found]
        spread += len(places) > 1
    assert spread, "no document lies in two shards: the test would not see a mix-up"
    unknown = next(n for n in range(10) if n not in where)
    assert dataset.find_document(unknown) == ()
    assert dataset.samples_of_document(unknown) == []


def test_manifest_counts_and_shares(made: MadeDataset) -> None:
    manifest = made.open().manifest
    tokens = {
        source: sum(p.token_stop - p.token_start for _, pieces in samples for p in pieces if p.document is not None)
        for source, samples in made.samples.items()
    }
    for found in manifest.sources:
        samples = made.samples[found.name]
        assert found.num_samples == len(samples)
        assert found.num_tokens == tokens[found.name]
        assert found.num_segments == sum(len(pieces) for _, pieces in samples)
        assert found.num_documents == sum(d.source == found.name for d in made.documents.values())
        assert found.share == tokens[found.name] / sum(tokens.values())
    assert manifest.max_segments == max(len(p) for samples in made.samples.values() for _, p in samples)
    assert manifest.dtype == "uint16"


def test_two_writes_give_the_same_bytes(made: MadeDataset, tmp_path: Path) -> None:
    again = make_dataset(tmp_path)
    assert again.digest == made.digest
    names = sorted(p.relative_to(made.path) for p in made.path.rglob("*") if p.is_file() and p.name != "job.json")
    assert names == sorted(
        p.relative_to(again.path) for p in again.path.rglob("*") if p.is_file() and p.name != "job.json"
    )
    assert all((made.path / n).read_bytes() == (again.path / n).read_bytes() for n in names)


def test_provenance_stays_inside_its_budget(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 3000}, samples_per_shard=4096, max_words=12))
    dataset = made.open()
    source = dataset.manifest.sources[0]
    size_bytes = sum((made.path / "web" / f"shard.00000.{end}").stat().st_size for end in ("segments", "docs"))
    size_bytes += (made.path / "documents.npy").stat().st_size
    headers = 2 * 64 + 4 + 128  # fixed, whatever the counts
    assert source.num_documents == 3000
    budget = 20 * source.num_segments + 12 * source.num_samples + 45 * source.num_documents
    assert size_bytes - headers <= budget
    assert size_bytes - headers >= 0.9 * budget, "the budget would not notice a doubling"


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_dtype_follows_the_vocabulary(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    tokens_NT = np.array([[vocab_size - 1, 0, 5], [7, 1, 2]])
    writer = ShardWriter(tmp_path, ShardSpec("web", 0, 3, vocab_size))
    row = writer.add_document(9, 0, 0, 0)
    writer.add_samples(tokens_NT, make_segments([0, 0], row, [0, 3], 0, 1), np.array([1, 1]))
    write_dataset_manifest(tmp_path, info(writer.close(), seq_len=3, vocab_size=vocab_size))
    found_NT = open_dataset(tmp_path).read_samples("web", [0, 1])
    assert found_NT.dtype == dtype
    assert (found_NT == tokens_NT).all()


def test_samples_begin_on_a_page_border(made: MadeDataset) -> None:
    dataset = made.open()
    for source, samples in made.samples.items():
        for shard, count in enumerate(made.shard_samples[source]):
            data = (made.path / source / f"shard.{shard:05d}.mds").read_bytes()
            assert int.from_bytes(data[:4], "little") == count
            start = int.from_bytes(data[4:8], "little")
            assert start % 4096 == 0
            first = samples[shard * made.spec.samples_per_shard][0]
            assert np.frombuffer(data, "<u2", dataset.manifest.seq_len, start).tolist() == first


def test_reading_from_many_threads(made: MadeDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader.shards.dataset._MAX_OPEN_SHARDS", 2)
    monkeypatch.setattr("loader.shards.dataset._TABLE_CACHE_BYTES", 4000)
    dataset = made.open()
    samples = made.samples["web"]
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        try:
            for sample_N in np.random.default_rng(seed).integers(0, len(samples), (40, 12)):
                assert dataset.read_samples("web", sample_N).tolist() == [samples[n][0] for n in sample_N]
                dataset.segments_of("web", sample_N)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_cache_keeps_what_is_used_and_bounds_the_rest() -> None:
    made: list[int] = []

    def make(key: int) -> tuple[int, int]:
        made.append(key)
        return key, 1

    cache: Cache[int] = Cache(3)
    for key in (1, 2, 3, 4):
        assert cache.get(key, make) == key
    for key in (2, 5, 2):  # 3 and 4 were not used again, 2 was
        assert cache.get(key, make) == key
    assert made[:5] == [1, 2, 3, 4, 5]
    assert made.count(2) == 1
    used = [key for key in (1, 2, 3, 4, 5) if cache.get(key, lambda key: (key + 100, 0)) == key]
    assert len(used) == 3
    assert {2, 5} <= set(used)
    big: Cache[int] = Cache(1)
    assert big.get(7, lambda _: (70, 100)) == big.get(7, lambda _: (71, 100)) == 70


def test_nothing_and_out_of_range(made: MadeDataset) -> None:
    dataset = made.open()
    assert dataset.read_samples("web", []).shape == (0, dataset.manifest.seq_len)
    assert len(dataset.segments_of("web", [])) == 0
    for bad in (-1, len(made.samples["web"])):
        with pytest.raises(IndexError):
            dataset.read_samples("web", [0, bad])
    with pytest.raises(ConfigError, match="TR-SOURCE-UNKNOWN"):
        dataset.read_samples("nobody", [0])
    with pytest.raises(ConfigError, match="TR-DATASET-FILE"):
        dataset.read_file("../secret")


def test_reading_into_rows_of_a_batch(made: MadeDataset) -> None:
    dataset = made.open()
    seq_len = made.spec.seq_len
    tokens_BT = np.full((6, seq_len), 9, np.uint16)
    dataset.read_samples_into("web", [20, 1, 20], tokens_BT, np.array([5, 0, 2]))
    dataset.read_samples_into("code", [3], tokens_BT, np.array([1]))
    dataset.read_samples_into("code", [], tokens_BT, np.zeros(0, np.int64))
    web, code = made.samples["web"], made.samples["code"]
    assert tokens_BT[[0, 1, 2, 5]].tolist() == [web[1][0], code[3][0], web[20][0], web[20][0]]
    assert (tokens_BT[3:5] == 9).all()
    for wrong_BT in (np.zeros((6, seq_len), np.int32), np.zeros((6, seq_len + 1), np.uint16)):
        with pytest.raises(ValueError, match="no rows of this Dataset"):
            dataset.read_samples_into("web", [0], wrong_BT, np.array([0]))  # type: ignore[arg-type]


def test_tables_of_several_sources_join_in_batch_order(made: MadeDataset) -> None:
    dataset = made.open()
    web = dataset.segments_of("web", [3, 0])
    code = dataset.segments_of("code", [1])
    joined = SegmentTable.join([web, code], [np.array([2, 0]), np.array([1])])
    assert joined.sample_index_S.tolist() == sorted(joined.sample_index_S.tolist())
    for index, (table, inner) in enumerate([(web, 1), (code, 0), (web, 0)]):
        mine = joined.take(joined.sample_index_S == index)
        wanted = table.take(table.sample_index_S == inner)
        assert mine.document_id_S.tolist() == wanted.document_id_S.tolist()
        assert mine.token_start_S.tolist() == wanted.token_start_S.tolist()


def test_another_digest_at_the_path_is_refused(made: MadeDataset, tmp_path: Path) -> None:
    assert open_dataset(made.path, made.digest).digest == made.digest
    with pytest.raises(RefusedError, match="TR-DATASET-OTHER"):
        open_dataset(made.path, "0" * 32)
    record = one_shard(tmp_path)
    digest = write_dataset_manifest(tmp_path, info(record))
    assert write_dataset_manifest(tmp_path, info(record)) == digest
    with pytest.raises(RefusedError, match="TR-DATASET-OTHER"):
        write_dataset_manifest(tmp_path, info(record, salt=1))
    with pytest.raises(RefusedError, match="TR-DATASET-FINISHED"):
        ShardWriter(tmp_path, ShardSpec("web", 1, 8, 100))
    with pytest.raises(ConfigError, match="TR-DATASET-NONE"):
        open_dataset(tmp_path / "elsewhere")


def test_one_id_for_two_documents_is_refused_and_both_are_named(tmp_path: Path) -> None:
    records = [one_shard(tmp_path, 0, document=5), one_shard(tmp_path, 1, document=5)]
    with pytest.raises(JobError, match=r"0000000000000005.*a\.jsonl record 0.*a\.jsonl record 1"):
        write_dataset_manifest(tmp_path, info(*records))
    assert not (tmp_path / "manifest.json").exists()


def test_a_shard_that_changed_before_the_commit_is_seen(tmp_path: Path) -> None:
    record = one_shard(tmp_path)
    (tmp_path / "web" / "shard.00000.mds").write_bytes(b"short")
    with pytest.raises(DamageError, match="TR-FILE-SIZE"):
        write_dataset_manifest(tmp_path, info(record))


def test_info_that_contradicts_itself(tmp_path: Path) -> None:
    record = one_shard(tmp_path)
    (tmp_path / "note.txt").write_bytes(b"hello")
    bad: list[dict[str, object]] = [
        {"sources": ("code",), "files": ()},
        {"sources": ("web", "WEB")},
        {"sources": ("../web",)},
        {"sources": ("web", "tokenizer")},
        {"files": (InputFile("code", "a.jsonl"),)},
        {"extra_files": ("job.json",)},
        {"extra_files": ("shards.npy",)},
        {"shards": (record, record)},
    ]
    for changes in bad:
        with pytest.raises(ConfigError):
            write_dataset_manifest(tmp_path, info(**{"shards": (record,), **changes}))  # type: ignore[arg-type]
    with pytest.raises(DamageError):
        write_dataset_manifest(tmp_path, info(record, extra_files=("../outside",)))
    for path in ("/etc/passwd", "../up", "a\nb", "a\tb", "", "a//b"):
        with pytest.raises(ConfigError, match="TR-DATASET-INFO"):
            write_dataset_manifest(tmp_path, info(record, files=(InputFile("web", path),)))
    with pytest.raises(DamageError, match="TR-DATASET-FILES"):
        write_dataset_manifest(tmp_path, info(record, files=()))
    write_dataset_manifest(tmp_path, info(record, extra_files=("note.txt",)))
    assert open_dataset(tmp_path).read_file("note.txt") == b"hello"


def test_a_source_without_samples_is_allowed(tmp_path: Path) -> None:
    write_dataset_manifest(tmp_path, info(one_shard(tmp_path), sources=("empty", "web")))
    dataset = open_dataset(tmp_path)
    assert dataset.shard_samples("empty").tolist() == []
    assert dataset.read_samples("web", [0]).tolist() == [list(range(8))]


def test_writer_refuses_what_it_could_not_read_back(tmp_path: Path) -> None:
    good = make_segments([0], [0], [0], [0], [0])

    def close(segments: object, tokens: object = range(8), documents: int = 1) -> None:
        writer = ShardWriter(tmp_path, ShardSpec("web", 0, 8, 100))
        for number in range(documents):
            writer.add_document(number, 0, number, 0)
        writer.add_sample(np.array(tokens), segments)  # type: ignore[arg-type]
        writer.close()

    close(good)
    for segments, fault in (
        (make_segments([1], [0], [0], [0], [0]), "token starts"),
        (make_segments([0, 8], [0, 0], 0, 0, 0), "token starts"),
        (make_segments([0, 0], [0, 0], 0, 0, 0), "token starts"),
        (make_segments([0, 5], [PADDING_ROW, 0], 0, 0, 0), "padding is not the last"),
        (make_segments([0], [1], 0, 0, 0), "document row past"),
        (good[:0], "at least one segment"),
    ):
        with pytest.raises(ValueError, match=fault):
            close(segments)
    with pytest.raises(ValueError, match="outside"):
        close(good, [0, 1, 2, 3, 4, 5, 6, 100])
    with pytest.raises(ValueError, match="outside"):
        close(good, [0, 1, 2, 3, 4, 5, 6, -1])
    with pytest.raises(ValueError, match="shape"):
        close(good, range(9))
    with pytest.raises(ValueError, match="shape"):
        close(good, [0.5] * 8)
    with pytest.raises(ValueError, match="no segment"):
        close(good, documents=2)
    with pytest.raises(ValueError, match="byte_start must be in"):
        make_segments([0], [0], [0], [1 << 32], [0])
    with pytest.raises(ValueError, match="at least one sample"):
        ShardWriter(tmp_path, ShardSpec("web", 0, 8, 100)).close()
    with pytest.raises(ConfigError):
        ShardSpec("web", 0, 0, 100)


@pytest.mark.parametrize(("seq_len", "vocab_size"), [(2048, 32000), (256, 3072), (8192, 100_000), (1, 2)])
def test_max_samples_is_the_most_that_fits(seq_len: int, vocab_size: int) -> None:
    for size_bytes in (5000, 1 << 20, 1 << 26, 1 << 40):
        count = max_samples(seq_len, vocab_size, size_bytes)
        limit = min(size_bytes, (1 << 31) - 1)
        assert count == 0 or mds_size(count, seq_len, vocab_size) <= limit
        assert mds_size(count + 1, seq_len, vocab_size) > limit


def test_shard_records_travel_as_json(tmp_path: Path) -> None:
    record = one_shard(tmp_path)
    assert ShardRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    for broken in ({}, {**record.to_json(), "number": "0"}, {**record.to_json(), "more": 1}):
        with pytest.raises(DamageError):
            ShardRecord.from_json(broken)
