"""Order figures: look-up both ways, build and resume at 1e12 tokens, mixing deviation, skip lists, shuffle quality.

    python benchmarks/order.py [--quick] [--json]

CPU seconds are user + system of this process, the least of several rounds. Where there is no peer the row judges the
absolute figure; the machine's memcpy and xxh3 rates stand beside it. The peer of the epoch build is mosaicml-streaming
(default shuffle py1e), if it is installed, on the same number of samples; that of the deviation is independent draws.
Shuffle quality (``order_quality.py``) stands beside py1e and py1br.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import numpy as np
import xxhash

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.order_quality import compare
from benchmarks.rows import Row, cpu_s, print_rows, row
from loader.order import (
    BLOCK,
    BatchStage,
    MixtureStage,
    Plan,
    PlanConfig,
    SkipEntry,
    SkipList,
    SourceOrder,
    SourceShape,
    compile_mixture,
)

TRILLION_SHARDS, SHARD_SAMPLES, BATCH = 29_786, 16_384, 1024


def trillion(num_sources: int, skips: SkipList | None = None) -> Plan:
    """A plan over 29,786 shards of 16,384 samples (of 2,048 tokens: 1e12), spread over sources."""
    names = [f"source{number}" for number in range(num_sources)]
    config = PlanConfig(
        tuple(SourceShape(name, np.full(TRILLION_SHARDS // num_sources, SHARD_SAMPLES)) for name in names),
        17,
        (MixtureStage(0, {name: 1.0 + number for number, name in enumerate(names)}),),
        (BatchStage(0, BATCH),),
    )
    return Plan(config, skips)


def fresh_steps(plan: Plan, kind: str, rounds: int) -> float:
    """ns a position of steps of 1,024 that were not asked for before; asked again, the processor knows every branch."""
    rng = np.random.default_rng(1)
    least, num = float("inf"), 64
    for turn in range(rounds + 1):
        steps = 290_000 + turn * num + np.arange(num) if kind == "consecutive" else rng.integers(0, 450_000, num)
        positions = [np.arange(step * BATCH, (step + 1) * BATCH) for step in steps.tolist()]
        seconds = cpu_s(lambda some=positions: [plan.samples(one) for one in some], 1)
        least = min(least, seconds) if turn else least  # the first turn builds the epoch's tables
    return least / num / BATCH * 1e9


def lookups(rounds: int) -> list[Row]:
    """ns a position in both directions, at batches of 1,024 neighbours far inside the plan."""
    rows = []
    for num_sources in (1, 5, 64, 256):
        plan = trillion(num_sources)
        for kind, target in (("consecutive", ("<=", 200) if num_sources <= 5 else None), ("random", None)):
            ns = fresh_steps(plan, kind, rounds)
            rows.append(row(f"position -> sample, {num_sources} sources, {kind} steps", ns, "ns", target=target))
    order = SourceOrder(np.full(TRILLION_SHARDS, SHARD_SAMPLES), 1)
    raw_N = np.arange(BATCH) + 300_000_000
    epoch_N, sample_N = order.locate(raw_N)
    ns = cpu_s(lambda: order.locate(raw_N), rounds, 20) / BATCH * 1e9
    rows.append(row("raw index -> sample", ns, "ns", target=("<=", 200)))
    ns = cpu_s(lambda: order.raw_of(epoch_N, sample_N), rounds, 20) / BATCH * 1e9
    rows.append(row("sample -> raw index", ns, "ns", target=("<=", 200)))
    plan = trillion(5)
    refs = plan.samples(np.array([300_000_000]))
    source, sample = int(refs.source_N[0]), int(refs.sample_N[0])
    stop = 1_000_000_000
    seconds = cpu_s(lambda: plan.steps_of(plan.positions_of_sample(source, sample, stop)), rounds, 5)
    rows.append(row("sample -> its steps, two trillion tokens", seconds * 1e3, "ms", target=("<=", 1)))
    return rows


def starts(rounds: int, peer_samples: int) -> list[Row]:
    """Plan and first step at a trillion tokens, at the start and at 90 %; an epoch's order against the peer's."""

    def first_step(step: int) -> None:
        plan = trillion(5)
        plan.samples(plan.step_positions(step))

    total = TRILLION_SHARDS * SHARD_SAMPLES // BATCH
    first_step(0)
    start, late = cpu_s(lambda: first_step(0), rounds), cpu_s(lambda: first_step(total * 9 // 10), rounds)
    rows = [
        row("plan and first step, 1e12 tokens", start * 1e3, "ms", target=("<=", 50)),
        row(
            "plan and step at 90 %",
            late * 1e3,
            "ms",
            peer="own start",
            peer_value=start * 1e3,
            ratio_target=("<=", 1.1),
        ),
    ]
    shards = np.full(peer_samples // SHARD_SAMPLES, SHARD_SAMPLES)
    own = cpu_s(lambda: SourceOrder(shards, 1).locate(np.arange(BATCH)), rounds)
    peer = peer_shuffle(shards)
    rows.append(
        row(
            f"order of an epoch of {peer_samples:.0e} samples ready",
            own * 1e3,
            "ms",
            peer="mosaicml-streaming py1e",
            peer_value=peer,
            ratio_target=("<=", 0.1),
        )
    )
    return rows


def many_shards(rounds: int) -> list[Row]:
    """Plan and first step of a source of 100,000 shards: the one cost that grows with their number, beside 10,000."""
    spent = []
    for num_shards in (10_000, 100_000):
        config = PlanConfig(
            (SourceShape("a", np.full(num_shards, SHARD_SAMPLES)),),
            17,
            (MixtureStage(0, {"a": 1.0}),),
            (BatchStage(0, BATCH),),
        )
        first = num_shards * SHARD_SAMPLES // BATCH * 9 // 10

        def first_step(config: PlanConfig = config, step: int = first) -> None:
            plan = Plan(config)
            plan.samples(plan.step_positions(step))

        spent.append(cpu_s(first_step, rounds) * 1e3)
    name = "plan and step at 90 %, one source of"
    few = row(f"{name} 10,000 shards", spent[0], "ms")
    return [few, row(f"{name} 100,000 shards", spent[1], "ms", target=("<=", 50))]


def peer_shuffle(shards: np.ndarray) -> float | None:
    """CPU ms in which the peer has an epoch's order, without the partition over ranks that it also needs."""
    try:
        shuffle = importlib.import_module("streaming.base.shuffle").get_shuffle
    except ImportError:
        return None
    return cpu_s(lambda: shuffle("py1e", shards, 1, 17, 0, 1 << 18), 1) * 1e3


