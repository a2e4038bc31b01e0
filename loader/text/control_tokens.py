"""Which control token begins a document, ends one, and fills the rest of a sample."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigError

__all__ = ["border_id", "control_id"]

_CUSTOMARY: Mapping[str, tuple[str, ...]] = {
    "bos": (
        *("<s>", "<|begin_of_text|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"),
        *("<bos>", "<|startoftext|>", "[BOS]", "[CLS]"),
    ),
    "eos": (
        *("</s>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
        *("<eos>", "<|endoftext|>", "[EOS]", "[SEP]"),
    ),
    "pad": (
        "<pad>",
        "<|finetune_right_pad_id|>",
        "<|finetune_right_pad|>",
        "<\uff5c\u2581pad\u2581\uff5c>",
        "<|pad|>",
        "[PAD]",
    ),
}
"""Names by which a control token is known where neither the configuration nor the model says; the first that is there
is taken."""


def control_id(border: str, name: str | None, said: int | None, special: Mapping[str, int]) -> int | None:
    """The id of a control token; None if nobody knows it.

    Args:
        border: ``bos``, ``eos`` or ``pad``.
        name: the token's text, where the configuration gives it.
        said: its id, where the model gives it.
        special: all control tokens by their text.

    Raises:
        ConfigError: ``TR-TOKENIZER-BORDER``: ``name`` is none of them.
    """
    if name is not None:
        if name not in special:
            message = f"the tokenizer has no control token {name!r}"
            raise ConfigError("TR-TOKENIZER-BORDER", message, f"tokenizer.{border}", _say(special))
        return special[name]
    if said is not None:
        return said
    return next((special[known] for known in _CUSTOMARY[border] if known in special), None)


def border_id(border: str, name: str | None, said: int | None, special: Mapping[str, int]) -> int:
    """``control_id`` of a token that is to be put at the borders of documents.

    Raises:
        ConfigError: nobody knows it; the control tokens that there are are listed.
    """
    found = control_id(border, name, said, special)
    if found is None:
        raise ConfigError(
            "TR-TOKENIZER-BORDER",
            f"add_{border} is on, but which token that is is not known",
            f"tokenizer.{border}",
            _say(special),
            f"set tokenizer.{border}, or tokenizer.add_{border}: false",
        )
    return found


def _say(special: Mapping[str, int]) -> str:
    names = sorted(special, key=lambda name: special[name])
    if not names:
        return "the tokenizer has no control tokens"
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    return f"one of {', '.join(map(repr, names[:40]))}{more}"
