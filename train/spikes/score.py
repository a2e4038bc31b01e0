"""One row of evidence per segment of a batch, with frozen weights: one forward pass, one more over shuffled tokens.

The head gradient of a segment's summed loss is G = s (P - Y)^T H, with P the predicted distributions, Y the one-hot
labels, H the hidden vectors and s the logit scale. Its Frobenius norm needs no V x D matrix:

    ||G||^2 = s^2 sum_ij (E E^T)_ij (H H^T)_ij   with E = P - Y     n x n, for segments shorter than D
            = s^2 sum over vocabulary tiles ||E_tile^T H||^2        tile x D, for longer ones

Logits are kept for a whole sample while ``LOGIT_BUDGET`` allows and are computed again tile by tile above it, so memory
does not grow with the vocabulary. Where the vocabulary is cut over processes, the sums over it (partition function,
label's logit, and the squares above, one number a segment) are completed by all-reduces.

Legend: B samples, T tokens, D hidden, V vocabulary, S segments, N labels of one segment, C vocabulary entries of a
    tile.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from loader.stream.batch import slice_batch

from .attribute import SegmentColumns, concatenate
from .records import FrozenModel

if TYPE_CHECKING:
    from loader.stream.batch import Batch

    from ..head import VocabularyCut

__all__ = ["gradient_norm_gram", "gradient_norm_tiles", "score_batch", "scored_rows", "shuffle_batch"]

LOGIT_BUDGET = 1 << 25
"""Logits held at once: tokens of a sample x vocabulary entries (4 bytes each)."""
GRADIENT_TILE = 1024
"""Vocabulary entries per tile of the long form: tile x D floats at once."""
CHUNK_TOKENS = 1 << 14
"""Tokens of one forward pass, whole samples (one at least)."""
IGNORED = -100
_SHUFFLE_KEY = 0x7265656C


def gradient_norm_gram(errors_NV: torch.Tensor, hidden_ND: torch.Tensor) -> float:
    """||errors^T hidden||_F by the two N x N Gram matrices; cheapest while N < D."""
    product = (errors_NV @ errors_NV.T) * (hidden_ND @ hidden_ND.T)
    return float(product.sum().clamp(min=0.0).sqrt())


def gradient_norm_tiles(errors_NV: torch.Tensor, hidden_ND: torch.Tensor, tile: int = GRADIENT_TILE) -> float:
    """||errors^T hidden||_F by tiles of the vocabulary; cheapest from N = D on."""
    return float(_tiled_square(errors_NV, hidden_ND, tile).sqrt())


def _tiled_square(errors_NV: torch.Tensor, hidden_ND: torch.Tensor, tile: int) -> torch.Tensor:
    square = torch.zeros((), device=errors_NV.device)
    for errors_NC in torch.split(errors_NV, tile, dim=1):
        square = square + (errors_NC.T @ hidden_ND).square().sum()
    return square


@dataclasses.dataclass(frozen=True)
class _Weights:
    """The head in float32, on the model's device; with ``cut`` this process's rows of it."""

    weight_VD: torch.Tensor
    scale: float
    cut: VocabularyCut | None

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """A sum over the vocabulary, completed in place."""
        if self.cut is not None:
            dist.all_reduce(tensor, group=self.cut.group)
        return tensor

    def own(self, labels_T: torch.Tensor) -> torch.Tensor:
        """Labels as rows of ``weight_VD``; what lies outside of them is another process's, or no label."""
        return labels_T if self.cut is None else torch.where(labels_T >= 0, labels_T - self.cut.start, -1)


