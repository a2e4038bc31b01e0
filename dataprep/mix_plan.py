"""How long the plan of a mix is, in which stages it reads which shares, and how much of each source it needs.

Everything is counted in tokens and in exact integers or fractions, so that the plan is the same on every machine.

A stage starts on a multiple of the grid: 256 samples of the loader's order, in tokens. The borders that were asked for
are rounded to the nearest one, so each lies at most 128 samples from where it was asked for. Inside a stage the shares
are those that were asked for, to 2^-40. A sample holds at most ``seq_len`` tokens, so a plan that is counted as if
every sample were full reads no source more often than it says; padding (see the report) makes it that much shorter.

Exhaustion is compiled to stages: in the block of 256 samples in which a source's epochs are used up it gives what it
has left, behind it the others share the rest of the stage by their ratios (``renormalise``); or the plan ends there
(``stop``). ``loader.order.exhaustion`` answers the same question for a run that names its own policy, and cannot
answer this one: it counts positions of samples that are packed, where a seed puts each, so a source leaves before the
block in which it would run out, and ``stop`` ends at the very position. Here nothing is packed, how much to keep
follows from the answer, and neither borders nor counts may depend on a seed.

``keep_tokens`` is what to keep of each source. It comes from the same plan without rounding, plus what rounding can
move, so that it does not fall when the total grows: the documents that a smaller plan keeps, a larger one keeps too.
(One exception lies in what is asked for: ``stop`` with several stages ends in an earlier stage as that grows.)

Mappings are by source name; there are no arrays here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise

from loader.errors import JobError, RefusedError
from loader.order.weights import BLOCK, POSITION_LIMIT, WEIGHT_BITS

from .mix_config import MixConfig

__all__ = ["SHARE_BITS", "MixPlan", "PlannedStage", "largest_remainder", "most_tokens", "plan_mix"]

SHARE_BITS = 40
_RATIO_BITS = 128
_DECIMALS = Context(prec=40)


@dataclass(frozen=True)
class PlannedStage:
    """A stage of the compiled plan.

    Attributes:
        asked: number of the stage of the configuration that it belongs to.
        start_tokens, stop_tokens: its place in the plan, as if every sample were full; the start is on the grid.
        shares: source -> share of its tokens in units of 2^-40, sum 2^40; sources that rest are not named.
        tokens: source -> its tokens; their sum is the stage's length.
    """

    asked: int
    start_tokens: int
    stop_tokens: int
    shares: Mapping[str, int]
    tokens: Mapping[str, int]


@dataclass(frozen=True)
class MixPlan:
    """The compiled plan.

    Attributes:
        stages: in order, without a gap.
        ratios: source -> share of the whole plan that was asked for.
        keep_tokens: source -> unique tokens to keep.
    """

    stages: tuple[PlannedStage, ...]
    ratios: Mapping[str, float]
    keep_tokens: Mapping[str, int]

    @property
    def total_tokens(self) -> int:
        """Length of the plan."""
        return self.stages[-1].stop_tokens

    def planned_tokens(self, source: str) -> int:
        """Tokens of the plan that come from a source, repeats counted."""
        return sum(stage.tokens.get(source, 0) for stage in self.stages)


@dataclass(frozen=True)
class _Asked:
    """The stages of a configuration: parts of the plan (sum 1), and per stage source -> ratio (sum 1, none 0)."""

    parts: tuple[Fraction, ...]
    ratios: tuple[Mapping[str, Fraction], ...]

    def mean(self, source: str) -> Fraction:
        """Share of the source in the whole plan."""
        return sum(
            (part * r.get(source, Fraction(0)) for part, r in zip(self.parts, self.ratios, strict=True)), Fraction(0)
        )


def plan_mix(tokens: Mapping[str, int], config: MixConfig, seq_len: int) -> MixPlan:
    """Compile the plan.

    Args:
        tokens: source -> tokens available, BOS and EOS counted.
        config: what is asked for.
        seq_len: tokens of a sample; with it the grid is 256 x ``seq_len`` tokens.

    Raises:
        JobError: a source has no tokens (``TR-MIX-EMPTY``).
        RefusedError: the plan needs a source more often than ``max_epochs`` allows (``TR-MIX-EPOCHS``), would never
            read one (``TR-MIX-UNREACHED``), or has a stage shorter than the grid (``TR-MIX-STAGE-SHORT``).
    """
    _check_sources(tokens)
    if not config.asks:
        stage = PlannedStage(0, 0, sum(tokens.values()), largest_remainder(tokens, 1 << SHARE_BITS), dict(tokens))
        return MixPlan((stage,), {s: t / stage.stop_tokens for s, t in tokens.items()}, dict(tokens))
    asked = _asked(tokens, config)
    grid = BLOCK * seq_len
    limits = _limits(tokens, config)
    total = config.total_tokens
    if total is None:
        total = _longest(asked, limits, grid)
    exact = _walk(asked, limits, (total, total), 1, config.exhaustion)
    stages = _walk(asked, limits, (total, exact[-1].stop_tokens), grid, config.exhaustion)
    ratios = {source: float(asked.mean(source)) for source in tokens}
    plan = MixPlan(stages, ratios, _keep(tokens, asked, exact, grid, config.exhaustion))
    _check_plan(plan, asked, grid)
    for source, limit in limits.items():
        if plan.planned_tokens(source) > limit:
            epochs = (plan.planned_tokens(source) / tokens[source], limit / tokens[source])
            raise _too_often(source, epochs, _longest(asked, limits, grid))
    return plan


def most_tokens(sources: Sequence[str], config: MixConfig, seq_len: int) -> dict[str, int]:
    """The most that ``plan_mix`` can ask to keep of each source, whatever is available; {} where that is not known
    from the configuration alone."""
    if config.total_tokens is None or (config.ratios is None and not config.stages):
        return {}
    asked = _asked(dict.fromkeys(sources, 1), config)
    most = {}
    for source in sources:
        share = Fraction(1) if config.exhaustion == "renormalise" else asked.mean(source)
        moved = _moved(source, asked, BLOCK * seq_len, config.exhaustion, len(sources))
        most[source] = int(share * config.total_tokens) + moved + len(asked.parts)
    return most


def _check_sources(tokens: Mapping[str, int]) -> None:
    for source, available in tokens.items():
        if available <= 0:
            raise JobError(
                "TR-MIX-EMPTY",
                f"source {source!r} has no documents left to mix",
                source,
                "at least one document after deduplication and hold-out",
                "remove the source, or look at removed.parquet and rejected.parquet",
            )


def _asked(tokens: Mapping[str, int], config: MixConfig) -> _Asked:
    """Shares by stage as exact fractions."""
    if config.stages:
        parts = [Fraction(stage.share) for stage in config.stages]
        weights = [{s: Fraction(r) for s, r in stage.ratios.items() if r > 0} for stage in config.stages]
    elif config.temperature is not None:
        parts, weights = [Fraction(1)], [_tempered(tokens, config.temperature)]
    else:
        parts, weights = [Fraction(1)], [{s: Fraction(r) for s, r in (config.ratios or tokens).items()}]
    whole = sum(parts)
    if len(parts) > 1:
        # One denominator: exact quotients of 1,024 stages sum to numbers of 50,000 digits, and no plan is ever done.
        scale = 1 << _RATIO_BITS
        ratios = [{s: Fraction(n, scale) for s, n in largest_remainder(stage, scale).items()} for stage in weights]
    else:
        ratios = [{s: weight / sum(stage.values()) for s, weight in stage.items()} for stage in weights]
    return _Asked(tuple(part / whole for part in parts), tuple(ratios))


def _tempered(tokens: Mapping[str, int], temperature: float) -> dict[str, Fraction]:
    """(tokens / most tokens)^(1 / temperature), to 10^-15: by decimal arithmetic, which is the same on every machine,
    as the C library's power is not."""
    most = _DECIMALS.ln(Decimal(max(tokens.values())))
    weights = {}
    for source, available in tokens.items():
        exponent = _DECIMALS.divide(_DECIMALS.subtract(_DECIMALS.ln(Decimal(available)), most), Decimal(temperature))
        power = Decimal(0) if exponent < -60 else _DECIMALS.exp(exponent)
        weights[source] = Fraction(round(Fraction(power) * 10**15), 10**15)
        if weights[source] == 0:
            raise _unreached(source, "its share at this temperature is below 10^-15", "a larger mix.temperature")
    return weights


