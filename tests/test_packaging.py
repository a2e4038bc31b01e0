"""What is installed: lock files, the wheel, and the command in a folder that has its own train.py and loader.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCKS = {
    "default.lock": PROJECT["dependencies"],
    "mosaic.lock": [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["mosaic"],
        *PROJECT["optional-dependencies"]["dev"],
    ],
}


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines()
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)", line) for line in lines if not line.startswith("#")]
    assert all(found), f"{name}: a line that is no exact pin"
    return {canonicalize_name(match[1]): match[2] for match in found if match}


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_a_lock_pins_what_the_project_asks_for(name: str) -> None:
    locked = pins(name)
    for text in LOCKS[name]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), text


def test_the_locks_are_the_two_ends_of_what_datatrove_allows() -> None:
    default, mosaic = pins("default.lock"), pins("mosaic.lock")
    assert default["datatrove"].startswith("0.10.")
    assert mosaic["datatrove"].startswith("0.9.")
    assert "mosaicml-streaming" not in default
    differ = {name for name in default.keys() & mosaic.keys() if default[name] != mosaic[name]}
    assert differ <= {"datatrove", "huggingface-hub", "hf-xet", "tokenizers", "fsspec", "protobuf", "tensorboard"}


def test_the_environment_is_the_locked_one() -> None:
    """What the suite runs on is what the lock says, wherever `make` made the environment."""
    if Path(sys.prefix).name != ".venv-test":
        pytest.skip("not the environment of `make test`")
    from importlib.metadata import version

    assert {name: version(name) for name in pins("mosaic.lock")} == pins("mosaic.lock")


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("tokenreel-*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    metadata = next(name for name in names if name.endswith("dist-info/METADATA")).split("/")[0]
    assert {name.split("/")[0] for name in names} == {"dataprep", "loader", "train", metadata}
    assert {"dataprep/py.typed", "loader/py.typed", "train/py.typed", f"{metadata}/licenses/LICENSE"} <= set(names)
    tracked = run("git", "ls-files", "dataprep", "loader", "train", cwd=ROOT).stdout.split()
    assert set(tracked) <= set(names)


@pytest.mark.slow
def test_the_command_works_beside_a_users_own_train_py_and_loader_py(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # The heavy packages come from this environment; a path in a .pth file is not searched for further .pth files,
    # so the editable installation of this very tree stays out.
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "heavy.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    for name in ("train.py", "loader.py", "dataprep.py"):
        (work / name).write_text("raise SystemExit('the wrong file ran')\n", encoding="utf-8")
    command = folder / "bin" / "tokenreel"
    assert run(command, "--version", cwd=work).stdout.startswith("tokenreel, version 0.1")
    for verb in ("build", "train", "inspect", "report"):
        done = run(command, verb, "--help", cwd=work)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    done = run(command, "inspect", ".", cwd=work)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "TR-PATH-KIND")
    done = run(command, "train", "none.yaml", cwd=work)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "TR-CONFIG-UNREADABLE")
    # With the working folder on the path a loader.py comes before any code of ours; a train.py is caught.
    (work / "loader.py").unlink()
    done = run(command, "--help", cwd=work, PYTHONPATH=".")
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "TR-IMPORT-SHADOWED")
    where = run(python, "-P", "-c", "import loader; print(loader.__file__)", cwd=work).stdout.strip()
    assert where == str(site / "loader" / "__init__.py")
