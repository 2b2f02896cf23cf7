"""The agent's link to unicrond: dials, proves its user, registers, beats, and never gives up.

Everything here runs in the agent's asyncio loop; only credentials are sealed in a thread. Training
never waits for any of it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from unicrond.errors import ProtocolError, Refused, Unavailable
from unicrond.link import fields
from unicrond.link.channel import Channel, dial
from unicrond.link.credentials import Credentials
from unicrond.link.frames import Body, encode_body
from unicrond.link.handshake import SPEAKS, Identity, Refusal, Versions, dial_unicrond
from unicrond.link.pace import PACE, Pace
from unicrond.link.session import Hands, fresh_nonce, shake
from unicrond.link.spool import Spool

log = logging.getLogger(__name__)

CONNECT_SECONDS = 3.0
HANDSHAKE_SECONDS = 15.0
_SPACING_SECONDS = 0.02  # of two beats sent for a change
_BEATS_REMEMBERED = 64
_WINDOW_ENTRIES = 200  # sent and not acknowledged
_WINDOW_BYTES = 256 << 10  # not taken by the kernel yet
_URGENT = ("phase", "generation", "stopped_generation", "assignment")


class DaemonLink:
    """`registration` gives the fields of `register` anew at each connection; `on_order` takes each
    order's body. `run` is to be a task of its own."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        identity: Identity,
        registration: Callable[[], Body],
        on_order: Callable[[Body], None],
        credentials: Credentials,
        trusted_uids: Iterable[int],
        speaks: Versions = SPEAKS,
        pace: Pace = PACE,
    ) -> None:
        self._addresses = deque(addresses)  # the one that answered last comes first
        self._identity = identity
        self._registration = registration
        self._on_order = on_order
        self._hands = Hands(credentials)
        self._trusted_uids = frozenset(trusted_uids)
        self._speaks = speaks
        self._pace = pace
        self._channel: Channel | None = None  # registered and open
        self._spool = Spool()
        self._pumped = 0  # highest number sent over this connection
        self._drained = asyncio.Event()
        self._beat: tuple[Body, float] | None = None  # newest fields, when they were given
        self._told_assignment: object = None
        self._beat_numbers = itertools.count(1)
        self._unanswered: deque[tuple[int, float]] = deque(maxlen=_BEATS_REMEMBERED)
        self._beat_due: asyncio.TimerHandle | None = None
        self._sent_at = -math.inf
        self.last_heard = -math.inf
        """When the newest beat that unicrond answered was *sent* (monotonic). Counted from the
        sending, so that a lease here ends before the one that unicrond counts from receiving."""
        self.trouble = "not connected yet"
        """Why there is no connection, "" when there is one."""

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def dropped(self) -> int:
        """How many signals a full spool lost."""
        return self._spool.dropped

    # ------------------------------------------------------------ telling

    def beat(self, fields: Mapping[str, object]) -> None:
        """The newest state; sent each second, and at once when something urgent changed.

        Ages in `peers` grow by themselves; `assignment` is always given and sent when it changed.
        """
        before = self._beat[0] if self._beat else {}
        self._beat = dict(fields), time.monotonic()
        if any(before.get(name) != fields.get(name) for name in _URGENT):
            self._hasten_beat()

    def send(self, kind: str, fields: Mapping[str, object]) -> int:
        """Tells unicrond once, however often the link breaks; gives the sequence number."""
        encoded = encode_body({"v": self._speaks.newest, "type": kind, **fields})
        seq = self._spool.add(kind, dict(fields), time.monotonic(), len(encoded))
        self._drained.clear()
        self._pump()
        return seq

    def _pump(self) -> None:
        """Sends on from the spool, never so much at once that it looks like a flood or stalls."""
        if self._channel is None:
            return
        for count, entry in enumerate(self._spool.after(0)):
            if count >= _WINDOW_ENTRIES or self._channel.unsent_bytes > _WINDOW_BYTES:
                return
            if entry.seq > self._pumped:
                self._pumped = entry.seq
                self._say(self._channel, entry.body(time.monotonic()))

    async def drain(self, timeout_seconds: float) -> bool:
        """Waits until unicrond has stored everything; False when it did not in time."""
        try:
            while len(self._spool):
                await asyncio.wait_for(self._drained.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def _say(self, channel: Channel, body: Body) -> bool:
        return channel.send({"v": channel.version, **body})

    def _hasten_beat(self) -> None:
        if self._channel is None or self._beat_due is not None:
            return
        wait = max(0.0, self._sent_at + _SPACING_SECONDS - time.monotonic())
        self._beat_due = asyncio.get_running_loop().call_later(wait, self._send_beat)

    def _send_beat(self) -> None:
        if self._beat_due is not None:
            self._beat_due.cancel()
            self._beat_due = None
        if self._channel is None or self._beat is None:
            return
        body, given_at = self._beat
        now = time.monotonic()
        number = next(self._beat_numbers)
        body = {**body, "type": "beat", "beat": number, "dropped": self._spool.dropped}
        if peers := body.get("peers"):
            waited = now - given_at
            body["peers"] = {node: round(age + waited, 3) for node, age in peers.items()}
        assignment = body.pop("assignment", None)
        if assignment is not None and assignment != self._told_assignment:
            body["assignment"] = self._told_assignment = assignment
        self._unanswered.append((number, now))
        self._sent_at = now
        self._say(self._channel, body)

    # ------------------------------------------------------------ connecting

    async def run(self) -> None:
        """For ever: connects, serves, connects again. Where several unicronds may lead, the others
        do not listen: waits get longer once none of them answered."""
        failures = 0
        while True:
            heard_before = self.last_heard
            refusal = await self._one_connection(*self._addresses[0])
            if self.last_heard > heard_before:
                failures = 0
            else:
                failures += 1
                self._addresses.rotate(-1)
            wait = self._pace.retry_seconds(failures // len(self._addresses))
            if refusal is not None and not refusal.retry:
                wait = self._pace.refused_retry_seconds
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    async def _one_connection(self, host: str, port: int) -> Refusal | None:
        try:
            channel = await dial(host, port, CONNECT_SECONDS)
        except (OSError, asyncio.TimeoutError) as error:
            self._note(f"unicrond at {host}:{port} cannot be reached: {error or 'no answer'}")
            return None
        try:
            refusal = await asyncio.wait_for(self._greet(channel), HANDSHAKE_SECONDS)
            return refusal or await self._serve(channel)
        except asyncio.TimeoutError:
            self._note(f"unicrond at {host}:{port} does not answer")
        except (ProtocolError, Refused, Unavailable) as error:
            self._note(f"no link to unicrond at {host}:{port}: {error}")
        finally:
            self._channel = None
            channel.close("this side is done with it", abort=True)
        return None

    async def _greet(self, channel: Channel) -> Refusal | None:
        handshake = dial_unicrond(self._identity, fresh_nonce(), self._trusted_uids, self._speaks)
        end = await shake(channel, handshake, self._hands)
        if isinstance(end, Refusal):
            self._note(f"unicrond refuses this agent: {end.reason}")
            return end
        return None

    def _note(self, trouble: str) -> None:
        """Logged when it changed: the same trouble each second would fill the job's output."""
        if trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble

    # ------------------------------------------------------------ serving

    async def _serve(self, channel: Channel) -> Refusal | None:
        ended: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def end(refusal: Refusal | None, trouble: str) -> None:
            if not ended.done():
                self._note(trouble)
                ended.set_result(refusal)

        def on_body(body: Body) -> None:
            if body["type"] == "refuse":
                reason = fields.text(body, "reason")
                end(Refusal(reason, fields.boolean(body, "retry")), f"unicrond refuses: {reason}")
            else:
                self._take(body)

        self._register(channel)
        channel.start(on_body, lambda reason, _: end(None, f"lost unicrond: {reason}"))
        try:
            while not ended.done():
                self._send_beat()
                await asyncio.wait({ended}, timeout=self._pace.beat_seconds)
                if time.monotonic() - channel.last_heard > self._pace.silence_seconds:
                    end(None, f"unicrond is silent for {self._pace.silence_seconds:.0f} s")
            return ended.result()
        finally:
            ended.cancel()  # that this side closes the channel now is no trouble

    def _register(self, channel: Channel) -> None:
        registration = self._registration()
        self._told_assignment = registration.get("assignment")
        self._unanswered.clear()
        who = self._identity
        names = {"run_id": who.run_id, "node": who.node, "agent": who.agent}
        self._say(channel, {**registration, **names, "type": "register"})
        self._channel = channel
        self._pumped = 0
        self._pump()
        self.trouble = ""

    def _take(self, body: Body) -> None:
        if body["type"] == "beat":
            self._answered(fields.integer(body, "beat"))
            self._spool.acknowledge(fields.integer(body, "acked"))
            self._pump()
            if not len(self._spool):
                self._drained.set()
        elif body["type"] == "order":
            fields.text(body, "kind", 100)
            for field in ("key", "args"):
                fields.mapping(body, field)
            self._on_order(body)
        # Other types come from a newer unicrond and are none of ours.

    def _answered(self, number: int) -> None:
        while self._unanswered and self._unanswered[0][0] <= number:
            self.last_heard = max(self.last_heard, self._unanswered.popleft()[1])
