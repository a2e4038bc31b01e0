"""Fast tokenizer backends (extra ``[fast]``): they must give the very ids of the reference, and are not trusted.

A backend is used only after a self-check: hostile strings (every control token whole, doubled, cut and inside words,
all white space, combining marks, emoji, long runs, neighbours of the surrogates, mixed scripts) and documents of the
job itself must give the ids of the reference library. While it runs, every 1,000th document is encoded by both; one
difference fails the job. What a text means (where it is cut, when byte tokens are taken) is decided outside, in
``Tokenizer.encode_batch``, the same for both.

The verdict on the hostile strings may be kept, with the versions of both libraries (``fast_kept``); documents are
compared anew by each process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, JobError
from .encoded import Compare, EncodedBatch, EncodedParts, RawEncoder, find_inexact, parts_of_lists
from .fast_definitions import definition_of_huggingface, definition_of_pieces, definition_of_ranks, id_shift
from .fast_kept import KeptBackend, key_of, read_kept, write_kept
from .tokenizer_base import Tokenizer, is_library_failure

__all__ = ["BACKENDS", "COMPARE_EVERY", "Backend", "CheckedEncoder", "OpenBackend", "hostile_texts", "open_backend"]

COMPARE_EVERY = 1000
"""One document of so many is encoded by the reference as well."""
_SAMPLE_BYTES = 1 << 18
_SAMPLE_DOCUMENTS = 256
_SAMPLE_SHARE = 256
_SPACE_RUNS = tuple(" " * count + end for count in range(1, 80) for end in ("", "x", "\n"))


def _fastokens(definition: str, shift: int = 0, change: Callable[[str], str] | None = None) -> RawEncoder:
    import fastokens  # type: ignore[import-untyped,unused-ignore]

    library = fastokens.Tokenizer.from_json_str(definition)

    def encode(parts: Sequence[str]) -> EncodedParts:
        changed = list(parts) if change is None else [change(part) for part in parts]
        ids, offsets = library.encode_batch_flat(changed, split_special_tokens=True)
        ids_T = np.frombuffer(ids, np.uint32).view(np.int32)
        start_P = np.frombuffer(offsets, np.uint64).astype(np.int64)
        return EncodedParts(ids_T + np.int32(shift) if shift else ids_T, start_P)

    return encode


def _fastokens_sentencepiece(tokenizer: Tokenizer, definition: str) -> RawEncoder:
    """Spaces are written as the model has them here, not by the library: 42 against 31 MB/s with nothing cached."""
    front = (tokenizer.prefix or b"").decode()
    return _fastokens(definition, change=lambda part: (front + part).replace(" ", "\u2581"))


def _kitoken(tokenizer: Tokenizer, _: str) -> RawEncoder:
    import kitoken

    library = kitoken.Kitoken.from_sentencepiece(tokenizer.model)
    return lambda parts: parts_of_lists([library.encode(part) for part in parts])


def _nothing(_: Tokenizer) -> str:
    return ""


@dataclass(frozen=True)
class Backend:
    """A package that may encode faster.

    Attributes:
        package: its name.
        convert: makes what it loads of the model; raises whatever it likes for a model that it cannot do.
        load: makes its encoder of that; may raise as well.
        worth_bytes: text below which loading and checking it costs more than it saves (measured with vocabularies of
            32,768 to 131,072 tokens, nothing kept: 0.3 s of sentencepiece's 4.5 MB/s, 1.3 s of tokenizers' 3 MB/s,
            2.2 s of tiktoken's 22 MB/s).
    """

    package: str
    convert: Callable[[Tokenizer], str]
    load: Callable[[Tokenizer, str], RawEncoder]
    worth_bytes: int


BACKENDS: Mapping[str, tuple[Backend, ...]] = {
    "sentencepiece": (
        Backend("fastokens", definition_of_pieces, _fastokens_sentencepiece, 2 << 20),
        Backend("kitoken", _nothing, _kitoken, 1 << 20),
    ),
    "huggingface": (
        Backend("fastokens", definition_of_huggingface, lambda _, definition: _fastokens(definition), 4 << 20),
    ),
    "tiktoken": (
        Backend(
            "fastokens",
            definition_of_ranks,
            lambda tokenizer, definition: _fastokens(definition, id_shift(tokenizer)),
            64 << 20,
        ),
    ),
}
"""kind -> backends, the first that works is taken."""


@dataclass(frozen=True)
class OpenBackend:
    """A backend that passed the self-check on hostile texts: its package and encoder; or why there is none."""

    package: str = ""
    encoder: RawEncoder | None = None
    reason: str = ""


def open_backend(
    tokenizer: Tokenizer, size_bytes: int | None = None, compare: Compare = find_inexact, kept: Path | None = None
) -> OpenBackend:
    """The first backend for a tokenizer that is installed, can load its model, gives the ids of the reference on
    hostile texts, and is worth it for ``size_bytes`` of text (None: whatever it costs).

    Args:
        tokenizer: the reference.
        size_bytes: text to come.
        compare: see ``Tokenizer.encode_batch``.
        kept: a folder where conversions and verdicts are left and found again; None: nowhere.
    """
    if tokenizer.prefix is None:
        return OpenBackend(reason="the model changes text, so its own offsets are needed")
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
            encoder, wrong = _open_checked(backend, tokenizer, compare, kept if tokenizer.digest else None)
        except BaseException as error:
            if not is_library_failure(error):
                raise
            reasons.append(f"{package} cannot load the model: {str(error)[:200]}")
            continue
        if not wrong:
            return OpenBackend(package, encoder)
        reasons.append(wrong)
    return OpenBackend(reason="; ".join(reasons) or f"there is none for {tokenizer.kind}")


def _open_checked(
    backend: Backend, tokenizer: Tokenizer, compare: Compare, folder: Path | None
) -> tuple[RawEncoder | None, str]:
    """An encoder, and what the self-check found wrong with it."""
    hostile = [*hostile_texts(tokenizer), *_SPACE_RUNS]
    key = key_of(tokenizer, backend.package, hostile)
    kept = read_kept(folder, backend.package, key) if folder is not None else None
    if kept is not None:
        return (None if kept.wrong else backend.load(tokenizer, kept.definition)), kept.wrong
    definition = backend.convert(tokenizer)
    encoder = backend.load(tokenizer, definition)
    texts = [text.encode() for text in hostile]
    wrong = _difference(tokenizer, encoder, texts, compare)
    wrong = wrong and f"{backend.package} differs from the reference on a hostile text: {wrong}"
    if folder is not None:
        write_kept(folder, backend.package, key, KeptBackend("" if wrong else definition, wrong))
    return encoder, wrong


def _difference(tokenizer: Tokenizer, raw: RawEncoder, texts: Sequence[bytes], compare: Compare) -> str:
    """The first text that a backend encodes in another way than the reference, quoted; "" where there is none."""
    fast = tokenizer.encode_batch(texts, raw=raw, compare=compare)
    reference = tokenizer.encode_batch(texts, compare=compare)
    if _same((fast.ids_T, fast.start_N), reference.ids_T, reference.start_N):
        return ""
    for n, text in enumerate(texts):
        mine, theirs = (slice(*batch.start_N[n : n + 2].tolist()) for batch in (fast, reference))
        if not np.array_equal(fast.ids_T[mine], reference.ids_T[theirs]):
            return repr(text.decode()[:80])
    return "where a text ends"


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
        self,
        tokenizer: Tokenizer,
        mode: str,
        compare: Compare = find_inexact,
        size_bytes: int | None = None,
        kept: Path | None = None,
    ) -> None:
        """Open and check a backend.

        Args:
            tokenizer: the reference.
            mode: ``auto``, ``off`` or ``require``.
            compare: see ``Tokenizer.encode_batch``.
            size_bytes: text to come, if known; with ``auto`` a backend must be worth it.
            kept: see ``open_backend``.

        Raises:
            ConfigError: ``TR-TOKENIZER-FAST-MISSING``: one is required and there is none.
        """
        self.tokenizer = tokenizer
        self._compare = compare
        self._mode = mode
        self._count = 0
        self._sampled_bytes = 0
        found = OpenBackend(reason="run.fast is off")
        if mode != "off":
            found = open_backend(tokenizer, size_bytes if mode == "auto" else None, compare, kept)
        self._raw, self.reason = found.encoder, found.reason
        self.backend = found.package or "reference"
        self._require()

    def _require(self) -> None:
        if self._mode == "require" and self._raw is None:
            raise ConfigError(
                "TR-TOKENIZER-FAST-MISSING",
                f"no fast tokenizer backend can be used: {self.reason}",
                "run.fast",
                "a backend that gives the ids of the reference library",
                "pip install tokenreel[fast], or set run.fast: off",
            )

    def check_sample(self, texts: Sequence[bytes]) -> None:
        """Compare on documents of the job; at the first difference the reference takes over.

        Raises:
            ConfigError: a backend is required.
        """
        if self._raw is None or not texts:
            return
        self._sampled_bytes += sum(map(len, texts))
        wrong = _difference(self.tokenizer, self._raw, texts, self._compare)
        if wrong:
            self.reason = f"{self.backend} differs from the reference on a document of the job: {wrong}"
            self.backend, self._raw = "reference", None
            self._require()

    def sample_size(self, sizes: Sequence[int], file_bytes: int = 0) -> int:
        """How many of the first documents of a file to compare, given their sizes in bytes: 256 KiB in all, and of
        further files a 256th part, one document at least (the reference may be 30 times as slow)."""
        limit = max(_SAMPLE_BYTES - self._sampled_bytes, min(_SAMPLE_BYTES, file_bytes // _SAMPLE_SHARE), 1)
        enough = int(np.searchsorted(np.cumsum(sizes), limit)) + 1
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
        num_bytes_T = batch.num_bytes_T
        for n in chosen:
            mine = slice(int(batch.start_N[n]), int(batch.start_N[n + 1]))
            if not _same(self.tokenizer.encode(texts[n]), batch.ids_T[mine], num_bytes_T[mine]):
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


def _same(one: tuple[NDArray[Any], NDArray[Any]], *other: NDArray[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
