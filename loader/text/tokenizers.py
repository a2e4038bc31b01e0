"""Tokenizers as a Dataset keeps them: a folder with the model, its border policy and golden encodings, all under one
digest.

A *lossless* tokenizer gives back every byte: the bytes of its tokens, joined, are the text, for any text. This is
checked for each document as it is encoded; where the model itself would lose something (sentencepiece takes U+2581 for
a space, a normaliser joins accents), that piece of text is encoded in smaller pieces, in the end as byte tokens. A
*lossy* one (a normaliser without byte tokens, a dummy prefix) is allowed, marked, and its tokens still share out all
bytes of the text among them, so that ranges of tokens are ranges of text.

Text never yields a control id, whatever is written in it: see ``tokenizer_base`` and the kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..canonical import canonical_json, digest_of
from ..errors import DamageError, RefusedError
from ..files import digest_bytes, write_atomic
from .encoded import EncodedBatch
from .huggingface_tokenizer import HuggingFaceTokenizer
from .sentencepiece_tokenizer import SentencepieceTokenizer
from .tiktoken_tokenizer import TiktokenTokenizer
from .tokenizer_base import Tokenizer, TokenizerPolicy

__all__ = [
    "GOLDEN_TEXTS",
    "MODEL_FILES",
    "TOKENIZERS",
    "EncodedBatch",
    "HuggingFaceTokenizer",
    "SentencepieceTokenizer",
    "TiktokenTokenizer",
    "Tokenizer",
    "TokenizerPolicy",
    "load_tokenizer",
    "stored_policy",
    "write_tokenizer",
]

MODEL_FILES: Mapping[str, str] = {
    "sentencepiece": "sentencepiece.model",
    "huggingface": "huggingface.json",
    "tiktoken": "ranks.tiktoken",
}
"""kind -> name of the model's file in a tokenizer folder."""
TOKENIZERS: Mapping[str, Callable[[bytes, TokenizerPolicy], Tokenizer]] = {
    "sentencepiece": SentencepieceTokenizer,
    "huggingface": HuggingFaceTokenizer,
    "tiktoken": TiktokenTokenizer,
}
"""kind -> class taking the model's bytes and the policy."""
_ABOUT_FILE = "tokenizer.json"
_VERSION = 2
_MAX_MODEL_BYTES = 1 << 28

GOLDEN_TEXTS: tuple[str, ...] = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x ** 2  # two spaces\n\n\n",
    " leading, trailing  and\ttabs\r\n",
    "<s></s><unk><pad><0x41><|endoftext|>",
    "na\u00efve caf\u00e9 e\u0301 \u4f60\u597d \U0001f600 \u0e44\u0e17\u0e22 \u2581\u2581 \u2585 \ufeff",
    "\x00\x01\x7f\u0080\u00a0\u2003\u2028\u3000\ufffd",
    "3.14159 1,000,000 0xFF 2024-01-31",
)
"""Texts whose encodings are kept with a tokenizer; another result on this machine refuses to go on."""


