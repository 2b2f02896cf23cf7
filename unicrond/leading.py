"""Stands by until this unicrond leads, renews the lease while it does, and asks before acts.

What is decided is in core/leader.py; here are its stopwatch, its database and its waiting. The
database is asked in other threads, so that one that is slow holds nothing up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from db.lease import Leases
from unicrond.core import leader
from unicrond.core.leader import Candidate, Row, Step
from unicrond.errors import LeaseLost, StoreUnavailable

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25


def stopwatch() -> float:
    """Goes on while this machine sleeps, and nobody sets it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def candidate(lease_seconds: float, act_seconds: float) -> Candidate:
    host = socket.gethostname()
    me = f"{host}-{os.getpid()}-{secrets.token_hex(8)}"
    return Candidate(me, host, lease_seconds, act_seconds)


class Leading(Protocol):
    @property
    def me(self) -> str:
        """One process, ever; "": no other is to be told from it."""

    def may_act(self) -> bool:
        """Whether the lease holds now, as far as is known without asking."""

    def before_act(self) -> None:
        """Blocks. Raises LeaseLost, or StoreUnavailable where it cannot be told."""

    async def keep(self) -> None:
        """Until cancelled; raises LeaseLost."""

    def release(self) -> None:
        """At the end, once nothing is under way any more."""


class Alone:
    """No other unicrond is to take over."""

    me = ""

    def may_act(self) -> bool:
        return True

    def before_act(self) -> None:
        pass

    async def keep(self) -> None:
        await asyncio.Event().wait()

    def release(self) -> None:
        pass


class Shared:
    """One of several; the port Leases says which of them leads."""

    def __init__(
        self, leases: Leases, known: Candidate, watch: Callable[[], float] = stopwatch
    ) -> None:
        self._leases, self._known, self._watch = leases, known, watch
        self._lock = threading.Lock()  # acts ask in several threads
        self._trouble = ""
        self.leader = "nobody is known to lead"
        """For people, while it stands by."""

    @property
    def me(self) -> str:
        return self._known.me

    async def stand_by(self) -> Row:
        """Returns once it leads."""
        while True:
            try:
                wanted = await asyncio.to_thread(self._look)
            except StoreUnavailable as error:
                self._note(f"stands by, and the database does not answer: {error}")
                wanted = None
            if wanted is not None:
                log.warning("leads now term=%d host=%s", wanted.term, wanted.host)
                return wanted
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> Row | None:
        self._known = leader.looked(self._known, self._leases.read(), self._watch())
        row = self._known.row
        if row is not None:
            self.leader = f"{row.host} leads (term {row.term})"
        if leader.step(self._known, self._watch()) is not Step.TAKE:
            self._note(f"stands by: {self.leader}")
            return None
        wanted, sent_at = self._known.wanted(), self._watch()
        if not self._leases.take(row, wanted):
            return None
        self._known = leader.took(self._known, wanted, sent_at)
        return wanted

    def _note(self, words: str) -> None:
        if words != self._trouble:
            log.warning("%s", words)
        self._trouble = words

    def may_act(self) -> bool:
        return self._known.may_act(self._watch())

    def before_act(self) -> None:
        self._renew()
        if not self.may_act():
            raise StoreUnavailable("the lease ran out while it was renewed")

    async def keep(self) -> None:
        while True:
            match leader.step(self._known, self._watch()):
                case Step.STOP:
                    raise LeaseLost(f"another unicrond took over from term {self._known.term}")
                case Step.RENEW:
                    try:
                        await asyncio.to_thread(self._renew)
                    except StoreUnavailable as error:
                        self._note(f"the lease is not renewed: {error}")
            await asyncio.sleep(LOOK_SECONDS / 2)

    def _renew(self) -> None:
        row, sent_at = self._known.row, self._watch()
        done = row is not None and self._leases.renew(row)
        with self._lock:
            self._known = leader.renewed(self._known, done, sent_at)
        if not done:
            raise LeaseLost(f"another unicrond took over from term {self._known.term}")
        self._trouble = ""

    def release(self) -> None:
        row = self._known.row
        if row is not None and self._known.term:
            try:
                self._leases.release(row)
            except StoreUnavailable as error:
                log.warning("the lease is not given back, others wait for its end: %s", error)
