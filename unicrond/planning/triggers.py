"""Events that call for a look at the whole cluster, found by comparing the state after each turn.

    SEV1 · node returned · node drained · run started · run ended · weight changed

Pure. It costs a look at each live run and each open incident; at each node only when a snapshot
told of nodes. What was so when unicrond started is no event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unicrond.core import guards
from unicrond.core.state import State
from unicrond.model.cluster import Node, NodeState
from unicrond.model.incident import Severity
from unicrond.model.run import Run, RunState
from unicrond.model.strenum import StrEnum


class Cause(StrEnum):
    SEV1 = "SEV1"
    NODE_RETURNED = "node returned"
    NODE_DRAINED = "node drained"
    RUN_STARTED = "run started"
    RUN_ENDED = "run ended"
    WEIGHT_CHANGED = "weight changed"


@dataclass(frozen=True, slots=True)
class Trigger:
    """What happened, in a few words, and to what it belongs in the story. `avoided`: nodes that a
    heal of that run would not go on with, as far as only the core knows."""

    cause: Cause
    what: str
    run_id: int | None = None
    incident_id: int | None = None
    node: str = ""
    generation: int = 0
    avoided: tuple[str, ...] = ()


class Triggers:
    def __init__(self) -> None:
        self._first = True
        self._severe: set[int] = set()  # open incidents of severity 1
        self._runs: dict[int, tuple[float, int, bool]] = {}  # live: weight, floor, has it run
        self._nodes: Mapping[str, Node] = {}

    def look(self, state: State, now: float) -> list[Trigger]:
        found = [*self._incidents(state, now), *self._of_runs(state), *self._of_nodes(state)]
        if self._first:
            self._first = False
            return []
        return found

    def _incidents(self, state: State, now: float) -> Iterator[Trigger]:
        severe = {n for n, i in state.incidents.items() if i.severity is Severity.SEV1}
        for number in sorted(severe - self._severe):
            i = state.incidents[number]
            run = state.runs.get(i.run_id) if i.run_id is not None else None
            avoided = _avoided(state, run, now) if run else ()
            yield Trigger(
                Cause.SEV1, i.summary, i.run_id, number, i.root_node, i.generation, avoided
            )
        self._severe = severe

    def _of_runs(self, state: State) -> Iterator[Trigger]:
        live = {run.run_id: run for run in state.live_runs()}
        for run in live.values():
            new = (run.weight, run.floor_nodes, False)
            weight, floor, ran = self._runs.get(run.run_id, new)
            if weight != run.weight:
                what = f"weight of run {run.run_id} changed from {weight:g} to {run.weight:g}"
                yield _of(run, Cause.WEIGHT_CHANGED, what)
            if floor != run.floor_nodes:
                what = f"floor of run {run.run_id} changed from {floor} to {run.floor_nodes} nodes"
                yield _of(run, Cause.WEIGHT_CHANGED, what)
            if run.state is RunState.RUNNING and not ran:
                yield _of(run, Cause.RUN_STARTED, f"run {run.run_id} started")
            runs_now = run.state is RunState.RUNNING
            requeued = run.state is RunState.REQUEUED
            has_run = (ran or runs_now) and not requeued
            self._runs[run.run_id] = run.weight, run.floor_nodes, has_run
        for run_id in [run_id for run_id in self._runs if run_id not in live]:
            *_, ran = self._runs.pop(run_id)
            ended = state.runs.get(run_id)
            if ran and ended is not None:
                yield _of(ended, Cause.RUN_ENDED, f"run {run_id} ended")

    def _of_nodes(self, state: State) -> Iterator[Trigger]:
        if state.nodes is self._nodes:
            return
        for name, node in state.nodes.items():
            before = self._nodes.get(name)
            if before is not None and before.state is not node.state:
                yield from _changed(before, node)
        self._nodes = state.nodes


def _avoided(state: State, run: Run, now: float) -> tuple[str, ...]:
    """An agent whose connection ended is started again, so its node is not lost."""
    ended = {name for name, view in run.agents.items() if view.closed_at}
    silent = guards.unreachable(state, run, now) - ended
    return tuple(sorted(silent | guards.avoided(state, run)))


def _of(run: Run, cause: Cause, what: str) -> Trigger:
    return Trigger(cause, what, run.run_id, generation=run.generation)


def _changed(before: Node, node: Node) -> Iterator[Trigger]:
    """A drain counts only of a node that was well: it is then that somebody announces one."""
    away = (NodeState.DOWN, NodeState.DRAINED)
    if node.state is NodeState.UP and before.state in away:
        yield Trigger(Cause.NODE_RETURNED, f"{node.name} is back", node=node.name)
    elif node.state is NodeState.DRAINED and before.state is NodeState.UP:
        why = f" ({node.reason})" if node.reason else ""
        yield Trigger(Cause.NODE_DRAINED, f"{node.name} is drained{why}", node=node.name)
