"""Which job a configuration file describes, told by its keys."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigError
from .job_kind import ConfigKind, kind_of
from .settings import read_config_text
from .yaml_tree import parse_yaml

__all__ = ["config_kind"]


def config_kind(path: Path) -> ConfigKind:
    """``build`` where there are ``sources``, ``train`` where there are ``data``.

    Raises:
        ConfigError: ``TR-CONFIG-UNREADABLE`` as ``load_config``; ``TR-CONFIG-KIND``: it has neither key, or both.
    """
    problems: list[str] = []
    root = parse_yaml(read_config_text(path), str(path), problems)
    keys = set(root.value) if root is not None and isinstance(root.value, dict) else set()
    kind = kind_of(keys)
    if kind is None:
        raise ConfigError(
            "TR-CONFIG-KIND", "neither a build nor a training configuration", str(path),
            "`sources:` (build) or `data:` (train)", "tokenreel schema",
        )  # fmt: skip
    return kind
