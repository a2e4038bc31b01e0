"""Batches as tensors; DataLoader workers are refused; eight lines train a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.datasets import VOCAB_SIZE, DatasetSpec, MadeDataset, make_dataset
from torch.utils.data import DataLoader

from loader.stream.open import open_stream
from loader.torch_adapter import TorchStream, to_torch


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    return make_dataset(tmp_path_factory.mktemp("torch"), DatasetSpec(documents={"web": 30}, seq_len=32))


def test_tensors_are_the_batch(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream:
        batch = next(stream)
        tensors = to_torch(batch)
    for name in ("tokens_BT", "labels_BT", "token_positions_BT", "segment_of_BT", "cu_seqlens_C"):
        assert np.array_equal(getattr(tensors, name).numpy(), getattr(batch, name))
    assert tensors.cu_seqlens_C.dtype == torch.int32
    tensors.tokens_BT.zero_()
    assert batch.tokens_BT.any()


def test_as_a_dataset_it_resumes(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream:
        loader = iter(DataLoader(TorchStream(stream), batch_size=None))
        first, second = next(loader), next(loader)
        state = TorchStream(stream).state_dict()
        third = next(loader)
    assert [first.step, second.step, third.step] == [0, 1, 2]
    with open_stream(made.path, 4) as stream:
        resumed = TorchStream(stream)
        resumed.load_state_dict(state)
        assert torch.equal(next(iter(resumed)).tokens_BT, third.tokens_BT)


def test_workers_are_refused(made: MadeDataset) -> None:
    with open_stream(made.path, 4) as stream:
        loader = DataLoader(TorchStream(stream), batch_size=None, num_workers=1)
        with pytest.raises(Exception, match="TR-STREAM-WORKERS"):  # the DataLoader wraps what its worker raised
            next(iter(loader))


def test_a_training_loop_of_ones_own(made: MadeDataset, tmp_path: Path) -> None:
    path, model = made.path, torch.nn.Sequential(torch.nn.Embedding(VOCAB_SIZE, 16), torch.nn.Linear(16, VOCAB_SIZE))
    losses = []
    with open_stream(path, global_batch=8) as stream:
        for batch in stream:
            tensors = to_torch(batch)
            logits = model(tensors.tokens_BT)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tensors.labels_BT.flatten())
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)
                    parameter.grad = None
            losses.append(loss.item())
            if batch.step == 20:
                break
    assert losses[-1] < losses[0] - 0.5
