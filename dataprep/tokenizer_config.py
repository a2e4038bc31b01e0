"""The ``tokenizer`` block: one kind of ``loader.text.tokenizers.TOKENIZERS``, trained here or loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loader.text.tokenizers import MODEL_FILES, TokenizerPolicy, stored_policy

from .config_problems import raise_problems

__all__ = [
    "HuggingFaceConfig",
    "LoadedModel",
    "SentencepieceConfig",
    "SentencepieceTrainConfig",
    "TiktokenConfig",
    "TokenizerConfig",
]


@dataclass(frozen=True)
class LoadedModel:
    """A model to load: its file, the file's xxh3-128, and what it is told beside itself."""

    path: Path
    model_hash: str
    policy: TokenizerPolicy


@dataclass(frozen=True)
class SentencepieceTrainConfig:
    """Train a lossless sentencepiece model on a keyed sample of ``sample_bytes`` of the kept documents, shared by the
    mix ratios.
    """

    vocab_size: int = 32768
    model_type: Literal["bpe", "unigram"] = "bpe"
    sample_bytes: int = 64_000_000

    def __post_init__(self) -> None:
        problems = []
        if not 300 <= self.vocab_size <= 1 << 20:
            problems.append("vocab_size: from 300 (256 byte tokens and 4 control tokens are always there) to 2^20")
        if not 1 <= self.sample_bytes <= 4 << 30:
            problems.append("sample_bytes: from 1 to 2^32")
        raise_problems(problems)


@dataclass(frozen=True)
class SentencepieceConfig:
    """Either ``train`` a model here, or ``load`` a ``.model`` file (or a Dataset's tokenizer folder), relative to the
    config file.
    """

    train: SentencepieceTrainConfig | None = None
    load: str | None = None

    def __post_init__(self) -> None:
        if (self.train is None) == (self.load is None):
            raise_problems(["exactly one of train, load"])


@dataclass(frozen=True)
class HuggingFaceConfig:
    """``load`` a ``tokenizer.json`` (or a Dataset's tokenizer folder), relative to the config file."""

    load: str


@dataclass(frozen=True)
class TiktokenConfig:
    """A file of ranks.

    Attributes:
        load: the file (a line a token: base64, rank), or a Dataset's tokenizer folder, relative to the config file.
        pattern: the regular expression that splits text, or the name of a known one
            (``loader.text.tiktoken_tokenizer.PATTERNS``); ``null`` = what the file (tekken) or the folder says, else
            ``cl100k``.
        special_tokens: control tokens and their ids, none of which text can yield; none given = what the file or the
            folder says.
    """

    load: str
    pattern: str | None = None
    special_tokens: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenizerConfig:
    """One kind of tokenizer (none given: a sentencepiece model trained here) and the policy at document borders.

    Attributes:
        sentencepiece, huggingface, tiktoken: exactly one.
        add_bos, add_eos: put the token at the borders of each document, never of a piece of it.
        bos, eos, pad: which control tokens these are, by their text; ``null`` = what the tokenizer folder says, if one
            is loaded, else the model (sentencepiece models do; the others know no such thing but the customary names).
    """

    sentencepiece: SentencepieceConfig | None = None
    huggingface: HuggingFaceConfig | None = None
    tiktoken: TiktokenConfig | None = None
    add_bos: bool = True
    add_eos: bool = True
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in (self.sentencepiece, self.huggingface, self.tiktoken) if kind is not None]
        if len(given) > 1:
            raise_problems(["sentencepiece: exactly one of sentencepiece, huggingface, tiktoken"])
        if not given:  # written out, so that saying the default and saying nothing have one digest
            object.__setattr__(self, "sentencepiece", SentencepieceConfig(train=SentencepieceTrainConfig()))

    @property
    def kind(self) -> str:
        """Key of ``TOKENIZERS``."""
        if self.huggingface is not None:
            return "huggingface"
        return "tiktoken" if self.tiktoken is not None else "sentencepiece"

    @property
    def train(self) -> SentencepieceTrainConfig | None:
        """What to train, unless a model is loaded."""
        return self.sentencepiece.train if self.sentencepiece is not None else None

    @property
    def load(self) -> str | None:
        """The model to load, unless one is trained."""
        given = self.huggingface or self.tiktoken or self.sentencepiece
        return given.load if given is not None else None

    def policy(self, model: Path | None) -> TokenizerPolicy:
        """What the tokenizer is told beside its model.

        Args:
            model: the model's file, if one is loaded. In a tokenizer folder the border tokens lie beside it, and the
                pattern and control tokens of tiktoken ranks; they hold where the configuration says nothing of them.
                Whether BOS and EOS are added is the configuration's alone.

        Raises:
            DamageError: the folder's description cannot be read.
            RefusedError: another version wrote it.
        """
        in_folder = model is not None and model.name == MODEL_FILES[self.kind]
        stored = stored_policy(model.parent) if in_folder and model is not None else None
        stored = stored if stored is not None else TokenizerPolicy()
        pattern, special = stored.pattern, dict(stored.special_tokens)
        if self.tiktoken is not None:
            pattern = self.tiktoken.pattern if self.tiktoken.pattern is not None else pattern
            special = dict(self.tiktoken.special_tokens) or special
        bos, eos, pad = (
            given if given is not None else kept
            for given, kept in ((self.bos, stored.bos), (self.eos, stored.eos), (self.pad, stored.pad))
        )
        return TokenizerPolicy(self.add_bos, self.add_eos, bos, eos, pad, pattern, special)
