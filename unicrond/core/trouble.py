"""From a fault to an incident with one root, and on to a decision. One fault, many reports.

A report about a generation that is being healed already is merged into its incident; only what
changes the way on (one more node lost, the new generation broken too) leads to a new decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transition.membership import Trouble
from transition.steps import BEFORE_START
from unicrond.core import changeover, heal, losses, record
from unicrond.core.cycle import Cycle
from unicrond.core.guards import shunned_by_others
from unicrond.model.cluster import NodeState
from unicrond.model.incident import Incident, IncidentState, Proof, Scope, Severity
from unicrond.model.run import HealStep, Run

VICTIM_SECONDS = 2.0  # after a victim's word, in which a culprit's counts as its cause


@dataclass(frozen=True, slots=True)
class Fault:
    """What a detector made of a signal. `own`: the reporter blames itself, nobody else."""

    kind: str
    severity: Severity
    scope: Scope
    node: str
    what: str  # a sentence without its full stop
    noticed_at: float
    rule: str  # that made it of the signal
    rank: int | None = None
    replaces: tuple[int, ...] = ()  # ranks that need a new process
    apart: str = ""  # why all of them do
    fact: bool = False  # it has happened: a restart is needed, however far the rule is believed
    own: bool = True
    victim: bool = False  # it lost a peer, and nobody knows yet which
    remedy: str = ""  # what a person has to mend, where a restart alone is lost time
    program: bool = False  # a rank failed, so progress is in question
    sick: bool = False  # the node is, whatever its ranks do
    final: bool = False  # it asks not to be restarted
    lost: tuple[str, ...] = ()
    dead_agents: tuple[str, ...] = ()
    evidence: str = ""

    @property
    def asks_more(self) -> bool:
        """Than the restart that a dead rank needs: to leave the node, or to end the run."""
        return self.program and (bool(self.remedy) or self.severity is Severity.SEV1)


def report(cycle: Cycle, run: Run, fault: Fault) -> None:
    """Opens or joins an incident, and decides where that is called for."""
    if run.finished_code is not None or run.state.ended:
        return
    held = record.held(cycle.state, fault.rule, run)
    told, fault = fault, _as_believed(fault, held)
    observed = bool(held) and not fault.fact
    incident = cycle.incident_of(run)
    if incident is not None and _same_fault(run, incident):
        incident = _merge(cycle, incident, run, fault)
        undone = _was_only_observed(cycle, run, incident) or _changes_the_way(run, fault)
        if observed or not undone:
            _replace_too(cycle, cycle.state.runs[run.run_id], fault)
            return
    else:
        incident = open_incident(cycle, run, fault, proved=fault.fact and not told.asks_more)
        if fault.victim:
            cycle.state.victims.add(incident.incident_id)
        if observed:
            reason = f"{fault.what}; {held}: only observed"
            cycle.decide(incident, run, "observe", reason, held=True)
            return
    progressed = _progressed(cycle, run)
    run = _count(cycle, run, told, incident, progressed)
    trouble = _trouble(cycle, run, fault, progressed)
    run = cycle.put(replace(run, last_root=fault.node))
    heal.begin(cycle, run, incident, trouble)


def _as_believed(fault: Fault, held: str) -> Fault:
    """What has happened needs its restart; what the rule asks beyond that depends on its record."""
    if not held or not fault.fact or not fault.asks_more:
        return fault
    severity = Severity.SEV2 if fault.severity is Severity.SEV1 else fault.severity
    what = f"{fault.what}; {held}: restarted only"
    return replace(fault, remedy="", severity=severity, what=what)


def open_incident(cycle: Cycle, run: Run | None, fault: Fault, *, proved: bool = False) -> Incident:
    """Of a run, or of the fault's node alone."""
    return cycle.open_incident(
        fault.kind,
        fault.severity,
        fault.scope,
        run,
        fault.what,
        node=fault.node,
        rank=fault.rank,
        noticed_at=fault.noticed_at,
        evidence=fault.evidence,
        rule=fault.rule,
        proof=Proof.CONFIRMED if proved else Proof.UNDECIDED,
    )


