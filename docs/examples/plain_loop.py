"""A training loop of one's own over a Dataset: python docs/examples/plain_loop.py DATASET STATE STEPS

STATE is a file for the stream's state, under 1 KB: a second call goes on where the first one ended.
"""

import json
import sys
from pathlib import Path

import torch

from loader import open_stream
from loader.torch_adapter import to_torch


def bigrams(vocab_size: int) -> torch.nn.Module:
    """The next token by the last one."""
    return torch.nn.Sequential(torch.nn.Embedding(vocab_size, 8), torch.nn.Linear(8, vocab_size))


def train(dataset: str, state: Path, steps: int) -> list[tuple[int, str]]:
    """Some steps of a bigram model; returns (step, digest of its tokens) of each."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seen: list[tuple[int, str]] = []
    with open_stream(dataset, 8, state=json.loads(state.read_text()) if state.exists() else None) as stream:
        model = bigrams(stream.sources.datasets[0].manifest.vocab_size).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while len(seen) < steps:
            batch = next(stream)
            tensors = to_torch(batch, device)
            logits = model(tensors.tokens_BT)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tensors.labels_BT.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append((batch.step, f"{batch.token_digest:016x}"))
        state.write_text(json.dumps(stream.state_dict()))
    return seen


if __name__ == "__main__":
    for step, digest in train(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])):
        print(step, digest)
