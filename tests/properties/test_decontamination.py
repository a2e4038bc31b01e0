"""The search against the rule in plain Python, on corpora in which everything nearly matches everything."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.contamination import Parts, covered_words, forms_of, hit_grams, runs, scores_of
from support.text_oracle import tokens_of

from dataprep.decontamination.index import ItemIndex, build_index
from dataprep.decontamination.items import Item, text_array
from dataprep.decontamination.search import ItemFinder, read_only_buffers
from dataprep.kernels.item_grams import bound_words
from dataprep.normalize import load_table
from dataprep.screen_config import DecontaminateConfig

WORDS = ("a", "B", "é", "e\u0301", "不", "straße", "x_1", "ก\u0e34", "\u0301c", "a\u00adb")
GAPS = (" ", "\n", ", ", " -- ", "\u200b", "\u2003", ".\u0301 ")
texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), max_size=14).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)
configs = st.builds(
    DecontaminateConfig,
    n=st.integers(2, 5),
    min_words=st.integers(1, 2),
    threshold=st.sampled_from((0.3, 0.5, 0.75, 1.0)),
    allow=st.lists(texts, max_size=1).map(tuple),
    question_alone=st.booleans(),
    joints=st.sampled_from(((), ("a",), ("b", "é B"))),
)


def index_of(items: list[Parts], config: DecontaminateConfig) -> ItemIndex:
    whole = [Item("exam", "test", str(i), question, answer) for i, (question, answer) in enumerate(items)]
    return build_index(whole, config)


@given(st.data(), st.lists(st.tuples(texts, texts | st.just("")), min_size=1, max_size=6), configs)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
def test_hits_scores_grams_and_bytes_are_those_of_the_rule(
    data: st.DataObject, items: list[Parts], config: DecontaminateConfig
) -> None:
    pieces = st.one_of(
        st.sampled_from(items).map("\n".join),
        st.sampled_from(items).map(" a ".join),
        st.sampled_from(items).map(lambda item: item[0]),
        texts,
    )
    documents = data.draw(st.lists(st.lists(pieces, max_size=4).map(" ".join), min_size=1, max_size=5))
    index = index_of(items, config)
    found = ItemFinder(index, config.threshold).find(text_array(documents), np.arange(len(documents)))
    forms = forms_of(items, config)
    assert sorted(filter(None, index.grams_F.tolist())) == sorted(len(form) for mine in forms for form in mine)
    hits = found.hits
    scores = (hits["matched"] / index.grams_F[hits["form"]]).tolist()
    names = list(zip(hits["record"].tolist(), hits["item"].tolist(), strict=True))
    assert dict(zip(names, scores, strict=True)) == {
        (record, item): score
        for record, document in enumerate(documents)
        for item, score in scores_of(document, items, config).items()
    }
    assert names == sorted(set(names))
    expected = [hit_grams(document, items, config) for document in documents]
    counts = np.bincount(found.hit_grams["hit"], minlength=len(hits)).tolist()
    assert counts == [len(expected[record][item]) for record, item in names]
    everything = {gram for mine in forms for form in mine for gram in form}
    holders = [sum(gram in runs(tokens_of(document), len(gram)) for document in documents) for gram in everything]
    assert sorted(found.documents_G2[:, 1].tolist()) == sorted(filter(None, holders))
    for record, document in enumerate(documents):
        tokens, raw = tokens_of(document), document.encode()
        mine = [(start, start + count) for at, start, count in found.ranges.tolist() if at == record]
        cut = [token for start, stop in mine for token in tokens_of(raw[start:stop].decode())]
        covered = covered_words(document, {gram for grams in expected[record].values() for gram in grams})
        assert cut == [tokens[word] for word in covered]
        cut_out(raw, mine).decode()


def cut_out(raw: bytes, ranges: list[tuple[int, int]]) -> bytes:
    kept, start = b"", 0
    for first, stop in ranges:
        assert start <= first < stop
        kept, start = kept + raw[start:first], stop
    return kept + raw[start:]


@given(
    st.text(st.one_of(st.sampled_from("aé不\u0301\u0e34ก_1 .\u200d\u200b\U0001f600가"), st.characters(codec="utf-8")))
)
@settings(max_examples=300, deadline=None)
def test_words_are_bounded_where_they_are_split(text: str) -> None:
    buffers = read_only_buffers(text_array([text]))
    raw = text.encode()
    bound_T2 = np.zeros((len(raw), 2), np.int64)
    count = bound_words(buffers.data, (0, len(raw)), load_table(), bound_T2)
    tokens = tokens_of(text)
    assert count == len(tokens)
    spans = bound_T2[:count].tolist()
    assert [tokens_of(raw[start:stop].decode()) for start, stop in spans] == [[token] for token in tokens]
    assert all(before[1] <= behind[0] for before, behind in pairwise(spans))
