"""The folder of a run: branches and cuts survive being killed, old branches keep what they saw, bits are found."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.runs import make_run, roll_back, train

from loader.errors import ConfigError, DamageError, RefusedError
from loader.ledger import LedgerRecord
from loader.order import SkipEntry
from loader.run_view import open_run
from loader.runs import (
    RunPaths,
    append_event,
    append_skips,
    create_run,
    ledger_of,
    lock_run,
    materialise_skips,
    next_position,
    open_branch,
    open_ledger,
    read_branches,
    read_config,
    read_events,
    read_skips,
    steps_on_record,
)
from loader.stream.batch import read_batch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 40, "code": 20}, seq_len=32, samples_per_shard=12)
    return make_dataset(tmp_path_factory.mktemp("runs"), spec)


@pytest.fixture
def run(made: MadeDataset, tmp_path: Path) -> RunPaths:
    return make_run(tmp_path, [made])


def _cut(stamp: int, first: int = 0, width: int = 10) -> SkipEntry:
    ranges = ((first, first + width),)
    return SkipEntry("samples", "drop", stamp, "web", ranges, reason="noise", evidence={"z": float("nan")})


def test_a_fresh_run_stands_at_the_start(run: RunPaths) -> None:
    view = open_run(run.root)
    assert (view.num_steps, view.next_position, view.branch.number, view.entries) == (0, 0, 0, ())
    assert view.data.batch[0].global_batch == 8


def test_the_ledger_is_what_the_plan_says(run: RunPaths) -> None:
    view = train(run, 5)
    assert (view.num_steps, view.next_position) == (5, 40)
    view = train(run, 4)
    for step in range(9):
        record = view.ledger_N[step]
        assert int(record["token_digest"]) == read_batch(view.plan, view.sources, step).token_digest
        assert (int(record["first_position"]), int(record["next_position"])) == (8 * step, 8 * step + 8)


def test_a_restart_replaces_the_steps_from_where_it_began(run: RunPaths) -> None:
    train(run, 9)
    view = train(run, 2, from_step=4)
    assert view.ledger_N["attempt"].tolist() == [0] * 4 + [1] * 2
    assert view.next_position == 48


def test_an_attempt_that_skips_a_step_is_damage(run: RunPaths) -> None:
    train(run, 3)
    with pytest.raises(DamageError, match="step 3 is missing"):
        train(run, 2, from_step=4)
    with pytest.raises(DamageError, match="step 3 is missing"):
        ledger_of(run)


def test_branches_keep_what_they_saw(run: RunPaths) -> None:
    old = train(run, 10)
    view = roll_back(run, 6, _cut(48, 0, 90))
    assert (view.branch.number, view.branch.parent, view.next_position, view.num_steps) == (1, 0, 48, 6)
    view = train(run, 6)
    with lock_run(run):
        assert append_skips(run, [_cut(view.next_position, 95)]) == [2]
    view = roll_back(run, 9, _cut(72, 105))
    assert [entry.stamp for entry in view.entries] == [48, 96, 72]
    trunk, first = open_run(run.root, 0), open_run(run.root, 1)
    assert [len(seen.entries) for seen in (trunk, first, view)] == [0, 2, 3]
    assert trunk.num_steps == 10
    assert first.num_steps == 12
    assert view.num_steps == 9
    assert view.ledger_N["branch"].tolist() == [0] * 6 + [1] * 3
    for seen in (trunk, first, view):
        for step in range(seen.num_steps):
            assert read_batch(seen.plan, seen.sources, step).token_digest == int(seen.ledger_N["token_digest"][step])
    assert (trunk.ledger_N["token_digest"] == old.ledger_N["token_digest"]).all()
    assert (trunk.ledger_N["token_digest"][6:10] != first.ledger_N["token_digest"][6:10]).all()


def test_a_rollback_past_a_branch_leaves_from_its_parent(run: RunPaths) -> None:
    train(run, 10)
    roll_back(run, 6)
    train(run, 3)
    view = roll_back(run, 4)
    assert (view.branch.number, view.branch.parent, view.num_steps) == (2, 0, 4)
    assert roll_back(run, 4).branch.parent == 2


def test_bit_equal_to_a_run_that_always_had_the_entries(run: RunPaths, made: MadeDataset, tmp_path: Path) -> None:
    train(run, 10)
    roll_back(run, 6, _cut(48), SkipEntry("source", "mask", 48, "code"))
    cut = train(run, 8)
    fresh = make_run(tmp_path, [made], name="fresh")
    with lock_run(fresh):
        append_skips(fresh, read_skips(run))
    straight = train(fresh, 14)
    assert straight.ledger_N["token_digest"].tolist() == cut.ledger_N["token_digest"].tolist()
    assert straight.ledger_N["label_count"].tolist() == cut.ledger_N["label_count"].tolist()


def test_killed_between_branch_and_files_loses_no_cut(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    train(run, 4)
    with lock_run(run):
        with monkeypatch.context() as patch:
            patch.setattr("loader.runs.materialise_skips", lambda paths: 0)
            open_branch(run, 2, 16, "killed here", [_cut(16), _cut(16, 20)])
        assert not run.skips.exists()
        assert len(read_skips(run)) == 2
        assert append_skips(run, [_cut(24, 30)]) == [3]
    assert sorted(path.name for path in run.skips.iterdir()) == ["000001.json", "000002.json", "000003.json"]
    assert [entry.stamp for entry in read_skips(run)] == [16, 16, 24]
    assert materialise_skips(run) == 0


def test_missing_and_foreign_skip_files_are_damage(run: RunPaths) -> None:
    with lock_run(run):
        append_skips(run, [_cut(0), _cut(0, 20)])
    first, second = (run.skips / f"00000{number}.json" for number in (1, 2))
    first.rename(run.skips / "saved")
    with pytest.raises(DamageError):
        read_skips(run)
    (run.skips / "saved").rename(first)
    shutil.copyfile(first, second)
    with pytest.raises(DamageError, match="not its number"):
        read_skips(run)


def test_every_flipped_bit_is_found(run: RunPaths) -> None:
    train(run, 2)
    roll_back(run, 1, _cut(8))
    for path in (run.identity, run.config, run.branches, run.skips / "000001.json", run.events):
        data = path.read_bytes()
        for at in range(0, len(data), 7):
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            path.write_bytes(bytes(changed))
            with pytest.raises(DamageError, match=path.name):
                open_run(run.root), read_events(run)
        path.write_bytes(data)
    open_run(run.root)


def _hold(root: Path, held: multiprocessing.synchronize.Event) -> None:
    with lock_run(RunPaths(root)):
        held.set()
        held.wait()
        multiprocessing.Event().wait(60)


def test_a_run_has_one_writer_and_a_killed_one_lets_go(run: RunPaths) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    holder = context.Process(target=_hold, args=(run.root, held))
    holder.start()
    try:
        assert held.wait(60)
        with pytest.raises(RefusedError, match="another process"), lock_run(run):
            pass
    finally:
        holder.kill()
        holder.join()
    with lock_run(run):
        pass


def test_a_folder_is_one_run(run: RunPaths, made: MadeDataset, tmp_path: Path) -> None:
    identity = create_run(run, {"run_id": "another", "datasets": []}, {})
    assert identity["run_id"] == "test"
    assert read_config(run)["version"] == 1
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("dear")
    with pytest.raises(RefusedError, match=r"thesis\.txt"):
        create_run(RunPaths(tmp_path / "full"), {}, {})
    with pytest.raises(ConfigError, match="no run"):
        open_run(tmp_path / "full")
    with pytest.raises(ConfigError, match="no branch 3"):
        open_run(run.root, 3)


def test_killed_while_being_made_a_run_is_made_again(run: RunPaths, tmp_path: Path) -> None:
    half = RunPaths(tmp_path / "half")
    half.root.mkdir()
    for name in ("config.yaml", "branches.json"):
        shutil.copyfile(run.root / name, half.root / name)
    create_run(half, {"run_id": "half", "datasets": []}, read_config(run))
    assert len(read_branches(half)) == 1
    assert next_position(read_branches(half)[0], ledger_of(half)) == 0


def test_another_dataset_in_the_same_place_is_refused(made: MadeDataset, tmp_path: Path) -> None:
    mine = make_dataset(tmp_path, made.spec)
    paths = make_run(tmp_path, [mine])
    shutil.rmtree(mine.path)
    with pytest.raises(ConfigError, match="no Dataset"):
        open_run(paths.root)
    make_dataset(tmp_path, DatasetSpec(**{**vars(made.spec), "seed": 9}))
    with pytest.raises(RefusedError, match=mine.digest):
        open_run(paths.root)


def test_run_and_dataset_move_together(made: MadeDataset, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    paths = make_run(tmp_path / "here", [make_dataset(tmp_path / "here", made.spec)])
    before = train(paths, 2)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = open_run(tmp_path / "there" / "run")
    assert moved.sources.digests == before.sources.digests
    assert read_batch(moved.plan, moved.sources, 1).token_digest == int(before.ledger_N["token_digest"][1])


def test_events_are_json_whatever_is_reported(run: RunPaths) -> None:
    train(run, 1)
    (event,) = read_events(run)
    assert event["kind"] == "stop"
    assert json.loads(run.events.read_text())["step"] == 1


def test_an_attempt_whose_first_record_is_damaged_hides_what_it_did_again(made: MadeDataset, tmp_path: Path) -> None:
    """Steps of the attempt before it are not those that the weights came from, though a later attempt follows."""
    paths = make_run(tmp_path, [made])
    for attempt, steps in enumerate([range(10), range(4, 8), range(6, 9)]):
        with open_ledger(paths, 0, attempt, 0) as ledger:
            for step in steps:
                ledger.append(LedgerRecord(step, 8 * step, 8 * step + 8, 5, 7))
    assert ledger_of(paths)["attempt"].tolist() == [0] * 4 + [1] * 2 + [2] * 3
    file = paths.ledger / "0" / "1.bin"
    data = bytearray(file.read_bytes())
    data[64 + 9] ^= 1
    file.write_bytes(bytes(data))
    append_event(paths, "resume", 0, 4, attempt=1)
    with pytest.raises(DamageError, match="TR-LEDGER-RECORD") as caught:
        ledger_of(paths)
    assert f"--to {4}," in (caught.value.next_command or "")
    assert steps_on_record(paths) == 4
