"""One model in two vocabularies: names, config.json, and what must be multiplied into weights because it has no key.

A decoder without QK-norm is a Llama, with it a Qwen3. muP's output multiplier goes into the last norm's gain, its
scale of the scores into the queries (their norm's gain, where there is one); both are powers of two for usual widths,
so nothing is rounded then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..model_config import RopeScaling
from ..model_shape import ModelShape
from ..rope import ntk_base, rotation_of

__all__ = ["disagreements", "from_hf", "hf_config", "hf_names", "shape_of_hf", "to_hf", "unexpressed"]

_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.out.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}
_SCALINGS = {"linear": "linear", "llama3": "llama3", "yarn": "yarn"}
_FAMILIES = {"llama": False, "qwen3": True}
# config.json key -> the only value that this model computes
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0, 1),
    "quantization_config": (None,),
}


def hf_names(shape: ModelShape) -> dict[str, str]:
    """Our parameter name -> theirs, in the order of their files."""
    names = {"embedding.weight": "model.embed_tokens.weight"}
    for number in range(shape.layers):
        for ours, theirs in _BLOCK.items():
            if shape.qk_norm or "_norm.weight" not in ours or not ours.startswith("attention."):
                names[f"blocks.{number}.{ours}"] = f"model.layers.{number}.{theirs}"
    names["norm.weight"] = "model.norm.weight"
    if not shape.tied:
        names["head.weight"] = "lm_head.weight"
    return names


def _factor(name: str, shape: ModelShape) -> float:
    """What a parameter is multiplied by on its way out."""
    if name == "norm.weight":
        return shape.logit_scale
    if name.endswith("attention.q_norm.weight" if shape.qk_norm else "attention.q.weight"):
        return shape.query_scale
    return 1.0


def to_hf(name: str, tensor: Tensor, shape: ModelShape) -> Tensor:
    """A parameter of ours as theirs, float32."""
    factor = _factor(name, shape)
    return tensor if factor == 1.0 else tensor * factor


def from_hf(name: str, tensor: Tensor, shape: ModelShape) -> Tensor:
    """A parameter of theirs, any float dtype, as our parameter ``name``, float32."""
    factor = _factor(name, shape)
    return tensor.float() if factor == 1.0 else tensor.float() / factor


def unexpressed(shape: ModelShape) -> list[str]:
    """What their form cannot say of a model, one sentence each."""
    notes = []
    if shape.z_loss:
        notes.append("z_loss acts in training alone and is left out")
    if shape.dropout is not None:
        notes.append("dropout acts in training alone and is left out")
    if shape.mup is not None:
        exact = all(math.frexp(scale)[0] == 0.5 for scale in (shape.logit_scale, shape.query_scale))
        rounding = "without rounding" if exact else "rounded to float32"
        notes.append(
            f"muP's multipliers are inside norm and query weights, {rounding}; its learning rates are left out"
        )
    if shape.rope_scaling is not None and shape.rope_scaling.kind == "ntk":
        notes.append("rope_scaling ntk has become its rope_theta")
    return notes


def hf_config(shape: ModelShape, dtype: str, borders: Mapping[str, int | None]) -> dict[str, Any]:
    """config.json of a model.

    Args:
        dtype: of the weights, torch's name.
        borders: ``bos_token_id``, ``eos_token_id`` and ``pad_token_id`` of the tokenizer; null where it has none.
    """
    scaling, base = shape.rope_scaling, shape.rope_base
    if scaling is not None and scaling.kind == "ntk":
        base = ntk_base(base, shape.head_dim, scaling.factor)
    family = "qwen3" if shape.qk_norm else "llama"
    config: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM" if shape.qk_norm else "LlamaForCausalLM"],
        "model_type": family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.seq_len,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": base,
        "rope_scaling": _scaling_out(scaling),
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "torch_dtype": dtype,
        **borders,
    }
    return config | ({"use_sliding_window": False} if shape.qk_norm else {"mlp_bias": False})


def _scaling_out(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None or scaling.kind == "ntk":
        return None
    out: dict[str, Any] = {"rope_type": scaling.kind, "factor": float(scaling.factor)}
    if scaling.kind == "linear":
        return out
    out["original_max_position_embeddings"] = scaling.original_context
    keys: tuple[str, ...] = ("beta_fast", "beta_slow", "truncate", "attention_factor")
    if scaling.kind == "llama3":
        keys = ("low_freq_factor", "high_freq_factor")
    return out | {key: getattr(scaling, key) for key in keys if getattr(scaling, key) is not None}


def shape_of_hf(config: Mapping[str, Any]) -> ModelShape:
    """The model that a config.json describes; ``seq_len`` is its longest context.

    Raises:
        ValueError: no Llama or Qwen3, or something in it that this model does not compute; one line each.
    """
    family = config.get("model_type")
    problems = [] if family in _FAMILIES else [f"model_type is {family!r}, expected llama or qwen3"]
    for key, allowed in _MUST_BE.items():
        value = config.get(key, allowed[0])
        if value not in allowed:
            problems.append(f"{key} is {value!r}, expected {allowed[0]!r}")
    if problems:
        raise ValueError("\n".join(problems))
    try:
        return _shape(config)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"missing or of another type: {error}") from error


def _shape(config: Mapping[str, Any]) -> ModelShape:
    heads = int(config["num_attention_heads"])
    # transformers 5 keeps base and scaling together
    rope = dict(config.get("rope_parameters") or {})
    scaling = rope or config.get("rope_scaling")
    head_dim = config.get("head_dim") or (128 if config["model_type"] == "qwen3" else None)
    return ModelShape(
        vocab_size=int(config["vocab_size"]),
        dim=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        ffn=int(config["intermediate_size"]),
        seq_len=int(config["max_position_embeddings"]),
        qk_norm=_FAMILIES[config["model_type"]],
        tied=bool(config.get("tie_word_embeddings", False)),
        rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        head_width=None if head_dim is None else int(head_dim),
        rope_scaling=_scaling_in(scaling, int(config["max_position_embeddings"])),
    )


def _scaling_in(given: Mapping[str, Any] | None, context: int) -> RopeScaling | None:
    kind = None if given is None else given.get("rope_type", given.get("type", "default"))
    if given is None or kind == "default":
        return None
    if kind not in _SCALINGS:
        raise ValueError(f"rope_scaling is {kind!r}, expected one of {', '.join(_SCALINGS)}, or none")
    if kind == "linear":
        return RopeScaling("linear", float(given["factor"]))
    original = int(given.get("original_max_position_embeddings") or context)
    if kind == "llama3":
        low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
        return RopeScaling("llama3", float(given["factor"]), original, low_freq_factor=low, high_freq_factor=high)
    return RopeScaling(
        "yarn",
        float(given["factor"]),
        original,
        beta_fast=float(given.get("beta_fast") or 32),
        beta_slow=float(given.get("beta_slow") or 1),
        truncate=bool(given.get("truncate", True)),
        attention_factor=_yarn_magnitude(given),
    )


def _yarn_magnitude(given: Mapping[str, Any]) -> float | None:
    """DeepSeek's two scales come to one factor; null leaves the paper's."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    both = [given.get(key) for key in ("mscale", "mscale_all_dim")]
    if not all(both) or given["factor"] <= 1:
        return None
    first, second = (0.1 * float(scale) * math.log(given["factor"]) + 1.0 for scale in both if scale)
    return first / second


