"""Which meshes are compared with one process: the tests hold them, ``benchmarks/trainer_parity.py`` prints them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from train.parallel.context import CONTEXT_METHODS
from train.parallel.pipeline import SCHEDULES
from train.world import World

from .parity import Case, Outcome, main, run_case
from .worlds import run_ranks

__all__ = ["OPTIONS", "REFUSED", "WORLDS", "reference", "run_world"]

TIED = {"tied": True, "kv_heads": 2}
DROPOUT: dict[str, Any] = {"dropout": {"residual": 0.2, "attention": 0.1, "embedding": 0.1}}
SCALED: dict[str, Any] = {
    "mup": {"base_dim": 8, "base_head_dim": 4},
    "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_context": 16},
}
PLAIN: dict[str, Any] = {}


def case(name: str, model: Mapping[str, Any] = PLAIN, micro_batch: int | None = None, **parallel: Any) -> Case:
    return Case(name, parallel, model, micro_batch=micro_batch)


TWO = [
    case("ddp", data="ddp"),
    case("zero2", micro_batch=3, data="zero2"),
    case("fsdp", data="fsdp"),
    case("fsdp, reduced behind each micro-batch, two blocks ahead", micro_batch=2, reduce="each", prefetch_blocks=2),
    replace(case("fsdp, tied, unequal ranks, one idles", TIED, 1, data="fsdp"), rows=5),
    case("hsdp, replicas only", data="hsdp", replicas=2),
    case("tensor", TIED | {"kv_heads": 4}, tensor=2),
    case("tensor, whole vocabulary", tensor=2, vocabulary=False),
    case("tensor, sequence", TIED, 4, tensor=2, sequence=True),
    case("tensor, sequence, whole vocabulary", tensor=2, sequence=True, vocabulary=False),
    *(case(f"pipeline {name}", micro_batch=2, pipeline=2, schedule=name) for name in SCHEDULES),
    case("pipeline 1f1b, tied", TIED, 2, pipeline=2),
    *(case(f"context {name}", TIED, context=2, context_method=name) for name in CONTEXT_METHODS),
    replace(case("fsdp, full recompute", micro_batch=2, data="fsdp"), recompute="full"),
    replace(case("pipeline, selective recompute", micro_batch=2, pipeline=2), recompute="selective"),
    replace(case("tensor, full recompute", tensor=2, sequence=True), recompute="full"),
    replace(case("fsdp, bf16", TIED, 2, data="fsdp"), precision="bf16"),
    replace(case("tensor, bf16", tensor=2, sequence=True), precision="bf16"),
    replace(case("fsdp, fp16 with overflows", data="fsdp"), precision="fp16", loss_scale=2.0**26),
]
OPTIONS = [
    Case("dropout, unequal micro-batches", {"data": "ddp"}, DROPOUT, micro_batch=3, steps=3),
    Case("dropout, tensor", {"tensor": 2, "sequence": True}, DROPOUT, micro_batch=4, steps=3),
    Case("dropout, tensor, whole tokens", {"tensor": 2, "vocabulary": False}, DROPOUT, steps=3),
    Case("dropout, pipeline, recomputed", {"pipeline": 2}, DROPOUT, micro_batch=2, steps=3, recompute="full"),
    Case("dropout, zigzag", {"context": 2, "context_method": "zigzag"}, DROPOUT, steps=3),
    Case("mup and yarn, tensor", {"tensor": 2, "sequence": True}, SCALED, steps=3),
]
"""Dropout, muP and scaled positions on a mesh."""
FOUR = [
    case("hsdp 2x2", data="hsdp", replicas=2),
    replace(case("fewer rows than ranks", TIED, 2, data="fsdp"), rows=3),
    case("tensor 4, sequence", {"vocab_size": 50}, tensor=4, sequence=True),
    case("tensor 4, a rank without a row of the vocabulary", {"vocab_size": 9, "tied": True}, tensor=4),
    case("data x tensor", TIED, tensor=2, sequence=True),
    case("ddp x tensor", data="ddp", tensor=2),
    case("pipeline 4", micro_batch=1, pipeline=4),
    *(
        case(f"data x pipeline {name}", TIED if name != "zbv" else PLAIN, 1, pipeline=2, schedule=name)
        for name in SCHEDULES
    ),
    case("tensor x pipeline", TIED, 2, tensor=2, sequence=True, pipeline=2),
    *(case(f"data x context {name}", micro_batch=2, context=2, context_method=name) for name in CONTEXT_METHODS),
    case("context zigzag 4", context=4),
    case("tensor x context", tensor=2, sequence=True, context=2),
    case("context x pipeline", micro_batch=2, context=2, pipeline=2, schedule="interleaved"),
]
EIGHT = [
    case("data x tensor x pipeline", TIED, 1, tensor=2, sequence=True, pipeline=2),
    case("data x tensor x pipeline, zero bubble", {}, 1, tensor=2, pipeline=2, schedule="zero_bubble"),
    case("hsdp x tensor", data="hsdp", replicas=2, tensor=2),
    case("tensor x context x pipeline", {}, 2, tensor=2, context=2, context_method="ulysses", pipeline=2),
    case("data x tensor x context", {}, 2, tensor=2, sequence=True, context=2),
]
WORLDS = {2: [*TWO, *OPTIONS], 4: FOUR, 8: EIGHT}

_SPLIT = case("backward in two", micro_batch=2, pipeline=2, schedule="zero_bubble")
REFUSED = {
    2: [
        (case("processes", tensor=3), "TR-PARALLEL-MESH", "tensor 3"),
        (case("replicas", data="hsdp", replicas=4), "TR-PARALLEL-MESH", "parallel.replicas"),
        (case("heads", {"kv_heads": 1}, tensor=2), "TR-PARALLEL-TENSOR", "model.kv_heads"),
        (case("tokens", {"seq_len": 25}, tensor=2, sequence=True), "TR-PARALLEL-TENSOR", "parallel.sequence"),
        (case("chunks", {"seq_len": 26}, context=2), "TR-PARALLEL-CONTEXT", "seq_len"),
        (case("exchanged heads", {"kv_heads": 1}, context=2, context_method="ulysses"),
         "TR-PARALLEL-CONTEXT", "kv_heads"),
        (case("blocks", {"layers": 3}, 2, pipeline=2, schedule="interleaved"),
         "TR-PARALLEL-PIPELINE", "parallel.pipeline"),
        (case("one micro-batch", pipeline=2), "TR-PARALLEL-PIPELINE", "micro_batch"),
        (case("ragged micro-batches", micro_batch=3, pipeline=2), "TR-PARALLEL-BATCH", "micro_batch"),
        (case("both ends", TIED, 2, pipeline=2, schedule="zbv"), "TR-PARALLEL-TIED", "model.tied"),
        (replace(_SPLIT, recompute="selective"), "TR-PARALLEL-RECOMPUTE", "run.recompute"),
        (replace(_SPLIT, name="compiled, backward in two", compile=True), "TR-PARALLEL-RECOMPUTE", "run.compile"),
        *(
            (replace(_SPLIT, name=f"zbv, {key}", parallel={"pipeline": 2, "schedule": "zbv"}, **{key: value}),
             "TR-PARALLEL-RECOMPUTE", f"run.{key}")
            for key, value in (("recompute", "selective"), ("compile", True))
        ),
    ],
    4: [(replace(case("data ranks", micro_batch=1, pipeline=2), rows=7), "TR-PARALLEL-BATCH", "data.batch")],
}  # fmt: skip
"""What no mesh can train, with the code and the key that each refusal names."""


@functools.cache
def _alone(text: str) -> Outcome:
    torch.set_num_threads(1)
    return run_case(Case(**json.loads(text)), World())


def reference(one: Case) -> Outcome:
    """The same training in this process; whole batches, so that micro-batches are compared too."""
    plain = replace(one, name="", parallel={}, micro_batch=None, recompute="none", compile=False)
    return _alone(json.dumps(asdict(plain)))


def run_world(size: int, cases: Sequence[Case], out: Path, timeout_s: float) -> tuple[dict[str, dict[str, Any]], str]:
    """All ``cases`` in one world of ``size`` forked processes: outcomes by name; what went wrong (empty: nothing)."""
    texts = [json.dumps(asdict(one)) for one in cases]
    ended = run_ranks(lambda rank: main(str(out), texts), size, out.with_suffix(".world"), limit_s=timeout_s)
    lines = out.read_text().splitlines() if out.exists() else []
    errors = [f"exit code {one.code}: {one.text}" for one in ended if one.code]
    return {line["case"]: line for line in map(json.loads, lines)}, "\n".join(errors)
