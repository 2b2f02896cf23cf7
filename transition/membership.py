"""Who goes on after a failure, and why. Pure.

    a rank ended with 93, or it fails for certain again, or
    restarts without progress are used up ──────────────────────────> end, exit code 93
    enough good nodes hold the allocation (>= min_nodes) ───────────> stop, then start on them
    otherwise ──────────────────────────────────────────────────────> requeue

Good: not lost, not shunned by this run, and with an agent (or one that is being started again).
"""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.model.decision import Alternative
from unicrond.model.run import Assignment, HealStep, Run, Slot

NO_RESTART = 93  # the exit code that means "do not restart", as in NVIDIA's resiliency extension


@dataclass(frozen=True, slots=True)
class Trouble:
    """What broke a generation. `moves_off`: this run is to avoid the root's node from now on."""

    root_node: str
    lost: tuple[str, ...] = ()
    dead_agents: tuple[str, ...] = ()
    avoided: frozenset[str] = frozenset()  # drained by us, or nobody can be given orders there
    moves_off: bool = False
    final: bool = False  # the program asks not to be restarted
    remedy: str = ""  # what a person has to mend first: a restart alone is lost time
    what: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The way that was chosen, its reason as a sentence, and what else was weighed."""

    step: HealStep
    nodes: tuple[str, ...]
    shunned: tuple[str, ...]
    reason: str
    alternatives: tuple[Alternative, ...]

    @property
    def name(self) -> str:
        return next(a.name for a in self.alternatives if a.chosen)


def choose(run: Run, trouble: Trouble, restarts_allowed: int) -> Choice:
    """The way on. Sizes in nodes; prices in words until throughput is known."""
    shunned = _shunned(run, trouble)
    nodes = good_nodes(run, trouble, shunned)
    before = len(run.assignment.nodes) if run.assignment else len(run.nodes)
    fruitless = run.restarts_without_progress
    if trouble.final or trouble.remedy or fruitless >= restarts_allowed:
        step = HealStep.END
        why = _why_it_ends(trouble, fruitless)
        reason = f"{trouble.what}; {why}: ending run {run.run_id} with exit code {NO_RESTART}"
    elif len(nodes) >= run.min_nodes:
        step = HealStep.STOP
        reason = _go_on(run, trouble, nodes, before)
    else:
        step = HealStep.REQUEUE
        reason = (
            f"{trouble.what}; {len(nodes)} good nodes are left and run {run.run_id} needs "
            f"{run.min_nodes}: requeueing it"
        )
    return Choice(step, nodes, shunned, reason, _weighed(step, nodes, before, run))


def _why_it_ends(trouble: Trouble, fruitless: int) -> str:
    if trouble.final:
        return "it asks not to be restarted"
    if trouble.remedy:
        return f"a restart alone would fail the same: {trouble.remedy}"
    return f"{fruitless} restarts in a row brought nothing"


def good_nodes(run: Run, trouble: Trouble, shunned: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes of the allocation that the next generation can use, in Slurm's order."""
    bad = {*trouble.lost, *trouble.avoided, *shunned}
    return tuple(n for n in run.nodes if n not in bad and n in run.agents)[: run.max_nodes]


def assign(run: Run, generation: int, order: str, nodes: tuple[str, ...]) -> Assignment:
    """A generation of new members, ranks in node order. Member ids repeat as little as orders."""
    slots = tuple(
        Slot(
            rank=i * run.ranks_per_node + k,
            member=f"{order}.{i * run.ranks_per_node + k}",
            node=node,
            local_rank=k,
        )
        for i, node in enumerate(nodes)
        for k in range(run.ranks_per_node)
    )
    return Assignment(generation, order, slots)


def _shunned(run: Run, trouble: Trouble) -> tuple[str, ...]:
    if trouble.moves_off and trouble.root_node and trouble.root_node not in run.shunned:
        return (*run.shunned, trouble.root_node)
    return run.shunned


def _go_on(run: Run, trouble: Trouble, nodes: tuple[str, ...], before: int) -> str:
    if len(nodes) == before:
        return f"{trouble.what}; restarting run {run.run_id} on {len(nodes)} nodes"
    share = 100 * abs(before - len(nodes)) / before
    verb = "shrinking" if len(nodes) < before else "growing"
    return (
        f"{trouble.what}; {verb} run {run.run_id} from {before} to {len(nodes)} nodes, "
        f"{share:.0f} % of its ranks"
    )


def _weighed(
    step: HealStep, nodes: tuple[str, ...], before: int, run: Run
) -> tuple[Alternative, ...]:
    size = len(nodes)
    going_on = "restart" if size == before else "shrink" if size < before else "grow"
    chosen = {HealStep.STOP: going_on, HealStep.REQUEUE: "requeue", HealStep.END: "end"}[step]
    prices = {
        going_on: f"{size} of {before} nodes go on; work since the last checkpoint is redone"
        if size >= run.min_nodes
        else f"not possible: {size} good nodes, at least {run.min_nodes} asked for",
        "requeue": "waits in Slurm's queue, starts from the last checkpoint at full size",
        "wait": "nothing runs until a person or the agents' own time-out acts",
    }
    if step is HealStep.END:
        prices["end"] = "gives the nodes back; a restart without a change is lost time"
    return tuple(Alternative(name, name == chosen, price) for name, price in prices.items())
