"""Union-find by size over pairs that come in order. Shapes: N documents, M places of an ordered list."""

from __future__ import annotations

from typing import Any

from .jit import helper, kernel

__all__ = ["flatten_roots", "unite_neighbours"]


@helper
def _root(parent_N: Any, d: Any) -> Any:
    while parent_N[d] != d:
        parent_N[d] = parent_N[parent_N[d]]
        d = parent_N[d]
    return d


@kernel
def unite_neighbours(ordered_M: Any, same_M: Any, parent_N: Any, size_N: Any) -> None:
    """Unite ``ordered_M[m - 1]`` and ``ordered_M[m]`` (int64) for each m with ``same_M`` (bool), one after another.

    The root of the larger set stays the root, that of the earlier document if they are equal; ``parent_N`` and
    ``size_N`` are int64, a root is its own parent.
    """
    for m in range(1, ordered_M.shape[0]):
        if same_M[m]:
            a, b = _root(parent_N, ordered_M[m - 1]), _root(parent_N, ordered_M[m])
            if a != b:
                if size_N[a] < size_N[b]:
                    a, b = b, a
                parent_N[b] = a
                size_N[a] += size_N[b]


@kernel
def flatten_roots(parent_N: Any) -> None:
    """Make every parent a root."""
    for d in range(parent_N.shape[0]):
        parent_N[d] = _root(parent_N, d)
