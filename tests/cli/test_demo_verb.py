"""The demo, small: it finds what it planted, a second call does nothing twice, and every command it prints works."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.config import BuildConfig
from loader.cli import main
from loader.demo import QUICK, DemoSize, prepare
from loader.demo_corpus import CorpusCaps, gather
from loader.demo_poison import KINDS, planted
from loader.errors import RefusedError
from loader.run_config import DataConfig
from loader.settings import child_environment, load_config
from train.config import TrainConfig


def _tokenreel(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loader.cli", *words],
        cwd=folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished quick demo in ``<folder>/a demo`` and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    done = _tokenreel(["demo", "--quick", "--seed", "5", "--folder", "a demo", "--json", "--quiet"], folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder, json.loads(done.stdout)


def test_it_names_the_planted_documents_and_recovers(told: tuple[Path, dict[str, Any]]) -> None:
    story = told[1]
    assert story["found"]
    assert story["named_tokens"] >= 0.9 * story["planted_tokens"] > 0
    assert story["wrong_tokens"] <= 0.05 * story["clean_tokens"]
    assert story["outcome"] == "recovered"
    assert story["learned_tokens"] == 0
    assert story["loss_spike"] > story["loss_before"]
    assert story["loss_spike"] > story["loss_after"] + 0.5 * (story["loss_spike"] - story["loss_before"])
    assert {d["kind"] for d in story["named"]} <= set(KINDS)
    assert len({d["kind"] for d in story["named"]}) >= 4
    assert story["removed"].keys() == {"exact", "minhash"}


@pytest.mark.slow
def test_a_second_call_changes_nothing(told: tuple[Path, dict[str, Any]]) -> None:
    folder, story = told
    before = {p: p.stat().st_mtime_ns for p in (folder / "a demo" / "data").rglob("*") if p.is_file()}
    ledger = {p: p.read_bytes() for p in (folder / "a demo" / "run" / "ledger").rglob("*") if p.is_file()}
    done = _tokenreel(["demo", "--quick", "--seed", "5", "--folder", "a demo", "--json", "--quiet"], folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == story
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert {p: p.read_bytes() for p in ledger} == ledger


def test_every_command_it_prints_works(
    told: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: a start of each would cost more than what it does."""
    folder, story = told
    monkeypatch.chdir(folder)
    verbs = set()
    for command in story["commands"]:
        name, *words = shlex.split(command)
        assert name == "tokenreel"
        code, (out, error) = main(words), capsys.readouterr()
        assert code == 0, f"{command}\n{error}"
        assert out.strip(), command
        if words[0] == "replay":  # of the branch that read them: on the present one they are masked, and show nothing
            assert "masked" not in out
            assert "planted" in out
        verbs.add(words[0])
    assert verbs == {"history", "locate", "replay", "skip", "report", "verify", "inspect"}


def test_another_seed_in_the_same_folder_is_refused(told: tuple[Path, dict[str, Any]]) -> None:
    done = _tokenreel(["demo", "--quick", "--seed", "6", "--folder", "a demo"], told[0])
    assert done.returncode == 4
    assert "TR-DEMO-OTHER" in done.stderr
    assert "tokenreel demo --seed 6 --folder 'a demo-6' --quick" in done.stderr


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RefusedError, match="other things"):
        prepare(tmp_path, 1, QUICK)


@pytest.mark.parametrize("size", [DemoSize(), QUICK], ids=["full", "quick"])
def test_its_configurations_are_valid_and_a_stage_begins_at_a_step(size: DemoSize, tmp_path: Path) -> None:
    small = DemoSize(CorpusCaps(90_000, 90_000, 20_000, 40_000, 30_000, 9_000), 16, size.build, size.train)
    prepare(tmp_path / "demo", 7, small)
    build = load_config(tmp_path / "demo" / "build.yaml", BuildConfig).config
    train = load_config(tmp_path / "demo" / "train.yaml", TrainConfig).config
    assert (build.seed, train.seed, train.data.seed) == (7, 7, 7)
    assert isinstance(train.data, DataConfig)
    stage = train.data.mixture[1]
    assert stage.start % (256 * train.data.batch[0].global_batch // 8) == 0
    assert stage.start // train.data.batch[0].global_batch + train.spikes.patience < train.steps
    assert set(build.sources) == set(stage.weights)
    assert stage.weights["planted"] / sum(stage.weights.values()) == pytest.approx(0.35, abs=0.02)
    assert build.sources["planted"].opt_out == ("dedup",)


def test_text_of_this_installation_is_real_and_always_the_same() -> None:
    caps = CorpusCaps(400_000, 400_000, 60_000, 200_000, package_bytes=50_000)
    first, second = gather(caps), gather(caps)
    assert first == second
    for name, limit in (("stdlib", 400_000), ("packages", 400_000), ("docs", 60_000), ("meta", 200_000)):
        size = sum(len(text.encode()) for _, text in first[name])
        assert 0.5 * limit < size <= limit, name
    assert all(text.strip() for records in first.values() for _, text in records)


def test_planted_documents_come_in_eight_kinds_and_depend_on_the_seed_alone() -> None:
    words = ["alpha", "beta", "gamma"]
    documents = planted(3, 80, words)
    assert documents == planted(3, 80, words)
    assert documents != planted(4, 80, words)
    kinds = [where.partition("/")[0] for where, _ in documents]
    assert all(kinds.count(kind) == 10 for kind in KINDS)
    assert all(text.strip() and len(text) > 10 for _, text in documents)
    sizes = np.array([len(text) for _, text in documents])
    assert sizes.max() > 4 * np.median(sizes)
