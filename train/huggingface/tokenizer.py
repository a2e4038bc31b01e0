"""A Dataset's tokenizer as transformers reads it, where it is a ``tokenizer.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loader.text.tokenizer_base import Tokenizer

__all__ = ["TokenizerFiles", "tokenizer_files"]


@dataclass(frozen=True)
class TokenizerFiles:
    """What goes along with a model.

    Attributes:
        files: name -> bytes. borders: ids of the border tokens under config.json's keys; None where there are none.
        notes: what could not go along.
    """

    files: Mapping[str, bytes]
    borders: Mapping[str, int | None]
    notes: tuple[str, ...] = ()


def tokenizer_files(tokenizer: Tokenizer | None, seq_len: int) -> TokenizerFiles:
    """The files of a tokenizer; other kinds than Hugging Face's have none, and the notes say so.

    Args:
        tokenizer: the Dataset's, or None. seq_len: longest sample, in tokens.
    """
    names = ("bos", "eos", "pad")
    if tokenizer is None:
        missing = dict.fromkeys(f"{name}_token_id" for name in names)
        return TokenizerFiles({}, missing, ("the Dataset carries no tokenizer",))
    ids: dict[str, int | None] = {name: getattr(tokenizer, f"{name}_id") for name in names}
    borders = {f"{name}_token_id": number for name, number in ids.items()}
    if tokenizer.kind != "huggingface":
        note = f"a {tokenizer.kind} tokenizer has no tokenizer.json of Hugging Face's"
        return TokenizerFiles({}, borders, (f"{note}; the Dataset's tokenizer/ holds its own files",))
    texts = {number: text for text, number in tokenizer.special.items()}
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": texts[number] for name, number in ids.items() if number in texts},
    }
    files = {"tokenizer.json": tokenizer.model, "tokenizer_config.json": json.dumps(about, indent=2).encode() + b"\n"}
    return TokenizerFiles(files, borders)
