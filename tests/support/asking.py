"""A small model that can read: a decoder over a real byte tokenizer, and brute force for what it says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from support.tokenizer_models import small_tokenizer

from loader.stream.own_texts import lay_out
from loader.text.tokenizer_base import Tokenizer
from train.attention import ATTENTION
from train.evaluate.score import Reader
from train.inputs import InputOptions, to_inputs
from train.model import Decoder, ModelShape
from train.precision import PRECISIONS

__all__ = ["SEQ_LEN", "brute_logits", "model", "reader", "tokenizer"]

SEQ_LEN = 64


@lru_cache
def tokenizer() -> Tokenizer:
    """A few hundred tokens, with BOS and EOS."""
    return small_tokenizer("huggingface")


def model(seed: int = 3, backend: str = "sdpa_mask") -> Decoder:
    """Freshly initialised, in fp32."""
    shape = ModelShape(
        vocab_size=tokenizer().vocab_size, dim=32, layers=2, heads=4, kv_heads=2, ffn=48, seq_len=SEQ_LEN
    )
    return Decoder(shape, ATTENTION[backend], PRECISIONS["fp32"]).initialize(seed)


def reader(rows: int = 4, backend: str = "sdpa_mask") -> Reader:
    """How that model reads."""
    return Reader(InputOptions(torch.device("cpu"), ATTENTION[backend], torch.float32), rows, SEQ_LEN, 0)


@torch.no_grad()
def brute_logits(decoder: Decoder, tokens: Sequence[int]) -> torch.Tensor:
    """(n, V) float64: what the model says behind each token of a text that is read alone."""
    batch = lay_out([[np.array(tokens, np.int32)]], len(tokens), 0)
    options = InputOptions(torch.device("cpu"), decoder.backend, torch.float32)
    hidden = decoder.hidden(to_inputs(batch, options))
    assert decoder.head is not None
    return hidden[0].double() @ decoder.head.weight.double().T
