"""What all tokenizer kinds have in common: from texts to ids that stand for exactly the bytes of those texts.

A batch of texts is cut into *parts*, a library (the reference one of the kind, or a fast backend that gives the same
ids) encodes all parts at once, and what came back is checked: the bytes of the tokens, joined, must be the bytes of
the parts. A part that fails is encoded again in smaller and smaller halves, and where nothing helps as byte tokens.
The rules by which parts are cut belong to the definition of every kind, whatever library encodes them:

* behind the first character of each symbol that text must not yield (declared by the model, written like a control
  token, and matched by the library wherever it stands);
* above 256 KiB, in front of a space that follows a non-space where one is near, else between code points. That bounds
  memory, and what a slow regular expression can cost; models that split at white space give the ids of the whole.

Legend: N texts, P parts, T tokens of all parts or texts, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamageError, JobError
from .control_tokens import border_id, control_id
from .encoded import (
    SLACK_BYTES,
    Compare,
    EncodedBatch,
    EncodedParts,
    RawEncoder,
    Spelling,
    code_point_border,
    cut_parts,
    find_inexact,
    joined_parts,
)

__all__ = ["Tokenizer", "TokenizerPolicy", "is_library_failure"]

_EXACT_PROBES = (
    "a",
    " a",
    "  a  b ",
    "\ufb01 \uff21 e\u0301\n\t",
    " ",
    "\n\n",
    "\u4f60\u597d \U0001f600",
    "\u00a0x\u3000",
)
_PREFIX_PROBES = ("a", " a", "a  b", "a\n\nb", "a b \t")
_PREFIXES = (b"", b" ")


@dataclass(frozen=True)
class TokenizerPolicy:
    """What a tokenizer is told beside its model.

    Attributes:
        add_bos, add_eos: whether there is a token to put at the borders of documents.
        bos, eos, pad: which control tokens these are, by their text; None = what the model says, or a customary name.
        pattern: ``tiktoken``: the regular expression that splits text, or the name of a known one.
        special_tokens: ``tiktoken``: control tokens and their ids.
    """

    add_bos: bool = True
    add_eos: bool = True
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    pattern: str | None = None
    special_tokens: Mapping[str, int] = field(default_factory=dict)

    def to_plain(self) -> dict[str, object]:
        """The policy as JSON; the same for equal policies, in whatever order their control tokens are."""
        return {
            "add_bos": self.add_bos,
            "add_eos": self.add_eos,
            "bos": self.bos,
            "eos": self.eos,
            "pad": self.pad,
            "pattern": self.pattern,
            "special_tokens": dict(sorted(self.special_tokens.items())),
        }


class Tokenizer:
    """One kind of tokenizer; ``loader.text.tokenizers.TOKENIZERS`` names them.

    A kind gives ``__init__`` its pieces, and has ``raw_encode`` and, where it may be lossy, ``_encode_by_offsets``.

    Attributes:
        kind: key of ``TOKENIZERS``.
        vocab_size: ids are below it.
        bos_id, eos_id: put at document borders by whoever packs, or None where the policy says none.
        pad_id: fills the rest of a sample.
        lossless: the tokens' bytes are the text's bytes, for every text.
        prefix: what the tokens of each part spell before its text; None where they spell something else altogether.
        special: control tokens by their text; no text yields one.
        model, policy: what the tokenizer was made of.
        digest: xxh3-128 of the model, the policy and the golden encodings, 32 hex digits; set by ``load_tokenizer``.
    """

    kind = ""

    def __init__(self, pieces: Sequence[bytes], special: Mapping[str, int], model: bytes, policy: TokenizerPolicy):
        """``pieces``: the bytes that each id stands for, none for control and unknown tokens. Everything that the
        reference needs must be set before."""
        self.vocab_size = len(pieces)
        self.special = dict(special)
        self.model = model
        self.policy = policy
        self.digest = ""
        self._pieces = list(pieces)
        self._lengths_V = np.array([len(piece) for piece in self._pieces], np.int32)
        start_V = np.concatenate([[0], np.cumsum(self._lengths_V, dtype=np.int64)])
        self.spelling = Spelling(np.frombuffer(b"".join([*self._pieces, bytes(SLACK_BYTES)]), np.uint8), start_V)
        self._byte_ids = self._find_byte_ids()
        self._forbidden = frozenset(self.special.values()) - {self._unknown_id}
        self.prefix: bytes | None = None
        self.lossless = self._byte_ids is not None and self._spells(_EXACT_PROBES, b"")
        if self.lossless:
            self.prefix = b""
        else:
            self.prefix = next((prefix for prefix in _PREFIXES if self._spells(_PREFIX_PROBES, prefix)), None)
        said = {border: self._model_says(border) for border in ("bos", "eos", "pad")}
        for border, name in (("bos", policy.bos), ("eos", policy.eos)):
            control_id(border, name, said[border], self.special)  # a wrong name is wrong, also where it is not in use
        self.bos_id = border_id("bos", policy.bos, said["bos"], self.special) if policy.add_bos else None
        self.eos_id = border_id("eos", policy.eos, said["eos"], self.special) if policy.add_eos else None
        pad = control_id("pad", policy.pad, said["pad"], self.special)
        self.pad_id: int = pad if pad is not None else (self.eos_id if self.eos_id is not None else 0)

    # What a kind says about its model.

    _reserved = b""
    """Bytes that the library uses itself, so that they never come back: byte tokens at once, to keep what is around."""
    _avoid: re.Pattern[bytes] | None = None
    """Symbols that the library would match in text, and must not."""
    _unknown_id: int | None = None

    def raw_encode(self, parts: Sequence[str]) -> EncodedParts:
        """The reference library's own ids of each part, no check made."""
        raise NotImplementedError

    def _encode_by_offsets(self, data: bytes) -> tuple[list[int], list[int]]:
        """Of a lossy kind: the library's ids, and the byte of ``data`` where each one's text ends."""
        raise NotImplementedError

    def _find_byte_ids(self) -> list[int] | None:
        """Ids of the 256 byte tokens; None if the model lacks some."""
        raise NotImplementedError

    def _model_says(self, border: str) -> int | None:
        """The id of ``bos``, ``eos`` or ``pad`` where the model itself knows."""
        return None

    # Encoding.

    def encode(self, text: str | bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Ids of a text, without BOS or EOS, and the number of UTF-8 bytes of the text that each stands for.

        Returns:
            ``(ids_T, num_bytes_T)``; ``num_bytes_T`` sums to the text's length in bytes. A lossy kind gives at least
            one token for a text that is not empty.

        Raises:
            JobError: see ``encode_batch``.
        """
        batch = self.encode_batch([text.encode() if isinstance(text, str) else text])
        return batch.ids_T, batch.num_bytes_T

    def encode_batch(
        self, texts: Sequence[bytes], *, raw: RawEncoder | None = None, compare: Compare = find_inexact
    ) -> EncodedBatch:
        """Ids of each text (UTF-8), without BOS or EOS.

        Args:
            texts: what to encode.
            raw: a fast backend that gives the very ids of ``raw_encode``.
            compare: how to check the bytes.

        Raises:
            JobError: ``TR-TOKENIZER-TEXT``: a lossy kind's library fails at a text, which is not silently dropped.
        """
        parts, first_N = self._parts(texts)
        if self.prefix is None:  # each part is encoded by its offsets
            encoded = joined_parts([np.zeros(0, np.int32)] * len(parts))
            bad_P = np.ones(len(parts), np.bool_)
        else:
            strings = [part.decode() for part in parts]
            found = self._checked_ids(raw, strings) if raw is not None else None
            encoded = self._reference(strings) if found is None else found
            stop_P = np.cumsum([len(part) + len(self.prefix) for part in parts], dtype=np.int64)
            expected = b"".join(parts) if not self.prefix else b"".join([self.prefix + part for part in parts])
            bad_P = compare(encoded, self.spelling, expected, stop_P)
        if self.prefix == b"" and not bad_P.any():
            return EncodedBatch(encoded.ids_T, encoded.start_P[first_N], self._lengths_V)
        sizes_T = self._lengths_V[encoded.ids_T]
        if self.prefix:
            sizes_T[encoded.start_P[:-1][~bad_P]] -= len(self.prefix)
        start_P = encoded.start_P
        ids_T = encoded.ids_T
        if bad_P.any():
            ids_T, sizes_T, start_P = self._repaired(parts, bad_P, encoded, sizes_T)
        num_repaired = int(bad_P.sum()) if self.prefix is not None else 0
        return EncodedBatch(ids_T, start_P[first_N], self._lengths_V, sizes_T, num_repaired)

    def _parts(self, texts: Sequence[bytes]) -> tuple[list[bytes], NDArray[np.int64]]:
        """Parts of all texts (none is empty), and where each text's parts begin (N + 1)."""
        parts: list[bytes] = []
        first = [0]
        for text in texts:
            parts += cut_parts(text, self._avoid)
            first.append(len(parts))
        return parts, np.array(first, np.int64)

    def _checked_ids(self, raw: RawEncoder, parts: Sequence[str]) -> EncodedParts | None:
        """What ``raw`` says, None where it fails or says what cannot be."""
        try:
            encoded = raw(parts)
        except BaseException as error:
            if not is_library_failure(error):
                raise
            return None
        ids_T, start_P = encoded.ids_T, encoded.start_P
        if len(ids_T) and (int(ids_T.min()) < 0 or int(ids_T.max()) >= self.vocab_size):
            return None
        if len(start_P) != len(parts) + 1 or start_P[0] != 0 or start_P[-1] != len(ids_T):
            return None
        return encoded if (start_P[1:] >= start_P[:-1]).all() else None

    def _reference(self, parts: Sequence[str]) -> EncodedParts:
        """The reference library's ids; a part at which it fails has none, and is encoded in halves then."""
        encoded = self._checked_ids(self.raw_encode, parts)
        if encoded is not None:
            return encoded
        singles = [self._checked_ids(self.raw_encode, [part]) for part in parts]
        return joined_parts([single.ids_T if single is not None else np.zeros(0, np.int32) for single in singles])

    def _repaired(
        self, parts: Sequence[bytes], bad_P: NDArray[np.bool_], encoded: EncodedParts, num_bytes_T: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Ids, bytes of each and starts of all parts, with the bad ones encoded again."""
        ids, sizes, start = [], [], encoded.start_P.tolist()
        for p, bad in enumerate(bad_P.tolist()):
            if not bad:
                ids.append(encoded.ids_T[start[p] : start[p + 1]])
                sizes.append(num_bytes_T[start[p] : start[p + 1]])
            elif self.lossless:
                ids.append(np.array(self._encode_exactly(parts[p]), np.int32))
                sizes.append(self._lengths_V[ids[-1]])
            else:
                ids_T, stops = self._encode_lossy(parts[p])
                ids.append(ids_T)
                sizes.append(np.diff(stops, prepend=0).astype(np.int32))
        joined = joined_parts(ids)
        return joined.ids_T, np.concatenate([np.zeros(0, np.int32), *sizes]), joined.start_P

    def _encode_exactly(self, data: bytes) -> list[int]:
        """Ids whose pieces join to ``data``: the library's, and byte tokens where the library's would not."""
        reserved = self._reserved
        if reserved and reserved in data:
            marks = self._bytes(reserved)
            parts = [self._encode_exactly(part) if part else [] for part in data.split(reserved)]
            return parts[0] + [i for part in parts[1:] for i in (*marks, *part)]
        ids: list[int] = self._reference([data.decode()]).ids_T.tolist()
        if self._join(ids) == data and self._lengths_V[ids].all():
            return ids
        middle = code_point_border(data, len(data) // 2)
        if middle == 0:
            return self._bytes(data)
        return self._encode_exactly(data[:middle]) + self._encode_exactly(data[middle:])

    def _encode_lossy(self, data: bytes) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The library's ids; each token's bytes reach from its predecessor's end to its own, the last one's to the
        end. Text that the library takes for a control token, or at which it fails, is halved; of one code point of
        that kind, and where the model leaves nothing, the tokens are those of ``_stand_in``."""
        middle = code_point_border(data, len(data) // 2)
        failure = None
        try:
            ids, stops = self._encode_by_offsets(data)
        except BaseException as error:
            if not is_library_failure(error):
                raise
            ids, stops, failure = [], [], error
        if failure is not None and not middle:
            message = f"the {self.kind} library fails at a text: {type(failure).__name__}: {failure}"
            raise JobError("TR-TOKENIZER-TEXT", message, expected=f"ids of {data[:60]!r}...") from failure
        if failure is not None or not self._forbidden.isdisjoint(ids):
            if middle:
                (ids_A, stop_A), (ids_B, stop_B) = self._encode_lossy(data[:middle]), self._encode_lossy(data[middle:])
                return np.concatenate([ids_A, ids_B]), np.concatenate([stop_A, stop_B + middle])
            ids = [i for i in ids if i not in self._forbidden]
            stops = stops[: len(ids)]
        if not ids:
            ids, stops = _stand_in(self, data)
        stop_T = np.minimum(np.maximum.accumulate(np.array(stops, np.int64)), len(data))
        stop_T[-1] = len(data)
        return np.array(ids, np.int32), stop_T

    def _spells(self, texts: Sequence[str], prefix: bytes) -> bool:
        """Whether the library by itself keeps texts as they are, but for a prefix."""
        found = [self._reference([text]).ids_T.tolist() for text in texts]
        return all(self._join(ids) == prefix + text.encode() for ids, text in zip(found, texts, strict=True))

    def _bytes(self, data: bytes) -> list[int]:
        assert self._byte_ids is not None
        return [self._byte_ids[byte] for byte in data]

    def _join(self, ids: Sequence[int]) -> bytes:
        pieces = self._pieces
        return b"".join([pieces[i] for i in ids])

    # Decoding.

    def decode_bytes(self, ids_T: NDArray[np.integer[Any]] | Sequence[int]) -> bytes:
        """UTF-8 bytes of a run of ids; control ids stand for nothing. Any run: a cut may lie inside a code point.

        Raises:
            DamageError: an id is not below ``vocab_size``.
        """
        ids = ids_T.tolist() if isinstance(ids_T, np.ndarray) else list(ids_T)
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise DamageError(
                "TR-TOKENIZER-ID", "a token id is outside the vocabulary", expected=f"below {self.vocab_size}"
            )
        return self._join(ids)

    def bytes_of_ids(self) -> NDArray[np.int32] | None:
        """Bytes that each id stands for (V), always the same ones; None for a lossy kind, where it depends on the
        text.
        """
        return self._lengths_V if self.lossless else None


def _stand_in(tokenizer: Tokenizer, data: bytes) -> tuple[list[int], list[int]]:
    """Tokens of a text of which a lossy model leaves nothing: the unknown token, else its bytes, else the first one
    that is no control token. Never id 0 as it comes: that is often BOS."""
    if tokenizer._unknown_id is not None:
        return [tokenizer._unknown_id], [len(data)]
    if tokenizer._byte_ids is not None:
        return tokenizer._bytes(data), list(range(1, len(data) + 1))
    ordinary = next((i for i in range(tokenizer.vocab_size) if tokenizer._lengths_V[i]), None)
    if ordinary is None:
        message = f"the {tokenizer.kind} model has no token for a text"
        raise JobError("TR-TOKENIZER-TEXT", message, expected=f"ids of {data[:60]!r}...")
    return [ordinary], [len(data)]


def is_library_failure(error: BaseException) -> bool:
    """Whether a library failed; a panic of the Rust libraries is no ``Exception``."""
    if isinstance(error, Exception):
        return not isinstance(error, MemoryError)
    return type(error).__name__ == "PanicException"
