"""Every tokenizer kind of the table: nothing lost, no control id from text, damage found, a changed library refused."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from loader.canonical import canonical_json, digest_of
from loader.errors import DamageError, RefusedError
from loader.text import tokenizers
from loader.text.tokenizers import GOLDEN_TEXTS, TOKENIZERS, load_tokenizer, write_tokenizer

TEXT = "Now is the time for all good people to come to the aid of the party. <s> </s> <unk> x = [1, 2];\n" * 40
HOSTILE = (
    *GOLDEN_TEXTS,
    "\u2581",
    "a\u2581 \u2581\u2581b",
    "\x00",
    "\r",
    "\t\x0b\x0c\x1c\x85\u00a0\u1680\u2000\u200b\u2028\u2029\u202f\u205f\u3000\ufeff",
    "\U0010ffff\ud7ff\ue000",
    "x" * 600_000,
    "word and  spaces " * 40_000,
    " " * 300_000,
    "\u4f60" * 100_000,
)


@lru_cache
def model_of(kind: str, lossless: bool = True, symbols: tuple[str, ...] = ()) -> bytes:
    import sentencepiece

    assert kind == "sentencepiece"
    model = io.BytesIO()
    options: dict[str, object] = (
        {"normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False}
        if lossless
        else {}
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()),
        model_writer=model,
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
        pad_id=3,
        user_defined_symbols=list(symbols),
        **options,
    )
    return model.getvalue()


@pytest.mark.parametrize("kind", TOKENIZERS)
class TestTokenizer:
    @pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:12]))
    def test_gives_every_byte_back(self, kind: str, text: str) -> None:
        tokenizer = TOKENIZERS[kind](model_of(kind), add_bos=True, add_eos=True)
        assert tokenizer.lossless
        ids_T, num_bytes_T = tokenizer.encode(text)
        data = text.encode()
        assert tokenizer.decode_bytes(ids_T) == data
        assert num_bytes_T.sum() == len(data)
        assert not set(ids_T.tolist()) & {0, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}
        stop = len(ids_T) // 2
        assert tokenizer.decode_bytes(ids_T[:stop]) == data[: num_bytes_T[:stop].sum()]

    def test_chunks_of_a_long_text_give_the_ids_of_the_whole(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        tokenizer = TOKENIZERS[kind](model_of(kind), add_bos=True, add_eos=True)
        whole_T, _ = tokenizer.encode(TEXT)
        monkeypatch.setattr(tokenizers, "_CHUNK_BYTES", 64)
        chunked_T, _ = tokenizer.encode(TEXT)
        np.testing.assert_array_equal(whole_T, chunked_T)

    def test_lossy_model_is_marked_and_covers_the_text(self, kind: str) -> None:
        tokenizer = TOKENIZERS[kind](model_of(kind, lossless=False), add_bos=True, add_eos=True)
        assert not tokenizer.lossless
        assert tokenizer.bytes_of_ids() is None
        for text in ("  two  spaces  ", "\ufb01ne \uff21 e\u0301", "   ", "\u4f60 x\n\n"):
            ids_T, num_bytes_T = tokenizer.encode(text)
            assert len(ids_T) == len(num_bytes_T) > 0
            assert num_bytes_T.min() >= 0
            assert num_bytes_T.sum() == len(text.encode())

    @pytest.mark.parametrize("lossless", [True, False])
    def test_symbols_written_like_control_tokens_do_not_match_text(self, kind: str, lossless: bool) -> None:
        symbols = ("<|end|>", "[INST]", "plain")
        model = model_of(kind, lossless, symbols)
        tokenizer = TOKENIZERS[kind](model, add_bos=True, add_eos=True)
        assert tokenizer.lossless == lossless
        text = "x <|end|><|end|> [INST] plain <|end|"
        ids_T, num_bytes_T = tokenizer.encode(text)
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        forbidden = {processor.piece_to_id(symbol) for symbol in symbols[:2]}
        assert forbidden <= set(processor.encode(text)), "the model by itself would match them"
        assert not forbidden & set(ids_T.tolist())
        assert processor.piece_to_id("plain") in ids_T
        assert num_bytes_T.sum() == len(text)
        if lossless:
            assert tokenizer.decode_bytes(ids_T) == text.encode()

    def test_empty_text_has_no_tokens(self, kind: str) -> None:
        for lossless in (True, False):
            ids_T, num_bytes_T = TOKENIZERS[kind](model_of(kind, lossless), add_bos=True, add_eos=True).encode("")
            assert len(ids_T) == len(num_bytes_T) == 0

    def test_policy_is_kept_and_part_of_the_digest(self, kind: str, tmp_path: Path) -> None:
        digests = set()
        for add_bos, add_eos in ((True, True), (False, True), (True, False)):
            folder = tmp_path / f"{add_bos}{add_eos}"
            written = write_tokenizer(folder, kind, model_of(kind), add_bos=add_bos, add_eos=add_eos)
            loaded = load_tokenizer(folder)
            assert (loaded.bos_id is not None, loaded.eos_id is not None) == (add_bos, add_eos)
            assert loaded.digest == written.digest
            digests.add(loaded.digest)
        assert len(digests) == 3

    def test_any_flipped_byte_is_found(self, kind: str, tmp_path: Path) -> None:
        write_tokenizer(tmp_path, kind, model_of(kind), add_bos=True, add_eos=True)
        rng = np.random.default_rng(0)
        for path in sorted(tmp_path.iterdir()):
            good = path.read_bytes()
            for place in rng.integers(0, len(good), 40):
                bad = bytearray(good)
                bad[place] ^= 1 << int(rng.integers(8))
                path.write_bytes(bad)
                with pytest.raises((DamageError, RefusedError)):
                    load_tokenizer(tmp_path)
            path.write_bytes(good)
        load_tokenizer(tmp_path)

    def test_missing_folder_and_foreign_bytes_are_damage(self, kind: str, tmp_path: Path) -> None:
        with pytest.raises(DamageError, match="cannot read"):
            load_tokenizer(tmp_path / "nowhere")
        with pytest.raises(DamageError, match="cannot read the model"):
            TOKENIZERS[kind](b"no model at all", add_bos=True, add_eos=True)

    def test_other_golden_ids_refuse(self, kind: str, tmp_path: Path) -> None:
        write_tokenizer(tmp_path, kind, model_of(kind), add_bos=True, add_eos=True)
        path = tmp_path / "tokenizer.json"
        about = json.loads(path.read_bytes())
        del about["digest"]
        about["golden"][0]["ids"][0] += 1
        path.write_bytes(canonical_json({**about, "digest": digest_of(about)}))
        with pytest.raises(RefusedError, match="encodes") as caught:
            load_tokenizer(tmp_path)
        assert caught.value.code == "TR-TOKENIZER-GOLDEN"

    def test_unknown_id_is_damage(self, kind: str) -> None:
        tokenizer = TOKENIZERS[kind](model_of(kind), add_bos=True, add_eos=True)
        with pytest.raises(DamageError):
            tokenizer.decode_bytes([tokenizer.vocab_size])
