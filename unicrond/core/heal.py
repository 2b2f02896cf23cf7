"""Carries a heal from step to step. One function a step; each looks at the world, never waits.

    begin ──> stop ──> start ──> resolved
                │         │
                └─────────┴──> requeue ──> resolved      end ──> closed with the run
      └──> release ───────────────┘

Deadlines: a stop that is not proved in time, or a start, is answered by a requeue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transition.membership import NO_RESTART, Choice, Trouble, assign, choose
from unicrond.core import queued
from unicrond.core.cycle import Cycle
from unicrond.core.guards import (
    avoided,
    last_heard,
    lease_of,
    restarts_left,
    too_many_hidden,
    unreachable,
)
from unicrond.model.cluster import JobState
from unicrond.model.decision import Action, ActionKind, Outcome, OutcomeState
from unicrond.model.incident import Incident, IncidentState
from unicrond.model.run import AgentView, Healing, HealStep, Loss, Run, RunState

ORDERS = frozenset({ActionKind.STOP_RANKS, ActionKind.START_RANKS, ActionKind.SPAWN_AGENT})
_ACTS = ORDERS | {ActionKind.REQUEUE, ActionKind.END_RUN}


def begin(cycle: Cycle, run: Run, incident: Incident, trouble: Trouble) -> None:
    """Chooses the way on and takes the first step of it; only records it where we may not act."""
    hidden = _hidden(cycle, run, trouble)
    silent = unreachable(cycle.state, run, cycle.now) - set(trouble.dead_agents)
    what = f"{trouble.what}; no order reaches {','.join(hidden)}" if hidden else trouble.what
    trouble = replace(trouble, what=what, avoided=avoided(cycle.state, run) | silent)
    choice = choose(run, trouble, cycle.state.policy.restarts_without_progress)
    if choice.step is not HealStep.END and too_many_hidden(cycle.state, run, hidden):
        defer(cycle, run, incident)
        return
    cycle.decide(incident, run, choice.name, choice.reason, choice.alternatives)
    if not cycle.state.acts_for(run):
        return
    if not restarts_left(run, cycle.now, cycle.state.policy):
        call_person(cycle, run, incident, "over the budget of restarts an hour for this run")
        return
    cycle.supersede(run, ORDERS, "a newer decision replaces it")
    run = _with_losses(cycle, run, incident, trouble)
    cycle.put_incident(
        replace(cycle.state.incidents[incident.incident_id], state=IncidentState.HEALING)
    )
    run = replace(run, state=RunState.HEALING, shunned=choice.shunned)
    _FIRST[choice.step](cycle, run, incident.incident_id, trouble, choice)


def defer(cycle: Cycle, run: Run, incident: Incident) -> None:
    """Decides nothing: `many` has it taken up again, or calls a person."""
    cycle.supersede(run, _ACTS, "too many nodes are not heard")
    cycle.put(replace(run, healing=None))
    incident = cycle.state.incidents[incident.incident_id]
    if incident.state is not IncidentState.PERSON or incident.decided_at:
        cycle.put_incident(replace(incident, state=IncidentState.OPEN, decided_at=0.0))


def advance(cycle: Cycle, run: Run) -> None:
    """Takes the next step of a heal if the last one is complete or overdue."""
    if run.healing is not None:
        _NEXT[run.healing.step](cycle, run, run.healing)


# stop
def _begin_stop(cycle: Cycle, run: Run, incident_id: int, trouble: Trouble, choice: Choice) -> None:
    now, policy, hidden = cycle.now, cycle.state.policy, _hidden(cycle, run, trouble)
    lease = lease_of(run, policy)
    spawning = tuple(n for n in trouble.dead_agents if n in choice.nodes)
    wait = policy.spawn_timeout_seconds if spawning else policy.stop_timeout_seconds
    healing = Healing(
        incident_id,
        HealStep.STOP,
        now,
        now + wait + (2 * lease if hidden else lease),
        nodes=choice.nodes,
        lost=trouble.lost,
        hidden=hidden,
        spawning=spawning,
        exclude=choice.shunned,
    )
    run = cycle.put(replace(run, healing=healing))
    for node, view in sorted(run.agents.items()):
        if view.connected and node not in trouble.dead_agents:
            order_stop(cycle, run, node)
    helper = next((n for n in choice.nodes if n not in spawning), "")
    for node in spawning:
        cycle.act(incident_id, run, ActionKind.PROBE, node)
        if helper:
            cycle.act(incident_id, run, ActionKind.SPAWN_AGENT, helper, target=node)


def _hidden(cycle: Cycle, run: Run, trouble: Trouble) -> tuple[str, ...]:
    """Members that go on for all we know, and hear no order of ours."""
    members = run.assignment.nodes if run.assignment else ()
    known = {*trouble.lost, *trouble.dead_agents}
    silent = unreachable(cycle.state, run, cycle.now) - known
    return tuple(node for node in members if node in silent)


def order_stop(cycle: Cycle, run: Run, node: str) -> None:
    """Orders one agent to stop every rank up to the present generation, and to prove it."""
    assert run.healing is not None
    cycle.act(run.healing.incident_id, run, ActionKind.STOP_RANKS, node, generation=run.generation)


def _advance_stop(cycle: Cycle, run: Run, healing: Healing) -> None:
    unproved = [n for n in _to_stop(run, healing) if not _stopped(run.agents.get(n), run)]
    if not unproved and not healing.proved_at:
        healing = replace(healing, proved_at=cycle.now)
        run = cycle.put(replace(run, healing=healing))
    lost = [n for n in healing.lost if n in run.agents and not _stopped(run.agents[n], run)]
    heard = [last_heard(run, node) for node in lost]
    if healing.hidden:  # their peers tell them that they stopped
        heard.append(healing.proved_at)
    lease_over = max(heard, default=0.0) + lease_of(run, cycle.state.policy)
    if not unproved and cycle.now >= lease_over and healing.nodes[0] in healing.ports:
        _begin_start(cycle, run, healing)
    elif cycle.now > healing.deadline:
        _escalate(
            cycle, run, healing, f"ranks on {','.join(unproved)} were not proved gone in time"
        )


def _to_stop(run: Run, healing: Healing) -> set[str]:
    connected = {n for n, view in run.agents.items() if view.connected}
    return (connected | set(healing.nodes)) - {*healing.lost, *healing.hidden}


def _stopped(view: AgentView | None, run: Run) -> bool:
    return view is not None and view.connected and view.stopped_generation >= run.generation


# start
def _begin_start(cycle: Cycle, run: Run, healing: Healing) -> None:
    now = cycle.now
    generation = run.generation + 1
    assignment = assign(run, generation, f"u:{healing.incident_id}.{generation}", healing.nodes)
    master = healing.nodes[0]
    cycle.supersede(run, ORDERS, "the ranks are gone")
    run = cycle.put(
        replace(
            cycle.begin_generation(run, generation, assignment),
            failures=(*(t for t in run.failures if t > now - 3600), now),
            healing=replace(
                healing,
                step=HealStep.START,
                since=now,
                spawning=(),
                lost=(),
                hidden=(),
                deadline=now + cycle.state.policy.start_timeout_seconds,
            ),
        )
    )
    for node in healing.nodes:
        cycle.act(
            healing.incident_id,
            run,
            ActionKind.START_RANKS,
            node,
            assignment=assignment,
            generation=generation,
            master_node=master,
            master_port=healing.ports[master],
        )


def _advance_start(cycle: Cycle, run: Run, healing: Healing) -> None:
    if cycle.all_run(run):
        cycle.supersede(run, ORDERS, "every agent reports its ranks running")
        cycle.put(replace(run, state=RunState.RUNNING, healing=None))
        cycle.resolve_older(
            run,
            f"ranks run again on {len(healing.nodes)} nodes as generation {run.generation}, "
            f"{cycle.now - _noticed(cycle, healing):.1f} s after it was noticed",
        )
    elif cycle.now > healing.deadline:
        _escalate(cycle, run, healing, f"generation {run.generation} did not start in time")


def _noticed(cycle: Cycle, healing: Healing) -> float:
    incident = cycle.state.incidents.get(healing.incident_id)
    return incident.first_signal_at if incident else healing.since


# requeue
def _begin_requeue(
    cycle: Cycle, run: Run, incident_id: int, trouble: Trouble, choice: Choice
) -> None:
    """A requeued job completes only once Slurm gave up its lost nodes; so these leave it first."""
    now, timeout = cycle.now, cycle.state.policy.release_timeout_seconds
    exclude = tuple(dict.fromkeys((*choice.shunned, *trouble.lost)))
    if not _can_release(cycle, run, trouble, choice):
        _requeue(cycle, run, incident_id, exclude)
        return
    healing = Healing(
        incident_id,
        HealStep.RELEASE,
        now,
        now + timeout,
        nodes=choice.nodes,
        lost=trouble.lost,
        exclude=exclude,
    )
    cycle.put(replace(run, healing=healing))


def _can_release(cycle: Cycle, run: Run, trouble: Trouble, choice: Choice) -> bool:
    """While it runs, and survivors bear witness to the loss."""
    job = cycle.state.allocations.get(run.run_id)
    if job is None or job.state is not JobState.RUNNING:
        return False
    return bool(trouble.lost) and bool(choice.nodes)


def _advance_release(cycle: Cycle, run: Run, healing: Healing) -> None:
    """`losses` does the work: confirm, drain, shrink. A batch host leaves when Slurm takes it."""
    leaving = [x for x in run.losses if x.node in healing.lost and not x.state.settled]
    if not leaving or cycle.now > healing.deadline:
        _requeue(cycle, run, healing.incident_id, healing.exclude)


def _requeue(cycle: Cycle, run: Run, incident_id: int, exclude: tuple[str, ...]) -> None:
    now = cycle.now
    healing = Healing(
        incident_id,
        HealStep.REQUEUE,
        now,
        now + cycle.state.policy.requeue_timeout_seconds,
        nodes=(),
        exclude=exclude,
    )
    failures = (*(t for t in run.failures if t > now - 3600), now)
    run = cycle.put(replace(run, state=RunState.HEALING, healing=healing, failures=failures))
    cycle.act(incident_id, run, ActionKind.REQUEUE, restarts=run.restarts)


def _advance_requeue(cycle: Cycle, run: Run, healing: Healing) -> None:
    if run.state is RunState.RUNNING:
        cycle.supersede(run, frozenset({ActionKind.EXPEDITE}), "it runs")
        cycle.put(replace(run, healing=None))
        cycle.resolve_older(
            run,
            f"the requeued job runs as generation {run.generation}, "
            f"{cycle.now - _noticed(cycle, healing):.1f} s after the fault was noticed",
        )
        return
    if run.state is RunState.REQUEUED:
        queued.advance(cycle, run, healing)
    elif run.state is RunState.HEALING and cycle.now > healing.deadline:
        call_person(
            cycle,
            run,
            cycle.state.incidents[healing.incident_id],
            "Slurm did not requeue the job in time",
        )


# end
def _begin_end(cycle: Cycle, run: Run, incident_id: int, trouble: Trouble, choice: Choice) -> None:
    now = cycle.now
    healing = Healing(
        incident_id, HealStep.END, now, now + cycle.state.policy.stop_timeout_seconds, nodes=()
    )
    run = cycle.put(replace(run, healing=healing, end_reason=choice.reason))
    for node, view in sorted(run.agents.items()):
        if view.connected:
            cycle.act(
                incident_id,
                run,
                ActionKind.END_RUN,
                node,
                exit_code=NO_RESTART,
                reason=choice.reason,
            )


def _advance_end(cycle: Cycle, run: Run, healing: Healing) -> None:
    if cycle.now > healing.deadline and run.finished_code is None:
        call_person(
            cycle,
            run,
            cycle.state.incidents[healing.incident_id],
            "no agent carried out the order to end the run",
        )


# outcomes
def on_outcome(cycle: Cycle, run: Run, action: Action, outcome: Outcome) -> None:
    """What the end of one of this heal's actions means for it."""
    healing = run.healing
    if healing is None or outcome.key.incident_id != healing.incident_id:
        return
    done = outcome.state is OutcomeState.DONE
    if action.kind is ActionKind.STOP_RANKS and done and healing.step is HealStep.STOP:
        _stop_proved(cycle, run, healing, action, outcome)
    elif action.kind is ActionKind.PROBE and not outcome.data.get("passed", True):
        _probe_failed(cycle, run, healing, action.node)
    elif action.kind is ActionKind.REQUEUE and not done:
        call_person(
            cycle,
            run,
            cycle.state.incidents[healing.incident_id],
            f"Slurm refused to requeue the job: {outcome.detail}",
        )


