"""What agents tell: they join, beat, leave, send signals. Their word concerns their own run."""

from __future__ import annotations

from dataclasses import replace

from unicrond.core import changeover, flops, heal, losses, speed
from unicrond.core.cycle import Cycle
from unicrond.core.suspect import heard_again
from unicrond.core.trouble import reconsider
from unicrond.model.decision import ActionKind
from unicrond.model.events import AgentBeat, AgentJoined, AgentLeft, Registration
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.run import AgentView, Assignment, HealStep, LossState, Phase, Run, RunState

TERMINATED = 143  # by SIGTERM: scancel, a requeue, a time limit; or a kill of this agent alone

_OBSERVED = "; the job has parts of nodes: it is observed only"
_ORDERS = heal.ORDERS | {ActionKind.END_RUN}
_OF_ONE_START = _ORDERS | {ActionKind.SHRINK}


def on_joined(cycle: Cycle, event: AgentJoined) -> None:
    """An agent connected: the first of a run, one of a new incarnation, or one that is back."""
    said = event.registration
    run = _run_of(cycle, said)
    if run is None:
        return
    view = AgentView(
        node=said.node,
        agent=said.agent,
        connected=True,
        last_heard=event.at,
        phase=said.phase,
        generation=said.generation,
        stopped_generation=said.stopped_generation,
        order=said.assignment.order if said.assignment else "",
        regrouping=said.regrouping,
        prepared=said.prepared,
    )
    known = run.agents.get(said.node)
    new = known is None or known.agent != said.agent
    if known is not None and known.agent and new and said.phase is Phase.IDLE:
        # a new agent proves left-overs of its predecessor gone before it speaks
        view = replace(view, stopped_generation=max(run.generation, view.stopped_generation))
    lease = max(run.lease_seconds, said.lease_seconds)
    run = replace(run, agents={**run.agents, said.node: view}, lease_seconds=lease)
    run = cycle.put(run)
    heard_again(cycle, run, said.node)
    run = _adopt(cycle, run, said.generation, said.assignment)
    _after_join(cycle, run, view, new)
    settle(cycle, cycle.state.runs[run.run_id])


def _run_of(cycle: Cycle, said: Registration) -> Run | None:
    run = cycle.state.runs.get(said.run_id)
    if run is not None and said.restarts < run.restarts:
        cycle.note("note", f"{said.node}: an agent of an earlier start of the job is ignored", run)
        return None
    if run is not None and said.restarts == run.restarts:
        return run if not run.state.ended else replace(run, state=RunState.STARTING)
    if run is not None:
        return incarnate(cycle, run, said.restarts, said.nodes)
    allocation = cycle.state.allocations.get(said.run_id)
    run = Run(
        run_id=said.run_id,
        name=said.name,
        user=allocation.user if allocation else str(said.uid),
        uid=said.uid,
        weight=said.weight,
        min_nodes=said.min_nodes,
        max_nodes=said.max_nodes,
        ranks_per_node=said.ranks_per_node,
        nodes=said.nodes,
        batch_host=(allocation.batch_host if allocation else "") or said.nodes[0],
        restarts=said.restarts,
        whole_nodes=allocation.whole_nodes if allocation else True,
        workload=said.workload,
    )
    cycle.put(run)
    cycle.note(
        "note",
        f"run {run.run_id} ({run.name}) of {run.user} registered: {len(run.nodes)} nodes, at least "
        f"{run.min_nodes}, weight {run.weight:g}{'' if run.whole_nodes else _OBSERVED}",
        run,
    )
    return run


def incarnate(cycle: Cycle, run: Run, restarts: int, nodes: tuple[str, ...]) -> Run:
    """The same run, started once more by Slurm: other nodes, no agents yet, history kept."""
    if run.state.ended:  # by hand of a person, who has his reasons
        run = replace(run, restarts_without_progress=0, last_root="", shunned=())
    run = replace(
        leave_start(cycle, run),
        restarts=restarts,
        nodes=nodes or run.nodes,
        batch_host=nodes[0] if nodes else run.batch_host,
        state=RunState.STARTING,
        end_reason="",
        ended_at=0.0,
    )
    cycle.note("note", f"Slurm started the job again (restart {restarts})", run)
    return cycle.put(run)


