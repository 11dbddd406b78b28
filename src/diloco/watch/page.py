"""The HTML around the figures: one file that opens offline, on a laptop or a phone, in light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from diloco.watch.runfolder import atomic_write_text
from diloco.watch.style import CSS

# A figure drawn before its neighbour was there has the neighbour's width too, so all are fitted once the page is whole.
# Dragging a box zooms where there is a mouse; a finger scrolls the page.
_SCRIPT = """
const dragmode = matchMedia("(pointer: fine)").matches ? "zoom" : false;
for (const plot of document.querySelectorAll(".js-plotly-plot"))
  Plotly.relayout(plot, {dragmode}).then(() => Plotly.Plots.resize(plot));
"""


def write_page(path: Path, title: str, body: Iterable[str]) -> Path:
    """Write a self-contained page with plotly.js inlined once, and return `path`."""
    from plotly.offline import get_plotlyjs

    atomic_write_text(
        path,
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{CSS}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
{"".join(body)}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
""",
    )
    return path


def heading(kicker: str, title: str) -> str:
    return f'<header><p class="kicker">{escape(kicker)}</p><h1>{escape(title)}</h1></header>\n'


def alert(sentences: Sequence[str]) -> str:
    """What went wrong, in red, before anything else; nothing if nothing did."""
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<ul class="alert" role="alert">{items}</ul>\n'


def headline(number: str, unit: str, lines: Sequence[str], good: str = "") -> str:
    """The one number a reader came for; `good` is a green line that says that all went as planned."""
    below = "".join(f"<p>{escape(line)}</p>" for line in lines)
    status = f'<p class="good">{escape(good)}</p>' if good else ""
    return (
        f'<section class="headline"><p class="number">{escape(number)} <span>{escape(unit)}</span></p>'
        f"{below}{status}</section>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A grid of labelled values."""
    items = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in pairs)
    return f'<dl class="facts">{items}</dl>\n'


def chart(title: str, caption: str, plot: str, wide: bool = False) -> str:
    """A figure with its title and a sentence on how to read it; `plot` is HTML."""
    css_class = "chart wide" if wide else "chart"
    return f'<section class="{css_class}"><h2>{escape(title)}</h2><p>{escape(caption)}</p>{plot}</section>\n'


def grid(sections: Iterable[str]) -> str:
    """Charts side by side where there is room."""
    return f'<div class="grid">{"".join(sections)}</div>\n'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table whose first `text_columns` columns are text and the others numbers."""
    kinds = ["text" if index < text_columns else "num" for index in range(len(columns))]
    head = "".join(f'<th class="{kind}">{escape(column)}</th>' for kind, column in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{escape(c)}</td>' for kind, c in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'


def notes(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    return '<ul class="notes">' + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>\n"


def section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def folded(title: str, content: str) -> str:
    """A section that opens on a click."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>\n"
