"""``repack`` and ``import`` as typed: where they may write, and what they say of options that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.cli import main
from loader.shards.dataset import open_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("made"), DatasetSpec(documents={"web": 12, "code": 5}))


@pytest.fixture
def token_set(tmp_path: Path) -> Path:
    np.arange(10).astype("<u2").tofile(tmp_path / "a.ds")
    np.array([3, 10], "<u8").tofile(tmp_path / "a.ds.index")
    return tmp_path / "a.ds"


def verb(name: str, made: MadeDataset, token_set: Path) -> list[str]:
    """The arguments of a verb up to its output."""
    if name == "repack":
        return ["repack", str(made.path), "--seq-len", "16"]
    return ["import", f"web={token_set}", "--format", "datatrove", "--seq-len", "16", "--vocab-size", "300"]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*map(str, arguments), "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["repack", "import"])
def test_where_nothing_may_be_written(
    name: str, made: MadeDataset, token_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "behind").symlink_to(made.path)
    (tmp_path / "odd.work").write_text("x")
    (tmp_path / "mine.work").mkdir()
    (tmp_path / "mine.work/thesis.txt").write_text("x")
    before = sorted(made.path.rglob("*"))
    for out in ("file", "dangling", "link", "behind/in", "behind/web/in", "odd", "mine"):
        code, value = call(capsys, *verb(name, made, token_set), "--output", tmp_path / out)
        assert (out, code, value["error"]["code"]) == (out, 4, "TR-OUTPUT-TAKEN")
    assert sorted(made.path.rglob("*")) == before
    assert (tmp_path / "mine.work/thesis.txt").read_text() == "x"


def test_a_work_folder_is_never_removed_with_what_others_put_there(
    made: MadeDataset, token_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = [*verb("import", made, token_set), "--output", tmp_path / "first", "--workers", 1]
    repacking = ["repack", tmp_path / "first", "--seq-len", 8, "--output", tmp_path / "second", "--workers", 1]
    for arguments, out in ((importing, "first"), (repacking, "second")):
        assert call(capsys, *arguments)[0] == 0
        work = tmp_path / f"{out}.work"
        assert not work.exists()
        work.mkdir()
        (work / "thesis.txt").write_text("x")
        assert call(capsys, *arguments)[0] == 4
        assert (work / "thesis.txt").read_text() == "x"
        open_dataset(tmp_path / out)


@pytest.mark.parametrize("name", ["repack", "import"])
def test_sizes_that_cannot_be_are_usage(
    name: str, made: MadeDataset, token_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"--seq-len": (7, (1 << 24) + 1), "--window-documents": (0, (1 << 24) + 1), "--shard-bytes": (0, 1 << 31)}
    for option, value in [(option, value) for option, values in sizes.items() for value in values]:
        code, said = call(capsys, *verb(name, made, token_set), "--output", tmp_path / "out", option, value)
        assert (option, value, code, option in json.dumps(said)) == (option, value, 2, True)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_is_none_is_asked_for(
    token_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["import", f"web={token_set}", "--format", "datatrove", "--seq-len", 16, "--output", tmp_path / "out"]
    code, value = call(capsys, *arguments, "--tokenizer", tmp_path)
    assert (code, value["error"]["code"]) == (2, "TR-IMPORT-TOKENIZER")
