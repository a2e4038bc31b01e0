"""What a run notes of its Datasets gives the very stages that the Datasets themselves give."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run

from loader.dataset_facts import facts_of, samples_of, stages_of
from loader.order.mixture import MixtureStage
from loader.order.weights import integer_stages
from loader.run_config import MixtureStageConfig, default_stages
from loader.run_folder import read_identity
from loader.shards.default_mixture import DefaultMixture, DefaultMixtureStage
from loader.shards.manifest import encode_manifest
from loader.sources import open_sources

QUARTER = 1 << 24


def _mixed(made: MadeDataset, *shares: dict[str, int]) -> MadeDataset:
    """The same Dataset, mixed for stages of 256 positions."""
    weights = [{name: part * QUARTER for name, part in share.items()} for share in shares]
    stages = tuple(DefaultMixtureStage(256 * number, share) for number, share in enumerate(weights))
    manifest = replace(made.open().manifest, mixture=DefaultMixture("repeat", 256 * len(shares) + 44, stages))
    (made.path / "manifest.json").write_bytes(encode_manifest(manifest)[0])
    return made


def _plain(stages: tuple[MixtureStageConfig, ...]) -> list[tuple[int, dict[str, int]]]:
    names = sorted({name for stage in stages for name in stage.weights})
    given = [MixtureStage(stage.start, stage.weights) for stage in stages]
    return [(stage.start, dict(stage.weights)) for stage in integer_stages(given, names)]


def test_the_stages_of_the_facts_are_those_of_the_datasets(tmp_path: Path) -> None:
    spec = DatasetSpec(documents={"web": 40, "code": 17}, seq_len=32)
    web = make_dataset(tmp_path, spec, name="web")
    one = _mixed(make_dataset(tmp_path, spec, name="one"), {"web": 3, "code": 1})
    two = _mixed(make_dataset(tmp_path, spec, name="two"), {"web": 3, "code": 1}, {"code": 4})
    law = make_dataset(tmp_path, DatasetSpec(documents={"law": 9, "none": 0}, seq_len=32), name="law")
    for made in ((web,), (one,), (two,), (web, law), (one, law), (law, one)):
        sources = open_sources([each.open() for each in made])
        facts = json.loads(json.dumps(facts_of(sources)))
        assert _plain(stages_of(facts)) == _plain(default_stages(sources))
        assert samples_of(facts) == {name: int(sources.shard_samples(name).sum()) for name in sources.names}


def test_a_run_notes_them(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(documents={"web": 12}, seq_len=32))
    (entry,) = read_identity(make_run(tmp_path, [made]))["datasets"]
    assert entry["facts"] == facts_of(open_sources([made.open()]))[0]
