"""Carries a heal from step to step. One function a step; each looks at the world, never waits.

    begin ──> hold ──┐
      │         v    v
      ├──────> stop ──> start ──> resolved
      │         │         │
      │         └─────────┴──> requeue ──> resolved      end ──> closed with the run
      └──> release ───────────────┘

A step that is not complete at its deadline is answered by the next tier (transition/steps.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transition.membership import NO_RESTART, Choice, Trouble, choose
from transition.steps import next_tier
from unicrond.core import changeover, queued
from unicrond.core.cycle import Cycle
from unicrond.core.guards import (
    avoided,
    restarts_left,
    too_many_hidden,
    unreachable,
)
from unicrond.model.cluster import JobState
from unicrond.model.decision import Action, ActionKind, Outcome, OutcomeState
from unicrond.model.incident import Incident, IncidentState
from unicrond.model.run import Healing, HealStep, Loss, Run, RunState

ORDERS = changeover.ORDERS
_HALTS = (ActionKind.HOLD_RANKS, ActionKind.STOP_RANKS)
_ACTS = ORDERS | {ActionKind.REQUEUE, ActionKind.END_RUN}


def begin(cycle: Cycle, run: Run, incident: Incident, trouble: Trouble) -> None:
    """Chooses the way on and takes the first step of it; only records it where we may not act."""
    hidden = changeover.hidden_members(cycle, run, trouble)
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


# requeue
def _begin_requeue(
    cycle: Cycle, run: Run, incident_id: int, trouble: Trouble, choice: Choice
) -> None:
    """A requeued job completes only once Slurm gave up its lost nodes; so these leave it first."""
    now, timeout = cycle.now, cycle.state.policy.release_timeout_seconds
    exclude = tuple(dict.fromkeys((*choice.shunned, *trouble.lost)))
    if not _can_release(cycle, run, trouble, choice):
        queued.order(cycle, run, incident_id, exclude)
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
        queued.order(cycle, run, healing.incident_id, healing.exclude)


def _advance_requeue(cycle: Cycle, run: Run, healing: Healing) -> None:
    if run.state is RunState.RUNNING:
        cycle.supersede(run, frozenset({ActionKind.EXPEDITE}), "it runs")
        cycle.put(replace(run, healing=None))
        cycle.resolve_older(
            run,
            f"the requeued job runs as generation {run.generation}, "
            f"{cycle.now - changeover.noticed(cycle, healing):.1f} s after the fault was noticed",
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
    if action.kind in _HALTS and healing.step in (HealStep.HOLD, HealStep.STOP):
        changeover.on_halted(cycle, run, healing, action, outcome)
    elif action.kind is ActionKind.START_RANKS and outcome.state is OutcomeState.REFUSED:
        _start_refused(cycle, run, healing, action, outcome)
    elif action.kind is ActionKind.PROBE and not outcome.data.get("passed", True):
        _probe_failed(cycle, run, healing, action.node)
    elif action.kind is ActionKind.REQUEUE and not done:
        call_person(
            cycle,
            run,
            cycle.state.incidents[healing.incident_id],
            f"Slurm refused to requeue the job: {outcome.detail}",
        )


def _start_refused(
    cycle: Cycle, run: Run, healing: Healing, action: Action, outcome: Outcome
) -> None:
    """A rank that was to be kept is gone, say: the next tier needs none."""
    if healing.step is HealStep.START and healing.holding and _is_present(run, action):
        _fall(cycle, run, healing, f"{action.node} refused: {outcome.detail}")


def _is_present(run: Run, action: Action) -> bool:
    return action.key.generation == run.generation


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
        replaced=frozenset(healing.replaced),
        apart=changeover.why_apart(healing),
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


def _advance_halt(cycle: Cycle, run: Run, healing: Healing) -> None:
    if what := changeover.advance_halt(cycle, run, healing):
        _fall(cycle, run, healing, what)


def _advance_start(cycle: Cycle, run: Run, healing: Healing) -> None:
    if what := changeover.advance_start(cycle, run, healing):
        _fall(cycle, run, healing, what)


def _fall(cycle: Cycle, run: Run, healing: Healing, what: str) -> None:
    """This step came to nothing, or its time is over: the next tier, within the budget."""
    incident = cycle.state.incidents[healing.incident_id]
    cycle.supersede(run, ORDERS, what)
    if not restarts_left(run, cycle.now, cycle.state.policy):
        cycle.note("note", what, run, incident=incident.incident_id)
        call_person(cycle, run, incident, "over the budget of restarts an hour for this run")
    elif next_tier(healing) is HealStep.STOP:
        reason = f"{what}; no rank keeps its process: restarting run {run.run_id}"
        cycle.decide(incident, run, "restart", reason)
        changeover.stop_all(cycle, run, healing)
    else:
        cycle.note("note", what, run, incident=incident.incident_id)
        queued.order(cycle, run, incident.incident_id, (*healing.exclude, *healing.lost))


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
    HealStep.HOLD: changeover.begin,
    HealStep.STOP: changeover.begin,
    HealStep.REQUEUE: _begin_requeue,
    HealStep.END: _begin_end,
}
_NEXT: dict[HealStep, Callable[[Cycle, Run, Healing], None]] = {
    HealStep.HOLD: _advance_halt,
    HealStep.STOP: _advance_halt,
    HealStep.RELEASE: _advance_release,
    HealStep.START: _advance_start,
    HealStep.REQUEUE: _advance_requeue,
    HealStep.END: _advance_end,
}
