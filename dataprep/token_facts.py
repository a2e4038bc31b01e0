"""What mixing and packing must know of a tokenizer, left beside it: loading a large one again costs each task a second
(a vocabulary of 128,000 entries: 1.0 CPU s), and neither stage encodes anything.

Legend: V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader.canonical import canonical_json
from loader.errors import DamageError
from loader.files import write_atomic
from loader.shards.access import npy_bytes
from loader.shards.layout import token_dtype

from .arrays import load_array
from .stages import read_json

if TYPE_CHECKING:
    from loader.text.tokenizers import Tokenizer

__all__ = ["PAIR_DTYPE", "TokenFacts", "facts_of_tokenizer", "read_facts", "stored_dtype", "write_facts"]

PAIR_DTYPE = np.dtype([("id", "<u4"), ("num_bytes", "<u4")])
"""A token of a lossy tokenizer, with the bytes of text that it stands for."""

_FACTS_FILE, _LENGTHS_FILE = "facts.json", "lengths.npy"


def stored_dtype(vocab_size: int, paired: bool) -> np.dtype[Any]:
    """Items of a tokens file: ids, or with a lossy tokenizer ``PAIR_DTYPE``."""
    return PAIR_DTYPE if paired else token_dtype(vocab_size)


@dataclass(frozen=True)
class TokenFacts:
    """What packing must know of the tokens.

    Attributes:
        vocab_size: ids are below it.
        bos_id, eos_id: put around each document, None where nothing is.
        pad_id: fills the rest of a sample.
        lengths_V: bytes that each id stands for; None where that is unknown, or depends on the text.
        paired: tokens are stored as ``PAIR_DTYPE``.
    """

    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int
    lengths_V: NDArray[np.int32] | None = None
    paired: bool = False

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Items of a tokens file."""
        return stored_dtype(self.vocab_size, self.paired)

    @property
    def num_borders(self) -> int:
        """Tokens that a document gets beside its own."""
        return (self.bos_id is not None) + (self.eos_id is not None)


def facts_of_tokenizer(tokenizer: Tokenizer) -> TokenFacts:
    """What packing must know of what ``tokenizer`` made."""
    return TokenFacts(
        tokenizer.vocab_size,
        tokenizer.bos_id,
        tokenizer.eos_id,
        tokenizer.pad_id,
        tokenizer.bytes_of_ids(),
        paired=not tokenizer.lossless,
    )


def write_facts(folder: Path, facts: TokenFacts) -> None:
    """Leave ``facts`` in the folder of the tokenizer stage."""
    if facts.lengths_V is not None:
        write_atomic(folder / _LENGTHS_FILE, npy_bytes(facts.lengths_V.astype("<i4")))
    plain = {name: getattr(facts, name) for name in ("vocab_size", "bos_id", "eos_id", "pad_id", "paired")}
    write_atomic(folder / _FACTS_FILE, canonical_json({**plain, "lengths": facts.lengths_V is not None}))


def read_facts(folder: Path) -> TokenFacts:
    """What a finished tokenizer stage left in its folder.

    Raises:
        DamageError: it cannot be read, or the lengths are not those of the vocabulary.
    """
    plain = read_json(folder / _FACTS_FILE)
    try:
        lengths_V = load_array(folder / _LENGTHS_FILE) if plain.pop("lengths") else None
        facts = TokenFacts(**plain, lengths_V=lengths_V)
    except (KeyError, TypeError) as error:
        place = str(folder / _FACTS_FILE)
        raise DamageError("TR-WORK-DAMAGED", f"the tokenizer's facts cannot be read: {error}", place) from error
    if lengths_V is not None and len(lengths_V) != facts.vocab_size:
        message = f"{len(lengths_V):,} lengths for {facts.vocab_size:,} tokens"
        raise DamageError("TR-WORK-DAMAGED", message, str(folder / _LENGTHS_FILE), "one length a token")
    return facts
