"""Logs of tasks hold no documents: loguru would print what the variables of a failed task hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.corpora import make_corpus, write_config

from dataprep.settings import child_environment_set
from loader.settings import child_environment

_LOG = """
import sys
from loguru import logger
logger.remove()
logger.add(sys.stdout)
def fail(text):
    raise ValueError(len(text))
try:
    fail("what a " + "document says")
except ValueError as error:
    logger.exception(error)
"""


@pytest.mark.parametrize(("given", "told"), [(None, False), ("YES", True)])
def test_values_stay_out_of_logs_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, told: bool
) -> None:
    script = tmp_path / "fails.py"
    script.write_text(_LOG)
    monkeypatch.delenv("LOGURU_DIAGNOSE", raising=False)
    if given is not None:
        monkeypatch.setenv("LOGURU_DIAGNOSE", given)
    with child_environment_set():
        ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "ValueError: 20" in ran.stdout
    assert ("'what a document says'" in ran.stdout) is told


@pytest.mark.slow
def test_the_log_of_a_failed_task(tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "build.yaml", make_corpus(tmp_path / "corpus", 16), ingest={"max_reject_fraction": 0.0}
    )
    code = "import sys; from loader.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "build", config, "--json", "--quiet"],
        env={name: value for name, value in child_environment().items() if name != "LOGURU_DIAGNOSE"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1, ran.stdout
    logs = [path.read_text() for path in (tmp_path / "out.work").rglob("*.log")]
    failed = [text for text in logs if "Traceback" in text]
    assert failed
    assert all("TR-INGEST-REJECTS" in text and "└" not in text for text in failed)
