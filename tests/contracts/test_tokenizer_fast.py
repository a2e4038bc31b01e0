"""Every fast backend: the ids of the reference, the self-check before it is used, the comparison while it runs."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.tokenizer_models import VOCABULARIES, sentencepiece_model, small_policy, small_tokenizer

from dataprep.kernels.spelling import find_inexact as find_by_kernel
from loader.errors import ConfigError, JobError
from loader.text import fast
from loader.text.encoded import Compare, EncodedParts, RawEncoder, Spelling, find_inexact, joined_parts
from loader.text.fast import BACKENDS, COMPARE_EVERY, Backend, CheckedEncoder, hostile_texts, open_backend
from loader.text.tokenizers import TOKENIZERS, Tokenizer

REAL = ["mistral_v3", "tekken", "llama3", "deepseek", "gpt2"]


def place_of(n: int) -> str:
    return f"text {n}"


def some_texts() -> list[bytes]:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    return [path.read_bytes()[:30_000].decode(errors="replace").encode() for path in files]


@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies_have_a_backend_that_gives_the_same(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    if not vocabulary.installed:
        pytest.skip(f"{vocabulary.package} is not installed")
    pytest.importorskip(BACKENDS[vocabulary.kind][0].package)
    tokenizer = vocabulary.tokenizer()
    encoder = CheckedEncoder(tokenizer, "require", find_by_kernel)
    assert encoder.backend == BACKENDS[vocabulary.kind][0].package
    assert encoder.reason == ""
    texts = [*some_texts(), *(text.encode() for text in hostile_texts(tokenizer)[:400]), b"a" * 600_000]
    mine, theirs = encoder.encode_batch(texts, place_of), tokenizer.encode_batch(texts)
    np.testing.assert_array_equal(mine.ids_T, theirs.ids_T)
    np.testing.assert_array_equal(mine.start_N, theirs.start_N)
    np.testing.assert_array_equal(mine.num_bytes_T, theirs.num_bytes_T)
    assert not set(mine.ids_T.tolist()) & set(tokenizer.special.values())
    raw, parts = open_backend(tokenizer).encoder, [text.decode() for text in some_texts()[:10]]
    assert raw is not None
    np.testing.assert_array_equal(raw(parts).ids_T, tokenizer.raw_encode(parts).ids_T)  # nothing had to be repaired


@pytest.mark.parametrize("kind", TOKENIZERS)
class TestSmallModels:
    def test_every_kind_has_a_backend(self, kind: str) -> None:
        backend = BACKENDS[kind][0]
        pytest.importorskip(backend.package)
        encoder = CheckedEncoder(small_tokenizer(kind), "auto")
        assert encoder.backend in (backend.package, "reference")
        assert (encoder.reason == "") == (encoder.backend == backend.package)
        texts = [text.encode() for text in hostile_texts(encoder.tokenizer)]
        mine, theirs = encoder.encode_batch(texts, place_of), encoder.tokenizer.encode_batch(texts)
        np.testing.assert_array_equal(mine.ids_T, theirs.ids_T)

    def test_off_means_off_and_little_text_is_not_worth_it(self, kind: str) -> None:
        tokenizer = small_tokenizer(kind)
        assert CheckedEncoder(tokenizer, "off").backend == "reference"
        pytest.importorskip(BACKENDS[kind][0].package)
        small = CheckedEncoder(tokenizer, "auto", size_bytes=1000)
        assert small.backend == "reference"
        assert "not worth" in small.reason

    def test_a_backend_that_lies_in_the_self_check_is_not_used(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokenizer = small_tokenizer(kind)
        use(monkeypatch, kind, lie_about("&&"))
        encoder = CheckedEncoder(tokenizer, "auto")
        assert encoder.backend == "reference"
        assert "differs from the reference on a hostile text" in encoder.reason
        with pytest.raises(ConfigError) as caught:
            CheckedEncoder(tokenizer, "require")
        assert caught.value.code == "TR-TOKENIZER-FAST-MISSING"

    def test_a_backend_that_lies_on_the_sample_is_not_used(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, kind, lie_about("the zebra"))
        encoder = CheckedEncoder(small_tokenizer(kind), "auto")
        assert encoder.backend == "fake"
        encoder.check_sample([b"the horse", b"the zebra"])
        assert encoder.backend == "reference"
        assert "the zebra" in encoder.reason

    def test_a_backend_that_lies_later_fails_the_job(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        use(monkeypatch, kind, lie_about("the zebra"))
        encoder = CheckedEncoder(small_tokenizer(kind), "auto")
        texts = [b"the horse %d" % n for n in range(COMPARE_EVERY - 10)]
        encoder.encode_batch(texts, place_of)
        with pytest.raises(JobError) as caught:
            encoder.encode_batch([b"the zebra %d" % n for n in range(30)], place_of)
        assert caught.value.code == "TR-TOKENIZER-FAST"
        assert caught.value.place == "text 10"
        assert "run.fast: off" in str(caught.value)

    def test_a_backend_that_fails_leaves_the_text_to_the_reference(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(raw: RawEncoder) -> RawEncoder:
            def encode(parts: Sequence[str]) -> EncodedParts:
                if any("zebra" in part for part in parts):
                    raise RuntimeError("no")
                if any("horse" in part for part in parts):
                    return EncodedParts(np.full(len(parts), 1 << 20, np.int32), np.arange(len(parts) + 1))
                return raw(parts)

            return encode

        use(monkeypatch, kind, fail)
        tokenizer = small_tokenizer(kind)
        encoder = CheckedEncoder(tokenizer, "auto")
        assert encoder.backend == "fake"
        for texts in ([b"cat", b"zebra"], [b"horse"]):
            mine = encoder.encode_batch(texts, place_of)
            np.testing.assert_array_equal(mine.ids_T, tokenizer.encode_batch(texts).ids_T)


def use(monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[RawEncoder], RawEncoder]) -> None:
    """Make the reference itself, changed, the only backend of a kind."""

    def load(tokenizer: Tokenizer, definition: str) -> RawEncoder:
        return change(tokenizer.raw_encode)

    monkeypatch.setattr(fast, "BACKENDS", {kind: (Backend("fake", lambda _: "", load, 0),)})
    monkeypatch.setattr(fast, "find_spec", lambda _: True)


def lie_about(word: str) -> Callable[[RawEncoder], RawEncoder]:
    """Encode parts that hold ``word`` letter by letter: the bytes are right, the ids are not."""

    def change(raw: RawEncoder) -> RawEncoder:
        def encode(parts: Sequence[str]) -> EncodedParts:
            ids = [raw([*part] if word in part else [part]).ids_T for part in parts]
            return joined_parts(ids)

        return encode

    return change


def test_a_unigram_model_does_without_where_kitoken_differs() -> None:
    pytest.importorskip("kitoken")
    tokenizer = TOKENIZERS["sentencepiece"](sentencepiece_model("unigram"), small_policy("sentencepiece"))
    encoder = CheckedEncoder(tokenizer, "auto")
    texts = [text.encode() for text in hostile_texts(tokenizer)]
    np.testing.assert_array_equal(encoder.encode_batch(texts, place_of).ids_T, tokenizer.encode_batch(texts).ids_T)


def test_a_model_that_changes_text_and_a_package_that_is_missing_have_no_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = open_backend(small_tokenizer("sentencepiece", lossless=False))
    assert found.encoder is None
    assert "changes text" in found.reason
    monkeypatch.setattr(fast, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="not installed"):
        CheckedEncoder(small_tokenizer("tiktoken"), "require")


def test_a_text_that_cannot_be_encoded_stops_the_job_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer("sentencepiece", lossless=False)
    inner = tokenizer._encode_by_offsets

    def fail(data: bytes) -> tuple[list[int], list[int]]:
        if b"z" in data:  # also in the smallest piece
            raise RuntimeError("no zebras")
        return inner(data)

    monkeypatch.setattr(tokenizer, "_encode_by_offsets", fail)
    encoder = CheckedEncoder(tokenizer, "auto")
    with pytest.raises(JobError, match="no zebras") as caught:
        encoder.encode_batch([b"a  horse", b"a  zebra", b"a  cat"], place_of)
    assert (caught.value.code, caught.value.place) == ("TR-TOKENIZER-TEXT", "text 1")


def test_a_machine_without_memory_is_no_fault_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(_: Tokenizer) -> str:
        raise MemoryError

    backend = replace(BACKENDS["tiktoken"][0], convert=convert, package="numpy")
    monkeypatch.setattr(fast, "BACKENDS", {"tiktoken": (backend,)})
    with pytest.raises(MemoryError):
        open_backend(small_tokenizer("tiktoken"))


def test_a_model_that_the_backend_cannot_load_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(tokenizer: Tokenizer) -> str:
        raise ValueError("unheard of")

    backend = replace(BACKENDS["tiktoken"][0], convert=convert, package="numpy")
    monkeypatch.setattr(fast, "BACKENDS", {"tiktoken": (backend,)})
    encoder = CheckedEncoder(small_tokenizer("tiktoken"), "auto")
    assert encoder.backend == "reference"
    assert "cannot load the model: unheard of" in encoder.reason


@pytest.mark.parametrize("compare", [find_inexact, find_by_kernel])
def test_what_is_not_spelled_is_found(compare: Compare) -> None:
    """Every single change of an id, a part's end or the text, against a slow comparison of joined bytes."""
    rng = np.random.default_rng(3)
    pieces = [b"", b"a", b"b", b"ab", b"abcdefgh", b"abcdefghi", b"abcdefghijklmnopq", b"x" * 40, b"\xff\x00"]
    start_V = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    spelling = Spelling(np.frombuffer(b"".join(pieces) + bytes(8), np.uint8), start_V)
    for _ in range(600):
        lists = [rng.integers(0 if rng.random() < 0.1 else 1, 9, rng.integers(0, 5)).tolist() for _ in range(4)]
        texts = [b"".join(pieces[i] for i in one) for one in lists]
        change = int(rng.integers(4))
        if change < 3 and texts[change]:
            place = int(rng.integers(len(texts[change])))
            kind = rng.integers(3)
            flipped = bytes([texts[change][place] ^ (1 << int(rng.integers(8)))]) if kind == 0 else b""
            texts[change] = texts[change][:place] + flipped + texts[change][place + (kind < 2) :]
        expected_P = [
            b"".join(pieces[i] for i in one) != text or 0 in one for one, text in zip(lists, texts, strict=True)
        ]
        parts = EncodedParts(
            np.array([i for one in lists for i in one], np.int32),
            np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64),
        )
        found_P = compare(parts, spelling, b"".join(texts), np.cumsum([len(text) for text in texts]))
        assert found_P.tolist() == expected_P
