"""Patterns of strangers: slow ones are refused before they are used, and long texts end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.tokenizer_models import VOCABULARIES, small_model, small_policy, small_tokenizer

from loader.errors import ConfigError
from loader.text.tokenizer_probe import check_tokenizer_speed, probe_texts
from loader.text.tokenizers import TOKENIZERS, write_tokenizer

MEGABYTES = ("a" * 1_000_000, "a" * 999_996 + "\U0001f600", " " * 1_000_000, "\n" * 1_000_000, "\u4f60" * 333_333)


def with_pattern(pattern: str) -> bytes:
    plain = json.loads(small_model("huggingface"))
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    plain["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
    return json.dumps(plain).encode()


def test_a_pattern_without_end_is_refused(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(
        tmp_path, "huggingface", with_pattern("(?:\u4f60|\u4f60)*b|."), small_policy("huggingface")
    )
    with pytest.raises(ConfigError, match="did not get through") as caught:
        check_tokenizer_speed(tmp_path, tokenizer, 2)
    assert caught.value.code == "TR-TOKENIZER-SLOW"


@pytest.mark.slow
def test_a_sound_pattern_passes_and_a_process_that_dies_does_not(tmp_path: Path) -> None:
    policy = replace(small_policy("tiktoken"), pattern=r"\w+|\W")
    tokenizer = write_tokenizer(tmp_path, "tiktoken", small_model("tiktoken"), policy)
    check_tokenizer_speed(tmp_path, tokenizer)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="ended with code 1"):
        check_tokenizer_speed(tmp_path, tokenizer)


def test_what_has_no_pattern_or_a_known_one_is_not_tried(tmp_path: Path) -> None:
    for kind in ("sentencepiece", "tiktoken"):
        check_tokenizer_speed(tmp_path / "nowhere", small_tokenizer(kind))


def test_a_match_that_the_library_gives_up_is_encoded_in_pieces(capfd: pytest.CaptureFixture[str]) -> None:
    """Oniguruma's limit is a panic of the library; the text still comes back whole."""
    tokenizer = TOKENIZERS["huggingface"](with_pattern(r"(?:a|a)*b|."), small_policy("huggingface"))
    text = "a" * 26 + " the end"
    ids_T, num_bytes_T = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids_T) == text.encode()
    assert num_bytes_T.sum() == len(text)
    assert "retry-limit" in capfd.readouterr().err, "the limit was met"


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("place", range(len(MEGABYTES)))
@pytest.mark.slow
def test_a_megabyte_of_anything_ends(kind: str, place: int) -> None:
    tokenizer = small_tokenizer(kind)
    ids_T, num_bytes_T = tokenizer.encode(MEGABYTES[place])
    assert num_bytes_T.sum() == len(MEGABYTES[place].encode())
    assert tokenizer.decode_bytes(ids_T) == MEGABYTES[place].encode()


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.slow
def test_real_patterns_get_through_the_probe(name: str) -> None:
    vocabulary = VOCABULARIES[name]
    if not vocabulary.installed:
        pytest.skip(f"{vocabulary.package} is not installed")
    tokenizer = vocabulary.tokenizer()
    for text in (*probe_texts(), *MEGABYTES):
        assert tokenizer.encode(text)[1].sum() == len(text.encode())