def reconsider(cycle: Cycle, run: Run, what: str, returned: str = "") -> None:
    """Decides again for a heal whose circumstances changed before the next generation began."""
    healing = run.healing
    if healing is None or healing.step not in BEFORE_START:
        return
    incident = cycle.state.incidents[healing.incident_id]
    trouble = Trouble(
        root_node=incident.root_node,
        lost=tuple(n for n in healing.lost if n != returned),
        dead_agents=tuple(n for n in healing.spawning if n != returned),
        what=what,
        replaced=frozenset(healing.replaced),
        apart=changeover.why_apart(healing),
    )
    heal.begin(cycle, run, incident, trouble)


def _same_fault(run: Run, incident: Incident) -> bool:
    if run.healing is not None:
        return run.healing.incident_id == incident.incident_id
    return incident.generation == run.generation and incident.state is not IncidentState.HEALING


def _was_only_observed(cycle: Cycle, run: Run, incident: Incident) -> bool:
    """And now it may be healed: the mode has changed meanwhile."""
    undecided = run.healing is None and incident.state is IncidentState.OPEN
    return undecided and cycle.state.acts_for(run)


def _changes_the_way(run: Run, fault: Fault) -> bool:
    healing = run.healing
    if healing is None or healing.step is HealStep.END:
        return False
    if healing.step is HealStep.REQUEUE:
        return run.begun_again
    if fault.sick:
        return fault.node in healing.nodes
    if fault.final:
        return True
    known = {*healing.lost, *healing.spawning}
    if healing.step in BEFORE_START:
        return not known.issuperset((*fault.lost, *fault.dead_agents)) or bool(
            set(fault.lost) & set(healing.spawning)
        )
    return True


def _replace_too(cycle: Cycle, run: Run, fault: Fault) -> None:
    """One more rank that cannot be kept."""
    healing = run.healing
    if healing is not None and healing.step is HealStep.HOLD and fault.replaces:
        ranks = tuple(sorted({*healing.replaced, *fault.replaces}))
        cycle.put(replace(run, healing=replace(healing, replaced=ranks)))


def _merge(cycle: Cycle, incident: Incident, run: Run, fault: Fault) -> Incident:
    """One more report. The root moves only to an earlier culprit, never to a victim; from a victim
    also to one that is told of a moment later: its peers see a rank die before its agent does."""
    again = fault.what == incident.summary  # that is only counted
    incident = replace(incident, count=incident.count + 1)
    earlier = fault.own and fault.noticed_at < incident.first_signal_at
    nearer = fault.sick and incident.severity is not Severity.SEV1  # why what ended did
    soon = fault.program and fault.noticed_at <= incident.first_signal_at + VICTIM_SECONDS
    known = incident.incident_id in cycle.state.victims
    found = known and fault.own and (soon or bool(fault.lost))
    if earlier or nearer or found:
        cycle.state.victims.discard(incident.incident_id)
        incident = replace(
            incident,
            kind=fault.kind,
            severity=fault.severity if nearer or found else incident.severity,
            root_node=fault.node,
            root_rank=fault.rank,
            summary=fault.what,
            first_signal_at=min(fault.noticed_at, incident.first_signal_at),
            cause_text=fault.evidence,
        )
    if found:
        cycle.put(replace(cycle.state.runs[run.run_id], last_root=fault.node))
    if not again:
        cycle.note("signal", fault.what, run, incident=incident.incident_id, node=fault.node)
    if fault.fact:
        record.joined(cycle, run, incident, fault.rank, fault.what)
    return cycle.put_incident(incident)


def _progressed(cycle: Cycle, run: Run) -> bool:
    """Whether the generation that broke came further than those before it."""
    if run.iteration >= 0:
        return run.iteration > run.generation_iteration
    return cycle.now - run.generation_since >= cycle.state.policy.progress_seconds


