"""Readers of Megatron-LM's ``.idx`` and ``.bin``: its own class, loaded alone, and one written from the layout."""

from __future__ import annotations

import importlib.util
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["PublishedLayout", "megatron_classes", "megatron_reader"]


def megatron_reader() -> Any | None:
    """``IndexedDataset`` out of megatron-core's own file; None where it is not installed."""
    spec = importlib.util.find_spec("megatron")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    places = [Path(folder) / "core/datasets/indexed_dataset.py" for folder in folders]
    if not places or not places[0].is_file():
        return None
    off = type("MultiStorageClientFeature", (), {"is_enabled": staticmethod(lambda: False)})
    names = ("S3Config", "ObjectStorageConfig", "cache_index_file", "dataset_exists", "get_index_cache_path",
             "get_object_storage_access", "is_object_storage_path", "parse_s3_path")  # fmt: skip
    stubs: dict[str, types.ModuleType] = {name: types.ModuleType(name) for name in (
        "megatron", "megatron.core", "megatron.core.datasets", "megatron.core.datasets.object_storage_utils",
        "megatron.core.msc_utils", "megatron.core.utils")}  # fmt: skip
    for name in names:
        setattr(stubs["megatron.core.datasets.object_storage_utils"], name, lambda *a, **k: False)
    stubs["megatron.core.msc_utils"].MultiStorageClientFeature = off  # type: ignore[attr-defined]
    stubs["megatron.core.utils"].log_single_rank = lambda *a, **k: None  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in stubs}
    sys.modules.update(stubs)
    try:
        file = importlib.util.spec_from_file_location("tokenreel_test_indexed_dataset", places[0])
        assert file is not None
        assert file.loader is not None
        module = importlib.util.module_from_spec(file)
        file.loader.exec_module(module)
    finally:
        for name, old in before.items():
            sys.modules.pop(name)
            if old is not None:
                sys.modules[name] = old
    return module.IndexedDataset


class PublishedLayout:
    """An ``.idx`` and ``.bin`` as ``_IndexWriter`` of Megatron-LM documents them."""

    def __init__(self, prefix: str) -> None:
        data = Path(prefix + ".idx").read_bytes()
        assert data[:9] == b"MMIDIDX\x00\x00"
        version, code, sequences, borders = struct.unpack("<QBQQ", data[9:34])
        assert version == 1
        self.dtype = {8: np.dtype("<u2"), 4: np.dtype("<i4")}[code]
        self.sequence_lengths = np.frombuffer(data, "<i4", sequences, 34)
        self.pointers = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
        self.document_indices = np.frombuffer(data, "<i8", borders, 34 + 12 * sequences)
        assert len(data) == 34 + 12 * sequences + 8 * borders
        self.bin = prefix + ".bin"

    def __len__(self) -> int:
        return len(self.sequence_lengths)

    def __getitem__(self, number: int) -> Any:
        with open(self.bin, "rb") as file:
            file.seek(int(self.pointers[number]))
            return np.frombuffer(file.read(int(self.sequence_lengths[number]) * self.dtype.itemsize), self.dtype)


def megatron_classes() -> list[Any]:
    """The readers there are; the one written from the layout always is."""
    stock = megatron_reader()
    return [PublishedLayout] if stock is None else [PublishedLayout, stock]
