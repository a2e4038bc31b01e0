"""Cursor: what a checkpoint needs of the data. Below 1 KB, equal on every rank, free of world size.

It names everything that shaped the positions before it and nothing that acts later: entries, stages, batch sizes and
Datasets that act only from its position on may be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..canonical import canonical_json, digest_of
from ..errors import ConfigError, DamageError, RefusedError
from .plan import ORDER_VERSION, Plan

__all__ = ["CURSOR_VERSION", "MAX_CURSOR_BYTES", "Cursor", "check_cursor", "make_cursor"]

CURSOR_VERSION = 1
MAX_CURSOR_BYTES = 1023
_NUMBERS = ("next_step", "next_position", "num_skips")
_DIGESTS = ("order", "datasets", "mixture", "batch", "skips")
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Cursor:
    """Attributes:
    next_step, next_position: the step to read next, and the first position that no step before it consumed.
    order: digest of order version, seed, window and slices, and of where the plan took over from another one.
    datasets: digest over the used sources and the Datasets that hold them.
    mixture, batch: digests of the stages before.
    skips: digest of the entries stamped before, num_skips: their number.
    sources: used source name to the first 8 digits of its Dataset's digest, so that a message can name the one that
        differs; empty where it would not fit.
    """

    next_step: int
    next_position: int
    order: str
    datasets: str
    mixture: str
    batch: str
    skips: str
    num_skips: int
    sources: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, below 1 KB as canonical JSON."""
        value = {
            "version": CURSOR_VERSION,
            "next_step": self.next_step,
            "next_position": self.next_position,
            **{name: getattr(self, name) for name in _DIGESTS},
            "num_skips": self.num_skips,
        }
        full = {**value, "sources": dict(self.sources)}
        return full if len(canonical_json(full)) <= MAX_CURSOR_BYTES else {**value, "sources": {}}

    @staticmethod
    def from_json(value: object) -> Cursor:
        """The Cursor that :meth:`to_json` wrote.

        Raises:
            DamageError: it is none, or of another version.
        """
        if not (isinstance(value, Mapping) and _is_cursor(value)):
            raise DamageError("TR-CURSOR-DAMAGED", "this is no cursor", None, f"a cursor of version {CURSOR_VERSION}")
        return Cursor(**{name: value[name] for name in (*_NUMBERS, *_DIGESTS)}, sources=dict(value["sources"]))


def _is_cursor(value: Mapping[str, Any]) -> bool:
    if set(value) != {"version", "sources", *_NUMBERS, *_DIGESTS} or not isinstance(value["sources"], Mapping):
        return False
    sources = dict(value["sources"])
    try:
        sizes = [len(name.encode()) for name in sources]  # a lone surrogate has no bytes, and other types no encoding
    except (AttributeError, UnicodeEncodeError):
        return False
    return (
        all(type(value[name]) is int for name in ("version", *_NUMBERS))
        and value["version"] == CURSOR_VERSION
        and all(value[name] >= 0 for name in _NUMBERS)
        and all(_is_hex(value[name], 32) for name in _DIGESTS)
        and sum(sizes) <= MAX_CURSOR_BYTES
        and all(_is_hex(digest, 8) for digest in sources.values())
    )


def _is_hex(text: object, num_digits: int) -> bool:
    return isinstance(text, str) and len(text) == num_digits and set(text) <= _DIGITS


def make_cursor(plan: Plan, dataset_digests: Mapping[str, str], *, next_step: int) -> Cursor:
    """The Cursor that stands before ``next_step``.

    Args:
        plan: the plan that was followed.
        dataset_digests: source name to the digest of the Dataset that holds it, for every source with weight so far.
        next_step: first step not done.

    Raises:
        ConfigError: no such step.
        KeyError: the digest of a used source is missing.
    """
    if next_step < 0:
        raise ConfigError("TR-PLAN-STEP", f"no step {next_step}", expected="steps from 0 on")
    return _cursor_at(plan, dataset_digests, next_step, plan.next_position(next_step - 1))


def _cursor_at(plan: Plan, dataset_digests: Mapping[str, str], next_step: int, position: int) -> Cursor:
    stages, config = plan.mixture.stages_before(position), plan.config
    start = [] if config.start is None else [config.start.to_json()]
    used = sorted(_used(plan, position))
    by_source = {name: dataset_digests[name] for name in used}
    return Cursor(
        next_step=next_step,
        next_position=position,
        order=digest_of([ORDER_VERSION, config.seed, config.window_shards, config.slices, *start]),
        datasets=digest_of(by_source),
        mixture=digest_of([stage.to_json() for stage in stages]),
        batch=digest_of(plan.schedule.stages_before(position)),
        skips=plan.skips.digest_before(position),
        num_skips=len(plan.skips.before(position)),
        sources={name: digest[:8] for name, digest in by_source.items()},
    )


