"""Any text at all comes back byte for byte, and never as a control id."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.text.tokenizers import SentencepieceTokenizer

CORPUS = [
    "the cat sat on the mat and the dog lay on the rug",
    "def add(a, b):\n    return a + b\n\n",
    "<s> and </s> are words here, <unk> too; \u2585 and tabs\t\tas well",
    "\u4f60\u597d\u4e16\u754c na\u00efve caf\u00e9",
] * 30

PARTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=30),
    st.text("\u2581\u2585 \x00\n\r\t\u00a0\u3000", max_size=8),
    st.sampled_from(["<s>", "</s>", "<unk>", "<pad>", "<0x00>", "<0xE2>", "the ", "cat sat", "def add(a, b):\n    "]),
)
TEXTS = st.lists(PARTS, max_size=12).map("".join)


@lru_cache
def tokenizer_of(model_type: str) -> SentencepieceTokenizer:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=340,
        model_type=model_type,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        byte_fallback=True,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        pad_id=3,
    )
    return SentencepieceTokenizer(model.getvalue())


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@given(text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_round_trip_at_every_cut(model_type: str, text: str) -> None:
    tokenizer = tokenizer_of(model_type)
    assert tokenizer.lossless
    ids_T, num_bytes_T = tokenizer.encode(text)
    data = text.encode()
    assert tokenizer.decode_bytes(ids_T) == data
    assert num_bytes_T.sum() == len(data)
    assert not set(ids_T.tolist()) & {0, 1, 2, 3}
    stops_T = np.cumsum(num_bytes_T)
    for place in range(len(ids_T)):
        assert tokenizer.decode_bytes(ids_T[place:]) == data[stops_T[place] - num_bytes_T[place] :]
