"""The first step that reads something again, against a walk over all steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, train

from loader.cli import group
from loader.lookup import document_steps
from loader.order import SkipEntry
from loader.repeats import first_repeats
from loader.run_view import open_run
from loader.runs import append_skips

STOP = 4000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 30, "code": 11, "one": 1}, seq_len=64, samples_per_shard=12)
    return make_dataset(tmp_path_factory.mktemp("repeats"), spec)


@pytest.mark.parametrize("skipped", [False, True])
def test_it_is_what_a_walk_finds(made: MadeDataset, tmp_path: Path, skipped: bool) -> None:
    paths = make_run(tmp_path, [made])
    if skipped:
        cuts = [
            SkipEntry("positions", "drop", 0, ranges=((0, 9), (40, 90))),
            SkipEntry("samples", "drop", 0, "web", ((2, 6),)),
        ]
        append_skips(paths, cuts)
    view = open_run(paths.root)
    seen: dict[tuple[int, int], int] = {}
    expected: dict[str, dict[str, int]] = {}
    for step in range(view.plan.step_of(STOP) or 0):
        refs = view.plan.samples(view.plan.step_positions(step))
        rows = zip(refs.position_N.tolist(), refs.source_N.tolist(), refs.sample_N.tolist(), strict=True)
        for position, source, sample in rows:
            name = view.sources.names[source]
            if (source, sample) in seen and name not in expected:
                expected[name] = {"position": position, "step": step, "sample": sample}
            seen[source, sample] = step
    found = first_repeats(view, STOP)
    assert found["by_source"] == expected
    first = min(expected.values(), key=lambda one: one["position"])
    assert (found["step"], found["position"]) == (first["step"], first["position"])
    for document in found["documents"]:
        readings = document_steps(view.plan, view.sources, int(document, 16), STOP)
        assert readings["again_step"] == found["step"]
    before = first_repeats(view, first["position"])
    assert (before["step"], before["documents"]) == (None, [])


def test_the_verb(made: MadeDataset, tmp_path: Path) -> None:
    paths = make_run(tmp_path, [made])
    train(paths, 2)
    words = ["locate", str(paths.root), "--twice"]
    assert "nothing is read twice before position 16" in CliRunner().invoke(group, words).output
    found = json.loads(CliRunner().invoke(group, [*words, "--stop-step", "400", "--json"]).output)
    assert found == first_repeats(open_run(paths.root), found["stop_position"])
    assert f"step {found['step']} is the first" in CliRunner().invoke(group, [*words, "--stop-step", "400"]).output
    refused = CliRunner().invoke(group, [*words, "--step", "1"])
    assert "TR-LOCATE-QUESTION" in str(refused.exception)
    on_dataset = CliRunner().invoke(group, ["locate", str(made.path), "--twice"])
    assert "TR-LOCATE-RUN" in str(on_dataset.exception)
