"""The example configurations, each given to the verbs of the other: one error, and the verb that would take it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loader import cli

EXAMPLES = Path(__file__).resolve().parents[2] / "configs"
OF_BUILD, OF_TRAINING = ("build", "decontaminate", "dedup", "mix"), ("train",)


@pytest.mark.parametrize(
    ("verb", "kind"), [*((verb, "train") for verb in OF_BUILD), *((verb, "build") for verb in OF_TRAINING)]
)
@pytest.mark.parametrize("further", [[], ["--plan"], ["--set", "no.such.key=1"]], ids=" ".join)
def test_the_other_kind_is_one_error(
    verb: str, kind: str, further: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.yaml"
    shutil.copy(EXAMPLES / f"{kind}.yaml", path)
    assert cli.main([verb, str(path), *further]) == 2
    words = {"build": "a build configuration", "train": "a training configuration"}
    wanted, key = (words["train"], "data") if kind == "build" else (words["build"], "sources")
    assert capsys.readouterr().err.splitlines() == [
        f"TR-CONFIG-KIND: this is {words[kind]}",
        f"  at: {path}",
        f"  expected: {wanted} (`{key}:`)",
        f"  next: tokenreel {kind} {path}",
    ]
    assert list(tmp_path.iterdir()) == [path], "nothing is written"


def test_a_file_of_both_kinds_is_judged_key_by_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "both.yaml"
    path.write_text((EXAMPLES / "train.yaml").read_text(encoding="utf-8") + "sources: {web: {root: web}}\n")
    assert cli.main(["train", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("TR-CONFIG-INVALID: 1 problem in the configuration")
    assert "sources: unknown key" in error
