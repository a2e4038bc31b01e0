"""Every row of the parallel tables against one process: ten steps in float32 (DESIGN 13), masks uneven over the ranks.

One start of the processes a world serves all its cases, because the start costs more than they do. Worlds of 4 and 8
are slow.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from support.parity import Case
from support.parity_cases import OPTIONS, REFUSED, WORLDS, reference, run_world

from train.parallel.context import CONTEXT_METHODS
from train.parallel.data import DATA
from train.parallel.pipeline import SCHEDULES

TIMEOUT_S = 900
ROWS = [
    pytest.param(size, one, id=f"{size}: {one.name}", marks=[pytest.mark.slow] if size > 2 else [])
    for size, cases in WORLDS.items()
    for one in cases
]
REFUSALS = [
    pytest.param(size, *row, id=f"{size}: {row[0].name}", marks=[pytest.mark.slow] if size > 2 else [])
    for size, rows in REFUSED.items()
    for row in rows
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("parity")

    @functools.cache
    def run(size: int) -> tuple[dict[str, dict[str, Any]], str]:
        cases = [*WORLDS[size], *(one for one, _, _ in REFUSED.get(size, ()))]
        return run_world(size, cases, folder / f"{size}.jsonl", TIMEOUT_S)

    def of(size: int, name: str) -> dict[str, Any]:
        found, errors = run(size)
        assert name in found, errors[-8000:]
        return found[name]

    return of


@pytest.mark.parametrize(("size", "one"), ROWS)
def test_a_mesh_trains_as_one_process_does(size: int, one: Case, outcomes: Any) -> None:
    found, right = outcomes(size, one.name), reference(one)
    loss, norm = (5e-6, 5e-5) if one.precision == "fp32" else (5e-3, 5e-2)
    assert found["loss"] == pytest.approx(right.loss, abs=loss)
    assert found["grad_norm"] == pytest.approx(right.grad_norm, rel=norm, nan_ok=True)
    assert found["update_norm"] == pytest.approx(right.update_norm, rel=norm)
    assert found["label_count"] == right.label_count
    assert found["token_digest"] == right.token_digest
    for mine, theirs in zip(found["source_loss"], right.source_loss, strict=True):
        assert {name: count for name, (_, count) in mine.items()} == {
            name: count for name, (_, count) in theirs.items()
        }
        for name, (total, _) in mine.items():
            assert total == pytest.approx(theirs[name][0], rel=1e-5 if one.precision == "fp32" else 5e-3)


@pytest.mark.parametrize(("size", "one", "code", "key"), REFUSALS)
def test_what_cannot_be_cut_is_refused_by_name(size: int, one: Case, code: str, key: str, outcomes: Any) -> None:
    found = outcomes(size, one.name)
    assert found.get("code") == code
    assert key in f"{found['message']} {found['place']}"
    if code == "TR-PARALLEL-RECOMPUTE":
        assert "parallel.schedule: gpipe, 1f1b, interleaved" in found["expected"]


def test_every_row_of_every_table_is_compared() -> None:
    cases = [one.parallel for cases in WORLDS.values() for one in cases]
    assert {parallel["data"] for parallel in cases if "data" in parallel} == set(DATA)
    assert {parallel["schedule"] for parallel in cases if "schedule" in parallel} == set(SCHEDULES)
    assert {parallel["context_method"] for parallel in cases if "context_method" in parallel} == set(CONTEXT_METHODS)


def test_the_reference_learns_and_differs_between_models() -> None:
    """A comparison of constants would pass anything."""
    plain, tied = reference(WORLDS[2][0]), reference(WORLDS[2][4])
    assert plain.loss[-1] != plain.loss[0]
    assert plain.loss != tied.loss
    assert len(set(plain.label_count)) > 1


def test_the_options_of_the_model_matter() -> None:
    """A comparison of equal things would pass without them."""
    plain = reference(replace(OPTIONS[0], model={})).loss[0]
    assert all(abs(reference(one).loss[0] - plain) > 1e-3 for one in (OPTIONS[0], OPTIONS[-1]))
