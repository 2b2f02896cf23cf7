"""What a division of workers is worth: weighted achieved FLOP/s (WAF), less the price of change.

    F(t, x)       = w(t) T(t, x)   where x is a legal size of run t;  F(t, 0) = 0
    G(t, x -> x') = F(t, x') D_running(n') - margin 1(t, x -> x') F(t, x) D_transition(t, x -> x')
    1(t, x -> x') = 1  if x' != x, or if any worker of t is faulty; else 0

The formula is Unicron's, as others quote it (arXiv 2401.00134). What it leaves open is ours:

    D_running(n') = expected seconds until what the division gained is lost, at most
                    `horizon_seconds`: a run ends or starts, or fewer than the n' workers that are
                    available now, used or not, are left. A node that returns takes nothing away,
                    and one that is lost after it leaves as many as now; see `_until_fewer`, and
                    docs/adr/0012-what-ends-a-division.md
    D_transition    by run and by kind of change, see Change
    margin          how many times over a move must pay back its price within D_running
    noise           T(t, x') counts so much less where x' != x: by how much T may be wrong. With
                    T off by d at most, noise 2 d / (1 + d) rules out that a plan moves to and fro
    legal           0 or a size of the run's table, not under its floor, not over its ceiling

G comes from floats; it is rounded to int64, in a unit of a power of two, before anything is
solved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from planner import kernels
from planner.allocator import largest_total
from planner.kernels import Floats, Ints

MOST_AWAY = 10_000  # nodes out of service; more of them make no difference


class Change(StrEnum):
    """What becomes of a run of x workers, of which some may be faulty, when it gets x'."""

    KEEP = "keep"  # x' = x, all well
    RESTART = "restart"  # x' = x, no worker lost, but its processes failed
    SWAP = "swap"  # x' = x, spares take the place of the lost workers
    SHRINK = "shrink"  # x' < x
    GROW = "grow"  # x' > x
    REQUEUE = "requeue"  # x' = 0, another pool, or fewer than Slurm can shrink the run to
    START = "start"  # x = 0: nothing runs, so nothing is lost


