"""Checkpoints on disk: exact round trip, every flipped bit found, nothing run from a pickle, retention, torn saves."""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import exit_code_of

from loader.errors import DamageError
from loader.sealed import read_sealed, write_sealed
from train import checkpoint as module
from train import saver as saver_module
from train.checkpoint import (
    Checkpoint,
    CheckpointFacts,
    list_checkpoints,
    load_tensors,
    open_checkpoint,
    pin,
    pin_for_alarm,
    remove_unfinished,
    save_checkpoint,
    unpin_alarms,
    verify_checkpoint,
)
from train.dcp_storage import load_index
from train.retention import remove_older
from train.saver import Saver
from train.world import World


def make_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.weight": torch.randn(5, 7, generator=generator),
        "model.half": torch.randn(3, generator=generator).bfloat16(),
        "optimizer.step": torch.tensor(float(seed)),
        "random.cpu": torch.randint(0, 255, (40,), generator=generator, dtype=torch.uint8),
    }


def facts(step: int, number: int = 0, branch: int = 0) -> CheckpointFacts:
    state = {"spikes": {"loss": [1.5, float("nan"), 0.1], "window": None}}
    return CheckpointFacts(step, branch, 0, number, {"next_position": step * 8}, {"data": 1}, state)


def save(folder: Path, step: int, number: int = 0) -> Checkpoint:
    return save_checkpoint(folder, make_tensors(step), facts(step, number))


def load(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    tensors = {name: torch.zeros_like(tensor) for name, tensor in make_tensors().items()}
    verify_checkpoint(checkpoint)
    load_tensors(checkpoint, tensors)
    return tensors


def test_round_trip_is_exact(tmp_path: Path) -> None:
    save(tmp_path, 100)
    (found,), damaged = list_checkpoints(tmp_path)
    assert not damaged
    assert found.path.name == "step_000100"
    assert all(torch.equal(x, y) for x, y in zip(load(found).values(), make_tensors(100).values(), strict=True))
    assert repr(found.facts) == repr(facts(100))
    assert sorted(found.files) == sorted({p.name for p in found.path.iterdir()} - {"COMMIT.json"})


@pytest.mark.parametrize("limit_bytes", [1, 200, 3000])
def test_a_file_system_that_refuses_is_an_os_error_and_leaves_nothing(tmp_path: Path, limit_bytes: int) -> None:
    """A true refusal inside DCP's writer, which wraps it in an exception that no ``except Exception`` sees."""
    tensors = {"model.weight": torch.zeros(100, 100)}

    def refused() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="File too large"):
            save_checkpoint(tmp_path, tensors, facts(1))

    assert exit_code_of(refused) == 0
    assert not list(tmp_path.iterdir())


def test_a_part_of_the_tensors_can_be_loaded(tmp_path: Path) -> None:
    weight = torch.zeros(5, 7)
    load_tensors(save(tmp_path, 3), {"model.weight": weight})
    assert torch.equal(weight, make_tensors(3)["model.weight"])


def test_two_saves_of_a_step_get_two_folders(tmp_path: Path) -> None:
    first, second = save(tmp_path, 5, 0), save(tmp_path, 5, 1)
    assert [first.path.name, second.path.name] == ["step_000005", "step_000005-2"]
    verify_checkpoint(first)
    verify_checkpoint(second)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """A bit of every byte of the record, and many of each data file."""
    path = save(tmp_path, 7).path
    rng = random.Random(0)
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        every = file.name == "COMMIT.json"
        bytes_to_flip = range(len(data)) if every else [rng.randrange(len(data)) for _ in range(100)]
        for bit in (8 * byte + rng.randrange(8) for byte in bytes_to_flip):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << (bit % 8)
            file.write_bytes(changed)
            with pytest.raises(DamageError) as caught:
                verify_checkpoint(open_checkpoint(path))
            assert str(file) in str(caught.value.place)
        file.write_bytes(data)
    verify_checkpoint(open_checkpoint(path))


@pytest.mark.parametrize("change", ["truncate", "extend", "remove"])
def test_other_damage_is_found(tmp_path: Path, change: str) -> None:
    found = save(tmp_path, 7)
    for name in found.files:
        file = found.path / name
        data = file.read_bytes()
        if change == "remove":
            file.unlink()
        else:
            file.write_bytes(data[:-1] if change == "truncate" else data + b"\0")
        with pytest.raises(DamageError, match=r"TR-CHECKPOINT-(HASH|MISSING)"):
            verify_checkpoint(found)
        file.write_bytes(data)


def test_a_folder_without_its_record_is_damage_and_stays(tmp_path: Path) -> None:
    (save(tmp_path, 7).path / "COMMIT.json").unlink()
    good, damaged = list_checkpoints(tmp_path)
    assert not good
    assert len(damaged) == 1
    assert "step_000007" in str(damaged[0].place)
    assert (tmp_path / "step_000007").is_dir()


class Evil:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return os.system, ("touch pwned",)


def replace_file(found: Checkpoint, name: str, data: bytes) -> Checkpoint:
    """As an attacker who also rewrites the record would."""
    from loader.files import digest_bytes

    (found.path / name).write_bytes(data)
    record = read_sealed(found.path / "COMMIT.json")
    record["files"][name] = [len(data), digest_bytes(data)]
    write_sealed(found.path / "COMMIT.json", record)
    return open_checkpoint(found.path)


