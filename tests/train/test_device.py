"""Which device a process takes; that of an accelerator is only asked for here, never run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.training import train, write_job

from loader.errors import ConfigError
from train.device import take_device, to_device


def test_the_cpu_is_there() -> None:
    assert take_device("cpu") == torch.device("cpu")
    assert to_device(np.arange(3), torch.device("cpu")).tolist() == [0, 1, 2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there_is_refused_before_anything_begins(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="TR-TRAIN-DEVICE"):
        take_device("cuda")
    job = write_job(tmp_path, make_dataset(tmp_path, DatasetSpec(seq_len=32)).path)
    with pytest.raises(ConfigError, match="TR-TRAIN-DEVICE"):
        train(job, "run.device=cuda")
    assert not (tmp_path / "run").exists()
