"""An investigation on a mesh: every process scores its share, and all find what one process finds; replay and rollback
of such a run, from one process.
"""

from __future__ import annotations

import functools
import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import train, write_job
from support.worlds import run_ranks

from loader.run_view import open_run
from train.context import RunContext
from train.job import Job, job_of_run
from train.parallel.config import ParallelConfig
from train.parallel.mesh import make_mesh
from train.spikes.attribute import SegmentColumns
from train.spikes.config import AttributionConfig, SpikeConfig
from train.spikes.decide import Case, Raised
from train.spikes.gather import rows_from_bytes, rows_to_bytes
from train.spikes.investigate import investigate
from train.spikes.records import Verdict, Window
from train.spikes.score import score_batch
from train.world import World, join_world

STEPS, BATCH, WINDOW = 24, 11, Window(16, 18, 24)
MODELS: dict[str, dict[str, Any]] = {
    "untied": {"dim": 16, "layers": 4, "heads": 2, "ffn": 24},
    "tied": {"dim": 16, "layers": 4, "heads": 2, "ffn": 24, "tied": True},
}
MESHES: dict[str, dict[str, Any]] = {
    "fsdp": {},
    "ddp": {"data": "ddp"},
    "tensor": {"tensor": 2},
    "sequence": {"tensor": 2, "sequence": True},
    "whole vocabulary": {"tensor": 2, "vocabulary": False, "sequence": True},
    "pipeline": {"pipeline": 2},
    "folded pipeline": {"pipeline": 2, "schedule": "zbv"},
    "zigzag": {"context": 2},
    "ulysses": {"context": 2, "context_method": "ulysses"},
}
ROWS = [(model, mesh) for model in MODELS for mesh in MESHES if (model, mesh) != ("tied", "folded pipeline")]
QUICK = [("untied", "fsdp"), ("tied", "sequence"), ("tied", "pipeline"), ("untied", "zigzag")]
MARKED = [pytest.param(*row, marks=[] if row in QUICK else [pytest.mark.slow]) for row in ROWS]
CONFIG = SpikeConfig(
    attribution=AttributionConfig(threshold=1.2, baseline_segments=250, baseline_source_segments=60),
    min_flagged_fraction=0.005,
)
TRAINING: dict[str, Any] = {"checkpoint": {"every_steps": 8}, "optimizer": {"lr": 2e-2}}
CASE = Case(WINDOW, True, Raised(6.0, 5.0, 9.0, True), ())


def noisy_texts() -> dict[str, list[str]]:
    """Two sources of sentences; every twentieth document is noise."""
    rng = random.Random(5)
    words = ["the", "reel", "winds", "on", "under", "and", "while", "tokens", "stream", "past", "ends", "again"]

    def one(number: int) -> str:
        if number % 20 == 3:
            return "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(40, 60)))
        return " ".join(rng.choice(words) for _ in range(rng.randrange(4, 12)))

    return {source: [one(number) for number in range(400)] for source in ("web", "code")}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeDataset, Path]:
    """A Dataset, and below ``untied`` and ``tied`` runs of one process."""
    folder = tmp_path_factory.mktemp("lived")
    made = make_dataset(folder, DatasetSpec(seq_len=64, texts=noisy_texts()))
    data = {"datasets": ["../data"], "batch": [{"start": 0, "global_batch": BATCH}]}
    for name, model in MODELS.items():
        (folder / name).mkdir()
        train(write_job(folder / name, made.path, steps=STEPS, model=model, data=data, **TRAINING))
    return made, folder


def on_mesh(job: Job, mesh: dict[str, Any]) -> Job:
    return replace(job, config=replace(job.config, parallel=ParallelConfig(**mesh)))


def context_of(root: Path, mesh: dict[str, Any], world: World | None) -> RunContext:
    view = open_run(root)
    return RunContext(on_mesh(job_of_run(root), mesh), view.sources, view.plan, lambda error: None, world)


def scored(context: RunContext) -> SegmentColumns:
    """The rows of one step, which has an odd number of samples a rank."""
    frozen = context.load_frozen(WINDOW.start)
    assert frozen is not None
    assert frozen.step == 16
    return frozen.together(score_batch(frozen, context.read_batch(17), None, False, context.most_samples(17)))


