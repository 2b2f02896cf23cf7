"""What unicrond remembers of each agent process across its connections, so that everything told
arrives once and is acknowledged once stored. Pure; bounded by forgetting who was gone longest."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from unicrond.link.handshake import Identity

UNSTORED_LIMIT = 4096  # of one agent


@dataclass(slots=True)
class Memory:
    """`taken` is the highest number that was taken; those of `unstored` are not stored yet."""

    taken: int = 0
    unstored: set[int] = field(default_factory=set)
    finished: bool = False  # it said that its run is over
    dropped: int = 0  # by its spool, as last told

    @property
    def acked(self) -> int:
        return min(self.unstored) - 1 if self.unstored else self.taken

    @property
    def full(self) -> bool:
        return len(self.unstored) > UNSTORED_LIMIT

    def take(self, seq: int) -> None:
        self.taken = seq
        self.unstored.add(seq)

    def give_back(self, seq: int, before: int) -> None:
        """It could not be taken after all; `before` was the highest then."""
        self.taken = before
        self.unstored.discard(seq)

    def stored(self, seq: int) -> None:
        self.unstored.discard(seq)


class Memories:
    """Looked up when an agent connects, kept anew when it leaves."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of: OrderedDict[Identity, Memory] = OrderedDict()

    def of(self, who: Identity) -> Memory:
        return self._of.get(who) or self.keep(who, Memory())

    def keep(self, who: Identity, memory: Memory) -> Memory:
        self._of[who] = memory
        self._of.move_to_end(who)
        if len(self._of) > self._limit:
            self._of.popitem(last=False)
        return memory
