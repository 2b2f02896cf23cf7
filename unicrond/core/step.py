"""The one door: `Core.step(now, events) -> Changes`. Pure but for the state it owns.

Properties that tests hold it to: generation never falls; no node in two runs; no run on a node that
we drained; every action has an incident and a reason; once faults stop every open incident ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unicrond.core import (
    agents,
    companions,
    departures,
    hardware,
    heal,
    jobs,
    joining,
    losses,
    manners,
    plans,
    record,
    returns,
    signals,
    suspect,
)
from unicrond.core.asked import is_asked, on_asked
from unicrond.core.cycle import Cycle, describe
from unicrond.core.pauses import on_pause, why_paused
from unicrond.core.shift import shift
from unicrond.core.state import State
from unicrond.core.trouble import Fault, report
from unicrond.model.decision import Action, ActionKind, Mode, Outcome, OutcomeState
from unicrond.model.events import (
    AgentBeat,
    AgentJoined,
    AgentLeft,
    Event,
    ModeSet,
    NodeAsked,
    OutcomeArrived,
    PauseSet,
    PlanMade,
    PolicySet,
    ResizeAsked,
    ReviewGiven,
    ShareSet,
    SignalArrived,
    SnapshotTaken,
    Tick,
)
from unicrond.model.incident import Incident, IncidentState, Scope
from unicrond.model.run import Run, RunState
from unicrond.ports import Changes

TICK_SECONDS = 0.25
_ON_SLURM = (
    ActionKind.DRAIN,
    ActionKind.RESUME,
    ActionKind.SHRINK,
    ActionKind.CANCEL,
    ActionKind.REQUEUE,
    ActionKind.RESERVE,
    ActionKind.EXPEDITE,
)
# a companion ends with its base in every mode
_AT_ALL_TIMES = (ActionKind.NOTIFY, ActionKind.CANCEL)
_BY_AGENTS = (ActionKind.END_RUN, ActionKind.SUBMIT_COMPANION)


class Core:
    """Owns the state; everything that changes it goes through `step`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._busy: set[int] = set()  # runs with something under way

    def step(self, now: float, events: Iterable[Event], frozen: bool = False) -> Changes:
        """Takes events in order, moves every heal on, and returns what changed and what to do.

        `frozen`: nothing can be carried out now, so time decides nothing; `thaw` ends it.
        """
        cycle = Cycle(now, self.state)
        ticked = False
        for event in events:
            ticked |= isinstance(event, Tick)
            _take(cycle, event)
        if frozen:
            return cycle.changes()
        if ticked:
            suspect.look(cycle)
            record.look(cycle)
            _resend(cycle)
            _close_outlived(cycle)
        self._advance(cycle, ticked)
        changes = cycle.changes()
        if ticked:
            self.state.forget_before(now - 3600)
        return changes

    def _advance(self, cycle: Cycle, ticked: bool) -> None:
        """Every run at a tick; between two of them those with something under way."""
        runs = self.state.runs
        looked_at = [*runs] if ticked else sorted(self._busy | cycle.touched)
        for run_id in looked_at:
            run = runs.get(run_id)
            if run is None or run.state.ended:
                self._busy.discard(run_id)
                continue
            if run.healing is not None or run_id in cycle.touched:
                heal.advance(cycle, run)
            losses.advance(cycle, runs[run_id])
            if ticked:
                joining.advance(cycle, runs[run_id])
                companions.advance(cycle, runs[run_id])
            run = runs[run_id]
            if run.healing is not None or run.losses or run.shunned:
                self._busy.add(run_id)
            else:
                self._busy.discard(run_id)

    def thaw(self, seconds: float) -> None:
        """Time that passed while nothing could be carried out does not count for deadlines."""
        for run in self.state.live_runs():
            healing = run.healing
            if healing is not None:
                healing = replace(healing, deadline=healing.deadline + seconds)
            lost = tuple(replace(loss, deadline=loss.deadline + seconds) for loss in run.losses)
            joins = run.joining
            if joins is not None:
                joins = replace(joins, deadline=joins.deadline + seconds)
            self.state.runs[run.run_id] = replace(run, healing=healing, losses=lost, joining=joins)

    def clock_moved(self, seconds: float) -> None:
        """The machine's clock was set."""
        shift(self.state, seconds)

    def unwanted(self, action: Action) -> str:
        """Why an intent should not be carried out any more; empty if it still should."""
        state = self.state
        if action.key not in state.pending:
            return "a newer decision replaced it"
        if why := why_paused(state, action):
            return why
        run = state.runs.get(action.run_id) if action.run_id is not None else None
        if is_asked(state, action):
            return ""
        if action.run_id is None:  # for a node
            acts = state.mode is Mode.ACTIVE or action.kind in _AT_ALL_TIMES
            return "" if acts else f"mode is {state.mode}"
        if run is None or run.state.ended:
            return "the run is over"
        if action.kind in (ActionKind.DRAIN, ActionKind.SHRINK) and losses.is_back(
            run, action.node
        ):
            return "it is heard again"
        if not state.acts_for(run) and not _always(run, action):
            return f"mode is {state.mode}"
        return ""


