"""``export RUN --format hf``: a checkpoint of a run as a folder that transformers, vLLM and llama.cpp read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loader.cli_options import Output
from loader.errors import ConfigError, DamageError, RefusedError
from loader.files import (
    fsync_folder,
    hash_file,
    make_folder,
    remove_stale_temporaries,
    sync_tree,
    temporary_path,
    write_atomic,
)
from loader.run_folder import read_identity
from loader.runs import read_branches
from loader.sealed import read_sealed, write_sealed
from loader.sources import Sources

from ..checkpoint import COMMIT_NAME, Checkpoint, load_tensors
from ..job import Job, job_of_run, open_job_sources, refuse_other_tokens
from ..lineage import named_checkpoint, newest_valid
from ..model_shape import ModelShape, shape_of
from .files import DTYPES, plan_pieces, write_pieces
from .layout import hf_config, hf_names, unexpressed
from .tokenizer import TokenizerFiles, tokenizer_files
from .weights import expected_shape, export_tensors

__all__ = ["RunExport", "export_run", "export_verb"]

RECORD_NAME = "export.json"
_PIECE_BYTES = 5_000_000_000  # as transformers cuts
_READ_WITH = "transformers.AutoModelForCausalLM.from_pretrained({!r})"


@dataclass(frozen=True)
class RunExport:
    """What to export.

    Attributes:
        run: the run's folder. output: the folder to write; new.
        checkpoint: a name below RUN/checkpoints; None: the newest valid one of the current branch.
        dtype: of the weights, a key of ``DTYPES``. piece_bytes: largest file of weights.
    """

    run: Path
    output: Path
    checkpoint: str | None = None
    dtype: str = "float32"
    piece_bytes: int = _PIECE_BYTES


@dataclass(frozen=True)
class _Opened:
    job: Job
    sources: Sources
    checkpoint: Checkpoint
    shape: ModelShape


def _open(request: RunExport, say: Callable[[str], None]) -> _Opened:
    if request.dtype not in DTYPES:
        raise ConfigError("TR-EXPORT-DTYPE", f"dtype {request.dtype!r}", "--dtype", " or ".join(DTYPES))

    def damaged(error: DamageError) -> None:
        say(f"damaged checkpoint, left alone: {error}")

    job = job_of_run(request.run)
    folder = job.paths.checkpoints
    if request.checkpoint is not None:
        checkpoint: Checkpoint | None = named_checkpoint(folder, request.checkpoint)
    else:
        checkpoint = newest_valid(folder, read_branches(job.paths), None, damaged)
    if checkpoint is None:
        raise ConfigError(
            "TR-EXPORT-CHECKPOINT",
            "no valid checkpoint",
            str(folder),
            "a run that was trained",
            "tokenreel train CONFIG",
        )
    sources = open_job_sources(job)
    refuse_other_tokens(job, sources)
    shape = shape_of(job.config.model, sources.datasets[0].manifest.vocab_size, sources.seq_len)
    return _Opened(job, sources, checkpoint, shape)


def export_run(request: RunExport, say: Callable[[str], None], *, plan: bool = False) -> dict[str, Any]:
    """Write a checkpoint's model as config.json, safetensors and, where it is Hugging Face's, the tokenizer.

    Written beside ``output`` and renamed when whole; the same export again is a no-op. In memory is one file of weights
    at a time. ``export.json`` in it names the run, the checkpoint and every file's hash.

    Args:
        say: told of damaged checkpoints, and of what the form cannot express.
        plan: write nothing.

    Raises:
        ConfigError: no such run or checkpoint, or an unknown dtype. DamageError: the checkpoint is damaged.
        RefusedError: something else is at the output.
    """
    opened = _open(request, say)
    shape, names = opened.shape, hf_names(opened.shape)
    dtype = DTYPES[request.dtype]
    sizes = {name: dtype.itemsize * torch.Size(expected_shape(name, shape)).numel() for name in names}
    pieces = plan_pieces(sizes, request.piece_bytes)
    identity = {
        "format": "tokenreel-hf-export",
        "version": 1,
        "run": read_identity(opened.job.paths)["run_id"],
        "checkpoint": opened.checkpoint.path.name,
        "commit": hash_file(opened.checkpoint.path / COMMIT_NAME),
        "dtype": request.dtype,
        "piece_bytes": request.piece_bytes,
    }
    notes = [*unexpressed(shape), *_tokenizer(opened).notes]
    for note in notes:
        say(f"note: {note}")
    finished = _finished(request.output, identity)
    if finished is not None:
        made, written = finished, False
    elif plan:
        made, written = {**identity, "files": {}, "notes": notes}, False
    else:
        made, written = _write(request, opened, pieces, {**identity, "notes": notes}), True
    return {
        **made,
        "output": str(request.output),
        "written": written,
        "finished": finished is not None,
        "parameters": sum(sizes.values()) // dtype.itemsize,
        "weight_bytes": sum(sizes.values()),
        "weight_files": len(pieces),
        "read_with": _READ_WITH.format(str(request.output)),
    }


def _finished(output: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The record of the same export, whole; None where nothing is.

    Raises:
        RefusedError: something else is there, or a file of it has changed.
    """
    if not os.path.lexists(output):
        return None
    record = read_sealed(output / RECORD_NAME) if (output / RECORD_NAME).is_file() else {}
    same = {key: record.get(key) for key in identity} == identity
    if same:
        same = all(
            (output / name).is_file() and hash_file(output / name) == digest for name, digest in record["files"].items()
        )
    if same:
        return record
    raise RefusedError(
        "TR-EXPORT-OTHER", "something else is at the output; an export is written once", str(output),
        "no such folder, or this very export", "choose another --output, or move the old one away",
    )  # fmt: skip


