"""How often nodes fail: by pool, by node, by switch; and which nodes are lemons.

    rate of a pool    Gamma(a + failures, b + node-days), prior a, b as published (priors.py)
    rate of a node    Gamma(u + failures, u / rate of its pool + days); u, how unequal the nodes of
                      a pool are, is the likeliest for their counts under its own prior
    lemon             fails more than LEMON_TIMES as often as its pool with probability LEMON_SURE,
                      and not by the word of one run alone: a run's own fault is no node's
    rate of a switch  Gamma(a + failures, b + switch-days)
    shape             of a Weibull law of the times between failures of nodes that are no lemons,
                      where there are enough; under 1, a node that has just failed fails sooner
    aging             where the shape's interval leaves 1 out: the failures to be expected of nodes
                      as old as these now, since each one's last failure, over those of the rate

Failures of one node within REPEAT_SECONDS are one. Nodes under one switch that fail together,
within TOGETHER_SECONDS, are one failure of the switch and none of theirs; where no switches are
told, nodes of one pool that fail together are one such event.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaincc, gammaincinv, gammaln

from planner import priors
from planner.kernels import Floats
from planner.priors import Gamma

DAY_SECONDS = 86400.0
REPEAT_SECONDS = 3600.0
TOGETHER_SECONDS = 60.0
LEMON_TIMES, LEMON_SURE = 3.0, 0.9
LEAST_INTERVALS = 20  # between failures, for a Weibull law
AHEAD_DAYS = (1 / 24, 30.0)  # at least, at most
MOST_AGING = 4.0  # a law fitted to some tens of intervals is not believed beyond
TAIL = 0.05  # at each side of an interval of 90 %
SIDE = 1.645
STEP = 1e-3  # of log shape, for the curvature of its likelihood


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node was lost or sick, `at` Unix seconds. `run_id` None: on root's or Slurm's own word."""

    at: float
    node: str
    run_id: int | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """How long a node was up under our eyes, and since when we look, in Unix seconds."""

    node: str
    pool: str
    days: float
    since: float = 0.0
    switch: str = ""


@dataclass(frozen=True, slots=True)
class Rate:
    """Failures a day with an interval of 90 %, `failures` in `days` behind it."""

    per_day: float
    low: float
    high: float
    failures: int
    days: float
    prior: str = ""
    from_data: float = 0.0  # the part of the exposure behind it that was seen here

    @property
    def mtbf_days(self) -> float:
        return 1 / self.per_day


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Weibull law, with an interval of 90 %."""

    shape: float
    low: float
    high: float
    intervals: int
    scale_days: float


@dataclass(frozen=True, slots=True)
class NodeRecord:
    node: str
    pool: str
    rate: Rate
    times_pool: float  # its rate over its pool's
    lemon_probability: float
    lemon: bool


@dataclass(frozen=True, slots=True)
class PoolRecord:
    name: str
    nodes: int
    node: Rate  # of one node
    switch: Rate  # of one switch; events of several nodes where none is told
    unequal: float  # u; the lower, the more unequal its nodes are
    switches: int = 1
    shape: Shape | None = None
    aging: float = 1.0

    @property
    def per_node_day(self) -> float:
        """Failures that a node sees a day, its switch's among them."""
        of_switch = self.switch.per_day * self.switches / self.nodes
        return self.node.per_day * self.aging + of_switch


@dataclass(frozen=True, slots=True)
class Reliability:
    pools: tuple[PoolRecord, ...]
    nodes: tuple[NodeRecord, ...]  # that failed at least once, the worst first

    @property
    def lemons(self) -> frozenset[str]:
        return frozenset(record.node for record in self.nodes if record.lemon)


def learn(watched: Sequence[Watched], failures: Iterable[NodeFailure], now: float) -> Reliability:
    """Of nodes that are watched now; failures of others are left out."""
    home = {node.node: node for node in watched}
    single, together = _apart(_distinct(failures), home)
    pools, records = [], list[NodeRecord]()
    for name in sorted({node.pool for node in watched}):
        members = [node for node in watched if node.pool == name]
        mine = [f for f in single if home[f.node].pool == name]
        pool = _pool(name, members, mine, together[name])
        of_nodes = list(_records(pool, members, mine))
        lemons = {record.node for record in of_nodes if record.lemon}
        sound = [node for node in members if node.node not in lemons]
        ended, open_ = _intervals(sound, mine, now)
        shape = weibull(ended, open_)
        aging = _aging(shape, ended, open_) if shape else 1.0
        pools.append(replace(pool, shape=shape, aging=aging))
        records += of_nodes
    records.sort(key=lambda r: (-r.lemon_probability, -r.rate.failures, r.node))
    return Reliability(tuple(pools), tuple(records))


def rate(failures: int, days: float, prior: Gamma) -> Rate:
    shape, exposure = prior.shape + failures, prior.exposure + days
    low, high = gammaincinv(shape, [TAIL, 1 - TAIL]) / exposure
    return Rate(
        shape / exposure, float(low), float(high), failures, days, prior.source, days / exposure
    )


def _distinct(failures: Iterable[NodeFailure]) -> list[NodeFailure]:
    """Without those that repeat an earlier one of the same node."""
    kept, last = [], dict[str, float]()
    for failure in sorted(failures, key=lambda f: (f.at, f.node)):
        if failure.at - last.get(failure.node, -math.inf) >= REPEAT_SECONDS:
            kept.append(failure)
        last[failure.node] = failure.at
    return kept


