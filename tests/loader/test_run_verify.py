"""A run's folder: any flipped bit of what is covered is found, the file named; what a killed process leaves is not."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.runs import make_run, roll_back, train

from loader.errors import ConfigError
from loader.files import digest_bytes
from loader.order import SkipEntry
from loader.run_verify import inspect_run, verify_run
from loader.runs import append_event
from loader.sealed import write_sealed


def make_checkpoint(folder: Path, form: str) -> None:
    folder.mkdir(parents=True)
    contents = {".metadata": b"index" * 10, "__0_0.distcp": bytes(range(256)), "__1_0.distcp": b"x"}
    files: dict[str, object] = {}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        digest = digest_bytes(data)
        files[name] = [len(data), digest] if form == "pair" else {"size_bytes": len(data), "xxh3_128": digest}
    write_sealed(folder / "COMMIT.json", {"files": files, "step": 3})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run_verify")
    made = make_dataset(folder, DatasetSpec(documents={"web": 30, "code": 12}, seq_len=32))
    paths = make_run(folder, [made])
    train(paths, 6)
    roll_back(paths, 3, SkipEntry("positions", "drop", 24, None, ((30, 34),), reason="noise"))
    train(paths, 3)
    append_event(paths, "alarm", 0, 5, z=9.5)
    (paths.root / "trials").mkdir()
    write_sealed(paths.root / "trials" / "0-3-6.json", {"branch": 0, "found": {"decision": "not_data"}})
    make_checkpoint(paths.checkpoints / "step_000003", "pair")
    make_checkpoint(paths.checkpoints / "step_000006", "object")
    return paths.root


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_an_untouched_run_is_intact(run: Path) -> None:
    assert verify_run(run) == []
    described = inspect_run(run)
    assert described["checkpoints"] == ["step_000003", "step_000006"]
    assert described["num_skips"] == 1
    assert [branch["number"] for branch in described["branches"]] == [0, 1]
    assert described["num_steps"] == 6


def test_any_flipped_bit_is_found_and_the_file_named(run: Path) -> None:
    rng = random.Random(1)
    names = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    assert {str(name) for name in names} >= {
        "run.json",
        "config.yaml",
        "branches.json",
        "events.jsonl",
        "skips/000001.json",
        "ledger/0/0.bin",
        "ledger/1/0.bin",
        "trials/0-3-6.json",
        "checkpoints/step_000003/COMMIT.json",
        "checkpoints/step_000003/.metadata",
    }
    for name in names:
        file = run / name
        data = file.read_bytes()
        for offset in [0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(25))]:
            changed = bytearray(data)
            changed[offset] ^= 1 << rng.randrange(8)
            file.write_bytes(changed)
            found = [finding.file.split(" ")[0] for finding in verify_run(run) if finding.severity == "damage"]
            assert str(name) in found, (name, offset, changed[offset], found)
        file.write_bytes(data)
    assert verify_run(run) == []


def test_missing_files(run: Path) -> None:
    for name in (
        "config.yaml",
        "branches.json",
        "skips/000001.json",
        "checkpoints/step_000006/__0_0.distcp",
        "checkpoints/step_000006/COMMIT.json",
    ):
        data = (run / name).read_bytes()
        (run / name).unlink()
        if name.startswith("skips"):  # its branch carries the entry, so nothing is lost
            assert verify_run(run) == []
        else:
            assert name in [finding.file for finding in verify_run(run) if finding.severity == "damage"]
        (run / name).write_bytes(data)
    (run / "run.json").unlink()
    with pytest.raises(ConfigError):
        inspect_run(run)


def test_leftovers_and_foreign_files_are_no_damage(run: Path) -> None:
    make_checkpoint(run / "checkpoints" / ".tmp-1-step_000009", "pair")
    (run / "checkpoints" / "pinned").mkdir()
    (run / "checkpoints" / "pinned" / "step_000003").write_bytes(b"")
    (run / "checkpoints" / "step_000003" / "notes").write_bytes(b"x")
    (run / "todo.txt").write_bytes(b"x")
    (run / "metrics.jsonl").write_bytes(b"{}\n")
    findings = verify_run(run)
    assert {finding.severity for finding in findings} == {"unnamed"}
    assert [finding.file for finding in findings] == [
        "checkpoints/.tmp-1-step_000009",
        "checkpoints/step_000003/notes",
        "todo.txt",
    ]


def test_a_commit_that_points_outside_is_damage(run: Path) -> None:
    (run / "secret").write_bytes(b"x")
    for name in ("../../secret", "/etc/passwd", "", "."):
        folder = run / "checkpoints" / "step_000003"
        write_sealed(folder / "COMMIT.json", {"files": {name: [1, "0" * 32]}})
        assert any(finding.severity == "damage" for finding in verify_run(run)), name
    for files in ([], {"a": 5}, {"a": [1]}, None):
        write_sealed(folder / "COMMIT.json", {"files": files})
        found = [finding.code for finding in verify_run(run) if finding.severity == "damage"]
        assert found == ["TR-CHECKPOINT-FORMAT"], files


def test_a_sealed_skip_entry_that_means_nothing_is_damage(run: Path) -> None:
    entry = {**SkipEntry("source", "mask", 48, "web").to_json(), "stamp": "48"}
    write_sealed(run / "skips" / "000002.json", {"number": 2, "entry": entry})
    assert ("TR-SKIP-FILE", "skips/000002.json") in [(finding.code, finding.file) for finding in verify_run(run)]
