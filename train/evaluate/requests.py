"""From questions to token sequences to score, and those packed into rows.

A request is a context and a continuation whose log-likelihood is wanted. Both are tokenised as one text, so that a
token may not reach across where the model would never have seen it do so: the continuation is what lies behind the
tokens of the context alone (lm-eval's rule, spaces at the context's end going to the continuation).

Legend: R requests, n tokens of one.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from loader.text.tokenizer_base import Tokenizer

__all__ = ["Request", "encode_pairs", "encode_prompts", "pack_rows"]

_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Request:
    """One token sequence.

    Attributes:
        tokens_n: int32, context and continuation, at most ``seq_len`` of them.
        num_scored: tokens of the continuation, the last ones of ``tokens_n``; fewer than n.
        num_cut: tokens cut off on the left since the whole was longer.
    """

    tokens_n: NDArray[np.int32]
    num_scored: int
    num_cut: int = 0


def _front(tokenizer: Tokenizer) -> list[int]:
    """What documents of the training data begin with."""
    return [] if tokenizer.bos_id is None else [tokenizer.bos_id]


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """Ids of each text; the same text is encoded once a block."""
    out: list[NDArray[np.int32]] = []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        block = texts[start : start + _TEXTS_AT_ONCE]
        number = {text: index for index, text in enumerate(dict.fromkeys(block))}
        batch = tokenizer.encode_batch([text.encode() for text in number])
        ids = [batch.ids_T[a:b] for a, b in zip(batch.start_N[:-1].tolist(), batch.start_N[1:].tolist(), strict=True)]
        out += [ids[number[text]] for text in block]
    return out


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], seq_len: int) -> list[Request]:
    """Requests of (context, continuation) pairs.

    What does not fit into ``seq_len`` tokens is cut from the left; of a continuation that alone is as long as that,
    the first tokens are not scored either, and ``num_cut`` says so.
    """
    moved = [(context.rstrip(), context[len(context.rstrip()) :] + text) for context, text in pairs]
    wholes = _encoded(tokenizer, [context + text for context, text in moved])
    contexts = _encoded(tokenizer, [context for context, _ in moved])
    front = _front(tokenizer)
    requests = []
    for whole_n, context_n in zip(wholes, contexts, strict=True):
        lead = front or ([] if len(context_n) else [tokenizer.pad_id if tokenizer.eos_id is None else tokenizer.eos_id])
        tokens_n = np.concatenate([np.array(lead, np.int32), whole_n])
        num_scored = max(1, len(whole_n) - len(context_n))
        kept_n = tokens_n[-seq_len:]
        requests.append(Request(kept_n, min(num_scored, len(kept_n) - 1), len(tokens_n) - len(kept_n)))
    return requests


def encode_prompts(tokenizer: Tokenizer, prompts: Sequence[str], room: int) -> list[Request]:
    """Prompts to continue, cut from the left to at most ``room`` tokens; nothing is scored."""
    front = np.array(_front(tokenizer), np.int32)
    whole = [np.concatenate([front, tokens_n]) for tokens_n in _encoded(tokenizer, prompts)]
    return [Request(tokens_n[-room:], 0, max(0, len(tokens_n) - room)) for tokens_n in whole]


def pack_rows(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Which requests share a row: best fit, longest first. A function of the lengths alone.

    Raises:
        ValueError: one is longer than a row, or empty.
    """
    rows: list[list[int]] = []
    free: dict[int, list[int]] = {}  # room left -> rows with it
    rooms: list[int] = []  # its keys, ascending
    for number in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[number]
        if not 1 <= length <= seq_len:
            raise ValueError(f"{length} tokens do not fit into {seq_len}")
        place = bisect.bisect_left(rooms, length)
        if place == len(rooms):
            row, room = len(rows), seq_len
            rows.append([])
        else:
            room = rooms[place]
            row = free[room].pop()
            if not free[room]:
                del free[room], rooms[place]
        rows[row].append(number)
        left = room - length
        if left:
            if left not in free:
                free[left] = []
                bisect.insort(rooms, left)
            free[left].append(row)
    return rows
