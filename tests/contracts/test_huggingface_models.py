"""Models to and from transformers: the same logits in both directions, and every bit back after a round trip."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers  # lazy: its models are imported when they are first named
from safetensors.torch import load_file, save_file
from torch import Tensor

from loader.errors import ConfigError, DamageError, RefusedError
from train.attention import ATTENTION
from train.huggingface.files import HfFolder, plan_pieces, write_pieces
from train.huggingface.layout import disagreements, hf_config, hf_names, shape_of_hf, unexpressed
from train.huggingface.weights import export_tensors, import_tensors, load_folder
from train.inputs import ModelInputs
from train.model import Decoder, ModelShape
from train.model_config import DropoutConfig, MupConfig, RopeScaling
from train.precision import PRECISIONS

B, T, V = 3, 40, 99
PLAIN = ModelShape(vocab_size=V, dim=32, layers=2, heads=4, kv_heads=4, ffn=48, seq_len=T, norm_eps=1e-5)
BORDERS: dict[str, int | None] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
ROWS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gqa": {"kv_heads": 2},
    "tied": {"tied": True},
    "head_dim": {"head_width": 16},
    "qwen3": {"qk_norm": True},
    "qwen3, tied, gqa, head_dim": {"qk_norm": True, "tied": True, "kv_heads": 2, "head_width": 16},
    "rope_base": {"rope_base": 500000.0},
    "linear": {"rope_scaling": RopeScaling("linear", 2.0)},
    "ntk": {"rope_scaling": RopeScaling("ntk", 4.0)},
    "llama3": {"rope_scaling": RopeScaling("llama3", 8.0, 16)},
    "yarn": {"rope_scaling": RopeScaling("yarn", 4.0, 16, beta_fast=4.0)},
    "yarn, qwen3": {"rope_scaling": RopeScaling("yarn", 2.0, 16, truncate=False), "qk_norm": True},
    "mup": {"mup": MupConfig(base_dim=8, base_head_dim=2)},
    "mup, qwen3, tied": {"mup": MupConfig(base_dim=8, base_head_dim=2), "qk_norm": True, "tied": True},
    "mup, rounded": {"mup": MupConfig(base_dim=24, base_head_dim=6)},
    "training only": {"z_loss": 1e-4, "dropout": DropoutConfig(residual=0.2, embedding=0.1)},
}


def build(shape: ModelShape, seed: int = 1) -> Decoder:
    model = Decoder(shape, ATTENTION["sdpa_mask"], PRECISIONS["fp32"]).initialize(seed).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains of 1 would hide a gain in another's place
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
            if parameter.ndim == 1:
                parameter.mul_(1 + 0.3 * noise)
    return model


def parameters(model: Decoder) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def tokens() -> Tensor:
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(7))


def logits(model: Decoder) -> Tensor:
    """Of whole samples."""
    layout = model.backend.prepare(np.zeros((B, T), int), torch.device("cpu"), torch.float32)
    inputs = ModelInputs(tokens(), tokens(), torch.arange(T).expand(B, T), layout)
    with torch.no_grad():
        assert model.head is not None
        return model.shape.logit_scale * (model.hidden(inputs) @ model.head.weight.T)


def write(folder: Path, model: Decoder, most_bytes: int = 1 << 30) -> Path:
    folder.mkdir()
    own = parameters(model)
    pieces = plan_pieces({name: own[name].nbytes for name in hf_names(model.shape)}, most_bytes)

    def read(names: Any) -> dict[str, Tensor]:
        return export_tensors({name: own[name] for name in names}, model.shape, torch.float32)

    write_pieces(folder, pieces, read, hf_names(model.shape))
    (folder / "config.json").write_text(json.dumps(hf_config(model.shape, "float32", BORDERS)))
    return folder


def stock(folder: Path) -> torch.nn.Module:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", use_safetensors=True, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def stock_logits(folder: Path) -> Tensor:
    with torch.no_grad():
        return stock(folder)(tokens()).logits


def loaded(folder: Path, shape: ModelShape) -> Decoder:
    model = build(shape, seed=2)
    load_folder(folder, shape, model.named_parameters())
    return model


@pytest.mark.parametrize("row", list(ROWS))
def test_transformers_computes_the_same_logits(row: str, tmp_path: Path) -> None:
    model = build(dataclasses.replace(PLAIN, **ROWS[row]))
    mine = logits(model)
    theirs = stock_logits(write(tmp_path / "hf", model))
    assert mine.std() > 0.05
    torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", list(ROWS))
def test_out_and_in_again_keeps_every_bit(row: str, tmp_path: Path) -> None:
    """Where a multiplier of muP is no power of two it is rounded on the way, which the export says."""
    shape = dataclasses.replace(PLAIN, **ROWS[row])
    model = build(shape)
    again = parameters(loaded(write(tmp_path / "hf", model), shape))
    rounded = any("rounded" in note for note in unexpressed(shape))
    assert rounded == (row == "mup, rounded")
    for name, parameter in parameters(model).items():
        if rounded:
            torch.testing.assert_close(again[name], parameter, rtol=2e-7, atol=0)
        else:
            assert torch.equal(again[name], parameter), name


def stock_config(family: str, **options: Any) -> transformers.LlamaConfig | transformers.Qwen3Config:
    sizes = {
        "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2,
    }  # fmt: skip
    return (transformers.LlamaConfig if family == "llama" else transformers.Qwen3Config)(**{**sizes, **options})


STOCK: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama 3.1": (
        "llama",
        {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 16, "rope_theta": 1000000.0}),
    "qwen3, yarn": (
        "qwen3",
        {
            "head_dim": 16, "tie_word_embeddings": True,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        },
    ),
}  # fmt: skip


@pytest.fixture(params=list(STOCK))
def made_by_transformers(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, options = STOCK[request.param]
    torch.manual_seed(3)
    model = (transformers.LlamaForCausalLM if family == "llama" else transformers.Qwen3ForCausalLM)(
        stock_config(family, **options)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.mul_(1 + 0.3 * torch.randn(parameter.shape))
    model.save_pretrained(tmp_path / "stock", safe_serialization=True, max_shard_size="20kB")
    return tmp_path / "stock"


def test_weights_of_transformers_give_its_logits(made_by_transformers: Path) -> None:
    config = json.loads((made_by_transformers / "config.json").read_text())
    shape = shape_of_hf(config)
    model = loaded(made_by_transformers, shape)
    torch.testing.assert_close(logits(model), stock_logits(made_by_transformers), rtol=1e-5, atol=1e-5)


def test_in_and_out_again_keeps_every_bit(made_by_transformers: Path, tmp_path: Path) -> None:
    shape = shape_of_hf(json.loads((made_by_transformers / "config.json").read_text()))
    again = write(tmp_path / "again", loaded(made_by_transformers, shape))
    with HfFolder(made_by_transformers) as first, HfFolder(again) as second:
        assert first.names == second.names
        for name in first.names:
            assert torch.equal(first.read(name), second.read(name)), name
    before, after = (
        transformers.AutoModelForCausalLM.from_pretrained(folder).config for folder in (made_by_transformers, again)
    )
    for key in ("rope_theta", "rms_norm_eps", "tie_word_embeddings", "num_key_value_heads", "vocab_size", "head_dim"):
        assert getattr(before, key) == getattr(after, key), key
    assert (before.rope_scaling or {}).items() <= (after.rope_scaling or {}).items()


def test_pieces_and_their_index(tmp_path: Path) -> None:
    model = build(dataclasses.replace(PLAIN, qk_norm=True))
    folder = write(tmp_path / "hf", model, most_bytes=16_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 3
    assert files == sorted(set(index["weight_map"].values()))
    assert all(name in load_file(folder / file) for name, file in index["weight_map"].items())
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in parameters(model).values())
    torch.testing.assert_close(stock_logits(folder), logits(model), rtol=1e-5, atol=1e-5)


def test_bfloat16_weights_are_rounded_once(tmp_path: Path) -> None:
    model = build(PLAIN)
    out = export_tensors(parameters(model), PLAIN, torch.bfloat16)
    for name, tensor in import_tensors(out, PLAIN).items():
        assert torch.equal(tensor, parameters(model)[name].bfloat16().float()), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"hidden_size": None}, "missing or of another type"),
    ],
)
def test_what_this_model_does_not_compute_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shape_of_hf({**hf_config(PLAIN, "float32", BORDERS), **change})


def test_both_spellings_of_rope_are_read() -> None:
    """transformers 5 writes rope_parameters, old models ``type``."""
    config = hf_config(PLAIN, "float32", BORDERS)
    del config["rope_theta"], config["rope_scaling"]
    new = {**config, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    old = {**config, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert shape_of_hf(new) == shape_of_hf(old)
    assert shape_of_hf(old).rope_scaling == RopeScaling("linear", 2.0)
    assert shape_of_hf({**config, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}).rope_scaling is None


@pytest.mark.parametrize(
    "change", [{"dim": 64}, {"layers": 3}, {"kv_heads": 2}, {"tied": True}, {"qk_norm": True}, {"rope_base": 5e5}]
)
def test_another_model_is_refused_by_its_key(change: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "hf", build(PLAIN))
    shape = dataclasses.replace(PLAIN, **change)
    with pytest.raises(RefusedError, match=f"model.{next(iter(change))}"):
        load_folder(folder, shape, Decoder(shape, ATTENTION["sdpa_mask"], PRECISIONS["fp32"]).named_parameters())


def test_scaling_may_be_added_but_not_dropped() -> None:
    scaled = dataclasses.replace(PLAIN, rope_scaling=RopeScaling("yarn", 4.0, 16))
    problems, notes = disagreements(scaled, PLAIN)
    assert problems == []
    assert "rope_scaling" in notes[0]
    problems, notes = disagreements(PLAIN, scaled)
    assert "rope_scaling" in problems[0]


def test_a_padded_vocabulary_is_cut_and_a_smaller_one_refused(tmp_path: Path) -> None:
    model = build(PLAIN)
    folder = write(tmp_path / "hf", model)
    smaller = dataclasses.replace(PLAIN, vocab_size=90)
    cut = build(smaller, seed=2)
    facts = load_folder(folder, smaller, cut.named_parameters())
    assert torch.equal(parameters(cut)["embedding.weight"], parameters(model)["embedding.weight"][:90])
    assert torch.equal(parameters(cut)["head.weight"], parameters(model)["head.weight"][:90])
    assert "from 90 to 99" in facts["notes"][0]
    with pytest.raises(RefusedError, match="100 tokens"):
        load_folder(folder, dataclasses.replace(PLAIN, vocab_size=100), [])


def _damage(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    if how == "missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif how == "extra":
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    elif how == "shape":
        tensors["model.norm.weight"] = torch.zeros(31)
    save_file(tensors, weights)
    if how == "torn":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "pickled":
        weights.rename(folder / "pytorch_model.bin")
    elif how == "json":
        (folder / "config.json").write_text("[" * 100_000)
    elif how == "climbing":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    elif how == "gone":
        (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("how", "error", "code"),
    [
        ("missing", RefusedError, "TR-HF-TENSORS"),
        ("extra", RefusedError, "TR-HF-TENSORS"),
        ("shape", RefusedError, "TR-HF-TENSORS"),
        ("torn", DamageError, "TR-HF-DAMAGED"),
        ("json", DamageError, "TR-HF-DAMAGED"),
        ("climbing", DamageError, None),
        ("pickled", ConfigError, "TR-HF-FOLDER"),
        ("gone", ConfigError, "TR-HF-FOLDER"),
    ],
)
def test_damage_is_named(how: str, error: type[Exception], code: str | None, tmp_path: Path) -> None:
    folder = write(tmp_path / "hf", build(PLAIN))
    _damage(folder, how)
    with pytest.raises(error) as caught:
        load_folder(folder, PLAIN, build(PLAIN).named_parameters())
    assert code is None or caught.value.code == code  # type: ignore[attr-defined]
    assert str(folder) in str(caught.value)


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, build(PLAIN, seed)) for name, seed in (("a", 1), ("b", 2)))
    again = write(tmp_path / "c", build(PLAIN))
    found = [load_folder(folder, PLAIN, [])["digest"] for folder in (first, second, again)]
    assert found[0] == found[2] != found[1]


def test_what_cannot_be_said_is_said() -> None:
    given = {"z_loss": 1e-4, "dropout": DropoutConfig(residual=0.1), "mup": MupConfig(), **ROWS["ntk"]}
    words = " ".join(unexpressed(dataclasses.replace(PLAIN, **given)))
    assert all(word in words for word in ("z_loss", "dropout", "muP", "ntk"))
    assert unexpressed(PLAIN) == []