@pytest.mark.parametrize("payload", ["class", "builtin", "nested", "garbage", "string"])
def test_a_crafted_index_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, payload: str) -> None:
    monkeypatch.chdir(tmp_path)
    found = save(tmp_path, 7)
    index = pickle.loads((found.path / ".metadata").read_bytes())
    if payload == "nested":
        index.planner_data = Evil()
    data = {
        "class": pickle.dumps(Evil()),
        "builtin": b"cbuiltins\neval\n(V1+1\ntR.",
        "nested": pickle.dumps(index),
        "garbage": b"\x80\x05garbage",
        "string": pickle.dumps("an index?"),
    }[payload]
    crafted = replace_file(found, ".metadata", data)
    with pytest.raises(DamageError, match="TR-CHECKPOINT-PICKLE"):
        load(crafted)
    assert not (tmp_path / "pwned").exists()


def test_an_index_with_byte_entries_or_foreign_files_is_refused(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    found = save(tmp_path, 7)
    data = (found.path / ".metadata").read_bytes()
    index = pickle.loads(data)
    index.state_dict_metadata["model.weight"] = BytesStorageMetadata()
    with pytest.raises(DamageError, match="TR-CHECKPOINT-PICKLE"):
        load_index(pickle.dumps(index), "here")
    index = pickle.loads(data)
    for info in index.storage_data.values():
        info.relative_path = "../step_000008/__0_0.distcp"
    with pytest.raises(DamageError, match="outside"):
        load(replace_file(found, ".metadata", pickle.dumps(index)))


def test_tensor_data_is_no_pickle_either(tmp_path: Path) -> None:
    """A data file whose tensors were replaced by a pickled object: torch reads it with weights_only."""
    found = save(tmp_path, 7)
    index = pickle.loads((found.path / ".metadata").read_bytes())
    torch.save(Evil(), tmp_path / "evil.pt")
    data = (tmp_path / "evil.pt").read_bytes()
    for info in index.storage_data.values():
        info.offset, info.length = 0, len(data)
    found = replace_file(found, ".metadata", pickle.dumps(index))
    found = replace_file(found, "__0_0.distcp", data)
    with pytest.raises((DamageError, pickle.UnpicklingError)):
        load(found)


def test_another_model_is_refused(tmp_path: Path) -> None:
    found = save(tmp_path, 7)
    with pytest.raises(DamageError, match="TR-CHECKPOINT-TENSORS") as caught:
        load_tensors(found, {"model.other": torch.zeros(3)})
    assert "FrameSummary" not in str(caught.value)
    with pytest.raises(DamageError, match="TR-CHECKPOINT-TENSORS") as caught:
        load_tensors(found, {"model.weight": torch.zeros(5, 8)})
    assert "FrameSummary" not in str(caught.value)


def test_retention_keeps_what_it_must(tmp_path: Path) -> None:
    made = [save(tmp_path, step, step) for step in range(1, 7)]
    for kept in made[1:3]:
        pin_for_alarm(kept)
    pin(made[2])
    removed = remove_older(tmp_path, made[-2:])
    assert [path.name for path in removed] == ["step_000001", "step_000004"]
    assert [found.facts.step for found in list_checkpoints(tmp_path)[0]] == [2, 3, 5, 6]
    unpin_alarms(tmp_path)
    assert [path.name for path in remove_older(tmp_path, made[-2:])] == ["step_000002"]
    assert [found.facts.step for found in list_checkpoints(tmp_path)[0]] == [3, 5, 6]
    assert not list(tmp_path.glob(".tmp*"))


def test_retention_removes_nothing_when_the_newest_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that gives back other bytes than it took: the saver reads them before anything older goes."""
    for step in (1, 2):
        save(tmp_path, step, step)
    whole = saver_module.save_checkpoint

    def damaged(*args: Any) -> Checkpoint:
        made = whole(*args)
        with open(made.path / "__0_0.distcp", "r+b") as file:
            file.write(b"\xff")
        return made

    monkeypatch.setattr(saver_module, "save_checkpoint", damaged)
    saver = Saver(tmp_path, World())
    saver.save(make_tensors(3), facts(3, 3), lambda checkpoint: remove_older(tmp_path, [checkpoint]))
    with pytest.raises(DamageError, match="TR-CHECKPOINT-HASH"):
        saver.wait()
    assert len(list_checkpoints(tmp_path)[0]) == 3
    monkeypatch.undo()
    saver.save(make_tensors(4), facts(4, 4), lambda checkpoint: remove_older(tmp_path, [checkpoint]))
    saver.wait()
    assert [found.facts.step for found in list_checkpoints(tmp_path)[0]] == [4]


def test_a_full_disk_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save(tmp_path, 1)
    for moment in ("write_sealed", "fsync_folder"):
        with monkeypatch.context() as patch:
            patch.setattr(module, moment, lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                save(tmp_path, 2)
        verify_checkpoint(first)
        assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


@pytest.mark.parametrize("moment", ["save", "write_sealed", "fsync_folder", "rename"])
def test_killed_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Killed before each phase: the older checkpoint stays, the new one is whole or was never there."""
    save(tmp_path, 1)
    target = module.os if moment == "rename" else module
    monkeypatch.setattr(target, moment, lambda *args, **options: os.kill(os.getpid(), 9))
    assert exit_code_of(lambda: save(tmp_path, 2)) == -9
    monkeypatch.undo()
    good, damaged = list_checkpoints(tmp_path)
    assert not damaged
    assert [found.facts.step for found in good] == [1]
    assert len(remove_unfinished(tmp_path)) == 1
    assert save(tmp_path, 2).path.name == "step_000002"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]


def test_killed_while_removing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [save(tmp_path, step, step) for step in range(1, 4)]
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: os.kill(os.getpid(), 9))
    assert exit_code_of(lambda: remove_older(tmp_path, made[-1:])) == -9
    monkeypatch.undo()
    good, damaged = list_checkpoints(tmp_path)
    assert not damaged
    assert [found.facts.step for found in good] == [3]
    assert len(remove_unfinished(tmp_path)) == 2
