"""Fast tokenizer backends (extra ``[fast]``): they must give the very ids of the reference, and are not trusted.

A backend is used only after a self-check: hostile strings (every control token whole, doubled, cut and inside words,
all white space, combining marks, emoji, long runs, neighbours of the surrogates, mixed scripts) and documents of the
job itself must give the ids of the reference library. While it runs, every 1,000th document is encoded by both; one
difference fails the job. What a text means (where it is cut, when byte tokens are taken) is decided outside, in
``Tokenizer.encode_batch``, the same for both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, JobError
from .encoded import Compare, EncodedBatch, EncodedParts, RawEncoder, find_inexact, parts_of_lists
from .huggingface_tokenizer import HuggingFaceTokenizer, byte_letters, plain_definition
from .tiktoken_tokenizer import TiktokenTokenizer
from .tokenizer_base import Tokenizer

__all__ = ["BACKENDS", "COMPARE_EVERY", "Backend", "CheckedEncoder", "hostile_texts", "open_backend"]

COMPARE_EVERY = 1000
"""One document of so many is encoded by the reference as well."""
_SAMPLE_BYTES = 1 << 18
_SAMPLE_DOCUMENTS = 256


def _fastokens_huggingface(tokenizer: Tokenizer) -> RawEncoder:
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    policy = tokenizer.policy
    plain, _ = plain_definition(tokenizer.model, (policy.bos, policy.eos, policy.pad))
    if plain["model"].get("type", "BPE") != "BPE" or not tokenizer.byte_level:
        raise ValueError("not a byte-level BPE")
    return _fastokens(plain)


def _fastokens_tiktoken(tokenizer: Tokenizer) -> RawEncoder:
    assert isinstance(tokenizer, TiktokenTokenizer)
    shift = min(tokenizer.ids.values())  # tekken puts its control tokens first; fastokens wants ids from 0 on
    ids = {token: i - shift for token, i in tokenizer.ids.items()}
    return _fastokens(_definition_of_ranks(ids, tokenizer.pattern), shift)


def _fastokens(plain: Mapping[str, object], shift: int = 0) -> RawEncoder:
    import fastokens  # type: ignore[import-untyped,unused-ignore]

    library = fastokens.Tokenizer.from_json_str(json.dumps(plain, ensure_ascii=False))

    def encode(parts: Sequence[str]) -> EncodedParts:
        ids, offsets = library.encode_batch_flat(list(parts), split_special_tokens=True)
        ids_T = np.frombuffer(ids, np.uint32).view(np.int32)
        start_P = np.frombuffer(offsets, np.uint64).astype(np.int64)
        return EncodedParts(ids_T + np.int32(shift) if shift else ids_T, start_P)

    return encode


def _definition_of_ranks(ids: Mapping[bytes, int], pattern: str) -> dict[str, object]:
    """A ``tokenizer.json`` that encodes like tiktoken ranks: every way to halve a token is a merge, in the order of the
    tokens' ranks, and a piece that is a token is that token (some have no merge that leads to them)."""
    letters = dict(enumerate(byte_letters()))
    spelled = {token: token.decode("latin-1").translate(letters) for token in ids}
    merges: list[str] = []
    for token in sorted(ids, key=ids.__getitem__):
        halves = []
        for i in range(1, len(token)):
            left, right = ids.get(token[:i]), ids.get(token[i:])
            if left is not None and right is not None:
                halves.append((left, right, i))
        letters_of = spelled[token]
        merges += [f"{letters_of[:i]} {letters_of[i:]}" for _, _, i in sorted(halves)]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {spelled[token]: i for token, i in ids.items()}
    model = {"type": "BPE", "ignore_merges": True, "byte_fallback": False, "fuse_unk": False}
    model |= {"vocab": vocabulary, "merges": merges}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": level,
        "model": {**dict.fromkeys(_NO_BPE_OPTIONS), **model},
    }


_NO_BPE_OPTIONS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")


def _kitoken(tokenizer: Tokenizer) -> RawEncoder:
    import kitoken

    library = kitoken.Kitoken.from_sentencepiece(tokenizer.model)
    return lambda parts: parts_of_lists(library.encode_all(list(parts)))


@dataclass(frozen=True)
class Backend:
    """A package that may encode faster.

    Attributes:
        package: its name.
        make: makes its encoder, and raises whatever it likes for a model that it cannot do.
        worth_bytes: text below which loading and checking it costs more than it saves (measured with vocabularies of
            32,768 to 131,072 tokens: 0.1 s of sentencepiece's 4.5 MB/s, 1.3 s of tokenizers' 3 MB/s, 2.2 s of
            tiktoken's 22 MB/s).
    """

    package: str
    make: Callable[[Tokenizer], RawEncoder]
    worth_bytes: int


