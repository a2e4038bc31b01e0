"""Look-up against the stream and against plain loops: step -> documents -> text, document -> steps, grep."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.datasets import DatasetSpec, MadeDataset, decode, make_dataset
from support.runs import make_run, roll_back, train

from loader.cli import group
from loader.collateral import collateral_of
from loader.errors import ConfigError, DamageError
from loader.grep import SegmentTexts, grep_dataset, grep_run
from loader.lookup import document_places, document_steps, locate_positions, locate_step, parse_document
from loader.order import SkipEntry
from loader.run_folder import read_config, write_config
from loader.run_past import grep_over_time
from loader.run_view import RunView, open_run
from loader.runs import append_skips
from loader.stream.batch import read_batch
from loader.text.records import RecordPlace, read_texts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 30, "code": 20, "books": 9}, seq_len=40, samples_per_shard=9,
                       suffixes=(".jsonl", ".jsonl.zst"))  # fmt: skip
    return make_dataset(tmp_path_factory.mktemp("lookup"), spec)


@pytest.fixture(scope="module")
def view(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """40 steps with every kind of entry, several epochs, on branch 1."""
    run = make_run(tmp_path_factory.mktemp("lookup-run"), [made])
    train(run, 20)
    web = [document.id for document in made.documents.values() if document.source == "web"]
    roll_back(
        run,
        10,
        SkipEntry("documents", "mask", 80, documents=tuple(web[:8])),
        SkipEntry("documents", "drop", 80, documents=tuple(web[10:12])),
        SkipEntry("samples", "drop", 80, "code", ((0, 6),)),
        SkipEntry("positions", "drop", 80, ranges=((100, 130),)),
    )
    return train(run, 30)


def test_a_step_lists_what_was_read_and_its_text(made: MadeDataset, view: RunView) -> None:
    texts = SegmentTexts(view.sources.datasets, {})
    for step in (0, 9, 10, 13, 39):
        result = locate_step(view, step)
        assert result["matches_ledger"] is True
        batch = read_batch(view.plan, view.sources, step)
        assert [sample["position"] for sample in result["samples"]] == batch.positions_B.tolist()
        texts.with_text(view.sources, result["samples"])
        for row, sample in enumerate(result["samples"]):
            tokens, pieces = made.samples[sample["source"]][sample["sample"]]
            assert sample["shard"] == sample["sample"] // made.spec.samples_per_shard
            real = [piece for piece in pieces if piece.document is not None]
            assert sample["padding_tokens"] == made.spec.seq_len - sum(p.token_stop - p.token_start for p in real)
            assert len(real) == len(sample["segments"])
            for piece, segment in zip(real, sample["segments"], strict=True):
                document = piece.document
                assert document is not None
                assert segment["document"] == f"{document.id:016x}"
                assert (segment["file"], segment["record"]) == (document.path, document.record)
                place = RecordPlace(segment["record_start"], segment["record"])
                text = read_texts(made.corpus / document.source / document.path, "jsonl", "text", [place])[place]
                raw = text.encode()[segment["byte_start"] : segment["byte_stop"]]
                assert raw == decode(tokens[segment["token_start"] : segment["token_stop"]])
                assert segment["text"] == raw.decode("utf-8", "replace")
                seen = batch.tokens_BT[row, segment["token_start"] : segment["token_stop"]]
                assert segment["masked"] == (
                    not np.array_equal(seen, tokens[segment["token_start"] : segment["token_stop"]])
                )


def test_a_step_that_was_not_done_is_still_known(view: RunView) -> None:
    result = locate_step(view, view.num_steps + 5)
    assert (result["consumed"], result["matches_ledger"]) == (False, None)
    assert result["samples"]


def test_positions_agree_with_steps_and_name_what_is_cut(view: RunView) -> None:
    result = locate_positions(view, 90, 140)
    assert result["cut"] == list(range(100, 130))
    by_position = {sample["position"]: sample for sample in result["samples"]}
    assert sorted(by_position) == [*range(90, 100), *range(130, 140)]
    for sample in locate_step(view, by_position[95]["step"])["samples"]:
        if sample["position"] in by_position:
            assert by_position[sample["position"]] == {"step": by_position[95]["step"], **sample}


def test_positions_are_told_without_reading_a_token(made: MadeDataset, tmp_path: Path) -> None:
    """Of 40,000 positions the tokens would be more than a batch may hold, and damage to them hides nothing here."""
    folder = tmp_path / "data"
    shutil.copytree(made.path, folder)
    run = make_run(tmp_path, [MadeDataset(**{**vars(made), "path": folder})])
    wanted = locate_positions(open_run(run.root), 0, 1 << 10)
    for file in folder.glob("*/*.mds"):
        file.write_bytes(bytes(file.stat().st_size))
    view = open_run(run.root)
    found = locate_positions(view, 0, 1 << 16)
    assert len(found["samples"]) == 1 << 16
    assert found["samples"][: 1 << 10] == wanted["samples"]
    with pytest.raises(DamageError):
        locate_step(view, 0)


def test_behind_the_last_whole_step_no_step_reads(made: MadeDataset, tmp_path: Path) -> None:
    run = make_run(tmp_path, [made])
    config = read_config(run)
    config["data"]["exhaustion"] = {"policy": "repeat", "max_epochs": {}, "total": 100}
    write_config(run, config)
    train(run, 2)
    append_skips(run, [SkipEntry("positions", "drop", 16, ranges=((90, 92),))])
    view = open_run(run.root)
    assert view.plan.num_steps == 12
    assert view.plan.steps_of(np.arange(86, 102)).tolist() == [10, 10, 11, 11, -1, -1, *[11] * 6, *[-1] * 4]
    assert view.plan.step_of(97) == 11
    assert view.plan.step_of(98) is None
    result = locate_positions(view, 86, 104)
    assert [sample["position"] for sample in result["samples"]] == [86, 87, 88, 89, *range(92, 98)]
    assert result["cut"] == [90, 91]
    assert result["behind_end"] == [98, 99, 100, 101, 102, 103]
    for sample in result["samples"]:
        assert any(sample["position"] == one["position"] for one in locate_step(view, sample["step"])["samples"])
    shown = CliRunner().invoke(group, ["locate", str(run.root), "--position", "86:104"])
    assert shown.exit_code == 0, shown.output
    assert "cut: 90, 91\n" in shown.output
    assert "read by no step, as the plan ends before: 98 .. 104\n" in shown.output
    document = int(locate_positions(view, 80, 90)["samples"][-1]["segments"][0]["document"], 16)
    found = document_steps(view.plan, view.sources, document, 104)
    assert all(reading["step"] < 12 for reading in found["readings"])
    assert set(found["cut"]) <= {90, 91}


def test_where_the_end_falls_into_a_step_in_the_middle_of_it(made: MadeDataset, tmp_path: Path) -> None:
    run = make_run(tmp_path, [made])
    config = read_config(run)
    config["data"]["exhaustion"] = {"policy": "repeat", "max_epochs": {}, "total": 103}
    write_config(run, config)
    plan = open_run(run.root).plan
    assert plan.num_steps == 12
    assert plan.steps_of(np.arange(94, 103)).tolist() == [11, 11] + [-1] * 7


@pytest.mark.parametrize("branch", [0, 1])
def test_document_to_steps_is_what_a_scan_finds(made: MadeDataset, view: RunView, branch: int) -> None:
    seen = open_run(view.paths.root, branch)
    scanned: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for step in range(seen.num_steps):
        segments = read_batch(seen.plan, seen.sources, step).segments
        for index in np.flatnonzero(~segments.padding_S).tolist():
            scanned[int(segments.document_id_S[index])].append(
                (step, int(segments.position_S[index]), bool(segments.masked_S[index]))
            )
    num_cut = 0
    for document in made.documents:
        result = document_steps(seen.plan, seen.sources, document, seen.next_position)
        found = [(reading["step"], reading["position"], reading["masked"]) for reading in result["readings"]]
        assert found == scanned[document]
        assert result["steps"] == sorted({step for step, _, _ in found})
        num_cut += len(result["cut"])
    assert (num_cut > 0) == (branch == 1)
    assert max(len({position for _, position, _ in found}) for found in scanned.values()) > 2


def test_documents_of_a_dataset(made: MadeDataset) -> None:
    dataset = made.open()
    for document in made.documents.values():
        result = document_places(dataset, document.id)
        assert (result["source"], result["file"], result["record"]) == (document.source, document.path, document.record)
        joined = b"".join(document.text.encode()[s["byte_start"] : s["byte_stop"]] for s in result["segments"])
        assert joined == document.text.encode()
    with pytest.raises(ConfigError, match="no document"):
        document_places(dataset, 1)


def test_grep_finds_every_reading_and_nothing_else(made: MadeDataset, view: RunView) -> None:
    texts = SegmentTexts(view.sources.datasets, {})
    for needle in ("reel", "web 3:", "光 and", "not this"):
        result = grep_run(view, needle, range(12, 25), texts, limit=100_000)
        found = {(hit["step"], hit["document"], hit["byte_start"], hit["match_start"]) for hit in result["hits"]}
        expected = set()
        for step in range(12, 25):
            batch = read_batch(view.plan, view.sources, step)
            for number, sample in zip(batch.source_B.tolist(), batch.sample_B.tolist(), strict=True):
                for piece in made.samples[view.sources.names[number]][sample][1]:
                    raw = piece.document.text.encode() if piece.document else b""
                    for at in range(len(raw)):
                        wanted = needle.encode()
                        if raw.startswith(wanted, at) and at < piece.byte_stop and at + len(wanted) > piece.byte_start:
                            assert piece.document is not None
                            expected.add((step, f"{piece.document.id:016x}", piece.byte_start, at))
        assert found == expected
        assert bool(expected) == (needle != "not this")


def test_grep_in_a_run_that_has_done_no_step(made: MadeDataset, view: RunView) -> None:
    result = grep_over_time(view, "web", range(0), lambda one: SegmentTexts(one.sources.datasets, {}))
    assert (result["steps"], result["hits"], result["num_documents"]) == ([0, 0], [], 0)


def test_grep_in_a_dataset(made: MadeDataset) -> None:
    dataset = made.open()
    result = grep_dataset(dataset, "code 7:", SegmentTexts([dataset], {}))
    (hit,) = result["hits"]
    assert made.documents[int(hit["document"], 16)].text.startswith("code 7:")
    assert result["num_documents"] == len(made.documents)
    assert len(grep_dataset(dataset, "a", SegmentTexts([dataset], {}), limit=3)["hits"]) == 3


def test_roots_can_be_given_and_are_asked_for(made: MadeDataset, tmp_path: Path) -> None:
    dataset = made.open()
    job = made.path / "job.json"
    saved = job.read_bytes()
    job.write_bytes(b"not json")
    try:
        with pytest.raises(ConfigError, match="--root"):
            grep_dataset(dataset, "code", SegmentTexts([dataset], {}))
        roots = {source: made.corpus / source for source in made.samples}
        assert grep_dataset(dataset, "code 7:", SegmentTexts([dataset], roots))["hits"]
    finally:
        job.write_bytes(saved)


def test_an_input_file_of_another_size_is_damage(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 8}, files_per_source=1))
    dataset = made.open()
    (path,) = (made.corpus / "web").iterdir()
    path.write_bytes(path.read_bytes() + b'{"text": "one more"}\n')
    with pytest.raises(DamageError, match=path.name):
        grep_dataset(dataset, "web", SegmentTexts([dataset], {}))


def test_collateral_is_counted(made: MadeDataset, view: RunView) -> None:
    document = next(d for d in made.documents.values() if d.source == "books")
    holding = [
        (sample, pieces)
        for sample, (_, pieces) in enumerate(made.samples["books"])
        if any(piece.document == document for piece in pieces)
    ]
    pieces = [piece for _, some in holding for piece in some if piece.document is not None]
    own = sum(p.token_stop - p.token_start for p in pieces if p.document == document)
    other = sum(p.token_stop - p.token_start for p in pieces if p.document != document)
    drop = SkipEntry("documents", "drop", 0, documents=(document.id,))
    assert collateral_of(view.plan, view.sources, drop) == {
        "samples": len(holding),
        "by_source": {"books": len(holding)},
        "tokens": own,
        "documents": 1,
        "other_tokens": other,
        "other_documents": len({p.document.id for p in pieces if p.document not in (None, document)}),
    }
    mask = SkipEntry("documents", "mask", 0, documents=(document.id,))
    assert collateral_of(view.plan, view.sources, mask)["other_tokens"] == 0
    positions = SkipEntry("positions", "drop", 0, ranges=((400, 450),))
    assert collateral_of(view.plan, view.sources, positions)["samples"] == 50
    numbered = [piece for _, some in made.samples["web"] for piece in some][2:9]
    asked = {piece.document.id for piece in numbered if piece.document is not None}
    segments = SkipEntry("segments", "mask", 0, "web", ((2, 9),))
    assert collateral_of(view.plan, view.sources, segments)["documents"] == len(asked) > 1
    whole = SkipEntry("source", "mask", 0, "code")
    result = collateral_of(view.plan, view.sources, whole)
    assert result["tokens"] == view.sources.info("code").num_tokens
    assert result["documents"] == view.sources.info("code").num_documents


@pytest.mark.parametrize("text", ["", "xyz", "12345678", "0123456789abcdeg", "0x23456789abcdef", "0123456789abcdef0"])
def test_what_is_no_document_id(text: str) -> None:
    with pytest.raises(ConfigError, match="16 hex digits"):
        parse_document(text)


def test_questions_that_mean_nothing(view: RunView) -> None:
    with pytest.raises(ConfigError):
        locate_step(view, -1)
    with pytest.raises(ConfigError):
        locate_positions(view, 5, 5)
    with pytest.raises(ConfigError):
        document_steps(view.plan, view.sources, 1, 100)
    with pytest.raises(ConfigError):
        grep_run(view, "", range(3), SegmentTexts(view.sources.datasets, {}))
