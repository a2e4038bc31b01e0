"""Every tokenizer kind of the table: nothing lost, no control id from text, damage found, a changed library refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from support.tokenizer_models import LINES, LOSSY_KINDS, small_model, small_policy, small_tokenizer

from dataprep.kernels.spelling import find_inexact as find_by_kernel
from dataprep.tokenizer_config import HuggingFaceConfig, SentencepieceConfig, TiktokenConfig, TokenizerConfig
from loader.canonical import canonical_json, digest_of
from loader.errors import ConfigError, DamageError, RefusedError
from loader.text import encoded
from loader.text.encoded import Compare, EncodedParts, find_inexact
from loader.text.tokenizers import (
    GOLDEN_TEXTS,
    MODEL_FILES,
    TOKENIZERS,
    TokenizerPolicy,
    load_tokenizer,
    stored_policy,
    write_tokenizer,
)

TEXT = "\n".join(LINES * 8)
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


@pytest.mark.parametrize("kind", TOKENIZERS)
class TestTokenizer:
    @pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:12]))
    def test_gives_every_byte_back(self, kind: str, text: str) -> None:
        tokenizer = small_tokenizer(kind)
        assert tokenizer.lossless
        ids_T, num_bytes_T = tokenizer.encode(text)
        data = text.encode()
        assert tokenizer.decode_bytes(ids_T) == data
        assert num_bytes_T.sum() == len(data)
        assert not set(ids_T.tolist()) & set(tokenizer.special.values())
        stop = len(ids_T) // 2
        assert tokenizer.decode_bytes(ids_T[:stop]) == data[: num_bytes_T[:stop].sum()]

    def test_chunks_of_a_long_text_give_the_ids_of_the_whole(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        tokenizer = small_tokenizer(kind)
        whole_T, _ = tokenizer.encode(TEXT)
        monkeypatch.setattr(encoded, "_CHUNK_BYTES", 64)
        chunked_T, _ = tokenizer.encode(TEXT)
        np.testing.assert_array_equal(whole_T, chunked_T)

    def test_policy_is_kept_and_part_of_the_digest(self, kind: str, tmp_path: Path) -> None:
        digests = set()
        for add_bos, add_eos in ((True, True), (False, True), (True, False)):
            folder = tmp_path / f"{add_bos}{add_eos}"
            policy = small_policy(kind, add_bos=add_bos, add_eos=add_eos)
            written = write_tokenizer(folder, kind, small_model(kind), policy)
            loaded = load_tokenizer(folder)
            assert (loaded.bos_id is not None, loaded.eos_id is not None) == (add_bos, add_eos)
            assert loaded.digest == written.digest
            digests.add(loaded.digest)
        assert len(digests) == 3

    def test_any_flipped_byte_is_found(self, kind: str, tmp_path: Path) -> None:
        write_tokenizer(tmp_path, kind, small_model(kind), small_policy(kind))
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
        for junk in (
            b"no model at all",
            b"",
            b"{}",
            b"[1]",
            b'{"model": 3}',
            b"\xff\xfe",
            b'{"config": {}}',
            b"YQ== 0\n",
        ):
            with pytest.raises(DamageError) as caught:
                TOKENIZERS[kind](junk, small_policy(kind))
            assert caught.value.code == "TR-TOKENIZER-MODEL"

    def test_other_golden_ids_refuse(self, kind: str, tmp_path: Path) -> None:
        write_tokenizer(tmp_path, kind, small_model(kind), small_policy(kind))
        path = tmp_path / "tokenizer.json"
        about = json.loads(path.read_bytes())
        del about["digest"]
        about["golden"][0]["ids"][0] += 1
        path.write_bytes(canonical_json({**about, "digest": digest_of(about)}))
        with pytest.raises(RefusedError, match="encodes") as caught:
            load_tokenizer(tmp_path)
        assert caught.value.code == "TR-TOKENIZER-GOLDEN"

    def test_a_border_token_that_is_not_known_is_a_configuration_error(self, kind: str) -> None:
        policy = replace(small_policy(kind), bos="<nobody>")
        with pytest.raises(ConfigError, match="<nobody>") as caught:
            TOKENIZERS[kind](small_model(kind), policy)
        assert caught.value.code == "TR-TOKENIZER-BORDER"
        assert "'</s>'" in str(caught.value), "the control tokens that there are are listed"
        chosen = TOKENIZERS[kind](small_model(kind), replace(policy, bos="</s>", eos="<s>", pad="<s>"))
        assert chosen.bos_id == small_tokenizer(kind).eos_id
        assert chosen.eos_id == chosen.pad_id == small_tokenizer(kind).bos_id

    def test_a_batch_is_its_texts_one_by_one(self, kind: str) -> None:
        tokenizer = small_tokenizer(kind)
        texts = [text.encode() for text in (*HOSTILE[:10], "", TEXT, "", *tokenizer.special)]
        batch = tokenizer.encode_batch(texts)
        assert len(batch.start_N) == len(texts) + 1
        for n, text in enumerate(texts):
            ids_T, num_bytes_T = tokenizer.encode(text)
            np.testing.assert_array_equal(batch.ids_T[batch.start_N[n] : batch.start_N[n + 1]], ids_T)
            np.testing.assert_array_equal(batch.num_bytes_T[batch.start_N[n] : batch.start_N[n + 1]], num_bytes_T)

    def test_empty_text_has_no_tokens(self, kind: str) -> None:
        ids_T, num_bytes_T = small_tokenizer(kind).encode("")
        assert len(ids_T) == len(num_bytes_T) == 0
        assert len(small_tokenizer(kind).encode_batch([]).ids_T) == 0

    def test_no_disguise_of_a_control_token_yields_it(self, kind: str) -> None:
        tokenizer = small_tokenizer(kind)
        for name in tokenizer.special:
            text = f"{name} {name}{name} a{name}b\n{name[:1]}\n{name[1:]}{name[:-1]}{name}"
            ids_T, _ = tokenizer.encode(text)
            assert not set(ids_T.tolist()) & set(tokenizer.special.values())
            assert tokenizer.decode_bytes(ids_T) == text.encode()

    def test_what_a_description_says_is_checked_and_other_versions_are_refused(self, kind: str, tmp_path: Path) -> None:
        write_tokenizer(tmp_path, kind, small_model(kind), small_policy(kind))
        path = tmp_path / "tokenizer.json"
        about = json.loads(path.read_bytes())
        del about["digest"]
        changes: tuple[tuple[dict[str, object], str, str], ...] = (
            ({"version": 1}, "TR-TOKENIZER-KIND", "build the Dataset again"),
            ({"kind": "unheard of"}, "TR-TOKENIZER-KIND", "sentencepiece, huggingface, tiktoken"),
            ({"bos_id": about["bos_id"] + 1}, "TR-TOKENIZER-GOLDEN", "bos_id is"),
            ({"eos_id": None}, "TR-TOKENIZER-GOLDEN", "eos_id is"),
            ({"lossless": False}, "TR-TOKENIZER-GOLDEN", "lossless is"),
            ({"model_hash": "0"}, "TR-TOKENIZER-DAMAGED", "the model is not"),
        )
        for change, code, words in changes:
            path.write_bytes(canonical_json({**about, **change, "digest": digest_of({**about, **change})}))
            with pytest.raises((DamageError, RefusedError), match=words) as caught:
                load_tokenizer(tmp_path)
            assert caught.value.code == code
        for name in about:
            less = {key: value for key, value in about.items() if key != name}
            path.write_bytes(canonical_json({**less, "digest": digest_of(less)}))
            with pytest.raises((DamageError, RefusedError)):
                load_tokenizer(tmp_path)

    def test_a_stored_policy_is_found_in_its_folder_alone(self, kind: str, tmp_path: Path) -> None:
        assert stored_policy(tmp_path) is None
        path = tmp_path / "tokenizer.json"
        path.write_bytes(small_model("huggingface"))
        assert stored_policy(tmp_path) is None, "a tokenizer.json of the library lies there, not a description"
        policy = replace(small_policy(kind), bos="</s>")
        write_tokenizer(tmp_path, kind, small_model(kind), policy)
        assert stored_policy(tmp_path) == policy
        about = json.loads(path.read_bytes())
        about["version"] = 1
        del about["digest"]
        path.write_bytes(canonical_json({**about, "digest": digest_of(about)}))
        with pytest.raises(RefusedError, match="build the Dataset again"):
            stored_policy(tmp_path)

    def test_a_folder_loaded_by_a_configuration_has_the_same_digest(self, kind: str, tmp_path: Path) -> None:
        policy = replace(small_policy(kind), bos="</s>", eos="<s>", pad="<s>")
        written = write_tokenizer(tmp_path / "a", kind, small_model(kind), policy)
        model = tmp_path / "a" / MODEL_FILES[kind]
        blocks = {"sentencepiece": SentencepieceConfig, "huggingface": HuggingFaceConfig, "tiktoken": TiktokenConfig}
        config = TokenizerConfig(**{kind: blocks[kind](load=str(model))})  # type: ignore[arg-type]
        again = write_tokenizer(tmp_path / "b", kind, model.read_bytes(), config.policy(model))
        assert again.digest == written.digest
        other = replace(config, bos="<s>").policy(model)
        assert (other.bos, other.eos) == ("<s>", "<s>"), "what the configuration says goes first"

    def test_a_wrong_border_is_found_also_where_none_is_added(self, kind: str) -> None:
        for border in ("bos", "eos", "pad"):
            policy = replace(small_policy(kind, add_bos=False, add_eos=False), **{border: "<nobody>"})
            with pytest.raises(ConfigError, match="<nobody>"):
                TOKENIZERS[kind](small_model(kind), policy)

    @pytest.mark.parametrize("compare", [find_inexact, find_by_kernel])
    def test_an_honest_library_needs_no_repair_and_each_lie_is_one(self, kind: str, compare: Compare) -> None:
        """The repair would hide a check that finds too much, so repairs are counted."""
        tokenizer = small_tokenizer(kind)
        texts = [line.encode() for line in LINES if "\u2581" not in line]
        honest = tokenizer.encode_batch(texts, compare=compare)
        assert honest.num_repaired == 0
        lies = 0
        for p in range(len(texts)):
            for change in (-1, 1):

                def lie(parts: Sequence[str], p: int = p, change: int = change) -> EncodedParts:
                    found = tokenizer.raw_encode(parts)
                    ids = found.ids_T.copy()
                    place = int(found.start_P[p + 1]) - 1
                    ids[place] = (ids[place] + change) % tokenizer.vocab_size
                    return EncodedParts(ids, found.start_P)

                batch = tokenizer.encode_batch(texts, raw=lie, compare=compare)
                assert batch.num_repaired == 1
                np.testing.assert_array_equal(batch.ids_T, honest.ids_T)
                lies += 1
        assert lies == 2 * len(texts) > 4

    @pytest.mark.parametrize("lie", ["overlap", "mute", "short", "long", "falling", "outside"])
    def test_a_backend_whose_answer_has_no_shape_is_not_read(self, kind: str, lie: str) -> None:
        """Each would make the compiled check read beside its arrays."""
        tokenizer = small_tokenizer(kind)
        texts = [b"the cat sat", b"on the mat", b"and the dog"]
        seen = []

        def raw(parts: Sequence[str]) -> EncodedParts:
            found = tokenizer.raw_encode(parts)
            ids, start = found.ids_T, found.start_P.copy()
            if lie == "overlap":
                start[1:-1] -= 1
            elif lie == "mute":  # a control token between the parts, which spells nothing
                mute = np.int32(next(iter(tokenizer.special.values())))
                ids = np.insert(ids, int(start[1]), mute)
                start[2:] += 1
            elif lie == "short":
                start = start[:-1]
            elif lie == "long":
                start[-1] += 1 << 40
            elif lie == "falling":
                start[1] = start[2] + 1
            else:
                ids = ids + np.int32(tokenizer.vocab_size)
            seen.append(lie)
            return EncodedParts(ids, start)

        honest = tokenizer.encode_batch(texts)
        batch = tokenizer.encode_batch(texts, raw=raw, compare=find_by_kernel)
        np.testing.assert_array_equal(batch.ids_T, honest.ids_T)
        np.testing.assert_array_equal(batch.start_N, honest.start_N)
        assert seen == [lie]
        assert batch.num_repaired == {"overlap": 3, "mute": 1}.get(lie, 0)

    def test_unknown_id_is_damage(self, kind: str) -> None:
        tokenizer = small_tokenizer(kind)
        with pytest.raises(DamageError):
            tokenizer.decode_bytes([tokenizer.vocab_size])


class TestLossyTokenizer:
    @pytest.mark.parametrize("kind", LOSSY_KINDS)
    def test_it_is_marked_and_covers_the_text(self, kind: str) -> None:
        tokenizer = small_tokenizer(kind, lossless=False)
        assert not tokenizer.lossless
        assert tokenizer.bytes_of_ids() is None
        for text in ("  two  spaces  ", "\ufb01ne \uff21 e\u0301", "   ", "\u4f60 x\n\n", "plain", "<s> x </s>", "A"):
            ids_T, num_bytes_T = tokenizer.encode(text)
            assert len(ids_T) == len(num_bytes_T) > 0
            assert num_bytes_T.min() >= 0
            assert num_bytes_T.sum() == len(text.encode())
            assert not set(ids_T.tolist()) & set(tokenizer.special.values())

    @pytest.mark.parametrize("kind", LOSSY_KINDS)
    def test_empty_text_has_no_tokens(self, kind: str) -> None:
        assert len(small_tokenizer(kind, lossless=False).encode("")[0]) == 0

    def test_ranks_whose_pattern_leaves_text_out_are_refused(self) -> None:
        policy = replace(small_policy("tiktoken"), pattern=r"\w+")
        with pytest.raises(ConfigError, match="leaves out") as caught:
            TOKENIZERS["tiktoken"](small_model("tiktoken"), policy)
        assert caught.value.code == "TR-TOKENIZER-PATTERN"
        with pytest.raises(ConfigError, match="no regular expression"):
            TOKENIZERS["tiktoken"](small_model("tiktoken"), replace(policy, pattern="(unclosed"))

    def test_special_ids_that_are_taken_are_refused(self) -> None:
        for special in ({"<s>": 3}, {"<s>": 5000, "</s>": 5000}):
            with pytest.raises(ConfigError) as caught:
                TOKENIZERS["tiktoken"](
                    small_model("tiktoken"), replace(small_policy("tiktoken"), special_tokens=special)
                )
            assert caught.value.code == "TR-TOKENIZER-SPECIAL"


@pytest.mark.parametrize("bytes_too", [False, True])
def test_control_tokens_that_are_pieces_of_the_model_do_not_match_text(bytes_too: bool) -> None:
    """A unigram model takes ``</s>`` in text for its piece, whatever the library is told about special tokens."""
    names = ["<unk>", "<s>", "</s>"]
    pieces = [[name, 0.0] for name in names] + [[letter, -4.0] for letter in "\u2581abcxyz<>/s \n\t"]
    pieces += [[f"<0x{byte:02X}>", -9.0] for byte in range(256)] if bytes_too else []
    added = [
        {"id": i, "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, name in enumerate(names)
    ]
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": bytes_too}
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    plain = {"version": "1.0", "added_tokens": added, "normalizer": space, "model": model}
    tokenizer = TOKENIZERS["huggingface"](json.dumps(plain).encode(), TokenizerPolicy())
    assert tokenizer.lossless == bytes_too
    library = tokenizers.Tokenizer.from_str(json.dumps(plain))
    library.encode_special_tokens = True
    text = "ab</s> c<s></s>\nzz"
    assert {1, 2} <= set(library.encode(text).ids), "the library by itself gives control ids"
    ids_T, num_bytes_T = tokenizer.encode(text)
    assert not {1, 2} & set(ids_T.tolist())
    assert num_bytes_T.sum() == len(text)
    if bytes_too:
        assert tokenizer.decode_bytes(ids_T) == text.encode()


@pytest.mark.parametrize("lossless", [True, False])
@pytest.mark.parametrize("kind", LOSSY_KINDS)
def test_symbols_written_like_control_tokens_do_not_match_text(kind: str, lossless: bool) -> None:
    """Symbols that a model's maker declared, but not as control tokens."""
    symbols = ("<|end|>", "[INST]", "plain", "<<|end|>")
    tokenizer = small_tokenizer(kind, lossless, symbols)
    assert tokenizer.lossless == lossless
    text = "x <|end|><|end|> [INST] plain <|end| <<|end|> [[INST]]"
    ids_T, num_bytes_T = tokenizer.encode(text)
    by_itself = own_ids(kind, small_model(kind, lossless, symbols))
    forbidden = {by_itself(symbol)[-1] for symbol in symbols if symbol != "plain"}
    assert forbidden <= set(by_itself(text)), "the library by itself matches them"
    assert not forbidden & set(ids_T.tolist())
    assert by_itself("plain")[-1] in ids_T
    assert num_bytes_T.sum() == len(text)
    if lossless:
        assert tokenizer.decode_bytes(ids_T) == text.encode()


def own_ids(kind: str, model: bytes) -> Callable[[str], list[int]]:
    """The library by itself, as anybody would call it."""
    if kind == "sentencepiece":
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        return lambda text: list(processor.encode(text))
    import tokenizers

    library = tokenizers.Tokenizer.from_str(model.decode())
    return lambda text: list(library.encode(text).ids)
