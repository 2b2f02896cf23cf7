"""The ranks of this node as processes: start, notice the end at once, stop, prove gone.

Each rank leads a session of its own. When one ends its whole group is killed before anything else:
its children hold its sockets, and peers wait for as long as those are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unicrond.agent import processes
from unicrond.errors import Refused
from unicrond.model.run import Slot

PROOF_SECONDS = 10.0
_SCAN_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Launch:
    generation: int
    slot: Slot
    command: Sequence[str]
    environment: Mapping[str, str]
    output: Path


@dataclass(frozen=True, slots=True)
class RankExit:
    """`stopped`: we had told it to end. `signal` 0 when it exited by itself."""

    launch: Launch
    exit_code: int
    signal: int
    stopped: bool
    noticed: float  # monotonic


@dataclass(frozen=True, slots=True)
class Forked:
    """A child that a standby process made; it waits for a byte in `gate`, a pipe, and goes when
    that is closed without one."""

    pid: int
    gate: int

    def wait(self) -> int:
        """As subprocess.Popen has it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


NONE_FORKED: Mapping[str, Forked] = {}


class Ranks:
    def __init__(self, marker: str, on_exit: Callable[[RankExit], None]) -> None:
        self._marker = marker
        self._on_exit = on_exit
        self._running: dict[int, tuple[Launch, subprocess.Popen[bytes] | Forked]] = {}
        self._stopping: set[int] = set()
        self._sessions: dict[int, int] = {}  # session -> generation, until proved gone
        self._ended = asyncio.Event()
        self.not_ours: set[int] = set()  # children that somebody else waits for

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    @property
    def launches(self) -> list[Launch]:
        """Of ranks that run and were not told to end. Other threads may ask."""
        running = tuple(self._running.items())
        return [launch for pid, (launch, _) in running if pid not in self._stopping]

    @property
    def by_pid(self) -> dict[int, Launch]:
        running = self._running.items()
        return {pid: launch for pid, (launch, _) in running if pid not in self._stopping}

    @property
    def pids(self) -> list[int]:
        return [pid for pid in self._running if pid not in self._stopping]

    def files(self) -> list[Path]:
        return [launch.output for launch in self.launches]

    def that_writes(self, name: str) -> Launch | None:
        return next((launch for launch in self.launches if launch.output.name == name), None)

    @property
    def running(self) -> dict[str, Slot]:
        return {launch.slot.member: launch.slot for launch in self.launches}

    def keep(self, slots: Iterable[Slot], generation: int) -> None:
        """These members go over into a new generation: what becomes of them counts for it."""
        places = {slot.member: slot for slot in slots}
        for pid, (launch, process) in self._running.items():
            slot = places.get(launch.slot.member)
            if slot is not None:
                launch = replace(launch, generation=generation, slot=slot)
                self._running[pid] = launch, process
                self._sessions[pid] = generation

    def start(self, launches: Sequence[Launch], forked: Mapping[str, Forked] = NONE_FORKED) -> None:
        """All or none; raises Refused. `forked`: members that have a process, and only wait."""
        try:
            for launch in launches:
                child = forked.get(launch.slot.member)
                if child is None or not _lives(child.pid):
                    self._start(launch)
                else:
                    self._add(launch, child)
                    _open(child)
        except OSError as error:
            self.kill(launches[0].generation)
            raise Refused(f"cannot start {launch.command[0]!r}: {error}") from error
        finally:
            for child in forked.values():
                os.close(child.gate)

    def _start(self, launch: Launch) -> None:
        output = open_output(launch)
        try:
            process = subprocess.Popen(
                launch.command,
                env=dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=processes.dies_with(os.getpid()),
            )
        finally:
            os.close(output)
        self._add(launch, process)

    def _add(self, launch: Launch, process: subprocess.Popen[bytes] | Forked) -> None:
        self._running[process.pid] = (launch, process)
        self._sessions[process.pid] = launch.generation

    def reap(self) -> None:
        """Called on SIGCHLD: kill the groups of ended ranks, then tell."""
        now = time.monotonic()
        ended = [pid for pid in self._running if _has_ended(pid)]
        for pid in ended:
            processes.kill_group(pid)  # before the pid is given back by waiting for it
        for pid in ended:
            launch, process = self._running.pop(pid)
            code = process.wait()
            stopped = pid in self._stopping
            self._stopping.discard(pid)
            exit_ = RankExit(launch, 128 - code if code < 0 else code, max(0, -code), stopped, now)
            self._on_exit(exit_)
        if ended:
            self._ended.set()
        self._reap_orphans()

    def _reap_orphans(self) -> None:
        own = os.getsid(0)
        for pid in processes.children():
            if pid in self._running or pid in self.not_ours:
                continue
            stat = processes.stat_of(pid)
            if stat and stat.state == "Z" and stat.session != own:
                os.waitpid(pid, os.WNOHANG)

    def kill(self, up_to: int, spared: Collection[str] = ()) -> None:
        """All but the members that are spared."""
        self._signal(up_to, signal.SIGKILL, spared)

    def _signal(self, up_to: int, number: int, spared: Collection[str] = ()) -> None:
        for pid, (launch, _) in self._running.items():
            if launch.generation <= up_to and launch.slot.member not in spared:
                self._stopping.add(pid)
                processes.kill_group(pid, number)

    async def stop(self, up_to: int, grace_seconds: float) -> str:
        """Ends all ranks of generations up to and including this one. Returns "" once they are
        proved gone, or who is left."""
        self._signal(up_to, signal.SIGTERM)
        self._signal(up_to, signal.SIGCONT)  # a stopped rank takes no signal before
        await self._wait_ended(up_to, grace_seconds)
        self.kill(up_to)
        await self._wait_ended(up_to, PROOF_SECONDS)
        return await self._prove_gone(up_to)

    async def _wait_ended(self, up_to: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(launch.generation <= up_to for launch, _ in self._running.values()):
            self._ended.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._ended.wait(), min(left, 0.5))
            except asyncio.TimeoutError:
                self.reap()  # a SIGCHLD may have been merged with another

    async def _prove_gone(self, up_to: int) -> str:
        deadline = time.monotonic() + PROOF_SECONDS
        while True:
            sessions = dict(self._sessions)
            found = await asyncio.to_thread(processes.strays, self._marker, sessions)
            newer = {ln.slot.member for ln in self.launches if ln.generation > up_to}
            left = [s.pid for s in found if s.generation <= up_to and s.member not in newer]
            if not left:
                self._forget_sessions(up_to)
                return ""
            if time.monotonic() > deadline:
                return f"processes {left[:5]} survive SIGKILL"
            for pid in left:
                processes.kill(pid)
            await asyncio.sleep(_SCAN_SECONDS)

    def _forget_sessions(self, up_to: int) -> None:
        for session, generation in list(self._sessions.items()):
            if generation <= up_to:
                del self._sessions[session]


def open_output(launch: Launch) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(launch.output, flags, 0o644)


def _open(child: Forked) -> None:
    with contextlib.suppress(BrokenPipeError):  # it has just ended, and will be noticed
        os.write(child.gate, b"g")


def _lives(pid: int) -> bool:
    """A child of ours that nobody has waited for."""
    try:
        return not _has_ended(pid)
    except ChildProcessError:
        return False


def _has_ended(pid: int) -> bool:
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, flags) is not None
