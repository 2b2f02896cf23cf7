"""Who goes on after a failure, and why. Pure.

    a rank ended with 93, or it fails for certain again, or
    restarts without progress are used up ──────────────────────────> end, exit code 93
    enough good nodes hold the allocation (>= min_nodes)
        ranks there take orders, and may be kept ───────────────────> hold, then start beside them
        otherwise ──────────────────────────────────────────────────> stop, then start on them
    otherwise ──────────────────────────────────────────────────────> requeue

Good: not lost, not shunned by this run, and with an agent (or one that is being started again).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from unicrond.model.decision import Alternative
from unicrond.model.run import Assignment, HealStep, Phase, Run, Slot

NO_RESTART = 93  # the exit code that means "do not restart", as in NVIDIA's resiliency extension
TRY_AGAIN = 75  # and "not my fault: once more in a new process", as of EX_TEMPFAIL
IN_PLACE = "SEV3 asks for another try in place, which is carried out as SEV2"
_WITH_RANKS = (Phase.STARTING, Phase.RUNNING, Phase.BROKEN)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What broke a generation. `moves_off`: this run is to avoid the root's node from now on.
    `apart`: why no rank may keep its process, "" if those may that take orders."""

    root_node: str
    lost: tuple[str, ...] = ()
    dead_agents: tuple[str, ...] = ()
    avoided: frozenset[str] = frozenset()  # drained by us, or nobody can be given orders there
    moves_off: bool = False
    final: bool = False  # the program asks not to be restarted
    remedy: str = ""  # what a person has to mend first: a restart alone is lost time
    what: str = ""
    replaced: frozenset[int] = frozenset()  # ranks that need a new process
    apart: str = ""
    in_place: bool = False  # another try is all that it asks for
    joining: tuple[str, ...] = ()  # nodes whose ranks are prepared: no trouble at all


@dataclass(frozen=True, slots=True)
class Choice:
    """The way that was chosen, its reason as a sentence, and what else was weighed."""

    step: HealStep
    nodes: tuple[str, ...]
    kept: tuple[Slot, ...]  # of the generation that broke: they go over in their processes
    shunned: tuple[str, ...]
    reason: str
    alternatives: tuple[Alternative, ...]
    later: tuple[str, ...] = ()  # good nodes that follow, as their ranks need new processes

    @property
    def name(self) -> str:
        return next(a.name for a in self.alternatives if a.chosen)


def choose(run: Run, trouble: Trouble, restarts_allowed: int) -> Choice:
    """The way on. Sizes in nodes; prices in words until throughput is known."""
    shunned = _shunned(run, trouble)
    nodes = good_nodes(run, trouble, shunned)
    later = follow_later(run, trouble, nodes)
    nodes = tuple(node for node in nodes if node not in later)
    kept = keepable(run, trouble, nodes)
    before = len(run.assignment.nodes) if run.assignment else len(run.nodes)
    fruitless = run.restarts_without_progress
    if trouble.final or trouble.remedy or fruitless >= restarts_allowed:
        step = HealStep.END
        why = _why_it_ends(trouble, fruitless)
        reason = f"{trouble.what}; {why}: ending run {run.run_id} with exit code {NO_RESTART}"
    elif len(nodes) >= run.min_nodes:
        step = HealStep.HOLD if kept else HealStep.STOP
        reason = _go_on(run, trouble, nodes, before, kept)
        if later:
            reason = f"{reason}; {','.join(later)} to follow once new ranks are prepared there"
    else:
        step = HealStep.REQUEUE
        reason = (
            f"{trouble.what}; {len(nodes)} good nodes are left and run {run.run_id} needs "
            f"{run.min_nodes}: requeueing it"
        )
    weighed = _weighed(step, nodes, before, run, len(kept))
    return Choice(step, nodes, kept, shunned, reason, weighed, later)


def _why_it_ends(trouble: Trouble, fruitless: int) -> str:
    if trouble.final:
        return "it asks not to be restarted"
    if trouble.remedy:
        return f"a restart alone would fail the same: {trouble.remedy}"
    return f"{fruitless} restarts in a row brought nothing"