def leave_start(cycle: Cycle, run: Run) -> Run:
    """This start of the job is over, and with it every order and every heal but the requeue."""
    why, healing = "the job was requeued", run.healing
    cycle.supersede(run, _OF_ONE_START, why)
    if healing is not None and healing.step is not HealStep.REQUEUE:
        cycle.close_incident(healing.incident_id, IncidentState.CLOSED, why)
        healing = None
    confirming = (LossState.SUSPECTED, LossState.CONFIRMED)
    return replace(
        run,
        assignment=None,
        agents={},
        losses=tuple(loss for loss in run.losses if loss.state in confirming),
        early_exits=(),
        finished_code=None,
        healing=healing,
    )


def _after_join(cycle: Cycle, run: Run, view: AgentView, new: bool) -> None:
    healing, node = run.healing, view.node
    if healing is not None and node in (*healing.lost, *healing.hidden):
        _back(cycle, run, node)
        return
    if healing is not None and healing.step in (HealStep.HOLD, HealStep.STOP):
        changeover.joined(cycle, run, healing, node, new)
    elif view.generation < run.generation and view.phase in (Phase.STARTING, Phase.RUNNING):
        _stop_past(cycle, run, view)
    for action, _ in cycle.state.pending.of_run(run.run_id):
        if action.node == node and action.kind in _ORDERS:
            cycle.again(action)


def _stop_past(cycle: Cycle, run: Run, view: AgentView) -> None:
    """Ranks of a generation that is over stop, in every mode; an incident says why, at once over
    where no other is open."""
    past, node = run.generation - 1, view.node
    for action, _ in cycle.state.pending.of_run(run.run_id):
        if (action.node, action.kind) == (node, ActionKind.STOP_RANKS):
            return
    incident = cycle.incident_of(run)
    if incident is None:
        what = f"{node} is back with ranks of generation {view.generation}, which is over"
        incident = cycle.open_incident(
            "left behind", Severity.NONE, Scope.NODE, run, what, node=node
        )
        cycle.close_incident(incident.incident_id, IncidentState.RESOLVED, "they are to stop")
    cycle.act(incident.incident_id, run, ActionKind.STOP_RANKS, node, generation=past)


def on_beat(cycle: Cycle, event: AgentBeat) -> None:
    """Each second from each agent: kept lean, and saved only when something changed."""
    run = cycle.state.runs.get(event.run_id)
    view = run.agents.get(event.node) if run else None
    if run is None or view is None or view.agent != event.agent:
        return
    before = view.phase, view.generation, view.stopped_generation
    said = event.phase, event.generation, event.stopped_generation
    waiting = (view.regrouping, view.prepared) != (event.regrouping, event.prepared)
    kept = view.flops if view.generation == event.generation else 0.0
    computed = view.flops != (event.flops or kept)
    changed = before != said or waiting or computed or not view.connected
    run.agents[event.node] = AgentView(  # all of it: `replace` would take thrice as long
        node=view.node,
        agent=view.agent,
        connected=True,
        last_heard=event.at,
        phase=event.phase,
        generation=event.generation,
        stopped_generation=max(view.stopped_generation, event.stopped_generation),
        order=event.assignment.order if event.assignment else view.order,
        iteration=event.iteration,
        flops=event.flops or kept,
        peers_heard=event.peers_heard,
        regrouping=event.regrouping,
        prepared=event.prepared,
    )
    if event.at - view.last_heard > cycle.state.policy.silence_seconds:
        _back(cycle, run, event.node)
        run = cycle.state.runs[run.run_id]
    run = _progressed(cycle, run, event)
    speed.on_beat(cycle, run, event)
    if changed:
        run = _adopt(cycle, cycle.put(run), event.generation, event.assignment)
        run = flops.counted(cycle, run) if computed else run
        settle(cycle, run)


