"""Copies of this node's ranks, kept on other nodes too: so a node may be lost with its memory.

Looks at what ranks have finished in their slots, hands it to the keepers that agent/ring.py names,
oldest train step first, and tells the ranks what is there (unicron/replicated.py). Training never
waits: ranks pass a train step over when all slots are on their way. A keeper that does not take
what is due for STUCK_SECONDS is told, and ranks go on as if there were no other nodes.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unicron import arena, replicated
from unicron.arena import Head
from unicron.errors import NoRoom
from unicron.replicated import Told
from unicrond.errors import ProtocolError
from unicrond.link import bulk
from unicrond.link.bulk import Offer, Pace

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
TELL_SECONDS = 1.0
STUCK_SECONDS = 15.0
STOP_SECONDS = 1.0
AGAIN_SECONDS = 1.0  # after one that was not taken
OWN = re.compile(r"part-(\d{1,6})\.\d")
NO_OTHER = "there is no other node of the run"


@dataclass(frozen=True)
class Peer:
    """An agent that keeps what it is given at this address. `agent` never repeats."""

    node: str
    agent: str
    address: str
    port: int


@dataclass(frozen=True)
class Aim:
    """`wanted`: how many nodes; `peers`: those of them that can be reached."""

    generation: int = 0
    wanted: int = 0
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Due:
    """A rank's slot, as it is now."""

    rank: str
    file: str
    path: Path
    head: Head


@dataclass
class _Stand:
    """`there`: what each keeper has, by agent and file."""

    there: dict[tuple[str, str], Head] = field(default_factory=dict)
    moved_at: float = 0.0
    trouble: str = ""


class Replicas:
    """A thread. `say` gets a sentence for the run's output."""

    def __init__(
        self, folder: Path, node: str, secret: bytes, pace: Pace, signed: bool,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.aim = Aim()  # set from outside
        self._folder, self._node, self._secret = folder, node, secret
        self._pace, self._signed, self._say = pace, signed, say
        self._over = threading.Event()
        self._stand = _Stand()
        self._generation = 0
        self._told, self._told_at = Told(), 0.0
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="unicron-replicas", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is on its way ends by itself, and tells nobody any more."""
        self._over.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self._round(self.aim)
            except OSError as error:
                log.warning("copies for other nodes: %s", error)

    def _round(self, aim: Aim) -> None:
        stand, home = self._stand, newest_set(self._folder)
        slots = in_slots(self._folder, home)
        known = {(peer.agent, one.file) for peer in aim.peers for one in slots}
        stand.there = {mark: head for mark, head in stand.there.items() if mark in known}
        missing = [(peer, self._missing(peer, slots)) for peer in aim.peers]
        complete = len(aim.peers) == aim.wanted and not any(due for _, due in missing)
        if complete or not slots or aim.generation != self._generation:
            stand.moved_at, stand.trouble = time.monotonic(), ""
        self._generation = aim.generation
        self._tell(self._standing(aim, home, slots))
        for peer, due in missing:
            if due:
                self._hand_over(aim, peer, due[0])
                self._tell(self._standing(aim, home, slots))

    def _missing(self, peer: Peer, slots: Sequence[Due]) -> list[Due]:
        return [one for one in slots if self._stand.there.get((peer.agent, one.file)) != one.head]

    def _standing(self, aim: Aim, home: str, slots: Sequence[Due]) -> Told:
        if not aim.wanted:
            return Told(off=NO_OTHER)
        off, stand = "", self._stand
        if time.monotonic() - stand.moved_at > STUCK_SECONDS:
            off = stand.trouble or "an agent that should keep them is not heard"
        safe: dict[str, list[int]] = {}
        for one in slots:
            there = [stand.there.get((peer.agent, one.file)) == one.head for peer in aim.peers]
            if all(there) and len(there) == aim.wanted:
                safe.setdefault(one.rank, []).append(one.head.step)
        return Told(aim.wanted, off, home, safe)

    def _hand_over(self, aim: Aim, peer: Peer, one: Due) -> None:
        offer = Offer(aim.generation, self._node, one.file, one.head, self._signed)
        begun, before = time.monotonic(), self._stand.moved_at
        try:
            answer = bulk.hand_over(
                (peer.address, peer.port), self._secret, offer, one.path, self._sent
            )
        except (OSError, ProtocolError) as error:
            answer = bulk.Answer(bulk.REFUSED, str(error))
        if answer.word == bulk.REFUSED:
            self._stand.trouble, self._stand.moved_at = f"{peer.node}: {answer.why}", before
            log.info("train step %d of %s: %s", one.head.step, one.file, self._stand.trouble)
            self._over.wait(AGAIN_SECONDS)
            return
        self._stand.there[peer.agent, one.file] = one.head
        self._stand.moved_at, self._stand.trouble = time.monotonic(), ""
        if answer.word == bulk.KEPT:
            log.debug(
                "train step %d of %s is on %s: %d MiB in %.2f s", one.head.step, one.file,
                peer.node, one.head.data_bytes >> 20, time.monotonic() - begun,
            )  # fmt: skip

    def _sent(self, count: int) -> None:
        if self._over.is_set():
            raise ConnectionError("this agent ends")
        self._stand.moved_at = time.monotonic()
        self._tell(self._told)
        self._pace.took(count)

    def _tell(self, told: Told) -> None:
        now = time.monotonic()
        if told == self._told and now < self._told_at + TELL_SECONDS:
            return
        self._told, self._told_at = told, now
        if told.off and told.off not in (NO_OTHER, self._said):
            self._said = told.off
            self._say(f"state is not kept on other nodes for now: {told.off}")
        needed = told.off != NO_OTHER or self._folder.exists()
        if not needed or self._over.is_set():  # the folder is about to be removed
            return
        try:
            arena.make_private(self._folder)
            replicated.write(self._folder, told)
        except (OSError, NoRoom) as error:
            log.warning("%s", error)


def newest_set(folder: Path) -> str:
    return max((home.name for home in folder.glob("set-*")), default="")


def in_slots(folder: Path, home: str) -> list[Due]:
    """Whole ones of this node's own ranks, oldest train step first; not those of which other nodes
    have as many copies as are wanted anyway."""
    found = []
    for path in (folder / home).glob("part-*") if home else ():
        match = OWN.fullmatch(path.name)
        if match is None or (folder / home / replicated.ELSEWHERE.format(match[1])).exists():
            continue
        head = arena.head_in(path)
        if head is not None:
            found.append(Due(match[1], f"{home}/{path.name}", path, head))
    return sorted(found, key=lambda one: (one.head.step, one.file))