def good_nodes(run: Run, trouble: Trouble, shunned: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes of the allocation that the next generation can use, in Slurm's order."""
    bad = {*trouble.lost, *trouble.avoided, *shunned}
    nodes = tuple(n for n in run.nodes if n not in bad and n in run.agents)[: run.max_nodes]
    return nodes[: legal_size(run, len(nodes))]


def legal_size(run: Run, most: int) -> int:
    """The most nodes on which whole replicas fit, of any layout that the user called legal; of a
    run that fits into none as it is, any."""
    sizes = (layout.workers for layout in run.workload.layouts)
    units = [math.lcm(size, run.ranks_per_node) // run.ranks_per_node for size in sizes]
    present = len(run.assignment.nodes) if run.assignment else len(run.nodes)
    if all(present % unit for unit in units):
        return most
    return max(most - most % unit for unit in units)


def keepable(run: Run, trouble: Trouble, nodes: Collection[str]) -> tuple[Slot, ...]:
    """Who can go over into a generation on these nodes in the process that it has, as is known."""
    if run.assignment is None or trouble.apart:
        return ()
    gone = {*trouble.lost, *trouble.dead_agents}
    good = {node for node in nodes if node not in gone and _has_ranks(run, node)}
    return tuple(
        slot
        for slot in run.assignment.slots
        if slot.node in good
        and slot.rank in run.agents[slot.node].regrouping
        and slot.rank not in trouble.replaced
    )


def follow_later(run: Run, trouble: Trouble, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes that need new processes, if the run may go on with fewer meanwhile: the ranks of the
    others would wait for these to load their libraries."""
    kept = {(slot.node, slot.local_rank) for slot in keepable(run, trouble, nodes)}
    whole = {n for n in nodes if all((n, k) in kept for k in range(run.ranks_per_node))}
    if len(whole) < max(1, run.min_nodes) or legal_size(run, len(whole)) < len(whole):
        return ()
    return tuple(n for n in nodes if n not in whole)


def _has_ranks(run: Run, node: str) -> bool:
    """Of the present generation, as far as was heard: after a start of ours it may be long ago."""
    view, order = run.agents.get(node), run.assignment.order if run.assignment else ""
    if view is None or view.phase not in _WITH_RANKS:
        return False
    return (view.generation, view.order) == (run.generation, order)


def assign(
    run: Run, generation: int, order: str, nodes: Iterable[str], kept: Iterable[Slot] = ()
) -> Assignment:
    """A generation, ranks in node order. Whoever is kept holds its place on its node under a new
    rank; all others are new members, of ids that repeat as little as orders."""
    members = {(slot.node, slot.local_rank): slot.member for slot in kept}
    places = [(node, k) for node in nodes for k in range(run.ranks_per_node)]
    slots = (
        Slot(rank, members.get((node, k), f"{order}.{rank}"), node, k)
        for rank, (node, k) in enumerate(places)
    )
    return Assignment(generation, order, tuple(slots))


def kept_in(assignment: Assignment) -> tuple[Slot, ...]:
    """Members that an assignment did not make."""
    return tuple(s for s in assignment.slots if s.member.rpartition(".")[0] != assignment.order)


def _shunned(run: Run, trouble: Trouble) -> tuple[str, ...]:
    if trouble.moves_off and trouble.root_node and trouble.root_node not in run.shunned:
        return (*run.shunned, trouble.root_node)
    return run.shunned


def _go_on(
    run: Run, trouble: Trouble, nodes: tuple[str, ...], before: int, kept: tuple[Slot, ...]
) -> str:
    what = _tier(run, trouble, kept)
    if len(nodes) == before:
        verb = "regrouping" if kept else "restarting"
        return f"{what}; {verb} run {run.run_id} on {len(nodes)} nodes"
    share = 100 * abs(before - len(nodes)) / before
    verb = "shrinking" if len(nodes) < before else "growing"
    return (
        f"{what}; {verb} run {run.run_id} from {before} to {len(nodes)} nodes, "
        f"{share:.0f} % of its ranks"
    )


def _tier(run: Run, trouble: Trouble, kept: tuple[Slot, ...]) -> str:
    """What happened, and why ranks keep their processes or do not."""
    world = run.assignment.world_size if run.assignment else 0
    if kept:
        return f"{trouble.what}; {len(kept)} of {world} ranks keep their processes"
    if trouble.apart and any(view.regrouping for view in run.agents.values()):
        return f"{trouble.what}; no rank keeps its process: {trouble.apart}"
    return f"{trouble.what}; {IN_PLACE}" if trouble.in_place else trouble.what


def _weighed(
    step: HealStep, nodes: tuple[str, ...], before: int, run: Run, kept: int
) -> tuple[Alternative, ...]:
    size = len(nodes)
    same = "regroup" if kept else "restart"
    going_on = same if size == before else "shrink" if size < before else "grow"
    chosen = {HealStep.REQUEUE: "requeue", HealStep.END: "end"}.get(step, going_on)
    redone = "the train step that failed" if kept else "work since the last checkpoint"
    prices = {
        going_on: f"{size} of {before} nodes go on; {redone} is redone"
        if size >= run.min_nodes
        else f"not possible: {size} good nodes, at least {run.min_nodes} asked for",
        "requeue": "waits in Slurm's queue, starts from the last checkpoint at full size",
        "wait": "nothing runs until a person or the agents' own time-out acts",
    }
    if step is HealStep.END:
        prices["end"] = "gives the nodes back; a restart without a change is lost time"
    return tuple(Alternative(name, name == chosen, price) for name, price in prices.items())
