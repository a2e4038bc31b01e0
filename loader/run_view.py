"""A run opened for reading: its plan as a branch saw it. What trainer, look-up and skip share; no torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from .dataset_facts import facts_of
from .errors import ConfigError, DamageError, RefusedError
from .remote.store import is_url
from .run_cache import store_options
from .run_config import DataConfig, build_plan
from .run_data import DataInForce, data_in_force, entries_in_force
from .runs import Branch, RunPaths, ledger_of, next_position, read_branches, read_config, read_identity, read_skips
from .sources import Sources, open_sources

if TYPE_CHECKING:
    from .order.plan import Plan
    from .order.skips import SkipEntry

__all__ = ["RunView", "dataset_entries", "dataset_places", "open_run", "parse_data_config", "relative_datasets"]


@dataclass(frozen=True)
class RunView:
    """A run as one of its branches saw it.

    Attributes:
        paths: its folder.
        identity: contents of run.json.
        semantic: contents of config.yaml.
        data: its ``data:`` block.
        branch: the branch looked at.
        entries: skip entries that the branch saw, number 1 first.
        force: which data it reads, and from where on.
        sources: its Datasets.
        plan: order, mixture, batches and skips as one function.
        ledger_N: what the branch consumed, one record a step (``ledger_dtype``).
        next_position: first position not consumed.
    """

    paths: RunPaths
    identity: Mapping[str, Any]
    semantic: Mapping[str, Any]
    data: DataConfig
    branch: Branch
    entries: tuple[SkipEntry, ...]
    force: DataInForce
    sources: Sources
    plan: Plan
    ledger_N: NDArray[Any]
    next_position: int

    @property
    def num_steps(self) -> int:
        """Steps the branch has done."""
        return len(self.ledger_N)


def relative_datasets(folders: Sequence[str | Path], base: Path, root: Path) -> list[str]:
    """Dataset folders, given relative to ``base``, as paths relative to the run's folder: both can move together. URLs
    stay as they are."""
    return [
        str(folder)
        if is_url(str(folder))
        else Path(os.path.relpath((base / folder).resolve(), root.resolve())).as_posix()
        for folder in folders
    ]


def dataset_places(root: Path, relative: Sequence[str], said: str, expected: str) -> list[str]:
    """The other way: where the Datasets of the run in ``root`` are.

    Args:
        said, expected: for the message: who says that they are there, and what should be.

    Raises:
        ConfigError: one is not there, as far as that is known without asking a store.
    """
    places = [place if is_url(place) else str(root / place) for place in relative]
    for place in places:
        if not is_url(place) and not Path(place).is_dir():
            raise ConfigError("TR-RUN-DATASET", f"no Dataset at {place}", said, expected)
    return places


def dataset_entries(sources: Sources, relative: Sequence[str]) -> list[dict[str, Any]]:
    """What run.json says of the Datasets: where they are, which, and what the plan takes from their manifests."""
    rows = zip(relative, sources.digests, facts_of(sources), strict=True)
    return [{"path": path, "digest": digest, "facts": facts} for path, digest, facts in rows]


def parse_data_config(semantic: Mapping[str, Any], place: str) -> DataConfig:
    """The ``data:`` block of a stored configuration.

    Raises:
        DamageError: it is none; a run's own file never is wrong unless it was edited.
    """
    from .config_check import check
    from .settings import canonical_json
    from .yaml_tree import parse_yaml

    problems: list[str] = []
    node = parse_yaml(canonical_json(semantic.get("data")).decode("utf-8"), place, problems)
    config = check(node, DataConfig, problems) if node is not None else None
    if problems or not isinstance(config, DataConfig):
        raise DamageError("TR-RUN-CONFIG", "; ".join(problems) or "no data block", place, "a data block")
    return config


def open_run(root: Path, branch: int | None = None) -> RunView:
    """Open a run, by default at its current branch.

    Raises:
        ConfigError: no run there, no such branch, or a Dataset is not where the run looks for it.
        DamageError: a file of the run or of a Dataset is damaged.
        RefusedError: a Dataset is another one than the run began with.
    """
    from .order.skips import SkipList
    from .stream.store import look_into_dataset

    paths = RunPaths(root)
    identity, semantic, branches = read_identity(paths), read_config(paths), read_branches(paths)
    if branch is not None and not 0 <= branch < len(branches):
        raise ConfigError("TR-RUN-BRANCH", f"no branch {branch}", str(root), f"0 .. {len(branches) - 1}")
    force = data_in_force(semantic, identity, branches, branch)
    data = parse_data_config({"data": force.data}, str(paths.config))
    places = dataset_places(root, data.datasets, str(paths.config), "run and Datasets moved together")
    options = store_options(paths)
    sources = open_sources([look_into_dataset(place, options) for place in places])
    began_with = [entry["digest"] for entry in force.datasets]
    for place, wanted, found in zip(places, began_with, sources.digests, strict=False):
        if wanted != found:
            given = [word for one in places for word in ("--dataset", one)]  # all that is to be read from there on
            next_command = shlex.join(["tokenreel", "remap", str(root), *given])
            raise RefusedError("TR-RUN-DATASET", f"the Dataset has digest {found}", place, wanted, next_command)
    entries = tuple(read_skips(paths, branch))
    own = branches[-1 if branch is None else branch]
    ledger_N = ledger_of(paths, branch, sources.names)
    return RunView(
        paths=paths,
        identity=identity,
        semantic=semantic,
        data=data,
        branch=own,
        entries=entries,
        force=force,
        sources=sources,
        plan=build_plan(data, sources, SkipList(entries_in_force(entries, force, sources)[0]), force.start),
        ledger_N=ledger_N,
        next_position=next_position(own, ledger_N),
    )
