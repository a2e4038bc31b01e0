"""Cursors: what they accept, what they refuse and name, and how small they stay."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from loader.canonical import canonical_json, digest_of
from loader.errors import DamageError, RefusedError
from loader.order import (
    BatchStage,
    Cursor,
    MixtureStage,
    Plan,
    PlanConfig,
    SkipEntry,
    SkipList,
    SourceShape,
    check_cursor,
    make_cursor,
)
from loader.order.start import PlanStart

CONFIG = PlanConfig(
    sources=(SourceShape("web", [400, 300]), SourceShape("books", [250]), SourceShape("late", [90])),
    seed=4,
    stages=(MixtureStage(0, {"web": 3, "books": 1}), MixtureStage(1024, {"web": 1, "late": 1})),
    batch=(BatchStage(0, 10), BatchStage(1000, 20)),
)
DIGESTS = {"web": "a" * 32, "books": "b" * 32, "late": "c" * 32}
EARLY = SkipEntry("samples", "drop", 100, "web", ((3, 30),))
CUT = SkipEntry("positions", "drop", 200, ranges=((200, 230),))
NEXT_STEP = 40


def plan_of(*entries: SkipEntry, **changes: Any) -> Plan:
    return Plan(replace(CONFIG, **changes), SkipList(entries))


BASE = plan_of(EARLY, CUT)
CURSOR = make_cursor(BASE, DIGESTS, next_step=NEXT_STEP)
HERE = CURSOR.next_position


def test_it_stands_where_the_last_step_ended() -> None:
    assert int(BASE.step_positions(NEXT_STEP - 1)[-1]) + 1 == HERE
    assert make_cursor(BASE, DIGESTS, next_step=0).next_position == 0
    check_cursor(CURSOR, BASE, DIGESTS)


def test_it_survives_json_and_refuses_what_is_none() -> None:
    value = json.loads(json.dumps(CURSOR.to_json()))
    assert Cursor.from_json(value) == CURSOR
    for damaged in (
        {**value, "version": 2},
        {**value, "next_step": -1},
        {**value, "next_step": "40"},
        {**value, "skips": "short"},
        {**value, "sources": ["web"]},
        {key: value[key] for key in value if key != "mixture"},
        {},
    ):
        with pytest.raises(DamageError):
            Cursor.from_json(damaged)


def test_it_stays_below_a_kilobyte_with_256_sources() -> None:
    names = [f"a source with a rather long name {number}" for number in range(256)]
    config = replace(
        CONFIG,
        sources=tuple(SourceShape(name, [50]) for name in names),
        stages=(MixtureStage(0, dict.fromkeys(names, 1.0)),),
    )
    digests = dict.fromkeys(names, "d" * 32)
    cursor = make_cursor(Plan(config), digests, next_step=3)
    assert len(canonical_json(cursor.to_json())) < 1024
    check_cursor(Cursor.from_json(cursor.to_json()), Plan(config), digests)
    digests[names[3]] = "e" * 32
    with pytest.raises(RefusedError) as caught:
        check_cursor(Cursor.from_json(cursor.to_json()), Plan(config), digests)
    assert caught.value.code == "TR-CURSOR-DATASETS"


LATER_STAGES = (*CONFIG.stages, MixtureStage(4096, {"books": 1}))


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(EARLY, CUT, SkipEntry("positions", "drop", HERE, ranges=((HERE, HERE + 40),))),
        plan_of(CUT, EARLY, SkipEntry("samples", "drop", HERE + 5, "books", ((0, 9),))),
        plan_of(EARLY, CUT, stages=LATER_STAGES),
        plan_of(EARLY, CUT, stages=CONFIG.stages[:1]),
        plan_of(EARLY, CUT, batch=(*CONFIG.batch, BatchStage(HERE + 10_000, 7))),
        plan_of(EARLY, CUT, batch=(BatchStage(0, 10), BatchStage(HERE, 3))),
        plan_of(EARLY, CUT, sources=(*CONFIG.sources, SourceShape("newer", [5]))),
        plan_of(EARLY, CUT, sources=CONFIG.sources[::-1]),
        plan_of(replace(EARLY, reason="another reason"), CUT),
        plan_of(EARLY, CUT, stages=(MixtureStage(0, {"web": 0.75, "books": 0.25, "late": 0}), CONFIG.stages[1])),
    ],
)
def test_what_acts_later_is_accepted(plan: Plan) -> None:
    check_cursor(CURSOR, plan, DIGESTS)


def test_datasets_that_were_not_used_yet_may_be_others() -> None:
    check_cursor(CURSOR, BASE, {**DIGESTS, "late": "f" * 32})
    check_cursor(CURSOR, BASE, {"web": "a" * 32, "books": "b" * 32})


@pytest.mark.parametrize(
    ("code", "named", "plan", "digests"),
    [
        ("ORDER", "seed 5", plan_of(EARLY, CUT, seed=5), DIGESTS),
        ("ORDER", "window_shards 4", plan_of(EARLY, CUT, window_shards=4), DIGESTS),
        ("ORDER", "slices 3", plan_of(EARLY, CUT, slices=3), DIGESTS),
        ("DATASETS", "books", BASE, {**DIGESTS, "books": "e" * 32}),
        ("DATASETS", "web", BASE, {"books": "b" * 32}),
        ("MIXTURE", "mixture", plan_of(EARLY, CUT, stages=(MixtureStage(0, {"web": 2, "books": 1}),)), DIGESTS),
        ("MIXTURE", "mixture", plan_of(EARLY, CUT, stages=(CONFIG.stages[0], MixtureStage(256, {"web": 1}))), DIGESTS),
        ("BATCH", "batch", plan_of(EARLY, CUT, batch=(BatchStage(0, 5),)), DIGESTS),
        ("BATCH", "batch", plan_of(EARLY, CUT, batch=(BatchStage(0, 10), BatchStage(400, 5))), DIGESTS),
        ("SKIPS", "1 skip entries", plan_of(EARLY), DIGESTS),
        (
            "SKIPS",
            "new: source, mode mask, stamp 399",
            plan_of(EARLY, CUT, SkipEntry("source", "mask", 399, "web")),
            DIGESTS,
        ),
        (
            "SKIPS",
            "other skip entries",
            plan_of(EARLY, SkipEntry("positions", "drop", 200, ranges=((200, 231),))),
            DIGESTS,
        ),
    ],
)
def test_what_shaped_the_past_is_refused_by_name(code: str, named: str, plan: Plan, digests: dict[str, str]) -> None:
    with pytest.raises(RefusedError) as caught:
        check_cursor(CURSOR, plan, digests)
    assert caught.value.code == f"TR-CURSOR-{code}"
    assert named in caught.value.message


def test_everything_that_differs_is_named_at_once() -> None:
    with pytest.raises(RefusedError) as caught:
        check_cursor(CURSOR, plan_of(EARLY, seed=5), {**DIGESTS, "web": "e" * 32})
    assert all(word in caught.value.message for word in ("seed 5", "web", "skip entries"))


def test_a_position_inside_a_step_is_refused() -> None:
    with pytest.raises(RefusedError) as caught:
        check_cursor(replace(CURSOR, next_position=HERE + 1), BASE, DIGESTS)
    assert caught.value.code == "TR-CURSOR-STEP"


def test_stages_and_batches_that_start_at_the_cursor_are_not_its_past() -> None:
    base = plan_of(batch=(BatchStage(0, 16),))
    cursor = make_cursor(base, DIGESTS, next_step=64)
    assert cursor.next_position == 1024 == CONFIG.stages[1].start
    check_cursor(cursor, plan_of(batch=(BatchStage(0, 16), BatchStage(1024, 9))), {"web": "a" * 32, "books": "b" * 32})
    check_cursor(cursor, plan_of(batch=(BatchStage(0, 16),), stages=CONFIG.stages[:1]), DIGESTS)
    later = make_cursor(base, DIGESTS, next_step=65)
    with pytest.raises(RefusedError, match="mixture"):
        check_cursor(later, plan_of(batch=(BatchStage(0, 16),), stages=CONFIG.stages[:1]), DIGESTS)
    with pytest.raises(RefusedError, match="batch"):
        check_cursor(later, plan_of(batch=(BatchStage(0, 16), BatchStage(1024, 9))), DIGESTS)


def test_an_entry_stamped_at_the_cursor_acts_from_there() -> None:
    """A rollback stamps the checkpoint's next position: the cut range starts right at it."""
    plan = plan_of(EARLY, CUT, SkipEntry("positions", "drop", HERE, ranges=((HERE, HERE + 40),)))
    check_cursor(CURSOR, plan, DIGESTS)
    assert plan.first_position(NEXT_STEP) == HERE + 40
    assert BASE.first_position(NEXT_STEP) == HERE


