"""The progress page: a small memory map that a rank writes, and its agent reads even when the
rank is stopped. Times are CLOCK_MONOTONIC nanoseconds, which processes of a machine share.

    offset  0  4s  magic          8  u64  sequence, odd while the rank writes
           16  u64 pid           24  i64  iteration, -1: none yet
           32  u64 iteration_ns  40  u64  phase_ns
           48  u64 joined_ns     56  i64  iterations counted since the start
           64  32s phase, "" between   96  u32  1: the script tells its iterations itself
          104  u64 collectives begun  112  u64  how many of them have returned
          120  72s the last one, and where the script called it: `all_reduce at train.py:31`
          192  u64 collectives that torch has launched in its default group, those within
               DistributedDataParallel too  200  u64 when that was asked, 0: never
          208  f64 FLOPs of one of this rank's train steps in this generation, 0: not counted
          256  the last LAPS iterations, number n at place n % LAPS:
               i64 number, u32 microseconds it took without announced phases (0: not known),
               u32 microseconds of these that it waited for its peers (WAIT_UNKNOWN),
               f64 loss, u32 1: there is a loss
What a lap waited is known, if at all, when the next one is complete. Collectives are those of the
whole world that Python calls, so all ranks number them alike; torch's own count is made when the
agent asks.

One process writes: the first, until another joins a process group or tells its iterations.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass, field
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
LAPS = 64
WAIT_UNKNOWN = _MOST = 0xFFFFFFFF
_LAP = struct.Struct("<qIIdI4x")
_LAPS_AT = 256
_LAST = struct.Struct("<QQ72s")
_LAST_AT = 104
_WHAT = 72
_RETURNED = struct.Struct("<Q")
_RETURNED_AT = 112
_WAIT = struct.Struct("<I")
_WAIT_AT = 12  # in a lap
_LAUNCHED = struct.Struct("<QQ")
_LAUNCHED_AT = 192
_FLOPS = struct.Struct("<d")
_FLOPS_AT = 208
_MOST_FLOPS = 1e24  # of one rank: three weeks of an H100
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
    raw: bytes = field(default=b"", repr=False)

    def collective(self) -> Collective | None:
        """The last one, None before the first. A rank that is stopped has left it here."""
        if len(self.raw) < _LAST_AT + _LAST.size:
            return None
        number, returned, what = _LAST.unpack_from(self.raw, _LAST_AT)
        name = what.rstrip(b"\0").decode("utf-8", "replace")
        return Collective(number, name, number > returned) if number else None

    def launched(self, since_ns: int) -> int:
        """How many collectives torch had launched when last asked, 0 if not asked since then."""
        if len(self.raw) < _LAUNCHED_AT + _LAUNCHED.size:
            return 0
        number, asked_ns = _LAUNCHED.unpack_from(self.raw, _LAUNCHED_AT)
        return int(number) if asked_ns > since_ns else 0

    @property
    def flops(self) -> float:
        """Of one train step, 0 where they were not counted."""
        if len(self.raw) < _FLOPS_AT + _FLOPS.size:
            return 0.0
        (told,) = _FLOPS.unpack_from(self.raw, _FLOPS_AT)
        return float(told) if 0 < told <= _MOST_FLOPS else 0.0

    def laps(self, after: int) -> list[Lap]:
        """The complete ones with a number above `after`, oldest first, as far as the page has them;
        the newest comes once the next one is complete."""
        numbers = range(max(after + 1, self.count - LAPS + 1, 1), self.count)
        return [lap for number in numbers if (lap := self._lap(number)) is not None]

    def _lap(self, number: int) -> Lap | None:
        place = _LAPS_AT + number % LAPS * _LAP.size
        if len(self.raw) < place + _LAP.size:
            return None
        found, micros, wait, loss, told = _LAP.unpack_from(self.raw, place)
        if found != number:
            return None
        return Lap(
            number,
            micros / 1e6,
            None if wait == WAIT_UNKNOWN else wait / 1e6,
            loss if told else None,
        )


@dataclass(frozen=True)
class Collective:
    number: int  # counted from 1, by all ranks alike
    what: str  # its name, and where it was called
    inside: bool  # it has not returned

    def __str__(self) -> str:
        return f"{'in' if self.inside else 'past'} collective {self.number}, {self.what}"


@dataclass(frozen=True)
class Lap:
    """One complete iteration."""

    number: int
    seconds: float  # 0: not known
    waited_seconds: float | None  # for its peers
    loss: float | None


class Page:
    """The rank's side. One thread writes."""

    def __init__(self, path: str) -> None:
        self.begin(path)

    def begin(self, path: str) -> None:
        """Also in a process that was forked: its own page, from the beginning."""
        with open(path, "r+b") as file:  # noqa: PTH123 - pathlib costs every Python child 2 ms
            self._map = mmap.mmap(file.fileno(), SIZE)
        self.explicit = False  # whether the script tells its iterations itself
        self._sequence = 0
        self._phase, self._phase_name = "", b""
        self._in_phases_ns = 0  # since the last iteration
        self._values = [0, -1, 0, 0, 0, 0]
        self._collectives = 0

    @property
    def owner(self) -> int:
        return int(_LAYOUT.unpack_from(self._map)[2])

    def claim(self) -> None:
        """From now on this process is the one that counts."""
        self._values[0] = os.getpid()
        self._write()

    def claim_if_free(self) -> bool:
        """Whether this process counts: it did, or whoever did is gone."""
        if not self.mine and not _lives(self.owner):
            self.claim()
        return self.mine

    @property
    def mine(self) -> bool:
        """False in whatever a rank forks, too."""
        return bool(self._values[0] == self.owner == os.getpid())

    def joined(self) -> None:
        """This process joined a process group. Of several that do, as under a launcher of the
        user's own, the first one counts."""
        if not self._taken():
            self._values[4] = time.monotonic_ns()
            self._collectives = 0
            _LAST.pack_into(self._map, _LAST_AT, 0, 0, b"")
            _FLOPS.pack_into(self._map, _FLOPS_AT, 0.0)
            self.claim()

    @property
    def joined_ns(self) -> int:
        """When this process joined its process group, 0 if it did not."""
        return self._values[4]

    def computed(self, flops: float) -> None:
        """By this rank, in one train step of this generation."""
        if self.mine:
            _FLOPS.pack_into(self._map, _FLOPS_AT, flops)

    def _taken(self) -> bool:
        """Whether another process joined before, and lives."""
        joined_ns = _LAYOUT.unpack_from(self._map)[6]
        return not self.mine and joined_ns > 0 and _lives(self.owner)

    def _may_write(self, tells: bool) -> bool:
        if self.mine:
            return True
        if tells and not self._taken():  # as good as joining a group
            self.claim()
        return self.claim_if_free()

    def begins(self, name: str, where: str) -> None:
        """A collective of the whole world is called."""
        if self.mine:
            self._collectives += 1
            number, what = self._collectives, f"{name} at {where}".encode("utf-8", "replace")
            _LAST.pack_into(self._map, _LAST_AT, number, number - 1, what[:_WHAT])

    def ends(self) -> None:
        """It has returned. One within another ends both."""
        if self.mine:
            _RETURNED.pack_into(self._map, _RETURNED_AT, self._collectives)

    def launched(self, number: int) -> None:
        """Torch's own count; from a thread beside the one that trains."""
        if self.mine:
            _LAUNCHED.pack_into(self._map, _LAUNCHED_AT, number, time.monotonic_ns())

    def iterated(self, iteration: int | None = None, loss: float | None = None) -> None:
        """One more iteration is complete; without a number, the next one."""
        if not self._may_write(tells=iteration is not None):
            return
        values, now = self._values, time.monotonic_ns()
        if self._phase:
            self._count_phase(now)
        took = now - values[2] - self._in_phases_ns if values[2] else 0
        values[1] = values[1] + 1 if iteration is None else iteration
        values[2] = now
        values[5] += 1
        self._in_phases_ns = 0
        micros = min(max(took // 1000, 0), _MOST)
        told = loss is not None
        self._write((values[5], micros, WAIT_UNKNOWN, loss if loss is not None else 0.0, told))

    def waited(self, micros: int) -> None:
        """How long the last complete iteration waited for its peers, as is known only now. It is
        one number: whoever reads it is never caught in the middle."""
        place = _LAPS_AT + self._values[5] % LAPS * _LAP.size + _WAIT_AT
        _WAIT.pack_into(self._map, place, min(max(micros, 0), _MOST - 1))

    def enter(self, phase: str) -> str:
        """Begins a phase ("" ends it); the one before."""
        if not self._may_write(tells=True):
            return ""
        now = time.monotonic_ns()
        if self._phase:
            self._count_phase(now)
        before, self._phase = self._phase, phase
        self._phase_name = phase.encode("utf-8", "replace")[:_PHASE]
        self._values[3] = now
        self._write()
        return before

    def _count_phase(self, now: int) -> None:
        self._in_phases_ns += now - max(self._values[3], self._values[2])

    def _write(self, lap: tuple[int, int, int, float, bool] | None = None) -> None:
        self._sequence += 1
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)
        _BODY.pack_into(self._map, _BODY_AT, *self._values, self._phase_name, self.explicit)
        if lap is not None:
            _LAP.pack_into(self._map, _LAPS_AT + lap[0] % LAPS * _LAP.size, *lap)
        self._sequence += 1
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return pid > 0


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
            raw = path.read_bytes()
            values = _LAYOUT.unpack(raw[: _LAYOUT.size])
            if values[1] % 2 == 0:
                return _progress(values, raw, whole=True)
    except (OSError, struct.error):
        return None
    return _progress(values, raw, whole=False)


def _progress(values: tuple[Any, ...], raw: bytes, whole: bool) -> Progress | None:
    magic, _, pid, iteration, iteration_ns, phase_ns, joined_ns, count, phase, explicit = values
    if magic != MAGIC:
        return None
    name = phase.rstrip(b"\0").decode("utf-8", "replace")
    seen = (pid, iteration, iteration_ns, phase_ns, joined_ns, count, name, bool(explicit))
    return Progress(*seen, whole, raw)


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
