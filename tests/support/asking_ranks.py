"""Evaluation of one small model on any mesh, for comparison with one process.

    python -m torch.distributed.run --nproc-per-node 2 tests/support/asking_ranks.py OUT DATASET CASE [CASE ...]

A case is JSON as in ``support.parity``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loader.errors import RefusedError
from loader.shards.dataset import open_dataset
from loader.sources import open_sources
from train.evaluate.generate import Stopping, generate
from train.evaluate.perplexity import HeldOut, perplexity
from train.evaluate.requests import Request
from train.evaluate.score import Reader, score_requests
from train.evaluate.share import share_of
from train.parallel.config import ParallelConfig
from train.parallel.mesh import make_mesh
from train.world import World, join_world

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.parity import Case, build

__all__ = ["MODEL", "ask"]

MODEL = {"vocab_size": 259, "seq_len": 32}


def _requests() -> list[Request]:
    random = np.random.default_rng(8)
    lengths = random.integers(3, 32, 23).tolist()
    return [Request(random.integers(3, 259, n).astype(np.int32), int(random.integers(1, n))) for n in lengths]


def ask(case: Case, world: World, dataset: str) -> dict[str, Any]:
    """Everything that evaluation says of the model as initialised; equal on every rank. JSON-able."""
    state, inputs = build(case, world)
    share, reader = share_of(world, state.pipeline), Reader(inputs, 3, MODEL["seq_len"], 0)
    held_out = HeldOut(open_sources([open_dataset(dataset)]), samples=7, rows=2)
    before = state.digest()
    out: dict[str, Any] = {"case": case.name}
    sources = perplexity(state.model, held_out, inputs, share)
    out["sources"] = {name: [score.loss_sum, score.num_labels] for name, score in sources.items()}
    scored = _requests()
    out["scores"] = score_requests(state.model, scored, reader, share).log_likelihood_R.tolist()
    stopping = Stopping((), 4, None, lambda tokens: bytes(token % 128 for token in tokens))
    try:
        greedy_R = score_requests(state.model, scored, reader, share, greedy=True).greedy_R
        assert greedy_R is not None
        out["greedy"] = greedy_R.tolist()
        prompts = [Request(one.tokens_n[:20], 0) for one in scored[:7]]
        answers = generate(state.model, prompts, stopping, reader, share)
        out["answers"] = {str(number): text for number, text in answers.items()}
    except RefusedError as error:
        out["refused"] = error.code
    out["untouched"] = state.digest() == before
    return out


def main(out: str, dataset: str, cases: Sequence[str]) -> None:
    torch.set_num_threads(1)
    with join_world("cpu") as whole:
        for text in cases:
            case = Case(**json.loads(text))
            mesh = make_mesh(ParallelConfig(**case.parallel), whole.rank, whole.size, "cpu")
            found = ask(case, replace(whole, mesh=mesh), dataset)
            with open(f"{out}.{whole.rank}", "a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            whole.barrier()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
