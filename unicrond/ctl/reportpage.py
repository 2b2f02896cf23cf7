"""The report as one HTML page with plots in it: nothing is loaded from elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from unicrond.ctl.accounted import Accounted
from unicrond.ctl.show import when

HOUR = 3600.0
MOST_BARS = 25
MOST_ROWS = 2_000
COLOURS = {
    "training": "#2f7d4f", "starting": "#7fb3d5", "detection": "#c0392b", "decision": "#8e44ad",
    "transition": "#e67e22", "requeued": "#f1c40f", "left out": "#95a5a6", "unmended": "#641e16",
    "ending": "#566573", "unmanaged": "#d5dbdb",
}  # fmt: skip
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .2rem .6rem; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr:nth-child(even) { background: #8881; }
svg { max-width: 100%; height: auto; background: #fff; } :root { color-scheme: light dark; }
"""


def page(found: Mapping[str, Any]) -> str:
    total, rows, by = found["total"], found["rows"], found["by"]
    causes = [cause for cause in COLOURS if total["causes"].get(cause)]
    title = f"GPU time by {by}, {when(found['began'])} to {when(found['ended'])}"
    goodput = "" if total["goodput"] is None else f", goodput {total['goodput']:.1%}"
    told = found.get("accounting")
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{total['gpu_seconds'] / HOUR:.2f} GPU-hours were held, "
        f"{total['lost_gpu_seconds'] / HOUR:.2f} of them lost{goodput}.</p>",
        f"<p>{escape(Accounted.sentence(told))}.</p>" if told else "",
        f"<h2>By cause</h2>{_by_cause(total, causes)}",
        f"<h2>By {escape(by)}: those that lost most</h2>{_by_key(rows, causes)}" if rows else "",
        _table(rows, total, causes),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'
    )


def _by_cause(total: Mapping[str, Any], causes: Sequence[str]) -> str:
    figure = Figure(figsize=(9, 0.6 + 0.35 * max(1, len(causes))))
    axes = figure.subplots()
    hours = [total["causes"][cause] / HOUR for cause in causes]
    axes.barh(causes, hours, color=[COLOURS[cause] for cause in causes])
    axes.invert_yaxis()
    axes.set_xlabel("GPU-hours")
    return _drawn(figure)


def _by_key(rows: Sequence[Mapping[str, Any]], causes: Sequence[str]) -> str:
    shown = rows[:MOST_BARS]
    names = [str(row["key"])[:30] or "(none)" for row in shown]
    figure = Figure(figsize=(9, 0.9 + 0.28 * len(shown)))
    axes = figure.subplots()
    left = [0.0] * len(shown)
    for cause in causes:
        hours = [row["causes"].get(cause, 0.0) / HOUR for row in shown]
        axes.barh(range(len(shown)), hours, left=left, color=COLOURS[cause], label=cause)
        left = [a + b for a, b in zip(left, hours, strict=True)]
    axes.set_yticks(range(len(shown)), [name.replace("$", r"\$") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("GPU-hours")
    axes.legend(fontsize="small", loc="lower right")
    return _drawn(figure)


def _drawn(figure: Figure) -> str:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "unicron"}):
        out = io.StringIO()
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def _table(
    rows: Sequence[Mapping[str, Any]], total: Mapping[str, Any], causes: Sequence[str]
) -> str:
    names = ["", "GPU-hours", "lost", "goodput", *causes]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(_line(row, causes) for row in (*rows[:MOST_ROWS], total))
    return f"<h2>GPU-hours</h2><table><tr>{head}</tr>{body}</table>"


def _line(row: Mapping[str, Any], causes: Sequence[str]) -> str:
    goodput = "" if row["goodput"] is None else f"{row['goodput']:.1%}"
    seconds = (row["gpu_seconds"], row["lost_gpu_seconds"])
    cells = [f"{value / HOUR:.2f}" for value in seconds] + [goodput]
    cells += [f"{row['causes'].get(cause, 0.0) / HOUR:.2f}" for cause in causes]
    words = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr><td>{escape(str(row['key']))}</td>{words}</tr>"
