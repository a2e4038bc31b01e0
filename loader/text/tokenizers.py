"""Tokenizers as a Dataset keeps them: a folder with the model, its border policy and golden encodings, all under one
digest.

A *lossless* tokenizer gives back every byte: the bytes of its tokens, joined, are the text, for any text. This is
checked for each
document as it is encoded; where the model itself would lose something (sentencepiece takes U+2581 for a space), that
piece of text
becomes byte tokens instead. A *lossy* one (normalisation, a dummy prefix) is allowed, marked, and its tokens still
share out all
bytes of the text among them, so that ranges of tokens are ranges of text.

Text never yields a control id: control and unknown pieces stand for no bytes at all, so they can never match text.
Pieces that a
model's maker declared as symbols of their own and wrote like control tokens (``<|end|>``, ``[INST]``) are kept from
matching as well:
the text is cut inside them.

Legend: T tokens of one text, V vocabulary.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..canonical import canonical_json, digest_of
from ..errors import DamageError, RefusedError
from ..files import digest_bytes, write_atomic
from .sentencepiece_symbols import control_like_symbols

__all__ = [
    "GOLDEN_TEXTS",
    "MODEL_FILES",
    "TOKENIZERS",
    "SentencepieceTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "write_tokenizer",
]

MODEL_FILES: Mapping[str, str] = {
    "sentencepiece": "sentencepiece.model",
    "huggingface": "huggingface.json",
    "tiktoken": "ranks.tiktoken",
}
"""kind -> name of the model's file in a tokenizer folder."""
_ABOUT_FILE = "tokenizer.json"
_VERSION = 1
_SPACE = b"\xe2\x96\x81"  # U+2581, in which sentencepiece pieces write a space
_CHUNK_BYTES = 1 << 18  # longer texts are encoded in chunks: bounded memory, and no quadratic surprise
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