def remapped(**changes: Any) -> Plan:
    """The plan that takes over from ``BASE`` at ``CURSOR``, over other books; the web goes on where it was."""
    start = PlanStart(HERE, NEXT_STEP, digest_of(CURSOR.to_json()), {"web": BASE.raw_before(HERE)["web"]})
    return plan_of(EARLY, CUT, start=start, **changes)


NEW_BOOKS = {**DIGESTS, "books": "9" * 32}


def test_a_plan_that_took_over_accepts_the_cursor_it_took_over_at_and_its_own() -> None:
    plan = remapped()
    check_cursor(CURSOR, plan, NEW_BOOKS)
    own = make_cursor(plan, NEW_BOOKS, next_step=NEXT_STEP + 7)
    check_cursor(Cursor.from_json(own.to_json()), plan, NEW_BOOKS)
    assert own.order != make_cursor(BASE, DIGESTS, next_step=NEXT_STEP + 7).order
    for cursor, other in ((own, BASE), (make_cursor(BASE, DIGESTS, next_step=NEXT_STEP + 7), plan)):
        with pytest.raises(RefusedError) as caught:
            check_cursor(cursor, other, NEW_BOOKS)
        assert caught.value.code == "TR-CURSOR-ORDER"


def test_a_cursor_before_the_take_over_is_the_other_plans() -> None:
    earlier = make_cursor(BASE, DIGESTS, next_step=NEXT_STEP - 1)
    with pytest.raises(RefusedError) as caught:
        check_cursor(earlier, remapped(), NEW_BOOKS)
    assert caught.value.code == "TR-CURSOR-REMAP"
    assert caught.value.expected == f"a checkpoint of step {NEXT_STEP} or later"
    for changed in (replace(CURSOR, skips="0" * 32), replace(CURSOR, next_step=NEXT_STEP + 1)):
        with pytest.raises(RefusedError):
            check_cursor(changed, remapped(), NEW_BOOKS)


