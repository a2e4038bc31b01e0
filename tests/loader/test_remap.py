"""Remap: a run over data that truly changed goes on; what was read before stays known, or is said to be gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, roll_back, train

from loader.cli import group
from loader.errors import ConfigError, DamageError, RefusedError, TokenreelError
from loader.order import SkipEntry
from loader.remap import remap_run
from loader.run_folder import RunPaths, read_config, read_events, write_config
from loader.run_past import documents_over_time, positions_over_time, step_over_time, view_before
from loader.run_view import RunView, open_run
from loader.runs import append_skips, read_branches
from loader.stream.batch import read_batch

SPEC = DatasetSpec(documents={"web": 40, "code": 20}, seq_len=32, samples_per_shard=12)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("remap"), SPEC)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(**{**vars(SPEC), "documents": {"web": 34, "code": 22}, "seed": 3, "salt": 9})
    return make_dataset(tmp_path_factory.mktemp("remap-other"), spec)


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("remap-extra"), DatasetSpec(**{**vars(SPEC), "documents": {"law": 25}}))


def _epoch(view: RunView, source: str, stop: int) -> list[int]:
    """Samples of a source from the plan's start to ``stop``, in order."""
    assert view.force.start is not None
    refs = view.plan.samples(np.arange(view.force.start.position, stop))
    return [int(sample) for sample in refs.sample_N[refs.source_N == view.sources.names.index(source)]]


def test_a_run_goes_on_with_other_data(made: MadeDataset, other: MadeDataset, tmp_path: Path) -> None:
    paths = make_run(tmp_path, [made])
    before = train(paths, 9)
    result = remap_run(paths.root, [str(other.path)])
    assert (result["branch"], result["step"], result["position"], result["undone_steps"]) == (1, 9, 72, 0)
    counts = {name: one["positions"] for name, one in result["consumed"].items()}
    refs = before.plan.samples(np.arange(72))
    names, numbers = np.unique(refs.source_N, return_counts=True)
    assert counts == {before.sources.names[n]: k for n, k in zip(names.tolist(), numbers.tolist(), strict=True)}
    (event,) = [event for event in read_events(paths) if event["kind"] == "remap"]
    assert (event["branch"], event["step"], event["digests"], event["before"]) == (1, 9, [other.digest], [made.digest])

    view = train(paths, 6)
    assert (view.branch.number, view.num_steps, view.next_position) == (1, 15, 120)
    assert view.sources.digests == (other.digest,)
    for name in view.sources.names:  # from the start of the order: nothing lost or doubled within an epoch
        num = int(view.sources.shard_samples(name).sum())
        samples = _epoch(view, name, 4000)
        assert sorted(samples[:num]) == list(range(num))
    for step in range(15):
        one, found = step_over_time(view, step)
        assert found["matches_ledger"] is True
        assert one.sources.digests == ((made if step < 9 else other).digest,)
    with pytest.raises(ConfigError, match="TR-PLAN-BEFORE"):
        read_batch(view.plan, view.sources, 8)


