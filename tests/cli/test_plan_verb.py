"""``tokenreel plan`` as typed: what it prints, that it writes nothing, and that it needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.builds import Built, built
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from support.training import train, write_job

from loader.cli import main
from loader.settings import child_environment

__all__ = ["built"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"web": 60, "code": 20}, seq_len=32)
    return make_dataset(tmp_path_factory.mktemp("plan"), spec)


@pytest.fixture
def seven(tmp_path: Path) -> Path:
    """7B on 1.4 T tokens without Datasets: 4 M tokens a step."""
    value = {
        "version": 1, "output": "run", "steps": 333_786,
        "data": {
            "datasets": ["nothing-here"], "batch": [{"start": 0, "global_batch": 1024}],
            "mixture": [{"start": 0, "weights": {"web": 3, "code": 1}}],
        },
        "model": {"preset": "7B"}, "optimizer": {"lr": 3e-4}, "micro_batch": 1,
    }  # fmt: skip
    path = tmp_path / "seven.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def planned(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = run(capsys, "plan", *words, "--json")
    assert code == 0, out + err
    value: dict[str, Any] = json.loads(out)
    return value


def names(plan: dict[str, Any]) -> list[str]:
    return [warning["name"] for warning in plan["warnings"]]


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_tokens_and_epochs_come_from_the_datasets(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against a count of the samples that the plan's own positions read."""
    from loader.order.skips import SkipList
    from loader.run_config import BatchStageConfig, DataConfig, build_plan
    from loader.sources import open_sources
    from loader.stream.store import fetch_dataset

    path = write_job(tmp_path, made.path, steps=40)
    before = tree(tmp_path)
    plan = planned(capsys, path)
    assert tree(tmp_path) == before, "nothing is written"
    sources = open_sources([fetch_dataset(str(made.path))])
    data = DataConfig(datasets=(str(made.path),), batch=(BatchStageConfig(0, 4),))
    order = build_plan(data, sources, SkipList())
    count = dict.fromkeys(order.source_names, 0)
    for step in range(40):
        refs = order.samples(order.step_positions(step))
        for source in refs.source_N.tolist():
            count[order.source_names[source]] += 1
    assert plan["tokens"]["planned"] == 40 * 4 * 32
    assert plan["tokens"]["from_datasets"]
    for row in plan["tokens"]["sources"]:
        assert row["tokens"] == count[row["name"]] * 32
        assert row["epochs"] == count[row["name"]] / int(sources.shard_samples(row["name"]).sum())
        assert row["held"] == sources.info(row["name"]).num_tokens
    assert plan["model"]["vocab_size"] == 259
    assert plan["traffic"]["store"]["cold_start_bytes"] > 0
    assert plan["attention"] == "sdpa_mask"


def test_without_datasets_the_mixture_says(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, seven, "--gpu", "h100", "--gpus", 512)
    assert plan["tokens"]["planned"] == 333_786 * 1024 * 4096
    assert {row["name"]: round(row["share"], 3) for row in plan["tokens"]["sources"]} == {"web": 0.75, "code": 0.25}
    assert plan["notes"][0].startswith("no Datasets (no Dataset there")
    other = planned(capsys, seven, "--vocab-size", 128_256, "--seq-len", 8192)
    assert (other["model"]["vocab_size"], other["model"]["seq_len"]) == (128_256, 8192)


