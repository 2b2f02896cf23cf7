"""What ranks tell from inside: progress, losses, exceptions, stacks; and what their silence means.

Each rank writes its page (unicron/page.py); this reads them at every tick, which costs no system
call of the rank. An iteration that takes too long is looked at more closely and told to unicrond;
so is a loss that is none. How fast each rank is goes with the beats: unicrond compares.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from detectors.iterations import Judgement, Watch
from detectors.loss import LossWatch, Odd
from detectors.pace import Pacer
from unicron import imported, page
from unicrond.link.frames import Body
from unicrond.model.incident import SignalKind
from unicrond.model.run import Slot

log = logging.getLogger(__name__)
STACK_SIGNAL = signal.SIGRTMIN + 8  # as in unicron/watch.py
TELL_EVERY_SECONDS = 1.0
PACES_SECONDS = 3.0  # told again for so long: a beat may be lost
IN_FLIGHT_SECONDS = 2.0  # for an exception in flight to be caught, or to end its rank
STACK_BYTES = 16 * 1024
UNWATCHED_SECONDS = 120.0
LIBRARIES = ("/lib/python", "/site-packages/", "/dist-packages/", '"<frozen ')  # not the script's
ENDED = ("", "Z", "X")  # no hang: its exit status tells more, to whoever waits for it
NANO = 1e-9


@dataclass(slots=True)
class _Rank:
    slot: Slot
    path: Path
    watch: Watch = field(default_factory=Watch)
    before: int = 0  # iterations complete when its present generation began
    taken: int = 0  # number of the last one that was learned from
    pacer: Pacer = field(default_factory=Pacer)
    losses: LossWatch = field(default_factory=LossWatch)
    told_at: float = 0.0
    asked_at: float = 0.0  # for a stack
    started_at: float = field(default_factory=time.monotonic)
    unwatched: bool = False  # it has been said
    in_flight: tuple[float, str, int] | None = None  # when, traceback, iterations then
    flops: float = 0.0  # of a train step, once it has counted them in this generation


class Inside:
    """`tell` sends a signal of one rank; `folder` is this agent's own."""

    def __init__(self, folder: Path, home: str, tell: Callable[[SignalKind, Body], None]) -> None:
        self._folder = folder
        self._hook = Path(home, "lib/unicron/hook") if home else None
        self._tell = tell
        self._ranks: dict[str, _Rank] = {}
        self._generation = 0
        self._pages = itertools.count()

    def begin(self, generation: int, kept: Iterable[Slot]) -> None:
        """Forgets the ranks of the generation before, but for those that are kept."""
        before, self._ranks = self._ranks, {}
        for slot in kept:
            rank = before.pop(slot.member, None)
            if rank is not None:
                self._ranks[slot.member] = _gone_over(rank, slot)
        for rank in before.values():
            rank.path.unlink(missing_ok=True)
            stacks_of(rank.path).unlink(missing_ok=True)
            asked_of(rank.path).unlink(missing_ok=True)
            Path(f"{rank.path}{imported.SUFFIX}").unlink(missing_ok=True)
        self._generation = generation

    def environment(self, slot: Slot, base: Mapping[str, str]) -> dict[str, str]:
        """What a new rank needs to be watched; makes its page."""
        path = self._folder / f"page-{next(self._pages)}-{slot.local_rank}"
        try:
            page.make(path)
        except OSError as error:
            log.warning("rank %d is not watched from inside: %s", slot.rank, error)
            return {}
        self._ranks[slot.member] = _Rank(slot, path)
        found = {page.VARIABLE: str(path)}
        if self._hook is not None and self._hook.is_dir():
            rest = base.get("PYTHONPATH", "")
            found["PYTHONPATH"] = f"{self._hook}:{rest}" if rest else str(self._hook)
        return found

    def look(self) -> int:
        """Judges every rank; the newest train step that a script told, -1 for none."""
        newest, now = -1, time.monotonic()
        for rank in self._ranks.values():
            seen = page.read(rank.path)
            if seen is None or not seen.pid:
                _say_unwatched(rank, now)
                continue
            self._learn(rank, seen, now)
            rank.flops = seen.flops if seen.count > rank.before + 1 else 0.0
            seen = replace(seen, count=max(0, seen.count - rank.before))
            if seen.explicit and seen.count:
                newest = max(newest, seen.iteration)
            self._judge(rank, seen, now)
            self._settle_in_flight(rank, seen, now)
        return newest

    def paces(self) -> list[list[float | None]]:
        """Rank, window, seconds, own seconds: as a beat carries them."""
        since = time.monotonic() - PACES_SECONDS
        return [
            [rank.slot.rank, pace.window, _rounded(pace.seconds), _rounded(pace.own_seconds)]
            for rank in self._ranks.values()
            for pace in rank.pacer.since(since)
        ]

    def _learn(self, rank: _Rank, seen: page.Progress, now: float) -> None:
        """From iterations that were completed since the last look."""
        if seen.count < rank.taken:  # another process of the rank has taken the page over
            rank.taken = 0
        laps = seen.laps(rank.taken)
        for lap in laps:
            rank.taken = lap.number
            if lap.number > rank.before:
                rank.pacer.add(now, lap.number - rank.before, lap.seconds, lap.waited_seconds)
            odd = None if lap.loss is None else rank.losses.take(lap.number, lap.loss)
            if odd is not None:
                self._tell_loss(rank, odd, seen)
        rank.watch.learn([(lap.number - rank.before, lap.seconds) for lap in laps])

    def _tell_loss(self, rank: _Rank, odd: Odd, seen: page.Progress) -> None:
        data: Body = {
            "not_a_number": odd.not_a_number,
            "iteration": seen.iteration - (seen.count - odd.number),
            "loss": repr(odd.loss),  # JSON has no NaN
            "usual": repr(odd.usual),
        }
        self._tell(SignalKind.LOSS, {**self._about(rank), "data": data})

    @property
    def counted(self) -> int:
        """Iterations complete in this generation on the rank that is furthest."""
        return max((rank.watch.iterations for rank in self._ranks.values()), default=0)

    @property
    def flops(self) -> float:
        """Of an iteration, all ranks of this node together; 0 until each has counted its own."""
        counted = [rank.flops for rank in self._ranks.values()]
        return sum(counted) if counted and all(counted) else 0.0

    # exceptions
    def exception(self, member: str, text: str, in_flight: bool) -> None:
        """One in flight may still be caught; one that reached the top has ended its rank."""
        rank = self._ranks.get(member)
        if rank is None:
            return
        if in_flight:
            rank.in_flight = (time.monotonic(), text, rank.watch.iterations)
        else:
            self._tell_exception(rank, text)

    def _settle_in_flight(self, rank: _Rank, seen: page.Progress, now: float) -> None:
        if rank.in_flight is None or now < rank.in_flight[0] + IN_FLIGHT_SECONDS:
            return
        _, text, count = rank.in_flight
        rank.in_flight = None
        if seen.count <= count and process_state(seen.pid):
            self._tell_exception(rank, text)

    def _tell_exception(self, rank: _Rank, text: str) -> None:
        self._tell(SignalKind.EXCEPTION, {**self._about(rank), "text": text})

    # hangs
    def _judge(self, rank: _Rank, seen: page.Progress, now: float) -> None:
        judgement = rank.watch.look(
            now, seen.count, seen.iteration_ns * NANO, seen.phase, seen.phase_ns * NANO
        )
        if judgement is Judgement.FINE or now < rank.told_at + TELL_EVERY_SECONDS:
            return
        rank.told_at = now
        state = process_state(seen.pid)
        if state in ENDED:
            return
        asked = rank.asked_at > rank.watch.iteration_at  # else it is of an earlier suspicion
        where = innermost(stacks_of(rank.path)) if asked else ""
        if can_show_stack(seen.pid) and state not in ("T", "t"):
            rank.asked_at = now
            _ask_for_stack(seen.pid, stacks_of(rank.path))
            _ask_for_count(asked_of(rank.path))
        collective = seen.collective()
        data: Body = {
            "process_state": state,
            "seconds": round(now - rank.watch.iteration_at, 3),
            "usual_seconds": round(rank.watch.habits.usual_seconds(seen.phase), 4),
            "overdue": judgement is Judgement.OVERDUE,
            "iterations": seen.count,
            "phase": seen.phase,
            "where": where,
            "collective": str(collective or ""),
            "collectives": collective.number if collective else 0,
            "launched": seen.launched(int(rank.watch.iteration_at / NANO)),
        }
        self._tell(SignalKind.SLOW, {**self._about(rank), "data": data})

    def _about(self, rank: _Rank) -> Body:
        slot = rank.slot
        return {"rank": slot.rank, "member": slot.member, "generation": self._generation}


