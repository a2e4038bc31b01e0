"""Chains of stops: whatever the world, threads, prefetch and batch sizes, the digests are those of one straight run."""

from __future__ import annotations

import json
import random

import pytest
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.order import SkipEntry, SkipList
from loader.run_config import BatchStageConfig, DataConfig, MixtureStageConfig, build_plan
from loader.sources import Sources, open_sources
from loader.stream.batch import read_batch
from loader.stream.stream import Stream, StreamConfig

_WORLDS = (1, 2, 3, 4, 8)
_MIXTURE = (MixtureStageConfig(0, {"a": 3, "b": 1}), MixtureStageConfig(512, {"a": 1, "b": 1, "c": 1}))
_SKIPS = (SkipEntry("samples", "drop", 40, "a", ((0, 9),)), SkipEntry("positions", "drop", 20, ranges=((33, 50),)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    spec = DatasetSpec(documents={"a": 40, "b": 20, "c": 12}, seq_len=24, samples_per_shard=7)
    return make_dataset(tmp_path_factory.mktemp("chains"), spec)


def _stream(sources: Sources, batch: list[BatchStageConfig], config: StreamConfig) -> Stream:
    data = DataConfig(("x",), tuple(batch), mixture=_MIXTURE)
    return Stream(build_plan(data, sources, SkipList(_SKIPS)), sources, config)


def _row_digests(made: MadeDataset, batch: list[BatchStageConfig], num_steps: int) -> tuple[list[int], list[int]]:
    """Of one uninterrupted reading: each row's digest, in order, and each step's."""
    sources = open_sources([made.open()])
    with _stream(sources, batch, StreamConfig(threads=1, prefetch_steps=1)) as stream:
        batches = [next(stream) for _ in range(num_steps)]
    return [row for one in batches for row in one.row_digest_B.tolist()], [one.token_digest for one in batches]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twenty_stops_in_three_epochs(made: MadeDataset, seed: int) -> None:
    rng = random.Random(seed)
    sources = open_sources([made.open()])
    epoch = sum(int(sources.shard_samples(name).sum()) for name in sources.names)
    batch = [BatchStageConfig(0, rng.randrange(3, 12))]
    states, state, step, digests, rows = [], None, 0, list[int](), list[int]()
    last_epoch = 0
    for stop in range(20):
        world, threads = rng.choice(_WORLDS), rng.randrange(1, 5)
        configs = [StreamConfig(rank, world, threads, rng.randrange(1, 6)) for rank in range(world)]
        streams = [_stream(sources, batch, config) for config in configs]
        for stream in streams:
            if state is not None:
                stream.load_state_dict(state)
            assert stream.next_step == step
        wanted = max(1, 3 * epoch // 20 // batch[-1].global_batch + rng.randrange(-2, 3))
        for _ in range(wanted):
            parts = [next(stream) for stream in streams]
            assert {part.step for part in parts} == {step}
            digests.append(sum(part.token_digest for part in parts) % 2**64)
            rows += [row for part in parts for row in part.row_digest_B.tolist()]
            last_epoch = max([last_epoch, *(epoch for part in parts for epoch in part.epoch_B.tolist())])
            step += 1
        states = [stream.state_dict() for stream in streams]
        for stream in streams:
            stream.close()
        assert all(one == states[0] for one in states)
        text = json.dumps(states[0])
        assert len(text) < 1024
        state = json.loads(text)
        if stop % 3 == 2:  # another batch size from here on: any position will do
            batch = [*batch, BatchStageConfig(int(state["next_position"]), rng.randrange(1, 17))]
    assert last_epoch >= 2
    assert (rows, digests) == _row_digests(made, batch, step)


def test_a_batch_size_may_change_at_any_position_and_the_rows_stay(made: MadeDataset) -> None:
    """Also inside a step: the step that holds the border is finished first."""
    steady, _ = _row_digests(made, [BatchStageConfig(0, 6)], 60)
    for start in (1, 5, 6, 7, 100, 131):
        batch = [BatchStageConfig(0, 6), BatchStageConfig(start, 5)]
        changed, _ = _row_digests(made, batch, 60)
        assert changed == steady[: len(changed)]
        with _stream(open_sources([made.open()]), batch, StreamConfig()) as stream:
            for one in (next(stream) for _ in range(40)):
                assert len(one.positions_B) == (6 if one.positions_B[0] < start else 5)


def test_ranks_threads_and_prefetch_do_not_show(made: MadeDataset) -> None:
    sources = open_sources([made.open()])
    batch = [BatchStageConfig(0, 10)]
    with _stream(sources, batch, StreamConfig()) as stream:
        whole = [read_batch(stream.plan, sources, step) for step in range(12)]
    for world in _WORLDS:
        for threads, prefetch in ((1, 1), (3, 7)):
            configs = [StreamConfig(rank, world, threads, prefetch) for rank in range(world)]
            streams = [_stream(sources, batch, config) for config in configs]
            for expected in whole:
                parts = [next(stream) for stream in streams]
                assert [p for part in parts for p in part.positions_B.tolist()] == expected.positions_B.tolist()
                rows = [row for part in parts for row in part.row_digest_B.tolist()]
                assert rows == expected.row_digest_B.tolist()
            for stream in streams:
                stream.close()
