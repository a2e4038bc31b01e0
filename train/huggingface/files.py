"""Folders of safetensors: written in pieces with an index, read by name, never more than one tensor in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loader.errors import ConfigError, DamageError
from loader.files import check_name, hash_file, write_atomic

__all__ = ["DTYPES", "HfFolder", "plan_pieces", "write_pieces"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Names of the dtypes that weights are written in."""
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MOST_JSON_BYTES = 1 << 26


def plan_pieces(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """Names in order, cut into pieces of at most ``most_bytes``; a larger tensor has a piece of its own."""
    pieces: list[list[str]] = [[]]
    used = 0
    for name, size in sizes.items():
        if pieces[-1] and used + size > most_bytes:
            pieces.append([])
            used = 0
        pieces[-1].append(name)
        used += size
    return pieces


def write_pieces(
    folder: Path,
    pieces: list[list[str]],
    read: Callable[[Iterable[str]], dict[str, Tensor]],
    renamed: Mapping[str, str],
) -> list[str]:
    """Write each piece into a file, and an index where there are several; returns the files' names.

    Args:
        folder: exists, and is empty of such files.
        read: names of a piece -> the tensors under the names of the files; called once a piece.
        renamed: a name in ``pieces`` -> its name in the files.
    """
    count, size_bytes = len(pieces), 0
    names = [_SINGLE] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    for file, piece in zip(names, pieces, strict=True):
        tensors = {name: tensor.contiguous() for name, tensor in read(piece).items()}
        size_bytes += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, folder / file, {"format": "pt"})
        _fsync(folder / file)
    if count == 1:
        return names
    weight_map = {renamed[name]: file for file, piece in zip(names, pieces, strict=True) for name in piece}
    index = {"metadata": {"total_size": size_bytes}, "weight_map": weight_map}
    write_atomic(folder / _INDEX, json.dumps(index, indent=2).encode() + b"\n")
    return [*names, _INDEX]


def _fsync(path: Path) -> None:
    """Make the contents of a file that another library wrote survive a power loss."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size.

    Raises:
        DamageError: it is something else.
    """
    data = b""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_JSON_BYTES + 1)
        value = json.loads(data) if len(data) <= _MOST_JSON_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DamageError("TR-HF-DAMAGED", "no JSON object", str(path), "a file that transformers wrote")
    return value


@dataclass
class HfFolder:
    """A folder of weights, open for reading; a context manager.

    Attributes:
        path: the folder. config: its config.json.
    """

    path: Path
    config: dict[str, Any] = field(init=False)
    _files: dict[str, Any] = field(init=False, default_factory=dict)
    _stack: ExitStack = field(init=False, default_factory=ExitStack)

    def __post_init__(self) -> None:
        if not (self.path / "config.json").is_file():
            raise ConfigError(
                "TR-HF-FOLDER", "no config.json there", str(self.path), "a folder with config.json and safetensors"
            )
        self.config = _read_json(self.path / "config.json")
        try:
            for file in self._names():
                handle = self._stack.enter_context(safe_open(self.path / file, framework="pt"))
                self._files.update(dict.fromkeys(handle.keys(), (file, handle)))
        except (SafetensorError, OSError) as error:
            self.close()
            raise DamageError("TR-HF-DAMAGED", f"cannot read the weights: {error}", str(self.path)) from error

    def _names(self) -> list[str]:
        """The weights' files.

        Raises:
            ConfigError: there are none; pickled ones are not read. DamageError: the index names something else.
        """
        if (self.path / _INDEX).is_file():
            weight_map = _read_json(self.path / _INDEX).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
                raise DamageError("TR-HF-DAMAGED", "no index of weights", str(self.path / _INDEX), "a weight_map")
            return sorted({check_name(file, str(self.path / _INDEX)) for file in weight_map.values()})
        if (self.path / _SINGLE).is_file():
            return [_SINGLE]
        raise ConfigError(
            "TR-HF-FOLDER", f"neither {_SINGLE} nor {_INDEX}", str(self.path),
            "weights as safetensors; pickled ones are never read", "save_pretrained(..., safe_serialization=True)",
        )  # fmt: skip

    @property
    def names(self) -> set[str]:
        """Of all tensors."""
        return set(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, unread."""
        return tuple(self._files[name][1].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """A tensor, as it is stored."""
        tensor: Tensor = self._files[name][1].get_tensor(name)
        return tensor

    def hashes(self) -> dict[str, str]:
        """File name -> xxh3-128 of config.json and the weights."""
        files = {"config.json", *(file for file, _ in self._files.values())}
        return {file: hash_file(self.path / file) for file in sorted(files)}

    def close(self) -> None:
        """Close all files."""
        self._stack.close()

    def __enter__(self) -> HfFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