def disagreements(ours: ModelShape, theirs: ModelShape) -> tuple[list[str], list[str]]:
    """What keeps weights of ``theirs`` out of a model of ``ours``, and what only needs saying.

    Returns:
        ``(problems, notes)``: a problem names the key of the ``model:`` block to set. More rows of vocabulary than the
        Datasets have are cut off (models pad theirs); rotary positions may be scaled further than they were.
    """
    keys = ("dim", "layers", "heads", "kv_heads", "head_dim", "ffn", "qk_norm", "tied", "norm_eps")
    pairs = [(key, getattr(ours, key), getattr(theirs, key)) for key in keys]
    problems = [f"model.{key} is {here!r}, the weights need {there!r}" for key, here, there in pairs if here != there]
    notes = []
    if theirs.vocab_size < ours.vocab_size:
        problems.append(f"the Datasets have {ours.vocab_size} tokens, the weights {theirs.vocab_size}")
    elif theirs.vocab_size > ours.vocab_size:
        notes.append(f"rows of the vocabulary from {ours.vocab_size} to {theirs.vocab_size} are left out")
    if ours.head_dim == theirs.head_dim and not _turn_alike(ours, theirs):
        if ours.rope_base != theirs.rope_base:
            problems.append(f"model.rope_base is {ours.rope_base!r}, the weights need {theirs.rope_base!r}")
        else:
            said = f"model.rope_scaling is {ours.rope_scaling}, the weights were trained with {theirs.rope_scaling}"
            (problems if ours.rope_scaling is None else notes).append(said)
    return problems, notes


def _turn_alike(ours: ModelShape, theirs: ModelShape) -> bool:
    first, second = (rotation_of(shape.rope_base, shape.head_dim, shape.rope_scaling) for shape in (ours, theirs))
    alike = torch.allclose(first.frequencies_f, second.frequencies_f, rtol=1e-9, atol=0)
    return alike and math.isclose(first.magnitude, second.magnitude, rel_tol=1e-9)
