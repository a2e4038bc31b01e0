"""The order is frozen: version 1 must say for ever what ``order_v1.json`` and ``order_shapes_v1.json`` say. Another
order needs another version.

``python -m tests.golden.test_order_golden`` from the repository root prints the vectors of the order at hand, with
``shapes`` those of the second file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from loader.order import (
    ORDER_VERSION,
    BatchStage,
    Cursor,
    MixtureStage,
    Plan,
    PlanConfig,
    SkipEntry,
    SkipList,
    SourceOrder,
    SourceShape,
    check_cursor,
    compile_mixture,
    make_cursor,
)

GOLDEN = Path(__file__).parent / "order_v1.json"
GOLDEN_SHAPES = Path(__file__).parent / "order_shapes_v1.json"
SEEDS = (0, 17, 2**63 - 1)
STAGES = (
    MixtureStage(0, {"web": 0.6, "books": 0.25, "code": 0.15}),
    MixtureStage(1024, {"web": 1, "books": 1, "papers": 2}),
    MixtureStage(1 << 30, {"code": 1e-6, "papers": 1}),
)
SHAPES = (
    SourceShape("web", [400, 400, 400, 400, 37]),
    SourceShape("books", [256]),
    SourceShape("code", [100, 0, 99, 1]),
    SourceShape("papers", [300, 301]),
)
ENTRIES = (
    SkipEntry("samples", "drop", 300, "web", ((0, 50), (1000, 1001))),
    SkipEntry("positions", "drop", 1500, ranges=((1400, 1600), (1900, 2222))),
    SkipEntry("samples", "drop", 1500, "books", ((7, 99),)),
    SkipEntry("segments", "mask", 1600, "code", ((3, 9),)),
)
DIGESTS = {"web": "1" * 32, "books": "2" * 32, "code": "3" * 32, "papers": "4" * 32}
NEXT_STEP = 60


def plan_of(seed: int) -> Plan:
    config = PlanConfig(SHAPES, seed, STAGES, (BatchStage(0, 32), BatchStage(2048, 64)))
    return Plan(config, SkipList(ENTRIES))


def digest(*arrays: Any) -> str:
    """xxh3-128 over arrays as little-endian int64."""
    return xxhash.xxh3_128_hexdigest(b"".join(np.ascontiguousarray(array, "<i8").tobytes() for array in arrays))


def order_vectors(seed: int) -> dict[str, Any]:
    order = SourceOrder([1000, 1000, 1000, 123, 0, 1], seed, 2, 3)
    epoch_N, sample_N = order.locate(np.arange(3 * order.num_samples))
    far = np.arange(10**10, 10**10 + 16)
    return {
        "first": sample_N[:24].tolist(),
        "far": order.locate(far)[1].tolist(),
        "three_epochs": digest(epoch_N, sample_N),
        "large_shards": digest(SourceOrder([131_064] * 20, seed).locate(np.arange(0, 2_600_000, 997))[1]),
    }


def mixture_vectors(seed: int) -> dict[str, Any]:
    mixture = compile_mixture(["web", "books", "code", "papers"], STAGES, seed)
    source_N, rank_N = mixture.locate(np.arange(4096))
    far = np.arange((1 << 35) + 100, (1 << 35) + 116)
    return {
        "first": source_N[:48].tolist(),
        "positions": digest(source_N, rank_N),
        "far": [array.tolist() for array in mixture.locate(far)],
        "counts": [mixture.counts_before(position).tolist() for position in (256, 1024, 12_345, 1 << 31)],
    }


def plan_vectors(seed: int) -> dict[str, Any]:
    plan = plan_of(seed)
    refs = plan.samples(np.arange(6000))
    return {
        "samples": digest(refs.source_N, refs.epoch_N, refs.sample_N),
        "steps": digest(*(plan.step_positions(step) for step in range(100))),
        "first_step": [[n[:8].tolist()] for n in (refs.source_N, refs.epoch_N, refs.sample_N)],
    }


def vectors() -> dict[str, Any]:
    """All vectors of the order at hand."""
    kinds = {"order": order_vectors, "mixture": mixture_vectors, "plan": plan_vectors}
    cursor = make_cursor(plan_of(SEEDS[1]), DIGESTS, next_step=NEXT_STEP)
    return {
        "order_version": ORDER_VERSION,
        "seeds": {str(seed): {kind: make(seed) for kind, make in kinds.items()} for seed in SEEDS},
        "cursor": cursor.to_json(),
        "entry_digests": [entry.digest for entry in ENTRIES],
    }


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(GOLDEN.read_text())
    return value


def test_the_order_is_what_it_was(golden: dict[str, Any]) -> None:
    here = json.loads(json.dumps(vectors()))
    assert here["order_version"] == golden["order_version"] == 1
    for seed in golden["seeds"]:
        for kind in golden["seeds"][seed]:
            assert here["seeds"][seed][kind] == golden["seeds"][seed][kind], f"{kind}, seed {seed}"
    assert here["entry_digests"] == golden["entry_digests"]
    assert here["cursor"] == golden["cursor"]


def test_a_cursor_of_version_1_is_accepted(golden: dict[str, Any]) -> None:
    check_cursor(Cursor.from_json(golden["cursor"]), plan_of(SEEDS[1]), DIGESTS)


def many_sources(seed: int) -> Plan:
    """256 sources with skewed weights over 40 stages, some out for a while, and two stamps in one of them."""
    names = [f"source {number}" for number in range(256)]
    stages = tuple(
        MixtureStage(256 * start, {name: 1e-4 + (n * start) % 7 for n, name in enumerate(names) if n != start})
        for start in range(0, 120, 3)
    )
    shapes = tuple(SourceShape(name, [number % 5 + 1] * (number % 4 + 1)) for number, name in enumerate(names))
    drop = (
        SkipEntry("samples", "drop", 1000, "source 251", ((0, 1),)),
        SkipEntry("samples", "drop", 5000, "source 251", ((3, 5),)),
    )
    return Plan(PlanConfig(shapes, seed, stages, (BatchStage(0, 1000),), 3, 2), SkipList(drop))


def ragged(seed: int) -> Plan:
    """A source of one sample, one of one-sample shards, one with empty shards, one large; every slice count matters."""
    shapes = (
        SourceShape("one", [1]),
        SourceShape("crumbs", [1] * 97),
        SourceShape("gaps", [0, 3, 0, 0, 1021, 2, 0]),
        SourceShape("large", [16_384] * 300 + [77]),
    )
    stages = (
        MixtureStage(0, {"one": 1e-3, "crumbs": 0.01, "gaps": 0.3, "large": 1}),
        MixtureStage(1 << 20, {"gaps": 1, "large": 3}),
    )
    cuts = SkipEntry("positions", "drop", 777, ranges=((0, 900), (5000, 5001), (6000, 9000), (8000, 8500)))
    return Plan(PlanConfig(shapes, seed, stages, (BatchStage(0, 17), BatchStage(4000, 512)), 5, 7), SkipList([cuts]))


def single(seed: int) -> Plan:
    """One source of prime size under both kinds of drops, one slice and one shard a window."""
    entries = (
        SkipEntry("samples", "drop", 0, "s", ((5, 9),)),
        SkipEntry("positions", "drop", 600, ranges=((640, 1280),)),
        SkipEntry("samples", "drop", 2500, "s", ((0, 700), (690, 800))),
    )
    config = PlanConfig(
        (SourceShape("s", [503, 503, 3]),), seed, (MixtureStage(0, {"s": 1}),), (BatchStage(0, 64),), 1, 1
    )
    return Plan(config, SkipList(entries))


def shape_vectors(plan: Plan) -> dict[str, Any]:
    """Samples near the start and far out, steps, counts and the inverse."""
    here = plan.samples(np.arange(12_000))
    far = [plan.samples(np.arange(start, start + 300)) for start in ((1 << 20) - 100, 1 << 30, (1 << 36) - 300)]
    name = plan.source_names[-1]
    return {
        "first": [[plan.source_names[s] for s in here.source_N[:16].tolist()], here.sample_N[:16].tolist()],
        "samples": digest(here.source_N, here.rank_N, here.epoch_N, here.sample_N),
        "far": [digest(refs.source_N, refs.rank_N, refs.epoch_N, refs.sample_N) for refs in far],
        "steps": digest(*(plan.step_positions(step) for step in range(20))),
        "counts": digest(*(plan.mixture.counts_before(position) for position in (255, 256, 9999, 1 << 21, 1 << 36))),
        "inverse": plan.positions_of_sample(name, 2, 12_000).tolist()[:12],
    }


def all_shapes() -> dict[str, Any]:
    """The vectors of each shape and seed."""
    return {name: {str(seed): shape_vectors(make(seed)) for seed in SEEDS} for name, make in MORE_SHAPES.items()}


MORE_SHAPES = {"many sources": many_sources, "ragged": ragged, "single": single}


@pytest.mark.parametrize("shape", MORE_SHAPES)
def test_every_shape_is_what_it_was(shape: str) -> None:
    golden = json.loads(GOLDEN_SHAPES.read_text())
    assert golden["order_version"] == ORDER_VERSION
    assert set(golden["shapes"]) == set(MORE_SHAPES)
    for seed in SEEDS:
        assert shape_vectors(MORE_SHAPES[shape](seed)) == golden["shapes"][shape][str(seed)], f"{shape}, seed {seed}"


if __name__ == "__main__":
    shown = {"order_version": ORDER_VERSION, "shapes": all_shapes()} if "shapes" in sys.argv else vectors()
    print(json.dumps(shown, indent=1))