BACKENDS: Mapping[str, tuple[Backend, ...]] = {
    "sentencepiece": (Backend("kitoken", _kitoken, 1 << 20),),
    "huggingface": (Backend("fastokens", _fastokens_huggingface, 4 << 20),),
    "tiktoken": (Backend("fastokens", _fastokens_tiktoken, 64 << 20),),
}
"""kind -> backends, the first that works is taken."""


def open_backend(tokenizer: Tokenizer, size_bytes: int | None = None) -> tuple[str, RawEncoder | None, str]:
    """The first backend for a tokenizer that is installed, can load its model, and is worth it for ``size_bytes`` of
    text (None: whatever it costs).

    Returns:
        ``(package, encoder, "")``, or ``("", None, why there is none)``.
    """
    if tokenizer.prefix is None:
        return "", None, "the model changes text, so its own offsets are needed"
    reasons = []
    for backend in BACKENDS[tokenizer.kind]:
        package = backend.package
        if find_spec(package) is None:
            reasons.append(f"{package} is not installed")
            continue
        if size_bytes is not None and size_bytes < backend.worth_bytes:
            reasons.append(f"{package} is not worth loading for so little text")
            continue
        try:
            return package, backend.make(tokenizer), ""
        except BaseException as error:  # a panic of the Rust libraries is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reasons.append(f"{package} cannot load the model: {str(error)[:200]}")
    return "", None, "; ".join(reasons) or f"there is none for {tokenizer.kind}"


