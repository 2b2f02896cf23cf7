"""How the demo is told: a timeline with a live panel below it on a terminal, plain lines elsewhere.

00:24.1  FAULT 1   SIGKILL to rank 1 of light on n5
00:24.2  noticed   light: rank 1 on n5 ended by signal 9
00:24.2  decided   light: restarting run 2 on 3 nodes
00:27.0  trains    light: trains again on 3 ranks as generation 2, from step 21: 6 ...
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.verdict import Check, Row

KINDS = {
    "demo": "bold", "lab": "dim", "alice": "blue", "FAULT": "bold white on red",
    "mended": "bold black on green", "noticed": "yellow", "decided": "bold cyan",
    "weighed": "dim", "acts": "magenta", "outcome": "dim", "trains": "green", "unicrond": "cyan",
    "FAILED": "bold red",
}  # fmt: skip
RUN_STYLES = ("bold blue", "bold magenta")
PLAIN_EVERY_SECONDS = 10.0
WIDTH = 130
FROM_THE_NET = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)  # its fonts


@dataclass(frozen=True, slots=True)
class RunView:
    """What the panel shows of one run."""

    name: str
    weight: float
    nodes: Sequence[str]
    generation: int
    step: int
    steps: int
    loss: float | None
    still_seconds: float  # since the last train step
    words: str


@dataclass(frozen=True, slots=True)
class View:
    runs: Sequence[RunView] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)  # name to state
    unicrond: str = ""


class Screen:
    def __init__(self, console: Console, runs: Sequence[str]) -> None:
        self._console = console
        self._began = time.time()
        self._styles = dict(zip(runs, RUN_STYLES, strict=False))
        self._drawn: list[RenderableType] = []
        self._plain_due = self._began
        self._live = Live(console=console, auto_refresh=False, transient=True)

    @property
    def variables(self) -> dict[str, str]:
        """With which a command writes as it would on this screen."""
        if not self._console.is_terminal:
            return {}
        return {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(self._console.width)}

    def open(self) -> None:
        if self._console.is_terminal:
            self._live.start()

    def close(self) -> None:
        self._live.stop()

    def clock(self, at: float) -> str:
        minutes, seconds = divmod(max(0.0, at - self._began), 60)
        return f"{int(minutes):02}:{seconds:04.1f}"

    def say(self, kind: str, text: str, at: float | None = None) -> None:
        at = time.time() if at is None else at
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(width=7, style="dim")
        line.add_column(width=8)
        line.add_column()
        line.add_row(self.clock(at), Text(kind, style=_style(kind)), self._coloured(kind, text))
        self._drawn.append(line)
        if self._console.is_terminal:
            self._console.print(line)
        else:
            self._plain(kind, text, at)

    def _plain(self, kind: str, text: str, at: float) -> None:
        self._console.print(Text(f"{self.clock(at)}  {kind:<8}  {text}"), soft_wrap=True)

    def show(self, what: RenderableType, *, drawn: bool = False) -> None:
        self._console.print(what, soft_wrap=isinstance(what, Text))
        if drawn:
            self._drawn.append(what)

    def _coloured(self, kind: str, text: str) -> Text:
        coloured = Text(text, style="dim" if _style(kind) == "dim" else "")
        for name, style in self._styles.items():
            coloured.highlight_words([name], style=style)
        coloured.highlight_regex(re.compile(r"\bn\d+\b"), style="bold")
        return coloured

    def panel(self, view: View) -> None:
        if self._console.is_terminal:
            self._live.update(self._panel(view), refresh=True)
        elif view.runs and time.time() >= self._plain_due:
            self._plain_due = time.time() + PLAIN_EVERY_SECONDS
            words = "; ".join(_in_words(run) for run in view.runs)
            self._plain("trains", words, time.time())

    def _panel(self, view: View) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(7):
            grid.add_column(no_wrap=True)
        for run in view.runs:
            grid.add_row(
                Text(run.name, style=self._styles.get(run.name, "")),
                f"weight {run.weight:g}",
                " ".join(run.nodes),
                f"generation {run.generation}",
                ProgressBar(total=run.steps, completed=run.step, width=24),
                f"train step {run.step:>3}/{run.steps}",
                _state(run),
            )
        cluster = Text.assemble(*_words_of_nodes(view.nodes))
        title = f"unicrond: {view.unicrond}" if view.unicrond else None
        return Panel(Group(grid, cluster), title=title, title_align="left", border_style="dim")

    def table(self, rows: Sequence[Row]) -> None:
        table = Table(title="What it cost", title_justify="left", title_style="bold")
        table.add_column("fault")
        for heading in (
            "injected",
            "noticed",
            "decided",
            "running again",
            "train steps\nlost",
        ):
            table.add_column(heading, justify="right")
        for row in rows:
            lost = "-" if row.steps_lost is None else str(row.steps_lost)
            title = self._coloured("demo", f"{row.fault.number}  {row.fault.title}")
            times = (row.noticed, row.decided, row.running_again)
            table.add_row(
                title, self.clock(row.fault.at), *(_after(seconds) for seconds in times), lost
            )  # fmt: skip
        self.show(table, drawn=True)

    def checks(self, checks: Sequence[Check]) -> None:
        for check in checks:
            mark = Text("held  ", style="green") if check.held else Text("FAILED", style="bold red")
            self.show(Text.assemble(mark, "  ", self._coloured("demo", check.sentence)))
        failed = sum(not check.held for check in checks)
        words = f"{failed} of {len(checks)} did not hold" if failed else "All of it held"
        style = "bold red" if failed else "bold green"
        self.show(Text(f"{words}; it took {self.clock(time.time())}.", style=style), drawn=True)

    def picture(self, path: Path) -> None:
        """The timeline and what came of it, as an SVG file."""
        paper = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True)
        for what in self._drawn:
            paper.print(what)
        drawn = paper.export_svg(title="scripts/demo")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FROM_THE_NET.sub("", drawn))


def _style(kind: str) -> str:
    return KINDS[kind.partition(" ")[0]]


def _after(seconds: float | None) -> str:
    return "-" if seconds is None else f"+{seconds:.2f} s"


def _in_words(run: RunView) -> str:
    loss = "" if run.loss is None else f", loss {run.loss:.2f}"
    return f"{run.name} {run.words}, train step {run.step} of {run.steps}{loss}"


def _state(run: RunView) -> Text:
    if run.step >= run.steps:
        return Text("done", style="green")
    if run.still_seconds > 1.5:
        return Text(f"{run.words}, no step for {run.still_seconds:.0f} s", style="yellow")
    return Text(run.words if run.loss is None else f"loss {run.loss:.2f}", style="green")


def _words_of_nodes(nodes: Mapping[str, str]) -> list[tuple[str, str]]:
    styles = {"up": "green", "drained": "yellow", "down": "red"}
    return [(f"{name} {state}   ", styles.get(state, "dim")) for name, state in nodes.items()]
