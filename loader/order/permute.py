"""Keyed permutations of integer ranges ("cells"), forwards and backwards, vectorised over cells of different sizes.

A cell of n numbers lies in the grid radix x 2^low_bits, the smallest of its shape that holds n. Four Feistel rounds
permute the grid, two on either coordinate (addition modulo the radix, xor on the low bits); a number that leaves the
cell walks on until it is inside again, so the map is a bijection of the cell. A grid exceeds its cell by less than
2^low_bits, about the square root of n, so walking is rare (over the next power of two it could double the work).

Method: Black and Rogaway, "Ciphers with arbitrary finite domains" (generalised Feistel, cycle walking).

Legend: N numbers, C cells. All arithmetic is in unsigned 32-bit integers that wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

__all__ = ["CELL_LIMIT", "Cells", "derive_key", "keyed_cells", "mix64", "permute", "unpermute"]

CELL_LIMIT = 1 << 31
_ROUNDS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
_FINISH = np.array([0x846CA68B], np.uint32)
_FACTORS = tuple(np.array([factor], np.uint32) for factor in _ROUNDS)
_SHIFT_15 = np.array([15], np.uint32)
_SHIFT_16 = np.array([16], np.uint32)
_U32 = NDArray[np.uint32]


def derive_key(*parts: int | str) -> int:
    """A 64-bit key out of numbers and names: xxh3-64 of their decimal or UTF-8 forms, each closed by a NUL."""
    return xxhash.xxh3_64_intdigest(b"".join(str(part).encode("utf-8") + b"\0" for part in parts))


def mix64(values_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit numbers that hides structure."""
    mixed_N = (values_N ^ (values_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed_N ^ (mixed_N >> np.uint64(31))


@dataclass(frozen=True)
class Cells:
    """Sizes, grids and keys of C cells.

    Attributes:
        size_C: numbers in the cell, below ``CELL_LIMIT``.
        radix_C, low_bits_C, low_mask_C: its grid; ``radix * 2^low_bits >= size``, radix <= 2^16.
        key_low_C, key_high_C: halves of its 64-bit key, one for each coordinate.
    """

    size_C: _U32
    radix_C: _U32
    low_bits_C: _U32
    low_mask_C: _U32
    key_low_C: _U32
    key_high_C: _U32

    def take(self, index: NDArray[np.int64] | slice) -> Cells:
        """The cells that ``index`` picks, in that order."""
        return Cells(
            self.size_C[index],
            self.radix_C[index],
            self.low_bits_C[index],
            self.low_mask_C[index],
            self.key_low_C[index],
            self.key_high_C[index],
        )

    def at(self, index_N: NDArray[np.int64]) -> Cells:
        """Cells for N numbers; one that broadcasts if all N lie in the same cell, which saves the gathers."""
        if len(index_N):
            first = int(index_N[0])
            if not (index_N != first).any():
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


def keyed_cells(size_C: NDArray[np.int64], key_C: NDArray[np.uint64]) -> Cells:
    """Cells of the given sizes with the given keys.

    Raises:
        ValueError: a size is negative or not below ``CELL_LIMIT``.
    """
    if len(size_C) and not 0 <= int(size_C.min()) <= int(size_C.max()) < CELL_LIMIT:
        raise ValueError(f"cell sizes must lie in 0 .. {CELL_LIMIT - 1}")
    num_bits_C = np.frexp(np.maximum(size_C - 1, 0).astype(np.float64))[1].astype(np.int64)
    low_bits_C = num_bits_C >> 1
    radix_C = np.maximum((size_C + (1 << low_bits_C) - 1) >> low_bits_C, 1)
    return Cells(
        size_C.astype(np.uint32),
        radix_C.astype(np.uint32),
        low_bits_C.astype(np.uint32),
        ((1 << low_bits_C) - 1).astype(np.uint32),
        (key_C & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        (key_C >> np.uint64(32)).astype(np.uint32),
    )


_Step = Callable[[_U32, Cells], _U32]


def permute(numbers_N: NDArray[np.int64], cells: Cells) -> NDArray[np.int64]:
    """The image of each number inside its cell: ``[0, size)`` to ``[0, size)``, one to one for each key.

    Args:
        numbers_N: numbers, each inside its cell.
        cells: N cells, or one for all.
    """
    return _walk(numbers_N, cells, _forward)


def unpermute(numbers_N: NDArray[np.int64], cells: Cells) -> NDArray[np.int64]:
    """The inverse of :func:`permute`."""
    return _walk(numbers_N, cells, _backward)


def _walk(numbers_N: NDArray[np.int64], cells: Cells, step: _Step) -> NDArray[np.int64]:
    images_N = step(numbers_N.astype(np.uint32), cells)
    outside_N = images_N >= cells.size_C
    if outside_N.any():
        left = np.flatnonzero(outside_N)
        while len(left):
            some = cells if len(cells.size_C) == 1 else cells.take(left)
            moved = step(images_N[left], some)
            images_N[left] = moved
            left = left[moved >= some.size_C]
    return images_N.astype(np.int64)


def _hash(values_N: _U32, key: _U32, number: int) -> _U32:
    """Round function: 32 bits of which the upper 16 are used."""
    hashed_N: _U32 = values_N ^ key
    hashed_N *= _FACTORS[number]
    hashed_N ^= hashed_N >> _SHIFT_15
    hashed_N *= _FINISH
    hashed_N >>= _SHIFT_16
    return hashed_N


def _shift_of_high(low_N: _U32, cells: Cells, number: int) -> _U32:
    """What a round adds to the high coordinate, below the radix: the hash as a fraction of 2^16 times the radix."""
    hashed_N = _hash(low_N, cells.key_high_C, number)
    hashed_N *= cells.radix_C
    hashed_N >>= _SHIFT_16
    return hashed_N


def _mask_of_low(high_N: _U32, cells: Cells, number: int) -> _U32:
    hashed_N = _hash(high_N, cells.key_low_C, number)
    hashed_N &= cells.low_mask_C
    return hashed_N


def _forward(numbers_N: _U32, cells: Cells) -> _U32:
    high_N: _U32 = numbers_N >> cells.low_bits_C
    low_N: _U32 = numbers_N & cells.low_mask_C
    for number in (0, 2):
        low_N ^= _mask_of_low(high_N, cells, number)
        high_N += _shift_of_high(low_N, cells, number + 1)
        np.minimum(high_N, high_N - cells.radix_C, out=high_N)  # below the radix the difference wraps to something huge
    high_N <<= cells.low_bits_C
    high_N |= low_N
    return high_N


def _backward(numbers_N: _U32, cells: Cells) -> _U32:
    high_N: _U32 = numbers_N >> cells.low_bits_C
    low_N: _U32 = numbers_N & cells.low_mask_C
    for number in (2, 0):
        high_N -= _shift_of_high(low_N, cells, number + 1)
        np.minimum(high_N, high_N + cells.radix_C, out=high_N)
        low_N ^= _mask_of_low(high_N, cells, number)
    high_N <<= cells.low_bits_C
    high_N |= low_N
    return high_N
