"""Trainer figures: tokens a CPU second, what a checkpoint stalls, what the ledger costs.

    python benchmarks/trainer.py [--quick] [--json]
    python benchmarks/trainer.py --tables [--quick] [--json]    # parity, resume and kill, checkpoints: their scripts

CPU seconds are user + system of this process on one thread. Ours and the peer take turns step by step in one run, so
that both meet the same machine; the figure is the median, the ratio that of the medians. The peer of the step is a
plain torch model of the same sizes (separate projections, unfused cross entropy, boolean mask, foreach AdamW), that of
the stall a copy of the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rows import print_rows
from benchmarks.trainer_metrics import metrics_costs
from loader.ledger import LedgerRecord, LedgerWriter
from train.attention import ATTENTION, available_backends, choose_attention
from train.checkpoint import CheckpointFacts
from train.inputs import InputOptions, to_inputs
from train.metrics.flops import token_flops
from train.model import Decoder, ModelShape
from train.model_config import PRESETS
from train.optim import Optimizer
from train.optim_config import OptimizerConfig
from train.precision import PRECISIONS
from train.saver import Saver
from train.world import World

Row = dict[str, Any]
TABLES = [("parity", "trainer_parity.py"), ("resume", "trainer_resume.py"), ("checkpoints", "trainer_checkpoints.py")]
SEQ_LEN, ROWS, VOCAB_SIZE = 256, 8, 3072
CPU = torch.device("cpu")


def row(name: str, value: float, unit: str, **more: Any) -> Row:
    """One result; ``target`` is (relation, bound) on the ratio, or on the value where there is no peer."""
    peer_value, target = more.get("peer_value"), more.get("target")
    ratio = value / peer_value if peer_value else None
    figure = value if ratio is None else ratio
    holds = None
    if target is not None:
        holds = figure <= target[1] if target[0] == "<=" else figure >= target[1]
    return {
        "name": name,
        "value": round(value, 5),
        "unit": unit,
        "peer": more.get("peer"),
        "peer_value": None if peer_value is None else round(peer_value, 5),
        "ratio": None if ratio is None else round(ratio, 4),
        "target": None if target is None else f"{'' if ratio is None else 'ratio '}{target[0]} {target[1]}",
        "holds": holds,
    }


def by_turns(rounds: int, **work: Callable[[], object]) -> dict[str, float]:
    """Median CPU seconds of each piece of work, taken in turn ``rounds`` times after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(rounds + 1):
        for name, function in work.items():
            begin = time.process_time()
            function()
            if turn:
                times[name].append(time.process_time() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def make_batch(segments_per_row: int) -> Any:
    """Random tokens in packed segments."""
    rng = np.random.default_rng(0)
    tokens_BT = rng.integers(0, VOCAB_SIZE, (ROWS, SEQ_LEN))
    segment_of_BT = np.zeros((ROWS, SEQ_LEN), np.int64)
    positions_BT = np.zeros((ROWS, SEQ_LEN), np.int64)
    for index in range(ROWS):
        cuts = sorted(rng.choice(np.arange(1, SEQ_LEN), segments_per_row - 1, replace=False).tolist())
        for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, SEQ_LEN], strict=True)):
            segment_of_BT[index, start:stop] = index * segments_per_row + number
            positions_BT[index, start:stop] = np.arange(stop - start)
    return SimpleNamespace(
        tokens_BT=tokens_BT,
        labels_BT=np.roll(tokens_BT, -1, axis=1),
        segment_of_BT=segment_of_BT,
        token_positions_BT=positions_BT,
        positions_B=np.arange(ROWS),
        cu_seqlens_C=np.zeros(ROWS * segments_per_row + 1, np.int32),  # its length alone is read
    )


class PlainBlock(nn.Module):
    """A block as one writes it without thinking of speed."""

    def __init__(self, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)
        self.first, self.second = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        def rotate(t: Tensor) -> Tensor:
            left, right = t.chunk(2, -1)
            return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

        h = rms_norm(x, (x.shape[-1],), self.first)
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = scaled_dot_product_attention(rotate(q), rotate(k), v, attn_mask=mask)
        x = x + self.o(out.transpose(1, 2).flatten(2))
        h = rms_norm(x, (x.shape[-1],), self.second)
        return x + self.down(silu(self.gate(h)) * self.up(h))


