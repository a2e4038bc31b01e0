"""Tokenizers of every kind as a ``tokenizer.json`` that the fast backends can load.

Byte pair encoding by ranks (tiktoken) and by scores (sentencepiece) merges, again and again, the pair whose token comes
first. What happens inside a token's own text does not depend on what is around it as long as no merge crosses its
borders, and none has where the token arises; so each token arises from the one pair that encoding its own text ends
with. All pairs are listed here in the order of their tokens: those that cannot arise do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from .huggingface_tokenizer import HuggingFaceTokenizer, byte_letters, plain_definition
from .sentencepiece_symbols import plain_bpe_pieces
from .sentencepiece_tokenizer import SentencepieceTokenizer
from .tiktoken_tokenizer import TiktokenTokenizer
from .tokenizer_base import Tokenizer

__all__ = ["definition_of_huggingface", "definition_of_pieces", "definition_of_ranks", "id_shift"]

_NO_BPE_OPTIONS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
_NORMAL = 1


def definition_of_huggingface(tokenizer: Tokenizer) -> str:
    """A byte-level BPE, without what would add, change or forbid tokens.

    Raises:
        ValueError: it is none.
    """
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    policy = tokenizer.policy
    plain, _ = plain_definition(tokenizer.model, (policy.bos, policy.eos, policy.pad))
    if plain["model"].get("type", "BPE") != "BPE" or not tokenizer.byte_level:
        raise ValueError("not a byte-level BPE")
    return json.dumps(plain, ensure_ascii=False)


def id_shift(tokenizer: Tokenizer) -> int:
    """What ``definition_of_ranks`` takes off each id: tekken puts its control tokens first, fastokens wants ids from 0
    on."""
    assert isinstance(tokenizer, TiktokenTokenizer)
    return min(tokenizer.ids.values())


def definition_of_ranks(tokenizer: Tokenizer) -> str:
    """tiktoken ranks: every way to halve a token is a merge, in the order of the tokens' ranks, and a piece that is a
    token is that token (some have no merge that leads to them)."""
    assert isinstance(tokenizer, TiktokenTokenizer)
    shift = id_shift(tokenizer)
    letters = dict(enumerate(byte_letters()))
    spelled = {token.decode("latin-1").translate(letters): i - shift for token, i in tokenizer.ids.items()}
    split = {"type": "Split", "pattern": {"Regex": tokenizer.pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    merges = _merges(sorted(spelled, key=spelled.__getitem__), spelled)
    model = {"ignore_merges": True, "byte_fallback": False, "fuse_unk": False, "vocab": spelled, "merges": merges}
    return _definition(model, {"type": "Sequence", "pretokenizers": [split, level]})


def definition_of_pieces(tokenizer: Tokenizer) -> str:
    """A sentencepiece BPE, for text in which U+2581 stands for spaces already, the one put in front included: there is
    no word to be found first, the merges alone decide.

    Raises:
        ValueError: the model is another one, or not only that.
    """
    assert isinstance(tokenizer, SentencepieceTokenizer)
    pieces = plain_bpe_pieces(tokenizer.model)
    score = {piece.text: piece.score for piece in pieces if piece.kind == _NORMAL}
    merges = _merges(sorted(score, key=score.__getitem__, reverse=True), score)
    vocabulary = {piece.text: i for i, piece in enumerate(pieces)}
    unknown = next((piece.text for piece in pieces if piece.kind == 2), None)
    model = {"ignore_merges": False, "byte_fallback": True, "fuse_unk": True, "vocab": vocabulary, "merges": merges}
    return _definition({**model, "unk_token": unknown}, None)


def _merges(tokens: Sequence[str], known: Mapping[str, object]) -> list[str]:
    """Every way to halve each token into known ones."""
    return [
        f"{token[:i]} {token[i:]}"
        for token in tokens
        for i in range(1, len(token))
        if token[:i] in known and token[i:] in known
    ]


def _definition(model: Mapping[str, object], pre_tokenizer: Mapping[str, object] | None) -> str:
    parts = ("truncation", "padding", "normalizer", "post_processor", "decoder")
    plain: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        **dict.fromkeys(parts),
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", **dict.fromkeys(_NO_BPE_OPTIONS), **model},
    }
    return json.dumps(plain, ensure_ascii=False)
