"""A Dataset that was rebuilt where it lay: what stayed goes on exactly as if the new one had been put elsewhere."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, train

from loader.cli import group
from loader.errors import RefusedError
from loader.order import SkipEntry
from loader.order.cursor import make_cursor
from loader.remap import remap_run
from loader.run_folder import RunPaths, read_config, read_events, read_identity, write_config
from loader.run_verify import COMMIT_NAME
from loader.run_view import RunView, open_run
from loader.runs import append_skips
from loader.sealed import write_sealed

COMMON: dict[str, Any] = {"seq_len": 32, "samples_per_shard": 12}
WEB = DatasetSpec(documents={"web": 40, "code": 20}, **COMMON)
NEW_WEB = DatasetSpec(documents={"web": 44, "code": 15}, seed=3, salt=9, **COMMON)
LAW = DatasetSpec(documents={"law": 25}, **COMMON)


def checkpoint(view: RunView, number: int = 0) -> None:
    """The part of a checkpoint that a remap reads, where the run stands."""
    cursor = make_cursor(view.plan, view.sources.digest_by_source, next_step=view.num_steps)
    folder = view.paths.checkpoints / f"step_{view.num_steps:06d}"
    folder.mkdir(parents=True)
    facts = {"step": view.num_steps, "number": number, "branch": view.branch.number, "cursor": cursor.to_json()}
    write_sealed(folder / COMMIT_NAME, facts)


@dataclass(frozen=True)
class Made:
    """A run in a folder of its own, with the Datasets that it reads."""

    paths: RunPaths
    web: MadeDataset
    law: MadeDataset


def _plain(paths: RunPaths) -> None:
    """As ``make_run`` made it: the mixture that the Datasets were made for."""


def _weighted(paths: RunPaths) -> None:
    config = read_config(paths)
    weights = {"web": 2, "code": 1, "law": 3}
    config["data"]["mixture"] = [{"start": 0, "weights": weights}, {"start": 256, "weights": {**weights, "law": 1}}]
    write_config(paths, config)


def _renormalised(paths: RunPaths) -> None:
    """``code`` runs out before the remap, so the shares behind it depend on how large it was."""
    config = read_config(paths)
    epochs = {"web": 90, "code": 5, "law": 90}
    config["data"]["exhaustion"] = {"policy": "renormalise", "max_epochs": epochs, "total": None}
    config["data"]["mixture"] = [{"start": 0, "weights": {"web": 1, "code": 3, "law": 1}}]
    write_config(paths, config)


def _dropped(paths: RunPaths) -> None:
    view = train(paths, 3)
    position = view.next_position
    law = next(segment for segment in _documents(view, "law"))
    web = next(segment for segment in _documents(view, "web"))
    append_skips(
        paths,
        [
            SkipEntry("samples", "drop", position, "law", ((0, 9),)),
            SkipEntry("samples", "drop", position, "web", ((1, 5),)),
            SkipEntry("documents", "drop", position, documents=(law, web)),
        ],
    )


def _documents(view: RunView, source: str) -> list[int]:
    number = view.sources.names.index(source)
    found = view.sources.dataset(number).segments_of(source, np.arange(30))
    return [int(document) for document in found.document_id_S[~found.padding_S]][-3:]


def _run(folder: Path, prepare: Callable[[RunPaths], None], steps: int) -> Made:
    folder.mkdir()
    web, law = make_dataset(folder, WEB, name="web"), make_dataset(folder, LAW, name="law")
    paths = make_run(folder, [web, law])
    prepare(paths)
    view = train(paths, steps)
    checkpoint(view)
    return Made(paths, web, law)


def _replaced(made: Made) -> MadeDataset:
    """``web`` built again into the same folder."""
    shutil.rmtree(made.web.path)
    return make_dataset(made.paths.root.parent, NEW_WEB, name="web")


def _forgotten(paths: RunPaths) -> None:
    """A run of an earlier version, which noted nothing of its Datasets but their digests."""
    identity = read_identity(paths)
    identity["datasets"] = [{key: entry[key] for key in ("path", "digest")} for entry in identity["datasets"]]
    write_sealed(paths.identity, identity)


@pytest.mark.parametrize("prepare", [_plain, _weighted, _renormalised, _dropped])
def test_rebuilt_in_place_is_as_put_elsewhere(prepare: Callable[[RunPaths], None], tmp_path: Path) -> None:
    one, two = _run(tmp_path / "one", prepare, 70), _run(tmp_path / "two", prepare, 70)
    if prepare is _renormalised:
        assert len(open_run(one.paths.root).plan.mixture.stages_before(560)) > 1, "code ran out before"
    elsewhere = make_dataset(tmp_path / "one", NEW_WEB, name="new")
    wanted = remap_run(one.paths.root, [str(elsewhere.path), str(one.law.path)])
    assert wanted["start"]["carried"]["law"] > 0
    assert _replaced(two).digest == elsewhere.digest
    found = remap_run(two.paths.root, [str(two.web.path), str(two.law.path)])
    assert found["start"] == wanted["start"]
    assert found["left_behind"] == wanted["left_behind"]
    assert found["begins_anew"] == wanted["begins_anew"] == []
    assert {name: one["positions"] for name, one in found["consumed"].items()} == {
        name: one["positions"] for name, one in wanted["consumed"].items()
    }
    assert found["consumed"]["law"] == wanted["consumed"]["law"]
    digests = [train(made.paths, 40).ledger_N["token_digest"].tolist() for made in (one, two)]
    assert len(digests[0]) >= 110
    assert digests[0] == digests[1]


def test_what_was_consumed_of_the_old_data_is_said_as_far_as_it_is_known(tmp_path: Path) -> None:
    plain, dropped = _run(tmp_path / "plain", _plain, 20), _run(tmp_path / "dropped", _dropped, 20)
    raw = open_run(plain.paths.root).plan.raw_before(160)
    samples = len(plain.web.samples["web"])
    for made in (plain, dropped):
        _replaced(made)
    found = remap_run(plain.paths.root, [str(plain.web.path), str(plain.law.path)], plan_only=True)
    assert found["consumed"]["web"] == {"positions": raw["web"], "epochs": round(raw["web"] / samples, 6)}
    found = remap_run(dropped.paths.root, [str(dropped.web.path), str(dropped.law.path)], plan_only=True)
    assert found["consumed"]["web"]["epochs"] is None, "which samples a cut skipped, the old Dataset knew"


def test_a_second_remap_in_place_goes_on_too(tmp_path: Path) -> None:
    """The plan in force began with a remap itself: behind its start, and at it, where nothing of it was read yet."""
    results = []
    for name, steps in (("one", 0), ("two", 0), ("three", 25), ("four", 25)):
        made = _run(tmp_path / name, _plain, 30)
        first = make_dataset(tmp_path / name, NEW_WEB, name="first")
        remap_run(made.paths.root, [str(first.path), str(made.law.path)])
        if steps:
            checkpoint(train(made.paths, steps), number=1)
        last = DatasetSpec(**{**vars(NEW_WEB), "seed": 8})
        if name in ("one", "three"):
            place = make_dataset(tmp_path / name, last, name="last").path
        else:
            shutil.rmtree(first.path)
            place = make_dataset(tmp_path / name, last, name="first").path
        results.append(remap_run(made.paths.root, [str(place), str(made.law.path)])["start"])
    assert results[0] == results[1]
    assert results[2] == results[3]
    assert 0 < results[0]["carried"]["law"] < results[2]["carried"]["law"]


@pytest.mark.parametrize(("prepare", "known"), [(_plain, False), (_weighted, True), (_renormalised, False)])
def test_a_run_that_noted_nothing_goes_on_where_its_configuration_says_enough(
    prepare: Callable[[RunPaths], None], known: bool, tmp_path: Path
) -> None:
    made = _run(tmp_path / "run", prepare, 70)
    wanted = open_run(made.paths.root).plan.raw_before(560)["law"]
    _forgotten(made.paths)
    _replaced(made)
    words = ["remap", str(made.paths.root), "--dataset", str(made.web.path), "--dataset", str(made.law.path)]
    shown = CliRunner().invoke(group, [*words, "--plan"])
    assert shown.exit_code == 0, shown.output
    assert ("begins its order anew though its Dataset stayed: law" in shown.output) != known
    found = json.loads(CliRunner().invoke(group, [*words, "--json"]).output)
    assert found["start"]["carried"] == ({"law": wanted} if known else {})
    assert found["begins_anew"] == ([] if known else ["law"])
    (event,) = [event for event in read_events(made.paths) if event["kind"] == "remap"]
    assert event["begins_anew"] == found["begins_anew"]


def test_facts_that_do_not_lead_to_the_mixture_that_was_read_are_not_believed(tmp_path: Path) -> None:
    made = _run(tmp_path / "run", _plain, 20)
    identity = read_identity(made.paths)
    identity["datasets"][0]["facts"]["weights"]["web"] *= 2
    write_sealed(made.paths.identity, identity)
    _replaced(made)
    found = remap_run(made.paths.root, [str(made.web.path), str(made.law.path)], plan_only=True)
    assert found["start"]["carried"] == {}
    assert found["begins_anew"] == ["law"]
    assert found["consumed"] is None


def _added(folder: Path) -> Made:
    """``law`` came later: it stands in the configuration, not in what the run began with."""
    folder.mkdir()
    web, law = make_dataset(folder, WEB, name="web"), make_dataset(folder, LAW, name="law")
    paths = make_run(folder, [web])
    config = read_config(paths)
    config["data"]["mixture"] = [{"start": 0, "weights": {"web": 1, "code": 1}}]
    write_config(paths, config)
    train(paths, 3)
    config["data"]["mixture"].append({"start": 256, "weights": {"web": 1, "code": 1, "law": 1}})
    config["data"]["datasets"] = [*config["data"]["datasets"], "../law"]
    write_config(paths, config)
    train(paths, 37)
    append_skips(paths, [SkipEntry("samples", "drop", 320, "law", ((0, 9),))])
    checkpoint(train(paths, 30))
    return Made(paths, web, law)


def test_a_dataset_added_on_the_way_stays_though_another_one_was_rebuilt(tmp_path: Path) -> None:
    one, two = _added(tmp_path / "one"), _added(tmp_path / "two")
    elsewhere = make_dataset(tmp_path / "one", NEW_WEB, name="new")
    wanted = remap_run(one.paths.root, [str(elsewhere.path), str(one.law.path)])
    _replaced(two)
    found = remap_run(two.paths.root, [str(two.web.path), str(two.law.path)])
    assert found["start"] == wanted["start"]
    assert found["start"]["carried"]["law"] > 0
    assert found["left_behind"] == []
    digests = [train(made.paths, 30).ledger_N["token_digest"].tolist() for made in (one, two)]
    assert digests[0] == digests[1]


def test_a_dataset_added_on_the_way_that_was_rebuilt_is_no_longer_the_same(tmp_path: Path) -> None:
    made = _added(tmp_path / "run")
    wanted = open_run(made.paths.root).plan.raw_before(560)
    shutil.rmtree(made.law.path)
    make_dataset(tmp_path / "run", DatasetSpec(**{**vars(LAW), "seed": 4}), name="law")
    found = remap_run(made.paths.root, [str(made.web.path), str(made.law.path)])
    assert found["start"]["carried"] == {name: wanted[name] for name in ("web", "code")}
    train(made.paths, 2)


def test_what_is_no_longer_read_is_named(tmp_path: Path) -> None:
    made = _run(tmp_path / "run", _plain, 8)
    result = CliRunner().invoke(group, ["remap", str(made.paths.root), "--dataset", str(made.web.path), "--plan"])
    assert result.exit_code == 0, result.output
    assert "no longer read, as no Dataset given holds it: law" in result.output
    _replaced(made)
    words = ["remap", str(made.paths.root), "--dataset", str(made.web.path), "--json"]
    assert json.loads(CliRunner().invoke(group, words).output)["vanished"] == ["law"]
    (event,) = [event for event in read_events(made.paths) if event["kind"] == "remap"]
    assert event["vanished"] == ["law"]


def test_the_command_that_is_printed_goes_over_to_all_datasets(tmp_path: Path) -> None:
    made = _run(tmp_path / "a run", _plain, 8)
    _replaced(made)
    with pytest.raises(RefusedError, match="TR-RUN-DATASET") as caught:
        open_run(made.paths.root)
    words = shlex.split(caught.value.next_command or "")
    assert words[:3] == ["tokenreel", "remap", str(made.paths.root)]
    result = CliRunner().invoke(group, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["vanished"] == []
    view = open_run(made.paths.root)
    assert view.sources.names == ("web", "code", "law")


def test_tokens_that_mean_something_else_are_refused_though_the_old_data_are_gone(tmp_path: Path) -> None:
    made = _run(tmp_path / "run", _plain, 8)
    shutil.rmtree(made.web.path)
    shutil.rmtree(made.law.path)
    longer = make_dataset(tmp_path, DatasetSpec(**{**vars(WEB), "seq_len": 64}), name="longer")
    with pytest.raises(RefusedError, match="sequence length 64"):
        remap_run(made.paths.root, [str(longer.path)])