def _stop_proved(
    cycle: Cycle, run: Run, healing: Healing, action: Action, outcome: Outcome
) -> None:
    view = run.agents.get(action.node)
    if view is not None:
        stopped = max(view.stopped_generation, int(str(action.args["generation"])))
        run.agents[action.node] = replace(view, stopped_generation=stopped)
    port = outcome.data.get("port")
    if isinstance(port, int):
        healing = replace(healing, ports={**healing.ports, action.node: port})
    cycle.put(replace(run, healing=healing))


def _probe_failed(cycle: Cycle, run: Run, healing: Healing, node: str) -> None:
    """An agent was taken for dead, but its whole node is: it is lost, not to be started again."""
    if node not in healing.spawning:
        return
    incident = cycle.state.incidents[healing.incident_id]
    trouble = Trouble(
        root_node=node,
        lost=(*healing.lost, node),
        dead_agents=tuple(n for n in healing.spawning if n != node),
        what=f"{node} does not answer: neither its agent nor its slurmd",
    )
    begin(cycle, run, incident, trouble)


# trouble
def lay_down(cycle: Cycle, run: Run, why: str) -> None:
    """We may not act any more. A requeue that Slurm has begun goes its way."""
    if run.healing is None or run.state is not RunState.HEALING:
        return
    incident = cycle.state.incidents[run.healing.incident_id]
    cycle.supersede(run, _ACTS, why)
    cycle.put(replace(run, healing=None))
    cycle.put_incident(replace(incident, state=IncidentState.OPEN))
    cycle.note("note", f"the heal is laid down: {why}", run, incident=incident.incident_id)


