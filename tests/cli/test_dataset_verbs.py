"""``inspect`` and ``verify`` as typed: results on stdout, exit codes 0, 2, 3, 4; nothing heavy imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.cli import main
from loader.sealed import seal, unseal
from loader.settings import child_environment


@pytest.fixture
def made(tmp_path: Path) -> MadeDataset:
    return make_dataset(tmp_path, DatasetSpec(documents={"web": 12, "code": 5}))


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    return int(code or 0), capsys.readouterr().out


def test_inspect_a_dataset(made: MadeDataset, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(capsys, "inspect", made.path)
    assert code == 0
    assert made.digest in out
    assert "web" in out
    code, out = call(capsys, "inspect", made.path, "--json")
    value = json.loads(out)
    assert value["digest"] == made.digest
    assert value["totals"]["num_samples"] == sum(len(samples) for samples in made.samples.values())
    assert value["totals"]["num_documents"] == 17
    assert {source["name"]: source["num_shards"] for source in value["sources"]} == {
        source: len(counts) for source, counts in made.shard_samples.items()
    }


def test_verify_an_intact_dataset_and_foreign_files(made: MadeDataset, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "verify", made.path)[0] == 0
    (made.path / "notes.txt").write_bytes(b"x")
    code, out = call(capsys, "verify", made.path)
    assert (code, "unnamed: notes.txt" in out) == (0, True)
    code, out = call(capsys, "verify", made.path, "--json")
    value = json.loads(out)
    assert (value["intact"], value["not_covered"]) == (True, ["job.json"])
    assert [finding["file"] for finding in value["findings"]] == ["notes.txt"]


def test_verify_names_what_is_damaged_and_exits_with_3(made: MadeDataset, capsys: pytest.CaptureFixture[str]) -> None:
    file = made.path / "web" / "shard.00000.mds"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    code, out = call(capsys, "verify", made.path)
    assert code == 3
    assert "damage: web/shard.00000.mds (sample" in out
    code, out = call(capsys, "verify", made.path, "--json")
    value = json.loads(out)
    assert (code, value["intact"], value["findings"][0]["file"]) == (3, False, "web/shard.00000.mds")


def test_a_bad_self_hash_is_3_a_later_version_4_and_no_dataset_2(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = made.path / "manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(data.replace(b'"salt":7', b'"salt":8'))
    assert call(capsys, "verify", made.path)[0] == 3
    assert call(capsys, "inspect", made.path)[0] == 3
    manifest.write_bytes(seal({**unseal(data, "x"), "version": 9}))
    assert call(capsys, "verify", made.path)[0] == 4
    assert call(capsys, "inspect", made.path)[0] == 4
    (tmp_path / "empty").mkdir()
    for verb in ("inspect", "verify"):
        assert call(capsys, verb, tmp_path / "empty")[0] == 2
        assert call(capsys, verb, tmp_path / "nowhere")[0] == 2


def test_neither_verb_imports_anything_heavy(made: MadeDataset) -> None:
    script = (
        "import sys; from loader.cli import main\n"
        f"codes = [main([verb, {str(made.path)!r}, '--quiet']) for verb in ('inspect', 'verify')]\n"
        "heavy = {'torch', 'pyarrow', 'numba', 'datatrove', 'streaming', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(1 if heavy or any(codes) else 0)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env=child_environment(PYTHONPATH=str(root)),
        timeout=60,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
