"""Mixes through whole builds: thinning changes nothing but the work, stages arrive in manifest, report and run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from dataprep import thin
from dataprep.documents import Status
from dataprep.mix_output import check_output, dataset_mixture, mixture_rows, packed_output, predicted_output
from dataprep.mix_stage import read_mix
from dataprep.run import Prepared, prepare, run_build, run_until
from dataprep.thin import cover_count
from dataprep.tokenizer_config import SentencepieceTrainConfig
from dataprep.tokenizer_stage import train_sentencepiece
from loader.cli import main
from loader.cli_options import Output
from loader.errors import DamageError, JobError
from loader.order import SkipList
from loader.run_config import BatchStageConfig, DataConfig, build_plan
from loader.shards.dataset import Dataset, open_dataset
from loader.sources import open_sources

WORDS = "reel token shard stream window order cursor ledger sample segment source mixture record origin".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``web``: 1,800 documents in three files, far more than any plan here needs; ``code``: 90 in one; a tokenizer."""
    root = tmp_path_factory.mktemp("corpus")
    rng = random.Random(3)
    for source, files, count in (("web", 3, 600), ("code", 1, 90)):
        (root / source).mkdir()
        for file in range(files):
            lines = []
            for number in range(count):
                words = (rng.choice(WORDS) + rng.choice(["", "s", "ed"]) for _ in range(rng.randrange(20, 120)))
                lines.append(json.dumps({"text": f"{source} {file} {number} " + " ".join(words)}))
            (root / source / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    model = train_sentencepiece(iter([" ".join(WORDS)] * 50), SentencepieceTrainConfig(vocab_size=300))
    (root / "tokenizer.model").write_bytes(model)
    return root


def job(corpus: Path, folder: Path, mix: Mapping[str, Any], **changes: Any) -> Prepared:
    """A job in ``folder``."""
    config = {
        "version": 1,
        "output": "out",
        "sources": {name: {"root": str(corpus / name)} for name in ("web", "code")},
        "dedup": {"methods": ["exact"]},
        "holdout": {"fraction": 0.05},
        "tokenizer": {"sentencepiece": {"load": str(corpus / "tokenizer.model")}},
        "mix": mix,
        "pack": {"seq_len": 32, "window_documents": 256},
        "shards": {"size_bytes": 20000},
        "run": {"workers": 2},
        **changes,
    }
    folder.mkdir(exist_ok=True)
    (folder / "build.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return prepare(folder / "build.yaml", (), read_only=False)


def borrow_work(thinned: tuple[Prepared, dict[str, Any]], folder: Path, *unfinished: str) -> None:
    """The work of the thinned build for a job in ``folder``, but for some stages."""
    work = thinned[0].pipeline.work
    left_out = shutil.ignore_patterns("write-*", *(f"{stage}-*" for stage in unfinished))
    shutil.copytree(work, folder / work.name, ignore=left_out, dirs_exist_ok=True)


def contents(dataset: Dataset) -> dict[str, bytes]:
    """All that is the same however it was made: shards, their table, documents, removals."""
    files = [path for path in dataset.path.rglob("*") if path.is_file()]
    apart = ("manifest.json", "job.json", "report.html")
    return {str(path.relative_to(dataset.path)): path.read_bytes() for path in files if path.name not in apart}


RATIOS = {"ratios": {"web": 1, "code": 1}, "total_tokens": 6000}


@pytest.fixture(scope="module")
def thinned(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, dict[str, Any]]:
    prepared = job(corpus, tmp_path_factory.mktemp("thinned"), RATIOS)
    return prepared, run_build(prepared, Output(quiet=True))


def test_thinning_changes_nothing_but_the_work(
    corpus: Path, tmp_path: Path, thinned: tuple[Prepared, dict[str, Any]]
) -> None:
    prepared, result = thinned
    borrow_work(thinned, tmp_path)
    whole = job(corpus, tmp_path, {**RATIOS, "thin": False}, run={"workers": 1})
    assert {"gauge", "thin"} == set(prepared.pipeline.stages) - set(whole.pipeline.stages)
    other = run_build(whole, Output(quiet=True))
    assert contents(open_dataset(result["output"])) == contents(open_dataset(other["output"]))
    rows = [{row["source"]: row for row in made["accounting"]["mix"]} for made in (result, other)]
    web, whole_web = rows[0].pop("web"), rows[1].pop("web")
    assert rows[0] == rows[1]
    estimated = web.pop("available_tokens"), web.pop("thinned_documents")
    exact = whole_web.pop("available_tokens"), whole_web.pop("thinned_documents")
    assert web == whole_web
    assert estimated[0] == pytest.approx(exact[0], rel=0.02)
    assert estimated[1] > 1000
    assert exact[1] == 0
    assert result["accounting"]["sources"] == other["accounting"]["sources"]
    tokenised = [
        sum(len(np.load(path)) for path in sorted(made.pipeline.folder("tokenize").glob("documents.*.npy")))
        for made in (prepared, whole)
    ]
    assert tokenised[1] - tokenised[0] == estimated[1]


def test_what_was_thinned_is_listed_and_accounted_for(thinned: tuple[Prepared, dict[str, Any]]) -> None:
    prepared, result = thinned
    removed = pq.read_table(Path(result["output"]) / "removed.parquet").to_pylist()
    left_out = {(row["file"], row["record"]) for row in removed if row["method"] == "mix" and row["source"] == "web"}
    web = result["accounting"]["sources"]["web"]
    assert len(left_out) == web["removed"]["mix"] == 1800 - web["trained"] - web["held_out"]
    fates = prepared.pipeline.fates()
    for file, inputs in enumerate(prepared.pipeline.job.inputs):
        kept = np.flatnonzero(fates.status_of_file(file) == Status.KEPT)
        if inputs.source == "web":
            assert {record for path, record in left_out if path == inputs.path} <= set(kept.tolist())
    page = (Path(result["output"]) / "report.html").read_text()
    assert "left out before they were tokenised" in page


def test_an_estimate_that_falls_short_is_said(
    corpus: Path, tmp_path: Path, thinned: tuple[Prepared, dict[str, Any]]
) -> None:
    """A sample that promises a hundred times the tokens leaves too little; nothing is made smaller in silence."""
    borrow_work(thinned, tmp_path, "thin", "tokenize", "mix")
    prepared = job(corpus, tmp_path, RATIOS)
    for path in prepared.pipeline.folder("gauge").glob("gauge.*.npy"):
        rows = np.load(path)
        rows["num_tokens"] *= 100
        np.save(path, rows)
    with pytest.raises(JobError, match=r"'web' was thinned.*fell short") as caught:
        run_build(prepared, Output(quiet=True))
    assert caught.value.code == "TR-MIX-THIN"
    assert "mix.thin=false" in str(caught.value.next_command)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("mix", "there"),
    [
        ({}, False),
        ({"total_tokens": 6000}, False),
        ({"temperature": 2.0, "total_tokens": 600}, False),
        ({"ratios": {"web": 1, "code": 1}}, False),
        ({**RATIOS, "thin": False}, False),
        ({**RATIOS, "total_tokens": 30_000}, False),
        ({**RATIOS, "max_epochs": {"web": 0.5}}, False),
        (RATIOS, True),
        ({"stages": [{"share": 1, "ratios": {"web": 1, "code": 1}}], "total_tokens": 6000}, True),
        ({**RATIOS, "total_tokens": 3000, "exhaustion": "renormalise"}, True),
    ],
)
def test_sources_are_thinned_only_where_sizes_and_configuration_say_so(
    corpus: Path, tmp_path: Path, mix: dict[str, Any], there: bool
) -> None:
    pipeline = job(corpus, tmp_path, mix).pipeline
    assert ("thin" in pipeline.stages) == there
    if not there and "total_tokens" in mix:
        longer = job(corpus, tmp_path / "longer", {**mix, "total_tokens": mix["total_tokens"] + 999}).pipeline
        assert longer.stages["tokenize"].digest == pipeline.stages["tokenize"].digest
        assert longer.stages["mix"].digest != pipeline.stages["mix"].digest


def test_a_slightly_longer_plan_tokenises_nothing_again(corpus: Path, tmp_path: Path) -> None:
    plans = [job(corpus, tmp_path, {**RATIOS, "total_tokens": total}).pipeline for total in (6200, 6900, 7300)]
    assert len({plan.stages["mix"].digest for plan in plans}) == 3
    digests = [plan.stages["tokenize"].digest for plan in plans]
    assert digests[0] == digests[1] != digests[2]


def test_cover_is_asked_of_documents_that_vary() -> None:
    """The estimate covers the need on 300 drawn corpora, and says None where it cannot tell."""
    rng = np.random.default_rng(0)
    short = 0
    for _ in range(300):
        size_D = rng.integers(10, 5000, 4000)
        tokens_D = np.maximum(1, (size_D * rng.gamma(8, 1 / 32, len(size_D))).astype(np.int64))
        most = int(rng.integers(1_000, 200_000))
        sample = rng.permutation(len(size_D))[:400]
        count = cover_count(size_D, size_D[sample], tokens_D[sample], most)
        assert count is not None
        short += tokens_D[:count].sum() < most
        assert count < 60 or tokens_D[: count // 2].sum() < most  # nor is it wasteful
    assert short == 0
    assert cover_count(size_D, size_D[:29], tokens_D[:29], most) is None
    assert cover_count(size_D[:5], size_D, tokens_D, 10**6) is None
    assert cover_count(size_D, size_D, tokens_D, int(tokens_D.sum() * 0.6)) is None


def test_factor_is_what_the_documentation_says(corpus: Path, tmp_path: Path) -> None:
    prepared = job(corpus, tmp_path, RATIOS)
    found = thin.candidates(prepared.pipeline.job)
    size = sum(raw.size_bytes for raw in prepared.pipeline.job.raw if raw.source == "web")
    assert set(found) == {"web"}
    assert 3000 <= found["web"].most_tokens <= 3000 * 1.25
    assert size > 64 * found["web"].most_tokens


STAGES = {
    "stages": [{"share": 3, "ratios": {"web": 3, "code": 1}}, {"share": 1, "ratios": {"code": 1, "web": 0}}],
    "total_tokens": 60_000,
}


def test_stages_reach_manifest_report_and_run(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], thinned: tuple[Prepared, dict[str, Any]]
) -> None:
    borrow_work(thinned, tmp_path)
    result = run_build(job(corpus, tmp_path, STAGES), Output(quiet=True))
    dataset, validation = open_dataset(result["output"]), open_dataset(result["validation"])
    assert validation.manifest.mixture is None
    mixture = dataset.manifest.mixture
    assert mixture is not None
    assert (mixture.policy, mixture.total_positions) == ("repeat", 60_000 // 32)
    assert [stage.start for stage in mixture.stages] == [0, 1280]  # 1406.25 samples, rounded to a block
    rows = result["accounting"]["mixture"]
    assert [row["positions"] for row in rows] == [1280, 1875 - 1280]
    assert rows[0]["sources"]["web"]["share"] == pytest.approx(0.75, abs=1e-6)
    sources = open_sources([dataset])
    plan = build_plan(DataConfig(("x",), (BatchStageConfig(0, 8),)), sources, SkipList())
    refs = plan.samples(np.arange(1875))
    tokens = {info.name: info.num_tokens / info.num_samples for info in dataset.manifest.sources}
    web = (refs.source_N == plan.source_number("web"))[:1280].sum() * tokens["web"]
    code = (refs.source_N == plan.source_number("code"))[:1280].sum() * tokens["code"]
    assert abs(web - 0.75 * (web + code)) < 4 * 32
    assert (refs.source_N[1280:] == plan.source_number("code")).all()
    web_epochs = refs.epoch_N[refs.source_N == plan.source_number("web")]
    assert web_epochs.max() == 0  # the mix kept what the plan needs
    capsys.readouterr()
    assert main(["inspect", result["output"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mixture"] == mixture.to_json()
    assert main(["inspect", result["output"]]) == 0
    assert "total_positions: 1875" in capsys.readouterr().out
    assert "from position" in (Path(result["output"]) / "report.html").read_text()
    assert main(["repack", result["output"], "--seq-len", "64", "--output", str(tmp_path / "longer"), "--quiet"]) == 0
    longer = open_dataset(tmp_path / "longer").manifest.mixture
    assert longer is not None
    assert (longer.total_positions, [stage.start for stage in longer.stages]) == (937, [0, 768])  # 640 to a block


def test_nothing_asked_leaves_no_mixture(corpus: Path, tmp_path: Path) -> None:
    """That a manifest without one has the bytes it always had, the golden Dataset shows."""
    pipeline = job(corpus, tmp_path, {"thin": True, "exhaustion": "stop"}).pipeline
    assert dataset_mixture(pipeline) is None
    assert mixture_rows(pipeline) == []


def test_longer_plans_keep_the_documents_of_shorter_ones(
    corpus: Path, tmp_path: Path, thinned: tuple[Prepared, dict[str, Any]]
) -> None:
    borrow_work(thinned, tmp_path)
    before: set[int] = set()
    for total in (50_000, 56_000, 100_000):
        prepared = job(corpus, tmp_path, {**STAGES, "total_tokens": total})
        run_until(prepared, "mix", Output(quiet=True))
        out = pq.read_table(prepared.pipeline.folder("mix") / "mixed_out.parquet").column("document").to_pylist()
        everything = {
            int(document)
            for path in prepared.pipeline.folder("tokenize").glob("documents.*.npy")
            for document in np.load(path)["id"]
        }
        kept = everything - set(out)
        assert before < kept
        before = kept


def test_a_source_whose_tokens_are_missing_is_refused(
    corpus: Path, tmp_path: Path, thinned: tuple[Prepared, dict[str, Any]]
) -> None:
    """Not finished, as far as the mix can see: named, never left out."""
    borrow_work(thinned, tmp_path, "mix")
    prepared = job(corpus, tmp_path, RATIOS)
    (prepared.pipeline.folder("tokenize") / "documents.00003.npy").unlink()
    with pytest.raises(DamageError, match=r"documents\.00003"):
        run_until(prepared, "mix", Output(quiet=True))


def test_a_source_that_deduplication_empties_is_refused(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "corpus"
    for source in ("web", "code"):
        (copy / source).mkdir(parents=True)
        (copy / source / "0.jsonl").write_bytes((corpus / "code" / "0.jsonl").read_bytes())
    (copy / "tokenizer.model").write_bytes((corpus / "tokenizer.model").read_bytes())
    dedup = {"methods": ["exact"], "max_removed_fraction": 1.0}
    with pytest.raises(JobError, match="'code' has no documents left") as caught:
        run_until(job(copy, tmp_path / "job", {}, dedup=dedup), "mix", Output(quiet=True))
    assert caught.value.code == "TR-MIX-EMPTY"


def test_output_is_predicted_and_stopped_when_it_is_far_larger(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thinned: tuple[Prepared, dict[str, Any]]
) -> None:
    prepared, result = thinned
    predicted, packed = predicted_output(prepared.pipeline), packed_output(prepared.pipeline)
    written = [open_dataset(result[name]) for name in ("output", "validation")]
    assert packed.num_samples == sum(i.num_samples for d in written for i in d.manifest.sources)
    assert packed.num_shards == sum(i.num_shards for d in written for i in d.manifest.sources)
    assert packed.size_bytes == packed.num_samples * 32 * 2
    assert 0.8 < predicted.num_samples / packed.num_samples <= 1
    mixed = read_mix(prepared.pipeline.folder("mix"))
    assert mixed.held_out_tokens == {
        info.name: info.num_tokens for info in open_dataset(result["validation"]).manifest.sources
    }
    monkeypatch.setattr("dataprep.mix_output._SLACK_BYTES", 1000)
    borrow_work(thinned, tmp_path)
    wasteful = job(corpus, tmp_path, RATIOS, pack={"seq_len": 4096, "window_documents": 1})
    with pytest.raises(JobError, match="mostly padding") as caught:
        run_build(wasteful, Output(quiet=True))
    assert caught.value.code == "TR-OUTPUT-SIZE"
    assert not list(wasteful.pipeline.work.glob("write-*"))
    monkeypatch.setattr("dataprep.mix_output._SLACK_BYTES", 1 << 26)
    check_output(wasteful.pipeline)
