"""What an agent has to tell unicrond and unicrond has not stored yet. Pure; bounded.

Each entry has a sequence number that rises by one. When the spool is full something goes: first
the newest repeat of a signal (the first of a kind is what tells the cause), then the oldest signal,
then the oldest of all. `dropped` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.link.frames import Body

LIMIT_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    seq: int
    kind: str  # the message's type
    fields: Body
    at: float  # monotonic, when it was told

    def body(self, now: float) -> Body:
        """As it is sent: an age grows while it waits."""
        body = self.fields | {"type": self.kind, "seq": self.seq}
        if "age" in body:
            body["age"] = round(body["age"] + now - self.at, 3)
        return body

    @property
    def sort(self) -> tuple[object, ...]:
        """Entries of one sort repeat each other."""
        fields = self.fields
        return fields.get("kind"), fields.get("generation"), fields.get("rank")


class Spool:
    def __init__(self, limit: int = LIMIT_ENTRIES) -> None:
        self._limit = limit
        self._entries: list[Entry] = []
        self._next = 1
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, kind: str, fields: Body, now: float) -> Entry:
        entry = Entry(self._next, kind, fields, now)
        self._next += 1
        self._entries.append(entry)
        if len(self._entries) > self._limit:
            del self._entries[self._least_wanted()]
            self.dropped += 1
        return entry

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` is stored."""
        self._entries = [entry for entry in self._entries if entry.seq > seq]

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    def _least_wanted(self) -> int:
        seen: set[tuple[object, ...]] = set()
        repeat = oldest = None
        for index, entry in enumerate(self._entries):
            if entry.kind != "signal":
                continue
            if entry.sort in seen:
                repeat = index
            elif oldest is None:
                oldest = index
            seen.add(entry.sort)
        if repeat is not None:
            return repeat
        return oldest if oldest is not None else 0
