"""What sensors saw, turned into faults. An agent's word concerns its own run only."""

from __future__ import annotations

from dataclasses import replace

from detectors.exits import classify_exit
from detectors.hang import Evidence, find
from detectors.remedies import remedy
from detectors.verdict import Kind, Verdict
from transition.membership import NO_RESTART, TRY_AGAIN
from unicrond.core import hardware, printed, speed
from unicrond.core.cycle import Cycle
from unicrond.core.trouble import Fault, report
from unicrond.model.incident import Scope, Severity, Signal, SignalKind
from unicrond.model.run import Phase, Run

RAISED = "exception.raised"

LONGEST_RESTORED = 1000  # characters
MOST_QUOTED = 3  # of what ranks printed before a hang
MOST_WAITING = 8  # ranks of a hanging run whose places are told
TOLD_AGAIN_SECONDS = 60.0  # of one run: what is slow once is often slow again


def on_signal(cycle: Cycle, signal: Signal) -> None:
    """Turns what a sensor saw into a fault, or into nothing."""
    if signal.kind is SignalKind.HARDWARE:  # of the node, whatever generation runs there
        hardware.on_hardware(cycle, signal)
        return
    run = cycle.state.runs.get(signal.run_id) if signal.run_id is not None else None
    if run is None:
        return
    if signal.generation < run.generation:
        cycle.note(
            "note",
            f"{signal.node}: {signal.kind} of generation {signal.generation} is out of date",
            run,
            node=signal.node,
        )
        return
    match signal.kind:
        case SignalKind.RANK_EXITED:
            _on_exit(cycle, run, signal)
        case SignalKind.EXCEPTION:
            _on_exception(cycle, run, signal)
        case SignalKind.SLOW:
            _on_slow(cycle, run, signal)
        case SignalKind.PRINTED:
            printed.on_printed(cycle, run, signal)
        case SignalKind.LOSS:
            speed.on_loss(cycle, run, signal)
        case SignalKind.LEASE_EXPIRED:
            _report(
                cycle,
                run,
                signal,
                "lost connection",
                Severity.SEV2,
                f"{signal.node} heard nobody for its lease and stopped its ranks",
                "agent.lease",
            )
        case SignalKind.RESTORED:
            cycle.note("note", signal.text[:LONGEST_RESTORED], run, node=signal.node)
        case SignalKind.START_FAILED:
            _report(
                cycle,
                run,
                signal,
                "exited abnormally",
                Severity.SEV2,
                f"{signal.node} could not start its ranks: {signal.text}",
                "agent.start",
                program=True,
            )


def _report(
    cycle: Cycle,
    run: Run,
    signal: Signal,
    kind: str,
    severity: Severity,
    what: str,
    rule: str,
    *,
    program: bool = False,
) -> None:
    report(
        cycle,
        run,
        Fault(
            kind=kind,
            severity=severity,
            scope=Scope.NODE,
            node=signal.node,
            what=what,
            noticed_at=signal.at,
            rule=rule,
            fact=True,
            apart="a rank could not be started" if program else "",
            program=program,
            own=program,
        ),
    )


def _on_exit(cycle: Cycle, run: Run, signal: Signal) -> None:
    code, number = _number(signal.data.get("exit_code")), _number(signal.data.get("signal")) or None
    if code == 0 and number is None:
        run = replace(run, early_exits=(*run.early_exits, (signal.rank or 0, signal.node))[-64:])
        cycle.put(run)
        return
    last_words = str(signal.data.get("stderr", ""))
    verdict = classify_exit(code, number, last_words)
    rank, node, own = signal.rank, signal.node, verdict.blame != "peer"
    how = f"by signal {number}" if number is not None else f"with exit code {code}"
    kind, evidence = str(verdict.kind), last_words or signal.text
    if verdict.kind == Kind.EXITED:
        kind, evidence = _explained(cycle, run, signal, evidence)
    again = code == TRY_AGAIN and number is None
    what = f"rank {rank} on {node} ended {how} ({kind})"
    what = f"{what}: it asks for another try" if again else what
    if not own:
        rank, node, what = _culprit(run, rank, node, what)
    report(
        cycle,
        run,
        Fault(
            kind=kind,
            severity=Severity.SEV3 if again else _severity(verdict),
            scope=Scope.RANK,
            node=node,
            rank=rank,
            replaces=_reporter(signal),
            what=what,
            noticed_at=signal.at,
            rule=verdict.rule,
            fact=True,
            own=own,
            victim=not own and rank == signal.rank,
            remedy="" if again else remedy(verdict),
            program=not again,
            final=code == NO_RESTART,
            evidence=evidence,
        ),
    )


