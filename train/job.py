"""From a configuration file to a run's folder: paths made relative, the folder made or compared.

What shapes parameters or positions is fixed when the run begins. ``steps``, ``checkpoint``, ``evaluate``,
``validation``, ``spikes``, ``parallel`` and ``micro_batch`` may change at any start; Datasets, mixture, its end,
annealing and batch sizes may change where they act only later, which the Cursor of the checkpoint that the run resumes
from decides.
"""

from __future__ import annotations

import os
import platform
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loader.canonical import canonical_json
from loader.config_check import check
from loader.errors import ConfigError, DamageError, RefusedError
from loader.files import write_atomic
from loader.remote.store import is_url
from loader.run_data import data_in_force
from loader.run_folder import RUN_FORMAT, RunPaths, create_run, read_config, read_identity, write_config
from loader.run_view import dataset_entries, relative_datasets
from loader.runs import ledger_of, read_branches
from loader.sealed import write_sealed
from loader.settings import Loaded, to_plain
from loader.sources import Sources, open_sources
from loader.yaml_tree import parse_yaml

from .config import TrainConfig
from .schedule import with_annealing

if TYPE_CHECKING:
    from loader.shards.dataset import Dataset

__all__ = [
    "Changes",
    "Job",
    "establish",
    "job_of_run",
    "open_job_sources",
    "refuse_other_tokens",
    "resolve_job",
    "write_job_file",
]

_FREE = ("steps", "checkpoint", "evaluate", "validation", "spikes", "parallel", "micro_batch")
_LATER = ("data.datasets", "data.mixture", "data.batch", "data.exhaustion", "anneal")


@dataclass(frozen=True)
class Job:
    """A training job with everything relative to its RUN folder.

    Attributes:
        config: with ``data.datasets`` and ``validation`` relative to the run's folder, but for URLs.
        paths: of the run's folder.
        semantic: what ``RUN/config.yaml`` holds: the configuration without ``output`` and ``run``.
    """

    config: TrainConfig
    paths: RunPaths
    semantic: dict[str, Any]

    def open(self, relative: Sequence[str]) -> list[Dataset]:
        """Open Datasets given by URL, or relative to the run's folder.

        Raises:
            ConfigError: one is not there. DamageError: its manifest is damaged. JobError: its store does not answer.
        """
        from loader.stream.store import StoreOptions, fetch_dataset, place_in

        run = self.config.run
        places = [place_in(self.paths.root, location) for location in relative]
        for place in places:
            if not is_url(place) and not Path(place).is_dir():
                raise ConfigError(
                    "TR-TRAIN-DATASET", "no Dataset there", place, "a folder that `build` made",
                    "tokenreel build CONFIG",
                )  # fmt: skip
        options = StoreOptions(run.cache, run.cache_bytes)
        return [fetch_dataset(place, options) for place in places]


@dataclass(frozen=True)
class Changes:
    """Keys in which a job differs from what its run's folder holds.

    Attributes:
        free: may change at any start. later: may change if they act only later.
    """

    free: tuple[str, ...] = ()
    later: tuple[str, ...] = ()


def _stored_form(config: TrainConfig) -> dict[str, Any]:
    plain = to_plain(config)
    assert isinstance(plain, dict)
    return {key: value for key, value in plain.items() if key not in ("output", "run")}


def resolve_job(loaded: Loaded[TrainConfig]) -> Job:
    """The job of a configuration file; relative paths count from the file's folder."""
    base, config = loaded.path.parent, loaded.config
    root = base / config.output
    data = replace(config.data, datasets=tuple(relative_datasets(config.data.datasets, base, root)))
    data = with_annealing(data, config.anneal)
    validation = tuple(relative_datasets(config.validation, base, root))
    run = config.run
    if run.cache is not None:  # whole, as job.json names it to whoever looks into the run from elsewhere
        run = replace(run, cache=os.path.abspath(base / run.cache))
    files = {name: relative_datasets([path], base, root)[0] for name, path in config.evaluate.files.items()}
    evaluate = replace(config.evaluate, files=files)
    model = config.model
    if model.init_from is not None:
        model = replace(model, init_from=relative_datasets([model.init_from], base, root)[0])
    config = replace(config, data=data, validation=validation, run=run, evaluate=evaluate, model=model)
    return Job(config, RunPaths(root), _stored_form(config))


def job_of_run(root: Path) -> Job:
    """The job that a run's own folder describes, for verbs that take a RUN.

    Raises:
        ConfigError: no run there. DamageError: its configuration is damaged.
    """
    paths = RunPaths(root)
    read_identity(paths)
    semantic = read_config(paths)
    text = canonical_json({**semantic, "output": "."}).decode("utf-8")
    problems: list[str] = []
    node = parse_yaml(text, str(paths.config), problems)
    config = check(node, TrainConfig, problems) if node is not None else None
    if problems or not isinstance(config, TrainConfig):
        message = "; ".join(problems) or "no configuration"
        raise DamageError("TR-RUN-CONFIG", message, str(paths.config), "a training configuration")
    return Job(config, paths, semantic)


