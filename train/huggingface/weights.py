"""Weights out of and into a model's parameters: pure functions over {name: tensor}, and the way in from a folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loader.errors import RefusedError
from loader.files import digest_bytes

from ..model_shape import ModelShape
from ..parallel.shards import copy_own_part
from .files import HfFolder
from .layout import disagreements, from_hf, hf_names, shape_of_hf, to_hf

__all__ = ["expected_shape", "export_tensors", "import_tensors", "load_folder"]

_IGNORED = ("rotary_emb.inv_freq",)


def export_tensors(parameters: Mapping[str, Tensor], shape: ModelShape, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters of ours (all, or some) under their names, as they compute them, in ``dtype``."""
    names = hf_names(shape)
    return {names[name]: to_hf(name, tensor, shape).to(dtype) for name, tensor in parameters.items()}


def import_tensors(tensors: Mapping[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Their tensors (all, or some; unknown names are a KeyError) as parameters of ours, float32."""
    names = {theirs: ours for ours, theirs in hf_names(shape).items()}
    out = {}
    for theirs, tensor in tensors.items():
        name = names[theirs]
        rows = shape.vocab_size if name in ("embedding.weight", "head.weight") else tensor.shape[0]
        out[name] = from_hf(name, tensor[:rows], shape)
    return out


@torch.no_grad()
def load_folder(
    path: Path, shape: ModelShape, parameters: Iterable[tuple[str, nn.Parameter]], *, hashed: bool = True
) -> dict[str, Any]:
    """Fill parameters with the weights in a folder; a rank keeps its part of each.

    Args:
        path: with config.json and safetensors.
        shape: of the whole model.
        parameters: ``(name, parameter)`` of the parts that live here.
        hashed: read every byte once more for the digest.

    Returns:
        JSON-able, for the run's events: ``{"files": {name: xxh3-128}, "digest", "notes"}``.

    Raises:
        ConfigError: no such folder. DamageError: a file of it is damaged.
        RefusedError: another model, or other tensors than config.json says.
    """
    with HfFolder(path) as folder:
        try:
            theirs = shape_of_hf(folder.config)
        except ValueError as error:
            raise RefusedError(
                "TR-HF-MODEL", str(error), str(path / "config.json"), "a Llama or Qwen3 model"
            ) from error
        problems, notes = disagreements(shape, theirs)
        if problems:
            lines = "".join(f"\n  {problem}" for problem in problems)
            raise RefusedError(
                "TR-HF-MODEL", f"weights of another model{lines}", str(path), "the keys above set to what they need"
            )
        _check_tensors(folder, theirs)
        names = hf_names(shape)
        for name, parameter in parameters:
            copy_own_part(parameter, import_tensors({names[name]: folder.read(names[name])}, shape)[name])
        files = folder.hashes() if hashed else {}
    digest = digest_bytes("".join(f"{name} {value}\n" for name, value in files.items()).encode())
    return {"files": files, "digest": digest, "notes": notes}


def expected_shape(name: str, shape: ModelShape) -> tuple[int, ...]:
    """Of a parameter of ours."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    last = name.rsplit(".", 2)[-2]
    table = {
        "q": (queries, shape.dim),
        "k": (keys, shape.dim),
        "v": (keys, shape.dim),
        "out": (shape.dim, queries),
        "gate": (shape.ffn, shape.dim),
        "up": (shape.ffn, shape.dim),
        "down": (shape.dim, shape.ffn),
        "embedding": (shape.vocab_size, shape.dim),
        "head": (shape.vocab_size, shape.dim),
        "q_norm": (shape.head_dim,),
        "k_norm": (shape.head_dim,),
    }
    return table.get(last, (shape.dim,))


def _check_tensors(folder: HfFolder, theirs: ModelShape) -> None:
    names = hf_names(theirs)
    wanted = {name: expected_shape(ours, theirs) for ours, name in names.items()}
    found = {name for name in folder.names if not name.endswith(_IGNORED)}
    if theirs.tied:
        found.discard("lm_head.weight")  # some write the shared table twice
    problems = [f"{name} is missing" for name in wanted.keys() - found]
    problems += [f"{name} has no place in this model" for name in found - wanted.keys()]
    for name in sorted(found & wanted.keys()):
        if folder.shape(name) != wanted[name]:
            problems.append(f"{name} has shape {folder.shape(name)}, config.json means {wanted[name]}")
    if problems:
        shown = sorted(problems)[:20]
        more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
        lines = "".join(f"\n  {problem}" for problem in [*shown, *more])
        raise RefusedError("TR-HF-TENSORS", f"other tensors than config.json says{lines}", str(folder.path))