def _reporter(signal: Signal) -> tuple[int, ...]:
    """It ended, or is about to: whoever is to blame, it needs a new process."""
    return () if signal.rank is None else (signal.rank,)


def _explained(cycle: Cycle, run: Run, signal: Signal, evidence: str) -> tuple[str, str]:
    """Why a rank ended whose exit does not tell: kind and evidence."""
    cause = hardware.explanation(cycle.state, run, signal)
    if cause is not None:
        return cause.kind, evidence
    said = printed.before_end(cycle.state, run, signal)
    return (said.kind, f"{said.text}\n{evidence}") if said else (str(Kind.EXITED), evidence)


def _on_exception(cycle: Cycle, run: Run, signal: Signal) -> None:
    """Raised a moment ago. Nobody waits for the rank to end: it may hang in its tear-down."""
    verdict = classify_exit(1, None, signal.text)
    last = next((line for line in reversed(signal.text.splitlines()) if line.strip()), "")
    rank, node, own = signal.rank, signal.node, verdict.blame != "peer"
    what = f"rank {rank} on {node} raised {last[:200]} ({verdict.kind})"
    if not own:
        rank, node, what = _culprit(run, rank, node, what)
    report(
        cycle,
        run,
        Fault(
            kind=verdict.kind,
            severity=_severity(verdict),
            scope=Scope.RANK,
            node=node,
            rank=rank,
            replaces=_reporter(signal),
            what=what,
            noticed_at=signal.at,
            # what an exit code alone says is not known yet: the rank has not ended
            rule=RAISED if verdict.rule.startswith("exit.") else verdict.rule,
            own=own,
            victim=not own and rank == signal.rank,
            remedy=remedy(verdict),
            program=True,
            evidence=signal.text,
        ),
    )


def _severity(verdict: Verdict) -> Severity:
    """A dead rank needs at least a restart, whatever its last words ask for."""
    return Severity.SEV2 if verdict.severity is Severity.NONE else verdict.severity


def _ended_early(run: Run) -> tuple[tuple[int, str], ...]:
    """Ranks, and their nodes, that ended with 0. A node of which all did says so by its phase."""
    done = {
        name
        for name, view in run.agents.items()
        if view.phase is Phase.DONE and view.generation == run.generation
    }
    slots = run.assignment.slots if run.assignment else ()
    whole = ((slot.rank, slot.node) for slot in slots if slot.node in done)
    return tuple(dict.fromkeys((*run.early_exits, *whole)))


def _culprit(run: Run, rank: int | None, node: str, what: str) -> tuple[int | None, str, str]:
    """Whoever fails or hangs for a rank that ended early is not to blame."""
    for early, where in _ended_early(run)[:1]:
        words = f"rank {early} on {where} ended with 0 while others ran on; {what} for it"
        return early, where, words
    return rank, node, what


