"""The flagship property: rollback + cut is bit-equal to a run from step 0 whose list held the same entries with the
same stamps, also when that run reads another Dataset in which the cut tokens are replaced by other content.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import ledger, train, write_job

from loader.lookup import document_steps
from loader.order.skips import SkipEntry
from loader.run_folder import RunPaths
from loader.run_view import open_run
from loader.runs import append_skips, read_branches, read_skips
from loader.settings import load_config
from train.back import roll_back
from train.config import TrainConfig
from train.job import establish, open_job_sources, resolve_job
from train.loop import RunResult

STEPS, BATCH, BACK_TO = 24, 4, 8
KEEP_ALL = {"every_steps": 4, "keep_last": 9}
SPEC = DatasetSpec(documents={"web": 60, "code": 30}, seq_len=32, samples_per_shard=4, files_per_source=1, max_words=7)


@dataclass(frozen=True)
class Lived:
    """A run that went wrong: its Dataset, its end, its folder, and what could be cut from ``stamp`` on."""

    made: MadeDataset
    result: RunResult
    root: Path
    stamp: int
    documents: list[int]


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    folder = tmp_path_factory.mktemp("lived")
    made = make_dataset(folder, SPEC)
    result = train(write_job(folder, made.path, steps=STEPS, checkpoint=KEEP_ALL))
    view = open_run(folder / "run")
    stamp, stop = BACK_TO * BATCH, STEPS * BATCH
    fresh = []
    for document in made.documents:
        positions = [
            reading["position"] for reading in document_steps(view.plan, view.sources, document, stop)["readings"]
        ]
        if positions and min(positions) >= stamp:
            fresh.append(document)
    assert len(fresh) >= 4, "too few documents are first read behind the rollback"
    return Lived(made, result, folder / "run", stamp, fresh)


def entries_for(lived: Lived, kind: str) -> tuple[SkipEntry, list[int]]:
    """An entry, and documents all of whose tokens it cuts."""
    documents = sorted(lived.documents)[:3]
    if kind == "mask documents":
        return SkipEntry("documents", "mask", lived.stamp, documents=tuple(documents)), documents
    if kind == "drop documents":
        return SkipEntry("documents", "drop", lived.stamp, documents=tuple(documents)), documents
    dataset = lived.made.open()
    source = "web"
    samples: dict[int, list[int]] = {}
    for document in lived.documents:
        places = dataset.samples_of_document(document)
        if len(places) == 1 and places[0][0] == source and len(places[0][1]) == 1:
            samples.setdefault(int(places[0][1][0]), []).append(document)
    assert samples, "no document lies in one sample alone"
    numbers = sorted(samples)[:2]
    ranges = tuple((number, number + 1) for number in numbers)
    mode = "mask" if kind == "mask samples" else "drop"
    entry = SkipEntry("samples", mode, lived.stamp, source=source, ranges=ranges)  # type: ignore[arg-type]
    return entry, [document for number in numbers for document in samples[number]]


def other_content(lived: Lived, documents: list[int], folder: Path) -> MadeDataset:
    """The same Dataset with the bytes of some documents replaced; ids, lengths and places stay."""
    texts: dict[str, list[str]] = {}
    changed = 0
    for document in lived.made.documents.values():
        text = document.text
        if document.id in documents:
            text = "".join(chr(ord("a") + (ord(c) + 8) % 26) if c.isascii() and c.isalpha() else c for c in text)
            changed += text != document.text
        texts.setdefault(document.source, []).append(text)
    assert changed == len(documents)
    made = make_dataset(folder, replace(SPEC, texts=texts), "other")
    assert list(made.documents) == list(lived.made.documents)
    assert made.digest != lived.made.digest
    return made


def run_from_zero(folder: Path, dataset: Path, entry: SkipEntry) -> RunResult:
    """A run whose list holds the entry before its first step."""
    path = write_job(folder, dataset, steps=STEPS)
    job = resolve_job(load_config(path, TrainConfig))
    establish(job, open_job_sources(job))
    append_skips(job.paths, [entry])
    return train(path)


@pytest.mark.parametrize("kind", ["mask documents", "drop documents", "mask samples", "drop samples"])
def test_rollback_and_cut_equal_a_run_from_step_0(lived: Lived, tmp_path: Path, kind: str) -> None:
    entry, documents = entries_for(lived, kind)
    (tmp_path / "back").mkdir()
    job = write_job(tmp_path / "back", lived.made.path, steps=STEPS, checkpoint=KEEP_ALL)
    shutil.copytree(lived.root, tmp_path / "back" / "run")
    paths = RunPaths(tmp_path / "back" / "run")
    # The Dataset's place relative to the run changed with the copy; the configuration follows it.
    train_again = load_config(job, TrainConfig)
    from loader.run_folder import write_config

    write_config(paths, resolve_job(train_again).semantic)
    facts = roll_back(paths.root, BACK_TO + 1, lambda line: None)
    assert (facts["step"], facts["position"]) == (BACK_TO, lived.stamp) == (BACK_TO, open_run(paths.root).next_position)
    append_skips(paths, [entry])
    back = train(job)
    (tmp_path / "zero").mkdir()
    zero = run_from_zero(tmp_path / "zero", lived.made.path, entry)
    (tmp_path / "twin").mkdir()
    other = other_content(lived, documents, tmp_path)
    twin = run_from_zero(tmp_path / "twin", other.path, entry)
    assert back.parameters == zero.parameters == twin.parameters
    assert back.parameters != lived.result.parameters
    records = [ledger(tmp_path / name / "run") for name in ("back", "zero", "twin")]
    for field in ("loss", "grad_norm", "update_norm", "token_digest", "label_count", "first_position", "lr"):
        assert records[0][field].tobytes() == records[1][field].tobytes() == records[2][field].tobytes(), field
    before = ledger(lived.root)
    assert np.array_equal(records[0]["loss"][:BACK_TO], before["loss"][:BACK_TO])
    assert not np.array_equal(records[0]["token_digest"][BACK_TO:], before["token_digest"][BACK_TO:])


def test_the_other_content_would_have_mattered(lived: Lived, tmp_path: Path) -> None:
    """Without the cut the second Dataset trains another model: the equality above is not empty."""
    other = other_content(lived, entries_for(lived, "mask documents")[1], tmp_path)
    assert train(write_job(tmp_path, other.path, steps=STEPS)).parameters != lived.result.parameters


def test_rollback_keeps_the_history(lived: Lived, tmp_path: Path) -> None:
    made = make_dataset(tmp_path, SPEC)
    job, root = write_job(tmp_path, made.path, steps=STEPS), tmp_path / "run"
    train(job)
    left = ledger(root)
    roll_back(root, 22, lambda line: None)
    again = train(job)
    assert again.parameters == lived.result.parameters
    assert again.branch == 1
    branches = read_branches(RunPaths(root))
    assert [(branch.parent, branch.from_step) for branch in branches] == [(None, 0), (0, 20)]
    assert np.array_equal(ledger(root, 0)["loss"], left["loss"])
    assert np.array_equal(ledger(root, 1)["loss"], left["loss"])
    assert not read_skips(RunPaths(root))
