"""What differs between two runs: their configurations, the Datasets they read, their skip entries, how far they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .canonical import digest_of
from .diff import changed_keys
from .run_folder import RunPaths, read_config, read_identity
from .runs import ledger_of, read_branches, read_skips

__all__ = ["compare_runs"]


def compare_runs(left: Path, right: Path, examples: int) -> dict[str, Any]:
    """Compare two runs' folders; no Dataset is opened.

    ``same`` means that both are the same experiment: equal configurations, Datasets and skip entries. How far they are
    and their identities are shown, but are no difference.

    Raises:
        DamageError: a file of a run is damaged.
    """
    one, other = _facts(left), _facts(right)
    changes = {
        "configuration": changed_keys(one["config"], other["config"]),
        "datasets": changed_keys(one["datasets"], other["datasets"]),
        "skips": _skips(one["skips"], other["skips"], examples),
        "versions": changed_keys(one["versions"], other["versions"]),
    }
    return {
        "kind": "run",
        "same": not any(changes.values()),
        "left": _about(left, one),
        "right": _about(right, other),
        "changes": changes,
        "notes": [],
    }


def _facts(path: Path) -> dict[str, Any]:
    paths = RunPaths(path)
    identity = read_identity(paths)
    config = json.loads(json.dumps(read_config(paths)))
    # Paths say where a run lies, digests what it reads.
    data = config.get("data")
    if isinstance(data, dict):
        data.pop("datasets", None)
    skips = [entry.to_json() for entry in read_skips(paths)]
    versions = {name: value for name, value in identity.items() if name.endswith("version")}
    return {
        "config": config,
        "datasets": [entry["digest"] for entry in identity["datasets"]],
        "skips": [{name: v for name, v in entry.items() if name not in ("reason", "evidence")} for entry in skips],
        "versions": versions,
        "run_id": identity.get("run_id"),
        "num_steps": len(ledger_of(paths)),
        "num_branches": len(read_branches(paths)),
    }


def _about(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    digest = digest_of({name: facts[name] for name in ("config", "datasets", "skips", "versions")})
    shown = ("run_id", "num_steps", "num_branches")
    return {"path": str(path), "digest": digest, **{name: facts[name] for name in shown}}


def _skips(left: list[Any], right: list[Any], examples: int) -> list[dict[str, Any]]:
    """Entries that one side lacks: how many, and at most ``examples`` of each side; or that their order differs."""
    only_left = [entry for entry in left if entry not in right]
    only_right = [entry for entry in right if entry not in left]
    changes: list[dict[str, Any]] = []
    if len(left) != len(right):
        changes.append({"key": "entries", "left": len(left), "right": len(right)})
    if only_left or only_right:
        changes.append({"key": "entries that differ", "left": len(only_left), "right": len(only_right)})
    elif left != right and not changes:
        changes.append({"key": "order of entries", "left": left[:examples], "right": right[:examples]})
    changes += [{"key": "only in A", "left": entry} for entry in only_left[:examples]]
    changes += [{"key": "only in B", "right": entry} for entry in only_right[:examples]]
    return changes
