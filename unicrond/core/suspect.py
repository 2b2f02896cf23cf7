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
from unicrond.core.guards import lease_of
from unicrond.core.trouble import Fault, report
from unicrond.model.decision import ActionKind
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import AgentView, HealStep, Run, RunState

_WATCHED = (RunState.STARTING, RunState.RUNNING, RunState.HEALING)
HEARSAY_SLACK_SECONDS = 1.5  # a peer heard it later than we did by more than one beat
PROGRESS_SLACK_SECONDS = 2.0  # a step that was under way when a node fell may still complete


def look(cycle: Cycle) -> None:
    """Judges every silence of every run. Called once a tick."""
    runs = [r for r in cycle.state.live_runs() if r.state in _WATCHED and r.finished_code is None]
    silent = {run.run_id: _silent(cycle, run) for run in runs}
    if _many(cycle, runs, silent):
        return
    if cycle.now >= cycle.state.started_at + cycle.state.policy.startup_grace_seconds:
        _close_many(cycle)
    for run in runs:
        if silent[run.run_id] and not _anyone_heard(cycle, run):
            _note_once(cycle, run, "", "no agent of the run is heard: nothing can be ordered")
            continue
        fresh = [n for n in silent[run.run_id] if _unexplained(cycle, run, n)]
        if fresh:
            _report(cycle, cycle.state.runs[run.run_id], fresh)


def _silent(cycle: Cycle, run: Run) -> list[str]:
    """Nodes of the present generation whose agent is not heard, and not yet accounted for."""
    if run.assignment is None:
        return []
    healing = run.healing if not run.begun_again else None
    if healing and healing.step in (HealStep.REQUEUE, HealStep.END):
        return []
    known = {*healing.lost, *healing.spawning} if healing else set()
    nodes = (*healing.nodes, *healing.hidden) if healing else run.assignment.nodes
    return [n for n in nodes if n not in known and _is_silent(cycle, run.agents.get(n))]


def _is_silent(cycle: Cycle, view: AgentView | None) -> bool:
    state, policy = cycle.state, cycle.state.policy
    if cycle.now < state.started_at + policy.startup_grace_seconds:
        return False
    if view is None:
        return False  # in no generation yet: the run's leader waits for it
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
    if (
        hit < 2
        or count < policy.many_silent_minimum
        or count < agents * policy.many_silent_fraction
    ):
        return False
    if not any(i.kind == "many silent" for i in cycle.state.incidents.values()):
        what = f"{count} of {agents} agents of {hit} runs are silent at once: deciding nothing"
        incident = cycle.open_incident("many silent", Severity.NONE, Scope.CLUSTER, None, what)
        cycle.act(incident.incident_id, runs[0], ActionKind.NOTIFY, reason=what)
    return True


def _unexplained(cycle: Cycle, run: Run, node: str) -> bool:
    """Whether nobody vouches for this node, and it was not reported already."""
    seen = (run.run_id, run.generation, node)
    why = _veto(cycle, run, node, run.agents[node])
    if why:
        _note_once(cycle, run, node, f"unicrond does not hear {node}, but {why}: not lost")
    elif seen not in cycle.state.reported:
        cycle.state.reported.add(seen)
        return True
    return False


def missing(cycle: Cycle, run: Run) -> list[str]:
    """Nodes of the generation that nobody vouches for."""
    return [n for n in _silent(cycle, run) if not _veto(cycle, run, n, run.agents[n])]


def _report(cycle: Cycle, run: Run, nodes: list[str]) -> None:
    """All that fell silent in this tick, as one fault."""
    dead = tuple(n for n in nodes if run.agents[n].closed_at)
    lost = tuple(n for n in nodes if n not in dead)
    first = (lost or dead)[0]
    last = run.agents[first].closed_at or run.agents[first].last_heard
    what = (
        f"{','.join(lost)} not heard for {cycle.now - last:.1f} s, by nobody of the run either"
        if lost
        else f"the agent on {','.join(dead)} ended"
    )
    report(
        cycle,
        run,
        Fault(
            kind="lost connection" if lost else "exited abnormally",
            severity=Severity.SEV1 if lost else Severity.SEV2,
            scope=Scope.NODE if len(nodes) == 1 else Scope.NODES,
            node=first,
            what=what,
            noticed_at=cycle.now if lost else last,
            lost=lost,
            dead_agents=dead,
        ),
    )


def _veto(cycle: Cycle, run: Run, node: str, view: AgentView) -> str:
    since = view.closed_at or view.last_heard
    fresh = cycle.now - cycle.state.policy.silence_seconds
    for name, peer in run.agents.items():
        heard = peer.peers_heard.get(node, 0.0)
        told = name != node and peer.connected and peer.last_heard > fresh
        if told and heard > max(fresh, since + HEARSAY_SLACK_SECONDS):
            return f"{name} heard it {cycle.now - heard:.1f} s ago"
    # who hears neither us nor its peers has stopped when its lease is over: older steps say nothing
    stopped = cycle.now - lease_of(run, cycle.state.policy)
    if run.healing is None and run.iteration_since > max(since + PROGRESS_SLACK_SECONDS, stopped):
        return f"train step {run.iteration} was completed since"
    return ""


def _note_once(cycle: Cycle, run: Run, node: str, text: str) -> None:
    if (run.run_id, node) not in cycle.state.vetoed:
        cycle.state.vetoed.add((run.run_id, node))
        cycle.note("note", text, run, node=node)


def heard_again(cycle: Cycle, run: Run, node: str) -> None:
    """An agent is back: explained silences start afresh."""
    cycle.state.reported.discard((run.run_id, run.generation, node))
    cycle.state.vetoed.discard((run.run_id, node))
    cycle.state.vetoed.discard((run.run_id, ""))


def _close_many(cycle: Cycle) -> None:
    """Most agents are heard: our own network is trusted again."""
    for incident in tuple(cycle.state.incidents.values()):
        if incident.kind == "many silent":
            cycle.close_incident(incident.incident_id, IncidentState.RESOLVED, "agents are back")