@pytest.fixture(scope="module")
def found(lived: tuple[MadeDataset, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(rank, model, mesh) -> the rows of a step and the verdict; one start of two processes for all quick cases, and
    one for the others."""

    def work(rank: int, rows: list[tuple[str, str]]) -> dict[str, Any]:
        torch.use_deterministic_algorithms(True)
        out: dict[str, Any] = {}
        with join_world("cpu") as whole:
            for model, name in rows:
                mesh = MESHES[name]
                world = replace(whole, mesh=make_mesh(ParallelConfig(**mesh), rank, 2, "cpu"))
                context = context_of(lived[1] / model / "run", mesh, world)
                random_before = torch.get_rng_state()
                table, verdict = scored(context), investigate(CASE, context, CONFIG)
                out[f"{model}, {name}"] = {
                    "rows": rows_to_bytes(table).hex(),
                    "verdict": verdict.to_json(),
                    "drew": not torch.equal(random_before, torch.get_rng_state()),
                }
        return out

    @functools.cache
    def start(quick: bool) -> list[dict[str, Any]]:
        rows = [row for row in ROWS if (row in QUICK) == quick]
        folder = tmp_path_factory.mktemp("world") / "ranks"
        ended = run_ranks(lambda rank: work(rank, rows), 2, folder, limit_s=500)
        assert [one.code for one in ended] == [0, 0], ended
        return [one.value for one in ended]

    return lambda rank, model, mesh: start((model, mesh) in QUICK)[rank][f"{model}, {mesh}"]


@pytest.fixture(scope="module")
def alone(lived: tuple[MadeDataset, Path]) -> Any:
    """model -> the same of one process."""

    @functools.cache
    def of(model: str) -> tuple[SegmentColumns, Verdict]:
        context = context_of(lived[1] / model / "run", {}, None)
        return scored(context), investigate(CASE, context, CONFIG)

    return of


@pytest.mark.parametrize(("model", "mesh"), MARKED)
def test_a_mesh_finds_what_one_process_finds(found: Any, alone: Any, model: str, mesh: str) -> None:
    right, verdict = alone(model)
    assert verdict.action in ("mask", "replace"), verdict.report
    assert len(verdict.entries[0].documents) >= 2
    for rank in (0, 1):
        one = found(rank, model, mesh)
        rows = rows_from_bytes(bytes.fromhex(one["rows"]))
        assert len(rows) == len(right) >= 8
        for field in fields(SegmentColumns):
            mine, theirs = getattr(rows, field.name), getattr(right, field.name)
            if mine.dtype.kind == "f":
                np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4, err_msg=field.name)
            else:
                assert np.array_equal(mine, theirs), field.name
        told = Verdict.from_json(one["verdict"])
        assert told.entries == verdict.entries
        assert (told.action, told.rollback_to) == (verdict.action, verdict.rollback_to)
        mine, theirs = (
            {row["document"]: row["score"] for row in report["documents"]} for report in (told.report, verdict.report)
        )
        assert mine.keys() == theirs.keys()
        assert all(abs(mine[document] - theirs[document]) <= 2e-3 for document in mine)  # told in three digits
        assert not one["drew"]


def test_the_flagged_documents_are_the_noise(lived: tuple[MadeDataset, Path], alone: Any) -> None:
    """The comparison above is not one of empty or arbitrary sets."""
    verdict = alone("untied")[1]
    flagged = [document for entry in verdict.entries for document in entry.documents]
    texts = [lived[0].documents[document].text for document in flagged]
    assert len(texts) >= 2
    assert all(" " not in text for text in texts)


def test_rows_travel_as_they_are(alone: Any) -> None:
    rows = alone("untied")[0]
    again = rows_from_bytes(rows_to_bytes(rows))
    for field in fields(SegmentColumns):
        mine, theirs = getattr(again, field.name), getattr(rows, field.name)
        assert (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes()), field.name
    assert len(rows_from_bytes(b"")) == 0
