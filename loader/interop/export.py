"""Exporting a Dataset: one table of formats, one way to plan, write, recognise and refuse.

All is written to a folder beside the output and renamed when whole: what stops half-way, and a damaged Dataset, leave
nothing. ``export.json`` (sealed) says which Dataset it was made of, how, and the size and hash of each file.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DamageError, RefusedError
from ..files import check_name, fsync_folder, make_folder, remove_stale_temporaries, sync_tree, temporary_path
from ..remote.store import is_url
from ..sealed import read_sealed, write_sealed
from ..shards.access import check_relative
from ..shards.dataset import Dataset
from ..shards.layout import token_dtype
from ..stream.store import look_into_dataset
from .datatrove import plan_datatrove, write_datatrove
from .mds import plan_mds, write_mds
from .megatron import plan_megatron, write_megatron
from .parquet import plan_parquet, write_parquet
from .request import ExportedFile, ExportRequest, PlannedFile, shard_rows

__all__ = ["EXPORTS", "RECORD_NAME", "ExportFormat", "ExportOptions", "bytes_to_read", "export_dataset", "plan_export"]

RECORD_NAME = "export.json"
_VERSION = 1


@dataclass(frozen=True)
class ExportFormat:
    """A format.

    Attributes:
        plan, write: what an export consists of; writing it.
        links: whether it can point at the Dataset's own token files.
        splits: whether it knows split folders.
        reader: a Python expression that opens it in its own stack, to be formatted.
    """

    plan: Callable[[ExportRequest], list[PlannedFile]]
    write: Callable[[ExportRequest], list[ExportedFile]]
    links: bool
    splits: bool
    reader: str


EXPORTS: dict[str, ExportFormat] = {
    "mds": ExportFormat(
        plan_mds, write_mds, True, True,
        "streaming.StreamingDataset(local={place!r}, shuffle=False, batch_size=1)",
    ),
    "megatron": ExportFormat(
        plan_megatron, write_megatron, True, False,
        "megatron.core.datasets.indexed_dataset.IndexedDataset({output!r} + '/{source}/shard.00000')",
    ),
    "datatrove": ExportFormat(
        plan_datatrove, write_datatrove, False, False,
        "datatrove.utils.dataset.DatatroveFolderDataset({output!r}, {seq_len}, token_size={token_bytes})",
    ),
    "parquet": ExportFormat(
        plan_parquet, write_parquet, False, False,
        "datasets.load_dataset('parquet', data_files={output!r} + '/*/*.parquet', split='train')",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ExportOptions:
    """How to export; ``sources`` empty = all, the rest as in ``ExportRequest``."""

    format: str
    sources: tuple[str, ...] = ()
    link: bool = False
    split: str = ""


def plan_export(dataset: Path | str, output: Path | str, options: ExportOptions) -> dict[str, Any]:
    """What :func:`export_dataset` would write; writes nothing.

    Raises:
        ConfigError: no such Dataset, format, source or place; an option that the format does not have.
        DamageError: the Dataset is damaged where it was read.
        RefusedError: something else is at the output.
    """
    request = _request(dataset, output, options)
    planned = EXPORTS[options.format].plan(request)
    return {
        **_identity(request, options),
        "output": str(output),
        "finished": _finished(request, options) is not None,
        "files": [{"name": file.name, "size_bytes": file.size_bytes} for file in planned],
        "size_bytes": sum(file.size_bytes or 0 for file in planned),
    }


def bytes_to_read(dataset: Path | str, output: Path | str, options: ExportOptions) -> int | None:
    """Bytes of the Dataset that :func:`export_dataset` will go through, as its ``progress`` counts them; None where the
    export is finished. Unlike a plan it reads no shard. Raises as :func:`plan_export`.
    """
    request = _request(dataset, output, options)
    if _finished(request, options) is not None:
        return None
    rows = [row for source in request.sources for row in shard_rows(request.dataset, source)]
    return int(request.dataset.shards_R["size_bytes"][rows].sum())


def export_dataset(
    dataset: Path | str,
    output: Path | str,
    options: ExportOptions,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write an export, or recognise it; returns what export.json says, with ``output``, ``written`` and ``read_with``.

    Raises:
        ConfigError: no such Dataset, format, source or place; an option that the format does not have.
        DamageError: the Dataset is damaged, and nothing was written; or the finished export at the output is.
        RefusedError: something else is at the output.
        OSError: the file system refused.
    """
    request = _request(dataset, output, options)
    made = _finished(request, options)
    written = made is None
    if made is None:
        made = _write(replace(request, progress=progress or request.progress), options)
    return {**made, "output": str(output), "written": written, "read_with": _reader(request, options)}


def _reader(request: ExportRequest, options: ExportOptions) -> str:
    """A Python expression that opens the export in its own stack."""
    manifest = request.dataset.manifest
    place = request.output / options.split if options.split else request.output
    return EXPORTS[options.format].reader.format(
        output=str(request.output),
        place=str(place),
        source=request.sources[0] if request.sources else "SOURCE",
        seq_len=manifest.seq_len,
        token_bytes=token_dtype(manifest.vocab_size).itemsize,
    )


