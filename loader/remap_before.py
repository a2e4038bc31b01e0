"""What a run had read when it goes over to other data: by the view of its old Datasets, or without those that are gone.

Where a source stood in its order is a closed form of the mixture, of the samples cut out of that source, and of nothing
else. So a source whose Dataset stayed goes on although others were replaced where they lay: their names, sizes and
weights are in what the run noted of them (``dataset_facts``), and the Cursor's digest of the mixture proves that the
stages made of these are those that were read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .canonical import digest_of
from .dataset_facts import facts_of, samples_of, stages_of
from .run_data import DataInForce, digests_of, entries_in_force

if TYPE_CHECKING:
    from .order.cursor import Cursor
    from .order.mixture import MixtureStage
    from .order.plan import Plan
    from .order.skips import SkipEntry
    from .run_config import DataConfig
    from .run_view import RunView
    from .sources import Sources

__all__ = ["ReadSoFar", "contradicts", "facts_in_force", "read_of_view", "read_without", "stayed", "with_added"]


@dataclass(frozen=True)
class ReadSoFar:
    """Where the sources of a plan stand.

    Attributes:
        raw: source -> raw index of its order to read next, where that is known.
        positions: source -> positions of the mixture so far.
        samples: source -> samples of an epoch, where known.
    """

    raw: Mapping[str, int]
    positions: Mapping[str, int]
    samples: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """``Remap.consumed``."""
        return {
            name: {"positions": count, "epochs": self._epochs(name)} for name, count in self.positions.items() if count
        }

    def _epochs(self, name: str) -> float | None:
        known = name in self.raw and self.samples.get(name)
        return round(self.raw[name] / self.samples[name], 6) if known else None


def read_of_view(view: RunView, position: int) -> ReadSoFar:
    """What was read before ``position``, told by the Datasets themselves."""
    names = view.sources.names
    counts = view.plan.mixture.counts_before(position).tolist()
    samples = {name: int(view.sources.shard_samples(name).sum()) for name in names}
    return ReadSoFar(view.plan.raw_before(position), dict(zip(names, counts, strict=True)), samples)


def _is_untouched(force: DataInForce, cursor: Cursor) -> bool:
    """Whether nothing of the plan in force was read: it begins at the Cursor, which is still the plan's before."""
    return force.start is not None and cursor.next_position == force.start.position


def with_added(force: DataInForce, cursor: Cursor, sources: Sources, relative: Sequence[str]) -> DataInForce:
    """``force`` with those of the new Datasets that were added on the way and read: only the Cursor names these."""
    if _is_untouched(force, cursor):
        return force
    known, added = digests_of(force.datasets), list[Mapping[str, Any]]()
    for dataset, path, facts in zip(sources.datasets, relative, facts_of(sources), strict=True):
        read = [cursor.sources[name] for name in dataset.source_names if name in cursor.sources]
        if dataset.digest not in known and read and set(read) == {dataset.digest[:8]}:
            added.append({"path": path, "digest": dataset.digest, "facts": facts})
    return replace(force, datasets=(*force.datasets, *added))


def contradicts(view: RunView, cursor: Cursor) -> str | None:
    """The place of a Dataset of the run that is another one than the Cursor names; None: there is none."""
    if _is_untouched(view.force, cursor):
        return None
    found = view.sources.digest_by_source
    for name, digest in cursor.sources.items():
        if name in found and found[name][:8] != digest:
            return view.sources.dataset(view.sources.names.index(name)).location
    return None


def stayed(force: DataInForce, sources: Sources) -> list[str]:
    """Sources of the new Datasets whose Dataset is one of those in force."""
    known = digests_of(force.datasets)
    return [name for name, digest in sources.digest_by_source.items() if digest in known]


def facts_in_force(force: DataInForce, sources: Sources) -> list[Mapping[str, Any]] | None:
    """The facts of the Datasets in force: as noted, or read of those that are still there; None: some are not known."""
    here = dict(zip(sources.digests, facts_of(sources), strict=True))
    facts = [entry.get("facts") or here.get(entry["digest"]) for entry in force.datasets]
    return [one for one in facts if one is not None] if all(facts) else None


