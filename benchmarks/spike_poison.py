"""Ten kinds of poison: the demo's eight and two that no rule was tuned on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from loader.demo_poison import KINDS as _DEMO

__all__ = ["KINDS"]


def _hex(r: random.Random, size: int, words: Sequence[str]) -> str:
    """A hex dump: addresses and bytes."""
    start = r.randrange(1 << 24) & ~15
    return "\n".join(f"{start + 16 * i:08x}  {r.randbytes(16).hex(' ')}" for i in range(size // 90))


def _salad(r: random.Random, size: int, words: Sequence[str]) -> str:
    """Real words in random order."""
    return " ".join(r.choices(words, k=size // 12))


KINDS: dict[str, Callable[[random.Random, int, Sequence[str]], str]] = {**_DEMO, "hex": _hex, "salad": _salad}
"""Kind -> text of about so many bytes, from a seeded generator and real words."""
