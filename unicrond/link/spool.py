"""What an agent has to tell unicrond and unicrond has not stored yet. Pure; bounded.

Each entry has a sequence number that rises by one. When the spool is full something goes: first
the newest repeat of a signal (the first of a kind is what tells the cause), then the oldest signal,
then the oldest of all. `dropped` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.link.frames import Body

LIMIT_ENTRIES = 1000
LIMIT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    seq: int
    kind: str  # the message's type
    fields: Body
    at: float  # monotonic, when it was told
    size_bytes: int

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
    def __init__(self, limit: int = LIMIT_ENTRIES, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit, self._limit_bytes = limit, limit_bytes
        self._entries: list[Entry] = []
        self._bytes = 0
        self._next = 1
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, kind: str, fields: Body, now: float, size_bytes: int) -> int:
        """The entry's number. A full spool may drop what was just added."""
        seq = self._next
        self._next += 1
        self._entries.append(Entry(seq, kind, fields, now, size_bytes))
        self._bytes += size_bytes
        while len(self._entries) > self._limit or self._bytes > self._limit_bytes:
            self._bytes -= self._entries.pop(self._least_wanted()).size_bytes
            self.dropped += 1
        return seq

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` is stored."""
        self._entries = list(self.after(seq))
        self._bytes = sum(entry.size_bytes for entry in self._entries)

    def after(self, seq: int) -> tuple[Entry, ...]:
        """The entries with higher numbers, in order."""
        return tuple(entry for entry in self._entries if entry.seq > seq)

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