def open_job_sources(job: Job) -> Sources:
    """Open the Datasets of a job.

    Raises:
        ConfigError: one is not there. DamageError, RefusedError: it is damaged, or does not fit the others.
    """
    return open_sources(job.open(job.config.data.datasets))


def _differences(here: Any, there: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(key path, value here, value there) of every leaf that differs."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        keys = sorted({*here, *there})
        return [
            difference
            for key in keys
            for difference in _differences(here.get(key), there.get(key), f"{prefix}.{key}" if prefix else key)
        ]
    return [] if here == there else [(prefix, here, there)]


def _under(key: str, roots: tuple[str, ...]) -> bool:
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def establish(job: Job, sources: Sources) -> Changes:
    """Make the run's folder, or check that the one there belongs to this job.

    Raises:
        RefusedError: the folder holds something else, a run of another configuration (the keys are named), or a run
            that began with other Datasets.
    """
    from loader.order import ORDER_VERSION

    identity: dict[str, Any] = {
        "run_id": secrets.token_hex(8),
        "datasets": dataset_entries(sources, job.config.data.datasets),
        "order_version": ORDER_VERSION,
        "package_version": _package_version(),
    }
    if not job.paths.identity.exists():
        create_run(job.paths, identity, job.semantic)
        return Changes()
    if _did_nothing(job.paths):
        return _begin_anew(job, identity)
    identity, stored = read_identity(job.paths), read_config(job.paths)
    began_with = data_in_force(stored, identity, read_branches(job.paths)).datasets
    differing = _differences(job.semantic, stored)
    fixed = [item for item in differing if not _under(item[0], (*_FREE, *_LATER))]
    if fixed:
        lines = "".join(f"\n  {key}: {_shown(here)}, the run has {_shown(there)}" for key, here, there in fixed)
        raise RefusedError(
            "TR-RUN-DIFFERS", f"the folder holds a run of another configuration{lines}", str(job.paths.root),
            "the same configuration, or another output folder",
        )  # fmt: skip
    for entry, digest in zip(began_with, sources.digests, strict=False):
        if entry["digest"] != digest:
            raise _other_data(job, sources, entry, digest)
    return _changes([key for key, _, _ in differing])


def _other_data(job: Job, sources: Sources, entry: Mapping[str, Any], digest: str) -> RefusedError:
    expected = f"{entry['digest']}, as at the start"
    given = [word for dataset in sources.datasets for word in ("--dataset", dataset.location)]
    command = shlex.join(["tokenreel", "remap", str(job.paths.root), *given])
    next_command = f"{command}, if the data truly changed"
    return RefusedError("TR-RUN-DATASET", f"a Dataset has digest {digest}", entry["path"], expected, next_command)


def refuse_other_tokens(job: Job, sources: Sources) -> None:
    """For whoever uses the weights of a run: what its tokens mean stands in its record, whatever lies there now.

    Raises:
        RefusedError: a Dataset was replaced, by one of another tokenizer or one whose tokenizer nobody noted.
    """
    began_with = data_in_force(read_config(job.paths), read_identity(job.paths), read_branches(job.paths)).datasets
    for entry, dataset in zip(began_with, sources.datasets, strict=False):
        noted = entry.get("facts", {}).get("tokenizer", "")
        if entry["digest"] != dataset.digest and noted != dataset.manifest.tokenizer.get("digest"):
            raise _other_data(job, sources, entry, dataset.digest)


def _begin_anew(job: Job, identity: Mapping[str, Any]) -> Changes:
    """Let a run that did nothing begin as this job says, its data included; the keys that differ are told as ever."""
    stored = read_config(job.paths)
    if read_identity(job.paths)["datasets"] != identity["datasets"]:
        run_id = read_identity(job.paths)["run_id"]
        write_sealed(job.paths.identity, {**RUN_FORMAT, **identity, "run_id": run_id})
    if job.semantic != stored:
        write_config(job.paths, job.semantic)
    return _changes([key for key, _, _ in _differences(job.semantic, stored)])


def _changes(keys: Sequence[str]) -> Changes:
    later = tuple(key for key in keys if _under(key, _LATER))
    return Changes(tuple(key for key in keys if key not in later), later)


def _shown(value: Any) -> str:
    """A value as the configuration's file has it: JSON is YAML too."""
    return canonical_json(value).decode("utf-8")


def _did_nothing(paths: RunPaths) -> bool:
    """Whether a run's first start failed before its checkpoint of step 0, as with a key that cannot work: what is
    corrected then shall not need another folder."""
    from .checkpoint import list_checkpoints

    good, damaged = list_checkpoints(paths.checkpoints)
    return not good and not damaged and not len(ledger_of(paths)) and len(read_branches(paths)) == 1


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tokenreel")
    except PackageNotFoundError:
        return "0+clone"


def write_job_file(job: Job, details: Mapping[str, Any]) -> None:
    """``job.json``: where and how it runs; no digest covers it."""
    facts = {"run": to_plain(job.config.run), "python": platform.python_version(), **details}
    write_atomic(job.paths.root / "job.json", canonical_json(facts) + b"\n")
