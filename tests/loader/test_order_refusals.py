"""What the order refuses, by which code, and what it tells the user to do."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from loader.errors import ConfigError, RefusedError, TokenreelError
from loader.order import (
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


def plan_of(
    *entries: SkipEntry, stages: tuple[MixtureStage, ...] | None = None, batch: tuple[BatchStage, ...] | None = None
) -> Plan:
    config = PlanConfig(
        sources=(SourceShape("web", [40, 30, 17]), SourceShape("books", [25]), SourceShape("empty", [])),
        seed=4,
        stages=stages or (MixtureStage(0, {"web": 3, "books": 1}),),
        batch=batch or (BatchStage(0, 10),),
    )
    return Plan(config, SkipList(entries))


def drop_samples(start: int, stop: int, stamp: int = 0, source: str = "web") -> SkipEntry:
    return SkipEntry("samples", "drop", stamp, source, ((start, stop),))


def refused(code: str, call: Any, *args: Any, **kwargs: Any) -> TokenreelError:
    with pytest.raises(TokenreelError) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code
    return caught.value


def test_a_stage_off_the_block_border_names_the_nearest() -> None:
    stages = (MixtureStage(0, {"web": 1}), MixtureStage(1000, {"web": 1}))
    error = refused("TR-MIXTURE-BORDER", compile_mixture, ["web"], stages, 0)
    assert isinstance(error, ConfigError)
    assert error.expected == "768 or 1024"


@pytest.mark.parametrize(
    ("code", "stages"),
    [
        ("TR-MIXTURE-START", []),
        ("TR-MIXTURE-START", [MixtureStage(256, {"a": 1})]),
        ("TR-MIXTURE-START", [MixtureStage(0, {"a": 1}), MixtureStage(256, {"a": 1}), MixtureStage(256, {"b": 1})]),
        ("TR-MIXTURE-START", [MixtureStage(0, {"a": 1}), MixtureStage(1 << 36, {"a": 1})]),
        ("TR-MIXTURE-WEIGHT", [MixtureStage(0, {"a": 0, "b": 0})]),
        ("TR-MIXTURE-WEIGHT", [MixtureStage(0, {})]),
        ("TR-MIXTURE-WEIGHT", [MixtureStage(0, {"a": 1, "b": -0.5})]),
        ("TR-MIXTURE-WEIGHT", [MixtureStage(0, {"a": float("nan")})]),
        ("TR-MIXTURE-WEIGHT", [MixtureStage(0, {"a": float("inf"), "b": 1})]),
        ("TR-MIXTURE-WEIGHT", [MixtureStage(0, {"a": 1, "b": 1e-12})]),
        ("TR-MIXTURE-SOURCE", [MixtureStage(0, {"a": 1, "c": 1})]),
    ],
)
def test_stages_that_mean_nothing(code: str, stages: list[MixtureStage]) -> None:
    assert isinstance(refused(code, compile_mixture, ["a", "b"], stages, 0), ConfigError)


def test_a_weight_that_would_vanish_is_named_and_zero_is_not() -> None:
    error = refused("TR-MIXTURE-WEIGHT", compile_mixture, ["a", "b"], [MixtureStage(0, {"a": 1, "b": 1e-12})], 0)
    assert "'b'" in error.message
    compile_mixture(["a", "b"], [MixtureStage(0, {"a": 1, "b": 0})], 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "positions", "mode": "mask", "stamp": 0, "ranges": ((0, 5),)},
        {"kind": "segments", "mode": "drop", "stamp": 0, "source": "web", "ranges": ((0, 5),)},
        {"kind": "source", "mode": "drop", "stamp": 0, "source": "web"},
    ],
)
def test_modes_that_a_kind_does_not_have(arguments: dict[str, Any]) -> None:
    refused("TR-SKIP-MODE", SkipEntry, **arguments)


def test_dropping_a_whole_source_points_to_the_mixture() -> None:
    error = refused("TR-SKIP-MODE", SkipEntry, "source", "drop", 0, "web")
    assert "mixture" in (error.expected or "")


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "nothing", "mode": "drop", "stamp": 0},
        {"kind": "positions", "mode": "hide", "stamp": 0, "ranges": ((0, 5),)},
        {"kind": "positions", "mode": "drop", "stamp": -1, "ranges": ((0, 5),)},
        {"kind": "positions", "mode": "drop", "stamp": True, "ranges": ((0, 5),)},
        {"kind": "positions", "mode": "drop", "stamp": 0},
        {"kind": "positions", "mode": "drop", "stamp": 0, "ranges": ((5, 5),)},
        {"kind": "positions", "mode": "drop", "stamp": 0, "ranges": ((-1, 5),)},
        {"kind": "positions", "mode": "drop", "stamp": 0, "ranges": ((0, 2**37),)},
        {"kind": "positions", "mode": "drop", "stamp": 0, "ranges": ((0, 5, 9),)},
        {"kind": "positions", "mode": "drop", "stamp": 0, "ranges": ((0, 5, 9), (7,))},
        {"kind": "positions", "mode": "drop", "stamp": 0, "ranges": ((0, 5.5),)},
        {"kind": "positions", "mode": "drop", "stamp": 0, "source": "web", "ranges": ((0, 5),)},
        {"kind": "samples", "mode": "drop", "stamp": 0, "ranges": ((0, 5),)},
        {"kind": "documents", "mode": "mask", "stamp": 0},
        {"kind": "documents", "mode": "mask", "stamp": 0, "documents": (1 << 64,)},
        {"kind": "source", "mode": "mask", "stamp": 0, "source": "web", "ranges": ((0, 1),)},
    ],
)
def test_entries_that_mean_nothing(arguments: dict[str, Any]) -> None:
    refused("TR-SKIP-ENTRY", SkipEntry, **arguments)


def test_entries_survive_json_and_bad_json_is_refused() -> None:
    entries = [
        SkipEntry("positions", "drop", 7, ranges=((0, 5), (9, 12)), reason="spike", evidence={"step": 3}),
        SkipEntry("documents", "mask", 7, documents=((1 << 64) - 1, 3)),
        SkipEntry("source", "mask", 9, "web"),
    ]
    for entry in entries:
        value = json.loads(json.dumps(entry.to_json()))
        assert SkipEntry.from_json(value) == entry
        assert SkipEntry.from_json(value).digest == entry.digest
        refused("TR-SKIP-ENTRY", SkipEntry.from_json, {**value, "more": 1})
        refused("TR-SKIP-ENTRY", SkipEntry.from_json, {**value, "version": 2})
        refused("TR-SKIP-ENTRY", SkipEntry.from_json, {**value, "ranges": 5})
        refused("TR-SKIP-ENTRY", SkipEntry.from_json, {**value, "stamp": "7"})
        for pair in ([1.5, 3], ["1", 3], [True, 3], [1, 2, 3]):
            refused("TR-SKIP-ENTRY", SkipEntry.from_json, {**value, "ranges": [pair]})
        for text in ("5", "0x00000000000005", " 000000000000005", "000000000_000005", "000000000000000G", 5):
            refused("TR-SKIP-ENTRY", SkipEntry.from_json, {**value, "documents": [text]})


def test_reason_and_evidence_take_no_part_in_the_digest() -> None:
    plain = SkipEntry("positions", "drop", 7, ranges=((0, 5),))
    assert SkipEntry("positions", "drop", 7, ranges=((0, 5),), reason="why", evidence={"a": 1}).digest == plain.digest
    assert SkipEntry("positions", "drop", 8, ranges=((0, 5),)).digest != plain.digest


def test_a_plan_checks_what_entries_name() -> None:
    refused("TR-SKIP-SOURCE", plan_of, drop_samples(0, 1, source="nowhere"))
    refused("TR-SKIP-SAMPLES", plan_of, drop_samples(80, 88))
    refused("TR-SKIP-DOCUMENT", plan_of, SkipEntry("documents", "drop", 0, documents=(5,)))


def test_dropping_every_sample_is_an_error_and_no_endless_search() -> None:
    error = refused("TR-SKIP-EMPTY", plan_of, drop_samples(0, 60), drop_samples(50, 87, stamp=300))
    assert isinstance(error, RefusedError)
    assert "'web'" in error.message
    refused("TR-SKIP-EMPTY", plan_of, SkipEntry("positions", "drop", 0, ranges=((0, 1 << 36),)))
    plan = plan_of(drop_samples(0, 60), drop_samples(50, 86, stamp=256))  # one sample is left, and read again and again
    refs = plan.samples(np.arange(256, 512))
    assert set(refs.sample_N[refs.source_N == 0].tolist()) == {86}


def test_sources_and_batches_that_mean_nothing() -> None:
    refused("TR-MIXTURE-EMPTY", plan_of, stages=(MixtureStage(0, {"web": 1, "empty": 1}),))
    refused("TR-BATCH-START", plan_of, batch=(BatchStage(5, 10),))
    refused("TR-BATCH-START", plan_of, batch=(BatchStage(0, 10), BatchStage(0, 10)))
    refused("TR-BATCH-STAGE", plan_of, batch=(BatchStage(0, 0),))
    refused("TR-ORDER-SHAPE", SourceOrder, [5, -1], 0)
    refused("TR-ORDER-SHAPE", SourceOrder, [5], 0, 0)
    refused("TR-ORDER-SHAPE", SourceOrder, [1 << 30, 1 << 30], 0)
    config = PlanConfig(
        (SourceShape("a", [3]), SourceShape("a", [3])), 0, (MixtureStage(0, {"a": 1}),), (BatchStage(0, 1),)
    )
    refused("TR-PLAN-SOURCES", Plan, config)
    refused("TR-PLAN-SOURCE", plan_of().positions_of_sample, "nowhere", 0, 10)
    refused("TR-PLAN-STEP", plan_of().step_positions, -1)
    last = (1 << 36) // 10 - 1
    assert len(plan_of().step_positions(last)) == 10
    assert plan_of().num_steps == last + 1
    assert plan_of().next_position(last) == plan_of().first_position(last) + 10 == (1 << 36) - 6
    for ask in (plan_of().step_positions, plan_of().first_position, plan_of().next_position):
        for step in (last + 1, 1 << 36, 1 << 70):
            refused("TR-PLAN-STEP", ask, step)
    for wrong in (-1, 1 << 36):
        with pytest.raises(ValueError, match="positions"):
            plan_of().samples(np.array([wrong]))


def test_ratios_are_exact_under_sample_drop_and_positions_report_what_they_remove() -> None:
    bare, positions_N = plan_of(), np.arange(2000)
    dropping = plan_of(drop_samples(3, 30, stamp=100), drop_samples(0, 20, stamp=50, source="books"))
    assert np.array_equal(bare.samples(positions_N).source_N, dropping.samples(positions_N).source_N)
    assert dropping.removed_by_source(drop_samples(3, 30, stamp=100)) == {"web": 27}
    entry = SkipEntry("positions", "drop", 100, ranges=((50, 130), (120, 310)))
    source_N = bare.samples(np.arange(100, 310)).source_N
    expected = {"web": int((source_N == 0).sum()), "books": int((source_N == 1).sum())}
    assert plan_of(entry).removed_by_source(entry) == expected


def test_threads_see_what_one_thread_sees() -> None:
    entries = (drop_samples(3, 30, stamp=100), SkipEntry("positions", "drop", 40, ranges=((200, 333),)))
    alone, shared = plan_of(*entries), plan_of(*entries)
    expected = [alone.samples(alone.step_positions(step)) for step in range(60)]
    problems: list[int] = []

    def work(first: int) -> None:
        for turn in range(60):
            step = (first + 7 * turn) % 60
            refs = shared.samples(shared.step_positions(step))
            if not all(np.array_equal(getattr(refs, n), getattr(expected[step], n)) for n in ("sample_N", "epoch_N")):
                problems.append(step)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
