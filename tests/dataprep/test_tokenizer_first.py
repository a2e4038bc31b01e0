"""A tokenizer that is loaded is tried before anything else: a wrong file costs no deduplication."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.corpora import make_corpus, write_config
from support.tokenizer_models import small_model

from dataprep.run import prepare, run_until
from loader.cli_options import Output
from loader.errors import DamageError


def configuration(folder: Path, model: bytes) -> Path:
    """A job whose tokenizer is the file ``model``."""
    path = write_config(folder / "build.yaml", make_corpus(folder / "corpus"))
    plain = yaml.safe_load(path.read_text())
    (folder / "tokenizer.json").write_bytes(model)
    plain["tokenizer"] = {"huggingface": {"load": "tokenizer.json"}}
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.mark.parametrize("model", [b"hello", b"(\xb5/\xfd" * 100_000, b"{}"])
def test_a_file_that_is_no_model_stops_before_the_first_text_is_read(tmp_path: Path, model: bytes) -> None:
    prepared = prepare(configuration(tmp_path, model), (), read_only=False)
    with pytest.raises(DamageError) as caught:
        run_until(prepared, "decide", Output(quiet=True))
    assert (caught.value.code, caught.value.place) == ("TR-TOKENIZER-MODEL", str(tmp_path / "tokenizer.json"))
    assert not [path for path in prepared.pipeline.work.iterdir() if path.name.startswith(("sign-", "decide-"))]


def test_a_model_is_loaded_first_and_once(tmp_path: Path) -> None:
    prepared = prepare(configuration(tmp_path, small_model("huggingface")), (), read_only=False)
    stages = [stage.name for stage in prepared.pipeline.until("tokenize")]
    assert (stages[0], stages.count("tokenizer")) == ("tokenizer", 1)
    run_until(prepared, "tokenizer", Output(quiet=True))
    assert not prepared.pipeline.stages["tokenizer"].incomplete_ranks()