def _used(plan: Plan, position: int) -> set[str]:
    """Sources with weight in a stage that shaped a position of this plan before ``position``."""
    first = plan.config.start.position if plan.config.start is not None else 0
    stages = plan.mixture.stages_before(position)
    stops = [*(stage.start for stage in stages[1:]), position][: len(stages)]
    return {name for stage, stop in zip(stages, stops, strict=True) if stop > first for name in stage.weights}


def check_cursor(cursor: Cursor, plan: Plan, dataset_digests: Mapping[str, str]) -> None:
    """Make sure that ``plan`` read the same before ``cursor`` as the plan it was made with.

    A plan that took over from another one accepts that one's Cursor too, at the very position where it did.

    Raises:
        RefusedError: it did not; what differs is named.
        DamageError: what the cursor says of its sources and skips is not what its digests say.
    """
    position, start = cursor.next_position, plan.config.start
    if start is not None and position == start.position and digest_of(cursor.to_json()) == start.cursor:
        return
    if start is not None and position < start.position:
        raise RefusedError(
            "TR-CURSOR-REMAP",
            f"the checkpoint stands before position {start.position}, where the run went over to other data",
            f"cursor at step {cursor.next_step}, position {position}",
            f"a checkpoint of step {start.step} or later",
        )
    missing = sorted(_used(plan, position) - set(dataset_digests))
    here = _cursor_at(plan, {**dict.fromkeys(missing, ""), **dataset_digests}, cursor.next_step, position)
    problems = {
        "order": _order_problem(plan),
        "mixture": f"other mixture stages before position {position}",
        "datasets": _dataset_problem(cursor, here, position),
        "batch": f"another batch schedule before position {position}",
        "skips": _skip_problem(cursor, here, plan),
    }
    differing = [name for name in problems if getattr(cursor, name) != getattr(here, name)]
    if not differing and position > plan.config.stop_position:
        differing, problems["stop"] = ["stop"], f"here the plan ends at position {plan.config.stop_position}"
    if not differing and plan.schedule.step_from(position) != cursor.next_step:
        differing, problems["step"] = ["step"], f"position {position} does not begin step {cursor.next_step}"
    if differing:
        raise _refusal(differing[0], "; ".join(problems[name] for name in differing), cursor)
    if cursor.num_skips != here.num_skips or (cursor.sources and cursor.sources != here.sources):
        raise DamageError("TR-CURSOR-DAMAGED", "the cursor's names and numbers are not those of its digests")


def _refusal(first: str, problems: str, cursor: Cursor) -> RefusedError:
    """The error whose code names the first difference and whose message names all."""
    place = f"cursor at step {cursor.next_step}, position {cursor.next_position}"
    expected = "the data, order, stages and skips that shaped the positions before it"
    errors = {
        "order": RefusedError("TR-CURSOR-ORDER", f"the checkpoint has another order: {problems}", place, expected),
        "datasets": RefusedError("TR-CURSOR-DATASETS", f"the checkpoint has other data: {problems}", place, expected),
        "mixture": RefusedError(
            "TR-CURSOR-MIXTURE", f"the checkpoint has another mixture: {problems}", place, expected
        ),
        "batch": RefusedError("TR-CURSOR-BATCH", f"the checkpoint has other batches: {problems}", place, expected),
        "skips": RefusedError("TR-CURSOR-SKIPS", f"the checkpoint has other skips: {problems}", place, expected),
        "stop": RefusedError("TR-CURSOR-STOP", f"the checkpoint lies behind the end: {problems}", place, expected),
        "step": RefusedError("TR-CURSOR-STEP", f"the cursor stands inside a step: {problems}", place, expected),
    }
    return errors[first]


def _order_problem(plan: Plan) -> str:
    config = plan.config
    return (
        f"another order (here: version {ORDER_VERSION}, seed {config.seed}, window_shards {config.window_shards}, "
        f"slices {config.slices})"
    )


def _dataset_problem(cursor: Cursor, here: Cursor, position: int) -> str:
    names = sorted(set(cursor.sources) | set(here.sources)) if cursor.sources else []
    changed = [name for name in names if cursor.sources.get(name) != here.sources.get(name)]
    listed = f" ({', '.join(changed[:5])}{', ...' if len(changed) > 5 else ''})" if changed else ""
    return f"another Dataset among those used before position {position}{listed}"


def _skip_problem(cursor: Cursor, here: Cursor, plan: Plan) -> str:
    position = cursor.next_position
    message = f"{here.num_skips} skip entries stamped before position {position} instead of {cursor.num_skips}"
    extra = plan.skips.before(position)
    if len(extra) == cursor.num_skips + 1:
        for number, entry in enumerate(extra):
            rest = [other.digest for other in (*extra[:number], *extra[number + 1 :])]
            if digest_of(rest) == cursor.skips:
                return f"{message}; new: {entry.kind}, mode {entry.mode}, stamp {entry.stamp}"
    return message if here.num_skips != cursor.num_skips else "other skip entries stamped before it"
