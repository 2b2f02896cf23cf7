"""Which slot ranks write next, so that one train step is always safe. Pure.

A train step is *whole* when every rank has finished its part of it, and *safe* when each part also
lies on as many other nodes as wanted. Ranks tell each other what lies in their slots, and each
draws the same conclusion:

    slot                                   may be written
    empty, or of a train step that a       yes: it never becomes whole
      rank does not have
    older than the newest safe one         yes
    the newest safe one                    no: it is what a lost node is restored from
    newer, whole, not safe yet             no: it is on its way to other nodes

When one rank has no slot to write, none writes: the train step is passed over, nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SLOTS = 3
NOTHING = -1
_NO_SLOT = -2


@dataclass(frozen=True)
class Row:
    """Of one rank: the train step that is whole in each of its slots, and which of them are
    safe."""

    slots: tuple[int, ...]
    safe: tuple[int, ...]


@dataclass(frozen=True)
class Agreed:
    """The same on all ranks. `go`: each has a slot to write."""

    safe: int
    whole: frozenset[int]
    go: bool


def agree(rows: Sequence[Row]) -> Agreed:
    whole = frozenset.intersection(*(frozenset(row.slots) for row in rows)) - {NOTHING}
    both = whole.intersection(*(row.safe for row in rows))
    agreed = Agreed(max(both, default=NOTHING), whole, True)
    return Agreed(agreed.safe, whole, all(to_write(row.slots, agreed) is not None for row in rows))


def to_write(slots: Sequence[int], agreed: Agreed) -> int | None:
    """The number of the slot; None: there is none."""
    free = [
        number
        for number, step in enumerate(slots)
        if step == NOTHING or step < agreed.safe or step not in agreed.whole
    ]
    return min(free, key=slots.__getitem__, default=None)


def packed(row: Row) -> list[int]:
    """2 x SLOTS numbers."""
    padding = SLOTS - len(row.slots), SLOTS - len(row.safe)
    return [*row.slots, *[_NO_SLOT] * padding[0], *row.safe, *[_NO_SLOT] * padding[1]]


def unpacked(numbers: Sequence[int]) -> Row:
    have, safe = numbers[:SLOTS], numbers[SLOTS:]
    return Row(
        tuple(step for step in have if step != _NO_SLOT),
        tuple(step for step in safe if step != _NO_SLOT),
    )
