"""The HTML page of a report, which stands alone: text, tables and inline SVG, without scripts or external requests."""

from __future__ import annotations

import html
import io
from typing import Any

FONTS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.hashsalt": "reluformer",
}
"""Settings of matplotlib: text stays text in an SVG, and the same picture is always the same file."""


def page(title: str, body: str) -> str:
    """Returns the whole document.

    Args:
        title: The title, as plain text.
        body: The body, as HTML.

    Example:
        >>> page("A & B", "<p>text</p>").startswith("<!doctype html>")
        True
    """
    head = f"<!doctype html><html lang=en><head><meta charset=utf-8><title>{html.escape(title)}</title>{STYLE}</head>"
    return f"{head}<body>{body}</body></html>\n"


def inline_svg(figure: Any) -> str:
    """Returns a matplotlib figure as an SVG element for the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


STYLE = """<meta name=viewport content="width=device-width, initial-scale=1"><style>
:root { color-scheme: light; --ink: #1d2129; --soft: #5b6472; --line: #e3e6ea; --mark: #ffe7a3 }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 66rem;
  margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.9rem; margin: 0 0 .5rem } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem }
.lead { font-size: 1.05rem; color: var(--soft); max-width: 46rem } small, figcaption { color: var(--soft) }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .9rem .35rem 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
th:first-child, td:first-child, .text th, .text td { text-align: left } .text { font-size: .9rem }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1.5rem }
figure { margin: 0 } figure h2 { margin-top: 1rem } figure svg { width: 100%; height: auto }
figcaption { font-size: .85rem }
mark { background: var(--mark) } code { font-size: .85em }
section { border-top: 2px solid var(--line); margin-top: 2.5rem; padding-top: .5rem } section > h2 { font-size: 1.4rem }
section h3 { font-size: 1rem; margin: 1.6rem 0 .2rem } section figure { margin: 1.2rem 0 }
section figure svg { width: auto; max-width: 100% }
.verdict { display: inline-block; border: 1.5px solid var(--ink); border-radius: .3rem; padding: 0 .5rem;
  font-weight: 600; font-size: .9rem; white-space: nowrap }
.reproduced { background: var(--ink); color: white } .not { border-style: double; border-width: 4px }
.inconclusive { border-style: dashed } .line { margin: .2rem 0 } section .line { font-size: .85rem; color: var(--soft) }
td .line:first-child { margin-top: 0 }
.wide { overflow-x: auto } .wide td { white-space: nowrap }
@media print { body { margin: 0; max-width: none; font-size: 11px } figure, tr { break-inside: avoid } }
</style>"""