def _request(place: Path | str, target: Path | str, options: ExportOptions) -> ExportRequest:
    if is_url(str(target)):
        raise ConfigError(
            "TR-EXPORT-OUTPUT", "exports are written to folders, not to stores", str(target), "a folder",
            "export to a folder, then upload it",
        )  # fmt: skip
    dataset, output = look_into_dataset(str(place)), Path(target)
    form = EXPORTS.get(options.format)
    if form is None:
        raise ConfigError(
            "TR-EXPORT-FORMAT", f"no format {options.format!r}", "--format", f"one of {', '.join(EXPORTS)}"
        )
    if options.link and not form.links:
        raise ConfigError("TR-EXPORT-OPTION", f"{options.format} holds no token file to link to", "--link", "no --link")
    if options.link and is_url(dataset.location):
        raise ConfigError("TR-EXPORT-OPTION", "links need a Dataset on this machine", "--link", "no --link")
    if options.split and not form.splits:
        raise ConfigError("TR-EXPORT-OPTION", f"{options.format} knows no split folder", "--split", "no --split")
    unknown = sorted(set(options.sources) - set(dataset.source_names))
    if unknown:
        known = f"one of {', '.join(dataset.source_names)}"
        raise ConfigError("TR-SOURCE-UNKNOWN", f"no source {unknown[0]!r}", dataset.location, known)
    if options.split:
        _check_split(options.split, dataset)
    real = output.parent.resolve() / output.name
    inside = dataset.path.resolve()
    if not output.name or inside == real or inside in real.parents or real in inside.parents:
        raise ConfigError("TR-EXPORT-OUTPUT", "the output cannot lie in the Dataset, nor around it", str(output))
    sources = tuple(name for name in dataset.source_names if not options.sources or name in options.sources)
    folder = temporary_path(output)
    return ExportRequest(dataset, sources, output, folder, options.link, options.split, lambda size_bytes: None)


def _check_split(name: str, dataset: Dataset) -> None:
    try:
        check_name(name, "--split")
    except DamageError as error:
        raise ConfigError("TR-EXPORT-OPTION", error.message, "--split", error.expected) from None
    if name == RECORD_NAME:
        raise ConfigError("TR-EXPORT-OPTION", f"a split cannot be called {name!r}", "--split", "another name")


def _identity(request: ExportRequest, options: ExportOptions) -> dict[str, Any]:
    """What makes two exports the same."""
    return {
        "format": f"tokenreel-export-{options.format}",
        "version": _VERSION,
        "dataset": request.dataset.digest,
        "sources": list(request.sources),
        "link": options.link,
        "split": options.split,
    }


def _finished(request: ExportRequest, options: ExportOptions) -> dict[str, Any] | None:
    """The record of this very export if it is at the output; None where there is nothing, or an empty folder."""
    output = request.output
    if not os.path.lexists(output) or (output.is_dir() and not output.is_symlink() and not any(output.iterdir())):
        return None
    record = output / RECORD_NAME
    found = read_sealed(record) if record.is_file() else {}
    if {name: found.get(name) for name in _identity(request, options)} != _identity(request, options):
        raise _other(request)
    try:
        sizes = {check_relative(file["name"], str(record)): file["size_bytes"] for file in found["files"]}
    except (AttributeError, KeyError, TypeError):
        raise DamageError("TR-EXPORT-DAMAGED", "not the record of an export", str(record)) from None
    for name, size_bytes in sizes.items():
        path = output / name
        if not path.is_file() or path.stat().st_size != size_bytes:
            message = "a file of the finished export is missing or has another size"
            raise DamageError("TR-EXPORT-DAMAGED", message, str(path), None, f"rm -r {output}, then export again")
    return found


def _other(request: ExportRequest) -> RefusedError:
    return RefusedError(
        "TR-EXPORT-OTHER",
        "something else is at the output; an export is written once",
        str(request.output),
        f"no such folder, or this export of the Dataset {request.dataset.digest}",
        "choose another --output, or move the old one away",
    )


def _write(request: ExportRequest, options: ExportOptions) -> dict[str, Any]:
    output, folder = request.output, request.folder
    make_folder(output.parent)
    remove_stale_temporaries(output.parent, output.name)
    folder.mkdir()
    try:
        files = EXPORTS[options.format].write(request)
        record = {**_identity(request, options), "files": [vars(file) for file in files], "totals": _totals(request)}
        write_sealed(folder / RECORD_NAME, record)
        sync_tree(folder)
        _publish(request)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)  # a failing write does not say where
        shutil.rmtree(folder, ignore_errors=True)
        raise
    fsync_folder(output.parent)
    return record


def _publish(request: ExportRequest) -> None:
    try:
        os.rename(request.folder, request.output)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # somebody was faster
            raise _other(request) from error
        raise


def _totals(request: ExportRequest) -> dict[str, int]:
    chosen = [source for source in request.dataset.manifest.sources if source.name in request.sources]
    return {name: sum(getattr(source, name) for source in chosen) for name in ("num_tokens", "num_documents")}
