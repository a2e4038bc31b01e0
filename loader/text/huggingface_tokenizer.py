"""A ``tokenizer.json`` of the Hugging Face library ``tokenizers``, whatever model is in it.

What is around the model is changed before it is loaded, so that a text gives the ids of its own bytes and no others:
no truncation, no padding, no template that adds tokens, no dropout. Every added token that is special, or written like
a control token, is special from then on and ``encode_special_tokens`` is set, with which the library takes special
tokens in text for ordinary text. Added tokens of other kinds (names, runs of spaces) go on matching.

The regular expressions of the file run in Oniguruma, which gives up after ten million steps of one match; a text at
which it does is encoded in halves. ``tokenizer_probe`` says what that leaves open.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError, DamageError
from .encoded import EncodedParts, looks_like_control, parts_of_lists
from .tokenizer_base import Tokenizer, TokenizerPolicy, is_library_failure

__all__ = ["HuggingFaceTokenizer", "byte_letters", "plain_definition"]

_MARK = "\u2581"  # in which pieces of sentencepiece's kind write a space
_MAX_ID = 1 << 24


def byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte (GPT-2's table: printable ones are themselves)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def plain_definition(model: bytes, names: Sequence[str | None] = ()) -> tuple[dict[str, Any], dict[str, int]]:
    """The definition to load, and the control tokens with their ids.

    Args:
        model: bytes of a ``tokenizer.json``.
        names: further tokens of the vocabulary that are control tokens.

    Raises:
        DamageError: it is none.
    """
    try:
        plain = json.loads(model)
        added = [dict(token) for token in plain.get("added_tokens") or ()]
        vocabulary = _vocabulary(plain)
        special = {
            str(token["content"]): int(token["id"])
            for token in added
            if token.get("special") or looks_like_control(token["content"])
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        message = f"this is no tokenizer.json: {type(error).__name__}: {str(error)[:200]}"
        raise DamageError("TR-TOKENIZER-MODEL", message, expected="JSON") from error
    special |= {name: vocabulary[name] for name in names if name is not None and name in vocabulary}
    for token in added:
        token["special"] = token["content"] in special
    plain |= {"added_tokens": added, "truncation": None, "padding": None, "post_processor": None}
    if isinstance(plain.get("model"), dict) and plain["model"].get("dropout"):
        plain["model"]["dropout"] = None
    return plain, special


def _vocabulary(plain: Mapping[str, Any]) -> dict[str, int]:
    """The model's own tokens, without the added ones."""
    vocabulary = plain["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return {str(token): int(i) for token, i in vocabulary.items()}
    return {str(token): i for i, (token, _) in enumerate(vocabulary)}


def _check_ids(vocabulary: Mapping[str, int], added: Sequence[Mapping[str, Any]]) -> None:
    """Every id is one token's, and the library, which numbers added tokens itself, gave each the id in the file."""
    if len(set(vocabulary.values())) < len(vocabulary):
        seen: dict[int, str] = {}
        twice = next((seen[i], token) for token, i in sorted(vocabulary.items()) if seen.setdefault(i, token) != token)
        message = f"the tokens {twice[0][:60]!r} and {twice[1][:60]!r} have one id"
        raise DamageError("TR-TOKENIZER-MODEL", message, expected="an id for each token")
    for token in added:
        name, said = token["content"], token["id"]
        if name in vocabulary and vocabulary[name] != said:
            message = (
                f"the added token {name[:60]!r} has id {said} in the file, and the library gives {vocabulary[name]}"
            )
            raise DamageError(
                "TR-TOKENIZER-MODEL",
                message,
                expected="the token's id in the model, or ids that go on from the model's, without holes, in order",
            )


def _unknown_id(model: Mapping[str, Any], vocabulary: Mapping[str, int]) -> int | None:
    place, tokens = model.get("unk_id"), model["vocab"]
    if isinstance(tokens, list):  # Unigram: a place in the list
        return place if isinstance(place, int) and 0 <= place < len(tokens) else None
    name = model.get("unk_token")
    return vocabulary.get(name) if isinstance(name, str) else None


class HuggingFaceTokenizer(Tokenizer):
    """A ``tokenizer.json``."""

    kind = "huggingface"

    def __init__(self, model: bytes, policy: TokenizerPolicy | None = None) -> None:
        """Load a serialised tokenizer.

        Raises:
            DamageError: the library cannot read it.
            ConfigError: a border token of the policy is none of the model's.
        """
        import tokenizers

        policy = policy or TokenizerPolicy()
        plain, special = plain_definition(model, (policy.bos, policy.eos, policy.pad))
        try:
            self._library = tokenizers.Tokenizer.from_str(json.dumps(plain))
            self._library.encode_special_tokens = True
            vocabulary: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        except BaseException as error:  # it raises nothing finer than Exception, and panics
            if not is_library_failure(error):
                raise
            message = f"tokenizers cannot read the model: {str(error)[:200]}"
            raise DamageError("TR-TOKENIZER-MODEL", message, expected="a tokenizer.json") from error
        _check_ids(vocabulary, plain["added_tokens"])
        around = json.dumps([plain.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")], ensure_ascii=False)
        self.byte_level = '"ByteLevel"' in around
        self._marks_spaces = _MARK in around or '"Metaspace"' in around
        self._falls_back = bool(plain["model"].get("byte_fallback"))
        if self._marks_spaces and not self.byte_level:
            self._reserved = _MARK.encode()
        special = {name: vocabulary[name] for name in special if name in vocabulary}
        self._unknown_id = _unknown_id(plain["model"], vocabulary)
        self._vocabulary = vocabulary
        added = {str(token["content"]) for token in plain["added_tokens"]}
        super().__init__(self._spell(vocabulary, added, special), special, model, policy)

    def _spell(self, vocabulary: Mapping[str, int], added: set[str], special: Mapping[str, int]) -> list[bytes]:
        """Bytes that each id stands for."""
        size = max(vocabulary.values(), default=-1) + 1
        if not 0 < size <= _MAX_ID:
            raise DamageError("TR-TOKENIZER-MODEL", f"{size} ids", expected=f"from 1 to {_MAX_ID}")
        byte_of = {letter: byte for byte, letter in enumerate(byte_letters())} if self.byte_level else {}
        byte_names = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)} if self._falls_back else {}
        pieces = [b""] * size
        for token, i in vocabulary.items():
            if token in special or i == self._unknown_id:
                continue
            if token in added:
                pieces[i] = token.encode("utf-8", "surrogatepass")
            elif token in byte_names:
                pieces[i] = byte_names[token]
            elif byte_of:
                known = [byte_of.get(letter) for letter in token]
                pieces[i] = bytes(byte for byte in known if byte is not None) if None not in known else token.encode()
            else:
                spelled = token.replace(_MARK, " ") if self._marks_spaces else token
                pieces[i] = spelled.encode("utf-8", "surrogatepass")
        return pieces

    def raw_encode(self, parts: Sequence[str]) -> EncodedParts:
        """See ``Tokenizer.raw_encode``. The library makes a Python number of each id: there is no other way out."""
        encodings = self._library.encode_batch_fast(list(parts), add_special_tokens=False)
        return parts_of_lists([encoding.ids for encoding in encodings])

    def _encode_by_offsets(self, data: bytes) -> tuple[list[int], list[int]]:
        encoding = self._library.encode(data.decode(), add_special_tokens=False)
        points_B = np.frombuffer(data, np.uint8)
        starts = [*np.flatnonzero((points_B & 0xC0) != 0x80).tolist(), len(data)]
        return list(encoding.ids), [starts[stop] for _, stop in encoding.offsets]

    def _find_byte_ids(self) -> list[int] | None:
        names = byte_letters() if self.byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
        found = [self._vocabulary.get(name) for name in names]
        known = [i for i in found if i is not None]
        for border in ("bos", "eos", "pad"):
            name = getattr(self.policy, border)
            if name in names:
                message = f"{name!r} is the token of a byte, which text needs"
                raise ConfigError("TR-TOKENIZER-BORDER", message, f"tokenizer.{border}", "a control token")
        usable = len(known) == 256 and (self.byte_level or self._falls_back)
        return known if usable and not set(known) & set(self.special.values()) else None
