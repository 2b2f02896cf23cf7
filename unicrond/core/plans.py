"""A plan of the planner is carried out, as far as it is possible and allowed now.

    arrives ──> too old, or makes no sense ──> dropped
       │ pool by pool
       ├──> its runs are not as it assumed, or one of them heals ──> dropped for this pool
       ├──> runs that are to grow, where nodes for them are idle ──> a companion each
       ├──> runs that are to shrink, where one that may grow lacks nodes, or nobody grows
       └──> a run that is only observed: recorded as what would have been done

Nothing is remembered of a plan: what it freed, or what could not be done yet, is in the next one,
which is asked for as soon as a run or a node has changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from planner import queue
from transition.membership import legal_size
from unicrond.core import companions
from unicrond.core.cycle import Cycle
from unicrond.core.pauses import PLAN
from unicrond.core.state import State
from unicrond.model.cluster import JobState, NodeState
from unicrond.model.decision import ActionKind
from unicrond.model.events import PlanMade, PlannedRun
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.pause import PauseScope, paused
from unicrond.model.run import LossState, Run, RunState

KIND = "plan"  # of the incident that a change hangs on
MOST_LEFT_OUT = 256  # nodes that Slurm is told to leave out, so that it takes those of the plan
_GROWS = (PLAN, ActionKind.SUBMIT_COMPANION.value)
_SHRINKS = (PLAN, ActionKind.SHRINK.value, ActionKind.CANCEL.value)


def on_plan(cycle: Cycle, plan: PlanMade) -> None:
    if why := _makes_no_sense(cycle, plan):
        cycle.note("note", f"a plan is dropped: {why}")
        return
    for pool in sorted({part.pool for part in plan.runs if part.nodes != part.before}):
        parts = [part for part in plan.runs if part.pool == pool]
        if why := _differs(cycle.state, parts):
            cycle.note("note", f"the plan for pool {pool} is dropped: {why}")
        else:
            _carry_out(cycle, plan, [part for part in parts if part.nodes != part.before])


def _makes_no_sense(cycle: Cycle, plan: PlanMade) -> str:
    age, limit = cycle.now - plan.seen_at, cycle.state.policy.plan_seconds
    if not -1.0 <= age <= limit:
        return f"it was made from what was so {age:.0f} s ago, and counts for {limit:g} s"
    run_id, times = Counter(p.run_id for p in plan.runs).most_common(1)[0] if plan.runs else (0, 1)
    if times > 1:
        return f"run {run_id} is in it {times} times"
    known = {part.run_id for part in plan.runs}
    new = [run for run in cycle.state.live_runs() if _is_planned_for(run, cycle.state, known)]
    return f"run {new[0].run_id} is not in it" if new else ""


def _is_planned_for(run: Run, state: State, known: set[int]) -> bool:
    """A run with nodes that the plan should have known."""
    there = run.assignment is not None and any(n in state.nodes for n in run.assignment.nodes)
    return there and run.whole_nodes and run.run_id not in known


def _differs(state: State, parts: Sequence[PlannedRun]) -> str:
    """In what its runs are no more as the plan took them to be."""
    for part in parts:
        run = state.runs.get(part.run_id)
        if run is None or run.state.ended:
            return f"run {part.run_id} is over"
        if run.healing is not None or run.state not in (RunState.RUNNING, RunState.REQUEUED):
            return f"run {part.run_id} is {run.state}"
        size = len(run.assignment.nodes) if run.assignment and not _waits(run) else 0
        if (run.generation, size) != (part.generation, part.before):
            now = f"has {size} nodes in generation {run.generation}"
            return f"run {part.run_id} {now}, not {part.before} in {part.generation}"
    return ""


def _waits(run: Run) -> bool:
    return run.state is RunState.REQUEUED


def _carry_out(cycle: Cycle, plan: PlanMade, moves: Sequence[PlannedRun]) -> None:
    growing = [move for move in moves if move.nodes > move.before]
    taken, lacking, promised = set[str](), list[PlannedRun](), _promised(cycle.state)
    for move in growing:
        if not _is_able(cycle, move):
            continue
        if nodes := _nodes_for(cycle, move, taken, promised):
            taken.update(nodes)
            _order(cycle, plan, move, nodes)
        else:
            lacking.append(move)
            _tell(cycle, move, "it waits for nodes that are to become idle")
    acting = any(cycle.state.acts_for(cycle.state.runs[m.run_id]) for m in lacking)
    for move in moves:
        useful = lacking or not growing
        if move.nodes < move.before and useful and _is_able(cycle, move):
            _order(cycle, plan, move, held=bool(lacking) and not acting)


def _is_able(cycle: Cycle, move: PlannedRun) -> bool:
    why = _why_not(cycle, cycle.state.runs[move.run_id], move)
    if why:
        _tell(cycle, move, f"not done, {why}")
    return not why


def _why_not(cycle: Cycle, run: Run, move: PlannedRun) -> str:
    state, policy, grows = cycle.state, cycle.state.policy, move.nodes > move.before
    if run.max_nodes <= run.min_nodes:
        return "its user wants it at this size"
    if why := companions.impossible(state, run, move.nodes, cycle.now):
        return why
    if legal_size(run, move.nodes) != move.nodes:
        return "its layout does not allow that many"
    if any(loss.state is LossState.LEFT for loss in run.losses):
        return "it is giving nodes back"
    if cycle.now < run.hands_off_until:
        return "a person set its size"
    if grows and cycle.now < run.no_growth_until:
        return f"it gave nodes back or could not grow, less than {policy.regrow_seconds:g} s ago"
    if grows and queue.is_contested(state.allocations.values(), state.nodes, run.run_id):
        return "other jobs wait for nodes there"
    if pause := next(_paused(state, grows), ""):
        return pause
    return _over_budget(cycle, run)


def _paused(state: State, grows: bool) -> Iterator[str]:
    for kind in _GROWS if grows else _SHRINKS:
        if pause := paused(state.pauses, PauseScope.ACTION, kind):
            yield str(pause)


def _over_budget(cycle: Cycle, run: Run) -> str:
    recent = [uid for at, uid in cycle.state.resizes if at > cycle.now - 3600]
    if len(recent) >= cycle.state.policy.resizes_per_hour:
        return "plans changed as many runs as an hour may have"
    if recent.count(run.uid) >= cycle.state.policy.user_resizes_per_hour:
        return "plans changed as many runs of this user as an hour may have"
    return ""


def _nodes_for(cycle: Cycle, move: PlannedRun, taken: set[str], promised: int) -> tuple[str, ...]:
    """Idle nodes for a run that is to grow, those of the plan first; () where there are too few."""
    idle = [n for n in _idle(cycle, cycle.state.runs[move.run_id]) if n not in taken]
    idle.sort(key=lambda name: name not in move.placed)
    more = move.nodes - move.before
    return tuple(idle[:more]) if len(idle) >= more + promised else ()


def _idle(cycle: Cycle, run: Run) -> list[str]:
    """Nodes like its own that no job holds, and that it may go to."""
    state = cycle.state
    job = state.allocations.get(run.run_id)
    held = {n for other in state.allocations.values() if other.state.live for n in other.nodes}
    gpus = max((state.nodes[n].gpus for n in run.nodes if n in state.nodes), default=0)
    partitions = set(job.partition.split(",")) if job else set()
    bad = {*held, *companions.unfit(state, run), *run.nodes}
    soon = cycle.now + state.policy.companion_limit_seconds
    return [
        name
        for name, node in sorted(state.nodes.items())
        if node.state is NodeState.UP and node.gpus == gpus and not 0 < node.away_at < soon
        if name not in bad and not partitions.isdisjoint(node.partitions)
    ]


def _promised(state: State) -> int:
    """Nodes that companions will take which Slurm has not started yet."""
    waiting = 0
    for companion in (c for run in state.live_runs() for c in run.companions):
        job = state.allocations.get(companion.job_id)
        if job is None or job.state is JobState.PENDING:
            waiting += companion.size
    return waiting


def _order(
    cycle: Cycle, plan: PlanMade, move: PlannedRun, nodes: Sequence[str] = (), held: bool = False
) -> None:
    """`nodes`: that it grows onto. `held`: whoever needs what it gives back is only observed."""
    state, run = cycle.state, cycle.state.runs[move.run_id]
    grows = move.nodes > move.before
    choice = "grow" if grows else "shrink"
    words = _words(move)
    what = plan.reason if plan.reason.startswith(words) else f"{words}: {plan.reason}"
    acts = state.acts_for(run) and not held
    if not acts and state.planned.get(run.run_id) == what:
        return
    state.planned[run.run_id] = what
    incident = cycle.open_incident(KIND, Severity.NONE, Scope.RUN, run, what)
    chosen = [a.chosen for a in plan.alternatives].count(True) == 1
    weighed = plan.alternatives if chosen else ()
    if not acts:
        who = " (who needs its nodes is only observed)" if held else ""
        cycle.decide(incident, run, choice, f"{what}{who}", weighed, held=held)
        cycle.close_incident(
            incident.incident_id, IncidentState.CLOSED, "it would have been carried out"
        )
        return
    state.resizes.append((cycle.now, run.uid))
    if grows:
        others = [name for name in _idle(cycle, run) if name not in nodes]
        leave_out = others if set(nodes) <= set(move.placed) else []
        companions.grow(cycle, run, incident, len(nodes), leave_out[:MOST_LEFT_OUT], weighed)
    else:
        cycle.decide(incident, run, choice, what, weighed)
        companions.shrink(cycle, run, incident, move.nodes)


def _tell(cycle: Cycle, move: PlannedRun, why: str) -> None:
    """Once, until there is something else to tell of that run."""
    text = f"planned: {_words(move)}; {why}"
    if cycle.state.planned.get(move.run_id) != text:
        cycle.state.planned[move.run_id] = text
        cycle.note("note", text, cycle.state.runs[move.run_id])


def _words(move: PlannedRun) -> str:
    verb = "grows" if move.nodes > move.before else "shrinks"
    return f"run {move.run_id} {verb} from {move.before} to {move.nodes} nodes"
