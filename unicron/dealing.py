"""Who computes which micro-batches of a train step, and what counts after a failure. Pure.

Every rank computes these from the same input, so nobody has to be asked. A micro-batch counts once:
in each bucket of gradients it is either in a sum that is complete, or in the local sums of exactly
one member, or it is dealt to one.

    members past the optimizer step      the others copy their state, and go on with them
    else, a bucket complete on one       it is handed on; nothing of it is computed again
    all other buckets                    local sums are kept; what the lost had is dealt anew
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = -1


@dataclass(frozen=True)
class Standing:
    """What a member brings into a new generation. As made: no state at all."""

    step: int = NOTHING  # the train step that it is in; it holds the state from before it
    met: int = NOTHING  # the newest generation in which it learned what all had
    share: tuple[int, ...] = ()  # micro-batches that are dealt to it and not yet computed
    done: tuple[int, ...] = ()  # those that are in its local sums
    complete: int = 0  # a bit for each bucket whose sum over all members it has


@dataclass(frozen=True)
class Plan:
    step: int
    source: int  # the rank that hands its state on
    copiers: frozenset[int]  # who need it
    buckets: tuple[tuple[int, int], ...]  # complete ones, and the rank that hands each on
    shares: tuple[tuple[int, ...], ...]  # by rank


def deal(step: int, count: int, members: int) -> list[tuple[int, ...]]:
    """The shares of all ranks of a train step of `count` micro-batches. Who has one more than
    others changes from step to step."""
    return [tuple(range((rank - step) % members, count, members)) for rank in range(members)]


def reconcile(standings: Sequence[Standing], count: int, buckets: int) -> Plan | None:
    """How the members go on; None when nobody holds state.

    Only the line of the newest meeting counts: who was not there may hold what others have computed
    again since.
    """
    met = max(one.met for one in standings)
    if met == NOTHING:
        return None
    line = {rank: one for rank, one in enumerate(standings) if one.met == met}
    step = max(one.step for one in line.values())
    there = {rank: one for rank, one in line.items() if one.step == step}
    copiers = frozenset(range(len(standings))) - frozenset(there)
    complete = functools.reduce(operator.or_, (one.complete for one in there.values()))
    nothing_left = complete + 1 == 1 << buckets
    shares = _dealt(there, len(standings), 0 if nothing_left else count)
    return Plan(step, min(there), copiers, _to_hand_on(there, bool(copiers)), shares)


def _to_hand_on(there: dict[int, Standing], copiers: bool) -> tuple[tuple[int, int], ...]:
    """Each from the lowest rank that has it, unless all have it."""
    anyone, everyone = 0, 0 if copiers else ~0
    for one in there.values():
        anyone, everyone = anyone | one.complete, everyone & one.complete
    wanted = [bucket for bucket in range(anyone.bit_length()) if anyone >> bucket & 1]
    return tuple(
        (bucket, min(rank for rank, one in there.items() if one.complete >> bucket & 1))
        for bucket in wanted
        if not everyone >> bucket & 1
    )


def _dealt(there: dict[int, Standing], members: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Everyone keeps its own; the others go round to whoever has least."""
    open_ = set(range(count)).difference(*(one.done for one in there.values()))
    shares: list[list[int]] = []
    for rank in range(members):
        mine = [number for number in there[rank].share if number in open_] if rank in there else []
        open_.difference_update(mine)
        shares.append(mine)
    for number in sorted(open_):
        min(shares, key=len).append(number)
    return tuple(map(tuple, shares))
