"""The HTML frame that both reports use: one self-contained file, everything escaped, figures inline, no network.

A page is a title and sections; a section is a heading and blocks (``Prose``, ``Facts``, ``Table``, ``Chart``). Blocks
hold plain text; only this file writes markup.

A page's own policy (Content-Security-Policy, Level 3) lets nothing run but the scripts written here, by their hashes,
and nothing be fetched: should escaping ever fail, text of a document still could not run or call home.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .page_assets import SCRIPT, STYLE

__all__ = ["Block", "Chart", "Facts", "Prose", "Section", "Table", "render_page"]


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
    """Rows under headings; numbers are set right-aligned with thousands separators.

    Attributes:
        filters: headings that get a list of their values to choose from, beside a field for words; None: no filter.
        texts: headings of columns that hold pieces of documents. wide: of columns that hold sentences.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    filters: Sequence[str] | None = None
    texts: Sequence[str] = ()
    wide: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A plotly figure as JSON-able ``traces`` and ``layout``; ``caption`` says in words what it shows."""

    caption: str
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]


Block = Prose | Facts | Table | Chart


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: Sequence[Block]


def render_page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """One HTML document; the plotting library is embedded once, and only if a section holds a chart."""
    body = "\n".join(_section(section, number) for number, section in enumerate(sections))
    blocks = [block for section in sections for block in section.blocks]
    library = [_plotly_source()] if any(isinstance(block, Chart) for block in blocks) else []
    acts = library or any(isinstance(block, Table) and block.filters is not None for block in blocks)
    head, foot = "".join(f"<script>{text}</script>" for text in library), f"<script>{SCRIPT}</script>" if acts else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy([*library, SCRIPT] if acts else [])}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_escape(title)}</title><style>{STYLE}</style>{head}</head>\n"
        f'<body><h1>{_escape(title)}</h1><p class="dim">{_escape(subtitle)}</p>\n{_contents(sections)}'
        f"<main>\n{body}\n</main>{foot}</body></html>\n"
    )


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is fetched, and of scripts only these run; styles and pictures that a script makes may be inline."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _contents(sections: Sequence[Section]) -> str:
    """Links to the sections of a page with more than a few."""
    if len(sections) < 4:
        return ""
    links = [f'<a href="#s{number}">{_escape(section.heading)}</a>' for number, section in enumerate(sections)]
    return f'<nav aria-label="Sections">{" ".join(links)}</nav>\n'


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


def _cell(value: object, kind: str = "") -> str:
    """A cell of a table; ``kind``: ``t`` for pieces of documents, ``w`` for sentences."""
    number = _number(value)
    if number is not None:
        return f'<td class="n">{number}</td>'
    shown = _escape("" if value is None else value)
    if kind == "t":
        return f'<td class="t"><div>{shown}</div></td>'
    return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"


def _section(section: Section, number: int) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f'<section id="s{number}"><h2>{_escape(section.heading)}</h2>\n{blocks}</section>'


def _block(block: Block) -> str:
    match block:
        case Prose():
            return f"<p>{_escape(block.text)}</p>"
        case Facts():
            return _facts(block.values)
        case Table():
            return _table(block)
        case Chart():
            return _chart(block)


def _facts(values: Mapping[str, object]) -> str:
    rows = "".join(f'<tr><th scope="row">{_escape(name)}</th>{_cell(value)}</tr>' for name, value in values.items())
    return f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'


def _table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.headings)
    numeric = [bool(column) and all(_number(value) is not None for value in column) for column in columns]
    kinds = ["t" if name in table.texts else "w" if name in table.wide else "" for name in table.headings]
    head = "".join(
        f'<th class="n">{_escape(name)}</th>' if is_number else f"<th>{_escape(name)}</th>"
        for name, is_number in zip(table.headings, numeric, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell(value, kind) for value, kind in zip(row, kinds, strict=True))}</tr>" for row in table.rows
    )
    box = '<div class="scroll">'
    if table.filters is not None:
        places = ",".join(str(list(table.headings).index(name)) for name in table.filters)
        box = f'<div class="scroll tall" data-filter="{places}" role="region" aria-label="table" tabindex="0">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _chart(chart: Chart) -> str:
    # plotly writes paths of NaN where there are shapes and no point
    if not any(value is not None for trace in chart.traces for value in trace.get("y", ())):
        return f'<p class="dim">{_escape(chart.caption)} Nothing was measured.</p>'
    base = {"template": None, "margin": {"t": 40}}
    figure = {"data": list(chart.traces), "layout": {**base, **chart.layout}}
    # JSON inside a script element: `<` written as an escape cannot close the element.
    text = json.dumps(figure, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<figure><div class="chart"></div><script type="application/json">{text}</script>'
        f'<figcaption class="dim">{_escape(chart.caption)}</figcaption>'
        "<noscript>This chart is drawn by the script inside this page, which is switched off.</noscript></figure>"
    )