def _escalate(cycle: Cycle, run: Run, healing: Healing, what: str) -> None:
    incident = cycle.state.incidents[healing.incident_id]
    cycle.note("note", what, run, incident=incident.incident_id)
    cycle.supersede(run, ORDERS, what)
    if not restarts_left(run, cycle.now, cycle.state.policy):
        call_person(cycle, run, incident, "over the budget of restarts an hour for this run")
        return
    _requeue(cycle, run, incident.incident_id, (*healing.exclude, *healing.lost))


def call_person(cycle: Cycle, run: Run, incident: Incident, why: str) -> None:
    """Leaves the incident to a person."""
    cycle.put(replace(run, healing=None))
    cycle.put_incident(
        replace(cycle.state.incidents[incident.incident_id], state=IncidentState.PERSON)
    )
    cycle.act(incident.incident_id, run, ActionKind.NOTIFY, reason=why)


def _with_losses(cycle: Cycle, run: Run, incident: Incident, trouble: Trouble) -> Run:
    known = {loss.node for loss in run.losses if not loss.state.settled}
    deadline = cycle.now + cycle.state.policy.confirm_timeout_seconds
    fresh = tuple(
        Loss(node, incident.incident_id, cycle.now, deadline)
        for node in trouble.lost
        if node not in known
    )
    return replace(run, losses=(*run.losses, *fresh)[-64:])


_FIRST: dict[HealStep, Callable[[Cycle, Run, int, Trouble, Choice], None]] = {
    HealStep.STOP: _begin_stop,
    HealStep.REQUEUE: _begin_requeue,
    HealStep.END: _begin_end,
}
_NEXT: dict[HealStep, Callable[[Cycle, Run, Healing], None]] = {
    HealStep.STOP: _advance_stop,
    HealStep.RELEASE: _advance_release,
    HealStep.START: _advance_start,
    HealStep.REQUEUE: _advance_requeue,
    HealStep.END: _advance_end,
}
