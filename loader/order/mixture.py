"""Which source each position reads, and as its how-manieth sample: closed form in both directions, over any stages.

Inside a stage the splits of ``tree.py`` decide. At a border each source's count so far is compared with its target, the
sum over stages of length x weight, and the difference is what the next stage makes good, so rounding never accumulates.
A source whose weight falls to 0 keeps its difference; the others share the opposite of it evenly, because loading it on
the neighbours in the tree would let a hostile sequence of stages drive one of them away from its target.

The tree deals out slots. Inside blocks of 256 positions and slots are matched by a permutation keyed by seed and block,
so that no data rank is pinned to a source. Ranks follow positions, not slots: rank = the source's positions before this
one, so what acts from a position on (a skip entry) never touches an earlier one. A block is therefore evaluated whole.

Leaves are ordered by the position at which a source first has weight, then by name: sources and stages that come later
change nothing before they act, and neither does the order in which sources are listed.

Legend: N positions, S sources, D leaves, R stages, U blocks, P the 256 positions of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .permute import derive_key, mix64
from .tree import Tree, build_tree
from .weights import BLOCK, POSITION_LIMIT, WEIGHT_BITS, MixtureStage, WeightStage, integer_stages

__all__ = ["Mixture", "MixtureStage", "compile_mixture"]

_Ints = NDArray[np.int64]
_BLOCKS_AT_ONCE = 1024
_KEPT_BLOCKS = 4
_KEPT_SCATTERED = 64
_KEPT_RUNS = 16
_BLOCK_BITS = BLOCK.bit_length() - 1
_NUM_SHUFFLES = 64
_TABLE_MASK = _NUM_SHUFFLES * BLOCK - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_INSIDE_P = np.arange(BLOCK)
_INSIDE_P.setflags(write=False)


class Mixture:
    """position <-> (source, rank), where rank is the number of the source's positions before this one.

    Immutable. Build it with :func:`compile_mixture`.

    Attributes:
        sources: source names; a source's number is its place here.
        stages: the checked stages, equal neighbours merged.
    """

    def __init__(self, sources: Sequence[str], stages: tuple[WeightStage, ...], seed: int) -> None:
        self.sources = tuple(sources)
        self.stages = stages
        self._shuffle = _BlockShuffle(seed)
        leaf_names = _leaf_order(self.sources, stages)
        number = {name: place for place, name in enumerate(self.sources)}
        self._leaf_of_S = np.empty(len(self.sources), np.int64)
        self._source_of_D = np.array([number[name] for name in leaf_names], np.int32)
        self._leaf_of_S[self._source_of_D] = np.arange(len(self.sources))
        self._start_R = np.array([stage.start for stage in stages], np.int64)
        self._trees: list[Tree] = []
        self._kept: tuple[_Run, ...] = ()
        self._scattered: tuple[_Ints, NDArray[np.int32], _Ints] | None = None
        self._base_RD = np.zeros((len(stages), 1 << (len(self.sources) - 1).bit_length()), np.int64)
        self._compile(leaf_names)

    def _compile(self, leaf_names: Sequence[str]) -> None:
        """Walk the stages: targets and counts in units of 2^-26 slots fit 64 bits because positions are below 2^36."""
        num_leaves = self._base_RD.shape[1]
        target_D, count_D = np.zeros(num_leaves, np.int64), np.zeros(num_leaves, np.int64)
        for row, stage in enumerate(self.stages):
            weight_D = np.zeros(num_leaves, np.int64)
            weight_D[: len(leaf_names)] = [stage.weights.get(name, 0) for name in leaf_names]
            self._base_RD[row] = count_D
            tree = build_tree(weight_D, _surplus(target_D - (count_D << WEIGHT_BITS), weight_D > 0))
            self._trees.append(tree)
            if row + 1 < len(self.stages):
                length = self.stages[row + 1].start - stage.start
                count_D = count_D + tree.counts_before(np.array([length], np.int64))[0]
                target_D = target_D + length * weight_D

    def locate(self, positions_N: _Ints) -> tuple[NDArray[np.int32], _Ints]:
        """(source_N, rank_N) of each position; a run of positions costs little each, a single one a whole block.

        Raises:
            ValueError: a position is negative or not below 2^36.
        """
        positions_N = _checked(positions_N)
        if len(self.sources) == 1:
            return np.zeros(len(positions_N), np.int32), positions_N.copy()
        if _is_run(positions_N):
            first = int(positions_N[0]) >> _BLOCK_BITS
            source_UP, rank_UP = self._blocks(first, (int(positions_N[-1]) >> _BLOCK_BITS) + 1)
            start = int(positions_N[0]) - (first << _BLOCK_BITS)
            inside = slice(start, start + len(positions_N))
            return source_UP.reshape(-1)[inside].copy(), rank_UP.reshape(-1)[inside].copy()
        source_N, rank_N = np.empty(len(positions_N), np.int32), np.empty(len(positions_N), np.int64)
        for here, row_N, source_UP, rank_UP in self._blocks_of(positions_N >> _BLOCK_BITS):
            inside_N = (positions_N[here] & (BLOCK - 1)) | (row_N << _BLOCK_BITS)
            source_N[here] = source_UP.reshape(-1)[inside_N]
            rank_N[here] = rank_UP.reshape(-1)[inside_N]
        return source_N, rank_N

    def position_of(self, source: int, ranks_N: _Ints) -> _Ints:
        """The position of each rank of ``source``, inverting :meth:`locate`; -1 for a rank that is never reached."""
        ranks_N = np.asarray(ranks_N, np.int64)
        if len(self.sources) == 1:
            return np.where(ranks_N < POSITION_LIMIT, ranks_N, -1)
        slots_N = self._slot_of(int(self._leaf_of_S[source]), ranks_N)
        found = np.flatnonzero(slots_N >= 0)
        positions_N = np.full(len(ranks_N), -1, np.int64)
        block_N = slots_N[found] >> _BLOCK_BITS
        for here, row_N, source_UP, rank_UP in self._blocks_of(block_N):
            hit_NP = (source_UP[row_N] == source) & (rank_UP[row_N] == ranks_N[found[here], None])
            positions_N[found[here]] = (block_N[here] << _BLOCK_BITS) + hit_NP.argmax(axis=1)
        return positions_N

    def counts_before(self, position: int) -> _Ints:
        """counts_S: positions of each source below ``position``.

        Raises:
            ValueError: the position is negative or above 2^36.
        """
        if not 0 <= position <= POSITION_LIMIT:
            raise ValueError(f"position {position} does not lie in 0 .. 2^36")
        border = min(position, POSITION_LIMIT - BLOCK) // BLOCK * BLOCK
        row = int(np.searchsorted(self._start_R, border, "right")) - 1
        counts_D = self._trees[row].counts_before(np.array([border - self._start_R[row]]))[0] + self._base_RD[row]
        counts_S: _Ints = counts_D[self._leaf_of_S]
        if position > border:
            source_N, _ = self.locate(np.arange(border, position))
            counts_S = counts_S + np.bincount(source_N, minlength=len(self.sources))
        return counts_S

    def rank_before(self, source: int, position: int) -> int:
        """Positions of ``source`` below ``position``."""
        return int(self.counts_before(position)[source])

    def stages_before(self, position: int) -> tuple[WeightStage, ...]:
        """The stages that shaped positions below ``position``."""
        return tuple(stage for stage in self.stages if stage.start < position)

    def targets_before(self, position: int) -> NDArray[np.float64]:
        """target_S: sum over stages of length x weight, up to ``position``; what :meth:`counts_before` tracks."""
        target_D = np.zeros(self._base_RD.shape[1])
        for row, tree in enumerate(self._trees):
            stop = self._start_R[row + 1] if row + 1 < len(self._trees) else position
            length = max(0, min(position, int(stop)) - int(self._start_R[row]))
            target_D += length * (tree.weight_D / (1 << WEIGHT_BITS))
        target_S: NDArray[np.float64] = target_D[self._leaf_of_S]
        return target_S

    def _slot_of(self, leaf: int, ranks_N: _Ints) -> _Ints:
        """The slot that the tree deals to each rank of a leaf; -1 for a rank that is never reached."""
        base_R = self._base_RD[:, leaf]
        row_N = np.searchsorted(base_R, ranks_N, "right") - 1
        slots_N = np.full(len(ranks_N), -1, np.int64)
        by_row = np.argsort(row_N, kind="stable")
        for here in np.split(by_row, np.flatnonzero(np.diff(row_N[by_row])) + 1) if len(row_N) else ():
            row = int(row_N[here[0]])
            if row >= 0 and self._trees[row].weight_D[leaf]:
                coordinates = self._trees[row].coordinate_of(leaf, ranks_N[here] - base_R[row])
                slots_N[here] = coordinates + self._start_R[row]
        slots_N[slots_N >= POSITION_LIMIT] = -1
        return slots_N

    def _locate_slots(self, block_U: _Ints) -> tuple[_Ints, _Ints]:
        """(leaf_M, rank_M) of all slots of ascending blocks, as the tree deals them; a stage is a run of blocks."""
        slots_M = ((block_U << _BLOCK_BITS)[:, None] + _INSIDE_P).reshape(-1)
        if len(self._start_R) == 1:
            return self._trees[0].locate(slots_M)
        row_U = np.searchsorted(self._start_R, block_U << _BLOCK_BITS, "right") - 1
        borders = [0, *(np.flatnonzero(np.diff(row_U)) + 1).tolist(), len(block_U)]
        leaf_M, rank_M = np.empty(len(slots_M), np.int64), np.empty(len(slots_M), np.int64)
        for first, stop in pairwise(borders):
            here, row = slice(first << _BLOCK_BITS, stop << _BLOCK_BITS), int(row_U[first])
            leaf_M[here], rank = self._trees[row].locate(slots_M[here] - self._start_R[row])
            rank_M[here] = rank + self._base_RD[row].take(leaf_M[here])
        return leaf_M, rank_M

    def _blocks_of(self, block_N: _Ints) -> Iterator[tuple[_Ints | slice, _Ints, NDArray[np.int32], _Ints]]:
        """The blocks asked for, evaluated, in portions: which of the N, their rows, source_UP and rank_UP."""
        if not len(block_N):
            return
        first = int(block_N.min())
        span = int(block_N.max()) - first + 1
        if span <= min(_BLOCKS_AT_ONCE, len(block_N) + 1):  # a run of positions: no sorting
            yield slice(None), block_N - first, *self._blocks(first, first + span)
            return
        block_U, row_N = np.unique(block_N, return_inverse=True)
        if len(block_U) <= _KEPT_SCATTERED:  # who asks where ranks lie asks next what lies there
            kept = self._scattered
            if kept is None or not np.array_equal(kept[0], block_U):
                self._scattered = kept = (block_U, *self._evaluate(block_U))
            yield slice(None), row_N, kept[1], kept[2]
            return
        for start in range(0, len(block_U), _BLOCKS_AT_ONCE):
            portion_U = block_U[start : start + _BLOCKS_AT_ONCE]
            here = np.flatnonzero((row_N >= start) & (row_N < start + len(portion_U)))
            yield here, row_N[here] - start, *self._evaluate(portion_U)

    def _blocks(self, first: int, stop: int) -> tuple[NDArray[np.int32], _Ints]:
        """:meth:`_evaluate` on a run of blocks; short ones are kept, as small steps ask for one repeatedly."""
        for run in self._kept:  # one read; a tuple never changes, so threads only ever repeat work
            if run.first <= first and stop <= run.first + len(run.rank_UP):
                inside = slice(first - run.first, stop - run.first)
                return run.source_UP[inside], run.rank_UP[inside]
        source_UP, rank_UP = self._evaluate(np.arange(first, stop))
        if stop - first <= _KEPT_BLOCKS:
            self._kept = (_Run(first, source_UP, rank_UP), *self._kept[: _KEPT_RUNS - 1])
        return source_UP, rank_UP

    def _evaluate(self, block_U: _Ints) -> tuple[NDArray[np.int32], _Ints]:
        """source_UP and rank_UP of whole blocks."""
        leaf_M, rank_M = self._locate_slots(block_U)
        row_U1 = np.arange(len(block_U))[:, None]
        # of one block and leaf, the ascending ranks go to the ascending positions; numpy sorts 16-bit numbers by radix
        num_groups = len(block_U) * len(self.sources)
        leaf_UP = leaf_M.astype(np.uint16 if num_groups <= 1 << 16 else np.int64).reshape(len(block_U), BLOCK)
        leaf_at_UP = leaf_UP.reshape(-1)[self._shuffle.slots_UP(block_U) + (row_U1 << _BLOCK_BITS)]
        source_UP = self._source_of_D[leaf_at_UP]
        group_U1 = (row_U1 * len(self.sources)).astype(leaf_UP.dtype)
        np.add(leaf_UP, group_U1, out=leaf_UP)
        np.add(leaf_at_UP, group_U1, out=leaf_at_UP)
        rank_at_M = np.empty_like(rank_M)
        rank_at_M[leaf_at_UP.argsort(axis=None, kind="stable")] = rank_M[leaf_UP.argsort(axis=None, kind="stable")]
        return source_UP, rank_at_M.reshape(source_UP.shape)


@dataclass(frozen=True)
class _Run:
    """Evaluated blocks, from ``first`` on."""

    first: int
    source_UP: NDArray[np.int32]
    rank_UP: _Ints


class _BlockShuffle:
    """A keyed permutation of the 256 places of each block: two of 64 random ones, joined and shifted by a key.

    28 bits of key for a handful of array operations, however the blocks lie.
    """

    def __init__(self, seed: int) -> None:
        self._key = np.uint64(derive_key("mixture-block", seed))
        count = np.uint64(_NUM_SHUFFLES * BLOCK)
        hashed = mix64(np.arange(count, dtype=np.uint64) * _GOLDEN + np.uint64(derive_key("mixture-table", seed)))
        tagged = (hashed.reshape(_NUM_SHUFFLES, BLOCK) & ~np.uint64(BLOCK - 1)) | np.arange(BLOCK, dtype=np.uint64)
        self._table = (np.sort(tagged, axis=1) & np.uint64(BLOCK - 1)).astype(np.int64).reshape(-1)

    def slots_UP(self, block_U: _Ints) -> _Ints:
        """The place of the slot that each place of each block reads."""
        hashed_U1 = mix64(block_U.astype(np.uint64) + self._key)[:, None]
        # row of the table in the upper bits, place in the lower: xor moves both at once
        places_UP = self._table[_INSIDE_P ^ ((hashed_U1 >> np.uint64(8)).astype(np.int64) & _TABLE_MASK)]
        places_UP ^= (hashed_U1 >> np.uint64(32)).astype(np.int64) & _TABLE_MASK
        slots_UP: _Ints = self._table[places_UP]
        return slots_UP


def _is_run(positions_N: _Ints) -> bool:
    """Whether these are consecutive positions, in no more blocks than are evaluated at once."""
    num = len(positions_N)
    if not num or num > (_BLOCKS_AT_ONCE - 1) * BLOCK or int(positions_N[-1]) - int(positions_N[0]) != num - 1:
        return False
    return bool((positions_N[1:] > positions_N[:-1]).all())


def _checked(positions_N: _Ints) -> _Ints:
    positions_N = np.asarray(positions_N, np.int64)
    if len(positions_N) and not 0 <= int(positions_N.min()) <= int(positions_N.max()) < POSITION_LIMIT:
        raise ValueError("positions must lie in 0 .. 2^36 - 1")
    return positions_N


def _leaf_order(sources: Sequence[str], stages: Sequence[WeightStage]) -> list[str]:
    first = dict.fromkeys(sources, POSITION_LIMIT)
    for stage in reversed(stages):
        first.update(dict.fromkeys(stage.weights, stage.start))
    return sorted(sources, key=lambda name: (first[name], name))


def _surplus(owed_D: _Ints, active_D: NDArray[np.bool_]) -> _Ints:
    """What the coming stage makes good: each active leaf's debt above its even share of the active leaves' sum."""
    surplus_D = np.where(active_D, owed_D, 0)
    active = np.flatnonzero(active_D)
    share, rest = divmod(int(surplus_D.sum()), len(active))
    surplus_D[active] -= share
    surplus_D[active[:rest]] -= 1
    return surplus_D


def compile_mixture(sources: Sequence[str], stages: Sequence[MixtureStage], seed: int) -> Mixture:
    """The mixture of ``sources`` over ``stages``.

    Raises:
        ConfigError: as :func:`loader.order.weights.integer_stages`.
    """
    return Mixture(sources, integer_stages(stages, sources), seed)
