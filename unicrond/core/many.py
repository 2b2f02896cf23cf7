"""Many silent at once: a switch, or our own network, is likelier than so many lost nodes.

half of all agents, of several runs ───────────────────────> nothing is decided, a person is called
many of one run ──┬── who hears all its survivors misses them ──> lost, like a single one
                  ├── and they are more than may be lost ───────> nothing is decided
                  ├── their peers hear them, orders do not ─────> nothing is decided
                  └── nobody says anything ─────────────────────> nothing is decided

An incident of which nothing is decided has `decided_at` 0. It is taken up again once enough nodes
are heard; if that lasts, a person is called. Meanwhile the agents' own rule may restart the run.
"""

from __future__ import annotations

from collections.abc import Collection

from unicrond.core import heal
from unicrond.core.cycle import Cycle
from unicrond.core.guards import MANY
from unicrond.model.decision import ActionKind
from unicrond.model.incident import Incident, IncidentState, Scope, Severity
from unicrond.model.run import AgentView, Run

MISSED_BEAT_SECONDS = 1.5  # those cut together are not silent long enough in the same moment
_NAMED = 5  # nodes that a reason names


def over_runs(cycle: Cycle, runs: list[Run]) -> bool:
    """Whether so many are quiet, over several runs, that it is our own network; calls a person."""
    policy = cycle.state.policy
    quiet = [len(_quiet(cycle, run)) for run in runs]
    agents = sum(len(run.assignment.nodes) for run in runs if run.assignment)
    hit, count = sum(map(bool, quiet)), sum(quiet)
    if hit < 2 or count < max(policy.many_silent_minimum, agents * policy.many_silent_fraction):
        return False
    if not any(_is_over_runs(incident) for incident in cycle.state.incidents.values()):
        what = f"{count} of {agents} agents of {hit} runs are silent at once: deciding nothing"
        incident = cycle.open_incident(MANY, Severity.NONE, Scope.CLUSTER, None, what)
        cycle.act(incident.incident_id, runs[0], ActionKind.NOTIFY, reason=what)
    return True


def over_runs_ended(cycle: Cycle) -> None:
    """Most agents are heard: our own network is trusted again."""
    for incident in filter(_is_over_runs, tuple(cycle.state.incidents.values())):
        cycle.close_incident(incident.incident_id, IncidentState.RESOLVED, "agents are back")


def _is_over_runs(incident: Incident) -> bool:
    return incident.kind == MANY and incident.run_id is None


def doubt(cycle: Cycle, run: Run, missing: Collection[str], vouched: Collection[str]) -> str:
    """Why nothing may be decided for this run now, "" if it may. Nobody of it speaks for those that
    are missing; those vouched for it hears, and we do not. What Slurm took is in no doubt."""
    policy = cycle.state.policy
    if not missing and undecided(cycle, run) is None:
        return ""
    lost = run.healing.lost if run.healing else ()
    quiet = {*_quiet(cycle, run), *lost}.difference(vouched).intersection(run.nodes)
    size, many = len({*_members(run), *lost}), len(quiet) >= policy.many_silent_minimum
    unproved = quiet - _missed(cycle, run)
    if unproved and (many or undecided(cycle, run)):
        return f"nobody who hears the rest of the run misses {_named(cycle, unproved)}"
    if many and len(quiet) > size * policy.many_lost_fraction:
        return f"{len(quiet)} of {size} nodes are lost at once{_on_one_switch(cycle, quiet)}"
    if len(vouched) >= policy.many_silent_minimum:
        return f"orders do not reach {_named(cycle, vouched)}, which the rest of the run hears"
    return ""


def _named(cycle: Cycle, nodes: Collection[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ",".join(sorted(nodes)[:_NAMED]) + more + _on_one_switch(cycle, nodes)


def _on_one_switch(cycle: Cycle, nodes: Collection[str]) -> str:
    """Slurm's topology names the likeliest culprit."""
    known = cycle.state.nodes
    switches = {known[name].switch if name in known else "" for name in nodes}
    if len(nodes) < 2 or len(switches) > 1 or "" in switches:
        return ""
    return f", all on switch {switches.pop()}"


def hand_over(cycle: Cycle, run: Run, why: str) -> None:
    """Decides nothing. If that has lasted, a person is called, once."""
    since = min((run.agents[n].last_heard for n in _quiet(cycle, run)), default=cycle.now)
    incident = undecided(cycle, run)
    waits = cycle.now - since <= cycle.state.policy.many_silent_wait_seconds
    if waits or (incident and incident.state is IncidentState.PERSON):
        return
    if incident is None and run.healing is not None:
        heal.defer(cycle, run, cycle.state.incidents[run.healing.incident_id])
        incident = undecided(cycle, run)
    why = f"{why}: deciding nothing"
    if incident is None:
        incident = cycle.open_incident(MANY, Severity.NONE, Scope.NODES, run, why)
    else:
        cycle.note("note", why, run, incident=incident.incident_id)
    heal.call_person(cycle, cycle.state.runs[run.run_id], incident, why)


def undecided(cycle: Cycle, run: Run) -> Incident | None:
    """The incident of this run that waits until enough of its nodes are heard."""
    waiting = (IncidentState.OPEN, IncidentState.PERSON)
    mine = cycle.state.incidents.of_run(run.run_id)
    open_ = (i for i in mine if i.state in waiting and not i.only_told)
    return next((i for i in open_ if not i.decided_at), None)


def _members(run: Run) -> tuple[str, ...]:
    """Nodes whose silence matters now."""
    if run.healing and not run.begun_again:
        return (*run.healing.nodes, *run.healing.hidden)
    return run.assignment.nodes if run.assignment else ()


def _quiet(cycle: Cycle, run: Run) -> list[str]:
    views = ((node, run.agents.get(node)) for node in _members(run))
    return [n for n, v in views if v and not v.closed_at and not _heard(cycle, v)]


def _heard(cycle: Cycle, view: AgentView) -> bool:
    return cycle.now - view.last_heard - cycle.state.lag_seconds <= MISSED_BEAT_SECONDS


def _missed(cycle: Cycle, run: Run) -> set[str]:
    """Nodes that somebody misses who would know: an agent that hears every other survivor."""
    alive = {n: v for n, v in run.agents.items() if v.connected and _heard(cycle, v)}
    found: set[str] = set()
    for name, view in alive.items():
        if len(view.peers_heard) < len(alive) - 1 or len(alive) == 1:
            continue
        hears = {n for n, at in view.peers_heard.items() if _fresh(cycle, view, at)}
        if hears.issuperset(alive.keys() - {name}):
            found |= run.agents.keys() - hears
    return found


def _fresh(cycle: Cycle, view: AgentView, heard_at: float) -> bool:
    return view.last_heard - heard_at <= cycle.state.policy.silence_seconds
