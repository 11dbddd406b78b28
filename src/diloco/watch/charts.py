"""Plotly figures from plain lists. Colours of text and grid come from the page's style sheet, for dark mode's sake."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Readable on white and on near-black, and apart for all common kinds of colour blindness (after Okabe and Ito).
ACCENT, ORANGE, GREEN, PURPLE, GOLD, SKY = "#2f7fd1", "#d9731a", "#0f9d78", "#b06fb5", "#b08a00", "#49a9d9"
NEUTRAL, BAD = "#878d96", "#d64545"
PALETTE = (ACCENT, ORANGE, GREEN, PURPLE, GOLD, SKY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
DASHES = ("solid", "dot", "dashdot")

MAX_POINTS = 500
"""Longer series are drawn as means of equal pieces."""

_LOG_PIECES = 200
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def thin(values: Sequence[float | None]) -> list[float | None]:
    """Means of equal pieces of `values`, at most MAX_POINTS of them; a piece without any finite value is None."""
    piece = max(1, math.ceil(len(values) / MAX_POINTS))
    return [_mean(values[start : start + piece]) for start in range(0, len(values), piece)]


def thin_evenly_in_log(values: Sequence[float | None]) -> list[float | None]:
    """Like `thin`, in pieces that grow with the index: they are equally wide on a log axis."""
    ends = sorted({round(len(values) ** (i / _LOG_PIECES)) for i in range(_LOG_PIECES + 1)}) if values else []
    return [_mean(values[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def figure(x_title: str, y_title: str, height_px: int = 340, **layout: Any) -> Figure:
    """An empty figure in the house style."""
    from plotly import graph_objects as go

    axis = {"zeroline": False, "automargin": True, "title": {"standoff": 8, "font": {"size": 12}}}
    figure = go.Figure(
        layout={
            "template": "none",
            "height": height_px,
            "margin": {"l": 52, "r": 14, "t": 12, "b": 44},
            "font": {"family": _FONT, "size": 12},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
            "hovermode": "closest",
            # The page's script allows dragging where there is a mouse; on a phone it would catch the scrolling finger.
            "dragmode": False,
            "xaxis": axis,
            "yaxis": axis,
        }
    )
    figure.update_layout(xaxis_title_text=x_title, yaxis_title_text=y_title, **layout)
    return figure


def add_line(
    figure: Figure,
    name: str,
    x: Sequence,
    y: Sequence,
    color: str,
    width: float = 2,
    opacity: float = 1,
    **options: Any,
) -> None:
    """Add one series; `options` go to Plotly's scatter trace."""
    line = {"color": color, "width": width, **options.pop("line", {})}
    options = {"mode": "lines", "hovertemplate": "%{y:.4g} at %{x:.4s}<extra>%{fullData.name}</extra>", **options}
    figure.add_scatter(name=name, x=list(x), y=list(y), line=line, opacity=opacity, **options)


def log_tokens_axis(figure: Figure) -> None:
    """Tokens on a log axis: loss falls as a power of them."""
    figure.update_xaxes(type="log", dtick=1, minor={"dtick": "D1", "showgrid": False}, exponentformat="SI")


def to_html(figure: Figure, div_id: str) -> str:
    """The figure as a div and its script, without plotly.js itself."""
    config = {"displayModeBar": False, "responsive": True, "displaylogo": False}
    return figure.to_html(full_html=False, include_plotlyjs=False, include_mathjax=False, div_id=div_id, config=config)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(finite) if finite else None
