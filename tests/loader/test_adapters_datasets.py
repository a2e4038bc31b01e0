"""Streams as datasets: the states that loaders ask for, epochs, workers, and what happens to batches on their way."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import pytest
import torch
from support.datasets import DatasetSpec, MadeDataset, make_dataset
from torch.utils.data import DataLoader

from loader.errors import ConfigError
from loader.mosaic_adapter import mosaic_style
from loader.stream.open import open_stream
from loader.stream.stream import StreamConfig
from loader.torch_adapter import SampleDataset, TorchStream, to_torch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("adapters"), DatasetSpec(documents={"web": 40}, seq_len=32))


def test_the_state_is_behind_what_was_handed_out(made: MadeDataset) -> None:
    """Every state of a torchdata ``Stateful``, asked at any time, twice, and resumed into another object."""
    with open_stream(made.path, 4) as stream:
        dataset = TorchStream(stream)
        loader = iter(DataLoader(dataset, batch_size=None))
        states, digests = [dataset.state_dict()], []
        for _ in range(6):
            digests.append(next(loader).source.token_digest)
            states.append(dataset.state_dict())
            assert dataset.state_dict() == states[-1]
    for step, state in enumerate(states[:-1]):
        with open_stream(made.path, 4) as stream:
            dataset = TorchStream(stream)
            dataset.load_state_dict(json.loads(json.dumps(state)))
            assert dataset.state_dict() == state
            assert next(iter(dataset)).source.token_digest == digests[step]


def test_an_iterator_left_early_loses_no_batch(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream:
        dataset = TorchStream(stream)
        steps = [next(iter(dataset)).step for _ in range(5)]
    assert steps == [0, 1, 2, 3, 4]


def test_what_is_handed_out_is_the_readers_own(made: MadeDataset) -> None:
    """Nothing that is written into a batch, or kept of it, is seen in another one."""
    with open_stream(made.path, 64) as stream:
        expected = [next(stream).tokens_BT.copy() for _ in range(6)]
    with open_stream(made.path, 64) as stream:
        kept: list[torch.Tensor] = []
        for tokens in expected:
            batch = next(stream)
            tensors = to_torch(batch)
            assert (batch.tokens_BT == tokens).all()
            batch.tokens_BT[:] = -1
            kept.append(tensors.tokens_BT)
            del batch
        assert all((one.numpy() == tokens).all() for one, tokens in zip(kept, expected, strict=True))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", [TorchStream, SampleDataset])
def test_workers_are_refused(made: MadeDataset, kind: Any, method: str) -> None:
    with open_stream(made.path, 4) as stream:
        context = multiprocessing.get_context(method)
        loader = DataLoader(kind(stream), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=60)
        with pytest.raises(Exception, match=r"TR-STREAM-(WORKERS|PICKLED)|DataLoader workers|another process"):
            next(iter(loader))


def _read(made: MadeDataset, ranks: int, state: Any, batches: int, num_samples: int) -> tuple[list[Any], list[Any]]:
    """Tokens of each global batch, and the states, of ``ranks`` datasets read in turns by stock DataLoaders."""
    streams = [open_stream(made.path, 4, config=StreamConfig(rank, ranks)) for rank in range(ranks)]
    datasets = [mosaic_style(stream, 24) for stream in streams]
    for dataset in datasets:
        if state is not None:
            dataset.load_state_dict(state)
    loaders = [DataLoader(dataset, batch_size=dataset.batch_size) for dataset in datasets]
    iterators = [iter(loader) for loader in loaders]
    rows = []
    for _ in range(batches):
        parts = [next(iterator, None) for iterator in iterators]
        if parts[0] is None:
            iterators = [iter(loader) for loader in loaders]
            parts = [next(iterator) for iterator in iterators]
        rows.append(torch.cat([part["tokens"] for part in parts if part is not None]).tolist())
    states = [dataset.state_dict(num_samples, True) for dataset in datasets]
    for stream in streams:
        stream.close()
    return rows, states


def test_a_sample_is_its_row_of_the_batch(made: MadeDataset) -> None:
    """Segments are numbered from 0 in every sample, in its order, and change where positions begin anew."""
    with open_stream(made.path, 4) as stream, open_stream(made.path, 4) as other:
        samples, batches = iter(SampleDataset(stream, 24)), [next(other) for _ in range(6)]
        for batch in batches:
            for row in range(4):
                sample = next(samples)
                assert sample["tokens"].tolist() == batch.tokens_BT[row].tolist()
                assert sample["labels"].tolist() == batch.labels_BT[row].tolist()
                assert sample["position_ids"].tolist() == batch.token_positions_BT[row].tolist()
                begins = sample["position_ids"] == 0
                assert sample["segment_ids"].tolist() == (begins.cumsum(0) - 1).tolist()
        assert next(samples, None) is None


@pytest.mark.parametrize("index", [-1, 1 << 36])
def test_no_sample_lies_outside_every_plan(made: MadeDataset, index: int) -> None:
    with open_stream(made.path, 8) as stream, pytest.raises(IndexError, match="no position"):
        SampleDataset(stream)[index]


def test_epochs_on_any_number_of_ranks(made: MadeDataset) -> None:
    """As Composer does: samples are counted within the epoch, over all ranks."""
    with open_stream(made.path, 4) as stream:
        expected = [next(stream).tokens_BT.tolist() for _ in range(20)]
        sizes = mosaic_style(stream, 24)
        assert (len(sizes), sizes.num_samples, sizes.epoch_steps, sizes.global_batch) == (24, 24, 6, 4)
        one = sizes[9]
        assert one["tokens"].tolist() == expected[2][1]
        assert one["tokens"].shape == one["labels"].shape == one["position_ids"].shape == (32,)
    first, states = _read(made, 2, None, 8, 8)  # six steps of epoch 0, two of epoch 1
    assert first == expected[:8]
    assert states[0] == states[1]
    assert (states[0]["epoch"], states[0]["sample_in_epoch"]) == (1, 8)
    second, states = _read(made, 4, json.loads(json.dumps(states[0])), 4, 24)  # to the end of epoch 1
    assert second == expected[8:12]
    assert (states[0]["epoch"], states[0]["sample_in_epoch"]) == (2, 0)
    third, states = _read(made, 1, states[0], 8, 8)
    assert third == expected[12:20]
    assert (states[0]["epoch"], states[0]["sample_in_epoch"]) == (3, 8)


def test_the_state_at_the_border_of_an_epoch(made: MadeDataset) -> None:
    _, ended = _read(made, 1, None, 6, 24)
    _, begun = _read(made, 1, None, 6, 0)
    _, behind = _read(made, 1, None, 6, 20)
    assert ended == begun
    assert (ended[0]["epoch"], behind[0]["epoch"], behind[0]["sample_in_epoch"]) == (1, 0, 20)


def test_samples_counted_from_where_this_process_began(made: MadeDataset) -> None:
    """``from_beginning=False``: from the state resumed at, also in a dataset that had read something else before."""
    with open_stream(made.path, 4) as stream:
        dataset = mosaic_style(stream, 24)
        list(dataset)
        state = dataset.state_dict(8, from_beginning=False)
        assert (state["epoch"], state["sample_in_epoch"], state["cursor"]["next_step"]) == (0, 8, 2)
        dataset.load_state_dict(state)
        assert [len(list(dataset)) for _ in range(2)] == [16, 24]  # the rest of epoch 0, then all of epoch 1
        again = dataset.state_dict(20, from_beginning=False)
        assert (again["epoch"], again["sample_in_epoch"], again["cursor"]["next_step"]) == (1, 4, 7)


def test_what_cannot_be_shared_is_refused(made: MadeDataset) -> None:
    with open_stream(made.path, 4, config=StreamConfig(0, 3)) as stream, pytest.raises(ConfigError, match="share"):
        mosaic_style(stream)
    with open_stream(made.path, 4) as stream:
        with pytest.raises(ConfigError, match="shorter"):
            mosaic_style(stream, 3)
        with pytest.raises(ConfigError, match="6 samples"):
            mosaic_style(stream).state_dict(6, True)
