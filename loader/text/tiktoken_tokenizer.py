"""Byte-level BPE from a file of ranks, as ``tiktoken`` reads it, or from a tekken JSON file.

Every byte is a token and the library never sees a special token in a text, so this kind is always lossless; a text
that the pattern does not cover whole comes back by byte tokens.

``PATTERNS`` holds the patterns of well-known vocabularies, as their makers published them. A pattern of somebody else
runs in ``fancy-regex``, which gives up after a million steps of backtracking; a text at which it does is encoded in
halves.

Legend: V vocabulary.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError, DamageError
from .encoded import EncodedParts, joined_parts, parts_of_lists
from .tokenizer_base import Tokenizer, TokenizerPolicy, is_library_failure

__all__ = ["PATTERNS", "Ranks", "TiktokenTokenizer", "read_ranks"]

_MAX_ID = 1 << 24
_CL100K_LIKE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_O200K_REST = r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

PATTERNS: Mapping[str, str] = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": _CL100K_LIKE % r"\p{N}{1,3}",
    "llama3": _CL100K_LIKE % r"\p{N}{1,3}",
    "qwen": _CL100K_LIKE % r"\p{N}",
    "qwen3_5": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "o200k": _O200K_WORDS % (_ENDINGS, _ENDINGS) + _O200K_REST % r"\p{N}{1,3}",
    "tekken": _O200K_WORDS % ("", "") + _O200K_REST % r"\p{N}",
}
"""Name -> pattern, in the syntax that tiktoken and Oniguruma share."""


@dataclass(frozen=True)
class Ranks:
    """A vocabulary of ranks: ``ids`` of the tokens by their bytes (a lower id merges first), ``special`` control
    tokens, and the ``pattern`` that the file itself names, if it does."""

    ids: Mapping[bytes, int]
    special: Mapping[str, int]
    pattern: str | None


def read_ranks(model: bytes) -> Ranks:
    """Read a file of ranks: lines of base64 and a number, or tekken JSON.

    Raises:
        DamageError: it is neither, or lacks one of the 256 single bytes.
    """
    try:
        ranks = _read_tekken(model) if model[:1] == b"{" else _read_lines(model)
    except (ValueError, TypeError, KeyError, OverflowError, binascii.Error, RecursionError) as error:
        raise DamageError(
            "TR-TOKENIZER-MODEL",
            f"this is no file of ranks: {type(error).__name__}: {str(error)[:200]}",
            expected="lines of base64 and rank, or tekken JSON",
        ) from error
    used = sorted([*ranks.ids.values(), *ranks.special.values()])
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks.ids]
    if missing or used[0] < 0 or used[-1] >= _MAX_ID or len(set(used)) < len(used):
        wrong = f"{len(missing)} single bytes are no tokens" if missing else "ids are used twice or out of range"
        raise DamageError("TR-TOKENIZER-MODEL", wrong, expected=f"256 byte tokens, ids below {_MAX_ID}")
    return ranks


def _read_lines(model: bytes) -> Ranks:
    ids: dict[bytes, int] = {}
    for line in model.splitlines():
        if line.strip():
            encoded, rank = line.split()
            token = base64.b64decode(encoded, validate=True)
            if token in ids or not rank.isdigit():
                raise ValueError(f"the token {token[:60]!r} is there twice, or its rank {rank[:60]!r} is no number")
            ids[token] = int(rank)
    return Ranks(ids, {}, None)


def _read_tekken(model: bytes) -> Ranks:
    plain = json.loads(model)
    config = plain["config"]
    num_special = int(config["default_num_special_tokens"])
    size = int(config["default_vocab_size"]) - num_special
    tokens = sorted(plain["vocab"], key=lambda token: int(token["rank"]))[: max(size, 0)]
    ids = {base64.b64decode(token["token_bytes"], validate=True): int(token["rank"]) + num_special for token in tokens}
    named = plain.get("special_tokens") or [
        {"rank": rank, "token_str": name} for rank, name in enumerate(("<unk>", "<s>", "</s>"))
    ]
    special = {str(token["token_str"]): int(token["rank"]) for token in named}
    if len(ids) < len(tokens) or len(special) < len(named):
        raise ValueError("a token is there twice")
    if not isinstance(config["pattern"], str):
        raise TypeError("its pattern is no text")
    return Ranks(ids, special, config["pattern"])


class TiktokenTokenizer(Tokenizer):
    """A file of ranks, split by a pattern."""

    kind = "tiktoken"

    def __init__(self, model: bytes, policy: TokenizerPolicy | None = None) -> None:
        """Load ranks.

        Raises:
            DamageError: they cannot be read.
            ConfigError: the pattern is none, a special token's id is taken, or a border token is no special token.
        """
        import tiktoken

        policy = policy or TokenizerPolicy()
        ranks = read_ranks(model)
        special = {**ranks.special, **policy.special_tokens}
        self.ids = dict(ranks.ids)
        taken = set(self.ids.values())
        wrong = [name for name, i in special.items() if i in taken or not 0 <= i < _MAX_ID]
        if wrong or len(set(special.values())) < len(special):
            raise ConfigError(
                "TR-TOKENIZER-SPECIAL",
                f"ids of special tokens are taken: {wrong or 'one of them twice'}",
                "tokenizer.tiktoken.special_tokens",
                f"from {max(taken) + 1} on, each id once",
            )
        named = policy.pattern if policy.pattern is not None else ranks.pattern or "cl100k"
        self.pattern = PATTERNS.get(named, named)
        try:
            self._library = tiktoken.Encoding(
                "tokenreel", pat_str=self.pattern, mergeable_ranks=self.ids, special_tokens=special
            )
        except BaseException as error:  # it raises nothing finer than Exception, and panics
            if not is_library_failure(error):
                raise
            raise ConfigError(
                "TR-TOKENIZER-PATTERN",
                f"the pattern is no regular expression: {str(error)[:200]}",
                "tokenizer.tiktoken.pattern",
                f"one of {', '.join(PATTERNS)}, or a pattern",
            ) from error
        pieces = [b""] * (max(*taken, *special.values()) + 1)
        for token, i in self.ids.items():
            pieces[i] = token
        super().__init__(pieces, special, model, policy)
        self._require_cover()

    def _require_cover(self) -> None:
        if not self.lossless:
            raise ConfigError(
                "TR-TOKENIZER-PATTERN",
                "the pattern leaves out parts of plain text",
                "tokenizer.tiktoken.pattern",
                f"one of {', '.join(PATTERNS)}, or a pattern that matches every character",
            )

    def raw_encode(self, parts: Sequence[str]) -> EncodedParts:
        """See ``Tokenizer.raw_encode``."""
        library = self._library
        if hasattr(library, "encode_to_numpy"):  # without a Python number for each token
            arrays = [library.encode_to_numpy(part, disallowed_special=()) for part in parts]
            return joined_parts([array.astype(np.int32) for array in arrays])
        return parts_of_lists([library.encode_ordinary(part) for part in parts])

    def _find_byte_ids(self) -> list[int] | None:
        return [self.ids[bytes([byte])] for byte in range(256)]
