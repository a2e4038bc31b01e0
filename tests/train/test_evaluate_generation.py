"""Greedy answers are those of a plain loop over one text, and end where they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.asking import SEQ_LEN, brute_logits, model, reader, tokenizer

from loader.errors import RefusedError
from train.evaluate.generate import Stopping, generate
from train.evaluate.requests import Request, encode_prompts
from train.evaluate.share import Share

PROMPTS = ["the cat sat on", "Now", "def add(a, b):", "x = [1, 2]; the dog", "all good people"]


def prompts(room: int = SEQ_LEN // 2) -> list[Request]:
    return encode_prompts(tokenizer(), PROMPTS, room)


def stopping(*texts: str, most_tokens: int = 8, end: int | None = None) -> Stopping:
    return Stopping(texts, most_tokens, end, tokenizer().decode_bytes)


def brute(request: Request, num_tokens: int) -> list[int]:
    tokens = request.tokens_n.tolist()
    for _ in range(num_tokens):
        tokens.append(int(brute_logits(model(), tokens)[-1].argmax()))
    return tokens[len(request.tokens_n) :]


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_answers_are_those_of_a_plain_loop(rows: int) -> None:
    found = generate(model(), prompts(), stopping(), reader(rows))
    expected = [tokenizer().decode_bytes(brute(one, 8)).decode("utf-8", "replace") for one in prompts()]
    assert [found[number] for number in range(len(PROMPTS))] == expected
    assert len(set(expected)) > 1


def test_answers_end_in_front_of_a_stop_text_and_at_the_end_token() -> None:
    whole = generate(model(), prompts(), stopping(), reader())
    number, text = next((n, text) for n, text in whole.items() if len(text) > 3)
    stop = text[2:4]
    assert generate(model(), prompts(), stopping(stop), reader())[number] == text[: text.index(stop)]
    third = brute(prompts()[number], 3)[2]
    kept = brute(prompts()[number], 8)
    expected = tokenizer().decode_bytes(kept[: kept.index(third)]).decode("utf-8", "replace")
    assert generate(model(), prompts(), stopping(end=third), reader())[number] == expected


def test_an_answer_ends_at_the_latest_where_a_row_does() -> None:
    full = Request(np.concatenate([prompts()[0].tokens_n[:1], np.full(SEQ_LEN - 3, 7, np.int32)]), 0)
    written: list[list[int]] = []

    def decode(tokens: object) -> bytes:
        written.append(list(tokens))  # type: ignore[call-overload]
        return b""

    generate(model(), [full], Stopping((), 100, None, decode), reader())
    assert max(map(len, written)) == 2


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_answer_each_prompt_once_and_call_the_model_equally_often(size: int) -> None:
    """Ranks run in lockstep on real processes; here each believes that the others are never done before it."""
    alone = generate(model(), prompts(), stopping(), reader(2))
    answers: dict[int, str] = {}
    for rank in range(size):
        own = generate(model(), prompts(), stopping(), reader(2), Share(rank, size))
        assert not own.keys() & answers.keys()
        answers.update(own)
    assert answers == alone


def test_generation_is_refused_where_no_process_has_whole_rows() -> None:
    with pytest.raises(RefusedError, match="TR-EVALUATE-PARALLEL"):
        generate(model(), prompts(), stopping(), reader(), Share(forward=lambda *_: torch.zeros(1)))
