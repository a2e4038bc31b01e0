"""The two dedup stages as jobs: outputs and their accounts, limits that fail, damage that is found, what resumes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.dedup_runs import Source, configuration, run_stages, write_sources

from dataprep.dedup.config import DedupConfig, HoldoutConfig, IngestConfig, MinHashConfig, SignConfig
from dataprep.dedup.minhash import estimate_floor, miss_probability, miss_table
from dataprep.dedup.signatures import DOCUMENT_DTYPE, load_signed
from dataprep.dedup.steps import DecideDocuments, SignDocuments
from dataprep.documents import REMOVED, InputFile, Status, kept_records
from loader.errors import DamageError, JobError, RefusedError
from loader.text.records import document_id

TEXTS = [f"document {chr(97 + index)} says {chr(97 + index) * 3} and nothing else" for index in range(20)]


def write_lines(tmp_path: Path, lines: list[str]) -> list[InputFile]:
    folder = tmp_path / "s"
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return [InputFile("s", 0, str(folder), "a.jsonl")]


def test_every_record_has_a_status_and_the_counts_add_up(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}) for text in [*TEXTS, *TEXTS[:3]]]
    lines[5:5] = ["", "{", '{"text":""}', "  ", '{"text":5}']
    inputs = write_lines(tmp_path, lines)
    outcome = run_stages(inputs, configuration(DedupConfig(), 0.3), tmp_path / "work")
    assert len(outcome.status) == len(lines) == 28
    status = [outcome.status["s", "a.jsonl", record] for record in range(28)]
    assert [record for record, one in enumerate(status) if one == Status.BLANK] == [5, 8]
    assert [record for record, one in enumerate(status) if one == Status.REJECTED] == [6, 7, 9]
    counts = outcome.counts["sources"]["s"]
    assert counts["records"] == counts["blank"] + counts["documents"] + sum(counts["rejected"].values()) == 28
    assert counts["documents"] == counts["kept"] + counts["held_out"] + sum(counts["removed"].values()) == 23
    assert counts["rejected"] == {"syntax": 1, "empty": 1, "text-type": 1}
    assert counts["removed"] == {**{status.method: 0 for status in REMOVED}, "exact": 3}
    assert counts["held_out"] == status.count(Status.HELD_OUT) > 0
    rejected = pq.read_table(tmp_path / "work/decided/rejected.parquet").to_pylist()
    assert [(row["record"], row["reason"]) for row in rejected] == [(6, "syntax"), (7, "empty"), (9, "text-type")]
    data = "\n".join(lines).encode()
    assert [data[row["record_start"] :].split(b"\n")[0].decode() for row in rejected] == [lines[6], lines[7], lines[9]]
    codes = np.load(tmp_path / "work/decided/status.00000.npy")
    assert kept_records(codes, held_out=False).sum() == counts["kept"]
    assert kept_records(codes, held_out=True).sum() == counts["held_out"]


def test_removals_name_documents_by_their_ids(tmp_path: Path) -> None:
    run_stages(
        write_lines(tmp_path, [json.dumps({"text": TEXTS[0]})] * 2), configuration(DedupConfig()), tmp_path / "w"
    )
    (row,) = pq.read_table(tmp_path / "w/decided/removed.parquet").to_pylist()
    assert row["document"] == document_id("s", "a.jsonl", 1, 9)
    assert row["witness_document"] == document_id("s", "a.jsonl", 0, 9)


def test_a_source_with_too_many_rejects_fails_by_name(tmp_path: Path) -> None:
    inputs = write_lines(tmp_path, [*(json.dumps({"text": text}) for text in TEXTS), "{", "["])
    config = replace(configuration(DedupConfig()), ingest=IngestConfig(max_reject_fraction=2 / 22))
    run_stages(inputs, config, tmp_path / "just")
    config = replace(config, ingest=IngestConfig(max_reject_fraction=0.09))
    with pytest.raises(JobError, match=r"TR-INGEST-REJECTS.*'s': 2 of 22"):
        run_stages(inputs, config, tmp_path / "over")
    assert pq.read_table(tmp_path / "over/decided/rejected.parquet").num_rows == 2
    assert not (tmp_path / "over/decided/counts.json").exists()


@pytest.mark.parametrize("lines", [[], ["", " "], ["{", "["]])
def test_a_source_without_documents_fails_by_name(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(JobError, match=r"TR-INGEST-EMPTY.*'s'"):
        run_stages(write_lines(tmp_path, lines), configuration(DedupConfig()), tmp_path / "work")


def test_an_empty_file_beside_others_is_no_error(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": [], "b.jsonl": TEXTS}, 0)})
    assert run_stages(inputs, configuration(DedupConfig()), tmp_path / "work").counts["sources"]["s"]["kept"] == 20


def test_a_source_that_loses_too_much_fails_by_name(tmp_path: Path) -> None:
    inputs = write_sources(
        tmp_path, {"good": Source({"a.jsonl": TEXTS}, 0), "copy": Source({"b.jsonl": [*TEXTS[:10], "own words"]}, 1)}
    )
    with pytest.raises(JobError, match=r"TR-DEDUP-REMOVED.*'copy': 10 of 11"):
        run_stages(inputs, configuration(DedupConfig(max_removed_fraction=0.9)), tmp_path / "work")
    assert pq.read_table(tmp_path / "work/decided/removed.parquet").num_rows == 10
    assert not (tmp_path / "work/decided/counts.json").exists()
    run_stages(inputs, configuration(DedupConfig(max_removed_fraction=0.91)), tmp_path / "again")


def test_within_sources_only(tmp_path: Path) -> None:
    inputs = write_sources(
        tmp_path, {"a": Source({"a.jsonl": [TEXTS[0]] * 2}, 0), "b": Source({"b.jsonl": [TEXTS[0]] * 2}, 1)}
    )
    outcome = run_stages(inputs, configuration(DedupConfig(across=False)), tmp_path / "work")
    assert outcome.witness == {("a", "a.jsonl", 1): ("a", "a.jsonl", 0), ("b", "b.jsonl", 1): ("b", "b.jsonl", 0)}


def test_rank_decides_before_length(tmp_path: Path) -> None:
    long = " ".join(f"word{chr(97 + index)}" for index in range(26))
    sources = {"a": Source({"a.jsonl": [long + " end"]}, 1), "b": Source({"b.jsonl": [long]}, 0)}
    config = configuration(DedupConfig(max_removed_fraction=1.0))
    outcome = run_stages(write_sources(tmp_path / "x", sources), config, tmp_path / "x/work")
    assert outcome.witness == {("a", "a.jsonl", 0): ("b", "b.jsonl", 0)}
    sources = {name: replace(source, rank=0) for name, source in sources.items()}
    outcome = run_stages(write_sources(tmp_path / "y", sources), config, tmp_path / "y/work")
    assert outcome.witness == {("b", "b.jsonl", 0): ("a", "a.jsonl", 0)}


def test_signed_files_are_not_signed_again_and_damage_is_found(tmp_path: Path) -> None:
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": TEXTS, "b.jsonl": TEXTS}, 0)})
    config = configuration(DedupConfig())
    reference = run_stages(inputs, config, tmp_path / "work")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work/signed").iterdir()}
    assert run_stages(inputs, config, tmp_path / "work") == reference
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work/signed").iterdir()}
    for name in ("documents.00001.npy", "signatures.00000.npy", "rejects.00000.npy", "file.00001.json"):
        path = tmp_path / "work/signed" / name
        data = path.read_bytes()
        for damaged in (data[:-1], data[:100] + bytes([data[100] ^ 1]) + data[101:], None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(DamageError, match=name.replace(".", r"\.")):
                list(DecideDocuments(inputs, config, tmp_path / "work/signed", tmp_path / "d").run(None, 0, 1))
            path.write_bytes(data)


def test_an_input_that_changed_between_the_stages_is_refused(tmp_path: Path) -> None:
    long = " ".join(TEXTS)
    inputs = write_lines(tmp_path, [json.dumps({"text": text}) for text in (long, long + " more")])
    config = configuration(DedupConfig())
    list(SignDocuments(inputs, SignConfig(config.ingest, config.dedup), tmp_path / "signed").run())
    write_lines(tmp_path, [json.dumps({"text": text}) for text in (long, long + " less")])
    with pytest.raises(RefusedError, match="TR-INPUT-CHANGED"):
        list(DecideDocuments(inputs, config, tmp_path / "signed", tmp_path / "decided").run())


def test_a_file_listed_twice_is_a_collision_that_names_both(tmp_path: Path) -> None:
    inputs = write_lines(tmp_path, [json.dumps({"text": text}) for text in TEXTS])
    with pytest.raises(JobError, match=r"TR-DOCUMENT-COLLISION(.|\n)*a\.jsonl record (\d+) and a\.jsonl record \2"):
        run_stages(inputs * 2, configuration(DedupConfig(methods=("minhash",))), tmp_path / "work")


def test_rows_and_signatures_have_their_shapes(tmp_path: Path) -> None:
    inputs = write_lines(tmp_path, [json.dumps({"text": text}) for text in TEXTS])
    run_stages(inputs, configuration(DedupConfig()), tmp_path / "both")
    signed = load_signed(tmp_path / "both/signed", 0)
    assert signed.documents.dtype == DOCUMENT_DTYPE
    assert signed.documents["size_bytes"].tolist() == [len(text) for text in TEXTS]
    assert signed.signature_NK is not None
    assert signed.signature_NK.shape == (20, 128)
    run_stages(inputs, configuration(DedupConfig(methods=("exact",))), tmp_path / "exact")
    assert load_signed(tmp_path / "exact/signed", 0).signature_NK is None


def test_no_methods_keep_everything(tmp_path: Path) -> None:
    inputs = write_lines(tmp_path, [json.dumps({"text": text}) for text in TEXTS * 2])
    outcome = run_stages(inputs, configuration(DedupConfig(methods=())), tmp_path / "work")
    assert set(outcome.status.values()) == {Status.KEPT}


def test_miss_probabilities() -> None:
    minhash = DedupConfig().minhash
    assert miss_probability(0.8, minhash) == pytest.approx(4.89e-5, rel=0.01)
    assert miss_probability(1.0, minhash) == 0.0
    table = list(miss_table(minhash).values())
    assert len(table) == 10
    assert table == sorted(table, reverse=True)
    assert estimate_floor(0.8, 128) == 79
    assert estimate_floor(0.1, 128) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"methods": ("exact", "nearly")}, {"methods": ("exact", "exact")}, {"threshold": 0.0}, {"max_bucket": 1}],
)
def test_impossible_settings_are_refused_by_their_key(wrong: dict[str, Any]) -> None:
    (key,) = wrong
    with pytest.raises(ValueError, match=key + r": \w"):
        DedupConfig(**wrong)
    with pytest.raises(ValueError, match=r"^num_permutations: "):
        MinHashConfig(num_permutations=100, bands=20)


def test_defaults_are_those_of_the_documentation() -> None:
    assert IngestConfig() == IngestConfig(0.01, 64 << 20)
    assert (DedupConfig().methods, DedupConfig().threshold, DedupConfig().keep) == (
        ("exact", "minhash"),
        0.8,
        "longest",
    )
    assert (DedupConfig().across, DedupConfig().max_removed_fraction, HoldoutConfig().fraction) == (True, 0.9, 0.01)


@pytest.mark.parametrize("share", [29, 57, 58])
def test_a_limit_is_kept_at_its_very_border(tmp_path: Path, share: int) -> None:
    """0.29 of 100 are less than 29 in binary."""
    numbers = [f"number {chr(97 + n // 10)}{chr(97 + n % 10)}" for n in range(100 - share)]
    texts = [json.dumps({"text": text}) for text in [*numbers, *([numbers[0]] * share)]]
    inputs = write_lines(tmp_path, texts)
    config = configuration(DedupConfig(methods=("exact",), max_removed_fraction=share / 100))
    assert len(run_stages(inputs, config, tmp_path / "exact").witness) == share
    less = configuration(replace(config.dedup, max_removed_fraction=(share - 1) / 100))
    with pytest.raises(JobError, match="TR-DEDUP-REMOVED"):
        run_stages(inputs, less, tmp_path / "less")
    rejected = write_lines(tmp_path, [*texts[: 100 - share], *["{"] * share])
    limit = replace(config, ingest=IngestConfig(max_reject_fraction=share / 100))
    assert run_stages(rejected, limit, tmp_path / "rejects").counts["sources"]["s"]["rejected"] == {"syntax": share}
    with pytest.raises(JobError, match="TR-INGEST-REJECTS"):
        run_stages(
            rejected, replace(config, ingest=IngestConfig(max_reject_fraction=(share - 1) / 100)), tmp_path / "n"
        )


def test_a_field_that_no_document_has_fails_by_name(tmp_path: Path) -> None:
    """``date: dat``: every document would rank alike, in silence."""
    inputs = write_sources(tmp_path, {"s": Source({"a.jsonl": ["one two three", "four five six"]}, 0)})
    dated = [replace(file, date_field="dat") for file in inputs]
    config = configuration(DedupConfig(keep="newest"))
    with pytest.raises(JobError, match=r"TR-DEDUP-NOFIELD.*'dat'"):
        run_stages(dated, config, tmp_path / "work")
    outcome = run_stages(inputs, config, tmp_path / "other")  # a source that names no date is asked for none
    assert outcome.counts["dedup"]["without_order_key"] == {}
