"""Silence, judged. Silence alone is never loss.

silent longer than allowed (less our own lag)
  ├── a peer heard it, or the run's iterations advance ──> explained, noted once
  ├── nobody of the run is heard ───────────────────────> nothing can be ordered, noted
  ├── many at once ─────────────────────────────────────> lost only on the run's own word (many.py)
  └── otherwise ────────────────────────────────────────> lost connection (SEV1)
closed (its kernel answered, so the node lives) ────────> its agent ended (SEV2)
"""

from __future__ import annotations

from transition.membership import Trouble
from unicrond.core import heal, many
from unicrond.core.cycle import Cycle
from unicrond.core.guards import lease_of
from unicrond.core.trouble import Fault, report
from unicrond.model.incident import Incident, IncidentState, Scope, Severity
from unicrond.model.run import AgentView, HealStep, Phase, Run, RunState

_AT_WORK = (Phase.STARTING, Phase.RUNNING, Phase.DONE)
_WATCHED = (RunState.STARTING, RunState.RUNNING, RunState.HEALING)
HEARSAY_SLACK_SECONDS = 1.5  # a peer heard it later than we did by more than one beat
PROGRESS_SLACK_SECONDS = 2.0  # a step that was under way when a node fell may still complete


def look(cycle: Cycle) -> None:
    """Judges every silence of every run. Called once a tick."""
    if _in_grace(cycle):
        return
    runs = [r for r in cycle.state.live_runs() if r.state in _WATCHED and r.finished_code is None]
    silent = {run.run_id: _silent(cycle, run) for run in runs}
    if any(silent.values()) and many.over_runs(cycle, runs):
        return
    many.over_runs_ended(cycle)
    for run in runs:
        _judge(cycle, run, silent[run.run_id])


def _judge(cycle: Cycle, run: Run, silent: list[str]) -> None:
    if silent and not _anyone_heard(cycle, run):
        _note_once(cycle, run, "", "no agent of the run is heard: nothing can be ordered")
    missing = [n for n in silent if not _explained(cycle, run, n)]
    why = many.doubt(cycle, run, missing, set(silent).difference(missing))
    if why:
        many.hand_over(cycle, run, why)
        return
    if silent and not _anyone_heard(cycle, run):
        return
    incident = many.undecided(cycle, run)
    if incident is not None:
        take_up(cycle, run, incident)
        return
    fresh = [n for n in missing if (run.run_id, run.generation, n) not in cycle.state.reported]
    if fresh:
        cycle.state.reported.update((run.run_id, run.generation, node) for node in fresh)
        _report(cycle, run, fresh)


def take_up(cycle: Cycle, run: Run, incident: Incident) -> None:
    """Decides anew about an incident of which nothing was decided, or nothing done."""
    silent = _silent(cycle, run)
    missing = [n for n in silent if not _veto(cycle, run, n, run.agents[n])]
    if many.doubt(cycle, run, missing, set(silent).difference(missing)):
        return
    if missing or _idle(run):
        dead = tuple(n for n in missing if run.agents[n].closed_at)
        lost = tuple(n for n in missing if n not in dead)
        culprit = frozenset() if incident.root_rank is None else frozenset({incident.root_rank})
        what = incident.summary
        trouble = Trouble(incident.root_node, lost, dead, what=what, replaced=culprit)
        heal.begin(cycle, run, incident, trouble)
    elif not incident.decided_at:
        why = "its agents are heard again, and it runs"
        cycle.close_incident(incident.incident_id, IncidentState.RESOLVED, why)


def _idle(run: Run) -> bool:
    """Whether a node of the generation that is heard runs no rank of it."""
    nodes = run.assignment.nodes if run.assignment else ()
    views = [run.agents[n] for n in nodes if n in run.agents and run.agents[n].connected]
    return any(v.generation < run.generation or v.phase not in _AT_WORK for v in views)


def _in_grace(cycle: Cycle) -> bool:
    """Agents need a moment to find unicrond again after its start."""
    return cycle.now < cycle.state.started_at + cycle.state.policy.startup_grace_seconds


def _silent(cycle: Cycle, run: Run) -> list[str]:
    """Nodes of the present generation whose agent is not heard, and not yet accounted for."""
    if run.assignment is None or _in_grace(cycle):
        return []
    healing = run.healing if not run.begun_again else None
    if healing and healing.step in (HealStep.REQUEUE, HealStep.END):
        return []
    known = {*healing.lost, *healing.spawning} if healing else set()
    nodes = (*healing.nodes, *healing.hidden) if healing else run.assignment.nodes
    return [n for n in nodes if n not in known and _is_silent(cycle, run.agents.get(n))]


def _is_silent(cycle: Cycle, view: AgentView | None) -> bool:
    state, policy = cycle.state, cycle.state.policy
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


def _explained(cycle: Cycle, run: Run, node: str) -> bool:
    """Whether somebody vouches for this node."""
    why = _veto(cycle, run, node, run.agents[node])
    if why:
        _note_once(cycle, run, node, f"unicrond does not hear {node}, but {why}: not lost")
    return bool(why)


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
            rule="silence.lost" if lost else "agent.ended",
            fact=not lost,
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
