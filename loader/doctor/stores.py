"""Stores that neither an extra nor the standard library reads: the fsspec file system of their scheme, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .finding import Check
from .needs import OBJECT_STORES, source_roots

__all__ = ["check_stores", "fsspec_problem"]


def fsspec_problem(scheme: str) -> str | None:
    """Why no fsspec file system reads URLs of this scheme here; None: one does."""
    try:
        from fsspec import get_filesystem_class  # type: ignore[import-untyped]
    except ImportError:
        return "fsspec is not installed"
    try:
        get_filesystem_class(scheme)
    except Exception as error:  # a file system may fail in any way when it is imported
        return f"fsspec: {error}"
    return None


def check_stores(config: Mapping[str, Any]) -> list[Check]:
    """One line for each scheme of a source's root that obstore does not read.

    Args:
        config: the plain form of a configuration.
    """
    found: dict[str, Check] = {}
    for root in source_roots(config):
        scheme, mark, _ = root.partition("://")
        if not mark or scheme in OBJECT_STORES or scheme in found:
            continue
        problem, name = fsspec_problem(scheme), f"store {scheme}"
        if problem is None:
            found[scheme] = Check(name, "ok", f"{root}: by its fsspec file system")
        else:
            command = f"pip install fsspec, and the package that brings its file system for {scheme}://"
            found[scheme] = Check(name, "missing", f"{root}: {problem}", command)
    return list(found.values())