def deviation(num_sources: int, num_stages: int, rng: np.random.Generator) -> tuple[float, float]:
    """Largest |count - target| at block borders over random stages of skewed weights: ours, and independent draws'."""
    names = [f"s{number}" for number in range(num_sources)]
    stages, start, lists = [], 0, []
    for _ in range(num_stages):
        weights = rng.random(num_sources) ** int(rng.choice([1, 4, 8])) * (rng.random(num_sources) < 0.8) + 1e-5
        lists.append((start, weights / weights.sum()))
        stages.append(MixtureStage(start, dict(zip(names, weights.tolist(), strict=True))))
        start += BLOCK * int(rng.integers(1, 5))
    mixture = compile_mixture(names, stages, 17)
    source_N, _ = mixture.locate(np.arange(start))
    blocks_UP = source_N.reshape(-1, BLOCK) + np.arange(start // BLOCK)[:, None] * num_sources
    counts = np.bincount(blocks_UP.reshape(-1), minlength=start // BLOCK * num_sources).reshape(-1, num_sources)
    shares = np.array([stage[1] for stage in lists])[
        np.searchsorted([s for s, _ in lists], np.arange(0, start, BLOCK), "right") - 1
    ]
    drawn = np.array([rng.multinomial(BLOCK, share) for share in shares])
    target = np.cumsum(shares * BLOCK, axis=0)
    return float(np.abs(np.cumsum(counts, axis=0) - target).max()), float(
        np.abs(np.cumsum(drawn, axis=0) - target).max()
    )


def staged_lookups(rounds: int) -> list[Row]:
    """ns a position in a mixture of 1,000 stages of four blocks, forwards and backwards, at random places."""
    rows, rng = [], np.random.default_rng(2)
    for num_sources in (5, 256):
        names = [f"s{number}" for number in range(num_sources)]
        starts = range(0, 4000 * BLOCK, 4 * BLOCK)
        stages = [
            MixtureStage(start, dict(zip(names, (rng.random(num_sources) + 0.01).tolist(), strict=True)))
            for start in starts
        ]
        mixture = compile_mixture(names, stages, 17)
        runs = [np.arange(start, start + BATCH) for start in rng.integers(0, 3990 * BLOCK, 20).tolist()]
        seconds = cpu_s(lambda m=mixture, some=runs: [m.locate(one) for one in some], rounds)
        name = f"mixture of 1,000 stages, {num_sources} sources"
        rows.append(row(f"{name}: position -> rank", seconds / 20 / BATCH * 1e9, "ns", target=("<=", 1000)))
        rank_N = np.arange(BATCH) + int(mixture.counts_before(runs[0][0])[0])
        ns = cpu_s(lambda m=mixture, r=rank_N: m.position_of(0, r), rounds, 5) / BATCH * 1e9
        rows.append(row(f"{name}: rank -> position", ns, "ns"))
    return rows


def shuffles(shard_samples: int, seeds: int) -> list[Row]:
    """Quality of an epoch's order beside the peer's shuffles at the same budget of live shards."""
    return [row(name, value, "", **more) for name, value, more in compare(shard_samples, seeds)]


def mixing(num_stages: int) -> list[Row]:
    """Deviation from the target at every block border."""
    rows = []
    for num_sources in (4, 16, 64, 256):
        own, peer = deviation(num_sources, num_stages, np.random.default_rng(num_sources))
        name = f"mixing deviation, {num_sources} sources, {num_stages} stages"
        rows.append(row(name, own, "samples", peer="independent draws", peer_value=peer, target=("<=", 4)))
    return rows


def skip_lists(rounds: int, num_ranges: int) -> list[Row]:
    """A list of 1e5 position ranges: build and look-up; one of 1e5 sample ranges."""
    rng = np.random.default_rng(3)
    starts_R = np.sort(rng.choice(400_000_000 // 64, num_ranges, replace=False)) * 64
    ranges = tuple(zip(starts_R.tolist(), (starts_R + rng.integers(1, 60, num_ranges)).tolist(), strict=True))
    entries = [SkipEntry("positions", "drop", 0, ranges=ranges[part::8]) for part in range(8)]
    bare = trillion(5)
    skips = SkipList(entries)
    seconds = cpu_s(lambda: trillion(5, skips), rounds) - cpu_s(lambda: trillion(5), rounds)
    rows = [row("skip list of 1e5 ranges: build", seconds * 1e3, "ms", target=("<=", 5))]
    plan = Plan(bare.config, skips)
    live_N = np.arange(BATCH) + 200_000_000
    ns = cpu_s(lambda: plan.cut.outside_at(live_N), rounds, 50) / BATCH * 1e9
    rows.append(row("skip list of 1e5 ranges: surviving -> position", ns, "ns", target=("<=", 200)))
    position_N = plan.cut.outside_at(live_N)
    ns = cpu_s(lambda: plan.steps_of(position_N), rounds, 50) / BATCH * 1e9
    rows.append(row("skip list of 1e5 ranges: position -> step", ns, "ns", target=("<=", 200)))
    step = plan.step_of(int(position_N[-1])) or 0
    ns = cpu_s(lambda: plan.samples(plan.step_positions(step)), rounds, 20) / BATCH * 1e9
    rows.append(row("skip list of 1e5 ranges: step -> samples", ns, "ns"))

    order_samples = TRILLION_SHARDS // 5 * SHARD_SAMPLES
    starts_R = np.sort(rng.choice(order_samples // 64, num_ranges, replace=False)) * 64
    dropped = SkipEntry(
        "samples", "drop", 5_000, "source4", tuple(zip(starts_R.tolist(), (starts_R + 50).tolist(), strict=True))
    )
    seconds = cpu_s(lambda: trillion(5, SkipList([dropped])), 1)
    rows.append(row(f"{num_ranges * 50:.0e} dropped samples: plan, once", seconds, "s", target=("<=", 1)))
    dropping = trillion(5, SkipList([dropped]))
    positions_B = np.arange(BATCH) + 300_000_000
    dropping.samples(positions_B)
    ns = cpu_s(lambda: dropping.samples(positions_B), rounds, 20) / BATCH * 1e9
    rows.append(row(f"{num_ranges * 50:.0e} dropped samples: position -> sample", ns, "ns"))
    return rows


def machine() -> dict[str, float]:
    """GB per CPU second of memcpy and xxh3-64, and us of one int64 addition over 1,024 numbers."""
    data, out, some = np.ones(1 << 26, np.uint8), np.empty(1 << 26, np.uint8), np.arange(BATCH)
    np.copyto(out, data)
    return {
        "memcpy_gb_s": round(data.nbytes / cpu_s(lambda: np.copyto(out, data), 5) / 1e9, 1),
        "xxh3_gb_s": round(data.nbytes / cpu_s(lambda: xxhash.xxh3_64_intdigest(data), 5) / 1e9, 1),
        "add_1024_us": round(cpu_s(lambda: some + some, 5, 2000) * 1e6, 2),
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="Order figures.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under a minute")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    rounds = 5 if options.quick else 30
    num_ranges = 100_000
    rows = [
        *lookups(rounds),
        *starts(max(8, rounds // 3), 2_000_000 if options.quick else 10_000_000),
        *many_shards(max(4, rounds // 3)),
        *staged_lookups(rounds),
        *mixing(60 if options.quick else 1000),
        *skip_lists(rounds, num_ranges),
        *(shuffles(2048, 1) if options.quick else shuffles(SHARD_SAMPLES, 3)),
    ]
    print_rows(rows, options.json)
    if not options.json:
        print("machine:", ", ".join(f"{name} {value}" for name, value in machine().items()))


if __name__ == "__main__":
    main()
