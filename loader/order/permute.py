"""Keyed permutations of integer ranges ("cells"), forwards and backwards, vectorised over cells of different sizes.

A cell of n numbers lies in the grid radix x 2^low_bits, the smallest of its shape that holds n. Four Feistel rounds
permute the grid, two on either coordinate (addition modulo the radix, xor on the low bits); a number that leaves the
cell walks on until it is inside again, so the map is a bijection of the cell. A grid exceeds its cell by less than
2^low_bits, about the square root of n, so walking is rare (over the next power of two it could double the work).

Round functions read fixed tables of 65,536 random numbers at coordinate xor key: for arrays of a thousand numbers the
number of array operations is the price, and this takes fewer than arithmetic of the same quality.

Method: Black and Rogaway, "Ciphers with arbitrary finite domains" (generalised Feistel, cycle walking).

Legend: N numbers, C cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import xxhash
from numpy.typing import NDArray

__all__ = ["CELL_LIMIT", "Cells", "derive_key", "keyed_cells", "mix64", "permute", "unpermute"]

CELL_LIMIT = 1 << 31
_TABLE_BITS = 16
_TABLE_SALT = 0x746F6B656E726565  # "tokenree"
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_Ints = NDArray[np.int64]


def derive_key(*parts: int | str) -> int:
    """A 64-bit key out of numbers and names: xxh3-64 of their decimal or UTF-8 forms, each closed by a NUL."""
    return xxhash.xxh3_64_intdigest(b"".join(str(part).encode("utf-8") + b"\0" for part in parts))


def mix64(values_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit numbers that hides structure."""
    mixed_N = (values_N ^ (values_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed_N ^ (mixed_N >> np.uint64(31))


@cache
def _round_tables() -> tuple[_Ints, _Ints, _Ints, _Ints]:
    """A table of 65,536 numbers below 2^16 for each round: the four quarters of one hash of each index."""
    hashed = mix64(np.arange(1 << _TABLE_BITS, dtype=np.uint64) * _GOLDEN + np.uint64(_TABLE_SALT))
    quarters = [((hashed >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48)]
    for quarter in quarters:
        quarter.setflags(write=False)
    return quarters[0], quarters[1], quarters[2], quarters[3]


@dataclass(frozen=True)
class Cells:
    """Sizes, grids and keys of C cells, int64 throughout.

    Attributes:
        size_C: numbers in the cell, below ``CELL_LIMIT``.
        radix_C, low_bits_C, low_mask_C: its grid; ``radix * 2^low_bits >= size``, both coordinates below 2^16.
        key_low_C, key_high_C: 16 bits each, one for the rounds of either coordinate.
    """

    size_C: _Ints
    radix_C: _Ints
    low_bits_C: _Ints
    low_mask_C: _Ints
    key_low_C: _Ints
    key_high_C: _Ints

    def take(self, index: _Ints | slice) -> Cells:
        """The cells that ``index`` picks, in that order."""
        return Cells(
            self.size_C[index],
            self.radix_C[index],
            self.low_bits_C[index],
            self.low_mask_C[index],
            self.key_low_C[index],
            self.key_high_C[index],
        )

    def at(self, index_N: _Ints) -> Cells:
        """Cells for N numbers; one that broadcasts if all N lie in the same cell, which saves the gathers."""
        if len(index_N):
            first = int(index_N[0])
            if index_N[-1] == first and (index_N == first).all():
                return self.take(slice(first, first + 1))
        return self.take(index_N)

    @staticmethod
    def join(parts: list[Cells]) -> Cells:
        """All cells of ``parts`` in order."""
        return Cells(
            np.concatenate([part.size_C for part in parts]),
            np.concatenate([part.radix_C for part in parts]),
            np.concatenate([part.low_bits_C for part in parts]),
            np.concatenate([part.low_mask_C for part in parts]),
            np.concatenate([part.key_low_C for part in parts]),
            np.concatenate([part.key_high_C for part in parts]),
        )


def keyed_cells(size_C: _Ints, key_C: NDArray[np.uint64]) -> Cells:
    """Cells of the given sizes with the given keys, of which 32 bits are used.

    Raises:
        ValueError: a size is negative or not below ``CELL_LIMIT``.
    """
    if len(size_C) and not 0 <= int(size_C.min()) <= int(size_C.max()) < CELL_LIMIT:
        raise ValueError(f"cell sizes must lie in 0 .. {CELL_LIMIT - 1}")
    num_bits_C = np.frexp(np.maximum(size_C - 1, 0).astype(np.float64))[1].astype(np.int64)
    low_bits_C = num_bits_C >> 1
    low_mask_C = (1 << low_bits_C) - 1
    radix_C = np.maximum((size_C + low_mask_C) >> low_bits_C, 1)
    key_low_C = (key_C & np.uint64(0xFFFF)).astype(np.int64)
    key_high_C = ((key_C >> np.uint64(32)) & np.uint64(0xFFFF)).astype(np.int64)
    return Cells(size_C, radix_C, low_bits_C, low_mask_C, key_low_C, key_high_C)


_Step = Callable[[_Ints, Cells], _Ints]


def permute(numbers_N: _Ints, cells: Cells) -> _Ints:
    """The image of each number inside its cell: ``[0, size)`` to ``[0, size)``, one to one for each key.

    Args:
        numbers_N: numbers, each inside its cell.
        cells: N cells, or one for all.
    """
    return _walk(numbers_N, cells, _forward)


def unpermute(numbers_N: _Ints, cells: Cells) -> _Ints:
    """The inverse of :func:`permute`."""
    return _walk(numbers_N, cells, _backward)


def _walk(numbers_N: _Ints, cells: Cells, step: _Step) -> _Ints:
    images_N = step(numbers_N, cells)
    outside_N = images_N >= cells.size_C
    if outside_N.any():
        left = np.flatnonzero(outside_N)
        while len(left):
            some = cells if len(cells.size_C) == 1 else cells.take(left)
            moved = step(images_N[left], some)
            images_N[left] = moved
            left = left[moved >= some.size_C]
    return images_N


def _mask_of_low(high_N: _Ints, cells: Cells, table: _Ints) -> _Ints:
    """What a round xors into the low coordinate."""
    mask_N: _Ints = table[high_N ^ cells.key_low_C]
    mask_N &= cells.low_mask_C
    return mask_N


def _shift_of_high(low_N: _Ints, cells: Cells, table: _Ints) -> _Ints:
    """What a round adds to the high coordinate, below the radix: the table's entry as a fraction times the radix."""
    shift_N: _Ints = table[low_N ^ cells.key_high_C]
    shift_N *= cells.radix_C
    shift_N >>= _TABLE_BITS
    return shift_N


def _reduce(high_N: _Ints, moved_N: _Ints) -> None:
    """The one of two numbers that is not negative, or the smaller: a negative one is huge as an unsigned one."""
    unsigned_N = high_N.view(np.uint64)
    np.minimum(unsigned_N, moved_N.view(np.uint64), out=unsigned_N)


def _forward(numbers_N: _Ints, cells: Cells) -> _Ints:
    tables = _round_tables()
    high_N: _Ints = numbers_N >> cells.low_bits_C
    low_N: _Ints = numbers_N & cells.low_mask_C
    for number in (0, 2):
        low_N ^= _mask_of_low(high_N, cells, tables[number])
        high_N += _shift_of_high(low_N, cells, tables[number + 1])
        _reduce(high_N, high_N - cells.radix_C)
    high_N <<= cells.low_bits_C
    high_N |= low_N
    return high_N


def _backward(numbers_N: _Ints, cells: Cells) -> _Ints:
    tables = _round_tables()
    high_N: _Ints = numbers_N >> cells.low_bits_C
    low_N: _Ints = numbers_N & cells.low_mask_C
    for number in (2, 0):
        high_N -= _shift_of_high(low_N, cells, tables[number + 1])
        _reduce(high_N, high_N + cells.radix_C)
        low_N ^= _mask_of_low(high_N, cells, tables[number])
    high_N <<= cells.low_bits_C
    high_N |= low_N
    return high_N