def hostile_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts on which libraries have been found to differ, and every control token in every disguise."""
    spaces = "".join(map(chr, (9, 10, 11, 12, 13, 28, 29, 30, 31, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x2010))))
    spaces += "\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
    texts = [
        *(f"a{space}b {space}{space}c{space}\n{space}" for space in spaces),
        *(f"{run * count}{end}" for run in " \n\t\r.-=_a1\u4f60\U0001f600\u0301" for count in (1, 2, 3, 7, 64, 999)
          for end in ("", "x", " x", "\n")),
        spaces,
        "e\u0301 o\u0308\u0323 \u1e69 s\u0323\u0307 \ufb01 \u212b \u00c5 A\u030a \uac00 \u1100\u1161 \u0e33 \u0958",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f4\U000e0067\U000e0062 \U0001f1e9\U0001f1ea"
        "\u2764\ufe0f \U0001f44d\U0001f3fd",
        "\ud7ff\ue000\ufffd\ufffe\uffff\U00010000\U0010ffff\x00\x01\x7f\u0080\u009f\u00ad",
        "\u65e5\u672c\u8a9e\u3067\u3059\u3002\u4e2d\u6587\uff0c\u6df7\u5408English\ud55c\uad6d\uc5b4 \u0645\u0631\u062d"
        "\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
        "0 00 000 0000 12345678901234567890 1,234.56 0xDEADBEEF 1e-9 \u0661\u0662\u0663 \u00bd \u2167 \u2460 1st 2nd",
        "I'm I'M can't CAN'T we'll WE'LL 'tis ''s 's'S \u2019s it\u2019s 'll've're'd 'D'\u017f \u0130i\u0131I \u212a",
        "\u2581 \u2581\u2581 a\u2581b \u2581 \u2582 \u0120 \u010a \u0120\u0120 <0x0A> <0xFF> \u2585",
        "  leading  and   trailing   \n\n\n  \r\n\r\n \t\t mixed \n \n x\n\n\n\ny \u00a0 \u00a0 z   ",
        "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # \u2713\n\n\n\tif (a&&b)||!c{ d->e::f; }\n",
        "https://example.org/a?b=c&d=%20#e a_b_c camelCaseWORDS snake_case99 __init__ ../../x C:\\y\\z",
        "a" * 5000 + "\U0001f600", "\u0301" * 500, "ab " * 3000, "=" * 3001, " " * 4097 + "x", "\n \n" * 700,
    ]  # fmt: skip
    for name in tokenizer.special:
        texts.append(name)
        texts.append(
            f"{name}{name} a{name}b {name[:1]}\n{name[1:]} {name[:-1]} {name[1:]}\n{name}\n {name} {name.upper()}"
        )
    return texts


class CheckedEncoder:
    """``encode_batch`` of a tokenizer with a backend where there is one that passes.

    Attributes:
        tokenizer: the reference.
        backend: the package in use, ``reference`` without one.
        reason: why there is none; empty with one.
    """

    def __init__(
        self, tokenizer: Tokenizer, mode: str, compare: Compare = find_inexact, size_bytes: int | None = None
    ) -> None:
        """Open and check a backend.

        Args:
            tokenizer: the reference.
            mode: ``auto``, ``off`` or ``require``.
            size_bytes: text to come, if known; with ``auto`` a backend must be worth it.
            compare: see ``Tokenizer.encode_batch``.

        Raises:
            ConfigError: ``TR-TOKENIZER-FAST-MISSING``: one is required and there is none.
        """
        self.tokenizer = tokenizer
        self._compare = compare
        self._mode = mode
        self._raw: RawEncoder | None = None
        self._count = 0
        self.backend, self.reason = "reference", "run.fast is off"
        if mode != "off":
            package, self._raw, self.reason = open_backend(tokenizer, size_bytes if mode == "auto" else None)
            self.backend = package or "reference"
            self._require()
            self.check_sample([text.encode() for text in hostile_texts(tokenizer)], "a hostile text")

    def _require(self) -> None:
        if self._mode == "require" and self._raw is None:
            raise ConfigError(
                "TR-TOKENIZER-FAST-MISSING",
                f"no fast tokenizer backend can be used: {self.reason}",
                "run.fast",
                "a backend that gives the ids of the reference library",
                "pip install tokenreel[fast], or set run.fast: off",
            )

    def check_sample(self, texts: Sequence[bytes], what: str = "a document of the job") -> None:
        """Compare on texts; at the first difference the reference takes over.

        Raises:
            ConfigError: a backend is required.
        """
        if self._raw is None or not texts:
            return
        wrong = self._first_difference(texts, self.tokenizer.encode_batch(texts, raw=self._raw, compare=self._compare))
        if wrong is not None:
            self.reason = f"{self.backend} differs from the reference on {what}: {texts[wrong].decode()[:80]!r}"
            self.backend, self._raw = "reference", None
            self._require()

    def sample_size(self, sizes: Sequence[int]) -> int:
        """How many of the first documents of a job to compare, given their sizes in bytes."""
        enough = int(np.searchsorted(np.cumsum(sizes), _SAMPLE_BYTES)) + 1
        return min(_SAMPLE_DOCUMENTS, enough, len(sizes))

    def encode_batch(self, texts: Sequence[bytes], place_of: Callable[[int], str]) -> EncodedBatch:
        """Ids of texts; every ``COMPARE_EVERY``-th text since the first call is encoded by the reference too.

        Args:
            texts: what to encode, UTF-8.
            place_of: says where text number n of this batch comes from.

        Raises:
            JobError: ``TR-TOKENIZER-FAST``: the two differ; ``TR-TOKENIZER-TEXT``: a text cannot be encoded.
        """
        try:
            batch = self.tokenizer.encode_batch(texts, raw=self._raw, compare=self._compare)
        except JobError as error:
            error.place = next((place_of(n) for n, text in enumerate(texts) if self._fails(text)), None)
            raise
        chosen = range(-self._count % COMPARE_EVERY, len(texts), COMPARE_EVERY)
        self._count += len(texts)
        if self._raw is None or not chosen:
            return batch
        for n in chosen:
            mine = slice(int(batch.start_N[n]), int(batch.start_N[n + 1]))
            if not _same(self.tokenizer.encode(texts[n]), batch.ids_T[mine], batch.num_bytes_T[mine]):
                raise JobError(
                    "TR-TOKENIZER-FAST",
                    f"{self.backend} gives other ids than the reference library",
                    place_of(n),
                    "the same ids, as in the self-check before the job",
                    "set run.fast: off and run again",
                )
        return batch

    def _fails(self, text: bytes) -> bool:
        try:
            self.tokenizer.encode(text)
        except JobError:
            return True
        return False

    def _first_difference(self, texts: Sequence[bytes], fast: EncodedBatch) -> int | None:
        reference = self.tokenizer.encode_batch(texts, compare=self._compare)
        if _same((fast.ids_T, fast.start_N), reference.ids_T, reference.start_N):
            return None
        for n in range(len(texts)):
            mine = slice(*fast.start_N[n : n + 2].tolist())
            theirs = slice(*reference.start_N[n : n + 2].tolist())
            if not np.array_equal(fast.ids_T[mine], reference.ids_T[theirs]):
                return n
        return None


def _same(one: tuple[NDArray[Any], NDArray[Any]], *other: NDArray[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
