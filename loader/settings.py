"""Job configuration: one YAML file to frozen dataclasses, every error at once with its place; child environments.

Shapes (dataclasses, unions, mappings, lists) are walked by ``config_check``, for only a walk knows which key a message
belongs to; each leaf is validated by pydantic in strict mode. A dataclass may check itself in ``__post_init__``: each
line of its ``ValueError`` is one problem, and a line ``key: message`` is shown at that key.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from .canonical import canonical_json, digest_of
from .config_check import Invalid, check
from .errors import ConfigError
from .job_kind import kind_of, refuse_other_kind
from .path_kind import what_was_meant
from .yaml_tree import Node, apply_override, parse_yaml

__all__ = [
    "MAX_FILE_BYTES",
    "Loaded",
    "StoreEnvironment",
    "cache_folder",
    "canonical_json",
    "child_environment",
    "digest_of",
    "load_config",
    "read_config_text",
    "schema_of",
    "store_environment",
    "to_plain",
]

MAX_FILE_BYTES = 1 << 20
_Config = TypeVar("_Config")


@dataclass(frozen=True)
class Loaded(Generic[_Config]):
    """A validated configuration.

    Attributes:
        config: the frozen dataclass.
        semantic: JSON-able dictionary of all that shapes results: defaults written out, no ``run`` block.
        digest: xxh3-128 of the canonical JSON of ``semantic``, 32 hex digits.
        path: the file it came from, as given.
    """

    config: _Config
    semantic: dict[str, Any]
    digest: str
    path: Path


def load_config(path: str | Path, cls: type[_Config], overrides: Sequence[str] = ()) -> Loaded[_Config]:
    """Read the YAML file ``path`` into the frozen dataclass ``cls``, with ``a.b=value`` overrides applied in order.

    Raises:
        ConfigError: ``TR-CONFIG-UNREADABLE`` when the file cannot be read; ``TR-CONFIG-INVALID`` with all problems
            found, one ``file:line:column: key.path: message`` a line; ``TR-CONFIG-KIND`` alone where the file is a
            configuration of the other kind.
    """
    path = Path(path)
    problems: list[str] = []
    root = parse_yaml(read_config_text(path), str(path), problems)
    if root is None:
        raise _invalid(path, problems)
    if root.value is None:
        root = Node({}, root.place)
    if isinstance(root.value, dict) and is_dataclass(cls):
        refuse_other_kind(path, set(root.value), kind_of({field.name for field in fields(cls)}))
    for override in overrides:
        apply_override(root, override, problems)
    config = check(root, cls, problems)
    if problems or isinstance(config, Invalid):
        raise _invalid(path, problems)
    semantic = cast(dict[str, Any], to_plain(config))
    semantic.pop("run", None)
    return Loaded(cast(_Config, config), semantic, digest_of(semantic), path)


def read_config_text(path: Path) -> str:
    """A configuration file's text; UTF-8 with or without a byte order mark, bounded in size.

    Raises:
        ConfigError: ``TR-CONFIG-UNREADABLE``, or ``TR-CONFIG-INVALID`` where it is not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        message, command = f"cannot read the configuration: {error.strerror}", None
        if isinstance(error, FileNotFoundError):
            meant, command = what_was_meant(path)
            message += f"; {meant}"
        raise ConfigError("TR-CONFIG-UNREADABLE", message, str(path), "a YAML file", command) from error
    if len(data) > MAX_FILE_BYTES:
        expected = f"at most {MAX_FILE_BYTES} bytes"
        raise ConfigError("TR-CONFIG-UNREADABLE", "the configuration is too large", str(path), expected)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        place = f"{path}:{data.count(10, 0, error.start) + 1}:{error.start - line_start + 1}"
        raise _invalid(path, [f"{place}: not UTF-8: byte 0x{data[error.start]:02x}"]) from error


def _invalid(path: Path, problems: Sequence[str]) -> ConfigError:
    noun = "problem" if len(problems) == 1 else "problems"
    lines = "".join(f"\n  {problem}" for problem in sorted(problems, key=_line_of))
    return ConfigError("TR-CONFIG-INVALID", f"{len(problems)} {noun} in the configuration{lines}", str(path))


def _line_of(problem: str) -> tuple[int, int]:
    """Sort key: the order of the file, overrides last."""
    found = re.match(r".*?:(\d+):(\d+): ", problem)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, 0)


def to_plain(value: object) -> object:
    """``value`` as JSON-able data: dataclasses and mappings to dictionaries, tuples and sets to lists, paths to text.

    Raises:
        TypeError: something has no JSON form.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(item) for item in value), key=repr)
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, Path):
        return value.as_posix()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form")


def schema_of(cls: type) -> dict[str, Any]:
    """JSON Schema (2020-12) of the configuration dataclass ``cls``; closed: unknown keys are errors in it too."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(cls).json_schema()
    for definition in (schema, *schema.get("$defs", {}).values()):
        if "properties" in definition:
            definition["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def child_environment(**extra: str) -> dict[str, str]:
    """Environment for child processes: this one's, ``extra``, and a path on which a user's files cannot shadow ours.

    ``PYTHONSAFEPATH=1`` keeps the working folder off the child's path; run from a clone, the clone's folder goes first.
    """
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    root = Path(__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
        environment["PYTHONPATH"] = os.pathsep.join([str(root), *(entry for entry in inherited if entry != str(root))])
    return {**environment, **extra}


def cache_folder() -> Path:
    """Where fetched Datasets go by default: ``$TOKENREEL_CACHE``, or ``tokenreel`` in the user's cache folder.

    Raises:
        ConfigError: there is no home folder.
    """
    given = os.environ.get("TOKENREEL_CACHE")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return Path(cache) / "tokenreel"
    try:
        return Path.home() / ".cache" / "tokenreel"
    except RuntimeError:
        raise ConfigError("TR-STORE-CACHE", "no home folder to cache in", "TOKENREEL_CACHE", "a folder") from None


@dataclass(frozen=True)
class StoreEnvironment:
    """What the environment says about object stores, beside what their clients read from it themselves.

    Attributes:
        plain_http: an endpoint without TLS is wanted (``AWS_ENDPOINT_URL=http://...``, ``GOOGLE_BASE_URL``,
            ``AZURE_STORAGE_ENDPOINT`` alike, or ``AWS_ALLOW_HTTP``).
        shared_profile: AWS credentials come from a profile, not from variables.
        secrets: values that must not be shown, longest first.
    """

    plain_http: bool
    shared_profile: bool
    secrets: tuple[str, ...]


_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|ACCESS_KEY|API_KEY|ACCOUNT_KEY|CREDENTIAL|SAS_KEY", re.I)
_SHORTEST_SECRET = 8
_ENDPOINTS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "GOOGLE_BASE_URL",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
)


def store_environment() -> StoreEnvironment:
    """The environment of object stores as it is now: credentials may be renewed while a job runs."""
    environment = os.environ
    endpoints = [environment.get(name, "") for name in _ENDPOINTS]
    allowed = environment.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
    secrets = {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    names = (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config"))
    files = [environment.get(name) or os.path.expanduser(f"~/.aws/{file}") for name, file in names]
    no_keys = not environment.get("AWS_ACCESS_KEY_ID")
    return StoreEnvironment(
        plain_http=allowed or any(endpoint.startswith("http://") for endpoint in endpoints),
        shared_profile=no_keys and (bool(environment.get("AWS_PROFILE")) or any(map(os.path.isfile, files))),
        secrets=tuple(sorted((s for s in secrets if len(s) >= _SHORTEST_SECRET), key=len, reverse=True)),
    )