def _on_slow(cycle: Cycle, run: Run, signal: Signal) -> None:
    """Gathers what is seen of each rank; acts once a hang is certain, or everyone is overdue."""
    evidence = evidence_from(signal)
    if run.assignment is None or evidence is None:
        return
    if run.healing is not None:
        _tell_waiting(cycle, run, evidence)
        return
    seen = cycle.state.slow.setdefault(run.run_id, {})
    if not seen:
        _suspect(cycle, run, signal, evidence)
    seen[evidence.rank] = evidence
    finding = find(tuple(seen.values()), run.assignment.world_size - len(_ended_early(run)))
    if finding is None:
        _locate(cycle, run, signal)
        return
    rank, node, what = finding.rank, finding.node, finding.reason
    said = printed.before_silence(cycle.state, run, cycle.now - evidence.seconds)
    if rank is None:
        rank, node, what = _culprit(run, rank, node, what)
    if rank is None and said and said[0].own:
        rank, node = said[0].rank, said[0].node
        what = f"{what}; {said[0]}"
    del cycle.state.slow[run.run_id]
    stacks = (f"rank {e.rank} {e.place}" for e in seen.values() if e.place)
    others = "; ".join((*map(str, said[:MOST_QUOTED]), *stacks))
    report(
        cycle,
        run,
        Fault(
            kind="task hang",
            severity=Severity.SEV2,
            scope=Scope.RANK if rank is not None else Scope.RUN,
            node=node,
            rank=rank,
            replaces=() if finding.rank is None else (finding.rank,),
            apart="nobody knows which rank hangs" if finding.rank is None else "",
            what=what,
            noticed_at=signal.at,
            rule=finding.rule,
            program=True,
            own=finding.rank is not None,
            evidence=others,
        ),
    )
    for other in seen.values():
        if other.rank != rank:
            _tell_waiting(cycle, cycle.state.runs[run.run_id], other)


def _tell_waiting(cycle: Cycle, run: Run, seen: Evidence) -> None:
    """Once for each of a few ranks: what they wait for while their run is said to hang."""
    incident = cycle.incident_of(run)
    if incident is None or incident.kind != "task hang" or seen.rank == incident.root_rank:
        return
    key, told = (incident.incident_id, seen.rank), cycle.state.waiting
    count = sum(number == incident.incident_id for number, _ in told)
    if seen.place and key not in told and count < MOST_WAITING:
        told.add(key)
        what = f"rank {seen.rank} on {seen.node} waits for {seen.seconds:.1f} s: {seen.place}"
        cycle.note("signal", what, run, incident=incident.incident_id, node=seen.node)


def _suspect(cycle: Cycle, run: Run, signal: Signal, evidence: Evidence) -> None:
    """For the person who looks: an unannounced save or evaluation looks like this too."""
    if cycle.now < cycle.state.suspected.get(run.run_id, 0.0) + TOLD_AGAIN_SECONDS:
        return
    cycle.state.suspected[run.run_id] = cycle.now
    where = f", {evidence.place}" if evidence.place else ""
    what = (
        f"rank {evidence.rank} on {evidence.node} has been in one iteration for "
        f"{evidence.seconds:.1f} s, usually {evidence.usual_seconds:.2g} s{where}: a suspicion"
    )
    cycle.note("signal", what, run, node=signal.node)


def _locate(cycle: Cycle, run: Run, signal: Signal) -> None:
    """Who seems to hold up the others, long before anything is done about it."""
    if run.assignment is None:
        return
    if cycle.now < cycle.state.located.get(run.run_id, 0.0) + TOLD_AGAIN_SECONDS:
        return
    seen = cycle.state.slow[run.run_id].values()
    world = run.assignment.world_size - len(_ended_early(run))
    finding = find([replace(one, overdue=True) for one in seen], world)
    if finding is not None and finding.rank is not None:
        cycle.state.located[run.run_id] = cycle.now
        cycle.note("signal", f"{finding.reason}: a suspicion", run, node=finding.node)


def evidence_from(signal: Signal) -> Evidence | None:
    """None when the agent's words make no sense."""
    data = signal.data
    seconds, usual = data.get("seconds"), data.get("usual_seconds")
    if signal.rank is None or not isinstance(seconds, (int, float)):
        return None
    return Evidence(
        rank=signal.rank,
        node=signal.node,
        process_state=str(data.get("process_state", ""))[:1],
        seconds=float(seconds),
        usual_seconds=float(usual) if isinstance(usual, (int, float)) else 0.0,
        overdue=data.get("overdue") is True,
        where=str(data.get("where", ""))[:300],
        collective=str(data.get("collective", ""))[:120],
        collectives=max(0, _number(data.get("collectives")) or 0),
        launched=max(0, _number(data.get("launched")) or 0),
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