class Tokenizer:
    """What all kinds have in common; ``TOKENIZERS`` names the kinds.

    Attributes:
        kind: key of ``TOKENIZERS``.
        vocab_size: ids are below it.
        bos_id, eos_id: put at document borders by whoever packs, or None where the policy says none.
        pad_id: fills the rest of a sample.
        lossless: the tokens' bytes are the text's bytes, for every text.
        digest: xxh3-128 of the model, the policy and the golden encodings, 32 hex digits; set by ``load_tokenizer``.
    """

    kind = ""

    def __init__(self, vocab_size: int, control: Mapping[str, int | None], lossless: bool) -> None:
        self.vocab_size = vocab_size
        self.bos_id = control.get("bos")
        self.eos_id = control.get("eos")
        pad = control.get("pad")
        self.pad_id: int = pad if pad is not None else (self.eos_id if self.eos_id is not None else 0)
        self.lossless = lossless
        self.digest = ""

    def encode(self, text: str | bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Ids of a text, without BOS or EOS, and the number of UTF-8 bytes of the text that each stands for.

        Returns:
            ``(ids_T, num_bytes_T)``; ``num_bytes_T`` sums to the text's length in bytes. A lossy kind gives at least
            one token for a text that is not empty.
        """
        raise NotImplementedError

    def decode_bytes(self, ids_T: NDArray[np.integer[Any]] | Sequence[int]) -> bytes:
        """UTF-8 bytes of a run of ids; control ids stand for nothing. Any run: a cut may lie inside a code point."""
        raise NotImplementedError

    def bytes_of_ids(self) -> NDArray[np.int32] | None:
        """Bytes that each id stands for (V), always the same ones; None for a lossy kind, where it depends on the
        text.
        """
        raise NotImplementedError


class SentencepieceTokenizer(Tokenizer):
    """A sentencepiece model (BPE or unigram), trained here or anywhere else."""

    kind = "sentencepiece"

    def __init__(self, model: bytes, *, add_bos: bool = True, add_eos: bool = True) -> None:
        """Load a serialised model.

        Raises:
            DamageError: sentencepiece cannot read it.
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
        symbols = control_like_symbols(model)
        self._symbols = re.compile(b"|".join(map(re.escape, symbols))) if symbols else None
        pieces = [_piece_bytes(processor, i) for i in range(processor.vocab_size())]
        self._pieces = [piece or b"" for piece in pieces]
        self._lengths_V = np.array([len(piece) for piece in self._pieces], np.int32)
        self._byte_ids = _byte_ids(processor)
        self._unknown_id = int(processor.unk_id())
        control = {
            "bos": _id_or_none(processor.bos_id()) if add_bos else None,
            "eos": _id_or_none(processor.eos_id()) if add_eos else None,
            "pad": _id_or_none(processor.pad_id()),
        }
        super().__init__(len(pieces), control, self._byte_ids is not None and self._gives_back_probes())

    def _gives_back_probes(self) -> bool:
        """Whether the model by itself keeps spaces, prefixes, widths and accents as they are."""
        probes = (
            "a",
            " a",
            "  a  b ",
            "\ufb01 \uff21 e\u0301\n\t",
            " ",
            "\n\n",
            "\u4f60\u597d \U0001f600",
            "\u00a0x\u3000",
        )
        return all(self._join(self._ids(probe.encode())) == probe.encode() for probe in probes)

    def _ids(self, data: bytes) -> list[int]:
        ids: list[int] = self._processor.encode(data)
        return ids

    def _join(self, ids: Sequence[int]) -> bytes:
        pieces = self._pieces
        return b"".join([pieces[i] for i in ids])

    def encode(self, text: str | bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """See ``Tokenizer.encode``."""
        data = text.encode() if isinstance(text, str) else text
        parts = self._between_symbols(data)
        if not self.lossless:
            encoded = [self._encode_lossy(part) for part in parts]
            return np.concatenate([ids_T for ids_T, _ in encoded]), np.concatenate([size_T for _, size_T in encoded])
        ids: list[int] = []
        for part in parts:
            for chunk in _chunks(part):
                ids += self._encode_exactly(chunk)
        ids_T = np.array(ids, np.int32)
        return ids_T, self._lengths_V[ids_T]

    def _between_symbols(self, data: bytes) -> list[bytes]:
        """``data`` cut behind the first character of each symbol that must not match."""
        if self._symbols is None:
            return [data]
        cuts = [0, *(match.start() + 1 for match in self._symbols.finditer(data)), len(data)]
        return [data[start:stop] for start, stop in itertools.pairwise(cuts)]

    def _encode_exactly(self, data: bytes) -> list[int]:
        """Ids whose pieces join to ``data``: the model's, and byte tokens where the model's would not."""
        if _SPACE in data:
            marks = self._bytes(_SPACE)
            parts = [self._encode_exactly(part) for part in data.split(_SPACE)]
            return sum((marks + part for part in parts[1:]), parts[0])
        ids = self._ids(data)
        if self._join(ids) == data:
            return ids
        middle = _code_point_border(data, len(data) // 2)
        if middle == 0:
            return self._bytes(data)
        return self._encode_exactly(data[:middle]) + self._encode_exactly(data[middle:])

    def _bytes(self, data: bytes) -> list[int]:
        assert self._byte_ids is not None
        return [self._byte_ids[byte] for byte in data]

    def _encode_lossy(self, data: bytes) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The model's own ids; each token's bytes reach from its predecessor's end to its own, the last one's to the
        end.
        """
        if not data:
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        result = self._processor.encode(data, return_type="offset_mapping")
        ids_T = np.array(result["ids"] or [self._unknown_id], np.int32)
        stops_T = np.array([stop for _, stop in result["offsets"]] or [0], np.int64)
        stops_T = np.minimum(np.maximum.accumulate(stops_T), len(data))
        stops_T[-1] = len(data)
        return ids_T, np.diff(stops_T, prepend=0).astype(np.int32)

    def decode_bytes(self, ids_T: NDArray[np.integer[Any]] | Sequence[int]) -> bytes:
        """See ``Tokenizer.decode_bytes``.

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
        """See ``Tokenizer.bytes_of_ids``."""
        return self._lengths_V if self.lossless else None


def _id_or_none(i: int) -> int | None:
    return int(i) if i >= 0 else None


def _piece_bytes(processor: Any, i: int) -> bytes | None:
    """Bytes a piece stands for; None for control, unknown and unused ones."""
    if processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i):
        return None
    piece: str = processor.id_to_piece(i)
    if processor.is_byte(i):
        return bytes([int(piece[3:5], 16)])
    return piece.encode("utf-8", "surrogatepass").replace(_SPACE, b" ")


def _byte_ids(processor: Any) -> list[int] | None:
    """Ids of the 256 byte pieces, or None if the model lacks byte fallback."""
    found = {processor.id_to_piece(i): i for i in range(processor.vocab_size()) if processor.is_byte(i)}
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    return [found[name] for name in names] if all(name in found for name in names) else None


def _code_point_border(data: bytes, near: int) -> int:
    """The last code point start at or before ``near``; 0 if there is none after the first."""
    while near > 0 and data[near] & 0xC0 == 0x80:
        near -= 1
    return near


def _chunks(data: bytes) -> list[bytes]:
    """``data`` in pieces of at most 256 KiB, cut before a space that follows a non-space where one is near, else
    between code points.

    Models trained to split at whitespace have no piece across such a place, so the ids are those of the whole.
    """
    chunks, start = [], 0
    while len(data) - start > _CHUNK_BYTES:
        cut = data.rfind(b" ", start + _CHUNK_BYTES // 2, start + _CHUNK_BYTES)
        while cut > start and data[cut - 1 : cut] == b" ":
            cut -= 1
        if cut < start + _CHUNK_BYTES // 4:
            cut = _code_point_border(data, start + _CHUNK_BYTES)
        chunks.append(data[start:cut])
        start = cut
    return [*chunks, data[start:] if start else data]


TOKENIZERS: Mapping[str, Callable[..., Tokenizer]] = {
    "sentencepiece": SentencepieceTokenizer,
}
"""kind -> class taking the model's bytes, ``add_bos``, ``add_eos``."""


def write_tokenizer(folder: Path, kind: str, model: bytes, *, add_bos: bool, add_eos: bool) -> Tokenizer:
    """Write a tokenizer folder (model first, then ``tokenizer.json``) and return the tokenizer, with its digest.

    Raises:
        DamageError: the model cannot be read.
    """
    tokenizer = TOKENIZERS[kind](model, add_bos=add_bos, add_eos=add_eos)
    about: dict[str, object] = {
        "version": _VERSION,
        "kind": kind,
        "model_hash": digest_bytes(model),
        "vocab_size": tokenizer.vocab_size,
        "add_bos": add_bos,
        "add_eos": add_eos,
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        "lossless": tokenizer.lossless,
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
        RefusedError: ``TR-TOKENIZER-GOLDEN``: intact, but this machine's library encodes the golden texts differently.
    """
    folder = Path(folder)
    about = _read_about(folder / _ABOUT_FILE)
    model = _read_limited(folder / MODEL_FILES.get(str(about.get("kind")), "sentencepiece.model"))
    digest = about.pop("digest", None)
    if digest != digest_of(about) or about.get("model_hash") != digest_bytes(model):
        raise DamageError("TR-TOKENIZER-DAMAGED", "the tokenizer is not what was written", str(folder), str(digest))
    kind = about["kind"]
    if kind not in TOKENIZERS or about["version"] != _VERSION:
        message = f"tokenizer kind {kind!r}, version {about['version']}, is not known"
        raise RefusedError(
            "TR-TOKENIZER-KIND", message, str(folder), f"one of {', '.join(TOKENIZERS)}, version {_VERSION}"
        )
    tokenizer = TOKENIZERS[kind](model, add_bos=about["add_bos"], add_eos=about["add_eos"])
    for item in about["golden"]:
        if tokenizer.encode(item["text"])[0].tolist() != item["ids"]:
            raise RefusedError(
                "TR-TOKENIZER-GOLDEN",
                f"the installed {kind} library encodes {item['text']!r} differently than the one that made it",
                str(folder),
                f"ids {item['ids'][:20]}",
            )
    tokenizer.digest = str(digest)
    return tokenizer


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
