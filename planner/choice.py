"""Runs that may choose between pools: a division by moves and swaps, and a bound by whole pools.

Where each run is in one pool the pools are apart, and each is divided exactly by the recurrence. So
the search is over who is where: a run moves, or two change places, whatever gains most, until
nothing gains; then some are shaken out of their places and it begins again. At any worth m(t) of
run t

    D(m) = sum_t m(t) + sum_t max(0, G(t, nothing) - m(t))
           + sum_p  max of sum (G(t, p, k) - m(t)) over what fits into pool p

is an upper bound: only that a run is in one pool is given up, and each pool is filled with whole
runs. From the prices of the linear relaxation, where D is its bound, subgradients lead down.
Columns that fall short of their run's best by more than is missing cannot be in a better division,
and are left out. What both may cost is bounded by operations, so that the same question has the
same answer.
"""

from __future__ import annotations

import numpy as np

from planner import kernels_choice as kernels
from planner.allocator import divide
from planner.kernels import Floats, Ints
from planner.objective import Problem, gains

MOST_STEPS = 500  # moves and swaps
MOST_DESCENTS = 400
SHAKES, SHAKEN, PRIME = 20, 3, 1_000_003
ENOUGH = 1e-4  # of the gain, between the division and the bound
SLACK = 1e-9  # of the bound: what floating point may lose

Where = Ints  # pool by run


class Choice:
    """`run`, `pool`, `size`, `gain`: columns in that order; "nothing" is in a run's own pool."""

    def __init__(self, problem: Problem, run: Ints, pool: Ints, size: Ints, gain: Floats) -> None:
        self._problem, self._names = problem, list(problem.pools)
        self._run, self._pool, self._gain = run, pool, gain
        unit = max(1, int(np.gcd.reduce(size)))
        self._size = size // unit
        there = [pool.workers // unit for pool in problem.pools.values()]
        self._room = np.array(there, np.int64)
        self._nothing = np.full(len(problem.claims), -np.inf)
        none = size == 0
        self._nothing[run[none]] = gain[none]

    @property
    def _widest(self) -> int:
        return int(self._room.max()) + 1

    def improved(self, where: Where, shakes: int, operations: float) -> Where:
        """Moves and swaps as long as they gain and may be had, then again after each shake."""
        runs, wide, pools = len(self._problem.claims), self._widest, len(self._names)
        step = runs * wide * (wide * 1.5 + pools + runs)
        left = int(min(MOST_STEPS, operations / step))
        if left == 0:
            return where
        worth = np.full((pools, runs, wide), -np.inf)
        worth[self._pool, self._run, self._size] = self._gain
        worth[:, :, 0] = self._nothing
        best, most = where, -np.inf
        for shake in range(shakes + 1):
            tried = best.copy()
            for i in range(SHAKEN * (shake > 0)):  # which ones is arbitrary, and always the same
                number = (shake * SHAKEN + i) * PRIME
                tried[number % runs] = number // runs % pools
            gained, steps = kernels.improve(worth, self._room, tried, left)
            left -= steps
            if gained > most or shake == 0:
                best, most = tried, gained
        return best

    def divided(self, where: Where) -> tuple[Ints, Ints]:
        """Pool and size of each run, the best of that choice; in a pool that it may not use a run
        has nothing."""
        pools, sizes = where.copy(), np.zeros_like(where)
        claims = self._problem.claims
        for p, name in enumerate(self._names):
            mine = [i for i in np.flatnonzero(where == p) if name in claims[i].throughput]
            if mine:
                there = [claims[i] for i in mine]
                held = [claim.held if claim.pool == name else 0 for claim in there]
                worth = gains(self._problem, there, name)
                sizes[mine] = divide(worth.table, held, self._problem.pools[name].workers).sizes
        home = [self._names.index(claim.pool) for claim in claims]
        return np.where(sizes == 0, home, pools), sizes

    def bound(
        self, losses: Floats, values: Floats, bound: float, known: float, operations: float
    ) -> float:
        """An upper bound, from the relaxation's: each column's loss, each run's value there."""
        near = (losses <= bound - known + SLACK * abs(bound)) & (self._size > 0)
        kept = np.flatnonzero(near)
        kept = kept[np.lexsort((self._run[kept], self._pool[kept]))]
        descents = int(min(MOST_DESCENTS, operations / max(1, kept.size * self._widest)))
        enough = known + ENOUGH * abs(known)
        found = kernels.descend(
            self._run[kept], self._pool[kept], self._size[kept], self._gain[kept],
            self._nothing, self._room, values.copy(), descents, known, enough,
        )  # fmt: skip
        return max(known, min(bound, float(found) + SLACK * abs(bound)))
