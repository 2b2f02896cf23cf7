"""Pictures of one seed: WAF over time for each policy; runs and nodes of one policy. Writes PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from planner.kernels import Floats
from simulator.engine import Outcome
from simulator.ledger import Segment
from simulator.model import DAY, HOUR, SECOND
from simulator.state import Phase
from unicrond.errors import BadInput

STRETCHES = 120  # that the rate is averaged over: a run's restart is too short to be seen
MOST_NODES = 160  # shown one a line
PHASES = {
    Phase.TRAINING: "#4c9f70", Phase.CHANGING: "#e0a030", Phase.DETECTING: "#c0392b",
    Phase.WAITING: "#8e6bbf", Phase.QUEUED: "#d9d9d9",
}  # fmt: skip
PLACES = {"idle": "#ffffff", "repair": "#222222", "others": "#b0b0b0"}


def draw(folder: Path, scenario: str, outcomes: Sequence[Outcome]) -> list[Path]:
    """Of outcomes that were recorded, all of one trace."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [_write(folder / f"{scenario}-waf.png", _waf(scenario, outcomes))]
        for outcome in outcomes:
            path = folder / f"{scenario}-{outcome.policy.name}.png"
            written.append(_write(path, _gantt(scenario, outcome)))
    except OSError as error:
        raise BadInput(f"--plots: cannot write in {folder}: {error.strerror}") from None
    return written


def _write(path: Path, figure: Figure) -> Path:
    FigureCanvasAgg(figure)
    figure.savefig(path)
    return path


def _waf(scenario: str, outcomes: Sequence[Outcome]) -> Figure:
    """Above the rate, below what has come together of it, beside the first policy's."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    end = outcomes[0].ledger.nodes.segments[-1].end
    grid = np.linspace(0, end, STRETCHES + 1)
    first = _accumulated(outcomes[0], grid)
    palette = colormaps["tab10" if len(outcomes) <= 10 else "tab20"]
    for i, outcome in enumerate(outcomes):
        mine = _accumulated(outcome, grid)
        rate = np.diff(mine) / (end / STRETCHES / SECOND) / 1e15
        colour, width = palette(i % palette.N), 2.0 if i == 0 else 1.0
        above.stairs(
            rate,
            grid / DAY,
            color=colour,
            linewidth=width,
            label=outcome.policy.name,
            baseline=None,
        )
        behind = 100 * (mine - first) / max(first[-1], 1.0)
        below.plot(grid / DAY, behind, color=colour, linewidth=width)
    above.set_title(f"{scenario}, seed {outcomes[0].seed}")
    above.set_ylabel(f"WAF, weighted PFLOP/s, mean of {end / STRETCHES / HOUR:.2g} h")
    above.set_ylim(bottom=0)
    below.set_ylabel(f"accumulated beside {outcomes[0].policy.name}, % of its end")
    below.set_xlabel("days")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _accumulated(outcome: Outcome, grid: Floats) -> Floats:
    """Weighted FLOP until each moment of the grid."""
    starts, rates = np.array(outcome.ledger.rates, np.float64).T
    sums = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(starts) / SECOND)))
    last = np.searchsorted(starts, grid, side="right") - 1
    return np.asarray(sums[last] + rates[last] * (grid - starts[last]) / SECOND, np.float64)


def _gantt(scenario: str, outcome: Outcome) -> Figure:
    runs, nodes = outcome.ledger.runs.segments, outcome.ledger.nodes.segments
    heights = [max(2.0, 0.45 * len({segment.who for segment in runs}))]
    count = len({segment.who for segment in nodes})
    if count <= MOST_NODES:
        heights.append(max(2.0, 0.16 * count))
    figure = Figure(figsize=(12, 1.5 + sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    _runs(axes[0][0], runs)
    axes[0][0].set_title(f"{scenario}, {outcome.policy.name}, seed {outcome.seed}")
    if count <= MOST_NODES:
        _nodes(axes[1][0], nodes)
    axes[-1][0].set_xlabel("days")
    return figure


def _runs(axes: Axes, segments: Sequence[Segment]) -> None:
    """A bar's height is the run's size."""
    largest = max(segment.size for segment in segments) or 1
    lines = {run: i for i, run in enumerate(sorted({segment.who for segment in segments}))}
    for segment in segments:
        height = 0.9 * max(segment.size, 0.15) / largest
        axes.broken_barh(
            [_span(segment)], (lines[segment.who] - height / 2, height),
            facecolors=PHASES[Phase(segment.how)],
        )  # fmt: skip
    axes.set_yticks(list(lines.values()), [f"run {run}" for run in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(0, max(segment.end for segment in segments) / DAY)
    patches = [Patch(color=colour, label=phase) for phase, colour in PHASES.items()]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _nodes(axes: Axes, segments: Sequence[Segment]) -> None:
    names = sorted(
        {s.how for s in segments if s.how not in PLACES}, key=lambda n: int(n.split()[1])
    )
    colours = PLACES | {name: colormaps["tab20"](i % 20) for i, name in enumerate(names)}
    for segment in segments:
        axes.broken_barh(
            [_span(segment)], (segment.who - 0.45, 0.9), facecolors=colours[segment.how]
        )
    axes.set_ylim(max(s.who for s in segments) + 0.5, -0.5)
    axes.set_ylabel("node")
    seen = {segment.how for segment in segments}
    patches = [
        Patch(facecolor=colour, edgecolor="#888888", label=name)
        for name, colour in colours.items()
        if name in seen
    ]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _span(segment: Segment) -> tuple[float, float]:
    return segment.start / DAY, (segment.end - segment.start) / DAY
