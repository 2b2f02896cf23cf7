"""The passes over whole tables, compiled. What the allocator's compute, and why: allocator.py.

Gains are int64, a row for each run, a column for each number of workers; ILLEGAL marks what may
not be chosen. Most of a row is read once only: later its `tops` stand for it, the best gain of
each BLOCK of columns. Losses are int64 too; UNREACHABLE is greater than any of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.compiled import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ILLEGAL = -(2**63)
UNREACHABLE = 2**62
BLOCK = 64


@compiled
def magnitude(table: Floats) -> float:
    """The sum over rows of the largest absolute entry, NaN aside."""
    total = 0.0
    for i in range(table.shape[0]):
        largest = 0.0
        for value in table[i]:
            if abs(value) > largest:
                largest = abs(value)
        total += largest
    return total


@compiled
def whole(table: Floats, unit: float) -> Ints:
    """The table in whole units, ILLEGAL where it is NaN."""
    rounded = np.full(table.shape, ILLEGAL, np.int64)
    for i in range(table.shape[0]):
        for k in range(table.shape[1]):
            if not np.isnan(table[i, k]):
                rounded[i, k] = np.int64(np.rint(table[i, k] / unit))
    return rounded


@compiled
def _key(gain: int, size: int, held: int, unit: int, move: int) -> int:
    """Gain, runs moved and workers moved as one number: more is better."""
    if size == held:
        return gain * unit
    return gain * unit - move - abs(size - held)


@compiled
def summarise(gains: Ints, columns: int, tops: Ints, first: Ints, largest: Ints) -> None:
    """Each row's best gain by block, first legal size (or -1), and largest magnitude."""
    for i in range(gains.shape[0]):
        row, first[i] = gains[i], -1
        highest, lowest = ILLEGAL, 0
        for b in range(tops.shape[1]):
            top = ILLEGAL
            for k in range(b * BLOCK, min((b + 1) * BLOCK, columns)):
                top = max(top, row[k])
                lowest = min(lowest, row[k] if row[k] > ILLEGAL else 0)
            tops[i, b], highest = top, max(highest, top)
            if top > ILLEGAL and first[i] < 0:
                first[i] = b * BLOCK
        while first[i] >= 0 and row[first[i]] == ILLEGAL:
            first[i] += 1
        largest[i] = max(highest, -lowest)


@compiled
def respond(
    gains: Ints, tops: Ints, held: Ints, unit: int, move: int, price: int,
    first: Ints, least: Ints, most: Ints, choice: Ints, profit: Ints,
) -> None:  # fmt: skip
    """What each run would take, between `least` and `most`, were workers beyond `first` to cost.

    `choice` is the smallest of the best sizes, `profit` its key less its cost.
    """
    for i in range(gains.shape[0]):
        row, best, size = gains[i], ILLEGAL, 0
        promising, bound = -1, ILLEGAL
        for b in range(least[i] // BLOCK, most[i] // BLOCK + 1):
            cost = price * (max(b * BLOCK, least[i]) - first[i])
            if tops[i, b] > ILLEGAL and tops[i, b] * unit - cost > bound:
                promising, bound = b, tops[i, b] * unit - cost
        for b in range(least[i] // BLOCK - 1, most[i] // BLOCK + 1):
            b = promising if b < least[i] // BLOCK else b  # first the one that promises most
            begin = max(b * BLOCK, least[i])
            if tops[i, b] == ILLEGAL or tops[i, b] * unit - price * (begin - first[i]) < best:
                continue
            for k in range(begin, min((b + 1) * BLOCK, most[i] + 1)):
                if row[k] == ILLEGAL:
                    continue
                value = _key(row[k], k, held[i], unit, move) - price * (k - first[i])
                if value > best or (value == best and k < size):
                    best, size = value, k
        choice[i], profit[i] = size, best


@compiled
def survivors(
    gains: Ints, tops: Ints, held: Ints, unit: int, move: int,
    price: int, first: Ints, last: Ints, profit: Ints, allowed: int,
    start: Ints, sizes: Ints, losses: Ints,
) -> int:  # fmt: skip
    """The sizes that lose at most `allowed` at that price; run i's are start[i] to start[i + 1].

    Sizes beaten by a smaller one of the same run are left out. Returns how many there are, of which
    only as many as `sizes` holds are written.
    """
    found = 0
    for i in range(gains.shape[0]):
        row, start[i], highest = gains[i], found, ILLEGAL
        for b in range(first[i] // BLOCK, last[i] // BLOCK + 1):
            begin = max(b * BLOCK, first[i])
            cost = price * (begin - first[i])
            if tops[i, b] == ILLEGAL or profit[i] - tops[i, b] * unit + cost > allowed:
                continue
            for k in range(begin, min((b + 1) * BLOCK, last[i] + 1)):
                if row[k] == ILLEGAL:
                    continue
                key = _key(row[k], k, held[i], unit, move)
                loss = profit[i] - key + price * (k - first[i])
                if loss > allowed or key < highest:
                    continue
                highest = key
                if found < sizes.size:
                    sizes[found], losses[found] = k, loss
                found += 1
    start[gains.shape[0]] = found
    return found


@compiled
def least_losses(
    start: Ints, extra: Ints, losses: Ints, price: int, allowed: int,
    low: Ints, high: Ints, offset: Ints, table: Ints,
) -> None:  # fmt: skip
    """The least loss at which runs i, i + 1, … take j workers: table[offset[i] + j - low[i]].

    Past the last run only unused workers are left, at `price` each. Only low[i] <= j <= high[i] can
    lead to a whole division; what loses more than `allowed` is UNREACHABLE.
    """
    last = low.size - 1
    for j in range(low[last], high[last] + 1):
        table[offset[last] + j - low[last]] = price * j
    for i in range(last - 1, -1, -1):
        here = table[offset[i] : offset[i + 1]]
        rest = table[offset[i + 1] : offset[i + 1] + high[i + 1] - low[i + 1] + 1]
        here[:] = UNREACHABLE
        for s in range(start[i], start[i + 1]):
            shift = low[i + 1] + extra[s] - low[i]
            loss = losses[s]
            for j in range(max(0, -shift), min(rest.size, here.size - shift)):
                here[j + shift] = min(here[j + shift], rest[j] + loss)
        for j in range(here.size):
            if here[j] > allowed:
                here[j] = UNREACHABLE


@compiled
def trace(
    start: Ints, extra: Ints, losses: Ints,
    low: Ints, high: Ints, offset: Ints, table: Ints, chosen: Ints,
) -> None:  # fmt: skip
    """The entry that each run takes where least is lost; among equals the first run takes most."""
    left = low[0]
    for i in range(low.size - 1):
        want = table[offset[i] + left - low[i]]
        for s in range(start[i + 1] - 1, start[i] - 1, -1):
            j = left - extra[s]
            if j < low[i + 1] or j > high[i + 1]:
                continue
            if table[offset[i + 1] + j - low[i + 1]] + losses[s] == want:
                chosen[i], left = s, j
                break
