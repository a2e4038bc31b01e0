"""Degenerate documents of eight kinds: what the demo plants, openly, to make a run spike.

Noise is longer than repetition: a model learns repetition within a few steps, so that the loss falls again.
All kinds are known from real corpora: stuck keys, boilerplate, binary read as Latin-1, attachments, number columns,
decoding accidents, escape runs, navigation bars.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence

__all__ = ["KINDS", "planted"]

_BYTES_A_TOKEN = 6


def _byte(r: random.Random, size: int, words: Sequence[str]) -> str:
    return r.choice("a~\x7f#0=") * (size // 10)


def _word(r: random.Random, size: int, words: Sequence[str]) -> str:
    word = r.choice(words)
    return (word + " ") * (size // (5 * len(word)) + 4)


def _latin(r: random.Random, size: int, words: Sequence[str]) -> str:
    return r.randbytes(size // 4).decode("latin-1")


def _base64(r: random.Random, size: int, words: Sequence[str]) -> str:
    return base64.b64encode(r.randbytes(size // 3)).decode()


def _digits(r: random.Random, size: int, words: Sequence[str]) -> str:
    return "".join(r.choices("0123456789,", k=size // 3))


def _shuffled(r: random.Random, size: int, words: Sequence[str]) -> str:
    text = ""
    while len(text) < size // 3:
        text += r.choice(words) + " "
    letters = list(text)
    r.shuffle(letters)
    return "".join(letters)


def _backslashes(r: random.Random, size: int, words: Sequence[str]) -> str:
    return "\\" * (size // 2)


def _html(r: random.Random, size: int, words: Sequence[str]) -> str:
    line = (
        f'<div class="nav-{r.randrange(99)}"><a href="/p/{r.randrange(999)}">{r.choice(words)}</a>'
        " | <span>Click here</span></div>\n"
    )
    return line * (size // (10 * len(line)) + 2)


KINDS: dict[str, Callable[[random.Random, int, Sequence[str]], str]] = {
    "byte": _byte,
    "word": _word,
    "latin": _latin,
    "base64": _base64,
    "digits": _digits,
    "shuffled": _shuffled,
    "backslashes": _backslashes,
    "html": _html,
}
"""Kind -> text of about so many bytes, from a seeded generator and real words."""


def planted(seed: int, count: int, words: Sequence[str]) -> list[tuple[str, str]]:
    """``count`` documents in turn of each kind, (kind/number, text); lengths log-normal, median about 130 tokens."""
    r = random.Random(f"tokenreel demo {seed}")  # noqa: S311 - reproducible, not secret
    out = []
    for i, kind in enumerate(list(KINDS) * (count // len(KINDS) + 1)):
        if i == count:
            break
        tokens = int(min(700, max(24, r.lognormvariate(4.9, 0.8))))
        out.append((f"{kind}/{i:05d}", KINDS[kind](r, tokens * _BYTES_A_TOKEN, words)))
    return out