def _back(cycle: Cycle, run: Run, node: str) -> None:
    """An agent is heard after a silence, over the same connection."""
    heard_again(cycle, run, node)
    losses.returned(cycle, run, node)
    run = cycle.state.runs[run.run_id]
    if run.healing is not None and node in (*run.healing.lost, *run.healing.hidden):
        reconsider(cycle, run, f"{node} is back before the next generation began", node)


def _progressed(cycle: Cycle, run: Run, event: AgentBeat) -> Run:
    """Not saved by itself: the next change of the run carries it along."""
    counted = event.counted if event.generation == run.generation else 0
    if event.iteration <= run.iteration and counted <= run.counted:
        return run
    run = replace(
        run,
        iteration=max(run.iteration, event.iteration),
        counted=max(run.counted, counted),
        iteration_since=event.at,
    )
    cycle.state.runs[run.run_id] = run
    cycle.state.slow.pop(run.run_id, None)
    return run


def _adopt(cycle: Cycle, run: Run, generation: int, assignment: Assignment | None) -> Run:
    """Takes over a generation that the agents began without us."""
    if assignment is None or not _is_newer(run, generation, assignment):
        return run
    cycle.supersede(run, heal.ORDERS, "the agents began a generation of their own")
    keeps = run.healing is not None and run.healing.step in (HealStep.REQUEUE, HealStep.END)
    state = RunState.STARTING if run.state is not RunState.HEALING or not keeps else run.state
    # one that never came here is missed from now on as one that did
    unseen = {n: AgentView(n, "", connected=False, last_heard=cycle.now) for n in assignment.nodes}
    return cycle.put(
        replace(
            cycle.begin_generation(run, generation, assignment),
            state=state,
            agents={**unseen, **run.agents},
            healing=run.healing if keeps else None,
        )
    )


def _is_newer(run: Run, generation: int, assignment: Assignment) -> bool:
    """Of one generation that unicrond never got to start, the agents' own counts."""
    ours = run.assignment.order if run.assignment else ""
    theirs = generation == run.generation and assignment.order != ours and run.healing is None
    return generation > run.generation or theirs


def settle(cycle: Cycle, run: Run) -> None:
    """starting -> running once every agent of the generation says so; ends what that heals."""
    assignment = run.assignment
    if assignment is None or run.state not in (RunState.STARTING, RunState.HEALING):
        return
    if run.healing is not None and (
        run.healing.step is not HealStep.REQUEUE or run.state is RunState.HEALING
    ):
        return  # the heal goes on; a requeue is over once the job has started again
    if not cycle.all_run(run):
        return
    run = cycle.put(replace(run, state=RunState.RUNNING))
    cycle.note(
        "note",
        f"running on {len(assignment.nodes)} nodes, {assignment.world_size} ranks, "
        f"generation {run.generation}",
        run,
    )
    if run.healing is None:
        cycle.resolve_older(run, f"healed without unicrond: generation {run.generation} runs")


def on_left(cycle: Cycle, event: AgentLeft) -> None:
    """A connection ended. That says nothing of the node: a silence or a new dial-in follows."""
    run = cycle.state.runs.get(event.run_id)
    view = run.agents.get(event.node) if run else None
    if run is None or view is None or view.agent != event.agent:
        return
    closed_at = 0.0 if event.silent else event.at
    if event.finished and event.exit_code == TERMINATED:
        closed_at += cycle.state.policy.terminated_grace_seconds
    closed = replace(view, connected=False, closed_at=closed_at)
    run = cycle.put(replace(run, agents={**run.agents, event.node: closed}))
    if event.exit_code == TERMINATED and any(v.connected for v in run.agents.values()):
        return  # Slurm ends them all, or somebody ended this one: the next seconds tell
    if event.finished and run.finished_code is None:
        run = cycle.put(replace(run, finished_code=event.exit_code))
        cycle.note("note", f"its agents say that the run is over, exit code {event.exit_code}", run)