def _count(cycle: Cycle, run: Run, told: Fault, incident: Incident, progressed: bool) -> Run:
    """What is remembered of it when the next failure comes."""
    without = 0 if progressed else run.restarts_without_progress + told.program
    if told.remedy and not progressed:
        record.failed_again(cycle, run, incident, told.rule)
    return cycle.put(
        replace(
            run,
            restarts_without_progress=without,
            doubted=incident.incident_id if told.remedy else 0,
            doubted_generation=run.generation,
        )
    )


def _trouble(cycle: Cycle, run: Run, fault: Fault, progressed: bool) -> Trouble:
    healing = run.healing
    lost = dict.fromkeys((*(healing.lost if healing else ()), *fault.lost))
    dead = dict.fromkeys(
        (*(healing.spawning if healing else ()), *fault.dead_agents, *_closed(run))
    )
    moves_off = _moves_off(cycle, run, fault)
    if moves_off and shunned_by_others(cycle.state, run, fault.node):
        _drain_suspect(cycle, run, fault)
    return Trouble(
        root_node=fault.node,
        lost=tuple(lost),
        dead_agents=tuple(n for n in dead if n not in lost),
        moves_off=moves_off,
        final=fault.final,
        # one that came further fails the same after a restart, or it does not: then it is known
        remedy=fault.remedy if fault.own and not progressed else "",
        what=fault.what,
        replaced=frozenset((*(healing.replaced if healing else ()), *fault.replaces)),
        apart=fault.apart
        or changeover.why_apart(healing)
        or _failed_in_vain(run, fault, progressed),
        in_place=fault.severity is Severity.SEV3,
    )


def _failed_in_vain(run: Run, fault: Fault, progressed: bool) -> str:
    """A new process is the next tier for what fails again before it came any further."""
    again = run.last_root == fault.node and fault.own
    if progressed or run.restarts_without_progress < (1 if again else 2):
        return ""
    return "it failed again without progress"


def _closed(run: Run) -> list[str]:
    """Members whose agent has just gone: its peers' ranks often tell of it first."""
    members = run.assignment.nodes if run.assignment else ()
    return [n for n in members if n in run.agents and run.agents[n].closed_at]


def _moves_off(cycle: Cycle, run: Run, fault: Fault) -> bool:
    """Whether this run should avoid the root's node: it failed there twice, or the node is sick."""
    if fault.sick:
        return True
    if not fault.program or not fault.own or fault.remedy:
        return False
    repeat = run.restarts_without_progress >= 1 and run.last_root == fault.node
    if not repeat and fault.severity is not Severity.SEV1:
        return False
    return has_room_without(cycle, run, fault.node)


def has_room_without(cycle: Cycle, run: Run, node: str) -> bool:
    """Whether it can go on without this node, in its allocation or on others."""
    rest = len([n for n in run.nodes if n not in run.shunned and n != node])
    return rest >= run.min_nodes or _elsewhere(cycle, run, node) >= run.min_nodes


def _elsewhere(cycle: Cycle, run: Run, node: str) -> int:
    """Nodes of its partition that a requeued run could start on, as far as is known."""
    avoid = {node, *run.shunned}
    allocation = cycle.state.allocations.get(run.run_id)
    partition = allocation.partition if allocation else ""
    busy = {
        n
        for other in cycle.state.allocations.values()
        if other.state.live and other.job_id != run.run_id
        for n in other.nodes
    }
    return sum(
        node.state is NodeState.UP and partition in node.partitions
        for name, node in cycle.state.nodes.items()
        if name not in avoid and name not in busy
    )


def _drain_suspect(cycle: Cycle, run: Run, fault: Fault) -> None:
    """The runs of two users failed on this node: now it may be drained."""
    incident = cycle.incident_of(run)
    if incident is not None and cycle.state.acts_for(run):
        losses.drain(cycle, run, incident.incident_id, fault.node, fault.kind)
