"""Log-likelihoods in packed rows are those of each text alone, whoever scores which row; and what fits in a row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.asking import SEQ_LEN, brute_logits, model, reader, tokenizer
from support.tokenizer_models import LINES

from loader.errors import RefusedError
from loader.stream.own_texts import lay_out
from train.evaluate.requests import Request, encode_pairs, encode_prompts, pack_rows
from train.evaluate.score import Scores, score_requests
from train.evaluate.share import Share

PAIRS = [
    ("the cat sat on", " the mat"),
    ("the cat sat on", " the dog"),
    ("Now is the time for all good", " people to come to the aid"),
    ("def add(a, b):\n    return", " a + b"),
    ("x", " y"),
    ("", " nothing in front"),
    ("ends in a space ", "word"),
    ("na\u00efve caf\u00e9 ", "\u4f60\u597d"),
]


def requests() -> list[Request]:
    rng = random.Random(4)
    words = " ".join(LINES).split()
    more = [(" ".join(rng.choices(words, k=rng.randrange(1, 9))), f" {rng.choice(words)}") for _ in range(30)]
    return encode_pairs(tokenizer(), [*PAIRS, *more], SEQ_LEN)


def brute(request: Request) -> tuple[float, bool]:
    """Log-likelihood and greediness of one request, token by token in float64."""
    tokens = request.tokens_n.tolist()
    log_p_nV = torch.log_softmax(brute_logits(model(), tokens), dim=1)
    first = len(tokens) - request.num_scored
    picked = [float(log_p_nV[place - 1, tokens[place]]) for place in range(first, len(tokens))]
    best = [int(log_p_nV[place - 1].argmax()) for place in range(first, len(tokens))]
    return sum(picked), best == tokens[first:]


@pytest.mark.parametrize("backend", ["sdpa_mask", "sdpa_loop"])
def test_packed_rows_give_what_each_text_gives_alone(backend: str) -> None:
    asked = requests()
    greedy_one = _made_greedy(asked[0])
    asked.append(greedy_one)
    found = score_requests(model(backend=backend), asked, reader(3, backend), greedy=True)
    expected = [brute(request) for request in asked]
    np.testing.assert_allclose(found.log_likelihood_R, [value for value, _ in expected], rtol=0, atol=2e-5)
    assert found.greedy_R is not None
    assert found.greedy_R.tolist() == [greedy for _, greedy in expected]
    assert found.greedy_R[-1]
    again = score_requests(model(backend=backend), asked, reader(3, backend))
    assert again.log_likelihood_R.tobytes() == found.log_likelihood_R.tobytes()


def _made_greedy(request: Request) -> Request:
    """The same context with the two tokens behind it that the model would write."""
    tokens = request.tokens_n.tolist()[: -request.num_scored]
    for _ in range(2):
        tokens.append(int(brute_logits(model(), tokens)[-1].argmax()))
    return Request(np.array(tokens, np.int32), 2)


class Added:
    """Sums over ranks that run one after the other: each rank's tensors are kept, in the order of the calls."""

    def __init__(self) -> None:
        self.kept: list[list[torch.Tensor]] = []

    def begin(self) -> None:
        self.kept.append([])

    def sum_(self, tensor: torch.Tensor) -> None:
        self.kept[-1].append(tensor.clone())

    def totals(self) -> list[np.ndarray[Any, Any]]:
        return [torch.stack(parts).sum(dim=0).numpy() for parts in zip(*self.kept, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 7])
def test_the_scores_do_not_depend_on_the_number_of_ranks(size: int) -> None:
    asked, added, calls = requests(), Added(), []
    alone = score_requests(model(), asked, reader(2))
    for rank in range(size):
        decoder = model()
        count = [0]
        decoder.register_forward_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        added.begin()
        score_requests(decoder, asked, reader(2), Share(rank, size, sum_=added.sum_))
        calls.append(count[0])
    assert len(set(calls)) == 1
    np.testing.assert_allclose(-added.totals()[0], alone.log_likelihood_R, rtol=0, atol=1e-5)


