"""What may be written where: JSON Schemas of configurations and manifests, and the layout of every table on disk.

A table of names; a configuration's dataclass is imported when its schema is asked for, and never before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from .errors import ConfigError
from .order.exhaustion import ExhaustionPolicy
from .order.weights import BLOCK, POSITION_LIMIT, WEIGHT_BITS
from .shards.default_mixture import MAX_MIXTURE_STAGES
from .shards.layout import FORMAT_NAME, FORMAT_VERSION, MAX_SEQ_LEN, MAX_VOCAB_SIZE

__all__ = ["SCHEMAS", "SchemaEntry", "schema_named"]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_COUNT = {"type": "integer", "minimum": 0, "maximum": 1 << 62}
_HASH = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class SchemaEntry:
    """A thing that has a schema: what it is, and how its schema is made."""

    what: str
    make: Callable[[], dict[str, Any]]


def _configuration(name: str) -> dict[str, Any]:
    """JSON Schema of the configuration dataclass ``module:class``."""
    from .settings import schema_of

    module, _, cls = name.partition(":")
    return schema_of(getattr(importlib.import_module(module), cls))


def _object(properties: dict[str, Any], *, closed: bool = False) -> dict[str, Any]:
    rest = {"additionalProperties": False} if closed else {}
    return {"type": "object", "properties": properties, "required": list(properties), **rest}


def _manifest() -> dict[str, Any]:
    """JSON Schema of manifest.json; open, because later versions may add keys that this one may pass over."""
    counts = ("num_shards", "num_samples", "num_segments", "num_tokens", "num_documents", "file_start", "file_stop")
    source = _object(
        {"name": _TEXT, "share": {"type": "number", "minimum": 0, "maximum": 1}, **dict.fromkeys(counts, _COUNT)},
        closed=True,
    )
    record = _object({"size_bytes": _COUNT, "xxh3_128": _HASH}, closed=True)
    properties = {
        "format": {"const": FORMAT_NAME},
        "version": {"type": "integer", "minimum": 1, "maximum": FORMAT_VERSION},
        "sources": {"type": "array", "items": source, "maxItems": (1 << 16) - 1},
        "seq_len": {"type": "integer", "minimum": 1, "maximum": MAX_SEQ_LEN},
        "vocab_size": {"type": "integer", "minimum": 1, "maximum": MAX_VOCAB_SIZE},
        "dtype": {"enum": ["uint16", "uint32"]},
        "max_segments": {"type": "integer", "minimum": 0, "maximum": MAX_SEQ_LEN},
        "tokenizer": _OBJECT,
        "salt": {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1},
        "parents": {"type": "object", "additionalProperties": _TEXT},
        "config": _OBJECT,
        "package_version": _TEXT,
        "accounting": _OBJECT,
        "order": {"type": "object", "additionalProperties": {"type": "integer"}},
        "files_hashed": {"type": "object", "additionalProperties": record},
        "self_hash": _HASH,
    }
    value = _object(properties)
    value["properties"]["mixture"] = _mixture()  # only where a mix was asked for
    return {"$schema": _DRAFT, "title": "manifest.json of a Dataset", **value}


def _mixture() -> dict[str, Any]:
    """JSON Schema of a manifest's ``mixture``."""
    weight = {"type": "integer", "minimum": 1, "maximum": 1 << WEIGHT_BITS}
    stage = _object(
        {
            "start": {"type": "integer", "minimum": 0, "multipleOf": BLOCK},
            "weights": {"type": "object", "additionalProperties": weight, "minProperties": 1},
        }
    )
    properties = {
        "policy": {"enum": list(get_args(ExhaustionPolicy))},
        "total_positions": {"type": "integer", "minimum": 1, "exclusiveMaximum": POSITION_LIMIT},
        "stages": {"type": "array", "items": stage, "minItems": 1, "maxItems": MAX_MIXTURE_STAGES},
    }
    return _object(properties)


def _export() -> dict[str, Any]:
    """JSON Schema of export.json."""
    file = _object({"name": _TEXT, "size_bytes": _COUNT, "xxh3_128": _HASH, "link": {"type": ["string", "null"]}})
    properties = {
        "format": {"type": "string", "pattern": "^tokenreel-export-"},
        "version": {"const": 1},
        "dataset": _HASH,
        "sources": {"type": "array", "items": _TEXT},
        "link": {"type": "boolean"},
        "split": _TEXT,
        "files": {"type": "array", "items": file},
        "totals": {"type": "object", "additionalProperties": _COUNT},
        "self_hash": _HASH,
    }
    return {"$schema": _DRAFT, "title": "export.json of an export", **_object(properties, closed=True)}


def _tables() -> dict[str, Any]:
    from .schema_tables import table_layouts

    return table_layouts()


def _dataset() -> dict[str, Any]:
    """All that a Dataset holds."""
    tables = {name: layout for name, layout in _tables().items() if not name.startswith("RUN/")}
    return {"manifest.json": _manifest(), "tables": tables}


SCHEMAS: dict[str, SchemaEntry] = {
    "build": SchemaEntry(
        "JSON Schema of a configuration for decontaminate, dedup, mix and build",
        lambda: _configuration("dataprep.config:BuildConfig"),
    ),
    "train": SchemaEntry(
        "JSON Schema of a configuration for train", lambda: _configuration("train.config:TrainConfig")
    ),
    "manifest": SchemaEntry("JSON Schema of a Dataset's manifest.json", _manifest),
    "export": SchemaEntry("JSON Schema of an export's export.json", _export),
    "dataset": SchemaEntry("manifest.json and every table of a Dataset", _dataset),
    "tables": SchemaEntry("every table on disk: fields, types, offsets in bytes", _tables),
}


def schema_named(name: str) -> dict[str, Any]:
    """The schema called ``name``.

    Raises:
        ConfigError: there is none.
    """
    if name not in SCHEMAS:
        raise ConfigError("TR-SCHEMA-UNKNOWN", f"no schema {name!r}", None, f"one of {', '.join(SCHEMAS)}")
    return SCHEMAS[name].make()
