"""Output of ranks: each writes straight into its own file; this makes the marked copy.

A rank never waits for the copy, and nothing of its own file is ever lost. The copy, in the job's
usual output file, is made by reading the ranks' files in a thread; where it falls behind it leaves
bytes out and says how many.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

POLL_SECONDS = 0.2
CHUNK_BYTES = 256 << 10
BEHIND_BYTES = 4 << 20  # of one rank: beyond it bytes are left out
TAIL_BYTES = 16 << 10
TAIL_LINES = 50
MOST_SAID = 1000
_LOCK_SECONDS = 2.0
_WITHOUT_LOCK_SECONDS = 60.0


def rank_file(folder: Path, generation: int, rank: int) -> Path:
    return folder / f"g{generation}-rank{rank}.log"


def tail(path: Path) -> str:
    """The last lines, for the report of a rank's end."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        return f"(output not readable: {error})"
    return "\n".join(lines[-TAIL_LINES:])


class _Source:
    def __init__(self, rank: int, path: Path) -> None:
        self.rank = rank
        self.path = path
        self.position = 0
        self.partial = b""
        self.retired = False

    def take(self, final: bool) -> bytes:
        """New lines, marked; empty when there are none."""
        size = self.path.stat().st_size
        if size == self.position and not (final and self.partial):
            return b""
        note = b""
        if size - self.position > BEHIND_BYTES:
            left_out = size - CHUNK_BYTES - self.position
            self.position += left_out
            self.partial = b""
            note = b"(%d bytes left out here; %s has all)\n" % (left_out, bytes(self.path))
        with self.path.open("rb") as file:
            file.seek(self.position)
            data = file.read(CHUNK_BYTES)
        self.position += len(data)
        return self._marked(note, self.partial + data, final)

    def _marked(self, note: bytes, data: bytes, final: bool) -> bytes:
        lines = data.split(b"\n")
        self.partial = lines.pop()
        if self.partial and (final or len(self.partial) > CHUNK_BYTES):
            lines.append(self.partial)
            self.partial = b""
        mark = b"[%d] " % self.rank
        text = b"".join(mark + line + b"\n" for line in lines)
        return mark + note + text if note else text


class OutputCopy(threading.Thread):
    """Copies into `target`; None: there is no usual output file that can be written."""

    def __init__(self, target: Path | None) -> None:
        super().__init__(name="output", daemon=True)
        self._target = target
        self._sources: list[_Source] = []
        self._mutex = threading.Lock()
        self._last_round = threading.Event()
        self._lock_after = 0.0
        self._said: list[bytes] = []

    def follow(self, files: list[tuple[int, Path]]) -> None:
        """These ranks' files from now on; others are read to their end and forgotten. A file that
        was followed already goes on where it was read to, under its new rank."""
        with self._mutex:
            ranks = {path: rank for rank, path in files}
            for source in self._sources:
                source.rank = ranks.get(source.path, source.rank)
                source.retired = ranks.pop(source.path, None) is None
            self._sources += [_Source(rank, path) for path, rank in ranks.items()]

    def say(self, text: str) -> None:
        """A line of the agent's own."""
        with self._mutex:
            if len(self._said) < MOST_SAID:
                self._said.append(f"[unicron] {text}\n".encode())

    def finish(self, timeout_seconds: float) -> None:
        self._last_round.set()
        if self.is_alive():
            self.join(timeout_seconds)

    def run(self) -> None:
        last = False
        while not last:
            last = self._last_round.wait(POLL_SECONDS)
            self._copy_all(last)

    def _copy_all(self, last: bool) -> None:
        with self._mutex:
            sources = list(self._sources)
            said, self._said = self._said, []
        for source in sources:
            moved = self._copy(source, last)
            while last and moved:
                moved = self._copy(source, last)
            if source.retired and not moved:
                self._forget(source)
        self._try_to_append(b"".join(said))

    def _forget(self, source: _Source) -> None:
        with self._mutex:
            self._sources.remove(source)

    def _copy(self, source: _Source, last: bool) -> bool:
        try:
            data = source.take(final=last or source.retired)
        except OSError:
            return False  # not there yet
        self._try_to_append(data)
        return bool(data)

    def _try_to_append(self, data: bytes) -> None:
        if data and self._target:
            try:
                self._append(self._target, data)
            except OSError:
                return  # disk full or the like: the ranks' own files have it

    def _append(self, path: Path, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        target = os.open(path, flags, 0o644)
        try:
            self._lock(target)
            os.write(target, data)
        finally:
            os.close(target)

    def _lock(self, target: int) -> None:
        """On NFS appends of several nodes overwrite each other unless they take turns."""
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() >= self._lock_after:
            try:
                fcntl.lockf(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline:
                    self._lock_after = time.monotonic() + _WITHOUT_LOCK_SECONDS
            time.sleep(0.02)
