"""A run's model for transformers and back: the verb, its refusals, and a run that begins with given weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # lazy: its models are imported when they are first named
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.tokenizer_models import small_tokenizer
from support.training import killed_after, losses, train, write_job

from loader.cli import main
from loader.errors import ConfigError, DamageError, RefusedError
from loader.order.skips import SkipList
from loader.run_config import build_plan
from loader.run_folder import RunPaths, read_events
from loader.stream.batch import read_positions
from train.frozen import frozen_model
from train.huggingface.export import RunExport, export_run
from train.huggingface.files import HfFolder
from train.huggingface.tokenizer import tokenizer_files
from train.job import job_of_run, open_job_sources
from train.lineage import named_checkpoint

MODEL = {"dim": 16, "layers": 2, "heads": 2, "ffn": 24, "qk_norm": True, "z_loss": 1e-4}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeDataset, Path]:
    """A Dataset and a trained run over it."""
    folder = tmp_path_factory.mktemp("export")
    made = make_dataset(folder, DatasetSpec(seq_len=32))
    train(write_job(folder, made.path, model=MODEL, steps=8))
    return made, folder / "run"


def export(run: Path, output: Path, *words: str) -> int:
    return main(["export", str(run), "--format", "hf", "--output", str(output), *words])


def quiet(line: str) -> None:
    del line


def test_the_verb_writes_what_transformers_computes_alike(
    world: tuple[MadeDataset, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = world[1]
    assert export(run, tmp_path / "hf", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["checkpoint"] == "step_000008"
    assert any("z_loss" in note for note in said["notes"])
    job = job_of_run(run)
    sources = open_job_sources(job)
    frozen = frozen_model(job, sources, named_checkpoint(job.paths.checkpoints, "step_000008"))
    batch = read_positions(build_plan(job.config.data, sources, SkipList(())), sources, [0, 1, 2])
    first = [int((row == row[0]).sum()) for row in batch.segment_of_BT]  # tokens of the first segment
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", dtype=torch.float32, attn_implementation="eager"
    )
    hidden_BTD = frozen.hidden(batch)
    for row, length in enumerate(first):
        mine = hidden_BTD[row, :length] @ frozen.head_weight_VD.T
        with torch.no_grad():
            theirs = model(torch.from_numpy(batch.tokens_BT[row : row + 1, :length]).long()).logits[0]
        torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-5)


def test_again_is_a_no_op_and_anything_else_is_refused(world: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    run, output = world[1], tmp_path / "hf"
    assert export_run(RunExport(run, output), quiet)["written"]
    before = {path.name: path.stat().st_mtime_ns for path in output.iterdir()}
    assert not export_run(RunExport(run, output), quiet)["written"]
    assert {path.name: path.stat().st_mtime_ns for path in output.iterdir()} == before
    for other in (RunExport(run, output, "step_000004"), RunExport(run, output, dtype="bfloat16")):
        with pytest.raises(RefusedError, match="something else"):
            export_run(other, quiet)
    with open(output / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(RefusedError, match="something else"):
        export_run(RunExport(run, output), quiet)


def test_pieces_and_checkpoints_can_be_chosen(world: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    run = world[1]
    made = export_run(RunExport(run, tmp_path / "a", "step_000004", piece_bytes=4000), quiet)
    assert made["weight_files"] > 3
    export_run(RunExport(run, tmp_path / "b", "step_000008"), quiet)
    export_run(RunExport(run, tmp_path / "c", dtype="bfloat16"), quiet)
    with HfFolder(tmp_path / "a") as first, HfFolder(tmp_path / "b") as second, HfFolder(tmp_path / "c") as third:
        assert first.names == second.names == third.names
        assert not torch.equal(first.read("model.norm.weight"), second.read("model.norm.weight"))
        assert torch.equal(third.read("model.norm.weight"), second.read("model.norm.weight").bfloat16())


def test_plan_writes_nothing(world: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    assert export(world[1], tmp_path / "hf", "--plan", "--quiet") == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--checkpoint", "../step_000008"], "TR-REPLAY-CHECKPOINT"),
        (["--checkpoint", "step_000005"], "TR-REPLAY-CHECKPOINT"),
        (["--dtype", "float16"], "TR-EXPORT-DTYPE"),
        (["--source", "web"], "TR-EXPORT-OPTION"),
    ],
)
def test_mistakes_are_named(
    world: tuple[MadeDataset, Path], tmp_path: Path, words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(world[1], tmp_path / "hf", *words, "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert list(tmp_path.iterdir()) == []


def test_options_of_runs_mean_nothing_for_datasets(
    world: tuple[MadeDataset, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(world[0].path), "--format", "mds", "--output", str(tmp_path / "x"), "--dtype", "float32"]
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TR-EXPORT-OPTION"


def events(root: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(event) for event in read_events(RunPaths(root)) if event["kind"] == kind]


def test_a_run_begins_with_given_weights(world: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    """Its first loss is that of the exported checkpoint, and a resumed run no longer needs the folder."""
    made, run = world
    export_run(RunExport(run, tmp_path / "hf", "step_000004"), quiet)
    job = write_job(tmp_path, made.path, model={**MODEL, "init_from": "hf"}, steps=3)
    whole = train(job)
    assert losses(tmp_path / "run")[0] < losses(run)[0] - 0.05
    (event,) = events(tmp_path / "run", "init_from")
    with HfFolder(tmp_path / "hf") as folder:
        assert event["files"] == folder.hashes()
    (tmp_path / "hf").rename(tmp_path / "moved")
    assert train(job, "steps=4").step == 4
    (tmp_path / "moved").rename(tmp_path / "hf")
    again = tmp_path / "again"
    again.mkdir()
    assert (
        train(write_job(again, made.path, model={**MODEL, "init_from": "../hf"}, steps=3)).parameters
        == whole.parameters
    )


def test_a_run_killed_before_its_first_checkpoint_begins_with_them_again(
    world: tuple[MadeDataset, Path], tmp_path: Path
) -> None:
    made, run = world
    export_run(RunExport(run, tmp_path / "hf"), quiet)
    job = write_job(tmp_path, made.path, model={**MODEL, "init_from": "hf"}, steps=2)
    killed_after(lambda: train(job), lambda: bool(events(tmp_path / "run", "init_from")))
    assert train(job).outcome == "finished"
    other = tmp_path / "other"
    other.mkdir()
    expected = train(write_job(other, made.path, model={**MODEL, "init_from": "../hf"}, steps=2))
    assert train(job).parameters == expected.parameters


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"init_from": "nowhere"}, ConfigError, "config.json"),
        ({"init_from": "hf", "dim": 32}, RefusedError, "model.dim"),
        ({"init_from": "hf", "qk_norm": False}, RefusedError, "model.qk_norm"),
        ({"init_from": "s3://bucket/hf"}, ConfigError, "folder"),
        ({"init_from": "torn"}, DamageError, "weights"),
    ],
)
def test_weights_that_do_not_fit_start_nothing(
    world: tuple[MadeDataset, Path], tmp_path: Path, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    made, run = world
    for name in ("hf", "torn"):
        export_run(RunExport(run, tmp_path / name), quiet)
    weights = tmp_path / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    job = write_job(tmp_path, made.path, model={**MODEL, **change}, steps=2)
    with pytest.raises(error, match=words):
        train(job)
    assert not list((tmp_path / "run" / "checkpoints").glob("step_*"))


def test_a_tokenizer_json_goes_along(world: tuple[MadeDataset, Path], tmp_path: Path) -> None:
    tokenizer = small_tokenizer("huggingface")
    found = tokenizer_files(tokenizer, 32)
    assert found.borders["eos_token_id"] == tokenizer.eos_id
    assert found.notes == ()
    export_run(RunExport(world[1], tmp_path / "hf"), quiet)
    for name, data in found.files.items():
        (tmp_path / "hf" / name).write_bytes(data)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in ("Now is the time for all good people", "def add(a, b):\n    return a + b\n", "naïve café"):
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)[0].tolist()
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)


def test_another_tokenizer_is_named() -> None:
    found = tokenizer_files(small_tokenizer("sentencepiece"), 32)
    assert found.files == {}
    assert "sentencepiece" in found.notes[0]
    assert tokenizer_files(None, 32).borders == {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