def _tokenizer(opened: _Opened) -> TokenizerFiles:
    from loader.text.tokenizers import load_tokenizer

    folder = opened.sources.datasets[0].tokenizer_folder()
    return tokenizer_files(None if folder is None else load_tokenizer(folder), opened.shape.seq_len)


def _write(request: RunExport, opened: _Opened, pieces: list[list[str]], identity: dict[str, Any]) -> dict[str, Any]:
    output, folder, shape = request.output, temporary_path(request.output), opened.shape
    tokenizer = _tokenizer(opened)
    dtype = DTYPES[request.dtype]

    def read(names: Iterable[str]) -> dict[str, Tensor]:
        tensors = {name: torch.empty(expected_shape(name, shape)) for name in names}
        load_tensors(opened.checkpoint, {f"model.{name}": tensor for name, tensor in tensors.items()})
        return export_tensors(tensors, shape, dtype)

    make_folder(output.parent)
    remove_stale_temporaries(output.parent, output.name)
    folder.mkdir()
    try:
        config = hf_config(shape, request.dtype, tokenizer.borders)
        files = {"config.json": json.dumps(config, indent=2).encode() + b"\n", **tokenizer.files}
        for name, data in files.items():
            write_atomic(folder / name, data)
        written = write_pieces(folder, pieces, read, hf_names(shape))
        hashes = {name: hash_file(folder / name) for name in sorted([*files, *written])}
        record = {**identity, "files": hashes}
        write_sealed(folder / RECORD_NAME, record)
        sync_tree(folder)
        os.rename(folder, output)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)  # a failing write does not say where
        shutil.rmtree(folder, ignore_errors=True)
        raise
    fsync_folder(output.parent)
    return record


def export_verb(output: Output, request: RunExport, *, plan: bool) -> None:
    """Print what :func:`export_run` found, or would do."""
    made = export_run(request, output.note, plan=plan)
    state = "written" if made["written"] else "finished already" if made["finished"] else "would be written"
    text = (
        f"{made['output']}: {state}, {made['parameters']:,} parameters of {made['checkpoint']} in "
        f"{made['weight_files']} files, {made['weight_bytes']:,} bytes\n  read it with {made['read_with']}"
    )
    output.result(made, text)
