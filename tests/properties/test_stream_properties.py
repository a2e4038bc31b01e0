"""The stream's laws: the ranks' parts are the global batch for any world; stopping anywhere changes nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.datasets import DatasetSpec, MadeDataset, make_dataset

from loader.errors import RefusedError
from loader.order import SkipEntry
from loader.stream.batch import Batch, read_batch
from loader.stream.open import OrderOptions, open_stream
from loader.stream.stream import Stream, StreamConfig

_FIELDS = ("tokens_BT", "labels_BT", "token_positions_BT", "positions_B", "source_B", "sample_B", "epoch_B")
_SPEC = DatasetSpec(documents={"a": 30, "b": 14, "c": 5}, seq_len=24, samples_per_shard=7)
_SKIPS = (
    SkipEntry("samples", "drop", 40, "a", ((0, 25), (60, 70))),
    SkipEntry("source", "mask", 90, "c"),
    SkipEntry("positions", "drop", 20, ranges=((33, 50), (120, 121))),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("stream"), _SPEC)


def _equal(one: Batch, other: Batch) -> bool:
    same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in _FIELDS)
    return same and (one.step, one.next_position, one.token_digest) == (
        other.step,
        other.next_position,
        other.token_digest,
    )


@settings(max_examples=25, deadline=None)
@given(global_batch=st.integers(1, 40), world=st.integers(1, 12), step=st.integers(0, 200), seed=st.integers(0, 2**40))
def test_union_over_ranks_is_the_global_batch(
    made: MadeDataset, global_batch: int, world: int, step: int, seed: int
) -> None:
    with open_stream(made.path, global_batch, OrderOptions(seed=seed, skips=_SKIPS)) as stream:
        whole = read_batch(stream.plan, stream.sources, step)
        parts = [read_batch(stream.plan, stream.sources, step, rank, world) for rank in range(world)]
    for name in _FIELDS:
        assert np.array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    assert sum(part.token_digest for part in parts) % 2**64 == whole.token_digest
    assert sum(part.num_labels for part in parts) == whole.num_labels
    assert {part.next_position for part in parts} == {whole.next_position}
    assert max(len(part.positions_B) for part in parts) - min(len(part.positions_B) for part in parts) <= 1
    index = np.concatenate([part.segments.document_id_S for part in parts])
    assert np.array_equal(index, whole.segments.document_id_S)


@settings(max_examples=8, deadline=None)
@given(
    stops=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    threads=st.integers(1, 4),
    prefetch=st.integers(1, 5),
    worlds=st.lists(st.integers(1, 4), min_size=5, max_size=5),
)
def test_stopping_anywhere_changes_nothing(
    made: MadeDataset, stops: list[int], threads: int, prefetch: int, worlds: list[int]
) -> None:
    order = OrderOptions(skips=_SKIPS)
    state, step = None, 0
    with open_stream(made.path, 6, order) as straight:
        for stop, world in zip(stops, worlds, strict=False):
            configs = [StreamConfig(rank, world, threads, prefetch) for rank in range(world)]
            streams = [open_stream(made.path, 6, order, config, state) for config in configs]
            for _ in range(stop):
                parts, expected = [next(stream) for stream in streams], next(straight)
                tokens = np.concatenate([part.tokens_BT for part in parts])
                assert np.array_equal(tokens, expected.tokens_BT)
                assert {part.step for part in parts} == {step} == {expected.step}
                step += 1
            states = [stream.state_dict() for stream in streams]
            assert all(one == states[0] == straight.state_dict() for one in states)
            state = json.loads(json.dumps(states[0]))
            assert len(json.dumps(state)) < 1024
            for stream in streams:
                stream.close()


def test_threads_and_prefetch_change_nothing(made: MadeDataset) -> None:
    expected: list[Batch] | None = None
    for threads, prefetch in ((1, 1), (1, 9), (4, 2), (8, 16)):
        with open_stream(made.path, 5, None, StreamConfig(threads=threads, prefetch_steps=prefetch)) as stream:
            batches = [next(stream) for _ in range(25)]
        expected = expected or batches
        assert all(_equal(one, other) for one, other in zip(batches, expected, strict=True))


def test_load_state_in_the_middle_and_back(made: MadeDataset) -> None:
    with open_stream(made.path, 5) as stream:
        first = next(stream)
        state = stream.state_dict()
        second = next(stream)
        next(stream)
        stream.load_state_dict(state)
        assert stream.next_step == 1
        assert _equal(next(stream), second)
        assert not _equal(first, second)


def test_another_world_of_data_is_refused(made: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = make_dataset(tmp_path_factory.mktemp("other"), DatasetSpec(**{**vars(_SPEC), "seed": 1}))
    with open_stream(made.path, 5) as stream:
        for _ in range(3):
            next(stream)
        state = stream.state_dict()
    for path, batch, order in (
        (other.path, 5, OrderOptions()),
        (made.path, 6, OrderOptions()),
        (made.path, 5, OrderOptions(seed=18)),
        (made.path, 5, OrderOptions(weights={"a": 1, "b": 1, "c": 1})),
        (made.path, 5, OrderOptions(skips=[SkipEntry("positions", "drop", 3, ranges=((4, 5),))])),
    ):
        with pytest.raises(RefusedError):
            open_stream(path, batch, order, None, state)
    later = OrderOptions(skips=[SkipEntry("positions", "drop", 15, ranges=((16, 20),))])
    with open_stream(made.path, 5, later, None, state) as stream:
        assert isinstance(stream, Stream)
        assert next(stream).positions_B.tolist() == [15, 20, 21, 22, 23]
