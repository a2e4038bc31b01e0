"""Which stages a setting runs again: those whose output it can change, and none that would read a corpus in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataprep.config import BuildConfig
from dataprep.inputs import load_job
from dataprep.pipeline import Pipeline, plan_pipeline
from loader.settings import load_config

CONFIG = """
version: 1
output: out
sources: {web: {root: web}, code: {root: code}}
quality: [{filter: periodic}]
decontaminate: {benchmarks: {gsm: {path: items.jsonl}}}
dedup: {methods: [exact, minhash, ngram], write_index: true}
"""


def plan(folder: Path, *overrides: str) -> Pipeline:
    config = load_config(folder / "build.yaml", BuildConfig, overrides).config
    return plan_pipeline(load_job(config, folder, None), folder / "work", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for source in ("web", "code"):
        (tmp_path / source).mkdir()
        (tmp_path / source / "x.jsonl").write_text('{"text": "one", "date": "2024"}\n')
    (tmp_path / "items.jsonl").write_text('{"question": "what is one and one", "answer": "two"}\n')
    (tmp_path / "build.yaml").write_text(CONFIG)
    return tmp_path


def changed(before: Pipeline, after: Pipeline) -> tuple[set[str], set[str]]:
    """Stages that are other ones, and those of them that are so by themselves, not by a stage in front."""
    other = {name for name, stage in after.stages.items() if before.stages[name].digest != stage.digest}

    def own(pipeline: Pipeline, name: str) -> list[Any]:
        return [pipeline.stages[name].description[key] for key in ("config", "extra")]

    return other, {name for name in other if own(before, name) != own(after, name)}


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("run.memory=1GB", ""),
        ("run.workers=7", ""),
        ("output=elsewhere", ""),
        ("sources.web.root=./web", ""),
        ("decontaminate.benchmarks.gsm.path=./items.jsonl", ""),
        ("sources.web.date=date", ""),
        ("ingest.max_reject_fraction=0.5", "decide index"),
        ("ingest.line_limit_bytes=999", "quality contamination sign decide index"),
        ("sources.web.text=body", "quality contamination sign"),
        ("sources.web.rank=5", "decontaminate decide"),
        ("sources.web.opt_out=[quality]", "quality decide"),
        ("sources.web.opt_out=[periodic]", "quality decide"),
        ("sources.web.opt_out=[decontaminate]", "contamination decide"),
        ("sources.web.opt_out=[ngram]", "decide"),
        ("quality=[{filter: length, options: {min_words: 3}}]", "quality"),
        ("decontaminate.action=report", "decontaminate"),
        ("decontaminate.frequent_documents=3", "decontaminate"),
        ("decontaminate.threshold=0.4", "items contamination decontaminate"),
        ("decontaminate.n=9", "items"),
        ("decontaminate.allow=[what is]", "items"),
        ("decontaminate.benchmarks.gsm.split=dev", "items"),
        ("decontaminate.benchmarks.gsm.fields=[question]", "items"),
        ("dedup.keep=first", "decide index"),
        ("dedup.threshold=0.7", "decide index"),
        ("dedup.minhash.bands=20", "decide index"),
        ("dedup.minhash.seed=3", "sign decide index"),
        ("dedup.minhash.num_permutations=256", "sign decide index"),
        ("dedup.methods=[exact, minhash, simhash, ngram]", "sign decide index"),
        ("dedup.max_removed_fraction=0.5", "decide index"),
        ("dedup.ngram.n=40", "anchors repeats grams spans"),
        ("holdout.fraction=0.1", "decide index"),
        ("tokenizer.add_bos=false", "choose sample tokenizer"),
        ("mix.total_tokens=100", "mix"),
        ("mix.temperature=2.0", "mix"),
        ("mix.stages=[{share: 1, ratios: {web: 1, code: 1}}]", "mix"),
        ("mix.thin=false", ""),
        ("pack.seq_len=64", "pack"),
    ],
)
def test_a_setting_shapes_the_stages_that_use_it(folder: Path, override: str, stages: str) -> None:
    before, after = plan(folder), plan(folder, override)
    other, own = changed(before, after)
    assert own == set(stages.split())
    first = min((list(before.stages).index(name) for name in own), default=len(before.stages))
    assert all(list(before.stages).index(name) >= first for name in other)
    assert ("write" in other) == bool(stages)


def test_blocks_of_samples_count_for_a_mix_that_asks_for_something(folder: Path) -> None:
    asked, longer = "mix.ratios={web: 1, code: 1}", "pack.seq_len=64"
    assert changed(plan(folder, asked), plan(folder, asked, longer))[1] == {"mix", "pack"}


def test_a_source_far_too_large_is_gauged_and_thinned(folder: Path) -> None:
    """64 bytes of input for each token are far too many; a longer plan of three equal binary digits is no other one."""
    (folder / "web" / "x.jsonl").write_text('{"text": "one", "date": "2024"}\n' * 1000)
    asked = [f"mix={{ratios: {{web: 1, code: 1}}, total_tokens: {total}}}" for total in (90, 390, 440, 900)]
    short, some, more, ordinary = (plan(folder, one) for one in asked)
    assert {"gauge", "thin"} <= set(short.stages)
    assert not {"gauge", "thin"} & set(ordinary.stages)
    assert changed(some, more)[0] == {"mix", "pack", "write"}
    assert changed(some, plan(folder, asked[1], "mix.total_tokens=200"))[1] == {"thin", "mix"}
    assert changed(plan(folder, asked[0], "mix.thin=false"), ordinary)[1] == {"mix"}


def test_what_a_file_holds_counts_and_not_where_it_lies(folder: Path, tmp_path: Path) -> None:
    before = plan(folder)
    (folder / "items.jsonl").write_text('{"question": "what is one and one", "answer": "three"}\n')
    other, own = changed(before, plan(folder))
    assert own == {"items"}
    assert {"contamination", "decontaminate", "decide", "write"} < other
    assert not {"quality", "sign"} & other


def test_the_field_of_the_keep_policy_counts_only_under_that_policy(folder: Path) -> None:
    newest = ("dedup.keep=newest", "sources.web.date=date")
    assert "sign" in changed(plan(folder, *newest), plan(folder, *newest, "sources.web.date=other"))[1]


def test_an_index_counts_by_what_it_holds(folder: Path) -> None:
    for name in ("early", "moved", "late"):
        (folder / name).mkdir()
        (folder / name / "index.json").write_text("{}" if name != "late" else "[]")
    against = plan(folder, "dedup.against=[early]")
    assert changed(plan(folder), against)[1] == {"decide"}
    assert changed(against, plan(folder, "dedup.against=[moved]"))[0] == set()
    assert changed(against, plan(folder, f"dedup.against=[{folder}/early]"))[0] == set()
    assert changed(against, plan(folder, "dedup.against=[late]"))[1] == {"decide"}
    both = plan(folder, "dedup.against=[early, late]")
    assert changed(both, plan(folder, "dedup.against=[late, early]"))[1] == {"decide"}


def test_leaving_an_index_shapes_nothing_else(folder: Path) -> None:
    before, after = plan(folder), plan(folder, "dedup.write_index=false")
    assert set(before.stages) - set(after.stages) == {"index"}
    assert all(before.stages[name].digest == stage.digest for name, stage in after.stages.items())
