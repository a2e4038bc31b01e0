"""A run may go on with another ``run.device``: the random state of a device that was not there is left out.

No graphics processor is needed, and none was: the key of its random state is planted in, or taken out of, real files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.datasets import DatasetSpec, make_dataset
from support.training import losses, train, write_job

from loader.errors import DamageError
from train.checkpoint import CheckpointFacts, list_checkpoints, load_tensors, save_checkpoint, verify_checkpoint
from train.state import TrainState

CUDA = torch.arange(16, dtype=torch.uint8)


def saved(folder: Path, *more: str) -> tuple[dict[str, torch.Tensor], CheckpointFacts]:
    tensors = {"model.weight": torch.arange(6.0), "random.cpu": torch.get_rng_state()}
    tensors.update({name: CUDA.clone() for name in more})
    facts = CheckpointFacts(1, 0, 0, 0, {}, {}, {})
    save_checkpoint(folder, tensors, facts)
    return tensors, facts


def test_a_checkpoint_of_the_cpu_leaves_a_devices_random_state_as_it_is(tmp_path: Path) -> None:
    tensors, _ = saved(tmp_path)
    (checkpoint,) = list_checkpoints(tmp_path)[0]
    verify_checkpoint(checkpoint)
    own = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()} | {"random.cuda": CUDA + 1}
    load_tensors(checkpoint, own)
    assert torch.equal(own["model.weight"], tensors["model.weight"])
    assert torch.equal(own["random.cpu"], tensors["random.cpu"])
    assert torch.equal(own["random.cuda"], CUDA + 1)


def test_a_checkpoint_of_a_device_gives_the_cpu_what_it_asks_for(tmp_path: Path) -> None:
    tensors, _ = saved(tmp_path, "random.cuda")
    (checkpoint,) = list_checkpoints(tmp_path)[0]
    own = {name: torch.zeros_like(tensor) for name, tensor in tensors.items() if name != "random.cuda"}
    load_tensors(checkpoint, own)
    assert torch.equal(own["model.weight"], tensors["model.weight"])
    both = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    load_tensors(checkpoint, both)  # where both have it, it comes back
    assert torch.equal(both["random.cuda"], CUDA)


@pytest.mark.parametrize("name", ["random.cpu", "random.tpu", "model.bias"])
def test_any_other_tensor_that_is_missing_is_damage(tmp_path: Path, name: str) -> None:
    tensors, facts = saved(tmp_path)
    folder = tmp_path / "without"
    save_checkpoint(folder, {key: one for key, one in tensors.items() if key != name}, facts)
    (checkpoint,) = list_checkpoints(folder)[0]
    with pytest.raises(DamageError, match=f"TR-CHECKPOINT-TENSORS(.|\n)*{name}"):
        load_tensors(checkpoint, {**tensors, name: CUDA.clone()})


@pytest.mark.parametrize("planted", ["before", "after"])
def test_a_run_goes_on_with_the_key_of_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """As from the CPU to a device (the key is there from then on) and back (it was there until then)."""
    made = make_dataset(tmp_path, DatasetSpec(seq_len=32))
    whole = train(write_job(tmp_path, made.path, "whole", output="whole"))
    job, own = write_job(tmp_path, made.path), TrainState.tensors
    put_back: list[bool] = []
    loaded = TrainState.loaded

    def with_key(self: TrainState) -> dict[str, torch.Tensor]:
        return {**own(self), "random.cuda": CUDA.clone()}

    def without_device(tensors: dict[str, torch.Tensor]) -> None:
        put_back.append("random.cuda" in tensors)
        loaded({name: tensor for name, tensor in tensors.items() if name != "random.cuda"})

    for stage, steps in (("before", "steps=6"), ("after", "steps=12")):
        with monkeypatch.context() as patch:
            if stage == planted:
                patch.setattr(TrainState, "tensors", with_key)
                patch.setattr(TrainState, "loaded", staticmethod(without_device))
            result = train(job, steps)
    assert result.parameters == whole.parameters
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert put_back == ([True] if planted == "after" else [])
