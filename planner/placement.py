"""Which nodes: a pure function from what every run holds and how many nodes it gets.

In this order: a run keeps what it holds; no node that is suspect, drained or another's is given
out; lemons (nodes that fail often) only when nothing else is left; as few switches as can be. A
run that gives nodes back keeps its pinned ones (Slurm cannot shrink a job off its batch host),
gives its lemons first, then empties its least used switches. For one run that is the least number
of switches; among runs the largest need is served first, which is a rule and not an optimum.
A node whose switch is not told, among others whose is, counts as alone on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator import Infeasible


@dataclass(frozen=True, slots=True)
class Site:
    """One node as placement sees it."""

    name: str
    switch: str = ""
    run_id: int | None = None  # who holds it
    pinned: bool = False  # its run cannot give it back
    usable: bool = True  # up, not suspect, not drained, not in an allocation that is not ours
    lemon: bool = False


def place(sites: Sequence[Site], counts: Mapping[int, int]) -> dict[int, tuple[str, ...]]:
    """The nodes of each run, those it keeps first. `counts`: nodes it gets, in order of run id.

    Raises Infeasible where usable nodes run out, or a run would have to give up a pinned one.
    """
    if any(site.switch for site in sites):
        sites = [s if s.switch else replace(s, switch=f"?{s.name}") for s in sites]
    kept = {run: _keep(run, count, sites) for run, count in counts.items()}
    names = {site.name for nodes in kept.values() for site in nodes}
    free = [
        site
        for site in sites
        if site.usable and site.name not in names and (site.run_id is None or site.run_id in counts)
    ]
    placed = dict(kept)
    for run in sorted(counts, key=lambda run: (len(kept[run]) - counts[run], run)):
        more = _add(run, counts[run] - len(kept[run]), kept[run], free)
        placed[run] = kept[run] + more
        free = [site for site in free if site not in more]
    return {run: tuple(site.name for site in nodes) for run, nodes in placed.items()}


def _keep(run: int, count: int, sites: Sequence[Site]) -> list[Site]:
    own = [site for site in sites if site.run_id == run and site.usable]
    pinned = [site for site in own if site.pinned]
    if 0 < count < len(pinned):
        raise Infeasible(f"run {run} cannot shrink to {count} nodes: {len(pinned)} are pinned")
    sound = Counter(site.switch for site in own if not site.lemon)
    every = Counter(site.switch for site in own)  # where no sound one is: lemons together too
    there = {site.switch for site in pinned}
    own.sort(
        key=lambda s: (
            not s.pinned,
            s.lemon,
            s.switch not in there,
            -sound[s.switch],
            -every[s.switch],
            s.switch,
            s.name,
        )
    )
    return own[:count]


def _add(run: int, need: int, kept: Iterable[Site], free: Sequence[Site]) -> list[Site]:
    """`need` more nodes for a run: from its own switches, then from as few others as can be."""
    taken, switches = list[Site](), {site.switch for site in kept}
    for lemons in (False, True):
        groups: dict[str, list[Site]] = {}
        for site in sorted(free, key=lambda site: site.name):
            if site.lemon == lemons:
                groups.setdefault(site.switch, []).append(site)
        while groups and (missing := need - len(taken)) > 0:
            switch = min(
                groups, key=lambda s: (s not in switches, *_fit(len(groups[s]), missing), s)
            )
            taken += groups.pop(switch)[:missing]
            switches.add(switch)
    if len(taken) < need:
        raise Infeasible(f"run {run} needs {need} more nodes, {len(taken)} usable ones are free")
    return taken


def _fit(there: int, missing: int) -> tuple[bool, int]:
    """The smallest switch that is enough; where none is, the largest."""
    return (there < missing, there if there >= missing else -there)