@dataclass(frozen=True, slots=True)
class Transition:
    """D_transition in seconds, by kind of change."""

    restart: float
    swap: float
    shrink: float
    grow: float
    requeue: float


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that are alike. `workers` are those available: neither lost nor others'."""

    name: str
    workers: int
    failures_per_worker_second: float = 0.0
    away: int = 0  # nodes out of service that will return
    return_seconds: float = math.inf  # until one of them does, on average


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What a run has, and what it could make of other numbers of workers.

    `throughput[pool][x]` is T(t, x) in FLOP/s, NaN where x is no legal size; entry 0 is not read.
    """

    run_id: int
    throughput: Mapping[str, Floats]
    transition: Transition
    pool: str  # where it runs, or waits
    size: int = 0  # workers, the faulty ones included
    present_flops: float = 0.0  # T(t, size), in FLOP/s
    faulty: int = 0  # workers lost
    broken: bool = False  # its processes must start again even where no worker is lost
    weight: float = 1.0
    floor: int = 0
    ceiling: int | None = None
    pinned: int = 0  # workers that it cannot give back but by a requeue: its batch hosts'
    account: str = ""

    @property
    def held(self) -> int:
        """Workers that it has and can keep."""
        return self.size - self.faulty

    @property
    def present_rate(self) -> float:
        """F(t, x) before the change."""
        return self.weight * self.present_flops if self.size else 0.0

    def change(self, size: int, pool: str = "") -> Change:
        if self.size == 0:
            return Change.START if size else Change.KEEP
        if size == 0 or (pool or self.pool) != self.pool:
            return Change.REQUEUE
        if size == self.size:
            return Change.SWAP if self.faulty else Change.RESTART if self.broken else Change.KEEP
        if size > self.size:
            return Change.GROW
        return Change.SHRINK if size >= self.pinned else Change.REQUEUE

    def seconds(self, change: Change) -> float:
        """D_transition."""
        return 0.0 if change in (Change.KEEP, Change.START) else getattr(self.transition, change)

    def allows(self, pool: str, size: int) -> bool:
        """Whether it may have that many workers of that pool."""
        if size < self.floor or (self.ceiling is not None and size > self.ceiling):
            return False
        table = self.throughput[pool]
        return size == 0 or (size < table.size and not math.isnan(table[size]))

    def rate(self, pool: str, size: int) -> float:
        """F(t, x') after the change; the present size yields what it does, be it legal or not."""
        table = self.throughput[pool][: size + 1]
        if size and table.size > size and not math.isnan(table[size]):
            return self.weight * float(table[size])
        return self.present_rate if (pool, size) == (self.pool, self.size) else 0.0

    def price(self, pool: str, size: int) -> float:
        """1(t, x -> x') F(t, x) D_transition(t, x -> x'), in FLOP."""
        return self.present_rate * self.seconds(self.change(size, pool))

    def doubt(self, noise: float, pool: str, size: int) -> float:
        """By how much F(t, x') counts less for being another size."""
        return 0.0 if (pool, size) == (self.pool, self.size) else noise * self.rate(pool, size)

    def worths(self, problem: Problem, pool: str, row: Floats) -> None:
        """Fills row[x'] with G(t, x -> x') in FLOP, NaN where x' is not legal."""
        lasting, margin = problem.running_seconds, problem.margin
        table, size = self.throughput[pool][: row.size], self.size
        np.multiply(table, self.weight * lasting * (1 - problem.noise), out=row[: table.size])
        row[table.size :] = np.nan
        if pool == self.pool and 0 < size < table.size:
            row[size] = table[size] * self.weight * lasting
        row[0] = -margin * self.price(pool, 0)
        low = max(1, min(self.pinned, size))
        row[1:low] -= margin * self.price(pool, 0)
        row[low:size] -= margin * self.price(pool, size - 1)
        row[size + 1 :] -= margin * self.price(pool, size + 1)
        if 0 < size < row.size:
            row[size] -= margin * self.price(pool, size)
        row[: self.floor] = np.nan
        if self.ceiling is not None:
            row[self.ceiling + 1 :] = np.nan


@dataclass(frozen=True, slots=True)
class Limits:
    """Workers that the runs of one Slurm account have together: at least, and at most. Those of an
    account without runs count nothing."""

    floor: int = 0
    ceiling: int | None = None

    def allow(self, workers: int) -> bool:
        return self.floor <= workers and (self.ceiling is None or workers <= self.ceiling)

    def beside(self, workers: int) -> Limits:
        """What is left of them for the others, where some runs keep so many."""
        ceiling = None if self.ceiling is None else max(0, self.ceiling - workers)
        return Limits(max(0, self.floor - workers), ceiling)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that a division depends on. Claims are in order of run id."""

    claims: tuple[Claim, ...]
    pools: Mapping[str, Pool]
    other_changes_per_second: float = 0.0  # runs that end or start
    horizon_seconds: float = 30 * 86400.0
    margin: float = 1.0
    noise: float = 0.0
    accounts: Mapping[str, Limits] = field(default_factory=dict)

    @property
    def running_seconds(self) -> float:
        """D_running: how long the division is expected to last."""
        others = self.other_changes_per_second
        losses = (_until_fewer(pool, others) for pool in self.pools.values())
        rate = others + sum(max(0.0, 1 / seconds - others) for seconds in losses)
        return min(self.horizon_seconds, 1 / rate) if rate > 0 else self.horizon_seconds


def _until_fewer(pool: Pool, others: float) -> float:
    """Expected seconds until one more node of this pool is away than now, or until something else
    ends the division, at a rate of `others`.

    Nodes fail at a rate f; of k away each returns at a rate r, other ends come at a rate o. From k
    away it takes t(k) until k + 1 are or the division has ended otherwise, the latter with
    probability q(k):

        t(k) = (1 + k r t(k - 1))     / (f + o + k r q(k - 1))
        q(k) = (o + k r q(k - 1))     / (f + o + k r q(k - 1))
    """
    failures = pool.workers * pool.failures_per_worker_second
    if failures + others <= 0:
        return math.inf
    seconds = otherwise = 0.0
    for away in range(min(pool.away, MOST_AWAY) + 1):
        returns = away / pool.return_seconds
        ends = others + returns * otherwise
        seconds = (1 + returns * seconds) / (failures + ends)
        otherwise = ends / (failures + ends)
    return seconds


class Proof(StrEnum):
    """How sure it is that no division is better."""

    EXACT = "exact"  # to the last unit of the gain
    BOUND = "bound"  # within the plan's `gap`: there is an upper bound
    GREEDY = "greedy"  # found by rules of thumb; `gap` holds all the same


@dataclass(frozen=True, slots=True)
class Share:
    pool: str
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What each claim of a problem gets, in their order."""

    shares: tuple[Share, ...]
    gain: float  # in FLOP, over the time that the division is expected to last
    proof: Proof
    gap: float = 0.0  # the best is at most so much better, relative to the gain


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """G in units of `unit` FLOP: one row a claim, one column a number of workers."""

    table: Ints
    unit: float


def gains(problem: Problem, claims: Sequence[Claim], pool: str) -> Gains:
    """G of these claims in one pool, in the finest unit that the allocator is sure to take."""
    workers = problem.pools[pool].workers
    table = np.empty((len(claims), workers + 1))
    for row, claim in zip(table, claims, strict=True):
        claim.worths(problem, pool, row)
    largest = kernels.magnitude(table)
    room = largest_total(len(claims), workers, sum(claim.held for claim in claims)) // 2
    unit = 2.0 ** math.ceil(math.log2(largest / room)) if largest else 1.0
    return Gains(kernels.whole(table, unit), unit)
