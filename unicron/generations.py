"""`@unicron.elastic`: a training function is entered once per generation, in the same process.

form the group ──> train(run) ──> returns ──> leave, done
      ^                 │ raises, as a peer is lost or the generation is over
      │                 v
      │            leave the group ──> the agent's word: stay, regroup or stop
      └── regroup ──────┘                    │ none in time, stop, or the script's own error
                                             v
                                   the error goes on: the process ends, its agent sees to it
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import unicron
from unicron import Run, meshes
from unicron.channel import Order, of_this_process
from unicron.collective import Collective, Place, place_in
from unicron.errors import AgentGone, Revoked, Stuck

WORD_SECONDS = 30.0  # for the agent's first word after a collective has failed
DECISION_SECONDS = 300.0  # from `stay` to what comes of it
TIMEOUT_SECONDS = 1800.0  # of a collective
STAY_GRACE_SECONDS = 0.1  # to a cut: the peers are stuck, what was under way has arrived
REGROUP_GRACE_SECONDS = 1.0  # the peers may all be well, and transfer
QUIET_SECONDS = 0.03  # from an error, or word, to closing connections that peers may still use
OUT_SECONDS = 15.0  # to be out of a generation that is over
WAITS = "UNICRON_WAITS"  # set where a process is started for a generation to come
NOT_OUT = 75  # exit code: to be tried again in a new process
MOST_FORMINGS = 5  # tries in a row that came to no group
PEERS = re.compile(r"gloo|nccl|connection|socket|timed out|store", re.IGNORECASE)


class Elastic:
    """One call of a training function, over all its generations."""

    def __init__(self, collective: Collective, timeout_seconds: float) -> None:
        self._collective = collective
        self._timeout_seconds = timeout_seconds
        self.place = Place(-1, 0, 1, 0, "", 0)
        self._over = -1  # generations up to this one
        self._in = -1  # the generation that this process is in
        self._timers: list[threading.Timer] = []
        self._channel = of_this_process(collective.regroups, self._ordered)
        self._taken: Order | None = None  # the newest order that was acted on
        self._over_at = 0.0  # when it was first told that this generation is over
        self._entered = 0
        self._formings = 0

    def __call__(self, train: Callable[..., Any], *args: Any, **options: Any) -> Any:
        unicron.before_next_step = self._check
        try:
            waits = bool(os.environ.pop(WAITS, ""))
            if waits:
                _load_the_rest()
            self._greet()
            if waits:
                self._await_place()
            while True:
                outcome = self._once(train, args, options)
                if not isinstance(outcome, _Raised):
                    return outcome
                self._come_apart(outcome)
        finally:
            unicron.before_next_step = None
            self._is_out()
            if self._channel:
                self._channel.close()

    def _once(self, train: Callable[..., Any], args: Any, options: Any) -> Any | _Raised:
        try:
            place = self._form()
            run = Run(
                place.generation, place.rank, place.world_size, place.local_rank, self._entered
            )
            run.elastic = self
            self._entered += 1
            result = train(run, *args, **options)
            self._collective.leave()
        except Exception as error:  # noqa: BLE001 - whatever the script raises is looked at, and goes on
            return _Raised(error)
        return result

    def _form(self) -> Place:
        self.place = place = place_in(os.environ)
        self._in, self._over_at = place.generation, 0.0
        self._formings += 1
        self._check()
        self._collective.form(place, self._timeout_seconds)
        self._formings = 0
        return place

    def next_is_there(self) -> bool:
        """Between collectives: whether a word was given that ends the waiting for the next one. A
        generation that is over is left here, as computing on may take longer than is allowed."""
        over = 0 <= self._in <= self._over
        if over and time.monotonic() - self._over_at > QUIET_SECONDS:
            self._leave(self._in)
        order = self._channel.order if self._channel else None
        return order is not None and order is not self._taken and order.verb != "stay"

    def over_for(self) -> float:
        """Seconds since word came that this generation is over; 0 where none did."""
        over = 0 <= self._in <= self._over and self._over_at > 0
        return time.monotonic() - self._over_at if over else 0.0

    def regroup(self, error: Exception) -> Place:
        """Into the next generation, without leaving the function; raises `error` where a function
        is left for good."""
        while True:
            self._come_apart(_Raised(error))
            try:
                return self._form()
            except Exception as another:  # noqa: BLE001 - as above; after MOST_FORMINGS it is raised
                error = another

    def _come_apart(self, raised: _Raised) -> None:
        """Returns when a new generation may be formed; else the error goes on."""
        place = self.place
        if not self._is_of_peers(place, raised.error):
            raise raised.error
        raised.forget_frames()
        if self._in >= 0:
            since = time.monotonic() - self._over_at if isinstance(raised.error, Revoked) else 0.0
            time.sleep(max(0.0, QUIET_SECONDS - since))
            self._leave(place.generation)
        order = self._word(place)
        if order is None or order.verb != "regroup" or self._formings >= MOST_FORMINGS:
            raise raised.error
        print(  # not the error's own words: the agent would take them for a new trouble
            f"unicron: generation {place.generation} is over for rank {place.rank} "
            f"({type(raised.error).__name__}); it goes on in generation {order.generation}",
            file=sys.stderr,
        )
        self._taken = order
        os.environ.update(order.environment)
        self._greet()

    def _is_of_peers(self, place: Place, error: Exception) -> bool:
        """Not the script's own mistake, so that it is worth waiting for the agent's word."""
        if self._channel is None:
            return False
        order = self._channel.order
        over = order is not self._taken and order is not None
        foreign = isinstance(error, (RuntimeError, OSError)) and PEERS.search(str(error))
        return over or isinstance(error, Revoked) or (place.world_size > 1 and bool(foreign))

    def _word(self, place: Place) -> Order | None:
        """`regroup` or `stop`; None when nothing comes in time."""
        if self._channel is None:
            return None
        order = self._channel.order_after(self._taken, WORD_SECONDS)
        if order is not None and order.verb == "stay":
            order = self._channel.order_after(order, DECISION_SECONDS)
        return order

    def _await_place(self) -> None:
        """A process that was started beforehand trains once a generation takes it in."""
        if self._channel is None:
            raise SystemExit(NOT_OUT)
        order = self._channel.order_after(None, DECISION_SECONDS)
        while order is not None and order.verb == "stay":
            order = self._channel.order_after(order, DECISION_SECONDS)
        if order is None or order.verb != "regroup":
            raise SystemExit(NOT_OUT)
        self._taken = order
        os.environ.update(order.environment)
        self._greet()

    def _check(self) -> None:
        """Raises Revoked when this generation is over."""
        if 0 <= self._in <= self._over:
            raise Revoked(f"generation {self._in} is over")

    def _ordered(self, order: Order) -> None:
        """From the channel's thread."""
        regroup = order.verb == "regroup"
        self._over = max(self._over, order.generation - regroup)
        grace = REGROUP_GRACE_SECONDS if regroup else STAY_GRACE_SECONDS
        if 0 <= self._in <= self._over:
            self._over_at = self._over_at or time.monotonic()
            self._after(grace, self._collective.revoke)
            self._after(OUT_SECONDS, self._must_be_out)

    def _after(self, seconds: float, work: Callable[[int], None]) -> None:
        timer = threading.Timer(seconds, work, (self._over,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _leave(self, generation: int) -> None:
        self._collective.revoke(generation)
        try:
            self._collective.leave()
        except Stuck as error:
            _end_process(str(error))
        meshes.forget()
        self._is_out()

    def _is_out(self) -> None:
        self._in = -1
        while self._timers:
            self._timers.pop().cancel()

    def _must_be_out(self, generation: int) -> None:
        if 0 <= self._in <= generation:
            _end_process(f"not out of generation {generation} {OUT_SECONDS:g} s after its end")

    def _greet(self) -> None:
        """An agent that is away now is no reason not to train."""
        if self._channel is not None:
            try:
                self._channel.greet()
            except AgentGone as error:
                print(f"unicron: training goes on without the agent: {error}", file=sys.stderr)
                self._channel.close()
                self._channel = None


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def forget_frames(self) -> None:
        """They hold modules, and these the group: were they the last to hold it, it would be
        destroyed as they go, holding the interpreter's lock for as long as its threads live."""
        error: BaseException | None = self.error
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


def _load_the_rest() -> None:
    """The first optimizer of a process takes torch seconds, of imports put off till then."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def _end_process(why: str) -> None:
    """At once: what is stuck would keep the interpreter from ending, too."""
    print(f"unicron: {why}: this process ends", file=sys.stderr, flush=True)
    faulthandler.dump_traceback()
    os._exit(NOT_OUT)


def collective_for(backend: str) -> Collective:
    """`backend`: gloo, nccl, or "" for what there is; raises ValueError."""
    if backend not in ("", "gloo", "nccl"):
        raise ValueError(f"backend is {backend!r}: gloo, nccl, or nothing for what there is")
    import torch

    if backend == "nccl" or (not backend and torch.cuda.is_available()):
        from unicron.nccl import Nccl

        return Nccl()
    from unicron.gloo import Gloo

    return Gloo()
