"""One turn of the loop while it is being made: the state, and what this turn changes of it."""

from __future__ import annotations

from dataclasses import replace

from transition.steps import unstarted
from unicrond.core.state import State
from unicrond.model.decision import (
    Action,
    ActionKey,
    ActionKind,
    Alternative,
    Decision,
    Mode,
    Outcome,
    OutcomeState,
)
from unicrond.model.incident import Incident, IncidentState, Proof, Review, Scope, Severity
from unicrond.model.pause import Pause
from unicrond.model.run import Assignment, Run
from unicrond.ports import Changes, JournalEntry


class Cycle:
    """Collects changes. Everything that a step alters goes through here."""

    def __init__(self, now: float, state: State) -> None:
        self.now = now
        self.state = state
        self.touched: set[int] = set()  # runs worth another look in this turn
        self.snapshot_changes: Changes = Changes()
        self._runs: set[int] = set()
        self._incidents: dict[int, Incident] = {}
        self._decisions: list[Decision] = []
        self._intents: list[Action] = []
        self._again: list[Action] = []
        self._outcomes: list[Outcome] = []
        self._journal: list[JournalEntry] = []
        self._mode: Mode | None = None
        self._pauses: tuple[Pause, ...] | None = None
        self._reviews: dict[int, Review] = {}

    # runs and incidents
    def put(self, run: Run) -> Run:
        self.state.runs[run.run_id] = run
        self._runs.add(run.run_id)
        self.touched.add(run.run_id)
        return run

    def begin_generation(self, run: Run, generation: int, assignment: Assignment) -> Run:
        """The run in a new generation, of which nothing was seen yet. To be put."""
        self.state.slow.pop(run.run_id, None)
        self.state.suspected.pop(run.run_id, None)
        self.state.located.pop(run.run_id, None)
        self.state.printed.pop(run.run_id, None)
        return replace(
            run,
            generation=generation,
            assignment=assignment,
            generation_since=self.now,
            generation_iteration=run.iteration,
            counted=0,
            early_exits=(),
        )

    def all_run(self, run: Run) -> bool:
        """Whether every agent of the generation says that its ranks run, under the same order."""
        return run.assignment is not None and not unstarted(run)

    def put_incident(self, incident: Incident) -> Incident:
        self._incidents[incident.incident_id] = incident
        if incident.state in (IncidentState.RESOLVED, IncidentState.CLOSED):
            self.state.incidents.pop(incident.incident_id, None)
            if incident.run_id is not None:
                self.state.resolved[incident.run_id] = incident
        else:
            self.state.incidents[incident.incident_id] = incident
        return incident

    def open_incident(
        self,
        kind: str,
        severity: Severity,
        scope: Scope,
        run: Run | None,
        summary: str,
        *,
        node: str = "",
        rank: int | None = None,
        noticed_at: float = 0.0,
        evidence: str = "",
        rule: str = "",
        proof: Proof = Proof.UNDECIDED,
    ) -> Incident:
        incident = Incident(
            incident_id=self.state.next_incident_id,
            opened_at=self.now,
            kind=kind,
            severity=severity,
            scope=scope,
            run_id=run.run_id if run else None,
            generation=run.generation if run else 0,
            root_node=node,
            root_rank=rank,
            summary=summary,
            cause_text=evidence,
            first_signal_at=noticed_at or self.now,
            rule=rule,
        )
        self.state.next_incident_id += 1
        if rule:
            review = Review(incident.incident_id, rule, proof, self.now, run_id=incident.run_id)
            self.put_review(replace(review, owner=run.user if run else ""))
        self.note("signal", summary, run, incident=incident.incident_id, node=node)
        return self.put_incident(incident)

    def put_review(self, review: Review) -> None:
        self.state.ledger.put(review)
        self._reviews[review.incident_id] = review

    def close_incident(self, incident_id: int, state: IncidentState, why: str) -> None:
        incident = self.state.incidents.get(incident_id)
        if incident is None:
            return
        closed = replace(incident, state=state, closed_at=self.now)
        self.put_incident(closed)
        run = self.state.runs.get(incident.run_id) if incident.run_id is not None else None
        self.note("note", why, run, incident=incident_id, node=incident.root_node)

    def resolve_older(self, run: Run, why: str) -> None:
        """A generation runs, so whatever was wrong with those before it is over."""
        for incident in self.state.incidents.of_run(run.run_id):
            if incident.generation < run.generation:
                self.close_incident(incident.incident_id, IncidentState.RESOLVED, why)

    def incident_of(self, run: Run) -> Incident | None:
        """The open incident of this run, newest first."""
        mine = [i for i in self.state.incidents.of_run(run.run_id) if not i.only_told]
        return mine[-1] if mine else None

    # story
    def note(
        self,
        kind: str,
        text: str,
        run: Run | None = None,
        *,
        incident: int | None = None,
        node: str = "",
        data: dict[str, object] | None = None,
    ) -> None:
        self._journal.append(
            JournalEntry(
                at=self.now,
                kind=kind,
                text=text,
                run_id=run.run_id if run else None,
                incident_id=incident,
                node=node,
                generation=run.generation if run else 0,
                data=data or {},
            )
        )

    def decide(
        self,
        incident: Incident,
        run: Run | None,
        choice: str,
        reason: str,
        alternatives: tuple[Alternative, ...] = (),
        *,
        held: bool = False,
    ) -> None:
        """`held`: whatever the mode, nothing is to follow from it, and the reason says why."""
        acts = run is not None and not held and self.state.acts_for(run)
        told = reason
        if run is not None and not acts and not held:
            told = f"{reason} (not carried out: {self._why_not(run)})"
        self._decisions.append(
            Decision(
                self.now,
                incident.incident_id,
                run.run_id if run else None,
                run.generation if run else 0,
                choice,
                reason,
                acts,
                alternatives or (Alternative(choice, True, "nothing else was weighed"),),
            )
        )
        self.note(
            "decision",
            told,
            run,
            incident=incident.incident_id,
        )
        self.put_incident(
            replace(self.state.incidents.get(incident.incident_id, incident), decided_at=self.now)
        )

    def _why_not(self, run: Run) -> str:
        if not run.whole_nodes:
            return "the job has parts of nodes"
        if pause := self.state.pause_of(run):
            return str(pause)
        paused = self.state.mode is Mode.PAUSED
        return f"mode {self.state.mode if paused else run.mode or self.state.mode}"

    # actions
    def act(
        self,
        incident_id: int,
        run: Run | None,
        kind: ActionKind,
        node: str = "",
        assignment: Assignment | None = None,
        **args: object,
    ) -> Action:
        """A new intent, carried out once this turn is saved; without a run for a node alone."""
        generation = run.generation if run else 0
        key = ActionKey(incident_id, generation, self.state.next_ordinal)
        self.state.next_ordinal += 1
        run_id = run.run_id if run else None
        action = Action(key, kind, run_id, node, dict(args), assignment)
        self._intents.append(action)
        self.state.pending[key] = (action, self.now)
        self.note("action", describe(action), run, incident=incident_id, node=node)
        return action

    def again(self, action: Action) -> None:
        self.state.pending[action.key] = (action, self.now)
        self._again.append(action)

    def settle(self, outcome: Outcome) -> Action | None:
        """Records how an action ended; None when nobody waits for it any more."""
        pending = self.state.pending.pop(outcome.key, None)
        if pending is None:
            return None
        action = pending[0]
        self.state.delayed.discard(action.key)
        self._outcomes.append(outcome)
        run = self.state.runs.get(action.run_id) if action.run_id is not None else None
        detail = f": {outcome.detail}" if outcome.detail else ""
        self.note(
            "outcome",
            f"{describe(action)} {outcome.state}{detail}",
            run,
            incident=outcome.key.incident_id,
            node=action.node,
        )
        return action

    def supersede(self, run: Run, kinds: frozenset[ActionKind], why: str) -> None:
        """Ends intents of this run that are no longer wanted."""
        for action, _ in self.state.pending.of_run(run.run_id):
            if action.kind in kinds:
                self.settle(Outcome(action.key, self.now, OutcomeState.MOOT, why))

    def set_pauses(self, pauses: tuple[Pause, ...]) -> None:
        self.state.pauses = self._pauses = pauses

    def set_mode(self, mode: Mode) -> None:
        self.state.mode = self._mode = mode

    def changes(self) -> Changes:
        return replace(
            self.snapshot_changes,
            runs=tuple(self.state.runs[i] for i in sorted(self._runs)),
            incidents=tuple(self._incidents.values()),
            decisions=tuple(self._decisions),
            intents=tuple(self._intents),
            again=tuple(self._again),
            outcomes=tuple(self._outcomes),
            journal=tuple(self._journal),
            mode=self._mode,
            reviews=tuple(self._reviews.values()),
            at=self.now,
            pauses=self._pauses,
        )


