"""Files of strangers: what a model may say, and what becomes of texts of which it leaves nothing."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from support.tokenizer_models import small_model, small_policy

from loader.errors import ConfigError, DamageError
from loader.text.encoded import avoid_pattern, cut_parts
from loader.text.tokenizers import TOKENIZERS, Tokenizer, TokenizerPolicy

NO_BORDERS = TokenizerPolicy(add_bos=False, add_eos=False)
TEXTS = (
    "   ",
    "a",
    "the  cat <s> </s>",
    "\u2581 \u4f60 \U0001f600 e\u0301\x00\n",
    "\ufb01 \uff21 THE",
    "<s>" * 50,
    "\ufffd",
)


def changed(**model: Any) -> dict[str, Any]:
    plain = copy.deepcopy(json.loads(small_model("huggingface")))
    plain["model"] |= model
    return dict(plain)


def with_token(name: str, i: object) -> dict[str, Any]:
    vocabulary = {**changed()["model"]["vocab"], name: i}
    return changed(vocab=vocabulary)


def added(name: str, i: int, **more: bool) -> dict[str, Any]:
    plain = changed()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    plain["added_tokens"].append({"id": i, "content": name, **flags, **more})
    return plain


BAD_DEFINITIONS: dict[str, dict[str, Any]] = {
    "an id without end": with_token("foo", float("inf")),
    "no number": with_token("foo", float("nan")),
    "an id twice": with_token("foo", 70),
    "an id far away": with_token("foo", 1 << 24),
    "a negative id": with_token("foo", -1),
    "an added token with an id of another": added("foo", 5),
    "an added token with a hole in front": added("foo", 1000),
    "a panic of the library": changed(continuing_subword_prefix="##"),
    "a merge of nothing": changed(merges=[["zz", "qq"]]),
}


@pytest.mark.parametrize("name", BAD_DEFINITIONS)
def test_a_definition_that_cannot_be_meant_is_damage(name: str) -> None:
    with pytest.raises(DamageError) as caught:
        TOKENIZERS["huggingface"](json.dumps(BAD_DEFINITIONS[name]).encode(), NO_BORDERS)
    assert caught.value.code == "TR-TOKENIZER-MODEL"
    assert len(str(caught.value)) < 600


def test_a_message_about_a_damaged_file_does_not_hold_the_file() -> None:
    for kind in TOKENIZERS:
        for data in (b'{"model": "\xff' + b"x" * 1_000_000, b"\xff" * 1_000_000, b"{" * 1_000_000):
            with pytest.raises(DamageError) as caught:
                TOKENIZERS[kind](data, NO_BORDERS)
            assert len(str(caught.value)) < 1000


def test_fields_of_other_models_and_added_tokens_in_order_are_no_damage() -> None:
    size = max(changed()["model"]["vocab"].values()) + 1
    for plain in (changed(unk_id=3), changed(unk_id=10**6), added("foo", size), changed(dropout=0.9)):
        tokenizer = TOKENIZERS["huggingface"](json.dumps(plain).encode(), NO_BORDERS)
        ids_T, _ = tokenizer.encode("the foo")
        assert tokenizer.decode_bytes(ids_T) == b"the foo"
        np.testing.assert_array_equal(tokenizer.encode("the foo")[0], ids_T)


def test_a_byte_of_text_is_no_border_token() -> None:
    for border in ("bos", "eos", "pad"):
        with pytest.raises(ConfigError, match="token of a byte") as caught:
            TOKENIZERS["huggingface"](small_model("huggingface"), TokenizerPolicy(**{border: "a"}))  # type: ignore[arg-type]
        assert caught.value.code == "TR-TOKENIZER-BORDER"


def lossy_definitions() -> dict[str, dict[str, Any]]:
    """Models without byte tokens or with normalisers that lose text, each with control tokens at id 0 or near it."""
    special = [
        {"id": i, "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, name in enumerate(("[CLS]", "<s>"))
    ]
    words = {"[CLS]": 0, "<s>": 1, "the": 2, "a": 3, "cat": 4, "[UNK]": 5}
    pieces = [["[CLS]", -1.0], ["<s>", -1.0], *([letter, -3.0] for letter in "thea c\u2581")]
    models = {
        "pieces": {"type": "WordPiece", "vocab": words, "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
        | {"max_input_chars_per_word": 100},
        "unigram": {
            "type": "Unigram",
            "vocab": [*pieces, ["<unk>", 0.0]],
            "unk_id": len(pieces),
            "byte_fallback": False,
        },
        "letters": {"type": "BPE", "vocab": {"[CLS]": 0, "<s>": 1, "a": 2, "t": 3}, "merges": []},
        "byte level": changed()["model"],
    }
    normalizers: dict[str, dict[str, Any]] = {
        "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
        "nfkc": {"type": "NFKC"},
        "to control": {"type": "Replace", "pattern": {"String": "e"}, "content": "[CLS]"},
        "nothing": {"type": "Replace", "pattern": {"Regex": "[^b]"}, "content": ""},
        "bert": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
        | {"strip_accents": None},
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        f"{model}, {rule}": {
            "version": "1.0",
            "added_tokens": changed()["added_tokens"] if model == "byte level" else special,
            "normalizer": normalizers[rule],
            "pre_tokenizer": level if model == "byte level" else {"type": "BertPreTokenizer"},
            "model": models[model],
        }
        for model in models
        for rule in normalizers
    }


@pytest.mark.parametrize("name", lossy_definitions())
def test_what_a_model_leaves_out_is_shared_out_and_never_a_control_token(name: str) -> None:
    tokenizer = TOKENIZERS["huggingface"](json.dumps(lossy_definitions()[name]).encode(), NO_BORDERS)
    assert not tokenizer.lossless
    assert tokenizer.special
    for text in TEXTS:
        check_shares(tokenizer, text)


def check_shares(tokenizer: Tokenizer, text: str) -> None:
    """Ranges of tokens are ranges of the text, and without byte tokens they end between code points."""
    data = text.encode()
    ids_T, num_bytes_T = tokenizer.encode(text)
    assert len(ids_T) > 0
    assert num_bytes_T.min() >= 0
    assert num_bytes_T.sum() == len(data)
    assert not set(ids_T.tolist()) & set(tokenizer.special.values())
    if tokenizer._byte_ids is None:
        for stop in np.cumsum(num_bytes_T).tolist():
            data[:stop].decode()


def test_ranks_that_cannot_be_meant_are_damage() -> None:
    ranks = small_model("tiktoken")
    tekken = {"pattern": r"[\s\S]", "default_vocab_size": 356, "default_num_special_tokens": 100}
    vocabulary = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()} for i in range(256)]
    names = [{"rank": 0, "token_str": "<s>"}, {"rank": 1, "token_str": "<s>"}]
    twice = [*vocabulary[:255], {**vocabulary[0], "rank": 255}]
    bad: list[bytes] = [
        ranks + ranks.splitlines()[-1].split()[0] + b" 5000\n",
        *(ranks + b"Zm9vYmFy " + rank + b"\n" for rank in (b"5", b"-5", b"5_000", b"9" * 30, b"9" * 5000, b"x", b"")),
        *(
            json.dumps({"config": {**tekken, **change}, "vocab": vocabulary}).encode()
            for change in ({"default_vocab_size": float("inf")}, {"pattern": None}, {"default_vocab_size": 99})
        ),
        json.dumps({"config": tekken, "vocab": vocabulary, "special_tokens": names}).encode(),
        json.dumps({"config": {**tekken, "default_vocab_size": 400}, "vocab": [*vocabulary, twice[-1]]}).encode(),
    ]
    for model in bad:
        with pytest.raises(DamageError) as caught:
            TOKENIZERS["tiktoken"](model, small_policy("tiktoken"))
        assert caught.value.code == "TR-TOKENIZER-MODEL"
    sound = json.dumps({"config": tekken, "vocab": vocabulary}).encode()
    assert TOKENIZERS["tiktoken"](sound, NO_BORDERS).encode("ab")[0].tolist() == [197, 198]
    blank = b"\n\n" + ranks.replace(b"\n", b"\r\n\r\n")
    assert TOKENIZERS["tiktoken"](blank, small_policy("tiktoken")).lossless


@pytest.mark.parametrize("lossless", [True, False])
def test_declared_symbols_with_spaces_are_known_by_their_own_ids(lossless: bool) -> None:
    model = small_model("sentencepiece", lossless, ("<\u2581x>", "<a b>"))
    tokenizer = TOKENIZERS["sentencepiece"](model, TokenizerPolicy())
    assert {tokenizer.special["< x>"], tokenizer.special["<a b>"]} == {4, 5}
    for text in ("< x> <\u2581x> <a b>", "   "):
        ids_T, num_bytes_T = tokenizer.encode(text)
        assert not set(ids_T.tolist()) & set(tokenizer.special.values())
        assert num_bytes_T.sum() == len(text.encode())


def test_cuts_are_those_of_a_plain_search() -> None:
    """Behind the first character of each symbol, whatever beginnings the symbols share."""
    symbols = [f"<|r{n}|>" for n in range(300)] + [
        "<",
        "<|",
        "<|r1",
        "\u4f60\u597d",
        "\u4f60\u4eec",
        "[a",
        "[a" * 40,
        "a.c",
    ]
    symbols += ["x" * n for n in range(2, 60)]
    pattern = avoid_pattern(symbols)
    rng = np.random.default_rng(5)
    alphabet = ["<", "|", "r", "1", "|>", "<|r17|>", "\u4f60", "\u597d", "\u4eec", "[", "a", ".", "c", "x", "xx", "abc"]
    for _ in range(300):
        text = "".join(alphabet[i] for i in rng.integers(0, len(alphabet), 12))
        cuts = {0, len(text)} | {
            match.start() + 1
            for symbol in symbols
            if len(symbol) > 1
            for match in re.finditer(f"(?={re.escape(symbol)})", text)
        }
        places = sorted(cuts)
        expected = [text[a:b].encode() for a, b in itertools.pairwise(places)]
        assert cut_parts(text.encode(), pattern) == expected
    assert avoid_pattern(["<", "x"]) is None
