"""The port `Collective` on gloo.

`abort` of gloo changes nothing, and destroying a group while a collective waits for a stopped peer
waits with it. What works is to shut down the group's own sockets first: every collective ends with
an error, here and at the peers, and destroying takes milliseconds.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unicron.collective import (
    ARRIVE_SECONDS,
    CONNECT_SECONDS,
    Place,
    Sockets,
    await_listener,
    within,
)
from unicron.errors import Revoked, Stuck

LEAVE_SECONDS = 1.0  # it takes milliseconds; a collective that hangs, its whole time-out
MOST_ABANDONED = 5  # groups whose destruction hangs, each with 3 threads
CUT_AGAIN_SECONDS = 0.02  # a group that is just being formed opens more sockets


class Gloo:
    """Also the groups that the script makes itself: tensor parallel ones, of a device mesh ..."""

    regroups = True

    def __init__(self) -> None:
        self._revoked = self._generation = -1
        self._abandoned = 0
        self._forming = threading.Event()
        self._turning = threading.Lock()  # what is cut belongs to the generation that is over
        self._sockets = Sockets()
        self._store: Any = None
        self._excepthook = sys.excepthook
        self._make_group = c10d._new_process_group_helper

    def form(self, place: Place, timeout_seconds: float) -> None:
        with self._turning:
            self._generation = place.generation
            self._forming.set()
        self._excepthook = sys.excepthook  # each group puts one of its own before it
        try:
            self._check(place)
            self._form(place)
        finally:
            self._forming.clear()
        self._check(place)
        c10d._set_pg_timeout(timedelta(seconds=timeout_seconds), dist.group.WORLD)
        c10d._new_process_group_helper = self._noted_group

    def _form(self, place: Place) -> None:
        connect = timedelta(seconds=CONNECT_SECONDS)
        if not place.hosts_store:
            await_listener(place, lambda: place.generation <= self._revoked)
        with self._sockets.noted():
            tcp = dist.TCPStore(
                place.master_address,
                place.master_port,
                is_master=place.hosts_store,
                timeout=connect,
                wait_for_workers=False,
            )
            self._store = dist.PrefixStore(f"unicron/{place.generation}", tcp)
            self._arrive(place)
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=place.rank,
                world_size=place.world_size,
                timeout=connect,
            )

    def _arrive(self, place: Place) -> None:
        """All are there, or nobody begins to connect: gloo tries that for five times as long."""
        if self._store.add("arrived", 1) == place.world_size:
            self._store.set("all", "")
        self._store.wait(["all"], timedelta(seconds=ARRIVE_SECONDS))

    def _noted_group(self, *args: Any, **options: Any) -> Any:
        with self._sockets.noted():
            return self._make_group(*args, **options)

    def _check(self, place: Place) -> None:
        if place.generation <= self._revoked:
            raise Revoked(f"generation {place.generation} is over")

    def revoke(self, generation: int) -> None:
        self._revoked = max(self._revoked, generation)
        with self._turning:
            over = self._generation
            if over > generation:
                return
            self._sockets.cut()
        if self._forming.is_set():
            cutting = threading.Thread(
                target=self._cut_on, args=(over,), name="unicron-cut", daemon=True
            )
            cutting.start()

    def _cut_on(self, over: int) -> None:
        deadline = time.monotonic() + 2 * CONNECT_SECONDS
        while time.monotonic() < deadline:
            with self._turning:
                if self._generation != over or not self._forming.is_set():
                    return
                self._sockets.cut()
            time.sleep(CUT_AGAIN_SECONDS)

    def leave(self) -> None:
        c10d._new_process_group_helper = self._make_group
        if dist.is_initialized():
            self._destroy()
        sys.excepthook = self._excepthook
        self._store = None
        self._sockets.forget()

    def _destroy(self) -> None:
        """What hangs is left behind, a few times: threads and descriptors, and no process."""
        try:
            within(LEAVE_SECONDS, dist.destroy_process_group, "leaving the group")
        except Stuck:
            self._abandoned += 1
            if dist.is_initialized() or self._abandoned > MOST_ABANDONED:
                raise
