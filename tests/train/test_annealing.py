"""An annealing stage: rate and mixture change together, by position, and only where nothing was done yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.datasets import DatasetSpec, make_dataset
from support.training import ledger, train, write_job

from loader.errors import ConfigError, RefusedError
from loader.run_config import BatchStageConfig, DataConfig, MixtureStageConfig
from loader.run_folder import RunPaths, read_config
from train.optim_config import AnnealConfig, ScheduleConfig
from train.schedule import learning_rate, with_annealing

COSINE = ScheduleConfig(kind="cosine", warmup_positions=10, total_positions=2000)


@given(
    st.integers(0, 3000), st.integers(0, 8), st.integers(1, 900), st.sampled_from(["linear", "cosine"]), st.floats(0, 1)
)
def test_the_rate_is_the_schedules_before_and_falls_to_its_end(
    position: int, block: int, positions: int, kind: str, final: float
) -> None:
    anneal = AnnealConfig(256 * block, positions, kind=kind, final_fraction=final)  # type: ignore[arg-type]
    rate, plain = learning_rate(position, 2.0, COSINE, anneal), learning_rate(position, 2.0, COSINE)
    begin = learning_rate(anneal.start, 2.0, COSINE)
    if position <= anneal.start:
        assert rate == pytest.approx(plain, rel=1e-12)
    elif position >= anneal.start + positions:
        assert rate == pytest.approx(begin * final, abs=1e-12)
    else:
        assert begin * final - 1e-12 <= rate <= begin + 1e-12
        assert rate <= learning_rate(position - 1, 2.0, COSINE, anneal) + 1e-12 or position - 1 < anneal.start


def data(*stages: tuple[int, dict[str, float]]) -> DataConfig:
    mixture = tuple(MixtureStageConfig(start, weights) for start, weights in stages)
    return DataConfig(datasets=("d",), batch=(BatchStageConfig(0, 8),), mixture=mixture)


def test_its_mixture_is_a_stage_added_once() -> None:
    anneal = AnnealConfig(512, 100, {"books": 1.0})
    once = with_annealing(data((0, {"web": 1.0})), anneal)
    assert [stage.start for stage in once.mixture] == [0, 512]
    assert with_annealing(once, anneal) == once
    assert with_annealing(data((0, {"web": 1.0})), AnnealConfig(512, 100)) == data((0, {"web": 1.0}))


@pytest.mark.parametrize(
    "stages", [[], [(0, {"web": 1.0}), (512, {"web": 2.0})], [(0, {"web": 1.0}), (768, {"web": 2.0})]]
)
def test_a_mixture_that_does_not_lead_there_is_refused(stages: list[tuple[int, dict[str, float]]]) -> None:
    with pytest.raises(ConfigError, match="TR-TRAIN-ANNEAL"):
        with_annealing(data(*stages), AnnealConfig(512, 100, {"books": 1.0}))


def job(folder: Path, dataset: Path, steps: int, anneal: dict[str, object] | None, sources: list[str]) -> Path:
    blocks = {
        "datasets": [str(dataset)],
        "batch": [{"start": 0, "global_batch": 64}],
        "mixture": [{"start": 0, "weights": {sources[0]: 1.0}}],
    }
    block = {} if anneal is None else {"anneal": anneal}
    return write_job(folder, dataset, steps=steps, data=blocks, **block)


def test_a_run_anneals_and_may_decide_so_late_but_not_too_late(tmp_path: Path) -> None:
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    first, second = list(made.samples)[:2]
    late = {"start": 256, "positions": 128, "weights": {second: 1.0}}
    train(job(tmp_path, made.path, 4, None, [first]))
    train(job(tmp_path, made.path, 8, late, [first]))
    rows = ledger(tmp_path / "run")
    peak = rows["lr"][0]
    assert rows["lr"].tolist() == pytest.approx([peak] * 5 + [peak * 0.5, 0.0, 0.0])
    counts = rows["source_labels_S"] > 0
    assert counts[:4].sum() == counts[4:].sum() == 4
    assert not (counts[0] & counts[4]).any()
    assert len(read_config(RunPaths(tmp_path / "run"))["data"]["mixture"]) == 2
    with pytest.raises(RefusedError):
        train(job(tmp_path, made.path, 9, {**late, "positions": 64}, [first]))
    with pytest.raises(RefusedError):
        train(job(tmp_path, made.path, 9, None, [first]))


@pytest.mark.parametrize("weights", [{}, {"web": -1.0}, {"web": 0.0}])
def test_shares_that_cannot_be_are_a_mistake_in_the_configuration(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weights: must be finite"):
        AnnealConfig(256, 8, weights)
