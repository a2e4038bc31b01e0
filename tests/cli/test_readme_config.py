"""The README's wrong configuration says what the README shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader import cli

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
version: 1
seed: 17
output: data/mine
sources: {web: {root: corpus, pahts: ["*.jsonl"]}}

dedup:
  threshold: high

seed: 18
"""


def test_the_readme_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["build", "bad.yaml"]) == 2
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"$ tokenreel build bad.yaml\n{capsys.readouterr().err}```" in shown
