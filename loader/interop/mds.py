"""MDS: the same token files in a folder of their own, for mosaicml-streaming and llm-foundry.

One ``index.json`` over all sources, and one in each source's folder, so that a ``Stream`` may name either. The source
folders of a Dataset are MDS already; an export is for those who want one folder, or one that outlives the Dataset.
"""

from __future__ import annotations

import json

from ..shards.commit import mds_index
from ..shards.layout import ShardName
from ..shards.reader import ShardFiles
from .request import ExportedFile, ExportRequest, PlannedFile, place_payload, shard_rows, write_file

__all__ = ["plan_mds", "write_mds"]


def plan_mds(request: ExportRequest) -> list[PlannedFile]:
    """The files, exactly."""
    planned = [PlannedFile(name, len(data)) for name, data in _indices(request)]
    for source in request.sources:
        for files in _shards(request, source):
            planned.append(PlannedFile(_payload_name(request, files), 0 if request.link else files.size_bytes))
    return planned


def write_mds(request: ExportRequest) -> list[ExportedFile]:
    """Token files, then the indices that name them.

    Raises:
        DamageError: a token file is not what was written.
    """
    written = [
        place_payload(request, files, _payload_name(request, files))
        for source in request.sources
        for files in _shards(request, source)
    ]
    return written + [write_file(request, name, (data,)) for name, data in _indices(request)]


def _shards(request: ExportRequest, source: str) -> list[ShardFiles]:
    return [request.dataset.shard_files(row) for row in shard_rows(request.dataset, source)]


def _prefix(request: ExportRequest) -> str:
    return f"{request.split}/" if request.split else ""


def _payload_name(request: ExportRequest, files: ShardFiles) -> str:
    return f"{_prefix(request)}{files.folder.name}/{ShardName(files.number).mds}"


def _indices(request: ExportRequest) -> list[tuple[str, bytes]]:
    """(name, bytes) of each source's index.json, and last of the one over all of them."""
    manifest = request.dataset.manifest
    found: list[tuple[str, bytes]] = []
    together = []
    for source in request.sources:
        data = mds_index(manifest.seq_len, manifest.vocab_size, _shards(request, source))
        found.append((f"{_prefix(request)}{source}/index.json", data))
        for entry in json.loads(data)["shards"]:
            entry["raw_data"]["basename"] = f"{source}/{entry['raw_data']['basename']}"
            together.append(entry)
    joint = json.dumps({"shards": together, "version": 2}, sort_keys=True).encode("ascii")
    return [*found, (f"{_prefix(request)}index.json", joint)]
