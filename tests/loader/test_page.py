"""The reports' HTML frame: self-contained, and document text can never become markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.page import Chart, Facts, Prose, Section, Table, render_page

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'single' \u202ertl \x00 \ud800"


class Outline(HTMLParser):
    """Tags with attributes, and the text in order, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def outline_of(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    outline.close()
    return outline


def page_with(text: str) -> str:
    blocks = [
        Prose(text),
        Facts({text: text}),
        Table([text, "n"], [[text, 1], [text, 2]]),
        Table(["text"], [[text]], texts=["text"]),
    ]
    return render_page(text, [Section(text, blocks)], text)


def test_hostile_text_is_text() -> None:
    outline = outline_of(page_with(HOSTILE))
    plain = outline_of(page_with("plain"))
    assert outline.tags == plain.tags
    assert outline.attributes == plain.attributes
    assert "script" not in plain.tags
    shown = "".join(outline.text)
    assert shown.count("<script>alert(1)</script>") == "".join(plain.text).count("plain") > 5
    assert "\u202e" not in shown
    assert "\\u{202e}rtl \\u{0} \\u{d800}" in shown


@given(st.text(max_size=80))
def test_any_text_leaves_the_structure_alone(text: str) -> None:
    page = page_with(text)
    page.encode("utf-8")
    assert outline_of(page).tags == outline_of(page_with("plain")).tags


def test_a_page_without_charts_is_small_and_one_with_them_needs_no_network() -> None:
    assert len(render_page("t", [Section("s", [Prose("p")])])) < 4_000
    chart = Chart("what it shows", [{"x": [1, 2], "y": [3, 4], "name": "</script><b>"}], {"title": "t"})
    page = render_page("t", [Section("s", [chart, chart])])
    assert page.count("plotly.js v") >= 1
    assert page.count('<div class="chart"></div>') == 2
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page)
    embedded = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert [json.loads(text)["data"][0]["name"] for text in embedded] == ["</script><b>"] * 2


def test_numbers_are_grouped_and_right_aligned() -> None:
    page = render_page("t", [Section("s", [Table(["name", "count"], [["a", 1234567], ["b", 0.123456]])])])
    assert '<td class="n">1,234,567</td>' in page
    assert '<td class="n">0.1235</td>' in page
    assert '<th>name</th><th class="n">count</th>' in page


def test_charts_refuse_what_json_cannot_hold() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render_page("t", [Section("s", [Chart("c", [{"y": [float("nan")]}], {})])])
