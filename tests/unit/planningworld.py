"""A run, an incident and a state, as the planner beside the loop sees them."""

from __future__ import annotations

from typing import Any

from unicrond.core.policy import Policy
from unicrond.core.state import State
from unicrond.model.decision import Mode
from unicrond.model.incident import Incident, Scope, Severity
from unicrond.model.run import AgentView, Assignment, Run, RunState, Slot
from unicrond.model.workload import BatchScaling, Workload
from unicrond.planning.triggers import Cause, Trigger

NOW = 10_000.0
NAMES = ("n1", "n2", "n3")
STARTED = Trigger(Cause.RUN_STARTED, "run 7 started", 7)


def a_run(**more: Any) -> Run:
    slots = tuple(Slot(i, f"m{i}", name, 0) for i, name in enumerate(NAMES))
    told = {
        "run_id": 7, "name": "r", "user": "u", "uid": 1, "weight": 1.0, "min_nodes": 1,
        "max_nodes": 3, "ranks_per_node": 1, "nodes": NAMES, "batch_host": "n1", "restarts": 0,
        "state": RunState.RUNNING, "generation": 1, "assignment": Assignment(1, "a", slots),
        "agents": {name: AgentView(name, "a", True, NOW) for name in NAMES},
        "workload": Workload(1e15, BatchScaling.FIXED, workers=3),
    }  # fmt: skip
    return Run(**{**told, **more})


def lost(node: str, number: int = 1, **more: Any) -> Incident:
    told = {"summary": f"{node} is silent", **more}
    return Incident(
        number, NOW, "lost connection", Severity.SEV1, Scope.NODE, 7, 1, node, None, **told
    )


def a_state(*runs: Run, **more: Any) -> State:
    state = State(Policy(), 0.0, Mode.ACTIVE, **more)
    state.runs = {run.run_id: run for run in runs}
    return state