def _always(run: Run, action: Action) -> bool:
    """What is done in every mode: calling a person, and stopping ranks of a past generation."""
    past = action.kind is ActionKind.STOP_RANKS and action.args["generation"] != run.generation
    return past or action.kind is ActionKind.NOTIFY


def _take(cycle: Cycle, event: Event) -> None:
    match event:
        case AgentBeat():
            agents.on_beat(cycle, event)
        case SnapshotTaken():
            jobs.on_snapshot(cycle, event.snapshot)
            companions.look(cycle)
            manners.look(cycle)
            departures.look(cycle)
            returns.look(cycle)
        case AgentJoined():
            agents.on_joined(cycle, event)
        case AgentLeft():
            agents.on_left(cycle, event)
        case SignalArrived():
            signals.on_signal(cycle, event.signal)
        case OutcomeArrived():
            if event.run_id is None or _is_its_own(cycle, event):
                _on_outcome(cycle, event.outcome)
        case ModeSet():
            _on_mode(cycle, event)
        case ReviewGiven():
            record.on_review(cycle, event)
        case NodeAsked():
            on_asked(cycle, event)
        case PauseSet():
            _on_pause(cycle, event)
        case ResizeAsked():
            companions.on_resize(cycle, event)
        case PlanMade():
            plans.on_plan(cycle, event)
        case ShareSet():
            _on_share(cycle, event)
        case PolicySet():
            _on_policy(cycle, event)
        case Tick():
            cycle.state.lag_seconds = event.lag_seconds


def _is_its_own(cycle: Cycle, event: OutcomeArrived) -> bool:
    """An agent is a user's process: what it says of others' orders, or of Slurm, counts nothing."""
    action, _ = cycle.state.pending.get(event.outcome.key, (None, 0.0))
    if action is None:
        return False
    told = action.kind in heal.ORDERS or action.kind in _BY_AGENTS
    return told and (action.run_id, action.node) == (event.run_id, event.node)


def _on_outcome(cycle: Cycle, outcome: Outcome) -> None:
    if _tried_again_later(cycle, outcome):
        return
    action = cycle.settle(outcome)
    if action is None:
        return
    if action.run_id is None:
        hardware.on_outcome(cycle, action, outcome)
        returns.on_outcome(cycle, action, outcome)
        return
    handlers = (heal.on_outcome, losses.on_outcome, joining.on_outcome, companions.on_outcome)
    for handle in handlers:
        run = cycle.state.runs.get(action.run_id)
        if run is not None:
            handle(cycle, run, action, outcome)
    if action.kind is ActionKind.START_RANKS and outcome.state is not OutcomeState.DONE:
        _start_failed(cycle, action, outcome)


def _tried_again_later(cycle: Cycle, outcome: Outcome) -> bool:
    """Slurm did not answer, or not yet: the action has not ended, and `_resend` repeats it."""
    action, _ = cycle.state.pending.get(outcome.key, (None, 0.0))
    if action is None or not (_unanswered(action, outcome) or _too_early(cycle, action, outcome)):
        return False
    if action.key not in cycle.state.delayed:
        cycle.state.delayed.add(action.key)
        run = cycle.state.runs.get(action.run_id or 0)
        cycle.note(
            "note",
            f"{describe(action)} waits for Slurm: {outcome.detail}",
            run,
            incident=action.key.incident_id,
            node=action.node,
        )
    return True


def _unanswered(action: Action, outcome: Outcome) -> bool:
    return outcome.state is OutcomeState.FAILED and action.kind in _ON_SLURM


def _too_early(cycle: Cycle, action: Action, outcome: Outcome) -> bool:
    """A requeued job is expedited once that is possible; after a while Slurm starts it anyway."""
    run = cycle.state.runs.get(action.run_id or 0)
    if outcome.state is not OutcomeState.REFUSED or action.kind is not ActionKind.EXPEDITE:
        return False
    return run is not None and run.healing is not None and cycle.now < run.healing.deadline


