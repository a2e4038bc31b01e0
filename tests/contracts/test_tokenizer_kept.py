"""Conversions and verdicts that are kept for fast backends: found again, and passed over when anything does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.tokenizer_models import small_model, small_policy

from loader.text import fast, fast_kept
from loader.text.fast import BACKENDS, CheckedEncoder, open_backend
from loader.text.tokenizers import TOKENIZERS, Tokenizer, write_tokenizer


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    kind = str(request.param)
    pytest.importorskip(BACKENDS[kind][0].package)
    return write_tokenizer(tmp_path / "tokenizer", kind, small_model(kind), small_policy(kind))


def converted(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """A list that gets an item whenever a model of this kind is converted."""
    backend, calls = BACKENDS[kind][0], list[str]()

    def convert(one: Tokenizer) -> str:
        calls.append(one.kind)
        return backend.convert(one)

    monkeypatch.setattr(fast, "BACKENDS", {kind: (replace(backend, convert=convert),)})
    return calls


def test_what_is_kept_is_used_and_checked_no_more(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, folder = converted(monkeypatch, tokenizer.kind), tmp_path / "fast"
    first = open_backend(tokenizer, kept=folder)
    assert calls == [tokenizer.kind]
    monkeypatch.setattr(fast, "_difference", lambda *_: pytest.fail("it was checked again"))
    again = open_backend(tokenizer, kept=folder)
    assert calls == [tokenizer.kind]
    texts = ["the cat sat on the mat", " \u4f60\u597d \n"]
    assert first.encoder is not None
    assert again.encoder is not None
    assert again.encoder(texts).ids_T.tolist() == first.encoder(texts).ids_T.tolist()


@pytest.mark.parametrize("change", ["flip", "cut", "no definition", "no verdict", "no JSON", "another library"])
def test_what_does_not_fit_is_made_again(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    calls, folder = converted(monkeypatch, tokenizer.kind), tmp_path / "fast"
    open_backend(tokenizer, kept=folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    definition, verdict = (folder / f"{BACKENDS[tokenizer.kind][0].package}.{end}" for end in ("definition", "json"))
    data = definition.read_bytes()
    if change == "flip":
        definition.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif change == "cut":
        definition.write_bytes(data[:-1])
    elif change == "no definition":
        definition.unlink()
    elif change == "no verdict":  # a writer that was killed between the two
        verdict.unlink()
    elif change == "no JSON":
        verdict.write_bytes(b"[1]")
    else:
        monkeypatch.setattr(fast_kept, "version", lambda package: "0.0.1")
    assert open_backend(tokenizer, kept=folder).encoder is not None
    assert len(calls) == 2
    if change != "another library":
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_another_tokenizer_finds_nothing_and_a_failed_check_stays_failed(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, folder = converted(monkeypatch, tokenizer.kind), tmp_path / "fast"
    open_backend(tokenizer, kept=folder)
    policy = small_policy(tokenizer.kind, add_eos=False)
    other = write_tokenizer(tmp_path / "other", tokenizer.kind, tokenizer.model, policy)
    with monkeypatch.context() as patched:
        patched.setattr(fast, "_difference", lambda *_: "'a text'")
        assert open_backend(other, kept=folder).encoder is None
    assert len(calls) == 2
    refused = CheckedEncoder(other, "auto", kept=folder)
    assert (refused.backend, len(calls)) == ("reference", 2)
    assert "differs from the reference on a hostile text: 'a text'" in refused.reason


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "fast").write_bytes(b"a file")
    assert open_backend(tokenizer, kept=tmp_path / "fast").encoder is not None
