"""The Hugging Face Trainer over a stream: python docs/examples/huggingface_trainer.py DATASET OUTPUT STEPS

The stream's state lies in each checkpoint of the Trainer, and a second call goes on from the newest one. Four things
matter: ``ignore_data_skip`` (the stream resumes by itself, nothing is read and thrown away), ``position_ids`` (they
begin anew with each document, and transformers then attends inside documents only), ``shift_labels`` (the labels
are shifted already, and have none at a document's end), and what a step is: the Trainer takes
``gradient_accumulation_steps`` batches of the stream for each of its own, and reads ahead of what it has trained on.

The batch size is the stream's; ``per_device_train_batch_size`` takes no part. One process; with several, give
``StreamConfig(data_rank, num_data_ranks)`` of the process.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from loader import open_stream
from loader.stream.stream import Stream
from loader.torch_adapter import TorchStream

STATE = "stream.json"


def model_inputs(stream: TorchStream, seen: list[tuple[int, int]]) -> Iterator[Mapping[str, Any]]:
    """What a causal language model is called with, batch by batch; ``seen`` gets step and digest of each."""
    for tensors in stream:
        seen.append((tensors.step, tensors.source.token_digest))
        yield {
            "input_ids": tensors.tokens_BT,
            "position_ids": tensors.token_positions_BT,
            "labels": tensors.labels_BT,
            "shift_labels": tensors.labels_BT,
        }


class ModelInputs(IterableDataset[Mapping[str, Any]]):
    """The same as a dataset."""

    def __init__(self, stream: TorchStream, seen: list[tuple[int, int]]) -> None:
        self.stream, self.seen = stream, seen

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return model_inputs(self.stream, self.seen)


class SaveStream(TrainerCallback):  # type: ignore[misc]
    """Puts the stream's state beside the model, as of the batches that are trained on."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.began_at = (0, 0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer before it takes the first batch: its step and the stream's, from which it counts."""
        self.began_at = (state.global_step, self.stream.next_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by the Trainer when it has written a checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        step, batch = self.began_at
        done = batch + (state.global_step - step) * args.gradient_accumulation_steps
        (folder / STATE).write_text(json.dumps(self.stream.state_dict(done)))


class StreamTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that takes its batches as they are: in order and collated."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """No sampler, no collator, no workers: the stream has batched and read ahead."""
        return DataLoader(self.train_dataset, batch_size=None)


def train(dataset: str, output: Path, steps: int, batch: int = 4, accumulate: int = 1) -> list[tuple[int, int]]:
    """Train a tiny Llama up to ``steps`` of ``accumulate`` batches, from the newest checkpoint in ``output``; (step,
    digest) of what was read."""
    checkpoint = get_last_checkpoint(str(output)) if output.is_dir() else None
    state = json.loads((Path(checkpoint) / STATE).read_text()) if checkpoint else None
    seen: list[tuple[int, int]] = []
    torch.manual_seed(0)
    with open_stream(dataset, batch, state=state) as stream:
        vocab_size = stream.sources.datasets[0].manifest.vocab_size
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
        arguments = TrainingArguments(
            output_dir=str(output), max_steps=steps, save_steps=2, ignore_data_skip=True, use_cpu=True, report_to=[],
            logging_steps=1000, disable_tqdm=True, remove_unused_columns=False, gradient_accumulation_steps=accumulate,
        )  # fmt: skip
        trainer = StreamTrainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=ModelInputs(TorchStream(stream), seen),
            callbacks=[SaveStream(stream)],
        )
        trainer.train(resume_from_checkpoint=checkpoint)
    return seen


if __name__ == "__main__":
    for step, digest in train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])):
        print(step, f"{digest:016x}")