class PlainModel(nn.Module):
    """The peer: the same sizes, plain torch."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.dim)
        self.blocks = nn.ModuleList(PlainBlock(shape.dim, shape.heads, shape.ffn) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.dim))
        self.head = nn.Linear(shape.dim, shape.vocab_size, bias=False)
        inverse = 1e4 ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angles = torch.outer(torch.arange(shape.seq_len), inverse)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens: Tensor, positions: Tensor, segment_of: Tensor) -> Tensor:
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        mask = ((segment_of[:, :, None] == segment_of[:, None, :]) & causal)[:, None]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[positions][:, None], self.sin[positions][:, None], mask)
        return self.head(rms_norm(x, (x.shape[-1],), self.norm))


def tiny_shape() -> ModelShape:
    """The preset ``tiny`` as the demo uses it."""
    sizes = PRESETS["tiny"]
    return ModelShape(VOCAB_SIZE, sizes.dim, sizes.layers, sizes.heads, sizes.kv_heads, sizes.ffn, SEQ_LEN)


def our_step(attention: str | None, batch: Any) -> Callable[[], object]:
    """Forward, backward, clip, update, update norm."""
    backend = choose_attention(attention, CPU, SEQ_LEN)
    model = Decoder(tiny_shape(), backend, PRECISIONS["fp32"]).initialize(0)
    optimizer = Optimizer(list(model.named_parameters()), OptimizerConfig())
    options = InputOptions(CPU, backend, torch.float32)
    denominator = torch.tensor(float(batch.tokens_BT.size))

    def step() -> None:
        optimizer.zero_gradients()
        objective, _ = model(to_inputs(batch, options), denominator)
        objective.backward()
        optimizer.step(1e-3, objective.detach())

    return step


def peer_step(batch: Any) -> Callable[[], object]:
    """The same in plain torch."""
    model = PlainModel(tiny_shape())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    tokens, labels, positions, segment_of = (
        torch.from_numpy(array)
        for array in (batch.tokens_BT, batch.labels_BT, batch.token_positions_BT, batch.segment_of_BT)
    )

    def step() -> None:
        logits = model(tokens, positions, segment_of)
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").sum() / labels.numel()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps(rounds: int) -> tuple[list[Row], float]:
    """Rows of the step, and our CPU seconds a step."""
    packed = make_batch(2)
    backends = available_backends(CPU, torch.float32)
    work = {name: our_step(name, packed) for name in backends}
    found = by_turns(rounds, ours=our_step(None, packed), plain=peer_step(packed), **work)
    num_tokens = packed.tokens_BT.size
    rates = {name: num_tokens / seconds for name, seconds in found.items()}
    rows = [
        row("tiny, fp32: training", rates["ours"], "tokens/CPU s", peer="plain torch", peer_value=rates["plain"],
            target=(">=", 1.0)),
        row("tiny, fp32: arithmetic", token_flops(tiny_shape()).total * rates["ours"] / 1e9, "GFLOP/s",
            peer="matrix product", peer_value=matrix_rate()),
    ]  # fmt: skip
    for name in backends:
        rows.append(row(f"  with attention {name}", rates[name], "tokens/CPU s"))
    return rows, found["ours"]


def matrix_rate() -> float:
    """GFLOP/s of a float32 matrix product of the feed-forward's shape."""
    left, right = torch.randn(ROWS * SEQ_LEN, 128), torch.randn(128, 768)
    seconds = by_turns(20, product=lambda: left @ right)["product"]
    return 2.0 * left.numel() * right.shape[1] / seconds / 1e9


