"""What ranks print while they live: words of failure, told before anything follows from them.

A rank writes into its own file and waits for nobody; this reads behind it, every half second.

up to 2 MB/s of a rank    each line passes the prefilter of detectors/, or is passed over
above                     a few literals are looked for, and the last lines pass the prefilter
What is found is judged with the lines around it, once these had time to come, and so often at
most that it costs nothing to speak of. Where reading falls behind, the oldest is left out; the last
lines of a rank that ends go with its exit, whatever was read here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detectors.classification import PREFILTER, judge
from detectors.readings import Printed, Sighting
from detectors.rules import Finding
from detectors.verdict import Tier

LITERALS = (b"rror", b"RROR", b"atal", b"FATAL", b"ailed", b"imeout")  # the rarest letters are fast
OVERLAP_BYTES = 16  # a literal may lie across two chunks
PAUSE_SECONDS = 0.5
FULL_BYTES = 1 << 20  # of one rank since the last look: 2 MB/s
FULL_BYTES_OF_ALL = 2 << 20  # with as many ranks as there may be
ROUND_BYTES = 32 << 20  # of all ranks, at one look
CHUNK_BYTES = 256 << 10
LINES_BYTES = 16 << 10  # that are looked through line by line; a longer line is cut
LAST_BYTES = 16 << 10
BEFORE_BYTES, AFTER_BYTES = 2 << 10, 6 << 10  # around what was found
SETTLE_SECONDS = 0.5  # for the rest of a traceback to come
JUDGED_AT_ONCE = 10  # of one rank
JUDGE_EVERY_SECONDS = 5.0  # after these


@dataclass(slots=True)
class _Rank:
    path: Path
    size: int = 0  # at the last look
    position: int = 0  # up to which it was searched
    found: tuple[int, float] | None = None  # where, and when to judge it
    credit: float = JUDGED_AT_ONCE
    credited_at: float = 0.0

    def pay(self, now: float) -> bool:
        gained = (now - self.credited_at) / JUDGE_EVERY_SECONDS
        self.credit = min(JUDGED_AT_ONCE, self.credit + gained)
        self.credited_at = now
        if self.credit < 1:
            return False
        self.credit -= 1
        return True


class PrintedLines:
    """`files` of the ranks that live."""

    name = "output"
    timeout_seconds = 30.0
    pause_seconds = PAUSE_SECONDS

    def __init__(
        self, files: Callable[[], Iterable[Path]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = files
        self._clock = clock
        self._ranks: dict[Path, _Rank] = {}

    def look(self) -> Iterator[Sighting]:
        before, self._ranks = self._ranks, {}
        for path in self._files():
            self._ranks[path] = before.get(path) or _Rank(path, credited_at=self._clock())
        share = ROUND_BYTES // max(1, len(self._ranks))
        full = FULL_BYTES_OF_ALL
        for rank in self._ranks.values():
            try:
                size = rank.path.stat().st_size
                if rank.found is None and rank.position >= size >= rank.size:
                    continue
                with rank.path.open("rb", buffering=0) as file:
                    yield from self._judged(rank, file.fileno())
                    if rank.found is None:
                        full -= self._search(rank, file.fileno(), size, share, full)
            except OSError:
                continue  # not there yet, or not to be read now

    def _search(self, rank: _Rank, file: int, size: int, share: int, full: int) -> int:
        """Up to the first thing found; how many bytes were read line by line."""
        rank.position = max(rank.position if size >= rank.size else 0, size - share)
        silent, rank.size = size == rank.size, size
        behind = size - rank.position
        if behind <= min(FULL_BYTES, full):
            self._found(rank, _first_line(file, rank, size, silent))
            return behind
        self._found(rank, _first_literal(file, rank, size))
        if rank.found is None:
            rank.position = max(rank.position, size - LAST_BYTES)
            self._found(rank, _first_line(file, rank, size, silent))
        return 0

    def _found(self, rank: _Rank, at: int | None) -> None:
        if at is not None:
            rank.found = at, self._clock() + SETTLE_SECONDS

    def _judged(self, rank: _Rank, file: int) -> Iterator[Printed]:
        now = self._clock()
        if rank.found is None or now < rank.found[1] or not rank.pay(now):
            return
        at, rank.found = rank.found[0], None
        start = max(0, at - BEFORE_BYTES)
        data = os.pread(file, at + AFTER_BYTES - start, start)
        rank.position = start + len(data)
        finding = judge("stderr", _text(data, found=at - start if start else 0))
        if finding is not None and _worth_telling(finding):
            said = finding.verdict
            where, words = rank.path.name, said.evidence
            yield Printed("output", said.kind, said.severity, where, words, said.blame)


def _first_line(file: int, rank: _Rank, size: int, silent: bool) -> int | None:
    """Where a line stands that may tell of a failure. Redrawn bars are lines too; the last line
    waits for its end, or for its rank to fall silent."""
    while rank.position < size:
        data = os.pread(file, min(LINES_BYTES, size - rank.position), rank.position)
        last = len(data) < LINES_BYTES or rank.position + len(data) >= size
        data = data.replace(b"\r", b"\n")
        if not (last and silent):
            data = data[: data.rfind(b"\n") + 1] or (b"" if last else data)
        at = rank.position
        for line in data.split(b"\n") if PREFILTER.holds(data.decode(errors="replace")) else ():
            if PREFILTER.passes(line.decode(errors="replace")):
                return at + _place_in(line)
            at += len(line) + 1
        rank.position += len(data)
        if last:
            return None
    return None


def _place_in(line: bytes) -> int:
    """Of what makes it pass: a long one is more than what is judged."""
    for at in range(0, len(line), BEFORE_BYTES):
        piece = line[at : at + BEFORE_BYTES + OVERLAP_BYTES]
        if PREFILTER.passes(piece.decode(errors="replace")):
            return at
    return 0


def _first_literal(file: int, rank: _Rank, size: int) -> int | None:
    while rank.position < size:
        data = os.pread(file, min(CHUNK_BYTES, size - rank.position), rank.position)
        found = [at for at in map(data.find, LITERALS) if at >= 0]
        if found:
            return rank.position + min(found)
        if rank.position + len(data) >= size or len(data) <= OVERLAP_BYTES:
            return None
        rank.position += len(data) - OVERLAP_BYTES
    return None


def _text(data: bytes, found: int) -> str:
    """Without the half line that it begins with, unless something was found in that one."""
    lines = data.replace(b"\r", b"\n")
    return lines[lines.find(b"\n", 0, found) + 1 :].decode(errors="replace")


def _worth_telling(finding: Finding) -> bool:
    """Guesses, and words that somebody died, say nothing that the end of the rank does not."""
    guessed = finding.verdict.rule.startswith("guess.")
    return finding.verdict.is_failure and finding.tier > Tier.SUMMARY and not guessed
