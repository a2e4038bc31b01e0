"""The HTML frame that both reports use: one self-contained file, everything escaped, figures inline, no network.

A page is a title and sections; a section is a heading and blocks (``Prose``, ``Facts``, ``Table``, ``Excerpt``,
``Chart``). Blocks hold plain text; only this file writes markup.
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Block", "Chart", "Excerpt", "Facts", "Prose", "Section", "Table", "render_page"]

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#5d6777;--line:#d9dee6;--paper:#fff;--mark:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#9aa4b2;--line:#333c49;--paper:#14181f;--mark:#ff8a80}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.2rem .9rem .2rem 0;
border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right}th{color:var(--dim);font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;
border-left:3px solid var(--line);padding:.3rem .8rem;margin:.3rem 0 1rem;
font-size:.82rem;max-height:14rem;overflow-y:auto}
.cut pre{border-color:var(--mark)}.dim{color:var(--dim)}.scroll{overflow-x:auto}
code{font-size:.9em}.chart{min-height:22rem}
"""


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and values, one pair a line."""

    values: Mapping[str, object]


@dataclass(frozen=True)
class Table:
    """Rows under headings; numbers are set right-aligned with thousands separators."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Excerpt:
    """A piece of a document's text under a caption; ``is_cut`` marks it as removed from training."""

    caption: str
    text: str
    is_cut: bool = False


@dataclass(frozen=True)
class Chart:
    """A plotly figure as JSON-able ``traces`` and ``layout``; ``caption`` says in words what it shows."""

    caption: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]


Block = Prose | Facts | Table | Excerpt | Chart


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: Sequence[Block]


def render_page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """One HTML document; the plotting library is embedded once, and only if a section holds a chart."""
    body = "\n".join(_section(section, number) for number, section in enumerate(sections))
    has_chart = any(isinstance(block, Chart) for section in sections for block in section.blocks)
    script = f"<script>{_plotly_source()}</script>" if has_chart else ""
    start = f"<script>{_START}</script>" if has_chart else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_escape(title)}</title><style>{_STYLE}</style>{script}</head>\n"
        f'<body><h1>{_escape(title)}</h1><p class="dim">{_escape(subtitle)}</p>\n{body}\n{start}</body></html>\n'
    )


_START = (
    "for(const box of document.querySelectorAll('.chart')){const figure=JSON.parse(box.nextElementSibling.textContent);"
    "Plotly.newPlot(box,figure.data,figure.layout,{responsive:true,displaylogo:false});}"
)


def _plotly_source() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _escape(value: object) -> str:
    """Text for HTML: markup escaped; control, format and lone surrogate characters made visible."""
    shown = "".join(c if c in "\n\t" or not _is_hidden(c) else f"\\u{{{ord(c):x}}}" for c in str(value))
    return html.escape(shown, quote=True)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn")


def _number(value: object) -> str | None:
    """A number as text, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _cell(value: object, tag: str) -> str:
    number = _number(value)
    if number is not None:
        return f'<{tag} class="n">{number}</{tag}>'
    return f"<{tag}>{_escape('' if value is None else value)}</{tag}>"


def _section(section: Section, number: int) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f'<section id="s{number}"><h2>{_escape(section.heading)}</h2>\n{blocks}</section>'


def _block(block: Block) -> str:
    match block:
        case Prose():
            return f"<p>{_escape(block.text)}</p>"
        case Facts():
            return _table((), [(name, value) for name, value in block.values.items()])
        case Table():
            return _table(block.headings, block.rows)
        case Excerpt():
            kind = "cut" if block.is_cut else "kept"
            caption = f'<span class="dim">{_escape(block.caption)}</span>'
            return f'<div class="{kind}">{caption}<pre>\n{_escape(block.text)}</pre></div>'
        case Chart():
            return _chart(block)


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    numeric = (
        [all(_number(value) is not None for value in column) for column in zip(*rows, strict=True)] if rows else []
    )
    head = "".join(
        f'<th class="n">{_escape(name)}</th>'
        if number < len(numeric) and numeric[number]
        else f"<th>{_escape(name)}</th>"
        for number, name in enumerate(headings)
    )
    body = "".join(f"<tr>{''.join(_cell(value, 'td') for value in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{f"<tr>{head}</tr>" if head else ""}{body}</table></div>'


def _chart(chart: Chart) -> str:
    base = {"template": None, "margin": {"t": 20}, "paper_bgcolor": "#fff", "plot_bgcolor": "#fff"}
    figure = {"data": list(chart.traces), "layout": {**base, **chart.layout}}
    # JSON inside a script element: `<` written as an escape cannot close the element.
    text = json.dumps(figure, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<figure><div class="chart"></div><script type="application/json">{text}</script>'
        f'<figcaption class="dim">{_escape(chart.caption)}</figcaption></figure>'
    )