def _say_unwatched(rank: _Rank, now: float) -> None:
    if not rank.unwatched and now > rank.started_at + UNWATCHED_SECONDS:
        rank.unwatched = True
        log.warning(
            "rank %d is not watched from inside: no Python in it ran the start-up hook "
            "(python -E, -I or -S, UNICRON_WATCH=0, or another language)", rank.slot.rank,
        )  # fmt: skip


def _gone_over(rank: _Rank, slot: Slot) -> _Rank:
    """The same process in a new generation: its habits stay, what it did before counts no more."""
    seen = page.read(rank.path)
    before = seen.count if seen else rank.before
    watch = Watch(habits=rank.watch.habits)
    return _Rank(slot, rank.path, watch, before, rank.taken, losses=rank.losses)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def stacks_of(path: Path) -> Path:
    """Where faulthandler of the rank with this page writes."""
    return path.with_name(path.name + ".stacks")


def asked_of(path: Path) -> Path:
    """Where the rank with this page is asked for torch's count of collectives."""
    return path.with_name(path.name + ".asked")


def process_state(pid: int) -> str:
    """/proc's letter, "" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def can_show_stack(pid: int) -> bool:
    """Whether it catches our signal: any other process would die of it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line[:7] == "SigCgt:"), "0")
    return bool(int(caught, 16) >> (STACK_SIGNAL - 1) & 1)


def _ask_for_stack(pid: int, path: Path) -> None:
    """The answer is read at the next look. The file is emptied first, so it never grows."""
    try:
        os.truncate(path, 0)
        os.kill(pid, STACK_SIGNAL)
    except OSError as error:
        log.info("no stack of process %d: %s", pid, error)


def _ask_for_count(path: Path) -> None:
    """The answer stands in the page at the next look. A rank that has no pipe tells nothing."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(pipe, b"?")
    except OSError as error:
        log.info("%s: %s", path, error)
    finally:
        os.close(pipe)


def innermost(path: Path) -> str:
    """The line that the main thread is at, `File "...", line 7 in f`, and the script's own line
    that led there."""
    try:
        with path.open(errors="replace") as file:
            text = file.read(STACK_BYTES)
    except OSError:
        return ""
    main = text.rpartition("Current thread")[2] or text
    stack = [line.strip() for line in main.splitlines() if line.strip().startswith("File ")]
    own = next((line for line in stack if not any(part in line for part in LIBRARIES)), "")
    return ", from ".join(dict.fromkeys(line for line in (*stack[:1], own) if line))
