"""The kernel log, from where it was last read: /dev/kmsg, or a text file that grows.

A record of /dev/kmsg is `priority,number,microseconds,flags;message`, and lines of ` KEY=value`.
"""

from __future__ import annotations

import os
import re
import select
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from detectors.classification import judge
from detectors.readings import PORT_DOWN_SECONDS, Sighting
from detectors.verdict import Kind
from unicrond.agent.sensors.runner import SensorOff
from unicrond.model.incident import Severity

WAIT_SECONDS = 1.0
POLL_SECONDS = 0.05
MOST_RECORDS = 5_000  # of one look
MOST_BYTES = 4 << 20
MOST_HELD = 64  # ports, and messages of each
LONGEST_RECORD = 8 << 10  # as the kernel has it
_PCI = re.compile(r"\bPCI:([0-9A-Fa-f:.]+)|\b([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)\b")


class KernelLog:
    """`position` is where reading goes on; None: only what comes from now on."""

    name = "kernel"
    timeout_seconds = 30.0
    pause_seconds = 0.0  # `look` waits

    def __init__(
        self, path: Path, position: int | None = None, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        try:
            device = stat.S_ISCHR(path.stat().st_mode)
            kind: type[_Kmsg] | type[_Text] = _Kmsg if device else _Text
            self._log = kind(path, position, wait_seconds)
        except OSError as error:
            raise SensorOff(f"{path}: {error.strerror}") from error
        self._down: dict[str, tuple[float, list[str]]] = {}  # ports, since when, what was said

    @property
    def position(self) -> int:
        return self._log.position

    def look(self) -> Counter[Sighting]:
        messages = Counter(self._log.read())
        seen: Counter[Sighting] = Counter()
        for message, count in messages.items():
            sighting = judged(message)
            if sighting is None:
                continue
            if sighting.kind is Kind.PORT_DOWN and len(self._down) < MOST_HELD:
                self._down.setdefault(sighting.where, (time.monotonic(), [message]))
            else:
                seen[sighting] += count
        self._follow_ports(messages)
        seen.update(self._settled())
        return seen

    def _follow_ports(self, messages: Iterable[str]) -> None:
        for message in messages if self._down else ():
            _, story = self._down.get(place(message), (0.0, None))
            if story is not None and message not in story and len(story) < MOST_HELD:
                story.append(message)

    def _settled(self) -> Iterator[Sighting]:
        """A port that went down is judged with what followed: it may have come back."""
        due = time.monotonic() - PORT_DOWN_SECONDS
        for where, (since, story) in tuple(self._down.items()):
            if since <= due:
                del self._down[where]
                sighting = judged("\n".join(story))
                if sighting is not None:
                    yield sighting


@lru_cache(maxsize=1024)
def judged(message: str) -> Sighting | None:
    """None for what is no failure."""
    found = judge("dmesg", message)
    if found is None or found.verdict.severity is Severity.NONE:
        return None
    verdict = found.verdict
    return Sighting("kernel", verdict.kind, verdict.severity, place(message), message[:500])


def place(message: str) -> str:
    """The device by its address on the bus, where the message names one."""
    device = _PCI.search(message)
    return (device[1] or device[2]).rstrip(":.") if device else "node"


class _Kmsg:
    def __init__(self, path: Path, position: int | None, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.position = -1 if position is None else position
        if position is None:
            os.lseek(self._file, 0, os.SEEK_END)
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    def read(self) -> list[str]:
        self._poll.poll(self._wait_seconds * 1000)
        messages: list[str] = []
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(self._file, LONGEST_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten before we came; the next one is the oldest left
                continue
            self._take(record.decode("utf-8", "replace"), messages)
        return messages

    def _take(self, record: str, messages: list[str]) -> None:
        head, _, rest = record.partition(";")
        number = head.split(",")[1]
        if int(number) > self.position:
            self.position = int(number)
            messages.append(rest.partition("\n")[0])


class _Text:
    def __init__(self, path: Path, position: int | None, wait_seconds: float) -> None:
        self._wait_seconds = wait_seconds
        self._path = path
        size = path.stat().st_size
        self.position = size if position is None or position > size else position
        self._rest = b""

    def read(self) -> list[str]:
        deadline = time.monotonic() + self._wait_seconds
        while not (grown := self._grown()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        *lines, rest = (self._rest + grown).split(b"\n")
        self._rest = rest[-LONGEST_RECORD:]
        return [line.decode("utf-8", "replace").partition(";")[2] or line.decode("utf-8", "replace")
                for line in lines]  # fmt: skip

    def _grown(self) -> bytes:
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self.position:  # it was emptied
                self.position, self._rest = 0, b""
            file.seek(self.position)
            found = file.read(MOST_BYTES)
        self.position += len(found)
        return found
