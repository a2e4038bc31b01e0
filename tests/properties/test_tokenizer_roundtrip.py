"""Any text at all: its bytes are shared out among its tokens, come back from a lossless kind, and never give a control
id."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_models import sentencepiece_model, small_model, small_policy

from loader.text.tokenizers import TOKENIZERS, Tokenizer

PARTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.text("\u2581\u2585 \x00\n\r\t\u00a0\u3000", max_size=8),
    st.sampled_from(["<s>", "</s>", "<unk>", "<pad>", "<0x00>", "<0xE2>", "<|end|>", "[INST]", "Cat"]),
    st.sampled_from(["the ", "cat sat", "def add(a, b):\n    "]),
)
TEXTS = st.lists(PARTS, max_size=12).map("".join)


MODELS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "bpe": ("sentencepiece", lambda: sentencepiece_model("bpe")),
    "unigram": ("sentencepiece", lambda: sentencepiece_model("unigram")),
    "no byte fallback": ("sentencepiece", lambda: sentencepiece_model("unigram", byte_fallback=False)),
    "normalised": ("sentencepiece", lambda: sentencepiece_model("bpe", lossless=False)),
    "byte level": ("huggingface", lambda: small_model("huggingface")),
    "symbols": ("huggingface", lambda: small_model("huggingface", True, ("<|end|>", "the ", "[INST]"))),
    "lower case": ("huggingface", lambda: small_model("huggingface", False)),
    "ranks": ("tiktoken", lambda: small_model("tiktoken")),
}
LOSSY = {"no byte fallback", "normalised", "lower case"}


@lru_cache
def tokenizer_of(name: str) -> Tokenizer:
    kind, model = MODELS[name]
    return TOKENIZERS[kind](model(), small_policy(kind))


@pytest.mark.parametrize("name", MODELS)
@given(texts=st.lists(TEXTS, max_size=4))
@settings(max_examples=60, deadline=None)
def test_bytes_of_any_texts_are_shared_out_and_come_back(name: str, texts: list[str]) -> None:
    tokenizer = tokenizer_of(name)
    assert tokenizer.lossless == (name not in LOSSY)
    data = [text.encode() for text in texts]
    batch = tokenizer.encode_batch(data)
    assert batch.start_N[0] == 0
    assert batch.start_N[-1] == len(batch.ids_T) == len(batch.num_bytes_T)
    assert not set(batch.ids_T.tolist()) & set(tokenizer.special.values())
    assert (batch.num_bytes_T >= 0).all()
    for n, one in enumerate(data):
        ids_T = batch.ids_T[batch.start_N[n] : batch.start_N[n + 1]]
        num_bytes_T = batch.num_bytes_T[batch.start_N[n] : batch.start_N[n + 1]]
        assert num_bytes_T.sum() == len(one)
        assert (len(ids_T) == 0) == (one == b"")
        if tokenizer.lossless:
            stops_T = np.cumsum(num_bytes_T)
            for place in range(len(ids_T)):
                assert tokenizer.decode_bytes(ids_T[place:]) == one[stops_T[place] - num_bytes_T[place] :]
