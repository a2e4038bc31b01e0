"""What is left beside a tokenizer, so that each task need not do it again: a model converted for a fast backend, and
what the self-check on hostile texts said of it.

``<package>.definition`` holds the conversion, ``<package>.json`` its hash, the verdict, and a key made of all that the
two depend on: the tokenizer, the hostile texts, the versions of both libraries, the machine's kind. Whatever does not
fit (another key, a changed byte, half of the two files) is passed over, and so made again. Two tasks that write at once
write the same.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..canonical import canonical_json, digest_of
from ..files import digest_bytes, write_atomic
from .tokenizer_base import Tokenizer

__all__ = ["REFERENCES", "KeptBackend", "key_of", "read_kept", "write_kept"]

REFERENCES = {"sentencepiece": "sentencepiece", "huggingface": "tokenizers", "tiktoken": "tiktoken"}
"""kind -> package of the reference library."""
_FORMAT = 1
_MAX_BYTES = 1 << 28


@dataclass(frozen=True)
class KeptBackend:
    """``definition``: what the backend loads; ``wrong``: why it must not be used, "" if it passed."""

    definition: str
    wrong: str


def key_of(tokenizer: Tokenizer, package: str, hostile: Sequence[str]) -> str:
    """Digest of what a conversion and its check depend on."""
    texts = digest_bytes("\0".join(hostile).encode("utf-8", "surrogatepass"))
    libraries = [[name, _version(name)] for name in (package, REFERENCES[tokenizer.kind])]
    return digest_of([_FORMAT, tokenizer.kind, tokenizer.digest, texts, libraries, platform.machine()])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def read_kept(folder: Path, package: str, key: str) -> KeptBackend | None:
    """What was left under this very key; None where that is nothing, or not whole."""
    try:
        about = json.loads(_read(folder / f"{package}.json"))
        definition = _read(folder / f"{package}.definition")
        if [about["key"], about["hash"]] != [key, digest_bytes(definition)]:
            return None
        return KeptBackend(definition.decode("utf-8"), str(about["wrong"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES)


def write_kept(folder: Path, package: str, key: str, kept: KeptBackend) -> None:
    """Leave it there, the verdict last; where nothing can be written nothing is, and the next task does it again."""
    definition = kept.definition.encode()
    about = {"key": key, "hash": digest_bytes(definition), "wrong": kept.wrong}
    with suppress(OSError):
        write_atomic(folder / f"{package}.definition", definition)
        write_atomic(folder / f"{package}.json", canonical_json(about))
