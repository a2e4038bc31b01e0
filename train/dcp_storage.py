"""torch DCP's file storage with two additions: it hashes what it writes, and it runs nothing that it reads."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from loader.block_hashes import BlockDigest
from loader.errors import DamageError

__all__ = ["HashingWriter", "StrictPlanner", "StrictReader", "load_index"]

_CHECKPOINT_MODULE = "torch.distributed.checkpoint."
_CLASSES = frozenset(
    {
        (_CHECKPOINT_MODULE + "metadata", "Metadata"),
        (_CHECKPOINT_MODULE + "metadata", "TensorStorageMetadata"),
        (_CHECKPOINT_MODULE + "metadata", "TensorProperties"),
        (_CHECKPOINT_MODULE + "metadata", "ChunkStorageMetadata"),
        (_CHECKPOINT_MODULE + "metadata", "MetadataIndex"),
        (_CHECKPOINT_MODULE + "metadata", "StorageMeta"),
        (_CHECKPOINT_MODULE + "metadata", "_MEM_FORMAT_ENCODING"),
        (_CHECKPOINT_MODULE + "filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
    }
)
_OF_ONE_DEVICE = frozenset({"random.cuda"})
"""Tensors that a run has on some devices only; it may go on with another one."""


class _IndexUnpickler(pickle.Unpickler):
    """Resolves the classes of a DCP index and torch's dtypes; everything else is damage."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        dtype = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise DamageError("TR-CHECKPOINT-PICKLE", f"the index asks for {module}.{name}", ".metadata", "tensors only")


def load_index(data: bytes, place: str) -> Metadata:
    """Decode a DCP index.

    Raises:
        DamageError: it asks for anything but the description of tensors, or is no index at all.
    """
    try:
        index = _IndexUnpickler(io.BytesIO(data)).load()
    except DamageError:
        raise
    except Exception as error:  # a pickle can fail in any way
        raise DamageError("TR-CHECKPOINT-PICKLE", f"no DCP index: {error}", place, "a DCP index") from error
    if not isinstance(index, Metadata) or not isinstance(index.storage_data, dict):
        raise DamageError("TR-CHECKPOINT-PICKLE", "no DCP index", place, "a DCP index")
    if not all(isinstance(value, TensorStorageMetadata) for value in index.state_dict_metadata.values()):
        raise DamageError("TR-CHECKPOINT-PICKLE", "an entry that is no tensor", place, "tensors only")
    return index


class _HashingStream(io.BufferedWriter):
    """A file opened for writing whose bytes are hashed on their way, block by block."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"), buffer_size=1 << 20)
        self.digest = BlockDigest()

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.digest.update(data)
        return written


class _HashingFileSystem(FileSystem):
    def __init__(self) -> None:
        self.hashes: dict[str, tuple[int, str]] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with _HashingStream(Path(path)) as stream:
            yield stream
        self.hashes[Path(path).name] = (stream.digest.size_bytes, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.hashes[Path(new_path).name] = self.hashes.pop(Path(path).name)


class HashingWriter(FileSystemWriter):
    """DCP's writer, one file a rank, synced to disk, every byte hashed while it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, single_file_per_rank=True, sync_files=True, thread_count=1, overwrite=False)
        self._hashing = _HashingFileSystem()
        self.fs = self._hashing

    def hashes(self) -> dict[str, tuple[int, str]]:
        """Name -> (size in bytes, xxh3-128 of each block) of what this process wrote."""
        return dict(self._hashing.hashes)

    def storage_meta(self) -> StorageMeta | None:
        """Without the path that DCP would put in: a checkpoint may move, and says nothing about the machine."""
        return StorageMeta()


class StrictReader(FileSystemReader):
    """DCP's reader: the index through :func:`load_index`, data from the named files only."""

    def __init__(self, path: Path, files: frozenset[str]) -> None:
        super().__init__(path)
        self._folder, self._files = path, files

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checked index.

        Raises:
            DamageError: see :func:`load_index`; or it points to a file that COMMIT.json does not name.
        """
        del args, kwargs
        place = self._folder / ".metadata"
        index = load_index(place.read_bytes(), str(place))
        for info in cast(dict[Any, Any], index.storage_data).values():
            if info.relative_path not in self._files or info.transform_descriptors:
                raise DamageError("TR-CHECKPOINT-PICKLE", "the index points outside", str(place), "committed files")
        index.storage_meta = StorageMeta(load_id=self.load_id)
        return index


class StrictPlanner(DefaultLoadPlanner):
    """DCP's planner, which would unpickle byte entries without a limit; this one knows none.

    What only one kind of device has may be missing: a tensor of that name stays as it is.
    """

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As DCP's, without the tensors that a checkpoint of another device lacks."""
        known = {} if metadata is None else metadata.state_dict_metadata
        asked = {name: one for name, one in state_dict.items() if name in known or name not in _OF_ONE_DEVICE}
        super().set_up_planner(asked, metadata, is_coordinator)

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Never called for a checked index.

        Raises:
            DamageError: always.
        """
        raise DamageError("TR-CHECKPOINT-PICKLE", "an entry that is no tensor", str(read_item), "tensors only")
