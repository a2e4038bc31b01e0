"""Bytes that one micro-batch keeps on a rank for its backward pass, tensor by tensor as ``train.model`` makes them.

Read off what autograd saves, and held by a test that counts live bytes. Norms run in float32 under autocast.

    norm (two a block)   input in float32, one number a row; without a fused kernel also the normalised input
    queries, keys, values, gate, up     their common input, once for each of the two groups
    attention            queries, keys, values, output, one number a head and token
    out, down            their inputs: the attention's output (shared with it) and the product of gate and up
    gate                 silu's input and output, and the other factor

With tensor ranks t everything behind a cut by columns is divided by t; with ``sequence`` norms too, while the gathered
inputs of the matrices stay whole. Without it each rank keeps the same inputs.
"""

from __future__ import annotations

from ..model_shape import ModelShape
from .sizes import MeshSizes, StepSizes

__all__ = ["block_bytes", "block_input_bytes", "block_kept_bytes", "block_working_bytes", "head_input_bytes", "tokens"]

_FLOAT32 = 4


def tokens(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> int:
    """Tokens of one micro-batch on a rank, outside of sequence parallel parts."""
    return step.micro_batch * model.seq_len // mesh.context


def _norm(width: int, rows: float, step: StepSizes) -> float:
    """One norm over rows of ``width`` numbers."""
    copies = 1 if step.kernels.fused_norm else 2
    return rows * (copies * _FLOAT32 * width + _FLOAT32)


def _attention(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """Bytes a token: queries, keys, values, output and its statistics."""
    query, key = model.query_width / mesh.tensor, model.key_width / mesh.tensor
    heads, kv_heads = model.heads / mesh.tensor, model.kv_heads / mesh.tensor
    key = query if step.kernels.expands_heads else key
    spread = mesh.context if mesh.context_method == "zigzag" else 1  # keys and values of all ranks are gathered
    outputs = 1 + step.kernels.joins_documents + (mesh.context > 1)  # a copy each: joined, or put back in place
    numbers = query + 2 * key * spread + outputs * query
    total = numbers * step.compute_bytes + _FLOAT32 * heads
    if model.qk_norm:
        total += _norm(model.head_dim, heads + kv_heads, step)
    return total


def block_bytes(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """What one block keeps of one micro-batch when nothing is computed again."""
    count = tokens(model, mesh, step)
    norm_rows = count / (mesh.tensor if mesh.sequence else 1)
    kept = 2 * _norm(model.dim, norm_rows, step)
    inputs = 2 * model.dim * step.compute_bytes
    feed_forward = 4 * model.ffn / mesh.tensor * step.compute_bytes
    return kept + count * (inputs + _attention(model, mesh, step) + feed_forward)


def block_input_bytes(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """The hidden vectors that enter a block: all that ``recompute: full`` keeps of it."""
    return tokens(model, mesh, step) / (mesh.tensor if mesh.sequence else 1) * model.dim * step.compute_bytes


def _selective(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """What matrices and attention gave, and the block's input."""
    attention = 2 * model.query_width + 2 * model.key_width
    cut = (attention + 2 * model.ffn) / mesh.tensor * step.compute_bytes + _FLOAT32 * model.heads / mesh.tensor
    return block_input_bytes(model, mesh, step) * 3 + tokens(model, mesh, step) * cut


def block_kept_bytes(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """What one block keeps of one micro-batch under the step's ``recompute``."""
    if step.recompute == "full":
        return block_input_bytes(model, mesh, step)
    if step.recompute == "selective":
        return _selective(model, mesh, step)
    return block_bytes(model, mesh, step)


def block_working_bytes(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """What the backward pass of one block needs beside what was kept: three gradients of the feed-forward width, two
    of the model's where they are cast; and what of the block's own activations is computed again.
    """
    cast = step.compute_bytes < _FLOAT32
    widths = 3 * model.ffn / mesh.tensor + (2 * model.dim if cast else 0)
    gradients = widths * step.compute_bytes * tokens(model, mesh, step)
    if step.recompute == "none":
        return gradients
    again = block_bytes(model, mesh, step) - block_kept_bytes(model, mesh, step)
    if cast:  # the norm keeps its input in float32, so the one that was kept stays beside it
        again += block_input_bytes(model, mesh, step)
    return gradients + again


def head_input_bytes(model: ModelShape, mesh: MeshSizes, step: StepSizes) -> float:
    """What the last norm keeps, and the gradient of the hidden vectors that the fused head keeps."""
    count = tokens(model, mesh, step)
    rows = count / (mesh.tensor if mesh.sequence else 1)
    return _norm(model.dim, rows, step) + count * model.dim * step.compute_bytes
