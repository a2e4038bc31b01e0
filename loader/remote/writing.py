"""Writing objects to a store by URL: put and remove. Who writes gives each object a name of its own and never changes
one that is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from ..errors import ConfigError
from .store import Store, open_store
from .store_failures import Transfer

__all__ = ["WritableStore", "open_writable_store"]


class WritableStore(Store, Protocol):
    """A store that can be written, too; methods fail with ``StoreError``."""

    def put(self, path: str, content: bytes | Path, *, create: bool = False) -> None:
        """Write one object, whole or not at all; a file in parts of at least ``Transfer.range_bytes``. ``create``:
        only where there is none, else it fails with ``exists``. A missing file is an ``OSError``."""

    def delete(self, path: str) -> None:
        """Remove one object; nothing where there is none."""


def open_writable_store(url: str, transfer: Transfer | None = None) -> WritableStore:
    """The store to write objects below ``url``; no request is made.

    Raises:
        ConfigError: see :func:`open_store`; or ``TR-REMOTE-SCHEME``: it is one that is only read.
    """
    store = open_store(url, transfer)
    if not store.can_list or not hasattr(store, "put"):
        raise ConfigError("TR-REMOTE-SCHEME", "this store is only read", url, "s3://, gs:// or az://")
    return cast(WritableStore, store)
