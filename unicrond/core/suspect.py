"""Silence, judged. Silence alone is never loss.

    silent longer than allowed (less our own lag)
      ├── a peer heard it, or the run's iterations advance ──> explained, noted once
      ├── many agents of several runs at once ──────────────> a person is called, nothing is decided
      ├── nobody of the run is heard ───────────────────────> nothing can be ordered, noted
      └── otherwise ────────────────────────────────────────> lost connection (SEV1)
    closed (its kernel answered, so the node lives) ────────> its agent ended (SEV2)
"""

from __future__ import annotations

from unicrond.core.cycle import Cycle
from unicrond.core.trouble import Fault, report
from unicrond.model.decision import ActionKind
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import AgentView, HealStep, Run, RunState

_WATCHED = (RunState.STARTING, RunState.RUNNING, RunState.HEALING)
PROGRESS_SLACK_SECONDS = 2.0  # a step that was under way when a node fell may still complete


def look(cycle: Cycle) -> None:
    """Judges every silence of every run. Called once a tick."""
    runs = [r for r in cycle.state.live_runs() if r.state in _WATCHED and r.finished_code is None]
    silent = {run.run_id: _silent(cycle, run) for run in runs}
    if _many(cycle, runs, silent):
        return
    for run in runs:
        if silent[run.run_id] and not _anyone_heard(cycle, run):
            _note_once(cycle, run, "", "no agent of the run is heard: nothing can be ordered")
            continue
        for node in silent[run.run_id]:
            _judge(cycle, cycle.state.runs[run.run_id], node)


def _silent(cycle: Cycle, run: Run) -> list[str]:
    """Nodes of the present generation whose agent is not heard, and not yet accounted for."""
    if run.assignment is None:
        return []
    known = set(run.healing.lost) | set(run.healing.spawning) if run.healing else set()
    if run.healing and run.healing.step in (HealStep.REQUEUE, HealStep.END):
        return []
    nodes = run.healing.nodes if run.healing else run.assignment.nodes
    return [n for n in nodes if n not in known and _is_silent(cycle, run.agents.get(n))]


def _is_silent(cycle: Cycle, view: AgentView | None) -> bool:
    state, policy = cycle.state, cycle.state.policy
    if cycle.now < state.started_at + policy.startup_grace_seconds:
        return False
    if view is None:
        return False  # never seen: it may still be starting; the run's leader waits for it
    if view.closed_at:
        return cycle.now - view.closed_at >= policy.close_grace_seconds
    return cycle.now - view.last_heard - state.lag_seconds > policy.silence_seconds


def _anyone_heard(cycle: Cycle, run: Run) -> bool:
    """Also true when every agent ended in front of our eyes: then the network is not in doubt."""
    views = run.agents.values()
    heard = any(view.connected and not _is_silent(cycle, view) for view in views)
    return heard or all(view.closed_at for view in views)


def _many(cycle: Cycle, runs: list[Run], silent: dict[int, list[str]]) -> bool:
    """Many at once, over several runs: more likely our own network than theirs."""
    policy = cycle.state.policy
    count = sum(len(nodes) for nodes in silent.values())
    agents = sum(len(run.assignment.nodes) for run in runs if run.assignment)
    hit = sum(bool(nodes) for nodes in silent.values())
    if hit < 2 or count < policy.many_silent_minimum or count < agents * policy.many_silent_fraction:
        return False
    if not any(i.kind == "many silent" for i in cycle.state.incidents.values()):
        what = f"{count} of {agents} agents of {hit} runs are silent at once: deciding nothing"
        incident = cycle.open_incident(
            "many silent", Severity.NONE, Scope.CLUSTER, None, what
        )
        cycle.act(incident.incident_id, runs[0], ActionKind.NOTIFY, reason=what)
    return True


def _judge(cycle: Cycle, run: Run, node: str) -> None:
    view = run.agents[node]
    why = _veto(cycle, run, node, view)
    if why:
        _note_once(cycle, run, node, f"unicrond does not hear {node}, but {why}: not lost")
        return
    seen = (run.run_id, run.generation, node)
    if seen in cycle.state.reported:
        return
    cycle.state.reported.add(seen)
    closed = bool(view.closed_at)
    last = view.closed_at or view.last_heard
    report(
        cycle,
        run,
        Fault(
            kind="exited abnormally" if closed else "lost connection",
            severity=Severity.SEV2 if closed else Severity.SEV1,
            scope=Scope.NODE,
            node=node,
            what=f"the agent on {node} ended" if closed
            else f"{node} was last heard {cycle.now - last:.1f} s ago, by nobody of the run since",
            noticed_at=last if closed else cycle.now,
            lost=not closed,
            dead_agent=closed,
        ),
    )


def _veto(cycle: Cycle, run: Run, node: str, view: AgentView) -> str:
    fresh = cycle.now - cycle.state.policy.silence_seconds
    for name, peer in run.agents.items():
        heard = peer.peers_heard.get(node, 0.0)
        if name != node and peer.connected and peer.last_heard > fresh and heard > fresh:
            return f"{name} heard it {cycle.now - heard:.1f} s ago"
    since = view.closed_at or view.last_heard
    if run.healing is None and run.iteration_since > since + PROGRESS_SLACK_SECONDS:
        return f"train step {run.iteration} was completed since"
    return ""


def _note_once(cycle: Cycle, run: Run, node: str, text: str) -> None:
    if (run.run_id, node) not in cycle.state.vetoed:
        cycle.state.vetoed.add((run.run_id, node))
        cycle.note("note", text, run, node=node)


def heard_again(cycle: Cycle, run: Run, node: str) -> None:
    """An agent is back: explained silences start afresh, and so does trust in our own network."""
    cycle.state.reported.discard((run.run_id, run.generation, node))
    cycle.state.vetoed.discard((run.run_id, node))
    cycle.state.vetoed.discard((run.run_id, ""))
    for incident in tuple(cycle.state.incidents.values()):
        if incident.kind == "many silent":
            cycle.close_incident(incident.incident_id, IncidentState.RESOLVED, "agents are back")
