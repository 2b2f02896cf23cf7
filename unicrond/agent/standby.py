"""The standby process of this node: where ranks are forked that have imported already.

Its own side is unicron/standby.py. It comes when ranks have told what they imported, lives as long
as the agent, and is given up when it proves unfit too often; then ranks start as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicron import imported, page
from unicron.standby import MESSAGE_BYTES, ROOM
from unicrond.agent import output, processes
from unicrond.agent.environment import OF_EACH_RANK, of_each_rank
from unicrond.agent.ranks import NONE_FORKED, Forked, Launch, open_output

log = logging.getLogger(__name__)
SWITCH = "UNICRON_STANDBY"  # "0" in the job's environment: none for this run
ANSWER_SECONDS = 2.0  # for a process to be forked; a plain start takes longer
WARM_SECONDS = 300.0  # for all that is imported, slowly
MOST_TRIES = 5
RETRY_SECONDS = 20.0
SPARE_BYTES = 4096  # for numbers that grow
_PYTHON = re.compile(r"python(3(\.\d+)?)?$")
_FLAGS = re.compile(r"-[bBdOPqsuvx]+$")
_WITH_VALUE = ("-W", "-X")


def why_none(program: Sequence[str]) -> str:
    """Why ranks of this program must be started plainly; empty where they can be forked: `python`
    with a script or `-m module`, maybe behind `env NAME=VALUE...`."""
    words = list(program)
    if Path(words[0]).name == "env":
        words = words[1:]
        while words and "=" in words[0] and words[0][0] != "-":
            words = words[1:]
    if not words or not _PYTHON.match(Path(words[0]).name):
        return f"{program[0]} is no Python"
    words = words[1:]
    while words and words[0][:1] == "-" and words[0][:2] != "-m":
        option = words[0]
        if not _FLAGS.match(option) and option[:2] not in _WITH_VALUE:
            return f"Python is given {option}"
        words = words[2:] if option in _WITH_VALUE else words[1:]
    return "" if words else "Python is given no script"


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    socket: socket.socket
    since: float  # monotonic
    warm: bool = False


class Standby:
    """Not there (`fork` gives nothing) until it is warm. One thread uses it at a time."""

    def __init__(
        self,
        program: Sequence[str],
        folder: Path,
        known: set[int],
        why_not: str = "",
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`folder`: this agent's own. `known`: its children that others leave alone. `why_not`: it
        is switched off."""
        self._known = known
        self._answer_seconds = answer_seconds
        self._program = program
        self._folder = folder
        self._process: _Process | None = None
        self._without: set[str] = set()
        self._tries = 0
        self._not_before = 0.0
        self._busy = False
        self._off = False
        if why := why_not or why_none(program):
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self._off = True
        log.info("no standby process, ranks are started plainly: %s", why)

    @property
    def pid(self) -> int | None:
        return self._process.popen.pid if self._process else None

    @property
    def is_warm(self) -> bool:
        return self._process is not None and self._process.warm

    def look(self, ranks: Mapping[int, Launch], now: float) -> None:
        """To be called often while the ranks run: starts it, and hears what became of it."""
        if self._busy:
            return
        process = self._process
        if process is None:
            if not self._off and now >= self._not_before:
                self._start_like(ranks, now)
        elif not process.warm:
            self._hear(process, now)
        elif process.popen.poll() is not None:
            self._end(f"it ended: {self._last_words()}")

    # ------------------------------------------------------------ its life

    def _start_like(self, ranks: Mapping[int, Launch], now: float) -> None:
        for pid, launch in ranks.items():
            path = launch.environment.get(page.VARIABLE, "")
            seen = page.read(Path(path)) if path else None
            # Its own interpreter ran the hook, so the same command will run it again.
            if seen is not None and seen.pid == pid and _has_hook(launch):
                with contextlib.suppress(FileNotFoundError):  # not told yet
                    self._start(launch, Path(path + imported.SUFFIX), now)
                    return

    def _start(self, like: Launch, told: Path, now: float) -> None:
        mine = self._folder / "standby.imported"
        shutil.copyfile(told, mine)
        self._tries += 1
        own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            page.make(self._folder / "standby.page")
            popen = self._exec(like, others.fileno())
        except OSError as error:
            own.close()
            self._give_up(str(error))
            return
        finally:
            others.close()
        self._process = _Process(popen, own, now)
        self._known.add(popen.pid)
        body = {
            "imported": str(mine),
            "of_a_rank": sorted(OF_EACH_RANK),
            "without": sorted(self._without),
            "agent": os.getpid(),
        }
        own.settimeout(ANSWER_SECONDS)
        with contextlib.suppress(OSError):  # it has ended already, as will be noticed
            own.send(json.dumps(body).encode())

    def _exec(self, like: Launch, descriptor: int) -> subprocess.Popen[bytes]:
        of_rank = of_each_rank(like.environment)
        room = sum(len(f"{name}={value}") + 1 for name, value in of_rank.items()) + SPARE_BYTES
        shared = {n: v for n, v in like.environment.items() if n not in of_rank}
        mine = {page.VARIABLE: str(self._folder / "standby.page")}
        mine[ROOM] = f"{descriptor} {'-' * room}"
        with (self._folder / "standby.log").open("wb") as log_file:
            return subprocess.Popen(
                self._program,
                env={**mine, **shared},
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                pass_fds=[descriptor],
                preexec_fn=processes.dies_with(os.getpid()),
            )

    def _hear(self, process: _Process, now: float) -> None:
        try:
            body = _received(process.socket, 0.0)
        except BlockingIOError:
            if now > process.since + WARM_SECONDS:
                self._end(f"it was not ready within {WARM_SECONDS:g} s")
            return
        if "warm" in body:
            process.warm = True
            took = now - process.since
            log.info("standby process %d is warm after %.1f s", process.popen.pid, took)
        elif "unfit" in body:
            package = str(body["unfit"])
            self._without.add(package)
            self._end(f"{package} {body.get('why')}", package == "torch")
        else:
            self._end(f"it ended: {self._last_words()}")

    def _last_words(self) -> str:
        return output.tail(self._folder / "standby.log")[-1000:] or "without a word"

    def _end(self, why: str, for_good: bool = False) -> None:
        """Another one follows, a few times."""
        self.close()
        self._not_before = time.monotonic() + RETRY_SECONDS
        if for_good or self._tries >= MOST_TRIES:
            self._give_up(why)
        else:
            log.info("the standby process is given up, another will follow: %s", why)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.socket.close()
            processes.kill_group(process.popen.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # a disk holds it: it goes later
                process.popen.wait(ANSWER_SECONDS)
                self._known.discard(process.popen.pid)

    # ------------------------------------------------------------ forking

    async def fork(self, launches: Sequence[Launch]) -> Mapping[str, Forked]:
        """By member; those that are missing are to be started plainly. Whoever takes them closes
        their gates."""
        process = self._process
        if process is None or not process.warm or not launches:
            return NONE_FORKED
        self._busy = True
        try:
            return await asyncio.to_thread(self._fork_all, process, launches)
        finally:
            self._busy = False

    def _fork_all(self, process: _Process, launches: Sequence[Launch]) -> dict[str, Forked]:
        forked: dict[str, Forked] = {}
        for launch in launches:
            if page.VARIABLE not in launch.environment:
                continue
            try:
                forked[launch.slot.member] = _fork(process.socket, launch, self._answer_seconds)
            except (OSError, ValueError) as error:
                self._end(f"it did not fork rank {launch.slot.rank}: {error}")
                break
        log.info("%d of %d ranks are forked by the standby process", len(forked), len(launches))
        return forked


def discard(forked: Mapping[str, Forked]) -> None:
    """They go without having run anything."""
    for child in forked.values():
        os.close(child.gate)


def _fork(standby: socket.socket, launch: Launch, seconds: float) -> Forked:
    """Raises OSError, ValueError."""
    body = json.dumps({"variables": of_each_rank(launch.environment)}).encode()
    target = open_output(launch)
    reading, gate = os.pipe()
    try:
        socket.send_fds(standby, [body], [target, reading])
        answer = _received(standby, seconds)
        if not isinstance(answer.get("pid"), int):
            raise ValueError(answer.get("refused") or "no answer")
    except BaseException:
        os.close(gate)
        raise
    finally:
        os.close(target)
        os.close(reading)
    return Forked(answer["pid"], gate)


def _received(standby: socket.socket, seconds: float) -> dict[str, Any]:
    """Empty when it has ended, or is not what we know; raises TimeoutError, BlockingIOError."""
    standby.settimeout(seconds)
    try:
        body = json.loads(standby.recv(MESSAGE_BYTES))
    except (ConnectionError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _has_hook(launch: Launch) -> bool:
    first = launch.environment.get("PYTHONPATH", "").partition(":")[0]
    return Path(first, "sitecustomize.py").is_file()
