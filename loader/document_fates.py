"""What became of documents in a Dataset that does not train on them: held out, removed, rejected, without input.

Read from the Dataset's own tables: the validation Dataset beside it, removed.parquet, rejected.parquet and files.txt.

Shape letters: D documents asked about.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError, DamageError, JobError
from .remote.store import is_url
from .shards.access import check_size, hash_regular
from .shards.dataset import Dataset
from .shards.index_blocks import index_blocks
from .shards.reader import read_documents
from .text.records import document_ids

__all__ = ["fates_of"]

_ROWS_A_BATCH = 1 << 16
_VALIDATION = "-validation"


def fates_of(dataset: Dataset, owner: Dataset, rows_D: NDArray[np.void]) -> Counter[str]:
    """Count the documents ``rows_D`` (rows of ``owner``'s documents.npy, sorted by id, each once) by what became of
    them in ``dataset``.

    Fates: ``held out`` (of a validation Dataset: ``trained``), ``removed: METHOD``, ``rejected``, ``no input`` (its
    input file is none of the Dataset's), ``input changed`` or ``unknown``; the first that holds. Both Datasets must
    have one salt.

    Raises:
        DamageError: a table is not what was written.
    """
    ids_D = rows_D["id"]
    fate_D = np.full(len(ids_D), "unknown", "U64")
    open_D = np.ones(len(ids_D), np.bool_)
    _settle(fate_D, open_D, *_other_split(dataset, ids_D))
    for method, mine_D in _removed(dataset, ids_D).items():
        _settle(fate_D, open_D, mine_D, f"removed: {method}")
    _settle(fate_D, open_D, _rejected(dataset, ids_D), "rejected")
    for fate, mine_D in _by_input(dataset, owner, rows_D).items():
        _settle(fate_D, open_D, mine_D, fate)
    return Counter(fate_D.tolist())


def _settle(fate_D: NDArray[np.str_], open_D: NDArray[np.bool_], mine_D: NDArray[np.bool_], fate: str) -> None:
    fate_D[open_D & mine_D] = fate
    open_D &= ~mine_D


def _other_split(dataset: Dataset, ids_D: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], str]:
    """Which documents the other split of the same build holds, and what that is called."""
    from .stream.store import look_into_dataset

    found_D = np.zeros(len(ids_D), np.bool_)
    place = dataset.location if is_url(dataset.location) else str(dataset.path.resolve())
    folder, _, name = place.rpartition("/")
    is_validation = name.endswith(_VALIDATION)
    other = name.removesuffix(_VALIDATION) if is_validation else name + _VALIDATION
    fate = "trained" if is_validation else "held out"
    try:
        beside = look_into_dataset(f"{folder}/{other}")
    except (ConfigError, ValueError):
        return found_D, fate
    except JobError as error:
        if error.code != "TR-REMOTE-DENIED":  # which is how stores speak of what nobody may list
            raise
        return found_D, fate
    if beside.manifest.parents.get("build") == dataset.manifest.parents.get("build"):
        for rows_M in index_blocks(beside):
            found_D[_places(ids_D, rows_M["id"])] = True
    return found_D, fate


def _table(dataset: Dataset, name: str) -> Path | None:
    """A table of the Dataset, verified; None if it has none."""
    record = dataset.manifest.files_hashed.get(name)
    if record is None:
        return None
    path = dataset.local_file(name)
    size_bytes, digest = hash_regular(path)
    check_size(path, size_bytes, record.size_bytes)
    if digest != record.xxh3_128:
        raise DamageError("TR-FILE-HASH", f"the file's bytes have xxh3-128 {digest}", str(path), record.xxh3_128)
    return path


def _removed(dataset: Dataset, ids_D: NDArray[np.uint64]) -> dict[str, NDArray[np.bool_]]:
    """method -> which documents it removed."""
    found: dict[str, NDArray[np.bool_]] = {}
    path = _table(dataset, "removed.parquet")
    if path is None:
        return found
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS_A_BATCH, columns=["document", "method"]):
            documents = batch.column("document").fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
            methods = np.array([str(method)[:48] for method in batch.column("method").to_pylist()])
            for method in np.unique(methods).tolist():
                places = _places(ids_D, documents[methods == method])
                if len(places):
                    found.setdefault(method, np.zeros(len(ids_D), np.bool_))[places] = True
    return found


def _by_input(dataset: Dataset, owner: Dataset, rows_D: NDArray[np.void]) -> dict[str, NDArray[np.bool_]]:
    """Documents whose input file is none of the Dataset's, or has other bytes there; reads the ``.docs`` of the owner's
    shards that hold them."""
    known = {(file.source, file.path): file.xxh3_128 for file in dataset.input_files()}
    found_F = [known.get((file.source, file.path)) for file in owner.input_files()]
    missing_F = np.array([found is None for found in found_F], np.bool_)
    changed_F = ~missing_F & np.array(
        [found != file.xxh3_128 for found, file in zip(found_F, owner.input_files(), strict=True)], np.bool_
    )
    missing_D, changed_D = np.zeros((2, len(rows_D)), np.bool_)
    if missing_F.any() or changed_F.any():
        for shard in np.unique(rows_D["shard"]).tolist():
            mine = np.flatnonzero(rows_D["shard"] == shard)
            file_S = read_documents(owner.shard_files(shard), owner.read_path)["file"][rows_D["row"][mine]]
            missing_D[mine], changed_D[mine] = missing_F[file_S], changed_F[file_S]
    return {"no input": missing_D, "input changed": changed_D}


def _rejected(dataset: Dataset, ids_D: NDArray[np.uint64]) -> NDArray[np.bool_]:
    rejected_D = np.zeros(len(ids_D), np.bool_)
    path = _table(dataset, "rejected.parquet")
    if path is None:
        return rejected_D
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS_A_BATCH, columns=["source", "file", "record"]):
            records: dict[tuple[str, str], list[int]] = {}
            for source, name, record in zip(*(batch.column(i).to_pylist() for i in range(3)), strict=True):
                records.setdefault((source, name), []).append(record)
            for (source, name), numbers in records.items():
                rows = np.array(numbers, np.int64)
                rejected_D[_places(ids_D, document_ids(source, name, rows, dataset.manifest.salt))] = True
    return rejected_D


def _places(ids_D: NDArray[np.uint64], found: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where in the sorted ``ids_D`` those of ``found`` are that are there; costs what ``found`` is long, not D."""
    places = np.minimum(np.searchsorted(ids_D, found), len(ids_D) - 1)
    mine: NDArray[np.int64] = places[ids_D[places] == found]
    return mine
