"""A first start that fails leaves nothing that stands in the way of the corrected one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, train, write_job

from loader.cli import main
from loader.errors import ConfigError, DamageError, RefusedError
from loader.ledger import read_ledger_file
from loader.run_folder import RunPaths, read_config, read_events
from train.back import roll_back
from train.config import RunConfig
from train.spikes.config import AttributionConfig, DetectorConfig, SpikeConfig


def test_a_key_that_could_not_work_is_corrected_in_place(tmp_path: Path) -> None:
    job = write_job(tmp_path, make_dataset(tmp_path).path, steps=2)
    with pytest.raises(ConfigError, match="TR-HF-FOLDER"):
        train(job, "model.init_from=nowhere")
    assert train(job, "model.layers=2").step == 2
    assert read_config(RunPaths(tmp_path / "run"))["model"]["init_from"] is None
    assert len(ledger(tmp_path / "run")) == 2
    with pytest.raises(RefusedError, match=r"model\.layers: 1, the run has 2"):
        train(job)
    with pytest.raises(RefusedError, match=r"model\.kv_heads: 1, the run has null"):
        train(job, "model.layers=2", "model.kv_heads=1")


@pytest.mark.parametrize("key", ["processes", "threads", "reader_threads"])
def test_more_than_any_machine_has_is_a_mistake(key: str) -> None:
    with pytest.raises(ValueError, match=rf"{key}: must lie in 1 \.\. 1,024"):
        RunConfig(**{key: 1025})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block", "key"),
    [
        (DetectorConfig, "loss_z"),
        (AttributionConfig, "threshold"),
        (AttributionConfig, "long_tokens"),
        (SpikeConfig, "max_rollbacks"),
        (SpikeConfig, "rollback_span_steps"),
    ],
)
def test_negative_thresholds_are_mistakes(block: type, key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}: must be >"):
        block(**{key: -1})


def test_a_ledger_that_lost_steps_stops_the_run_and_a_rollback_mends_it(tmp_path: Path) -> None:
    job = write_job(tmp_path, make_dataset(tmp_path).path, steps=4)
    train(job)
    file = tmp_path / "run" / "ledger" / "0" / "0.bin"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(DamageError, match=r"TR-LEDGER-SHORT.*3 of the 4 steps(?s:.*)rollback .* --to 3"):
        train(job, "steps=6")
    roll_back(tmp_path / "run", 3, lambda line: None)
    assert train(job, "steps=6").step == 6
    assert ledger(tmp_path / "run")["step"].tolist() == list(range(6))


@pytest.mark.parametrize("kept_bytes", [-7, -400, 0], ids=["a torn record", "whole records", "everything"])
def test_an_older_attempt_that_lost_steps_is_mended_by_the_command_it_names(tmp_path: Path, kept_bytes: int) -> None:
    """A later attempt stands behind the gap. What the error says to type works, and so do the starts behind it."""
    checkpoint = {"every_steps": 2, "keep_last": 9}
    job, root = write_job(tmp_path, make_dataset(tmp_path).path, checkpoint=checkpoint), tmp_path / "run"
    train(job, "steps=4")
    train(job, "steps=6")
    whole = ledger(root)
    file = root / "ledger" / "0" / "0.bin"
    file.write_bytes(file.read_bytes()[:kept_bytes])
    for _ in range(2):  # a start that was refused has not made it worse
        with pytest.raises(DamageError, match="TR-LEDGER-GAP") as caught:
            train(job, "steps=7")
    command = (caught.value.next_command or "").partition(", then ")[0].split()
    assert command[:3] == ["tokenreel", "rollback", str(root)]
    assert main(command[1:]) == 0
    for steps in (7, 8):
        assert train(job, f"steps={steps}").step == steps
    mended = ledger(root)
    assert mended["step"].tolist() == list(range(8))
    for name in ("token_digest", "label_count", "loss"):
        assert mended[name][:6].tolist() == whole[name].tolist()
    assert len(ledger(root, 0)) <= 4
    for verb in (["history", str(root)], ["report", str(root)], ["inspect", str(root)]):
        assert main(verb) == 0, verb


@pytest.mark.parametrize(
    ("attempt", "steps_from_end", "is_harmless"),
    [(1, 1, False), (1, 2, False), (1, 3, False), (0, 1, True), (0, 3, False)],
    ids=["the last step", "one before", "the first of an attempt", "a step that was done again", "a step that was not"],
)
def test_a_damaged_record_is_mended_by_the_command_it_names(
    attempt: int, steps_from_end: int, is_harmless: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bit of the ledger costs the steps from there on, not the run; where they were done again it costs nothing."""
    checkpoint = {"every_steps": 2, "keep_last": 9}
    job, root = write_job(tmp_path, make_dataset(tmp_path).path, checkpoint=checkpoint), tmp_path / "run"
    train(job, "steps=5")
    (newest,) = (root / "checkpoints").glob("step_*5")
    shutil.rmtree(newest)
    train(job, "steps=7")
    whole = ledger(root)
    file = root / "ledger" / "0" / f"{attempt}.bin"
    data = bytearray(file.read_bytes())
    size = (len(data) - 64) // len(read_ledger_file(file).records_N)
    data[len(data) - steps_from_end * size + 8] ^= 1
    file.write_bytes(bytes(data))
    if not is_harmless:
        with pytest.raises(DamageError, match="TR-LEDGER-RECORD") as caught:
            train(job, "steps=8")
        command = (caught.value.next_command or "").partition(", then ")[0].split()
        assert command[:3] == ["tokenreel", "rollback", str(root)]
        assert main(command[1:]) == 0
    for steps in (8, 9):
        assert train(job, f"steps={steps}").step == steps
    mended = ledger(root)
    assert mended["step"].tolist() == list(range(9))
    for name in ("token_digest", "label_count", "loss"):
        assert mended[name][:7].tolist() == whole[name].tolist()
    for verb in (["report", str(root)], ["inspect", str(root)], ["history", str(root)]):
        capsys.readouterr()
        assert main(verb) == 0, verb
    assert "damaged behind them" in capsys.readouterr().out
    assert main(["verify", str(root)]) == 3, "it is told for ever"


def test_an_event_that_was_half_written_does_not_stop_a_start(tmp_path: Path) -> None:
    job = write_job(tmp_path, make_dataset(tmp_path).path, steps=2)
    train(job)
    file = tmp_path / "run" / "events.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    kinds = [event["kind"] for event in read_events(RunPaths(tmp_path / "run"))]
    for steps in (3, 4):
        assert train(job, f"steps={steps}").step == steps
    events = read_events(RunPaths(tmp_path / "run"))
    assert [event["kind"] for event in events] == [*kinds, *["config_changed", "resume", "finished"] * 2]


def test_a_run_whose_last_step_learned_nothing_is_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no word for a loss that was never measured."""
    job = write_job(tmp_path, make_dataset(tmp_path, DatasetSpec(documents={"a": 20}, seq_len=32)).path)
    root = tmp_path / "run"
    train(job, "steps=2")
    assert main(["skip", str(root), "--source", "a"]) == 0
    train(job, "steps=3")
    capsys.readouterr()
    assert main(["inspect", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["last_loss"] is None
