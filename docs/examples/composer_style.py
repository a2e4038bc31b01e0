"""Epochs and samples as Composer and llm-foundry want them: python docs/examples/composer_style.py DATASET STATE STEPS

``mosaic_style`` has the interface of ``streaming.StreamingDataset``, so it goes where that goes: into
``composer.core.DataSpec(DataLoader(dataset, batch_size=...))``. Composer calls ``state_dict(num_samples, True)`` when
it saves and ``load_state_dict`` when it resumes; here a loop does.
"""

import json
import sys
from pathlib import Path

from torch.utils.data import DataLoader

from loader import open_stream
from loader.mosaic_adapter import mosaic_style


def train(dataset: str, state: Path, steps: int) -> list[list[int]]:
    """Read ``steps`` batches over as many epochs as that takes; the tokens of the first sample of each."""
    seen: list[list[int]] = []
    with open_stream(dataset, 4) as stream:
        samples = mosaic_style(stream, epoch_size=24)
        if state.exists():
            samples.load_state_dict(json.loads(state.read_text()))
        loader = DataLoader(samples, batch_size=samples.batch_size)
        while len(seen) < steps:
            for batch in loader:  # the rest of an epoch, then the next one
                seen.append(batch["tokens"][0].tolist())
                if len(seen) == steps:
                    break
        num_samples = len(seen) * samples.global_batch
        state.write_text(json.dumps(samples.state_dict(num_samples, from_beginning=False)))
    return seen


if __name__ == "__main__":
    for tokens in train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])):
        print(*tokens[:16])
