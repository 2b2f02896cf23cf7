"""The progress page: a small memory map that a rank writes, and its agent reads even when the
rank is stopped. Times are CLOCK_MONOTONIC nanoseconds, which processes of a machine share.

    offset  0  4s  magic          8  u64  sequence, odd while the rank writes
           16  u64 pid           24  i64  iteration, -1: none yet
           32  u64 iteration_ns  40  u64  phase_ns
           48  u64 joined_ns     56  i64  iterations counted since the start
           64  32s phase, "" between   96  u32  1: the script tells its iterations itself
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "UNICRON_PAGE"  # names the file
SIZE = 4096
MAGIC = b"UNI1"
_PHASE = 32
_LAYOUT = struct.Struct("<4sxxxxQQqQQQq32sI")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 8
_BODY = struct.Struct("<QqQQQq32sI")
_BODY_AT = 16
_TRIES = 5


@dataclass(frozen=True)
class Progress:
    """What a page says. `whole` is false when the rank was caught while writing, and stays so."""

    pid: int
    iteration: int
    iteration_ns: int
    phase_ns: int
    joined_ns: int
    count: int
    phase: str
    explicit: bool  # `iteration` is the script's own train step, not a count since its start
    whole: bool = True


class Page:
    """The rank's side. One thread writes."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 - pathlib costs every Python child 2 ms
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.explicit = False  # whether the script tells its iterations itself
        self._sequence = 0
        self._phase = ""
        self._values = [0, -1, 0, 0, 0, 0]

    @property
    def owner(self) -> int:
        return int(_LAYOUT.unpack_from(self._map)[2])

    def claim(self) -> None:
        """From now on this process is the one that counts."""
        self._values[0] = os.getpid()
        self._write()

    def joined(self) -> None:
        """This process joined a process group."""
        self._values[4] = time.monotonic_ns()
        self.claim()

    def iterated(self, iteration: int | None = None) -> None:
        """One more iteration is complete; without a number, the next one."""
        values = self._values
        values[1] = values[1] + 1 if iteration is None else iteration
        values[2] = time.monotonic_ns()
        values[5] += 1
        self._write()

    def enter(self, phase: str) -> str:
        """Begins a phase ("" ends it); the one before."""
        before, self._phase = self._phase, phase
        self._values[3] = time.monotonic_ns()
        self._write()
        return before

    def _write(self) -> None:
        self._sequence += 1
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)
        name = self._phase.encode("utf-8", "replace")[:_PHASE]
        _BODY.pack_into(self._map, _BODY_AT, *self._values, name, self.explicit)
        self._sequence += 1
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)


def make(path: Path) -> None:
    """The agent's side: an empty page, readable by its user only."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, _LAYOUT.pack(MAGIC, 0, 0, -1, 0, 0, 0, 0, b"", 0).ljust(SIZE, b"\0"))
    finally:
        os.close(descriptor)


def read(path: Path) -> Progress | None:
    """None when there is no page. It is the rank's file: nothing in it is believed to be sane."""
    try:
        for _ in range(_TRIES):
            values = _LAYOUT.unpack(path.read_bytes()[: _LAYOUT.size])
            if values[1] % 2 == 0:
                return _progress(values, whole=True)
    except (OSError, struct.error):
        return None
    return _progress(values, whole=False)


def _progress(values: tuple[Any, ...], whole: bool) -> Progress | None:
    magic, _, pid, iteration, iteration_ns, phase_ns, joined_ns, count, phase, explicit = values
    if magic != MAGIC:
        return None
    name = phase.rstrip(b"\0").decode("utf-8", "replace")
    return Progress(
        pid, iteration, iteration_ns, phase_ns, joined_ns, count, name, bool(explicit), whole
    )


_mine: Page | None = None
_looked = False


def of_this_process() -> Page | None:
    """The page of the rank that this process is part of; None outside a run."""
    global _mine, _looked
    if not _looked:
        _looked = True
        path = os.environ.get(VARIABLE, "")
        try:
            _mine = Page(path) if path else None
        except (OSError, ValueError):
            _mine = None  # the agent went away: training goes on unwatched
    return _mine