def test_a_rank_that_does_not_count_adds_nothing() -> None:
    added = Added()
    added.begin()
    found = score_requests(model(), requests(), reader(), Share(counts=False, scores=False, sum_=added.sum_))
    assert not found.log_likelihood_R.any()


def test_exact_continuations_are_refused_where_no_process_has_whole_rows() -> None:
    share = Share(forward=lambda *_: torch.zeros(1))
    with pytest.raises(RefusedError, match="TR-EVALUATE-PARALLEL"):
        score_requests(model(), requests(), reader(), share, greedy=True)


def test_the_continuation_is_what_lies_behind_the_contexts_tokens() -> None:
    reads = tokenizer()
    for (context, text), request in zip(PAIRS, encode_pairs(reads, PAIRS, SEQ_LEN), strict=True):
        assert request.num_cut == 0
        assert request.tokens_n[0] == reads.bos_id
        assert reads.decode_bytes(request.tokens_n) == (context + text).encode()
        behind = reads.decode_bytes(request.tokens_n[-request.num_scored :]).decode()
        assert behind == context[len(context.rstrip()) :] + text


def test_what_is_too_long_loses_its_beginning_and_is_counted() -> None:
    reads = tokenizer()
    long = "the cat sat on the mat and the dog lay on the rug " * 20
    whole = len(reads.encode(long.rstrip() + " and slept")[0]) + 1
    request = encode_pairs(reads, [(long, "and slept")], SEQ_LEN)[0]
    assert len(request.tokens_n) == SEQ_LEN
    assert request.num_cut == whole - SEQ_LEN > 0
    assert reads.decode_bytes(request.tokens_n).decode().endswith("the rug and slept")
    assert reads.decode_bytes(request.tokens_n[-request.num_scored :]).decode() == " and slept"
    endless = encode_pairs(reads, [("x", " " + long)], SEQ_LEN)[0]
    assert (len(endless.tokens_n), endless.num_scored) == (SEQ_LEN, SEQ_LEN - 1)
    prompt = encode_prompts(reads, [long, "x"], 10)
    assert [len(one.tokens_n) for one in prompt] == [10, 2]
    assert [one.num_cut > 0 for one in prompt] == [True, False]


@given(st.lists(st.integers(1, 32), max_size=60))
def test_rows_hold_every_text_once_and_overflow_never(lengths: list[int]) -> None:
    rows = pack_rows(lengths, 32)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    sizes = [sum(lengths[number] for number in row) for row in rows]
    assert all(0 < size <= 32 for size in sizes)
    assert sum(sorted(sizes)[:2]) > 32 or len(rows) < 2  # two rows that fit into one were not left apart
    assert pack_rows(lengths, 32) == rows


def test_a_text_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="33 tokens"):
        pack_rows([33], 32)
    with pytest.raises(ValueError, match="a text of 5 tokens"):
        lay_out([[np.zeros(4, np.int32), np.zeros(5, np.int32)]], 8, 0)


def test_texts_are_laid_out_with_the_loaders_conventions() -> None:
    texts: Sequence[Sequence[Any]] = [
        [np.array([5, 6, 7], np.int32), np.array([8], np.int32)],
        [np.arange(6, dtype=np.int32)],
    ]
    batch = lay_out(texts, 6, 1)
    assert batch.tokens_BT.tolist() == [[5, 6, 7, 8, 1, 1], [0, 1, 2, 3, 4, 5]]
    assert batch.labels_BT.tolist() == [[6, 7, -100, -100, -100, -100], [1, 2, 3, 4, 5, -100]]
    assert batch.token_positions_BT.tolist() == [[0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5]]
    assert batch.segment_of_BT.tolist() == [[0, 0, 0, 1, 2, 2], [3] * 6]
    assert batch.cu_seqlens_C.tolist() == [0, 3, 4, 6, 12, 12, 12]


def test_nothing_is_said_of_greed_unasked() -> None:
    assert isinstance(score_requests(model(), requests()[:2], reader()), Scores)
    assert score_requests(model(), requests()[:2], reader()).greedy_R is None