class _Head:
    """The head over one sample's hidden vectors, one vocabulary tile at a time."""

    def __init__(self, weights: _Weights, hidden_TD: torch.Tensor) -> None:
        self._weights, self._weight_VD, self._scale = weights, weights.weight_VD, weights.scale
        self._hidden_TD = hidden_TD
        vocabulary = self._weight_VD.shape[0]
        self._tile = max(1, min(vocabulary, LOGIT_BUDGET // max(1, hidden_TD.shape[0])))
        self._kept = self._logits(slice(0, vocabulary)) if self._tile == vocabulary else None
        nothing_T = hidden_TD.new_full((hidden_TD.shape[0],), float("-inf"))  # a process may hold no row at all
        partial = [nothing_T, *(logits_TC.logsumexp(1) for _, logits_TC in self.tiles())]
        self.log_total_T = self._over_all(torch.stack(partial).logsumexp(0))

    def _over_all(self, log_total_T: torch.Tensor) -> torch.Tensor:
        cut = self._weights.cut
        if cut is None:
            return log_total_T
        top_T = log_total_T.clone()
        dist.all_reduce(top_T, op=dist.ReduceOp.MAX, group=cut.group)
        return top_T + self._weights.sum_((log_total_T - top_T).exp()).log()

    def _logits(self, entries: slice) -> torch.Tensor:
        return self._scale * (self._hidden_TD @ self._weight_VD[entries].T)

    def tiles(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """(vocabulary entries, logits_TC) over the whole vocabulary."""
        vocabulary = self._weight_VD.shape[0]
        for start in range(0, vocabulary, self._tile):
            entries = slice(start, min(start + self._tile, vocabulary))
            yield entries, self._kept if self._kept is not None else self._logits(entries)

    def token_losses(self, labels_T: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, nats; 0 where the label is ignored."""
        own_T, rows = self._weights.own(labels_T), self._weight_VD.shape[0]
        here_T = (own_T >= 0) & (own_T < rows)
        at_label_T = torch.zeros_like(self.log_total_T)
        if rows:
            target_TD = self._weight_VD[own_T.clamp(0, rows - 1)]
            at_label_T = torch.where(here_T, self._scale * (self._hidden_TD * target_TD).sum(1), at_label_T)
        at_label_T = self._weights.sum_(at_label_T)
        return torch.where(labels_T >= 0, self.log_total_T - at_label_T, torch.zeros_like(at_label_T))

    def gradient_norms(self, labels_T: torch.Tensor, pieces: Sequence[slice]) -> torch.Tensor:
        """Norm of the head gradient of each piece's summed loss; all tokens of a piece but the last have labels."""
        width, device = self._hidden_TD.shape[1], self._hidden_TD.device
        labels_T = self._weights.own(labels_T)
        sizes = [piece.stop - piece.start for piece in pieces]
        grams = [torch.zeros(n, n, device=device) if n < width else None for n in sizes]
        squares = [torch.zeros((), device=device) for _ in pieces]
        for entries, logits_TC in self.tiles():
            for i, piece in enumerate(pieces):
                errors_NC = self._errors(logits_TC[piece], piece, labels_T[piece], entries)
                gram = grams[i]
                if gram is not None:
                    gram += errors_NC @ errors_NC.T
                else:
                    squares[i] = squares[i] + _tiled_square(errors_NC, self._hidden_TD[piece], GRADIENT_TILE)
        for i, (gram, piece) in enumerate(zip(grams, pieces, strict=True)):
            if gram is not None:
                hidden_ND = self._hidden_TD[piece]
                squares[i] = (gram * (hidden_ND @ hidden_ND.T)).sum()
        return abs(self._scale) * self._weights.sum_(torch.stack(squares)).clamp(min=0.0).sqrt()

    def _errors(self, logits_NC: torch.Tensor, piece: slice, labels_N: torch.Tensor, entries: slice) -> torch.Tensor:
        """P - Y of one tile."""
        errors_NC = (logits_NC - self.log_total_T[piece, None]).exp_()
        inside_N = (labels_N >= entries.start) & (labels_N < entries.stop)
        column_N = (labels_N - entries.start).clamp(0, logits_NC.shape[1] - 1)
        errors_NC.scatter_add_(1, column_N[:, None], -inside_N[:, None].to(errors_NC.dtype))
        return errors_NC


def shuffle_batch(batch: Batch) -> Batch:
    """The same batch with the tokens after each segment's first one permuted inside the segment, labels following.

    The first token stays: it may be the beginning-of-document token, and it is never a label. So the labels of a
    segment are the same multiset. The permutation is a function of the position alone.
    """
    tokens_BT, labels_BT = batch.tokens_BT.copy(), np.full_like(batch.labels_BT, IGNORED)
    keys_BT = [_keys(int(position), tokens_BT.shape[1]) for position in batch.positions_B]
    for row, start, stop in _pieces(batch):
        order = np.argsort(keys_BT[row][start + 1 : stop], kind="stable")
        tokens_BT[row, start + 1 : stop] = batch.tokens_BT[row, start + 1 : stop][order]
        labels_BT[row, start : stop - 1] = tokens_BT[row, start + 1 : stop]
    return dataclasses.replace(batch, tokens_BT=tokens_BT, labels_BT=labels_BT)


def _keys(position: int, count: int) -> NDArray[np.uint64]:
    generator = np.random.Philox(key=[_SHUFFLE_KEY, position])
    keys: NDArray[np.uint64] = generator.random_raw(count)
    return keys


def scored_rows(batch: Batch) -> NDArray[np.int64]:
    """Rows of the segment table with labels (neither padding nor masked nor a single token), by sample and start."""
    table = batch.segments
    labelled_S = batch.labels_BT[table.sample_index_S, table.token_start_S] != IGNORED
    rows_S = np.flatnonzero(~table.padding_S & (table.num_tokens_S >= 2) & labelled_S)
    order = np.lexsort((table.token_start_S[rows_S], table.sample_index_S[rows_S]))
    rows: NDArray[np.int64] = rows_S[order].astype(np.int64)
    return rows


def _pieces(batch: Batch) -> list[tuple[int, int, int]]:
    """(sample, first token, end) of every segment with labels, in the order of ``scored_rows``."""
    table, rows = batch.segments, scored_rows(batch)
    starts = table.token_start_S[rows].astype(np.int64)
    stops = starts + table.num_tokens_S[rows]
    return list(zip(table.sample_index_S[rows].tolist(), starts.tolist(), stops.tolist(), strict=True))


def _entropy(tokens_N: NDArray[np.int32]) -> float:
    """Entropy of the histogram of the tokens, nats."""
    share = np.unique(tokens_N, return_counts=True)[1] / len(tokens_N)
    return float(-(share * np.log(share)).sum())


def _repeated(tokens_N: NDArray[np.int32]) -> float:
    """Share of the runs of three tokens that occurred before in the segment."""
    wide_N = tokens_N.astype(np.int64)  # ids fit into 21 bits
    runs = wide_N[:-2] << 42 | wide_N[1:-1] << 21 | wide_N[2:]
    return 1.0 - len(np.unique(runs)) / len(runs) if len(runs) else 0.0


def _squeeze(tokens_N: NDArray[np.int32], token_bytes: Sequence[bytes] | None) -> float:
    """Compressed bytes / bytes of a segment."""
    if token_bytes is None:
        raw = tokens_N.astype("<u4").tobytes()
    else:
        raw = b"".join([token_bytes[t] for t in tokens_N.tolist()])
    return len(zlib.compress(raw, 6)) / max(1, len(raw))


def _model_columns(frozen: FrozenModel, weights: _Weights, batch: Batch) -> NDArray[np.float64]:
    """(4, S): mean loss, token variance, head gradient norm, mean loss of the shuffled tokens."""
    shuffled = shuffle_batch(batch)
    hidden_BTD, shuffled_BTD = frozen.hidden(batch).float(), frozen.hidden(shuffled).float()
    if not frozen.has_head:
        return np.zeros((4, 0))
    device = hidden_BTD.device
    labels_BT = torch.from_numpy(batch.labels_BT.astype(np.int64)).to(device)
    shuffled_labels_BT = torch.from_numpy(shuffled.labels_BT.astype(np.int64)).to(device)
    out: list[NDArray[np.float64]] = []
    for sample, group in itertools.groupby(_pieces(batch), key=lambda piece: piece[0]):
        pieces = [slice(start, stop - 1) for _, start, stop in group]  # the last token has no label
        head = _Head(weights, hidden_BTD[sample])
        losses_T = head.token_losses(labels_BT[sample]).double()
        shuffled_T = _Head(weights, shuffled_BTD[sample]).token_losses(shuffled_labels_BT[sample]).double()
        norms_S = head.gradient_norms(labels_BT[sample], pieces).double()
        del head
        sums_3T = torch.stack((losses_T, losses_T.square(), shuffled_T))
        means_3S = torch.stack([sums_3T[:, piece].mean(1) for piece in pieces], 1)
        variance_S = (means_3S[1] - means_3S[0].square()).clamp(min=0.0)
        out.append(torch.stack((means_3S[0], variance_S, norms_S, means_3S[2])).cpu().numpy())
    return np.concatenate(out, axis=1) if out else np.zeros((4, 0))


def score_batch(
    frozen: FrozenModel,
    batch: Batch,
    token_bytes: Sequence[bytes] | None,
    baseline: bool,
    most_samples: int | None = None,
) -> SegmentColumns:
    """Scores every labelled segment of a batch, ``CHUNK_TOKENS`` at a time.

    Args:
        frozen: the weights to score with.
        batch: a global batch, or this process's part of it.
        token_bytes: bytes of each token id, or None to compress raw ids.
        baseline: whether these rows are clean baseline.
        most_samples: of the process that has the most: a spread model is called equally often by all. None: as many as
            ``batch`` has.

    Returns:
        One row per segment with at least one label; ``source_S`` as in ``batch.source_B``. No rows on a process
        without the head.
    """
    num_samples, seq_len = batch.tokens_BT.shape
    weights = _Weights(frozen.head_weight_VD.detach().float(), frozen.logit_scale, frozen.cut)
    width = max(1, CHUNK_TOKENS // max(1, seq_len))
    most = num_samples if most_samples is None else most_samples
    with torch.no_grad():
        parts = [
            _score_chunk((frozen, weights), slice_batch(batch, start, start + width), token_bytes, baseline)
            for start in range(0, max(1, most), width)
        ]
    return concatenate(parts)


def _score_chunk(
    model: tuple[FrozenModel, _Weights], batch: Batch, token_bytes: Sequence[bytes] | None, baseline: bool
) -> SegmentColumns:
    table, rows = batch.segments, scored_rows(batch)
    loss_S, variance_S, gradient_S, shuffled_S = _model_columns(*model, batch)
    rows = rows if model[0].has_head else rows[:0]
    tokens = [batch.tokens_BT[sample, start:stop] for sample, start, stop in _pieces(batch)[: len(rows)]]
    sample_S = table.sample_index_S[rows]
    return SegmentColumns(
        source_S=batch.source_B[sample_S].astype(np.int32),
        document_S=table.document_id_S[rows].astype(np.uint64),
        step_S=np.full(len(rows), batch.step, np.int64),
        sample_S=batch.sample_B[sample_S].astype(np.int64),
        num_labels_S=(table.num_tokens_S[rows] - 1).astype(np.int64),
        baseline_S=np.full(len(rows), baseline),
        loss_S=loss_S,
        token_variance_S=variance_S,
        head_grad_S=gradient_S,
        shuffled_S=shuffled_S,
        entropy_S=np.array([_entropy(t[1:]) for t in tokens], np.float64),
        squeeze_S=np.array([_squeeze(t, token_bytes) for t in tokens], np.float64),
        repeated_S=np.array([_repeated(t) for t in tokens], np.float64),
    )
