"""Several pools, and pools shared under limits by account, as one integer program.

    maximise   sum G(t, p, k) y(t, p, k)            y(t, p, k) = 1: run t gets k workers of pool p
    subject to sum_pk y(t, p, k) = 1                for each run
               sum_tk k y(t, p, k) <= workers       for each pool
               floor <= sum_tpk k y(t, p, k) <= ceiling     for each account, over its runs

Without limits by account, and in pools that are not too large, moves and swaps of whole runs with
a bound by whole pools (choice) come within a hundredth of a per cent, and that is all. Else it is
HiGHS's. Of its columns (t, p, k) few matter. At any prices c >= 0 of the rows

    D(c) = c limits + sum_t max_pk (G(t, p, k) - c k)

is an upper bound, and no division with a column that falls short of its run's maximum by r is
worth more than D(c) - r. The linear relaxation gives good prices; HiGHS then solves the program
over the columns with the least r. The greater of its own bound and D(c) less the next r proves
the gap; what HiGHS calls a whole number is one within 1e-6. Where it finds nothing in its time,
greedy moves from the rounded relaxation do, and the plan says so. Among equals it is as HiGHS
leaves it.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import csc_array

from planner.allocator import Infeasible
from planner.choice import ENOUGH, SHAKES, Choice
from planner.kernels import ILLEGAL, Floats, Ints
from planner.objective import Plan, Problem, Proof, Share, gains

GAP = 1e-3  # that is good enough, relative to the plan's gain; HiGHS aims at half of it
COLUMNS = (4_000, 8_000)  # tried one after the other, each for half of the time
PRICING_ROUNDS = 40
GREEDY_MOVES = 10_000
OPERATIONS_PER_SECOND = 5e8  # of the compiled search, on a slow core


def solve_program(problem: Problem, time_limit_seconds: float) -> Plan:
    """Raises Infeasible where floors do not fit."""
    program = _Program(problem)
    prices, rounded, useful = program.relax()
    losses, values, bound = program.losses(prices)
    best = program.improve(rounded, np.union1d(useful, _least(losses, COLUMNS[0])))
    proof, proven = Proof.GREEDY, bound
    if best is not None and not problem.accounts and time_limit_seconds > 0:
        best, proven = program.choose(best, losses, values, bound, time_limit_seconds)
        if program.gap(best, proven) <= GAP:
            return program.plan(best, Proof.BOUND, proven)
    for columns in COLUMNS:
        near = _least(losses, columns)
        left_out = bound - losses[near].max() if near.size < losses.size else -np.inf
        kept = near if best is None else np.union1d(near, best)
        found, found_bound = program.integers(kept, time_limit_seconds / len(COLUMNS))
        if found is None:
            continue
        proof, proven = Proof.BOUND, min(proven, max(found_bound, left_out))
        if best is None or program.gap(found, proven) < program.gap(best, proven):
            best = found
        if program.gap(best, proven) <= GAP:
            break
    if best is None:
        raise Infeasible("floor: no division was found in time that keeps floors and ceilings")
    return program.plan(best, proof, proven)


def _least(losses: Floats, columns: int) -> Ints:
    """Where the losses are least, so many columns or a few more."""
    columns = min(columns, losses.size)
    return np.flatnonzero(losses <= np.partition(losses, columns - 1)[columns - 1])


class _Program:
    """Columns by run, pool and size; rows `use` @ y <= `limit`, and one column for each run."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.names = problem, list(problem.pools)
        parts = [self._of_pool(p, name) for p, name in enumerate(self.names)]
        run, pool, size, gain = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.lexsort((size, pool, run))
        self.run, self.pool, self.size = (
            part[order].astype(np.int64) for part in (run, pool, size)
        )
        self.gain: Floats = gain[order]
        self.scale = (
            max(1.0, float(np.abs(gain).max(initial=0.0))) / 100
        )  # HiGHS likes small numbers
        self.one_each = csc_array((np.ones(run.size), (self.run, np.arange(run.size))))
        self.use, self.limit = self._limits()

    def _of_pool(self, p: int, name: str) -> tuple[Ints, Ints, Ints, Floats]:
        members = [i for i, claim in enumerate(self.problem.claims) if name in claim.throughput]
        claims = [self.problem.claims[i] for i in members]
        worth = gains(self.problem, claims, name)
        legal = worth.table != ILLEGAL
        away = np.array([claim.pool != name for claim in claims], np.bool_)
        legal[away, 0] = False  # nothing is nothing: one column
        row, size = (part.astype(np.int64) for part in np.nonzero(legal))
        run = np.array(members, np.int64)[row]
        gain = np.asarray(worth.table[row, size] * worth.unit, np.float64)
        return run, np.full_like(run, p), size, gain

    def _limits(self) -> tuple[csc_array, Floats]:
        rows = [np.where(self.pool == p, self.size, 0) for p in range(len(self.names))]
        limit = [pool.workers for pool in self.problem.pools.values()]
        for name, limits in self.problem.accounts.items():
            members = np.array([claim.account == name for claim in self.problem.claims])[self.run]
            if limits.ceiling is not None:
                rows.append(np.where(members, self.size, 0))
                limit.append(limits.ceiling)
            if limits.floor and members.any():
                rows.append(np.where(members, -self.size, 0))
                limit.append(-limits.floor)
        return csc_array(np.array(rows, np.float64)), np.array(limit, np.float64)

    def relax(self) -> tuple[Floats, Ints, Ints]:
        """Without integrality: the rows' prices, each run's most used column, all that were used.

        Columns are added while they pay. Each run's least and greatest size in each pool are there
        from the start, so that what those cannot do none can.
        """
        group = np.flatnonzero(np.diff(self.run * len(self.names) + self.pool, prepend=-1))
        inside = np.zeros(self.run.size, np.bool_)
        inside[group] = inside[np.append(group[1:], self.run.size) - 1] = True
        for _ in range(PRICING_ROUNDS):
            kept = np.flatnonzero(inside)
            answer = self._linear(kept)
            prices = np.maximum(0.0, -answer.ineqlin.marginals) * self.scale
            value = self.gain - prices @ self.use
            best = np.maximum.reduceat(value, group)
            better = value >= np.repeat(best, np.diff(group, append=self.run.size))
            if inside[better].all():
                break
            inside |= better
        order = np.lexsort((-answer.x, self.run[kept]))
        return prices, kept[order[np.flatnonzero(np.diff(self.run[kept][order], prepend=-1))]], kept

    def _linear(self, kept: Ints) -> OptimizeResult:
        answer = linprog(
            -self.gain[kept] / self.scale,
            A_ub=self.use[:, kept], b_ub=self.limit,
            A_eq=self.one_each[:, kept], b_eq=np.ones(len(self.problem.claims)),
        )  # fmt: skip
        if answer.status != 0:
            raise Infeasible("floor: those of runs and accounts do not fit into pools and ceilings")
        return answer

    def losses(self, prices: Floats) -> tuple[Floats, Floats, float]:
        """How far each column falls short of its run's best at these prices, what that best is
        worth, and the bound D."""
        value = self.gain - prices @ self.use
        best = np.full(len(self.problem.claims), -np.inf)
        np.maximum.at(best, self.run, value)
        return best[self.run] - value, best, float(prices @ self.limit + best.sum())

    def integers(self, kept: Ints, time_limit_seconds: float) -> tuple[Ints | None, float]:
        """Each run's column in the best division that uses only `kept`, and its upper bound."""
        answer = milp(
            -self.gain[kept] / self.scale,
            constraints=[
                LinearConstraint(self.use[:, kept], ub=self.limit),
                LinearConstraint(self.one_each[:, kept], 1, 1),
            ],
            integrality=np.ones(kept.size),
            bounds=Bounds(0, 1),
            options={"time_limit": time_limit_seconds, "mip_rel_gap": GAP / 2},
        )
        if answer.x is None:
            return None, np.inf
        chosen = kept[answer.x > 0.5]
        if chosen.size != len(self.problem.claims) or self._excess(self._used(chosen)) > 0:
            return None, np.inf
        return chosen, -answer.mip_dual_bound * self.scale

    def improve(self, chosen: Ints, kept: Ints) -> Ints | None:
        """Changes one run's column at a time: back within the limits first, then for gain."""
        for _ in range(GREEDY_MOVES):
            better = self._move(chosen, kept)
            if better is None:
                break
            chosen[self.run[better]] = better
        return None if self._excess(self._used(chosen)) > 0 else chosen

    def _move(self, chosen: Ints, kept: Ints) -> int | None:
        """The one change that helps most, or None."""
        present, used = chosen[self.run[kept]], self._used(chosen)
        after = used + (self.use[:, kept] - self.use[:, present]).toarray().T
        relief = self._excess(used) - self._excess(after)
        change = self.gain[kept] - self.gain[present]
        if self._excess(used) > 0:
            worth = np.where(relief > 0, change / np.maximum(relief, 1), -np.inf)
        else:
            worth = np.where((relief == 0) & (change > 0), change, -np.inf)
        best = int(worth.argmax())
        return int(kept[best]) if worth[best] > -np.inf else None

    def _used(self, chosen: Ints) -> Floats:
        return np.asarray(self.use[:, chosen].sum(axis=1), np.float64)

    def _excess(self, used: Floats) -> Floats:
        """By how many workers in all the limits are broken."""
        return np.asarray(np.maximum(0.0, used - self.limit).sum(axis=-1), np.float64)

    def choose(
        self, chosen: Ints, losses: Floats, values: Floats, bound: float, time_limit_seconds: float
    ) -> tuple[Ints, float]:
        """A division that is as good or better, and a bound that is as low or lower."""
        choice = Choice(self.problem, self.run, self.pool, self.size, self.gain)
        operations = OPERATIONS_PER_SECOND * time_limit_seconds / 3
        chosen = self._better(chosen, choice, 0, operations)
        known = float(self.gain[chosen].sum())
        bound = choice.bound(losses, values, bound, known, operations)
        if self.gap(chosen, bound) > ENOUGH:
            chosen = self._better(chosen, choice, SHAKES, operations)
        return chosen, max(bound, float(self.gain[chosen].sum()))

    def _better(self, chosen: Ints, choice: Choice, shakes: int, operations: float) -> Ints:
        pools, sizes = choice.divided(choice.improved(self.pool[chosen], shakes, operations))
        columns = self.run, self.pool, self.size
        key, wanted = (
            np.ravel_multi_index(of, [int(column.max()) + 1 for column in columns])
            for of in (columns, (np.arange(pools.size), pools, sizes))
        )
        found = np.searchsorted(key, wanted)
        return found if self.gain[found].sum() > self.gain[chosen].sum() else chosen

    def gap(self, chosen: Ints, bound: float) -> float:
        gain = float(self.gain[chosen].sum())
        return max(0.0, bound - gain) / max(abs(gain), self.scale)

    def plan(self, chosen: Ints, proof: Proof, bound: float) -> Plan:
        columns = zip(self.pool[chosen], self.size[chosen], strict=True)
        shares = tuple(Share(self.names[pool], int(size)) for pool, size in columns)
        return Plan(shares, float(self.gain[chosen].sum()), proof, self.gap(chosen, bound))