def write_tokenizer(folder: Path, kind: str, model: bytes, policy: TokenizerPolicy) -> Tokenizer:
    """Write a tokenizer folder (model first, then ``tokenizer.json``) and return the tokenizer, with its digest.

    Raises:
        DamageError: the model cannot be read.
        ConfigError: the policy does not fit the model.
    """
    tokenizer = TOKENIZERS[kind](model, policy)
    about: dict[str, object] = {
        "version": _VERSION,
        "kind": kind,
        "model_hash": digest_bytes(model),
        **policy.to_plain(),
        **_facts(tokenizer),
        "golden": [{"text": text, "ids": tokenizer.encode(text)[0].tolist()} for text in GOLDEN_TEXTS],
    }
    tokenizer.digest = digest_of(about)
    write_atomic(folder / MODEL_FILES[kind], model)
    write_atomic(folder / _ABOUT_FILE, canonical_json({**about, "digest": tokenizer.digest}))
    return tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Open a tokenizer folder (``DATASET/tokenizer``) and check everything that can be checked.

    Raises:
        DamageError: a file is missing, changed or no tokenizer.
        RefusedError: ``TR-TOKENIZER-GOLDEN``: intact, but this machine's library encodes the golden texts differently,
            or the border tokens are others here; ``TR-TOKENIZER-KIND``: another version wrote it.
    """
    folder = Path(folder)
    about = _read_about(folder / _ABOUT_FILE)
    digest = _checked_digest(about, folder)
    kind = about["kind"]
    model = _read_limited(folder / MODEL_FILES[kind])
    if about.get("model_hash") != digest_bytes(model):
        raise DamageError("TR-TOKENIZER-DAMAGED", "the model is not what was written", str(folder), digest)
    tokenizer = TOKENIZERS[kind](model, _policy_of(about, folder))
    for item in about["golden"]:
        if tokenizer.encode(item["text"])[0].tolist() != item["ids"]:
            raise RefusedError(
                "TR-TOKENIZER-GOLDEN",
                f"the installed {kind} library encodes {item['text']!r} differently than the one that made it",
                str(folder),
                f"ids {item['ids'][:20]}",
            )
    for name, here in _facts(tokenizer).items():
        if about.get(name) != here:
            raise RefusedError(
                "TR-TOKENIZER-GOLDEN",
                f"{name} is {here} here, and {about.get(name)} where the tokenizer was made",
                str(folder),
                "the same libraries, and the same version of tokenreel",
            )
    tokenizer.digest = digest
    return tokenizer


def _facts(tokenizer: Tokenizer) -> dict[str, object]:
    """What the model and the policy come to: rules here and in the libraries, so not only a matter of the two."""
    return {
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        "lossless": tokenizer.lossless,
    }


def _checked_digest(about: dict[str, Any], folder: Path) -> str:
    """Take the digest out of a description.

    Raises:
        DamageError: it is not the description's.
        RefusedError: ``TR-TOKENIZER-KIND``: another version wrote it, or a kind that is not known.
    """
    digest = about.pop("digest", None)
    if digest != digest_of(about):
        raise DamageError("TR-TOKENIZER-DAMAGED", "the tokenizer is not what was written", str(folder), str(digest))
    kind, version = about.get("kind"), about.get("version")
    if kind not in TOKENIZERS or version != _VERSION:
        raise RefusedError(
            "TR-TOKENIZER-KIND",
            f"the tokenizer folder is of kind {kind!r} and version {version!r}",
            str(folder),
            f"one of {', '.join(TOKENIZERS)}, version {_VERSION}",
            "build the Dataset again with this version, or read it with the one that wrote it",
        )
    return str(digest)


def stored_policy(folder: Path) -> TokenizerPolicy | None:
    """The policy of the tokenizer in a folder; None where no tokenizer folder is.

    Raises:
        DamageError: its description is damaged.
        RefusedError: another version wrote it.
    """
    if not (folder / _ABOUT_FILE).is_file():
        return None
    about = _read_about(folder / _ABOUT_FILE)
    if "digest" not in about and "model_hash" not in about:  # a tokenizer.json of the Hugging Face library
        return None
    _checked_digest(about, folder)
    return _policy_of(about, folder)


def _policy_of(about: Mapping[str, Any], folder: Path) -> TokenizerPolicy:
    names = TokenizerPolicy().to_plain()
    missing = sorted({*names, "golden"} - set(about))
    if missing:
        raise DamageError("TR-TOKENIZER-DAMAGED", "the tokenizer's description lacks fields", str(folder), str(missing))
    return TokenizerPolicy(**{name: about[name] for name in names})


def _read_limited(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_MODEL_BYTES + 1)
    except OSError as error:
        raise DamageError(
            "TR-TOKENIZER-MISSING", f"cannot read a tokenizer file: {error.strerror}", str(path)
        ) from error
    if len(data) > _MAX_MODEL_BYTES:
        raise DamageError(
            "TR-TOKENIZER-DAMAGED", "the tokenizer file is too large", str(path), f"{_MAX_MODEL_BYTES} bytes"
        )
    return data


def _read_about(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_limited(path))
    except ValueError as error:
        raise DamageError("TR-TOKENIZER-DAMAGED", "the tokenizer's description is no JSON", str(path)) from error
    if not isinstance(value, dict):
        raise DamageError("TR-TOKENIZER-DAMAGED", "the tokenizer's description is no JSON object", str(path))
    return value
