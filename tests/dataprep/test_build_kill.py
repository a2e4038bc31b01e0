"""kill -9 of a build at any moment, then the same command again: the same bytes as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.corpora import Corpus, make_corpus, write_config

from dataprep.pipeline import STAGES
from dataprep.run import prepare, run_build
from loader.cli_options import Output
from loader.settings import child_environment

_SCREENED = {
    "quality": [{"filter": "periodic"}, {"filter": "length", "options": {"min_words": 2}}],
    "decontaminate": {"benchmarks": {"own": {"path": "items.jsonl"}}},
    "dedup": {"methods": ["exact", "minhash", "simhash", "ngram"], "ngram": {"n": 8}, "write_index": True},
    "mix": {"ratios": {"web": 1, "code": 1}, "total_tokens": 300},
}
"""Every stage that a configuration can ask for; the plan is so short that both sources are thinned."""
_COMMAND = [sys.executable, "-c", "import sys; from loader.cli import main; sys.exit(main())"]
_TIMEOUT_S = 300


def start(config: Path) -> subprocess.Popen[str]:
    arguments = [*_COMMAND, "build", str(config), "--json", "--quiet"]
    return subprocess.Popen(arguments, env=child_environment(), stdout=subprocess.PIPE, text=True)


def finish(config: Path) -> tuple[str, str]:
    """Run to the end; digests of both Datasets."""
    process = start(config)
    out, _ = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0, out
    result = json.loads(out)
    return result["digest"], result["validation_digest"]


def kill_when(config: Path, happened: Callable[[], bool]) -> bool:
    """Start, kill -9 the supervising process as soon as something happened; False if it ended before."""
    process = start(config)
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while process.poll() is None and not happened():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        if process.poll() is not None:
            return False
        os.kill(process.pid, signal.SIGKILL)
        return True
    finally:
        process.kill()
        process.communicate()


def appeared(work: Path, pattern: str) -> Callable[[], bool]:
    return lambda: any(work.glob(pattern))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("kill") / "corpus", documents=30)


def screened_config(path: Path, corpus: Corpus) -> Path:
    """A job with every stage there is."""
    config = write_config(path, corpus, **_SCREENED)
    item = " ".join(corpus.texts["web", "a.jsonl", 0].split()[:30])
    (path.parent / "items.jsonl").write_text(json.dumps({"question": item, "answer": ""}) + "\n", encoding="utf-8")
    return config


def undisturbed_build(config: Path) -> tuple[str, str]:
    """Digests of a build in this process that nobody disturbs."""
    result = run_build(prepare(config, (), read_only=False), Output(quiet=True))
    return result["digest"], result["validation_digest"]


def test_killed_and_finished(corpus: Corpus, tmp_path: Path) -> None:
    undisturbed = undisturbed_build(write_config(tmp_path / "one" / "build.yaml", corpus))
    config = write_config(tmp_path / "two" / "build.yaml", corpus)
    assert kill_when(config, appeared(tmp_path / "two" / "out.work", "write-*/train/*/*.mds"))
    assert not (tmp_path / "two" / "out").exists()
    assert finish(config) == undisturbed
    assert list((tmp_path / "two").rglob(".tmp-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_random_moments(corpus: Corpus, tmp_path: Path, seed: int) -> None:
    """The times of the kills are random; whatever they hit, the result is the one of an undisturbed run."""
    rng = random.Random(seed)
    undisturbed = undisturbed_build(write_config(tmp_path / "one" / "build.yaml", corpus))
    config = write_config(tmp_path / "two" / "build.yaml", corpus, run={"workers": 1 + seed % 3})
    for _ in range(6):
        moment = time.monotonic() + rng.uniform(0.3, 6)
        kill_when(config, lambda moment=moment: time.monotonic() >= moment)  # type: ignore[misc]
    assert finish(config) == undisturbed


@pytest.fixture(scope="module")
def undisturbed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Digests of the job with every stage."""
    return undisturbed_build(screened_config(tmp_path_factory.mktemp("undisturbed") / "build.yaml", corpus))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_every_stage(corpus: Corpus, tmp_path: Path, stage: str, undisturbed: tuple[str, str]) -> None:
    config = screened_config(tmp_path / "build.yaml", corpus)
    work = tmp_path / "out.work"
    assert kill_when(config, appeared(work, f"{stage}-*/stage.json"))
    kill_when(config, appeared(work, f"{stage}-*/datatrove/completions/*"))
    assert finish(config) == undisturbed
    assert list(tmp_path.rglob(".tmp-*")) == []
