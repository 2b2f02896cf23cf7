"""The passes of choice.py, compiled: gains in FLOP as floats, -inf where they may not be had."""

from __future__ import annotations

import numpy as np

from planner.compiled import compiled
from planner.kernels import Floats, Ints

LEAST = 1e-9  # of the whole gain: less is no gain
MOMENTUM = 0.3
PATIENCE = 10  # descents without progress before steps get shorter
SHORTER = 0.7


@compiled
def _with(before: Floats, row: Floats, after: Floats) -> None:
    """The best of the same runs and one more, by workers that they may use together."""
    for j in range(before.size):
        after[j] = -np.inf
    for k in range(before.size):
        if row[k] > -np.inf:
            for j in range(k, before.size):
                after[j] = max(after[j], before[j - k] + row[k])


@compiled
def _joined(table: Floats, row: Floats, room: int) -> float:
    """The best of the same runs and one more in a pool of `room`."""
    best = -np.inf
    for k in range(room + 1):
        best = max(best, table[room - k] + row[k])
    return best


@compiled
def _tables(worth: Floats, room: Ints, where: Ints, all_: Floats, without: Floats) -> None:
    """By pool the best of its runs, and by run the best of its pool's others."""
    pools, runs, wide = worth.shape
    before, after = np.empty((runs + 1, wide)), np.empty((runs + 1, wide))
    for p in range(pools):
        mine = np.flatnonzero(where == p)
        n, count = room[p] + 1, mine.size
        before[0, :n] = 0.0
        for i in range(count):
            _with(before[i, :n], worth[p, mine[i], :n], before[i + 1, :n])
        after[count, :n] = 0.0
        for i in range(count - 1, -1, -1):
            _with(after[i + 1, :n], worth[p, mine[i], :n], after[i, :n])
        all_[p, :n] = before[count, :n]
        for i in range(count):
            _with(before[i, :n], after[i + 1, :n], without[mine[i], :n])


@compiled
def improve(worth: Floats, room: Ints, where: Ints, steps: int) -> tuple[float, int]:
    """Changes `where` by the move or swap that gains most, at most so many times; the gain, or -inf
    where it could not be known any more, and the steps taken."""
    pools, runs, wide = worth.shape
    all_, without = np.empty((pools, wide)), np.empty((runs, wide))
    total = -np.inf
    for taken in range(steps):
        _tables(worth, room, where, all_, without)
        total = 0.0
        for p in range(pools):
            total += all_[p, room[p]]
        best, first, second, to = LEAST * abs(total), -1, -1, -1
        for t in range(runs):
            p = where[t]
            left = without[t, room[p]] - all_[p, room[p]]
            for q in range(pools):
                if q == p or worth[q, t].max() == -np.inf:
                    continue
                more = left + _joined(all_[q], worth[q, t], room[q]) - all_[q, room[q]]
                if more > best:
                    best, first, second, to = more, t, -1, q
            for u in range(t):
                q = where[u]
                if q == p:
                    continue
                more = _joined(without[t], worth[p, u], room[p]) - all_[p, room[p]]
                more += _joined(without[u], worth[q, t], room[q]) - all_[q, room[q]]
                if more > best:
                    best, first, second, to = more, t, u, q
        if first < 0:
            return total, taken + 1
        if second >= 0:
            where[second] = where[first]
        where[first] = to
    return -np.inf, max(steps, 0)


@compiled
def _fill(
    run: Ints, pool: Ints, size: Ints, gain: Floats, worth: Floats, room: Ints, count: Ints
) -> float:
    """The sum over pools of the best that fits at those worths of runs; counts who is chosen."""
    total, at, wide = 0.0, 0, room.max() + 1
    best, more = np.empty(wide), np.empty(wide)
    taken, members = np.empty((count.size, wide), np.int64), np.empty(count.size, np.int64)
    for p in range(room.size):
        n, rows = room[p] + 1, 0
        best[:n] = 0.0
        while at < run.size and pool[at] == p:
            t = run[at]
            more[:n], taken[rows, :n], members[rows] = best[:n], 0, t
            while at < run.size and pool[at] == p and run[at] == t:
                k, value = size[at], gain[at] - worth[t]
                at += 1
                if value <= 0:
                    continue
                for j in range(k, n):
                    if best[j - k] + value > more[j]:
                        more[j], taken[rows, j] = best[j - k] + value, k
            best[:n] = more[:n]
            rows += 1
        total += best[n - 1]
        left = n - 1
        for row in range(rows - 1, -1, -1):
            if taken[row, left] > 0:
                count[members[row]] += 1
                left -= taken[row, left]
    return total


@compiled
def descend(
    run: Ints, pool: Ints, size: Ints, gain: Floats, nothing: Floats, room: Ints,
    worth: Floats, descents: int, known: float, enough: float,
) -> float:  # fmt: skip
    """The least D that was found, from `worth` on; down to `enough` at most."""
    lowest, step, waited = np.inf, 1.0, 0
    best, way, count = worth.copy(), np.zeros(worth.size), np.empty(worth.size, np.int64)
    for _ in range(descents):
        count[:] = 0
        bound = worth.sum() + _fill(run, pool, size, gain, worth, room, count)
        for t in range(worth.size):
            if nothing[t] > worth[t]:
                bound += nothing[t] - worth[t]
                count[t] += 1
        waited = 0 if bound < lowest - 1e-6 * abs(lowest) else waited + 1
        if bound < lowest:
            lowest, best[:] = bound, worth
        if lowest <= enough:
            break
        if waited >= PATIENCE:
            step, waited, worth[:] = step * SHORTER, 0, best
        way[:] = (1 - MOMENTUM) * (1 - count) + MOMENTUM * way
        length = (way * way).sum()
        if length == 0:
            break
        worth -= step * (bound - known) / length * way
    return lowest