def describe(action: Action) -> str:
    """The action in a few words, for the story."""
    where = f" on {action.node}" if action.node else ""
    match action.kind:
        case ActionKind.STOP_RANKS:
            return f"stop ranks{where}"
        case ActionKind.HOLD_RANKS:
            return f"hold ranks{where}"
        case ActionKind.PREPARE_RANKS:
            return f"prepare ranks{where}"
        case ActionKind.START_RANKS:
            return f"start ranks of generation {action.args.get('generation')}{where}"
        case ActionKind.SPAWN_AGENT:
            return f"start the agent of {action.args.get('target')} again (from {action.node})"
        case ActionKind.DRAIN:
            return f"drain {action.node} ({action.args.get('reason')})"
        case ActionKind.SUBMIT_COMPANION:
            return f"submit a companion job of {action.args.get('nodes')} nodes{where}"
        case ActionKind.CANCEL:
            return f"cancel job {action.args.get('job_id')}"
        case ActionKind.RESUME:
            return f"undo the drain of {action.node}"
        case ActionKind.SHRINK:
            return f"give {action.node} back to Slurm"
        case ActionKind.RESERVE:
            return "keep the nodes for the run for two minutes"
        case ActionKind.REQUEUE:
            return "requeue the job"
        case ActionKind.EXPEDITE:
            return "start the requeued job now"
        case ActionKind.END_RUN:
            return f"end the run{where} with exit code {action.args.get('exit_code')}"
        case ActionKind.PROBE:
            return f"probe slurmd{where}"
        case ActionKind.NOTIFY:
            return "call a person"
