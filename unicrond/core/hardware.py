"""What hardware is seen to do, as incidents. SEV1 alone moves anything.

told by an agent (a user's process, which may lie)   its own run leaves the node, if it can, within
                                                     a budget of its user
told by the node's root sensor                       every run leaves it, and it is drained, if what
                                                     is broken is the node's own
What weighs less is kept for a while: it may be why a rank ends.
"""

from __future__ import annotations

from dataclasses import replace

from detectors.classification import classify
from detectors.trust import sensed
from detectors.verdict import Kind
from unicrond.core import record
from unicrond.core.cycle import Cycle
from unicrond.core.guards import OUR_REASON, drains_left, moves_left
from unicrond.core.state import State
from unicrond.core.trouble import Fault, has_room_without, open_incident, report
from unicrond.model.cluster import NodeState
from unicrond.model.decision import Action, ActionKind, Mode, Outcome, OutcomeState
from unicrond.model.incident import Incident, IncidentState, Scope, Severity, Signal
from unicrond.model.run import Run

EXPLAINS_SECONDS = 10.0
BY_SLURM = "slurm"  # a signal's source: the reason of a node
SNAPSHOT_LAG_SECONDS = 3.0  # a look at Slurm may have begun before a drain of ours
_KINDS = frozenset(map(str, Kind))
# What is broken in the node itself. A hang, a lock-up or a slow disk may be another's doing, and a
# whole cluster's at once; a run that suffers from it fails, and is healed for that.
BROKEN = frozenset(
    {
        Kind.ECC,
        Kind.ROW_REMAP,
        Kind.NVLINK,
        Kind.NVSWITCH,
        Kind.GPU_LOST,
        Kind.GPU_DRIVER,
        Kind.PCIE_AER,
        Kind.HOST_MEMORY,
        Kind.PORT_DOWN,
    }
)


def on_hardware(cycle: Cycle, signal: Signal) -> None:
    fault = fault_of(signal)
    if fault is None:
        return
    runs = _runs_on(cycle.state, signal)
    ours = signal.run_id is not None or fault.kind in BROKEN
    if fault.severity is not Severity.SEV1 or not ours:
        _keep(cycle, signal, fault, runs)
    elif signal.run_id is None:
        _condemn(cycle, fault, runs)
    else:
        for run in runs:
            _leave(cycle, run, fault, signal)


def fault_of(signal: Signal) -> Fault | None:
    """None when the words make no sense."""
    kind, severity = str(signal.data.get("kind")), str(signal.data.get("severity"))
    if kind not in _KINDS or severity not in set(map(str, Severity)):
        return None
    count = signal.data.get("count")
    times = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
    return Fault(
        kind=kind,
        severity=Severity(severity),
        scope=Scope.NODE,
        node=signal.node,
        what=f"{kind} on {signal.node}: {signal.text[:300]}{times}",
        noticed_at=signal.at,
        rule=_rule(str(signal.data.get("source")), Kind(kind), signal.text),
        sick=True,
        evidence=signal.text,
    )


def _rule(source: str, kind: Kind, text: str) -> str:
    """Of the driver's, the kernel's or Slurm's own line, where it is one; else of the sensor."""
    verdict = classify(BY_SLURM if source == BY_SLURM else "dmesg", text)
    return verdict.rule if verdict.kind is kind and verdict.is_failure else sensed(source, kind)


def explanation(state: State, run: Run, signal: Signal) -> Fault | None:
    """What hardware did on the node shortly before a rank ended there, since its generation ran."""
    hint = state.hints.get(signal.node)
    if hint is None or abs(signal.at - hint.at) > EXPLAINS_SECONDS:
        return None
    if hint.at < run.generation_since:
        return None
    return fault_of(hint) if hint.run_id in (None, signal.run_id) else None


def _runs_on(state: State, signal: Signal) -> list[Run]:
    """Those that the word of whoever signals concerns, and whose ranks are on the node."""
    return [
        run
        for run in state.live_runs()
        if signal.run_id in (None, run.run_id)
        and run.assignment is not None
        and signal.node in run.assignment.nodes
        and signal.node not in run.shunned
    ]


def _keep(cycle: Cycle, signal: Signal, fault: Fault, runs: list[Run]) -> None:
    for run in runs:
        cycle.note("signal", fault.what, run, node=fault.node)
    if fault.severity is Severity.NONE or not runs:
        return
    cycle.state.hints[signal.node] = signal
    for run in runs:  # which may have healed before its sensors had their turn
        incident = cycle.incident_of(run) or cycle.state.resolved.get(run.run_id)
        if incident is not None and _unexplained(incident, fault):
            cycle.put_incident(replace(incident, kind=fault.kind, cause_text=fault.evidence))


