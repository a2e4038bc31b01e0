"""Which data a branch of a run reads: those the run began with, or those that a remap on its way went over to.

A remap is part of the record of the branch that it opened, so both appear in one write; ``config.yaml`` follows, and a
process killed between the two writes changes nothing of what holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .errors import DamageError
from .runs import Branch

if TYPE_CHECKING:
    from .order.skips import SkipEntry
    from .order.start import PlanStart
    from .sources import Sources

__all__ = ["DataInForce", "Remap", "data_in_force", "digests_of", "entries_in_force", "lineage_of", "numbered_in_force"]


@dataclass(frozen=True)
class Remap:
    """What a branch record holds of a remap.

    Attributes:
        datasets: [{path, digest, facts}] from here on (``dataset_facts``; a run of an earlier version lacks the last).
        data: the ``data:`` block from here on.
        before: the same two of the plan that it takes over from: ``datasets``, ``data``.
        start: as ``PlanStart.to_json``.
        consumed: source -> {positions, epochs} that were read before, by the old plan; None where that is not known,
            as its Datasets were gone already; ``epochs`` None where it is not.
        left_behind: [{number, why}] skip entries that mean nothing for the new data.
    """

    datasets: Sequence[Mapping[str, Any]]
    data: Mapping[str, Any]
    before: Mapping[str, Any]
    start: Mapping[str, Any]
    consumed: Mapping[str, Any] | None
    left_behind: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """As stored."""
        return dict(vars(self))


@dataclass(frozen=True)
class DataInForce:
    """What a branch reads.

    Attributes:
        data: the ``data:`` block, as stored. datasets: [{path, digest, facts}] that its Datasets must begin with.
        start: where its plan takes over from another one, or None. branch: the branch that the remap opened, or None.
        eras: (number of a skip entry, digests of the Datasets that this and later entries were made for; None: for
            what is in force), ascending; the last one that fits holds.
    """

    data: Mapping[str, Any]
    datasets: Sequence[Mapping[str, Any]]
    start: PlanStart | None = None
    branch: Branch | None = None
    eras: tuple[tuple[int, frozenset[str] | None], ...] = ()


def lineage_of(branches: Sequence[Branch], number: int) -> list[Branch]:
    """A branch and its ancestors, the branch first."""
    lineage = [branches[number]]
    while (parent := lineage[-1].parent) is not None:
        lineage.append(branches[parent])
    return lineage


def _remapped(branches: Sequence[Branch], number: int | None) -> Branch | None:
    """The nearest branch of a lineage that a remap opened."""
    lineage = [] if number is None else lineage_of(branches, number)
    return next((branch for branch in lineage if branch.remap is not None), None)


def data_in_force(
    semantic: Mapping[str, Any], identity: Mapping[str, Any], branches: Sequence[Branch], number: int | None = None
) -> DataInForce:
    """The data of a branch (default: the current one), by the contents of config.yaml, run.json and branches.json.

    Raises:
        DamageError: a remap record is none.
    """
    from .order.start import PlanStart

    branch = _remapped(branches, branches[-1].number if number is None else number)
    remap = None if branch is None else _parsed(branch)
    datasets = identity.get("datasets", []) if remap is None else remap.datasets
    wanted, data = [entry["path"] for entry in datasets], semantic.get("data") or {}
    if list(data.get("datasets", ()))[: len(wanted)] != wanted:  # config.yaml is that of another remap
        later = (one for one in branches if one.remap is not None and _remapped(branches, one.parent) is branch)
        follower = next(later, None)
        if follower is not None:
            data = _parsed(follower).before["data"]
        elif remap is not None:
            data = remap.data
    start = None if remap is None else PlanStart.from_json(remap.start)
    return DataInForce(data, datasets, start, branch, _eras(identity, branches, branch))


def digests_of(datasets: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The digests of [{path, digest, ...}]."""
    return frozenset(entry["digest"] for entry in datasets)


def _eras(
    identity: Mapping[str, Any], branches: Sequence[Branch], current: Branch | None
) -> tuple[tuple[int, frozenset[str] | None], ...]:
    """For each branch, the first entry made on it and what it was made for: ``current`` opened what is in force. That
    need not be an ancestor's: a run that was rolled back behind a remap keeps the entries made after it."""
    known: dict[int | None, frozenset[str]] = {None: digests_of(identity.get("datasets", []))}
    for one in branches:
        if one.remap is not None:
            remap, before = _parsed(one), _remapped(branches, one.parent)
            known[one.number] = digests_of(remap.datasets)
            known[before.number if before else None] |= digests_of(remap.before["datasets"])  # some may have been added
    openers = [_remapped(branches, one.number) for one in branches]
    return tuple(
        (one.first_skip, None if opener is current else known[opener.number if opener else None])
        for one, opener in zip(branches, openers, strict=True)
    )


def _parsed(branch: Branch) -> Remap:
    try:
        return Remap(**(branch.remap or {}))
    except TypeError as error:
        place = f"branch {branch.number}"
        raise DamageError("TR-RUN-BRANCHES", "no remap record", place, "an untouched file") from error


def entries_in_force(
    entries: Sequence[SkipEntry], force: DataInForce, sources: Sources
) -> tuple[tuple[SkipEntry, ...], list[dict[str, Any]]]:
    """The skip entries that act on a branch's data, and what is left behind: ``number`` and ``why``.

    Entries made before a remap name samples and segments of Datasets that are no longer read. They stay where they
    mean the same: on positions, on whole sources, on sources whose Dataset is one that was read when they were made;
    and of documents that are to be dropped, those that are still there.
    """
    kept, left = numbered_in_force(entries, force, sources)
    return tuple(kept.values()), left


def numbered_in_force(
    entries: Sequence[SkipEntry], force: DataInForce, sources: Sources
) -> tuple[dict[int, SkipEntry], list[dict[str, Any]]]:
    """:func:`entries_in_force`, each by its number."""
    digest_of = sources.digest_by_source
    kept: dict[int, SkipEntry] = {}
    left: list[dict[str, Any]] = []
    for number, entry in enumerate(entries, 1):
        known = next((digests for first, digests in reversed(force.eras) if first <= number), None)
        if known is None or entry.kind == "positions":
            kept[number] = entry
        elif entry.kind == "documents" and entry.mode == "drop":
            there = tuple(one for one in entry.documents if sources.samples_of_document(one))
            if there:
                kept[number] = replace(entry, documents=there)
            if len(there) < len(entry.documents):
                gone = len(entry.documents) - len(there)
                left.append({"number": number, "why": f"{gone} of {len(entry.documents)} documents are not there"})
        elif entry.kind == "documents" or (
            entry.source in digest_of and (entry.kind == "source" or digest_of[entry.source] in known)
        ):
            kept[number] = entry
        else:
            left.append({"number": number, "why": f"source {entry.source!r} is another one, or gone"})
    return kept, left