def _apart(
    failures: Sequence[NodeFailure], home: Mapping[str, Watched]
) -> tuple[list[NodeFailure], Counter[str]]:
    """Failures of single nodes, and by pool the number of those of several together."""
    groups: dict[tuple[str, str], list[NodeFailure]] = {}
    for failure in failures:
        if (node := home.get(failure.node)) is not None:
            groups.setdefault((node.pool, node.switch), []).append(failure)
    single, together = list[NodeFailure](), Counter[str]()
    for (pool, _), members in groups.items():
        for burst in _bursts(members):
            if len(burst) > 1:
                together[pool] += 1
            else:
                single += burst
    return sorted(single, key=lambda f: f.at), together


def _bursts(failures: Sequence[NodeFailure]) -> Iterator[list[NodeFailure]]:
    burst = list[NodeFailure]()
    for failure in failures:
        if burst and failure.at - burst[0].at > TOGETHER_SECONDS:
            yield burst
            burst = []
        burst.append(failure)
    if burst:
        yield burst


def _pool(
    name: str, members: Sequence[Watched], failures: Sequence[NodeFailure], together: int
) -> PoolRecord:
    of_node = rate(len(failures), sum(node.days for node in members), priors.NODE_FAILURES)
    longest = {
        switch: max(node.days for node in members if node.switch == switch)
        for switch in {node.switch for node in members}
    }
    of_switch = rate(together, sum(longest.values()), priors.SWITCH_FAILURES)
    counts = Counter(failure.node for failure in failures)
    seen = np.array([counts[node.node] for node in members], np.float64)
    expected = np.array([node.days for node in members]) * of_node.per_day
    unequal = _unequal(seen, expected)
    return PoolRecord(name, len(members), of_node, of_switch, unequal, len(longest))


def _unequal(seen: Floats, expected: Floats) -> float:
    """u with which counts are negative binomial, likeliest together with its prior."""
    law = priors.UNEQUAL

    def loss(log_u: float) -> float:
        u = math.exp(log_u)
        terms = gammaln(u + seen) - gammaln(u) - (u + seen) * np.log1p(expected / u)
        terms -= seen * math.log(u)
        return float(0.5 * ((log_u - math.log(law.median)) / law.sigma) ** 2 - terms.sum())

    return math.exp(float(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x))


def _records(
    pool: PoolRecord, members: Sequence[Watched], failures: Sequence[NodeFailure]
) -> Iterator[NodeRecord]:
    of_pool, u = pool.node.per_day, pool.unequal
    for node in members:
        mine = [failure for failure in failures if failure.node == node.node]
        if not mine:
            continue
        found = rate(len(mine), node.days, Gamma(u, u / of_pool, f"pool {pool.name}"))
        exposure = u / of_pool + node.days
        sure = float(gammaincc(u + len(mine), LEMON_TIMES * of_pool * exposure))
        witnesses = {failure.run_id for failure in mine}
        trusted = None in witnesses or len(witnesses) > 1
        lemon = sure >= LEMON_SURE and len(mine) > 1 and trusted
        yield NodeRecord(node.node, pool.name, found, found.per_day / of_pool, sure, lemon)


def _intervals(
    members: Sequence[Watched], failures: Sequence[NodeFailure], now: float
) -> tuple[Floats, Floats]:
    """Days from one failure of a node to its next, and days since its last one."""
    times: dict[str, list[float]] = {node.node: [node.since] for node in members}
    for failure in failures:
        if failure.node in times and failure.at > times[failure.node][-1]:
            times[failure.node].append(failure.at)
    ended = [gap for mine in times.values() for gap in np.diff(mine)]
    open_ = [now - mine[-1] for mine in times.values()]
    return np.array(ended) / DAY_SECONDS, np.array(open_) / DAY_SECONDS


def weibull(ended: Floats, open_: Floats) -> Shape | None:
    """The likeliest shape, the scale at its own best for each; None with too few intervals."""
    if ended.size < LEAST_INTERVALS:
        return None
    every = np.concatenate([ended, open_[open_ > 0]])

    def loss(log_k: float) -> float:
        k = math.exp(log_k)
        scale = float((every**k).sum()) / ended.size  # to the power k
        return -float(
            ended.size * (log_k - math.log(scale)) + (k - 1) * np.log(ended).sum() - ended.size
        )

    best = float(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    curvature = (loss(best + STEP) - 2 * loss(best) + loss(best - STEP)) / STEP**2
    wide = math.exp(SIDE / math.sqrt(max(curvature, 1e-6)))
    shape = math.exp(best)
    scale = (float((every**shape).sum()) / ended.size) ** (1 / shape)
    return Shape(shape, shape / wide, shape * wide, int(ended.size), scale)


def _aging(shape: Shape, ended: Floats, ages: Floats) -> float:
    """Until the next failure of any of them is due, by their common rate."""
    if shape.low <= 1 <= shape.high:
        return 1.0
    rate = ended.size / (ended.sum() + ages.sum())
    ahead = min(max(1 / (rate * ages.size), AHEAD_DAYS[0]), AHEAD_DAYS[1])
    hazards = ((ages + ahead) / shape.scale_days) ** shape.shape
    hazards -= (np.maximum(ages, 0.0) / shape.scale_days) ** shape.shape
    return float(np.clip(hazards.mean() / (rate * ahead), 1 / MOST_AGING, MOST_AGING))
