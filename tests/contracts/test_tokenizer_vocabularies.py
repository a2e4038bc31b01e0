"""Real vocabularies: the ids of the library that made them, no control token from any text, and ids that stay.

The oracle is each library by itself, called as its documentation says: ``sentencepiece.encode``, ``tokenizers`` with
``encode_special_tokens``, ``tiktoken.encode_ordinary`` with the pattern of the package's own source.
"""

from __future__ import annotations

import json
import random
import sysconfig
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import xxhash
from support.tokenizer_models import VOCABULARIES

from loader.text.encoded import looks_like_control
from loader.text.fast import hostile_texts
from loader.text.tokenizers import GOLDEN_TEXTS, TOKENIZERS, Tokenizer, load_tokenizer, write_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers_real.json"
"""Vocabulary -> ids of ``GOLDEN_TEXTS``, and xxh3-128 of the ids (u4) of all plain hostile texts."""
LONG = (
    "a" * 200_000,
    " " * 200_000,
    "a" * 200_000 + "\U0001f600",
    "\n" * 100_000,
    "\U0001f600" * 50_000,
    "1" * 200_000,
)


@lru_cache
def tokenizer_of(name: str) -> Tokenizer:
    if not VOCABULARIES[name].installed:
        pytest.skip(f"{VOCABULARIES[name].package} is not installed (requirements/test_data.lock)")
    return VOCABULARIES[name].tokenizer()


@lru_cache
def plain_texts() -> list[str]:
    """Hostile texts without any control token of any vocabulary, and real ones."""
    small = Tokenizer.__new__(Tokenizer)
    small.special = {}
    texts = [text for text in (*GOLDEN_TEXTS, *hostile_texts(small)) if "<s>" not in text]
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(7).shuffle(files)
    return texts + [path.read_text(encoding="utf-8", errors="replace")[:20_000] for path in files[:12]]


def test_a_real_vocabulary_of_each_kind_is_installed() -> None:
    installed = {vocabulary.kind for vocabulary in VOCABULARIES.values() if vocabulary.installed}
    assert installed == set(TOKENIZERS), "install requirements/test_data.lock"


@pytest.mark.parametrize("name", VOCABULARIES)
class TestVocabulary:
    def test_ids_are_those_of_the_library(self, name: str) -> None:
        tokenizer, reference = tokenizer_of(name), VOCABULARIES[name].reference()
        for text in (*plain_texts(), *LONG[:2]):
            if tokenizer.lossless or "\u2581" not in text:
                assert tokenizer.encode(text)[0].tolist() == reference(text), text[:60]

    def test_bytes_are_exact(self, name: str) -> None:
        tokenizer = tokenizer_of(name)
        for text in (*plain_texts(), *LONG):
            data = text.encode()
            ids_T, num_bytes_T = tokenizer.encode(data)
            assert num_bytes_T.sum() == len(data)
            assert num_bytes_T.min() >= 0
            spelled = tokenizer.decode_bytes(ids_T)
            if tokenizer.lossless:
                assert spelled == data
                stop = len(ids_T) // 2
                assert tokenizer.decode_bytes(ids_T[:stop]) == data[: num_bytes_T[:stop].sum()]
            elif "\u2581" not in text and len(data) < 1 << 18:
                assert spelled == b" " + data, "a dummy prefix is all that these models add"
                assert num_bytes_T[0] == len(tokenizer.decode_bytes(ids_T[:1])) - 1

    def test_no_control_token_comes_from_text(self, name: str) -> None:
        tokenizer = tokenizer_of(name)
        assert tokenizer.special
        control = set(tokenizer.special.values())
        for special in tokenizer.special:
            for text in (
                special,
                special * 2,
                f"{special[:1]}\n{special[1:]}",
                f"a{special}b",
                f" {special}\n{special}",
            ):
                ids_T, num_bytes_T = tokenizer.encode(text)
                assert not control & set(ids_T.tolist()), text
                assert num_bytes_T.sum() == len(text.encode())
                if tokenizer.lossless:
                    assert tokenizer.decode_bytes(ids_T) == text.encode()

    def test_control_tokens_in_text_are_ordinary_text_to_the_library_too(self, name: str) -> None:
        """Tokens that the library itself can be told to leave alone; those that it matches regardless are cut."""
        tokenizer, reference = tokenizer_of(name), VOCABULARIES[name].reference()
        control = set(tokenizer.special.values())
        compared = 0
        for special in list(tokenizer.special)[:300]:
            text = f"x {special} y{special}{special}\n"
            expected = reference(text)
            if not control & set(expected):
                assert tokenizer.encode(text)[0].tolist() == expected
                compared += 1
        assert compared

    def test_every_token_that_looks_like_control_is_known_as_one(self, name: str) -> None:
        tokenizer = tokenizer_of(name)
        known = set(tokenizer.special.values())
        for i in {tokenizer.bos_id, tokenizer.eos_id} - {None}:
            assert i in known
        assert all(tokenizer.decode_bytes([i]) == b"" for i in known)
        assert sum(looks_like_control(special) for special in tokenizer.special) > 0

    def test_golden_ids_stay(self, name: str) -> None:
        found = golden_of(tokenizer_of(name))
        assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", ["mistral_v3", "llama3", "gpt2"])
def test_it_is_written_and_read_again(name: str, tmp_path: Path) -> None:
    tokenizer, vocabulary = tokenizer_of(name), VOCABULARIES[name]
    written = write_tokenizer(tmp_path, vocabulary.kind, vocabulary.model(), vocabulary.policy())
    loaded = load_tokenizer(tmp_path)
    assert loaded.digest == written.digest != ""
    assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    for text in GOLDEN_TEXTS:
        np.testing.assert_array_equal(loaded.encode(text)[0], tokenizer.encode(text)[0])


def golden_of(tokenizer: Tokenizer) -> dict[str, object]:
    digest = xxhash.xxh3_128()
    small = Tokenizer.__new__(Tokenizer)
    small.special = {}
    for text in hostile_texts(small):
        digest.update(tokenizer.encode(text)[0].astype("<u4").tobytes())
    ids = [tokenizer.encode(text)[0].tolist() for text in GOLDEN_TEXTS]
    return {"ids": ids, "hostile": digest.hexdigest(), "vocab_size": tokenizer.vocab_size}


if __name__ == "__main__":  # freezes the golden file anew; only after an intended change
    found = {name: golden_of(vocabulary.tokenizer()) for name, vocabulary in VOCABULARIES.items()}
    GOLDEN.write_text(json.dumps(found, indent=None, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
