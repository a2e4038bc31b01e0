"""Where a build's Datasets lie, and what is there already; light to import, for a finished build must be recognised
at once.
"""

from __future__ import annotations

from pathlib import Path

from loader.errors import ConfigError, RefusedError
from loader.shards.dataset import read_manifest
from loader.text.tokenizers import MODEL_FILES

from .config import BuildConfig

__all__ = ["SPLITS", "config_paths", "existing_build", "find_index", "index_output", "split_outputs"]

SPLITS = ("train", "validation")
"""Names of the splits; a split's number is its place here."""


def config_paths(config: BuildConfig, base: Path) -> tuple[Path, Path, Path | None]:
    """Output, work folder and tokenizer model of a configuration whose file lies in ``base``."""
    output = base / config.output
    work = base / config.run.work if config.run.work is not None else output.with_name(output.name + ".work")
    load = config.tokenizer.load
    model = None if load is None else base / load
    if model is not None and model.is_dir():
        model = model / MODEL_FILES[config.tokenizer.kind]
    return output, work, model


def split_outputs(output: Path) -> tuple[Path, Path]:
    """Folders of the training and of the validation Dataset."""
    return output, output.with_name(f"{output.name}-validation")


def index_output(output: Path) -> Path:
    """Folder of the Index that a job leaves beside its training Dataset."""
    return output.with_name(f"{output.name}-index")


def find_index(base: Path, name: str) -> Path:
    """The folder of an Index: ``name`` itself, or the one beside the Dataset ``name``.

    Raises:
        ConfigError: there is none.
    """
    place = base / name
    for folder in (place, index_output(place)):
        if (folder / "index.json").is_file():
            return folder
    raise ConfigError(
        "TR-INDEX-MISSING",
        "there is no Index",
        str(place),
        "a folder with index.json, or a Dataset that was built with dedup.write_index: true",
    )


def existing_build(path: Path) -> str | None:
    """The build digest of the Dataset at ``path``; None if nothing is there.

    Raises:
        RefusedError: something else is there.
        DamageError: its manifest is damaged.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None
    if not (path / "manifest.json").is_file():
        raise RefusedError(
            "TR-OUTPUT-TAKEN", "the output is taken by something that is no Dataset", str(path), "a new or empty folder"
        )
    return read_manifest(path).parents.get("build", "")
