"""OLMo-core's packer on given lengths, run by the Python of its own environment; needs nothing of this project.

    python pack.py LENGTHS.npy SEQ_LEN RESULT

Writes JSON to RESULT: CPU seconds, bins and padding of ``olmo_core.data.utils.InstancePacker``. Its module imports
torch and clients of object stores, which the packer never touches: what is not installed is stood in for by empty
modules, so that the measured code is the package's own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import resource
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__: list[str] = []

_STOOD_IN = frozenset(
    {
        "yaml",
        "typing_extensions",
        "torch",
        "olmo_core",
        "cached_path",
        "dataclass_extensions",
        "boto3",
        "botocore",
        "google",
    }
)


class _Empty(types.ModuleType):
    """A module in which every name is an empty class, and every submodule another one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, after everything else, an empty module for what is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in _STOOD_IN:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _own_package(name: str, folder: Path) -> None:
    """Make a package whose __init__ is not run: it would import everything."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


def main() -> None:
    lengths, seq_len, result = sys.argv[1:4]
    folder = Path(next(p for p in sys.path if (Path(p) / "olmo_core").is_dir())) / "olmo_core"
    sys.meta_path.append(_StandIns())
    _own_package("olmo_core", folder)
    _own_package("olmo_core.data", folder / "data")
    for name in ("olmo_core.io", "olmo_core.utils"):
        sys.modules[name] = _Empty(name)
    from olmo_core.data.utils import InstancePacker

    stop = np.cumsum(np.load(lengths))
    documents = np.stack([np.concatenate([[0], stop[:-1]]), stop], axis=1)
    start = resource.getrusage(resource.RUSAGE_SELF)
    packer = InstancePacker(int(seq_len))
    instances, _, _ = packer.pack_documents(documents)
    stop_usage = resource.getrusage(resource.RUSAGE_SELF)
    spent = stop_usage.ru_utime + stop_usage.ru_stime - start.ru_utime - start.ru_stime
    padding = len(instances) * int(seq_len) - int(stop[-1])
    Path(result).write_text(json.dumps({"cpu_s": spent, "bins": len(instances), "padding": padding}), encoding="utf-8")


if __name__ == "__main__":
    main()
