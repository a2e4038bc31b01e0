"""Sentencepiece models: BPE or unigram, with byte fallback or without, trained here or anywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DamageError
from .encoded import EncodedParts, avoid_pattern, joined_parts
from .sentencepiece_symbols import control_like_symbols
from .tokenizer_base import Tokenizer, TokenizerPolicy

__all__ = ["SentencepieceTokenizer"]

_SPACE = b"\xe2\x96\x81"  # U+2581, in which sentencepiece pieces write a space


class SentencepieceTokenizer(Tokenizer):
    """A sentencepiece model.

    Control and unknown pieces stand for no bytes at all, so they can never match text. Pieces that the model's maker
    declared as symbols of their own and wrote like control tokens (``<|end|>``, ``[INST]``) are kept from matching as
    well: the text is cut inside them.
    """

    kind = "sentencepiece"
    _reserved = _SPACE

    def __init__(self, model: bytes, policy: TokenizerPolicy | None = None) -> None:
        """Load a serialised model.

        Raises:
            DamageError: sentencepiece cannot read it.
            ConfigError: a border token of the policy is none of the model's.
        """
        import sentencepiece

        try:
            if not model:
                raise ValueError("it is empty")  # sentencepiece would take it, and fail at the first text
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, TypeError, ValueError) as error:
            raise DamageError(
                "TR-TOKENIZER-MODEL", "sentencepiece cannot read the model", expected=str(error)
            ) from error
        processor = self._processor
        self._as_arrays = hasattr(processor, "EncodeAsNumpy")
        symbols = [symbol.decode("utf-8", "replace") for symbol in control_like_symbols(model)]
        self._avoid = avoid_pattern(symbols)
        self._unknown_id = int(processor.unk_id())
        size = processor.vocab_size()
        special = {processor.id_to_piece(i): i for i in range(size) if processor.is_control(i)}
        special |= {symbol: i for symbol in symbols if len(symbol) > 1 for i in _ids_of(processor, symbol)}
        control = frozenset(special.values())
        pieces = [b"" if i in control else _piece_bytes(processor, i) for i in range(size)]
        super().__init__(pieces, special, model, policy or TokenizerPolicy())

    def raw_encode(self, parts: Sequence[str]) -> EncodedParts:
        """See ``Tokenizer.raw_encode``."""
        if self._as_arrays:  # without a Python number for each token
            arrays = [self._processor.encode(part, return_type="numpy") for part in parts]
        else:
            arrays = [np.array(self._processor.encode(part), np.int32) for part in parts]
        return joined_parts([np.asarray(array, np.int32) for array in arrays])

    def _encode_by_offsets(self, data: bytes) -> tuple[list[int], list[int]]:
        result = self._processor.encode(data, return_type="offset_mapping")
        return list(result["ids"]), [int(stop) for _, stop in result["offsets"]]

    def _find_byte_ids(self) -> list[int] | None:
        processor = self._processor
        found = {processor.id_to_piece(i): i for i in range(processor.vocab_size()) if processor.is_byte(i)}
        names = [f"<0x{byte:02X}>" for byte in range(256)]
        return [found[name] for name in names] if all(name in found for name in names) else None

    def _model_says(self, border: str) -> int | None:
        said = {"bos": self._processor.bos_id, "eos": self._processor.eos_id, "pad": self._processor.pad_id}[border]()
        return int(said) if said >= 0 else None


def _ids_of(processor: Any, symbol: str) -> list[int]:
    """The id of a declared symbol: its piece has marks for spaces, or spaces, which never match. An unknown piece would
    be given the id of the unknown token."""
    for piece in (symbol.replace(" ", _SPACE.decode()), symbol):
        i = int(processor.piece_to_id(piece))
        if processor.id_to_piece(i) == piece:
            return [i]
    return []


def _piece_bytes(processor: Any, i: int) -> bytes:
    """Bytes a piece stands for; none for unknown and unused ones."""
    if processor.is_unknown(i) or processor.is_unused(i):
        return b""
    piece: str = processor.id_to_piece(i)
    if processor.is_byte(i):
        return bytes([int(piece[3:5], 16)])
    return piece.encode("utf-8", "surrogatepass").replace(_SPACE, b" ")