def _limits(tokens: Mapping[str, int], config: MixConfig) -> dict[str, int]:
    """Tokens that may be read of each source, repeats counted; sources that may be repeated at will are left out."""
    unlimited = config.total_tokens is not None and config.exhaustion == "repeat"
    epochs = {source: config.max_epochs.get(source, 0.0 if unlimited else 1.0) for source in tokens}
    return {s: max(1, int(Fraction(epochs[s]) * tokens[s])) for s in tokens if epochs[s] > 0}


def _longest(asked: _Asked, limits: Mapping[str, int], grid: int) -> int:
    """The longest plan, rounding of its stages counted, that reads no source more than it may."""
    total = min(int(limit / asked.mean(source)) for source, limit in limits.items() if asked.mean(source))
    while total > 0:
        used = _used(_walk(asked, {}, (total, total), grid, "repeat"))
        over = max((used[s] - limit) / asked.mean(s) for s, limit in limits.items() if asked.mean(s))
        if over <= 0:
            break
        total -= max(1, int(over))
    return max(total, 1)


def _walk(
    asked: _Asked, limits: Mapping[str, int], ends: tuple[int, int], grid: int, policy: str
) -> tuple[PlannedStage, ...]:
    """Walk the stages that were asked for, and break them where sources run out.

    Args:
        asked, limits, policy: as named above; ``repeat`` knows no limits.
        ends: the total that the borders are shares of, and where to end at the latest.
        grid: borders are multiples of it.

    Each turn takes a token at least: who is not used up has one left, and no ratio is above their sum.
    """
    total, last = ends
    cumulative = [sum(asked.parts[:number], Fraction(0)) * total for number in range(len(asked.parts))]
    borders = [*(int((value + Fraction(grid, 2)) // grid) * grid for value in cumulative), total]
    limits = {} if policy == "repeat" else limits
    used: Counter[str] = Counter()
    stages: list[PlannedStage] = []
    for number, (start, stop) in enumerate(pairwise(borders)):
        position = stages[-1].stop_tokens if stages else 0
        room = min(stop - start, last - position)
        while room > 0 and (
            active := {s: r for s, r in asked.ratios[number].items() if s not in limits or used[s] < limits[s]}
        ):
            whole = sum(active.values())
            left = {s: limits[s] - used[s] for s in active if s in limits}
            first = min((left[s] * whole / active[s] for s in left), default=Fraction(room))
            tokens = _next_stage(active, left, (first, room), grid, policy)
            length = sum(tokens.values())
            if length < min(grid, room) and policy == "renormalise" and number + 2 < len(borders):
                break  # all sources of this stage have less than a block left, and no stage could start behind that
            shares = largest_remainder(active if first >= min(grid, room) else tokens, 1 << SHARE_BITS)
            stages.append(PlannedStage(number, position, position + length, shares, tokens))
            if policy == "stop" and first < room:
                return tuple(stages)
            position, room = position + length, room - length
            used.update(tokens)
    return tuple(stages)


def _next_stage(
    active: Mapping[str, Fraction], left: Mapping[str, int], reach: tuple[Fraction, int], grid: int, policy: str
) -> dict[str, int]:
    """Tokens of each source up to the next border: where the stage ends, where the plan stops, the last border before
    a source runs out; or of the one block in which that happens.

    ``reach``: where the first source runs out, and where the stage ends, both from here.
    """
    first, room = reach
    if first >= room or policy == "stop":
        return largest_remainder(active, min(room, int(first)))
    if first >= grid:
        return largest_remainder(active, int(first) // grid * grid)
    return _last_block(active, left, min(grid, room))


def _last_block(active: Mapping[str, Fraction], left: Mapping[str, int], length: int) -> dict[str, int]:
    """A block in which sources run out: they give all they have left, the others share the rest by their ratios."""
    given: dict[str, int] = {}
    while len(given) < len(active):
        rest = length - sum(given.values())
        whole = sum(ratio for source, ratio in active.items() if source not in given)
        over = [s for s in left if s not in given and rest * active[s] >= left[s] * whole]
        if not over:
            break
        given.update({source: left[source] for source in over})
    others = {source: ratio for source, ratio in active.items() if source not in given}
    return {**given, **(largest_remainder(others, length - sum(given.values())) if others else {})}


def largest_remainder(weights: Mapping[str, int] | Mapping[str, Fraction], total: int) -> dict[str, int]:
    """Whole numbers of sum ``total`` in proportion to weights, each within 1 of its exact share (ties: by name)."""
    whole = Fraction(sum(weights.values()))
    exact = {name: weight * total / whole for name, weight in weights.items()}
    parts = {name: value.numerator // value.denominator for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (parts[name] - exact[name], name))
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def _used(stages: Sequence[PlannedStage]) -> Counter[str]:
    used: Counter[str] = Counter()
    for stage in stages:
        used.update(stage.tokens)
    return used


def _keep(
    tokens: Mapping[str, int], asked: _Asked, exact: Sequence[PlannedStage], grid: int, policy: str
) -> dict[str, int]:
    """Unique tokens to keep: what the plan without rounding reads, and what rounding its borders can add to that.

    A border that is moved by up to half a grid changes a source's tokens by that times the change of its share there;
    where sources run out, what one lacks can go to any other. Counts in whole tokens add one a stage.
    """
    used = _used(exact)
    moved = {source: _moved(source, asked, grid, policy, len(tokens)) for source in tokens}
    return {source: min(tokens[source], used[source] + moved[source]) for source in tokens}


def _moved(source: str, asked: _Asked, grid: int, policy: str, num_sources: int) -> int:
    """Tokens that rounding can add to a source."""
    shares = [stage.get(source, Fraction(0)) for stage in asked.ratios]
    if policy == "renormalise":
        return grid * (len(shares) - 1) + len(shares) + 2 * num_sources
    moved = sum((abs(after - before) for before, after in pairwise(shares)), Fraction(0)) * Fraction(grid, 2)
    return int(moved) + len(shares)


def _check_plan(plan: MixPlan, asked: _Asked, grid: int) -> None:
    """Refuse a plan that is not what was asked for."""
    for number in range(len(asked.parts)):
        mine = [stage for stage in plan.stages if stage.asked == number]
        if len(asked.parts) > 1 and sum(stage.stop_tokens - stage.start_tokens for stage in mine) < grid:
            raise RefusedError(
                "TR-MIX-STAGE-SHORT",
                f"stage {number} of the mix would be shorter than a block of {BLOCK} samples, or its sources have run "
                "out before it begins",
                f"mix.stages.{number}",
                f"at least {grid} tokens",
                "raise the stage's share or mix.total_tokens, or lower pack.seq_len",
            )
    for source in plan.keep_tokens:
        if plan.planned_tokens(source) == 0:
            raise _unreached(source, "the plan ends, or the source's share rounds to nothing", "a larger share")
    if plan.total_tokens * BLOCK // grid >= POSITION_LIMIT:
        message = f"the plan has {plan.total_tokens * BLOCK // grid:,} samples"
        raise RefusedError("TR-MIX-LONG", message, "mix.total_tokens", f"fewer than {POSITION_LIMIT:,}")
    smallest = 1 << (SHARE_BITS - WEIGHT_BITS)
    for stage in plan.stages:
        for source, share in asked.ratios[stage.asked].items():
            if share * (1 << SHARE_BITS) < smallest:
                raise _unreached(source, f"its share is {float(share):.3g}", f"0, or at least {2.0**-WEIGHT_BITS:.3g}")


def _too_often(source: str, epochs: tuple[float, float], longest: int) -> RefusedError:
    return RefusedError(
        "TR-MIX-EPOCHS",
        f"source {source!r} would be seen {epochs[0]:.2f} times",
        f"mix.max_epochs.{source}",
        f"at most {epochs[1]:g} epochs, that is total_tokens <= {longest}",
        "lower mix.total_tokens or the source's ratio, raise max_epochs, or set mix.exhaustion",
    )


def _unreached(source: str, why: str, expected: str) -> RefusedError:
    return RefusedError(
        "TR-MIX-UNREACHED",
        f"the plan would never read source {source!r}: {why}",
        "mix",
        expected,
        "raise its share or mix.total_tokens, set mix.exhaustion, or remove the source",
    )
