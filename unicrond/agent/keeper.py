"""Keeps copies of other nodes' ranks in this node's folder of copies, beside those of its own.

    set-TOKEN/part-3.1        of rank 3, its slot 1, written by the rank
    set-TOKEN/part-3.1@n2     the same, kept for node n2: ranks here restore from it like from
                              their own, and remove it with their own

A copy is written into the same slot as at its owner, who takes that only when a newer train step is
safe (unicron/slots.py). Threads: one listens, one serves each connection.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from pathlib import Path

from unicron import arena
from unicron.errors import NoRoom
from unicron.slots import SLOTS
from unicrond.errors import ProtocolError
from unicrond.link import bulk
from unicrond.link.bulk import Answer, Offer

log = logging.getLogger(__name__)
FILE = re.compile(r"(set-\d{20})/(part-\d{1,6})\.(\d)")
AT_ONCE = 8
LISTEN_SECONDS = 0.5  # between looks at whether it is over
_FIRST_PORT, _PORTS, _PORT_ATTEMPTS = 20_000, 10_000, 32


class Keeper:
    """`folder`: this node's. `generation` is set from outside."""

    def __init__(self, folder: Path, run_id: int, secret: bytes) -> None:
        self.generation = 0
        self.port = 0  # 0: nobody can reach it
        self._folder, self._run_id, self._secret = folder, run_id, secret
        self._over = threading.Event()
        self._coming: set[str] = set()  # files that are being written
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def start(self) -> None:
        listener = self._listen()
        if listener is not None:
            self.port = listener.getsockname()[1]
            threading.Thread(
                target=self._accept, args=(listener,), name="unicron-keeper", daemon=True
            ).start()

    def stop(self) -> None:
        self._over.set()

    def _listen(self) -> socket.socket | None:
        """Beside the ports that links use (unicrond/link/peers.py)."""
        for attempt in range(_PORT_ATTEMPTS):
            port = _FIRST_PORT + (self._run_id + 4001 + 613 * attempt) % _PORTS
            try:
                return socket.create_server(("", port), backlog=AT_ONCE)
            except OSError:
                continue
        log.warning("no port is free: this node keeps no copies of others")
        return None

    def _accept(self, listener: socket.socket) -> None:
        room = threading.BoundedSemaphore(AT_ONCE)
        listener.settimeout(LISTEN_SECONDS)
        with listener:
            while not self._over.is_set():
                try:
                    out, address = listener.accept()
                except OSError:
                    continue
                room.acquire()
                threading.Thread(
                    target=self._serve, args=(out, address[0], room), daemon=True
                ).start()

    def _serve(self, out: socket.socket, address: str, room: threading.BoundedSemaphore) -> None:
        """Bad input ends this one connection and nothing else."""
        mine: list[arena.Slot] = []

        def place(offer: Offer, description: bytes) -> memoryview:
            mine.append(arena.Slot(self._path(offer)))
            return mine[0].begin(offer.head.step, description, offer.head.data_bytes)

        def keep(offer: Offer, data: memoryview) -> None:
            if self._over.is_set() or self._stale(offer):
                raise ProtocolError("it came too late")
            mine[0].finish(data, offer.head.sum_of_data)

        coming: list[str] = []
        try:
            with out:
                bulk.take(out, self._secret, lambda o: self._judge(o, coming), place, keep)
        except (OSError, ProtocolError, NoRoom) as error:
            log.info("a copy from %s is not kept: %s", address, error)
        finally:
            with self._lock:
                self._coming.difference_update(coming)
            room.release()

    def _judge(self, offer: Offer, coming: list[str]) -> Answer:
        if not FILE.fullmatch(offer.file) or self._over.is_set():
            return Answer(bulk.REFUSED, "such a file is not kept, or the agent ends")
        if why := self._stale(offer):
            return Answer(bulk.REFUSED, why)
        path = self._path(offer)
        if arena.head_in(path) == offer.head:
            return Answer(bulk.HAVE)
        with self._lock:
            if str(path) in self._coming:
                return Answer(bulk.REFUSED, "it is on its way already")
            self._coming.add(str(path))
            coming.append(str(path))
        return self._check_room(offer, path)

    def _check_room(self, offer: Offer, path: Path) -> Answer:
        """For all slots of it, before the first one comes."""
        slots = [path.with_name(_slot_of(path, number)) for number in range(SLOTS)]
        size = offer.head.start + offer.head.data_bytes
        try:
            arena.make_private(self._folder)
            arena.check_room(slots, size)
        except NoRoom as error:
            return Answer(bulk.REFUSED, f"no room for copies of {offer.node}: {error}")
        if str(path.parent) not in self._said:
            self._said = {str(path.parent)}
            log.info("keeping copies of %s: %d of %d MiB", offer.node, SLOTS, size >> 20)
        return Answer(bulk.WANT)

    def _stale(self, offer: Offer) -> str:
        if offer.generation != self.generation:
            return f"it is of generation {offer.generation}, here is {self.generation}"
        newest = max((home.name for home in self._folder.glob("set-*")), default="")
        if offer.file.partition("/")[0] < newest:
            return "ranks have begun a newer set"
        return ""

    def _path(self, offer: Offer) -> Path:
        return self._folder / f"{offer.file}@{offer.node}"


def _slot_of(path: Path, number: int) -> str:
    part, _, node = path.name.partition("@")
    return f"{part[:-1]}{number}@{node}"
