"""Looks at the training and at unicrond a few times a second, and has what is new told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.evidence import Api, TrainingLog, TrainStep
from demo.screen import RunView, Screen, View
from demo.story import Sentence, sentences

LOOK_SECONDS = 0.25
STATE_SECONDS = 1.0  # the slower things: states of runs and nodes


class NotHeld(Exception):  # noqa: N818 - reads as what it is
    """Something that should have happened did not, in time."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of the demo."""

    name: str
    weight: int
    nodes: int
    min_nodes: int | None  # None: as many as it has
    steps: int


class Watch:
    """`until` is the demo's only way to wait: it looks, tells, and gives up in time."""

    def __init__(self, screen: Screen, parts: Sequence[Part], socket: Path, logs: Path) -> None:
        self.api = Api(socket)
        self.logs = {part.name: TrainingLog(logs / f"{part.name}.jsonl") for part in parts}
        self.runs: dict[str, int] = {}  # name to job id, once submitted
        self._screen = screen
        self._parts = parts
        self._told = {part.name: 0 for part in parts}
        self._states: Mapping[int, Mapping[str, Any]] = {}
        self._nodes: Mapping[str, str] = {}
        self._away = False
        self._state_due = 0.0

    def until(
        self,
        condition: Callable[[], object],
        within_seconds: float,
        what: str,
        every_seconds: float = 0.0,
    ) -> None:
        """Raises NotHeld, which names `what` should have happened."""
        deadline, due = time.monotonic() + within_seconds, 0.0
        while time.monotonic() < deadline:
            self.look()
            if time.monotonic() >= due:
                due = time.monotonic() + every_seconds
                if condition():
                    return
            time.sleep(LOOK_SECONDS)
        raise NotHeld(f"not within {within_seconds:.0f} s: {what}")

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, seconds + 60, "the end of a pause")

    def look(self) -> None:
        news = [*self._training(), *self._journal()]
        for told in sorted(news, key=lambda sentence: sentence.at):
            self._screen.say(told.kind, told.text, told.at)
        if time.monotonic() >= self._state_due:
            self._state_due = time.monotonic() + STATE_SECONDS
            self._look_at_states()
        self._screen.panel(self._view())

    def reached(self, name: str) -> int:
        """The last train step of the newest generation."""
        steps = self.logs[name].steps
        return steps[-1].step if steps else 0

    def _training(self) -> Iterator[Sentence]:
        for part in self._parts:
            log = self.logs[part.name]
            last = log.steps[-1] if log.steps else None
            for step in log.read():
                if last is None or step.generation != last.generation:
                    yield Sentence(step.at, "trains", f"{part.name}: {_begins(step, last)}")
                if step.step == part.steps:
                    words = f"{part.name}: last train step done, loss {step.loss:.2f}"
                    yield Sentence(step.at, "trains", words)
                last = step

    def _journal(self) -> Iterator[Sentence]:
        for name, run_id in self.runs.items():
            answer = self.api.get(f"/why/{run_id}", limit=1000)
            lines = answer["lines"] if answer else []
            yield from sentences(lines[self._told[name] :], name)
            self._told[name] = max(self._told[name], len(lines))
        if self.runs and self.api.away != self._away:
            self._away = self.api.away
            yield Sentence(time.time(), "unicrond", _PRESENCE[self._away])

    def _look_at_states(self) -> None:
        runs = self.api.items("/runs")
        if not self.api.away:
            self._states = {run["run_id"]: run for run in runs}
            self._nodes = {node["name"]: node["state"] for node in self.api.items("/nodes")}

    def _view(self) -> View:
        runs = [self._run_view(part) for part in self._parts if part.name in self.runs]
        return View(runs, self._nodes, "away" if self.api.away else "watches")

    def _run_view(self, part: Part) -> RunView:
        state = self._states.get(self.runs[part.name], {})
        steps = self.logs[part.name].steps
        last = steps[-1] if steps else None
        return RunView(
            part.name, part.weight, state.get("running_on", ()), state.get("generation", 0),
            last.step if last else 0, part.steps, last.loss if last else None,
            time.time() - last.at if last else 0.0, state.get("state", "submitted"),
        )  # fmt: skip


_PRESENCE = {True: "does not answer any more", False: "answers again"}


def _begins(step: TrainStep, last: TrainStep | None) -> str:
    where = f"on {step.world_size} ranks as generation {step.generation}"
    if last is None:
        return f"first train step, {where}"
    lost = last.step - step.step + 1
    return f"trains again {where}, from train step {step.step}: {lost} lost since the checkpoint"