def _start_failed(cycle: Cycle, action: Action, outcome: Outcome) -> None:
    run = cycle.state.runs.get(action.run_id or 0)
    if run is None or run.healing is None or action.key.generation != run.generation:
        return
    incident = cycle.state.incidents.get(run.healing.incident_id)
    if incident is None:
        return
    report(
        cycle,
        run,
        Fault(
            incident.kind,
            incident.severity,
            Scope.NODE,
            action.node,
            f"{action.node} could not start its ranks: {outcome.detail}",
            outcome.at,
            "agent.start",
            apart="a rank could not be started",
            fact=True,
            program=True,
        ),
    )


def _on_mode(cycle: Cycle, event: ModeSet) -> None:
    if event.run_id is None:
        cycle.set_mode(event.mode)
        cycle.note("note", f"mode set to {event.mode} by {event.who}")
        if event.mode is not Mode.ACTIVE:  # nothing acts against the newest word on the cluster
            for live in cycle.state.live_runs():
                if live.mode is Mode.ACTIVE:
                    cycle.put(replace(live, mode=None))
    elif (run := cycle.state.runs.get(event.run_id)) is not None:
        run = cycle.put(replace(run, mode=event.mode))
        cycle.note("note", f"mode of run {run.run_id} set to {event.mode} by {event.who}", run)
    for live in cycle.state.live_runs():
        if not cycle.state.acts_for(live):
            heal.lay_down(cycle, live, f"mode {event.mode}")
    if event.mode is Mode.ACTIVE:
        for incident in tuple(cycle.state.incidents.values()):
            _take_up(cycle, incident)


def _on_policy(cycle: Cycle, event: PolicySet) -> None:
    cycle.state.policy = replace(cycle.state.policy, **event.numbers)
    told = ", ".join(f"{name} = {value:g}" for name, value in event.numbers.items())
    cycle.note("note", f"the configuration was read anew: {told}")


def _on_share(cycle: Cycle, event: ShareSet) -> None:
    run = cycle.state.runs.get(event.run_id)
    if run is None or run.state.ended:
        return
    for name in ("weight", "floor_nodes"):
        before, wanted = getattr(run, name), getattr(event, name)
        if wanted is not None and wanted != before:
            run = cycle.put(replace(run, **{name: wanted}))
            what = f"{name.removesuffix('_nodes')} of run {run.run_id}"
            cycle.note("note", f"{what} set from {before:g} to {wanted:g} by {event.who}", run)


def _on_pause(cycle: Cycle, event: PauseSet) -> None:
    on_pause(cycle, event)
    for live in cycle.state.live_runs():
        if event.on and cycle.state.pause_of(live):
            heal.lay_down(cycle, live, str(event.pause))
    for incident in tuple(cycle.state.incidents.values()):
        if not event.on:
            _take_up(cycle, incident)


def _take_up(cycle: Cycle, incident: Incident) -> None:
    """An incident that was only observed, or that a person was called for, is decided again."""
    run = cycle.state.runs.get(incident.run_id) if incident.run_id is not None else None
    if run is None or run.healing is not None or not cycle.state.acts_for(run):
        return
    if incident.state is not IncidentState.HEALING and not incident.only_told:
        suspect.take_up(cycle, run, incident)


def _resend(cycle: Cycle) -> None:
    """Intents without an outcome are carried out again: all of them are idempotent."""
    wait = cycle.state.policy.resend_seconds
    for action, sent in tuple(cycle.state.pending.values()):
        run = cycle.state.runs.get(action.run_id) if action.run_id is not None else None
        over = action.run_id is not None and (run is None or run.state.ended)
        if over:
            cycle.settle(Outcome(action.key, cycle.now, OutcomeState.MOOT, "the run is over"))
        elif cycle.now >= sent + wait:
            cycle.again(action)


def _close_outlived(cycle: Cycle) -> None:
    """What was only observed, and did the run no harm."""
    for incident in tuple(cycle.state.incidents.values()):
        run = cycle.state.runs.get(incident.run_id) if incident.run_id is not None else None
        if run is None or run.state is not RunState.RUNNING or run.healing is not None:
            continue
        if incident.only_told:
            continue
        outlived = incident.opened_at + cycle.state.policy.progress_seconds
        if incident.state is IncidentState.OPEN and run.iteration_since > outlived:
            cycle.close_incident(
                incident.incident_id, IncidentState.RESOLVED, "the run trains on all the same"
            )