def test_hours_and_price_by_hand(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 150 TFLOP/s a card, as in the example of 109,000 card-hours; here with the exact matrices and attention."""
    words = (seven, "--gpu", "h100", "--gpus", 512, "--mfu", 150e12 / 989.4e12, "--price", 2, "--cluster-factor", 1.1)
    plan = planned(capsys, *words)
    assert plan["flops"]["six_n_d"] == pytest.approx(5.66e22, rel=0.001)
    hours = plan["flops"]["total"] / 150e12 / 3600
    assert plan["time"]["card_hours_computing"] == pytest.approx(hours)
    assert plan["time"]["card_hours"] == pytest.approx(hours * 1.1)
    assert plan["time"]["usd"] == pytest.approx(hours * 1.1 * 2)
    assert plan["time"]["hours"] == pytest.approx(hours * 1.1 / 512)
    assert plan["time"]["step_s"] * 333_786 == pytest.approx(hours * 3600 / 512)
    own = planned(capsys, seven, "--gpu", "h100", "--gpus", 512)
    assert 1 < own["time"]["cluster_factor"] < 1.1
    assert not own["time"]["cluster_factor_given"]


def test_compute_optimal_tokens_and_the_fields_advice(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, seven, "--gpu", "h100", "--gpus", 512)
    assert plan["tokens"]["compute_optimal"] == 20 * plan["model"]["parameters"] == 20 * 6_738_415_616
    assert plan["field"]["row"]["name"] == "7B"
    assert [remark.split()[0] for remark in plan["remarks"]] == ["208"], "lr, batch and context are the field's"
    far = planned(capsys, seven, "--set", "optimizer.lr=0.03", "--set", "data.batch.0.global_batch=16")
    assert any("learning rate" in remark for remark in far["remarks"])
    assert any("batch" in remark for remark in far["remarks"])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--gpus", 512), []),
        (("--gpus", 1), ["does-not-fit"]),
        (("--gpus", 10, "--set", "parallel.tensor=4"), ["world-not-a-product"]),
        (("--gpus", 513, "--set", "parallel.tensor=3", "--set", "parallel.vocabulary=false"), ["heads"]),
        (("--gpus", 2048), ["batch-below-data-ranks"]),
        (("--gpus", 512, "--set", "parallel.pipeline=64"), ["fewer-layers-than-stages"]),
        (("--gpus", 1024, "--set", "parallel.pipeline=2", "--set", "micro_batch=2"), ["fewer-micro-batches"]),
    ],
)
def test_meshes_that_cannot_work_are_named(
    words: tuple[object, ...], wanted: list[str], seven: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(capsys, seven, "--gpu", "h100", "--set", "run.recompute=full", *words)
    found = names(plan)
    assert all(any(name.startswith(one) for name in found) for one in wanted)
    assert bool(found) == bool(wanted)


def test_memory_by_stage_and_recompute(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, seven, "--gpu", "h100", "--gpus", 64, "--set", "parallel.pipeline=4")
    ranks = plan["memory"]["ranks"]
    assert [rank["blocks"] for rank in ranks] == [8, 8, 8, 8]
    assert ranks[0]["activations"] == 4 * ranks[3]["activations"], "1F1B: four micro-batches wait on the first rank"
    by = plan["memory"]["needed_by_recompute"]
    assert by["full"] < by["selective"] < by["none"]
    full = planned(capsys, seven, "--gpu", "h100", "--gpus", 64, "--set", "run.recompute=full")
    assert full["flops"]["recomputed_fraction"] > 0.3
    assert full["checkpoints"]["size_bytes"] == pytest.approx(12 * 6_738_415_616, rel=1e-6)


def test_the_page_for_people_has_every_part(
    made: MadeDataset, seven: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "plan", seven, "--gpu", "h100", "--gpus", 1)
    assert code == 0
    for part in ("FLOPs a token", "compute-optimal", "mesh 1 =", "cluster factor", "checkpoints of", "the field",
                 "impossible: does-not-fit", "note: no Datasets"):  # fmt: skip
        assert part in out, part
    code, out, _ = run(capsys, "plan", write_job(tmp_path, made.path))
    assert "epochs" in out
    assert "no warnings" in out


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--gpu", "h1000"), "TR-PLAN-CARD"), (("--mfu", "1.5"), "TR-PLAN-ASSUMPTION"), (("--price", "-1"), "TR-PLAN-")],
)
def test_assumptions_that_cannot_be(
    words: tuple[str, ...], code: str, seven: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, out, err = run(capsys, "plan", seven, *words)
    assert (exit_code, out) == (2, "")
    assert code in err


def test_a_source_read_over_and_over_is_a_warning(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(capsys, write_job(tmp_path, made.path, steps=400))
    epochs = {row["name"]: row["epochs"] for row in plan["tokens"]["sources"]}
    often = [name for name, count in epochs.items() if count > 4]
    assert often
    warned = [warning for warning in plan["warnings"] if warning["name"] == "source-repeated"]
    assert [warning["message"].split(" is read ")[0] for warning in warned] == often
    assert [f"is read {epochs[name]:,.1f} times" in one["message"] for name, one in zip(often, warned, strict=True)]
    assert not any(warning["fatal"] for warning in warned)
    few = planned(capsys, tmp_path / "job.yaml", "--set", "steps=20")
    assert max(row["epochs"] for row in few["tokens"]["sources"]) <= 4
    assert names(few) == []


def test_a_run_that_nobody_waits_for_is_a_warning(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = ("--gpu", "h100", "--set", "run.recompute=full", "--set", "parallel.data=fsdp")
    short, long = (planned(capsys, seven, *cards, "--gpus", count) for count in (32, 16))
    assert short["time"]["hours"] < 90 * 24 < long["time"]["hours"]
    assert (names(short), names(long)) == ([], ["long-run"])
    tiny = ("--set", "model.preset=tiny", "--gpu", "cpu", "--seq-len", 64, "--set")
    day, days = (planned(capsys, seven, *tiny, f"steps={steps}") for steps in (1000, 100_000))
    assert day["time"]["hours"] < 24 < days["time"]["hours"]
    assert ("long-run" in names(day), "long-run" in names(days)) == (False, True)
    assert "run.device: cuda" in next(one["message"] for one in days["warnings"] if one["name"] == "long-run")


def test_the_best_interval_of_checkpoints_is_said_in_words(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, seven, "--gpu", "cpu")
    assert plan["checkpoints"]["best_every_steps"] == 1
    _, out, _ = run(capsys, "plan", seven, "--gpu", "cpu")
    assert "every 1 steps" not in out
    assert "checkpoint.every_steps: 1 would lose the least time to saves and failures together: one every step (" in out


def test_a_run_longer_than_its_data_is_said(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {
        "datasets": [os.path.relpath(made.path, tmp_path)],
        "batch": [{"start": 0, "global_batch": 4}],
        "exhaustion": {"policy": "stop"},
    }
    plan = planned(capsys, write_job(tmp_path, made.path, steps=10_000, data=data))
    assert names(plan) == ["data-end-early"]
    assert plan["tokens"]["steps"] < 10_000
    assert max(row["epochs"] for row in plan["tokens"]["sources"]) <= 1


def build_config(folder: Path, **blocks: Any) -> Path:
    for source, count in (("web", 40), ("code", 10)):
        (folder / source).mkdir()
        rows = [json.dumps({"text": f"document {number} of {source}, " * 20}) for number in range(count)]
        (folder / source / "a.jsonl").write_text("\n".join(rows) + "\n")
    value = {
        "version": 1, "output": "data", "pack": {"seq_len": 32},
        "sources": {name: {"root": name, "paths": ["*.jsonl"]} for name in ("web", "code")},
        "tokenizer": {"sentencepiece": {"train": {"vocab_size": 320, "model_type": "bpe", "sample_bytes": 20_000}}},
        **blocks,
    }  # fmt: skip
    path = folder / "build.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def test_of_a_build_configuration_tokens_and_epochs_are_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build_config(tmp_path)
    before = tree(tmp_path)
    plan = planned(capsys, path)
    assert tree(tmp_path) == before, "nothing is written"
    assert plan["tokens"]["estimated"]
    rows = {row["source"]: row for row in plan["tokens"]["sources"]}
    for name, row in rows.items():
        assert row["available_tokens"] == (tmp_path / name / "a.jsonl").stat().st_size // 4
        assert (row["planned_tokens"], row["epochs"]) == (row["available_tokens"], 1.0)
    mix = {"ratios": {"web": 1, "code": 1}, "total_tokens": 1 << 14}
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "mix": mix}))
    rows = {row["source"]: row for row in planned(capsys, path)["tokens"]["sources"]}
    assert rows["code"]["planned_tokens"] == rows["web"]["planned_tokens"] == 1 << 13
    assert rows["code"]["epochs"] > 2
    code, out, _ = run(capsys, "plan", path)
    assert code == 0
    assert "tokens (estimated from file sizes" in out


@pytest.mark.slow
def test_of_a_finished_build_they_are_exact(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, built.config)["tokens"]
    assert not found["estimated"]
    dataset = built.datasets[0]
    for row in found["sources"]:
        info = next(source for source in dataset.manifest.sources if source.name == row["source"])
        assert row["planned_tokens"] == pytest.approx(info.num_tokens * row["epochs"])


def test_a_file_that_is_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "neither.yaml"
    path.write_text("version: 1\n")
    code, _, err = run(capsys, "plan", path)
    assert code == 2
    assert err.startswith("TR-CONFIG-KIND: neither a build nor a training configuration")


def test_no_torch_is_imported(made: MadeDataset, tmp_path: Path) -> None:
    path = write_job(tmp_path, made.path)
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom loader.cli import main\n"
        f"code = main(['plan', {str(path)!r}])\nassert not any(m.startswith('torch.') for m in sys.modules)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "memory of a card" in done.stdout


@pytest.mark.parametrize(("steps", "every", "keep"), [(3, 4, 3), (5, 2, 1), (4, 2, 3), (1, 1, 1)])
def test_the_checkpoints_are_those_of_the_run(
    steps: int, every: int, keep: int, made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one before the first step counts."""
    path = write_job(
        tmp_path, made.path, steps=steps, checkpoint={"every_steps": every, "keep_last": keep, "keep_daily": 0}
    )
    found = planned(capsys, path)["checkpoints"]
    train(path)
    folders = sorted((tmp_path / "run" / "checkpoints").glob("step_*"))
    assert json.loads((folders[-1] / "COMMIT.json").read_text())["number"] + 1 == found["count"]
    kept = min(found["count"], keep + 1)
    assert kept >= len(folders)
    assert found["disk_bytes"] == kept * found["size_bytes"]


def batches(*sizes: int) -> tuple[str, str]:
    stages = ", ".join(f"{{start: {4 * number}, global_batch: {size}}}" for number, size in enumerate(sizes))
    return "--set", f"data.batch=[{stages}]"


def fatal(plan: dict[str, Any]) -> list[str]:
    return [warning["name"] for warning in plan["warnings"] if warning["fatal"]]


@pytest.mark.parametrize(
    ("sizes", "words", "wanted"),
    [
        ((1,), {"pipeline": 2, "schedule": "gpipe"}, []),
        ((2,), {"pipeline": 2, "schedule": "interleaved"}, []),
        ((1,), {}, []),
        ((5,), {"pipeline": 2, "schedule": "interleaved"}, ["micro-batches-not-in-rounds"]),
        ((1, 8), {"pipeline": 2}, ["fewer-micro-batches-than-stages"]),
        ((8, 3, 8), {"pipeline": 2, "micro": 2}, ["micro-batches-unequal"]),
        ((4,), {"pipeline": 2, "schedule": "zbv", "tied": True}, ["tied-ends-on-one-rank"]),
        ((4,), {"pipeline": 2, "schedule": "zero_bubble", "recompute": "selective"}, ["backward-in-two"]),
        ((4,), {"pipeline": 2, "schedule": "zero_bubble", "compile": True}, ["backward-in-two"]),
    ],
)
def test_what_trains_is_possible_and_what_does_not_is_not(
    sizes: tuple[int, ...], words: dict[str, Any], wanted: list[str],
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Every stage of the batch is looked at, by the rules that training refuses by (``test_plan_refusals.py``)."""
    path = write_job(
        tmp_path, made.path, micro_batch=words.get("micro", 1),
        parallel={key: words[key] for key in ("pipeline", "schedule") if key in words},
        model={"dim": 16, "layers": 4, "heads": 2, "ffn": 24, "tied": words.get("tied", False)},
        run={key: words[key] for key in ("recompute", "compile") if key in words},
    )  # fmt: skip
    assert fatal(planned(capsys, path, "--gpus", 2, *batches(*sizes))) == wanted


def test_fp8_looks_at_the_matrices(made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, made.path, precision="fp8")
    assert fatal(planned(capsys, path)) == ["float8-sides"]
    assert fatal(planned(capsys, path, "--gpu", "h100", "--set", "model.dim=32", "--set", "model.ffn=48")) == []


def test_the_attention_is_what_a_card_would_choose(seven: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def chosen(*words: object) -> str:
        return str(planned(capsys, seven, *words)["attention"])

    assert chosen("--gpu", "h100") == "torch_varlen"
    assert chosen("--gpu", "h100", "--set", "precision=fp32") == "flex"
    assert chosen("--gpu", "v100", "--set", "precision=fp16") == "flex"
    assert chosen("--gpu", "h100", "--set", "model.head_dim=12") == "sdpa_mask"
    assert chosen("--gpu", "h100", "--set", "precision=fp32", "--set", "model.attention=sdpa_loop") == "sdpa_loop"


def test_the_heads_that_kernels_take_are_the_kernels_own() -> None:
    from train.attention import flex, varlen
    from train.plan import request

    assert request._FLEX_HEADS == flex._MIN_HEAD_DIM
    assert request._FLASH_HEADS == (8, varlen._MAX_HEAD_DIM)
    for heads in (8, 12, 64, 264):
        missing = varlen.cuda_missing(torch.device("cpu"), torch.bfloat16, heads)[1:]
        assert bool(missing) == (heads % 8 > 0 or heads > request._FLASH_HEADS[1])


@pytest.mark.parametrize(
    ("sizes", "steps", "wanted"),
    [
        ((4,), 9, [4, 4]),
        ((2, 4), 9, [2, 4]),
        ((2, 4), 2, [2, 2]),
        ((4, 2), 9, [2, 4]),
        ((12, 2, 7, 4), 9, [4, 12]),  # the first step reads all of the two stages between
    ],
)
def test_tokens_a_step_are_a_range_where_batches_differ(
    sizes: tuple[int, ...], steps: int, wanted: list[int],
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path, words = write_job(tmp_path, made.path, steps=steps), batches(*sizes)
    tokens = [32 * size for size in wanted]
    assert planned(capsys, path, *words)["tokens"]["per_step_range"] == tokens
    _, out, _ = run(capsys, "plan", path, *words)
    assert f" steps of {tokens[0]}{'' if tokens[0] == tokens[1] else f' to {tokens[1]}'} (" in out
    _, out, _ = run(capsys, "train", path, "--plan", "--json", *words)
    assert json.loads(out)["tokens_per_step"] == (tokens[0] if tokens[0] == tokens[1] else tokens)


def test_the_verb_build_is_left_as_it_was(tmp_path: Path) -> None:
    """In a process of its own: a command keeps the help option of its first call."""
    code = (
        "from loader.cli import main\n"
        f"main(['plan', {str(build_config(tmp_path))!r}, '--quiet'])\nprint('asked')\nmain(['build', '--help'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=False
    )
    assert "-h, --help" in done.stdout.partition("asked")[2], done.stderr


def test_checkpoints_for_the_watch_over_spikes_take_room(
    made: MadeDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = {"every_steps": 5, "keep_last": 1, "keep_daily": 0}
    path = write_job(tmp_path, made.path, steps=100, checkpoint=checkpoint)
    plain, watched = (
        planned(capsys, path, "--set", f"spikes.enabled={word}")["checkpoints"] for word in ("false", "true")
    )
    assert plain["disk_bytes"] == 2 * plain["size_bytes"]
    assert watched["disk_bytes"] == 4 * plain["size_bytes"]