def test_sources_that_only_the_other_plan_read_are_not_asked_for() -> None:
    """What had weight before the take-over alone shaped no position of this plan: its Dataset may be gone."""
    stages = (MixtureStage(0, {"web": 3, "books": 1}), MixtureStage(512, {"web": 1}))
    old = plan_of(stages=stages, batch=(BatchStage(0, 16),))
    cursor = make_cursor(old, DIGESTS, next_step=32)
    assert cursor.next_position == 512
    start = PlanStart(512, 32, digest_of(cursor.to_json()))
    plan = plan_of(stages=stages, batch=(BatchStage(0, 16),), start=start)
    later = make_cursor(plan, {"web": "7" * 32}, next_step=40)
    assert set(later.sources) == {"web"}
    check_cursor(later, plan, {"web": "7" * 32})


def test_a_cursor_behind_the_end_of_the_plan_is_refused() -> None:
    for stop in (HERE, HERE + 100):
        check_cursor(CURSOR, plan_of(EARLY, CUT, stop_position=stop), DIGESTS)
    with pytest.raises(RefusedError) as caught:
        check_cursor(CURSOR, plan_of(EARLY, CUT, stop_position=HERE - 1), DIGESTS)
    assert caught.value.code == "TR-CURSOR-STOP"


def test_a_cursor_whose_facts_are_not_those_of_its_digests_is_damaged() -> None:
    for damaged in (
        replace(CURSOR, num_skips=3),
        replace(CURSOR, sources={**CURSOR.sources, "web": "0" * 8}),
        replace(CURSOR, sources={"web": CURSOR.sources["web"]}),
    ):
        with pytest.raises(DamageError, match="not those of its digests"):
            check_cursor(damaged, BASE, DIGESTS)
    check_cursor(replace(CURSOR, sources={}), BASE, DIGESTS)