def checkpoints(rounds: int, dim: int) -> list[Row]:
    """What the loop waits for a checkpoint, against a copy of the same bytes, in wall seconds."""
    shape = ModelShape(4096, dim, 8, 4, 4, 3 * dim, 64)
    model = Decoder(shape, ATTENTION["sdpa_loop"], PRECISIONS["fp32"]).initialize(0)
    optimizer = Optimizer(list(model.named_parameters()), OptimizerConfig())
    tensors = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    tensors.update({f"optimizer.{name}": tensor for name, tensor in optimizer.state_tensors()})
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    targets = [torch.empty_like(tensor) for tensor in tensors.values()]
    stalls, copies, writes = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(Path(folder), World())
        for number in range(rounds + 1):
            begin = time.perf_counter()
            for target, tensor in zip(targets, tensors.values(), strict=True):
                target.copy_(tensor)
            copied = time.perf_counter()
            saver.save(tensors, CheckpointFacts(number, 0, 0, number, {}, {}, {}), lambda checkpoint: None)
            stalled = time.perf_counter()
            saver.wait()
            if number:
                copies.append(copied - begin)
                stalls.append(stalled - copied)
                writes.append(time.perf_counter() - copied)
    megabytes = size_bytes / 1e6
    stall, copy, write = (statistics.median(found) for found in (stalls, copies, writes))
    return [
        row(f"checkpoint of {megabytes:.0f} MB: stall", stall * 1e3, "ms", peer="copy", peer_value=copy * 1e3,
            target=("<=", 1.5)),
        row(f"checkpoint of {megabytes:.0f} MB: copy, write, hash, sync", megabytes / write, "MB/s"),
    ]  # fmt: skip


def ledger(records: int, step_s: float) -> list[Row]:
    """CPU time of one appended record (five sources), as a share of a step of the tiny model."""
    with tempfile.TemporaryDirectory() as folder, LedgerWriter(Path(folder), 0, 0, 5) as writer:
        begin = time.process_time()
        for step in range(records):
            writer.append(
                LedgerRecord(step, step * 8, step * 8 + 8, 2048, step, 3.0, 1.0, 0.1, 3e-3, [1.0] * 5, [400] * 5)
            )
        each_s = (time.process_time() - begin) / records
    return [
        row("ledger: one step", each_s * 1e6, "us"),
        row("ledger: share of a step", each_s / step_s, "", target=("<=", 0.001)),
    ]


def machine() -> dict[str, float]:
    """memcpy and xxh3 of this machine, MB per CPU second."""
    data = np.ones(1 << 26, np.uint8)
    target = np.empty_like(data)
    found = by_turns(5, copy=lambda: np.copyto(target, data), hash=lambda: xxhash.xxh3_128_digest(data.data))
    return {name: round(len(data) / seconds / 1e6) for name, seconds in found.items()}


def table_commands(quick: bool) -> list[list[str]]:
    """How the tables are made: each by a process of its own, because some of them fork and join process groups."""
    here = Path(__file__).resolve().parent
    return [[sys.executable, str(here / script), *(["--quick"] if quick else []), "--json"] for _, script in TABLES]


def tables(quick: bool) -> list[Row]:
    """The rows of all tables, named after them; one that could not be made is a row that does not hold."""
    rows: list[Row] = []
    for (name, script), command in zip(TABLES, table_commands(quick), strict=True):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            rows.append(row(f"{name}: {script} ended with {done.returncode}", 1, "", target=("<=", 0)))
        else:
            rows += [{**one, "name": f"{name}: {one['name'].strip()}"} for one in json.loads(done.stdout)]
    return rows


def measured(quick: bool) -> list[Row]:
    """The figures of this script."""
    rows, step_s = steps(5 if quick else 25)
    rows += checkpoints(3 if quick else 7, 128 if quick else 256)
    rows += ledger(2_000 if quick else 20_000, step_s)
    return rows + metrics_costs(2_000 if quick else 20_000, row)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="Trainer figures.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a smaller checkpoint; under a minute")
    parser.add_argument("--json", action="store_true", help="one JSON list of rows")
    parser.add_argument("--tables", action="store_true", help="instead: the parity, resume, kill and checkpoint tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = tables(options.quick) if options.tables else measured(options.quick)
    if options.json or options.tables:
        print_rows(rows, options.json)
        return
    print("machine:", ", ".join(f"{name} {value} MB/CPU s" for name, value in machine().items()))
    for one in rows:
        peer = "" if one["peer"] is None else f"{one['peer']} {one['peer_value']}, ratio {one['ratio']}"
        verdict = "" if one["holds"] is None else ("holds" if one["holds"] else "MISSED")
        value = one["value"] if math.isfinite(one["value"]) else "-"
        print(f"{one['name']:<46}{value:>14} {one['unit']:<13}{one['target'] or '':<14}{verdict:<8}{peer}")


if __name__ == "__main__":
    main()
