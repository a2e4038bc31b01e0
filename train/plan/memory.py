"""Bytes of one rank: what lies there all the time, and the moment of a step that needs most.

Parameters, gradients and both AdamW moments are float32: 16 bytes a parameter, cut over the ranks that share the state.
Whoever computes in another dtype holds a copy of the matrices in it: of all of them between forward and backward, or
with ``fsdp`` and ``hsdp`` of two blocks (the one at work and the next) and of embedding and head. The head is fused
with the loss (``train.head``): logits exist in pieces only, but the weights' gradient is formed in the forward pass and
kept, in float32, once for every micro-batch that waits.

Four moments are looked at: the end of the forward passes, the head, the backward pass of a block, the update.
``RESERVE``: what no tensor of ours explains (CUDA context, collectives' buffers, fragments): an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model_shape import ModelShape
from .activations import (
    block_kept_bytes,
    block_working_bytes,
    head_input_bytes,
    tokens,
)
from .parameters import block_gains, block_matrices
from .pipeline import PartSizes, chunks_of, rank_parts, waiting_chunks
from .sizes import MeshSizes, StepSizes

__all__ = ["RESERVE_BYTES", "RESERVE_FRACTION", "RankMemory", "part_parameters", "rank_memory"]

_FLOAT32 = 4
_PIECE_NUMBERS = 1 << 22  # as in train.head
_LEAST_ROWS = 16
RESERVE_BYTES = 2 << 30
"""CUDA context and buffers of collectives."""
RESERVE_FRACTION = 0.05
"""Of what tensors take: fragments between them."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one pipeline rank; its data, context and tensor ranks are alike.

    Attributes:
        rank: in the pipeline. blocks: that it holds. num_parameters: that it holds before they are cut over the ranks
            that share the state.
        parameters, gradients, optimizer: float32, this rank's part.
        copies: of matrices in the compute dtype, or gathered ones.
        activations: of all micro-batches that wait. head: what the fused head keeps and needs.
        working: of the backward pass of one block.
        peak: the largest sum of any moment. peak_at: which.
    """

    rank: int
    blocks: int
    num_parameters: int
    parameters: float
    gradients: float
    optimizer: float
    copies: float
    activations: float
    head: float
    working: float
    peak: float
    peak_at: str

    @property
    def needed(self) -> float:
        """The peak and the reserve of a GPU."""
        return self.peak * (1 + RESERVE_FRACTION) + RESERVE_BYTES


def _table(model: ModelShape, mesh: MeshSizes) -> int:
    """Numbers of the embedding or the head on a rank."""
    rows = -(-model.vocab_size // mesh.tensor) if mesh.vocabulary else model.vocab_size
    return rows * model.dim


def part_parameters(model: ModelShape, mesh: MeshSizes, part: PartSizes) -> int:
    """Parameters of a pipeline rank after the cut over tensor ranks."""
    blocks = part.num_blocks * (block_matrices(model) // mesh.tensor + block_gains(model))
    tables = int(part.first) + int(part.last)
    if model.tied and tables == 2:
        tables = 1
    return blocks + tables * _table(model, mesh) + (model.dim if part.last else 0)


@dataclass(frozen=True)
class _Pieces:
    """What the moments are summed from, in bytes."""

    fixed: float
    gradients: float
    accumulated: float
    copies: float
    block_copies: float
    activations: float
    head_kept: float
    head_working: float
    head_gradient: float
    working: float
    largest: float

    def moments(self, step: StepSizes) -> dict[str, float]:
        """Name -> bytes."""
        between = self.fixed + self.accumulated + self.activations
        late_copies = self.copies if step.recompute == "none" else self.block_copies
        return {
            "forward": between + self.copies,
            "head": between + late_copies + self.head_kept + self.head_working,
            "block": between + late_copies + max(self.head_gradient - self.accumulated, 0.0) + self.working,
            "update": self.fixed + self.gradients + self.largest,
        }


def _copies(model: ModelShape, mesh: MeshSizes, step: StepSizes, part: PartSizes) -> tuple[float, float]:
    """Bytes of matrices in the compute dtype: most at once, and those of the block at work."""
    block = block_matrices(model) / mesh.tensor * step.compute_bytes
    tables = (int(part.first) + int(part.last)) * _table(model, mesh) * step.compute_bytes
    if mesh.sharers == 1:  # autocast's, of the blocks: the embedding is not cast, the head's copy is the head's
        if step.compute_bytes == _FLOAT32:
            return 0.0, 0.0
        return part.num_blocks * block, block
    if mesh.sharing in ("fsdp", "hsdp") and mesh.pipeline == 1:
        gathered = min(2, part.num_blocks) * block + tables
        reduced = block / step.compute_bytes * (step.compute_bytes + _FLOAT32)
        return gathered + reduced, gathered + reduced
    whole = part.num_blocks * block + tables
    return whole, whole


def _head(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> tuple[float, float]:
    """Bytes that the fused head keeps of one micro-batch, and that it needs at once."""
    table = _table(model, mesh)
    rows, columns = tokens(model, mesh, step), table // model.dim
    piece = min(rows, max(_LEAST_ROWS, _PIECE_NUMBERS // model.vocab_size)) * columns
    low = 0 if step.compute_bytes == _FLOAT32 else step.compute_bytes
    forward = low * table + max(piece * (_FLOAT32 + low), piece * low + low * table)
    forward += rows * model.dim * step.compute_bytes
    backward = table * _FLOAT32 + rows * model.dim * step.compute_bytes
    return table * _FLOAT32 + head_input_bytes(model, mesh, step), max(forward, backward)


def rank_memory(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> list[RankMemory]:
    """The memory of every pipeline rank."""
    micro_batches = step.micro_batches(mesh.data)
    return [
        _one_rank(model, mesh, step, (rank, part, waiting_chunks(mesh, rank, micro_batches)))
        for rank, part in enumerate(rank_parts(model.layers, mesh))
    ]


def _one_rank(model: ModelShape, mesh: MeshSizes, step: StepSizes, work: tuple[int, PartSizes, int]) -> RankMemory:
    rank, part, waiting = work
    micro_batches = step.micro_batches(mesh.data)
    count = part_parameters(model, mesh, part)
    share = count / mesh.shards * _FLOAT32
    whole_gradients = mesh.sharers > 1 and micro_batches > 1  # reduced with the last micro-batch only
    gradients = count * _FLOAT32 if whole_gradients else share
    copies, block_copies = _copies(model, mesh, step, part)
    chunk_blocks = part.num_blocks / chunks_of(mesh)
    small = tokens(model, mesh, step) * (4 * 8 + _FLOAT32 * model.head_dim)  # ids, labels, positions, rotation
    mask = step.micro_batch * model.seq_len**2 * step.compute_bytes if step.kernels.dense_mask else 0
    activations = waiting * (chunk_blocks * block_kept_bytes(model, mesh, step) + small + mask)
    kept, needed = _head(model, mesh, step) if part.last else (0.0, 0.0)
    heads_waiting = max(1, min(micro_batches, waiting if mesh.schedule == "gpipe" else 1))
    table = _table(model, mesh) * _FLOAT32
    pieces = _Pieces(
        fixed=3 * share,
        gradients=gradients,
        accumulated=gradients if micro_batches > 1 else 0.0,
        copies=copies,
        block_copies=block_copies,
        activations=activations,
        head_kept=kept * heads_waiting,
        head_working=needed,
        head_gradient=table if part.last else 0.0,
        working=block_working_bytes(model, mesh, step),
        largest=max(table if part.first or part.last else 0, model.ffn * model.dim / mesh.tensor * _FLOAT32)
        / mesh.shards,
    )
    moments = pieces.moments(step)
    peak_at = max(moments, key=lambda name: moments[name])
    return RankMemory(
        rank, part.num_blocks, count, share, gradients, 2 * share, copies, activations,
        pieces.head_kept + needed, pieces.working, moments[peak_at], peak_at,
    )  # fmt: skip