def _unexplained(incident: Incident, fault: Fault) -> bool:
    near = abs(incident.first_signal_at - fault.noticed_at) <= EXPLAINS_SECONDS
    return near and incident.kind == Kind.EXITED and incident.root_node == fault.node


def _leave(cycle: Cycle, run: Run, fault: Fault, signal: Signal) -> None:
    if why := _stays(cycle, run, fault):
        cycle.state.hints[signal.node] = signal
        cycle.note("signal", f"{fault.what}; {why}", run, node=fault.node)
        return
    _move(cycle, run, fault)
    moved = cycle.state.runs[run.run_id]
    if run.healing is None and moved.healing is not None:
        recent = (at for at in moved.moves if at > cycle.now - 3600)
        cycle.put(replace(moved, moves=(*recent, cycle.now)))


def _stays(cycle: Cycle, run: Run, fault: Fault) -> str:
    if not has_room_without(cycle, run, fault.node):
        return "the run has nowhere else to go"
    if run.healing is None and not moves_left(cycle.state, run, cycle.now):
        return f"{run.user}'s agents alone moved as many runs within the hour as they may"
    return ""


def _move(cycle: Cycle, run: Run, fault: Fault) -> None:
    """Where we may not act nothing will end the incident: the run goes on as if nothing were."""
    before = cycle.incident_of(run)
    report(cycle, run, fault)
    incident = cycle.incident_of(run)
    if incident is None or cycle.state.acts_for(run):
        return
    if before is None or before.incident_id != incident.incident_id:
        cycle.close_incident(incident.incident_id, IncidentState.CLOSED, "only observed")


def _condemn(cycle: Cycle, fault: Fault, runs: list[Run]) -> None:
    """Every run leaves; the drain hangs on the first one's incident, else on one of the node's."""
    state = cycle.state
    for run in runs:
        _move(cycle, run, fault)
    node = state.nodes.get(fault.node)
    if node is None or node.state is not NodeState.UP or _draining(cycle, fault.node):
        if _told_again(cycle, fault):
            return
        cycle.note("signal", f"{fault.what}; it is out of service already", node=fault.node)
        return
    incident = cycle.incident_of(state.runs[runs[0].run_id]) if runs else None
    if incident is None:
        incident = open_incident(cycle, None, fault)
    _drain(cycle, incident, fault)


def _told_again(cycle: Cycle, fault: Fault) -> bool:
    """What an open incident knows already is only counted."""
    for incident in cycle.state.incidents.values():
        if (incident.root_node, incident.kind) == (fault.node, fault.kind):
            cycle.put_incident(replace(incident, count=incident.count + 1))
            return True
    return False


def _draining(cycle: Cycle, node: str) -> bool:
    """By us, and not yet to be seen in what Slurm says."""
    state = cycle.state
    seen_until = state.snapshot_at - SNAPSHOT_LAG_SECONDS
    ordered = [a.node for a, _ in state.pending.values() if a.kind is ActionKind.DRAIN]
    return node in ordered or any(n == node and at > seen_until for at, n in state.drains)


def _drain(cycle: Cycle, incident: Incident, fault: Fault) -> None:
    if held := record.held(cycle.state, fault.rule, None):
        cycle.decide(incident, None, "observe", f"{fault.what}; {held}: only observed", held=True)
        _close(cycle, incident, f"{fault.node} is not drained")
    elif cycle.state.mode is not Mode.ACTIVE:
        _close(cycle, incident, f"{fault.node} is not drained: mode {cycle.state.mode}")
    elif not drains_left(cycle.state, cycle.now):
        reason = f"{fault.what}; draining it would exceed the budget of drains an hour"
        cycle.act(incident.incident_id, None, ActionKind.NOTIFY, fault.node, reason=reason)
    else:
        reason = f"{OUR_REASON}{fault.kind} incident={incident.incident_id}"
        cycle.act(incident.incident_id, None, ActionKind.DRAIN, fault.node, reason=reason)


def on_outcome(cycle: Cycle, action: Action, outcome: Outcome) -> None:
    """Of an action for a node rather than for a run."""
    if action.kind is ActionKind.DRAIN and outcome.state is OutcomeState.DONE:
        cycle.state.drains.append((cycle.now, action.node))
    incident = cycle.state.incidents.get(action.key.incident_id)
    if incident is not None:
        _close(cycle, incident, f"{action.node}: {action.kind} {outcome.state}")


def _close(cycle: Cycle, incident: Incident, why: str) -> None:
    """One of a run ends with the run's heal."""
    if incident.run_id is None:
        cycle.close_incident(incident.incident_id, IncidentState.CLOSED, why)
