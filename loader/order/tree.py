"""One stage of a mixture: a balanced tree of round-half splits over integer weights, exact in float64.

The sources are the leaves of a complete binary tree; a node's total t is the sum of its leaves' weights. Of the first m
arrivals at a node, floor((m a + h) / t) go left, a the left child's total; ``phase`` h in [0, t) holds the rounding and
what the stage inherits. So ranks and their inverse are closed forms, level by level:

    left child, rank r:    m = floor(((r + 1) t - h - 1) / a)
    right child, rank r:   m = floor((r t + h) / b), with b = t - a

After 2^26 arrivals at the root every node has had exactly its total, so coordinates are taken modulo 2^26 first. Then
all products are below 2^53 and every quotient is at least 2^-26 below the next integer: float64 multiplication and
division followed by floor are exact, and faster than integer division.

Legend: N coordinates, K nodes (2 * size; root 1, children of i are 2 i and 2 i + 1, leaves from size on), D leaves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .weights import WEIGHT_BITS

__all__ = ["Tree", "build_tree", "sums_of"]

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]
_PERIOD_MASK = (1 << WEIGHT_BITS) - 1


@dataclass(frozen=True)
class Tree:
    """The splits of one stage.

    Attributes:
        size: number of leaves, a power of two.
        total_K: node totals, at least 1 (float64).
        left_K: left child's total (float64), 0 at leaves.
        phase_K: h (float64).
        weight_D: leaf weights (int64, sum 2^26).
    """

    size: int
    total_K: _Floats
    left_K: _Floats
    phase_K: _Floats
    weight_D: _Ints

    def locate(self, coordinates_N: _Ints) -> tuple[_Ints, _Ints]:
        """The leaf of each slot of the stage (counted from its start, >= 0), and the slot's rank among that leaf's."""
        arrivals_N = (coordinates_N & _PERIOD_MASK).astype(np.float64)
        node_N = np.ones(len(coordinates_N), np.int64)
        for level in range(self.size.bit_length() - 1):
            # at the root one total serves all: dividing by a power of two is cheap, gathering is not
            total_N, left_N = (
                (self.total_K[node_N], self.left_K[node_N]) if level else (self.total_K[1:2], self.left_K[1:2])
            )
            product_N = arrivals_N * left_N
            product_N += self.phase_K[node_N] if level else self.phase_K[1:2]
            to_left_N = product_N / total_N
            np.floor(to_left_N, out=to_left_N)
            # remainder + a >= t: the next arrival makes the quotient one larger, so it is the one that goes left
            product_N -= to_left_N * total_N
            product_N += left_N
            right_N = product_N < total_N
            arrivals_N = np.where(right_N, arrivals_N - to_left_N, to_left_N)
            node_N += node_N
            node_N += right_N
        leaf_N = node_N - self.size
        rank_N = arrivals_N.astype(np.int64)
        rank_N += (coordinates_N >> WEIGHT_BITS) * self.weight_D[leaf_N]
        return leaf_N, rank_N

    def coordinate_of(self, leaf: int, ranks_N: _Ints) -> _Ints:
        """The slot that has rank r of ``leaf``: the inverse of :meth:`locate`. The leaf's weight must not be 0."""
        period_N, rank_N = np.divmod(ranks_N, self.weight_D[leaf])
        arrivals_N = rank_N.astype(np.float64)
        node = self.size + leaf
        while node > 1:
            parent = node >> 1
            total, left, phase = self.total_K[parent], self.left_K[parent], self.phase_K[parent]
            if node & 1:
                arrivals_N = np.floor((arrivals_N * total + phase) / (total - left))
            else:
                arrivals_N = np.floor(((arrivals_N + 1) * total - phase - 1) / left)
            node = parent
        coordinates_N: _Ints = arrivals_N.astype(np.int64)
        coordinates_N += period_N << WEIGHT_BITS
        return coordinates_N

    def counts_before(self, coordinates_N: _Ints) -> NDArray[np.int64]:
        """counts_ND: how many of the first n slots of the stage each leaf has, for each n."""
        arrivals_NK = np.zeros((len(coordinates_N), 2 * self.size))
        arrivals_NK[:, 1] = coordinates_N & _PERIOD_MASK
        first = 1
        while first < self.size:
            level = slice(first, 2 * first)
            children_N2 = arrivals_NK[:, 2 * first : 4 * first]
            split = np.floor((arrivals_NK[:, level] * self.left_K[level] + self.phase_K[level]) / self.total_K[level])
            children_N2[:, 0::2] = split
            children_N2[:, 1::2] = arrivals_NK[:, level] - split
            first *= 2
        counts_ND = arrivals_NK[:, self.size :].astype(np.int64)
        counts_ND += (coordinates_N >> WEIGHT_BITS)[:, None] * self.weight_D
        return counts_ND


def sums_of(leaves_D: _Ints) -> _Ints:
    """sums_K: each node's sum over the leaves below it."""
    size = len(leaves_D)
    sums_K = np.zeros(2 * size, np.int64)
    sums_K[size:] = leaves_D
    first = size
    while first > 1:
        half = first // 2
        sums_K[half:first] = sums_K[first : 2 * first : 2] + sums_K[first + 1 : 2 * first : 2]
        first = half
    return sums_K


def build_tree(weight_D: _Ints, surplus_D: _Ints) -> Tree:
    """The tree of a stage that starts with something to make good.

    Args:
        weight_D: integer weights of sum 2^26; their number is a power of two.
        surplus_D: what each leaf is owed at the stage's start, in units of 2^-26 slots, sum 0; 0 where the weight is 0.

    A node's phase starts at t / 2 + t (owed to the left) - a (owed to the node), clamped to [0, t): what would be more
    than half a slot at one node stays owed. Carrying each node's own remainder would drift when weights change.
    """
    size = len(weight_D)
    totals_K, owed_K = sums_of(weight_D), sums_of(surplus_D)
    inner = slice(1, size)
    total, left = totals_K[inner], totals_K[2 : 2 * size : 2]
    exact = owed_K[2 : 2 * size : 2] * total - left * owed_K[inner]
    phase = ((exact + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS) + total // 2
    phase = np.clip(phase, 0, np.maximum(total - 1, 0))
    left_K, phase_K = np.zeros(2 * size), np.zeros(2 * size)
    left_K[inner], phase_K[inner] = left, phase
    return Tree(size, np.maximum(totals_K, 1).astype(np.float64), left_K, phase_K, weight_D)
