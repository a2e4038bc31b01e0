"""Log-likelihoods of continuations: many requests a row, kept apart by the model's own document mask.

Legend: R requests, B rows of a call, T tokens of a row, n scored tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from loader.stream.batch import IGNORED_LABEL, Batch
from loader.stream.own_texts import lay_out

from ..inputs import InputOptions
from ..model import Decoder
from .requests import Request, pack_rows
from .share import ALONE, Share, undisturbed

__all__ = ["Reader", "Scores", "captured", "head_weight", "likeliest", "score_requests"]

_FILLER_TEXT = np.zeros(1, np.int32)


@dataclass(frozen=True)
class Reader:
    """How the model reads: its input options, rows of one call, tokens of a row, the token of padding."""

    options: InputOptions
    rows: int
    seq_len: int
    filler: int


@dataclass(frozen=True)
class Scores:
    """What a model says of R requests.

    Attributes:
        log_likelihood_R: float64, nats, of the scored tokens together.
        greedy_R: whether each scored token is the likeliest one; None where nobody asked.
    """

    log_likelihood_R: NDArray[np.float64]
    greedy_R: NDArray[np.bool_] | None = None


def head_weight(model: Decoder) -> Tensor:
    """The whole output projection (V, D), whoever holds parts of it; all processes call it together."""
    assert model.head is not None
    weight = model.head.weight.detach()
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


@contextmanager
def captured(model: Decoder) -> Iterator[list[Tensor]]:
    """Inside the block, each call of the model leaves its last hidden vectors (B, T, D) here.

    Reached from outside, since a call is the one thing that every way of spreading the weights supports.
    """
    assert model.norm is not None
    kept: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        del module, inputs
        kept[:] = [model.spread.to_head(output.detach())]

    handle = model.norm.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


def _laid_out(requests: Sequence[Request], rows: Sequence[Sequence[int]], reader: Reader) -> tuple[Batch, Tensor]:
    """The rows as a batch with labels of the continuations alone, and the request (B, T) that each token is of."""
    texts = [[requests[number].tokens_n for number in row] for row in rows]
    batch = lay_out([row or [_FILLER_TEXT] for row in texts], reader.seq_len, reader.filler)
    request_of_BT = np.zeros(batch.tokens_BT.shape, np.int64)
    scored_BT = np.zeros(batch.tokens_BT.shape, np.bool_)
    for index, row in enumerate(rows):
        start = 0
        for number in row:
            stop = start + len(requests[number].tokens_n)
            request_of_BT[index, start:stop] = number
            scored_BT[index, stop - 1 - requests[number].num_scored : stop - 1] = True
            start = stop
    batch.labels_BT[~scored_BT] = IGNORED_LABEL
    return batch, torch.from_numpy(request_of_BT).to(reader.options.device)


def score_requests(
    model: Decoder, requests: Sequence[Request], reader: Reader, share: Share = ALONE, *, greedy: bool = False
) -> Scores:
    """Log-likelihood of every request's continuation, the same on all processes.

    Args:
        share: the rows of this process. greedy: also say whether the model would write exactly the continuation; that
            takes the whole head on each process.

    Raises:
        RefusedError: ``greedy`` where no process has whole rows.
    """
    if greedy:
        share.need_whole_rows("exact continuation", reader.options)
    packed = pack_rows([len(request.tokens_n) for request in requests], reader.seq_len)
    device = reader.options.device
    loss_R = torch.zeros(len(requests), dtype=torch.float64, device=device)
    wrong_R = torch.zeros_like(loss_R)
    rows = min(reader.rows, max(1, -(-len(packed) // share.size)))
    with undisturbed(model), ExitStack() as stack:
        hidden = stack.enter_context(captured(model)) if greedy else []
        weight_VD = head_weight(model) if greedy else None
        for own in share.own(len(packed), rows):
            batch, request_of_BT = _laid_out(
                requests, [*packed[own.start : own.stop], *[[]] * (rows - len(own))], reader
            )
            nll_BT = share.forward(model, batch, reader.options)
            loss_R.index_add_(0, request_of_BT.flatten(), nll_BT.double().flatten())
            if weight_VD is not None:
                labels_BT = torch.from_numpy(batch.labels_BT.astype(np.int64)).to(device)
                kept_BT = labels_BT != IGNORED_LABEL
                best_n = likeliest(hidden[0][kept_BT], weight_VD)
                wrong_R.index_add_(0, request_of_BT[kept_BT], (best_n != labels_BT[kept_BT]).double())
    log_likelihood_R = -share.total(loss_R, losses=True).cpu().numpy()
    if not greedy:
        return Scores(log_likelihood_R)
    return Scores(log_likelihood_R, share.total(wrong_R).cpu().numpy() == 0)


def likeliest(hidden_nD: Tensor, weight_VD: Tensor) -> Tensor:
    """The likeliest token behind each hidden vector, int64 (n,), in pieces so that the logits stay small."""
    weight = weight_VD.to(hidden_nD.dtype)
    pieces = [torch.mm(piece, weight.t()).float().argmax(dim=1) for piece in torch.split(hidden_nD, 1024)]
    return torch.cat(pieces)
