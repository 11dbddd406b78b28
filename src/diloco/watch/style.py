"""The style sheet of all pages."""

from __future__ import annotations

CSS = """\
:root {
  --paper: #ffffff; --ink: #1b1f24; --soft: #5c6570; --line: #e3e6ea; --grid: #eceef1;
  --bad: #b3261e; --bad-paper: #fdeceb; --good: #0b7a5d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --ink: #e7eaee; --soft: #9aa4b0; --line: #2b3138; --grid: #242a31;
    --bad: #ff8a80; --bad-paper: #3a1d1c; --good: #4fc9a4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 64px; }
h1 { margin: 0; font-size: 26px; line-height: 1.2; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 0 0 2px; font-size: 17px; font-weight: 650; }
section, details { margin-top: 32px; }
.kicker { margin: 0 0 2px; color: var(--soft); font-size: 14px; }
.alert {
  margin: 20px 0 0; padding: 12px 16px; border-radius: 6px; list-style: none;
  background: var(--bad-paper); color: var(--bad); font-weight: 600;
}
.headline { margin-top: 20px; }
.headline p { margin: 2px 0; color: var(--soft); }
.headline .number { color: var(--ink); font-size: 52px; line-height: 1.1; font-weight: 680; letter-spacing: -0.02em; }
.headline .number span { font-size: 17px; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.headline .good { color: var(--good); font-weight: 600; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(126px, 1fr)); gap: 14px 20px;
  margin: 24px 0 0; padding: 16px 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line);
}
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-weight: 550; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 0 32px; }
.chart { min-width: 0; }
.chart p { margin: 0 0 4px; color: var(--soft); font-size: 14px; }
.scroll { overflow-x: auto; margin-top: 8px; }
table { border-collapse: collapse; min-width: min(100%, 480px); font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 18px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
.text { text-align: left; }
.num { text-align: right; white-space: nowrap; }
.notes { margin: 16px 0 0; padding-left: 20px; color: var(--soft); font-size: 14px; }
summary { cursor: pointer; font-size: 17px; font-weight: 650; }
@media (max-width: 600px) {
  main { padding: 20px 16px 48px; }
  .headline .number { font-size: 44px; }
  .headline .number span { display: block; font-size: 15px; line-height: 1.4; margin-top: 4px; }
  .facts { grid-template-columns: repeat(2, 1fr); }
}
/* Plotly writes its colours into each element, hence the !important. */
.js-plotly-plot .main-svg { background: transparent !important; }
.js-plotly-plot text { fill: var(--soft) !important; }
.js-plotly-plot .hovertext text { fill: #ffffff !important; }
.js-plotly-plot .gridlayer path { stroke: var(--grid) !important; }
.js-plotly-plot .zerolinelayer path { stroke: var(--line) !important; }
"""