def read_without(
    force: DataInForce, data: DataConfig, cursor: Cursor, sources: Sources, entries: Sequence[SkipEntry]
) -> ReadSoFar | None:
    """What was read before ``cursor``, without the Datasets that are gone; None where that cannot be said.

    Args:
        force, data: what was read, as noted and as configuration. entries: the run's skip entries, number 1 first.
        sources: the new Datasets, some of which may be old ones.

    Raises:
        ConfigError, DamageError, RefusedError: the configuration or a Dataset is wrong.
    """
    names = stayed(force, sources)
    own = {name: int(sources.shard_samples(name).sum()) for name in names}
    facts = facts_in_force(force, sources)
    samples = {**samples_of(facts or ()), **own}
    # An added Dataset can be read only by a mixture of the run's own, so facts of those in force are all or not needed.
    stages = _stages(data, facts, samples, force)
    if stages is None:
        if not _is_untouched(force, cursor) or force.start is None:
            return None
        return ReadSoFar({name: force.start.carried.get(name, 0) for name in names}, {}, samples)
    plan = _plan(force, data, sources, (stages, samples, names), _drops(force, entries, sources, names))
    read = [stage.to_json() for stage in plan.mixture.stages_before(cursor.next_position)]
    if not _is_untouched(force, cursor) and digest_of(read) != cursor.mixture:
        return None
    counts = plan.mixture.counts_before(cursor.next_position).tolist()
    raw = plan.raw_before(cursor.next_position)
    unsure = any(_may_drop(entry, names) for entry in entries)
    sure = {name: index for name, index in raw.items() if name in names or not unsure}
    return ReadSoFar(sure, dict(zip(plan.source_names, counts, strict=True)), samples)


def _may_drop(entry: SkipEntry, names: Collection[str]) -> bool:
    """Whether an entry may take samples out of a source whose Dataset is gone."""
    return entry.mode == "drop" and (
        entry.kind == "documents" or (entry.kind == "samples" and entry.source not in names)
    )


def _stages(
    data: DataConfig, facts: Sequence[Mapping[str, Any]] | None, samples: Mapping[str, int], force: DataInForce
) -> tuple[MixtureStage, ...] | None:
    """The stages that were read; None where the run did not note what they depend on."""
    from .order.exhaustion import Exhaustion, derive_stages
    from .order.mixture import MixtureStage
    from .order.weights import POSITION_LIMIT

    if not data.mixture and facts is None:
        return None
    given = data.mixture or stages_of(facts or ())
    stages = tuple(MixtureStage(stage.start, dict(stage.weights)) for stage in given)
    wanted = data.exhaustion
    if wanted is None or wanted.policy != "renormalise":  # the others only end a plan
        return stages
    if not {name for stage in stages for name in stage.weights} <= set(samples):
        return None
    total = POSITION_LIMIT if wanted.total is None else wanted.total
    begins = (0, {}) if force.start is None else (force.start.position, force.start.carried)
    return derive_stages(
        stages, samples, Exhaustion(wanted.policy, wanted.max_epochs, total, *begins), data.seed
    ).stages


def _plan(
    force: DataInForce,
    data: DataConfig,
    sources: Sources,
    mixture: tuple[tuple[MixtureStage, ...], Mapping[str, int], Collection[str]],
    drops: Sequence[SkipEntry],
) -> Plan:
    """The old plan; of a source that is gone it has the name, and a shard of one sample: only its rank is asked."""
    from .order.plan import BatchStage, Plan, PlanConfig, SourceShape
    from .order.skips import SkipList

    stages, samples, names = mixture
    everybody = sorted({*samples, *(name for stage in stages for name in stage.weights)})
    shapes = tuple(SourceShape(name, sources.shard_samples(name) if name in names else (1,)) for name in everybody)
    config = PlanConfig(shapes, data.seed, stages, (BatchStage(0, 1),), data.window_shards, data.slices, force.start)
    return Plan(config, SkipList(drops), _Places(sources, names))


@dataclass(frozen=True)
class _Places:
    """Finds documents in some of the sources."""

    sources: Sources
    names: Collection[str]

    def samples_of_document(self, document: int, /) -> Sequence[tuple[str, NDArray[np.int64]]]:
        return [place for place in self.sources.samples_of_document(document) if place[0] in self.names]


def _drops(
    force: DataInForce, entries: Sequence[SkipEntry], sources: Sources, names: Collection[str]
) -> list[SkipEntry]:
    """The entries that took samples out of the sources ``names`` under the old plan, cut down to these."""
    places = _Places(sources, names)
    found: list[SkipEntry] = []
    for entry in entries_in_force(entries, force, sources)[0]:
        if entry.mode != "drop":
            continue
        if entry.kind == "samples" and entry.source in names:
            found.append(entry)
        elif entry.kind == "documents":
            there = tuple(document for document in entry.documents if places.samples_of_document(document))
            found += [replace(entry, documents=there)] if there else []
    return found
