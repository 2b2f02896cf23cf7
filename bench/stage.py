"""Real ranks without Slurm: the agent's own socket, and ranks as processes, forked from one that
has torch imported.

It plays the part of the agents and of unicrond: it decides who is kept. May touch: processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.nursery import Child, Nursery
from unicron import page
from unicrond.agent.environment import Place, rank_environment
from unicrond.agent.node import free_port, place_in
from unicrond.agent.ranksocket import RankSocket
from unicrond.model.run import Assignment, Slot

__all__ = ["ROOT", "Stage", "free_port", "stage"]
ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 60.0


class Stage:
    """One run on one machine. Members are given as (name, node)."""

    def __init__(
        self, folder: Path, command: Sequence[str], raised: Callable[[str], None] = lambda _: None
    ) -> None:
        """`raised`: a member told of its exception."""
        self._folder = folder
        self._command = command
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._assignment = Assignment(0, "o", ())
        (folder / "agent").mkdir()
        self.restored: list[str] = []  # what ranks told of where they go on from
        self._socket = RankSocket(
            folder / "agent",
            self._place_of,
            lambda g, i: None,
            lambda m, t, w: raised(m),
            lambda m, text: self.restored.append(text),
        )
        self._call(self._socket.open())
        self.ranks: dict[str, Child] = {}
        self._nursery = Nursery()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def _do(self, what: Callable[..., None], *args: Any) -> None:
        async def run() -> None:
            what(*args)

        self._call(run())

    def _place_of(self, member: str) -> tuple[Slot, int] | None:
        found = (slot for slot in self._assignment.slots if slot.member == member)
        slot = next(found, None)
        return (slot, self._assignment.world_size) if slot else None

    def begin(self, generation: int, *members: tuple[str, str]) -> None:
        """The members in rank order; who runs already is kept."""
        locals_: dict[str, int] = {}
        slots = []
        for rank, (name, node) in enumerate(members):
            slots.append(Slot(rank, name, node, locals_.get(node, 0)))
            locals_[node] = locals_.get(node, 0) + 1
        self._assignment = Assignment(generation, f"o{generation}", tuple(slots))
        place = Place(7, "t", "127.0.0.1", free_port(), str(self._socket.path))
        kept = {
            s.member: place_in(self._assignment, s, place) for s in slots if self.runs(s.member)
        }
        self._do(self._socket.begin, generation, kept)
        for slot in slots:
            if slot.member not in kept:
                self._start(slot, place)

    def runs(self, member: str) -> bool:
        return member in self.ranks and self.ranks[member].poll() is None

    def _start(self, slot: Slot, place: Place) -> None:
        base = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
        environment = rank_environment(base, self._assignment, slot, place)
        environment["UNICRON_ARENA"] = str(self.arena(slot.node))
        environment[page.VARIABLE] = str(self._folder / f"page-{slot.member}")
        page.make(Path(environment[page.VARIABLE]))
        self.ranks[slot.member] = self._nursery.start(
            self._command, environment, self.output(slot.member)
        )

    def arena(self, node: str) -> Path:
        return self._folder / f"arena-{node}"

    def output(self, member: str) -> Path:
        return self._folder / f"{member}.out"

    def stay(self) -> None:
        self._do(self._socket.stay, self._assignment.generation)

    def kill(self, member: str, number: signal.Signals = signal.SIGKILL) -> None:
        self.ranks[member].send_signal(number)
        if number is signal.SIGKILL:
            self.ranks[member].wait(10)

    def lines(self, member: str) -> list[dict[str, Any]]:
        text = self.output(member).read_text()
        lines = text.splitlines()
        return [json.loads(line) for line in lines if line[:1] == "{" and line[-1:] == "}"]

    def until(self, what: Callable[[], Any], why: str) -> Any:
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            if found := what():
                return found
            time.sleep(0.01)
        said = "\n".join(f"{name}: {self.output(name).read_text()[-2000:]}" for name in self.ranks)
        raise AssertionError(f"{why}: not within {LIMIT_SECONDS:g} s\n{said}")

    def close(self) -> None:
        self._nursery.close()
        self._do(self._socket.close)
        self._call(asyncio.sleep(0.05))  # for connections to be closed
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def stage(
    folder: Path, *command: str, raised: Callable[[str], None] = lambda _: None
) -> Iterator[Stage]:
    made = Stage(folder, command, raised)
    try:
        yield made
    finally:
        made.close()
