"""The exact best division of one pool under limits by account: recurrence over runs, then accounts.

    S_a(j) = max sum of G(i, x_i) over the runs of account a with sum x_i = j
    maximise   sum_a S_a(j_a)   subject to   sum_a j_a <= n,   floor_a <= j_a <= ceiling_a

Within an account and then among accounts it is the same recurrence, over all sizes, so it holds
for any shape. First the pool is divided without the limits: where that keeps them nothing can be
better. Else it takes O((runs + accounts) n^2) steps. Among equal sums: fewest runs moved, then
fewest workers moved; then account by account in the order of their first runs, then run by run,
each takes as many workers as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner import kernels
from planner.allocator import LIMIT, Division, Infeasible, Packing, divide
from planner.kernels import ILLEGAL, UNREACHABLE, Ints
from planner.objective import Limits
from unicrond.errors import BadInput

EVERYTHING = UNREACHABLE // 2  # whatever can be reached loses less
FREE = Limits()


def divide_within(
    gains: Ints,
    held: Sequence[int],
    workers: int,
    accounts: Sequence[str],
    limits: Mapping[str, Limits],
) -> Division:
    """As `divide`; `accounts[i]` is whose limits run i counts towards, if it is in `limits`. Those
    of an account without runs count nothing."""
    free = divide(gains, held, workers)
    used = Counter[str]()
    for account, size in zip(accounts, free.sizes, strict=True):
        used[account] += size
    if all(limits[name].allow(count) for name, count in used.items() if name in limits):
        return free
    members = dict[str, list[int]]()
    for i, account in enumerate(accounts):
        members.setdefault(account if account in limits else "", []).append(i)
    rows = _rows(gains, held, workers)
    parts = {name: _Part([rows[i] for i in mine], workers) for name, mine in members.items()}
    whole = _Part([part.within(limits.get(n, FREE), n) for n, part in parts.items()], workers, True)
    sizes = [0] * len(held)
    for (name, mine), share in zip(members.items(), whole.trace(workers), strict=True):
        for i, size in zip(mine, parts[name].trace(share), strict=True):
            sizes[i] = size
    return Division(tuple(sizes), sum(int(gains[i, k]) for i, k in enumerate(sizes)))


@dataclass(frozen=True, slots=True)
class _Row:
    """What one may have, rising, and what each loses: less its key, which is less than zero."""

    sizes: Ints
    losses: Ints


def _rows(gains: Ints, held: Sequence[int], workers: int) -> list[_Row]:
    pack, rows, total = Packing.of(len(held), workers, sum(held)), list[_Row](), 0
    for row, has in zip(gains, held, strict=True):
        sizes = np.flatnonzero(row[: workers + 1] != ILLEGAL).astype(np.int64)
        total += max(map(abs, (int(row[sizes].min()), int(row[sizes].max()))))
        if total * pack.unit > LIMIT:
            most = LIMIT // pack.unit
            raise BadInput(f"gains: too large to be exact; in a unit that keeps sums within {most}")
        moved = abs(sizes - has)
        rows.append(_Row(sizes, (moved > 0) * pack.move + moved - row[sizes] * pack.unit))
    return rows


class _Part:
    """The least losses of some rows together, by the workers that they have in all."""

    def __init__(self, rows: Sequence[_Row], workers: int, some_unused: bool = False) -> None:
        self._sizes = np.concatenate([row.sizes for row in rows])
        self._losses = np.concatenate([row.losses for row in rows])
        self._start = np.cumsum([0, *(row.sizes.size for row in rows)])
        least = np.cumsum([0, *(row.sizes[0] for row in reversed(rows))])[::-1]
        most = np.cumsum([some_unused * workers, *(row.sizes[-1] for row in reversed(rows))])[::-1]
        if least[0] > workers:
            raise Infeasible(f"floor: {least[0]} workers are needed at least, {workers} are there")
        self._low, self._high = least.copy(), np.minimum(most, workers)
        self._offset = np.concatenate(([0], np.cumsum(self._high - self._low + 1)))
        self._table = np.empty(self._offset[-1], np.int64)
        kernels.least_losses(
            self._start, self._sizes, self._losses, 0, EVERYTHING,
            self._low, self._high, self._offset, self._table,
        )  # fmt: skip

    def within(self, limits: Limits, name: str) -> _Row:
        sizes = np.arange(self._low[0], self._high[0] + 1)
        losses = self._table[: sizes.size]
        most = sizes[-1] if limits.ceiling is None else limits.ceiling
        kept = (losses != UNREACHABLE) & (sizes >= limits.floor) & (sizes <= most)
        if not kept.any():
            raise Infeasible(
                f"accounts: {name}: its runs can have no number of workers from its floor, "
                f"{limits.floor}, to its ceiling, {most}"
            )
        return _Row(sizes[kept], losses[kept])

    def trace(self, workers: int) -> list[int]:
        """What each row has where all have so many."""
        if self._table[workers - self._low[0]] == UNREACHABLE:
            raise Infeasible(
                f"accounts: their floors and ceilings do not fit into {workers} workers"
            )
        low, offset = self._low.copy(), self._offset.copy()
        low[0], offset[0] = workers, workers - self._low[0]
        chosen = np.empty(low.size - 1, np.int64)
        kernels.trace(
            self._start, self._sizes, self._losses,
            low, self._high, offset, self._table, chosen,
        )  # fmt: skip
        return [int(size) for size in self._sizes[chosen]]
