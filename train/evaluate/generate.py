"""Greedy continuation of prompts: every token by a new forward pass over all before it.

There is no cache of keys and values: the model is run as training runs it, which every way of spreading the weights
supports, and a small model is done soon. The price is a factor of the answer's length.

Legend: B prompts of a wave, one a row; D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from loader.stream.own_texts import lay_out

from ..model import Decoder
from .requests import Request
from .score import Reader, captured, head_weight, likeliest
from .share import ALONE, Share, undisturbed

__all__ = ["Stopping", "generate"]

_ROUND = 64  # rows grow in steps of so many tokens


@dataclass(frozen=True)
class Stopping:
    """When an answer ends.

    Attributes:
        texts: in front of the first of these. most_tokens: after so many tokens. end: at this token, or None.
        decode: bytes of a run of tokens.
    """

    texts: tuple[str, ...]
    most_tokens: int
    end: int | None
    decode: Callable[[Sequence[int]], bytes]

    def cut(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """The answer that ``tokens`` spell, and whether it has ended."""
        ended = self.end is not None and self.end in tokens
        kept = tokens[: tokens.index(self.end)] if ended and self.end is not None else tokens
        text = self.decode(kept).decode("utf-8", "replace")
        found = [place for place in map(text.find, self.texts) if place >= 0]
        return (text[: min(found)], True) if found else (text, ended or len(tokens) >= self.most_tokens)


@dataclass
class _Answer:
    """Prompt and answer so far; ``room`` tokens may still come."""

    tokens: list[int]
    room: int
    written: list[int] = field(default_factory=list)
    text: str = ""
    ended: bool = False

    def append(self, token: int, stopping: Stopping) -> None:
        if self.ended:
            return
        self.tokens.append(token)
        self.written.append(token)
        self.text, self.ended = stopping.cut(self.written)
        self.ended = self.ended or len(self.written) >= self.room


def generate(
    model: Decoder, prompts: Sequence[Request], stopping: Stopping, reader: Reader, share: Share = ALONE
) -> dict[int, str]:
    """The answers to this process's own prompts, by their number. Answers end at the latest where a row does.

    Raises:
        RefusedError: no process has whole rows.
    """
    share.need_whole_rows("greedy generation", reader.options)
    answers: dict[int, str] = {}
    rows = min(reader.rows, max(1, -(-len(prompts) // share.size)))
    with undisturbed(model), captured(model) as hidden:
        weight_VD = head_weight(model)
        for own in share.own(len(prompts), rows):
            wave = [_Answer(prompts[n].tokens_n.tolist(), reader.seq_len - len(prompts[n].tokens_n)) for n in own]
            while _anybody(wave, share, reader):
                texts = [[np.array(answer.tokens, np.int32)] for answer in wave]
                length = max((len(answer.tokens) for answer in wave), default=1)
                length = min(reader.seq_len, -(-length // _ROUND) * _ROUND)
                texts += [[np.full(1, reader.filler, np.int32)]] * (rows - len(wave))
                share.forward(model, lay_out(texts, length, reader.filler), reader.options)
                ends = torch.tensor([len(answer.tokens) - 1 for answer in wave], device=reader.options.device)
                last_BD = hidden[0][torch.arange(len(wave), device=ends.device), ends.long()]
                for answer, token in zip(wave, likeliest(last_BD, weight_VD).tolist(), strict=True):
                    answer.append(token, stopping)
            answers.update(zip(own, (answer.text for answer in wave), strict=True))
    return answers


def _anybody(wave: Sequence[_Answer], share: Share, reader: Reader) -> bool:
    """Whether an answer of any process goes on: all call the model equally often."""
    active = torch.tensor(float(sum(not answer.ended for answer in wave)), device=reader.options.device)
    share.sum_(active)
    return bool(active > 0)