def test_the_old_part_is_answered_by_the_old_data_or_said_to_be_gone(
    made: MadeDataset, other: MadeDataset, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    old = MadeDataset(**{**vars(made), "path": copy})
    paths = make_run(tmp_path, [old])
    train(paths, 9)
    remap_run(paths.root, [str(other.path)])
    view = train(paths, 6)
    parts = positions_over_time(view, 60, 90)
    assert [part["positions"] for _, part in parts] == [[60, 72], [72, 90]]
    read = [segment["document"] for _, part in parts for one in part["samples"] for segment in one["segments"]]
    first, last = int(read[0], 16), int(read[-1], 16)
    assert first in made.documents
    assert last in other.documents
    for document in (first, last):
        found = documents_over_time(view, document, view.next_position)
        steps = {
            step
            for step in range(15)
            for sample in step_over_time(view, step)[1]["samples"]
            if any(segment["document"] == f"{document:016x}" for segment in sample["segments"])
        }
        assert found["steps"] == sorted(steps)
        assert "unknown_before" not in found
    shutil.rmtree(copy)
    assert open_run(paths.root).next_position == 120
    assert documents_over_time(view, last, view.next_position)["unknown_before"] == 9
    with pytest.raises(ConfigError, match="TR-REMAP-GONE"):
        step_over_time(view, 3)
    with pytest.raises(ConfigError, match="TR-REMAP-GONE"):
        positions_over_time(view, 60, 90)
    assert step_over_time(view, 9)[1]["matches_ledger"] is True
    with pytest.raises(TokenreelError):
        open_run(paths.root, 0)


def test_refused_where_nothing_changed(made: MadeDataset, extra: MadeDataset, tmp_path: Path) -> None:
    paths = make_run(tmp_path, [made])
    semantic = read_config(paths)
    semantic["data"]["mixture"] = [{"start": 0, "weights": {"web": 1, "code": 1}}]
    write_config(paths, semantic)
    with pytest.raises(RefusedError, match="TR-REMAP-SAME"):  # nothing was read yet: any data will do
        remap_run(paths.root, [str(made.path)])
    train(paths, 4)
    with pytest.raises(RefusedError, match="TR-REMAP-SAME"):
        remap_run(paths.root, [str(made.path)])
    with pytest.raises(RefusedError, match="TR-REMAP-SAME"):  # a further Dataset needs no remap
        remap_run(paths.root, [str(made.path), str(extra.path)])
    with pytest.raises(ConfigError, match="TR-RUN-DATASET"):
        remap_run(paths.root, [str(tmp_path / "nowhere")])
    with pytest.raises(ConfigError, match="TR-CONFIG-SOURCE"):
        remap_run(paths.root, [str(extra.path)])
    assert len(read_branches(paths)) == 1


def test_tokens_that_mean_something_else_are_refused(made: MadeDataset, tmp_path: Path) -> None:
    paths = make_run(tmp_path, [made])
    train(paths, 2)
    longer = make_dataset(tmp_path, DatasetSpec(**{**vars(SPEC), "seq_len": 64}), name="longer")
    with pytest.raises(RefusedError, match="sequence length 64"):
        remap_run(paths.root, [str(longer.path)])


def test_an_unchanged_dataset_goes_on_in_its_order_drops_included(
    made: MadeDataset, other: MadeDataset, extra: MadeDataset, tmp_path: Path
) -> None:
    paths = make_run(tmp_path, [made, extra])
    train(paths, 3)
    law = SkipEntry("samples", "drop", 24, "law", ((0, 9),))
    append_skips(paths, [law, SkipEntry("samples", "drop", 24, "web", ((1, 5),))])
    old = train(paths, 8)
    result = remap_run(paths.root, [str(other.path), str(extra.path)])
    assert [one["number"] for one in result["left_behind"]] == [2]
    assert set(result["start"]["carried"]) == {"law"}
    view = open_run(paths.root)
    number = old.sources.names.index("law")
    refs = old.plan.samples(np.arange(88))
    was = [int(sample) for sample in refs.sample_N[refs.source_N == number]]
    ahead = _epoch(view, "law", 6000)
    # the old plan read on: what it would have read next is what the new one reads
    refs = old.plan.samples(np.arange(88, 3000))
    would = [int(sample) for sample in refs.sample_N[refs.source_N == number]]
    length = min(len(would), len(ahead))
    assert was
    assert length > 100
    assert ahead[:length] == would[:length]
    position = int(view.plan.positions_of_sample("law", ahead[0], 6000)[0])
    assert int(view.plan.samples(np.array([position])).sample_N[0]) == ahead[0]
    # every reading of every sample lies behind the take-over: what was read before is the old plan's to say
    refs, law = view.plan.samples(np.arange(88, 6000)), view.sources.names.index("law")
    sample_N = np.arange(int(view.sources.shard_samples("law").sum()))
    found, which = view.plan.positions_of_samples("law", sample_N, 6000)
    assert found.tolist() == (88 + np.flatnonzero(refs.source_N == law)).tolist()
    assert sample_N[which].tolist() == refs.sample_N[found - 88].tolist()


def test_rolled_back_behind_a_remap_the_old_data_hold_again(
    made: MadeDataset, other: MadeDataset, tmp_path: Path
) -> None:
    paths = make_run(tmp_path, [made])
    first = train(paths, 9).ledger_N["token_digest"].tolist()
    remap_run(paths.root, [str(other.path)])
    train(paths, 4)
    roll_back(paths, 12)
    assert open_run(paths.root).sources.digests == (other.digest,)
    view = roll_back(paths, 5)
    assert view.sources.digests == (made.digest,)
    assert train(paths, 4).ledger_N["token_digest"].tolist() == first
    again = remap_run(paths.root, [str(other.path)])
    assert (again["branch"], again["step"]) == (4, 9)
    assert view_before(open_run(paths.root)).branch.number == 3


def test_a_run_without_checkpoints_or_old_data_is_not_guessed_at(
    made: MadeDataset, other: MadeDataset, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made.path, copy)
    paths = make_run(tmp_path, [MadeDataset(**{**vars(made), "path": copy})])
    train(paths, 3)
    shutil.rmtree(copy)
    with pytest.raises(DamageError, match="TR-REMAP-UNKNOWN"):
        remap_run(paths.root, [str(other.path)])


def test_killed_between_the_two_writes_it_is_done(made: MadeDataset, other: MadeDataset, tmp_path: Path) -> None:
    paths = make_run(tmp_path, [made])
    train(paths, 3)
    before = read_config(paths)
    remap_run(paths.root, [str(other.path)])
    write_config(paths, before)
    assert open_run(paths.root).sources.digests == (other.digest,)
    assert open_run(paths.root, 0).sources.digests == (made.digest,)


def test_the_verb(made: MadeDataset, other: MadeDataset, tmp_path: Path) -> None:
    paths = make_run(tmp_path, [made])
    train(paths, 3)
    words = ["remap", str(paths.root), "--dataset", str(other.path)]
    shown = CliRunner().invoke(group, [*words, "--plan"])
    assert shown.exit_code == 0, shown.output
    assert "would be branch 1, from step 3, position 24 on" in shown.output
    assert len(read_branches(paths)) == 1
    done = json.loads(CliRunner().invoke(group, [*words, "--json"]).output)
    assert (done["written"], done["branch"]) == (True, 1)
    train(paths, 2)
    for step in range(5):
        found = CliRunner().invoke(group, ["locate", str(paths.root), "--step", str(step), "--json"])
        assert json.loads(found.output)["matches_ledger"] is True
    history = CliRunner().invoke(group, ["history", str(paths.root)])
    assert "branch 1 from branch 0 at step 3: remap" in history.output
    assert RunPaths(paths.root).config.exists()


def test_what_a_remap_left_behind_acts_again_on_its_own_data_only(
    made: MadeDataset, other: MadeDataset, extra: MadeDataset, tmp_path: Path
) -> None:
    paths = make_run(tmp_path, [made, extra])
    train(paths, 3)
    web = SkipEntry("samples", "drop", 24, "web", ((1, 5),))
    append_skips(paths, [web])
    train(paths, 2)
    law = make_dataset(tmp_path, DatasetSpec(**{**vars(SPEC), "documents": {"law": 19}, "seed": 5}), name="law")
    for datasets, left in (((other, extra), [1]), ((other, law), [1]), ((made, law), [])):
        result = remap_run(paths.root, [str(one.path) for one in datasets])
        assert [one["number"] for one in result["left_behind"]] == left
        view = train(paths, 2)
        assert view.plan.skips.entries == (() if left else (web,))


def test_rolled_back_behind_a_remap_entries_made_after_it_are_left(
    made: MadeDataset, other: MadeDataset, tmp_path: Path
) -> None:
    paths = make_run(tmp_path, [made])
    train(paths, 4)
    remap_run(paths.root, [str(other.path)])
    train(paths, 2)
    web = SkipEntry("samples", "drop", 48, "web", ((1, 5),))
    append_skips(paths, [web])
    assert open_run(paths.root).plan.skips.entries == (web,)
    assert roll_back(paths, 5).plan.skips.entries == (web,)
    assert roll_back(paths, 3).plan.skips.entries == ()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(**{**vars(SPEC), "documents": {"web": 15, "code": 15}, "seed": 5, "salt": 9})
    return make_dataset(tmp_path_factory.mktemp("remap-small"), spec)


def _bounded(paths: RunPaths, weights: dict[str, float], **exhaustion: object) -> dict[str, Any]:
    config = read_config(paths)
    config["data"].update(mixture=[{"start": 0, "weights": weights}], exhaustion=exhaustion)
    write_config(paths, config)
    return config


@pytest.mark.parametrize("policy", ["repeat", "stop", "renormalise"])
def test_what_was_read_of_the_old_data_counts_for_nothing(
    policy: str, made: MadeDataset, small: MadeDataset, extra: MadeDataset, tmp_path: Path
) -> None:
    """The budget of replaced data begins at the remap, though more was read of the old; that of data that stayed goes
    on."""
    paths = make_run(tmp_path, [made, extra])
    sizes = {name: int(small.open().shard_samples(name).sum()) for name in ("web", "code")}
    sizes["law"] = int(extra.open().shard_samples("law").sum())
    most = {name: 2 * size for name, size in sizes.items()}
    total = 320 + 2 * most["web"] - 20 if policy == "repeat" else 1000
    weights = {"web": 2, "code": 1, "law": 1}
    config = _bounded(paths, weights, policy=policy, max_epochs=dict.fromkeys(sizes, 2), total=total)
    old = train(paths, 40).plan.raw_before(320)
    assert old["web"] > most["web"]
    remap_run(paths.root, [str(small.path), str(extra.path)])
    plan = train(paths, 2).plan
    refs = plan.samples(np.arange(320, plan.config.stop_position))
    counts = dict(zip(plan.source_names, np.bincount(refs.source_N, minlength=3).tolist(), strict=True))
    used = {**counts, "law": counts["law"] + old["law"]}
    assert all(used[name] <= most[name] for name in sizes)
    if policy == "repeat":
        assert plan.config.stop_position == total
        config["data"]["datasets"] = read_config(paths)["data"]["datasets"]
        config["data"]["exhaustion"]["total"] = total + 40
        write_config(paths, config)
        with pytest.raises(RefusedError, match="TR-MIXTURE-EXHAUSTED"):
            open_run(paths.root)
    elif policy == "stop":
        assert used["web"] == most["web"]
    else:
        assert all(most[name] - used[name] < 256 for name in sizes)
    assert plan.config.start is not None
    assert set(plan.config.start.carried) == {"law"}


def test_a_budget_that_is_used_up_leaves_no_plan_behind_a_remap(
    made: MadeDataset, other: MadeDataset, extra: MadeDataset, tmp_path: Path
) -> None:
    paths = make_run(tmp_path, [made, extra])
    epochs = {"law": 1, "web": 90, "code": 90}
    _bounded(paths, {"web": 1, "code": 1, "law": 3}, policy="stop", max_epochs=epochs, total=None)
    train(paths, open_run(paths.root).plan.num_steps)
    with pytest.raises(RefusedError, match="TR-PLAN-EMPTY"):
        remap_run(paths.root, [str(other.path), str(extra.path)])
    assert len(read_branches(paths)) == 1


def test_a_dataset_added_on_the_way_goes_on_in_its_order(
    made: MadeDataset, other: MadeDataset, extra: MadeDataset, tmp_path: Path
) -> None:
    """It stands in the configuration, not in what the run began with; the remap changes the other one alone."""
    paths = make_run(tmp_path, [made])
    semantic = read_config(paths)
    semantic["data"]["mixture"] = [{"start": 0, "weights": {"web": 1, "code": 1}}]
    write_config(paths, semantic)
    train(paths, 3)
    semantic["data"]["mixture"].append({"start": 256, "weights": {"web": 1, "law": 1}})
    semantic["data"]["datasets"] = [*semantic["data"]["datasets"], str(extra.path)]
    write_config(paths, semantic)
    old = train(paths, 40)
    assert old.next_position > 256
    result = remap_run(paths.root, [str(other.path), str(extra.path)])
    assert set(result["start"]["carried"]) == {"law"}
    assert set(result["consumed"]) == {"web", "code", "law"}
    number, stop = old.sources.names.index("law"), old.next_position + 400
    refs = old.plan.samples(np.arange(old.next_position, stop))
    assert _epoch(open_run(paths.root), "law", stop) == refs.sample_N[refs.source_N == number].tolist()
