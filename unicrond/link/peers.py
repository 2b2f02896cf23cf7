"""Links among the agents of one run: who of the run is alive, even while unicrond is away.

Every agent holds links to the run's hubs, its lowest three live nodes; the higher node of a pair
dials, so a pair has one link. A node that cannot be reached, or was not heard for 3 s, is passed
over and the next one takes its place until it is back. Beats tell whom their sender hears directly,
so each agent knows of all others through any one hub. What is for a node without a direct link goes
through one hub, once.

    a beat of 1,000 nodes is 20 KB, and hubs send one a second to each node; others name hubs only
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence

from unicrond.errors import ProtocolError
from unicrond.link import fields
from unicrond.link.channel import Channel, dial
from unicrond.link.frames import Body, encode_body
from unicrond.link.handshake import (
    SPEAKS,
    Identity,
    Refusal,
    Versions,
    accept_peer,
    dial_peer,
)
from unicrond.link.pace import PACE, Pace
from unicrond.link.session import fresh_nonce, shake

log = logging.getLogger(__name__)

HUBS = 3
MOST_NODES = 16_384
CONNECT_SECONDS = 2.0
HANDSHAKE_SECONDS = 2.0
PORT_ATTEMPTS = 8
_LISTEN_RETRY_SECONDS = 5.0
_HALF_OPEN = 64
_RETRIES_AT_ONCE = 16
_ROUND_SECONDS = 0.1


def ports(run_id: int) -> list[int]:
    """Where a run's agents listen: the first of these that is free."""
    return [20_000 + (run_id + 7919 * attempt) % 10_000 for attempt in range(PORT_ATTEMPTS)]


class PeerMesh:
    """`nodes` are all of the run, in its order; `on_message(node, body)` gets what others send,
    their beats included. `run` is to be a task of its own."""

    def __init__(
        self,
        identity: Identity,
        nodes: Sequence[str],
        address_of: Callable[[str], str],
        secret: bytes,
        on_message: Callable[[str, Body], None],
        listen_host: str = "0.0.0.0",
        speaks: Versions = SPEAKS,
        pace: Pace = PACE,
    ) -> None:
        self._me = identity
        self._order = {node: index for index, node in enumerate(nodes)}
        self._lower = list(nodes[: self._order[identity.node]])
        self._address_of = address_of
        self._secret = secret
        self._on_message = on_message
        self._listen_host = listen_host
        self._speaks = speaks
        self._pace = pace
        self._links: dict[str, _Link] = {}
        self._dials: dict[str, _Attempts] = {node: _Attempts() for node in self._lower}
        self._greeting: set[asyncio.Task[None]] = set()
        self._beat: Body = {}
        self._crowded_since: float | None = None
        self._ended = False
        self.heard: dict[str, float] = {}
        """Node -> when it was last heard (monotonic), directly or through a hub."""

    # ------------------------------------------------------------ what others ask

    def nodes(self) -> tuple[str, ...]:
        """All that are known, those that came later last."""
        return tuple(self._order)

    def hubs(self) -> tuple[str, ...]:
        """The lowest three nodes that this agent hears directly, itself included."""
        near = sorted({self._me.node, *self._links}, key=self._order.__getitem__)
        return tuple(near[:HUBS])

    def leader(self) -> str:
        return self.hubs()[0]

    def direct_ages(self) -> dict[str, float]:
        """Node -> seconds since it was heard, for nodes with a link: what unicrond is told."""
        now = time.monotonic()
        return {node: round(now - link.channel.last_heard, 3) for node, link in self._links.items()}

    def beat(self, fields: Mapping[str, object]) -> None:
        """The newest state; sent to all links each second. `heard` is added."""
        self._beat = dict(fields)

    def send(self, node: str, body: Mapping[str, object]) -> bool:
        """False when there is no way to `node` now. That it arrives is not promised."""
        if node in self._links:
            return self._links[node].send(body)
        relay = {"type": "relay", "to": node, "from": self._me.node, "body": dict(body)}
        return any(self._links[hub].send(relay) for hub in self._ways_to(node))

    def broadcast(self, body: Mapping[str, object]) -> int:
        """To all other nodes of the run; gives how many there was a way to."""
        others = (node for node in self._order if node != self._me.node)
        return sum(self.send(node, body) for node in others)

    def _ways_to(self, node: str) -> list[str]:
        """Hubs, those first that say they hear `node`. `any` stops at the first that takes it."""
        hubs = [hub for hub in self.hubs() if hub in self._links]
        return sorted(hubs, key=lambda hub: node not in self._links[hub].hears)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """For ever, until it is cancelled; then all links are closed."""
        server: asyncio.Server | None = None
        listen_again = -_LISTEN_RETRY_SECONDS
        beat_due = 0.0
        try:
            while True:
                now = time.monotonic()
                if server is None and now >= listen_again:
                    server = await self._try_to_listen()
                    listen_again = now + _LISTEN_RETRY_SECONDS
                if now >= beat_due:
                    self._send_beats(now)
                    beat_due = now + self._pace.beat_seconds
                self._drop_silent(now)
                self._dial_hubs(now)
                await asyncio.sleep(_ROUND_SECONDS)
        finally:
            self._close(server)

    async def _try_to_listen(self) -> asyncio.Server | None:
        loop = asyncio.get_running_loop()
        for port in ports(self._me.run_id):
            try:
                return await loop.create_server(
                    lambda: Channel(dialer=False, on_open=self._accept), self._listen_host, port
                )
            except OSError:
                continue
        log.warning(
            "no port of %s is free: no other agent can dial this one", ports(self._me.run_id)
        )
        return None

    def _close(self, server: asyncio.Server | None) -> None:
        self._ended = True
        if server is not None:
            server.close()
        dialing = (attempts.task for attempts in self._dials.values() if attempts.task)
        for task in (*self._greeting, *dialing):
            task.cancel()
        for link in tuple(self._links.values()):
            link.channel.close("this agent ends")

    def _send_beats(self, now: float) -> None:
        ages = {node: round(now - link.channel.last_heard, 1) for node, link in self._links.items()}
        body = {**self._beat, "type": "beat", "heard": ages}
        encoded: dict[int, bytes] = {}  # hubs send the same to a thousand
        for link in tuple(self._links.values()):
            version = link.channel.version
            if version not in encoded:
                encoded[version] = encode_body({"v": version, **body})
            link.channel.send_encoded(encoded[version])

    def _drop_silent(self, now: float) -> None:
        for node, link in tuple(self._links.items()):
            if now - link.channel.last_heard > self._pace.silence_seconds:
                log.info("peer is silent node=%s", node)
                link.channel.close("it is silent", abort=True)

    # ------------------------------------------------------------ dialing

    def _dial_hubs(self, now: float) -> None:
        """Goes up from the lowest node until three are linked or may soon be."""
        hopeful = linked = 0
        retries = sum(attempts.task is not None for attempts in self._dials.values())
        for node in self._lower:
            attempts = self._dials[node]
            if node in self._links:
                linked += 1
                if linked > HUBS:
                    self._drop_spare(node, now)
            elif (
                hopeful < HUBS
                and attempts.due(now)
                and (attempts.fresh or retries < _RETRIES_AT_ONCE)
            ):
                attempts.task = asyncio.get_running_loop().create_task(self._reach(node, attempts))
                retries += 1
            hopeful += node in self._links or attempts.fresh
        if linked <= HUBS:
            self._crowded_since = None

    def _drop_spare(self, node: str, now: float) -> None:
        """A hub is back, so the one that stood in for it is let go, but not at once."""
        if self._crowded_since is None:
            self._crowded_since = now
        elif now - self._crowded_since > self._pace.spare_seconds:
            self._links[node].channel.close("a lower hub is back")

    async def _reach(self, node: str, attempts: _Attempts) -> None:
        try:
            if await self._dial_ports(node):
                attempts.failures = 0
                return
            attempts.failures += 1
            wait = self._pace.retry_seconds(attempts.failures) * random.uniform(0.5, 1.0)
            attempts.again_at = time.monotonic() + wait
        finally:
            attempts.task = None

    async def _dial_ports(self, node: str) -> bool:
        """A stranger may hold a port, so each is tried; a node without answer has no other."""
        for port in ports(self._me.run_id):
            try:
                channel = await dial(self._address_of(node), port, CONNECT_SECONDS)
            except ConnectionRefusedError:
                continue
            except (OSError, asyncio.TimeoutError):
                return False
            if await self._introduce(node, channel):
                return True
        return False

    async def _introduce(self, node: str, channel: Channel) -> bool:
        handshake = dial_peer(self._me, node, self._secret, fresh_nonce(), self._speaks)
        try:
            end = await asyncio.wait_for(shake(channel, handshake), HANDSHAKE_SECONDS)
            if isinstance(end, Refusal):
                log.debug("peer refuses node=%s reason=%s", node, end.reason)
            else:
                self._join(node, channel)
        except (ProtocolError, asyncio.TimeoutError) as error:
            log.debug("peer not reached node=%s error=%s", node, error)
        finally:
            if not channel.started:
                channel.close("the handshake did not end", abort=True)
        return channel.started

    # ------------------------------------------------------------ listening

    def _accept(self, channel: Channel) -> None:
        if self._ended or len(self._greeting) >= _HALF_OPEN:
            channel.close("this agent ends, or too many handshakes at once", abort=True)
            return
        task = asyncio.get_running_loop().create_task(self._greet(channel))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, channel: Channel) -> None:
        handshake = accept_peer(self._me, None, self._secret, fresh_nonce(), self._speaks)
        try:
            end = await asyncio.wait_for(shake(channel, handshake), HANDSHAKE_SECONDS)
            if not isinstance(end, Refusal) and end.peer is not None:
                self._join(end.peer.node, channel)
        except (ProtocolError, asyncio.TimeoutError) as error:
            log.debug("a stranger was turned away address=%s error=%s", channel.address, error)
        finally:
            if not channel.started:
                channel.close("the handshake did not end")

    # ------------------------------------------------------------ linked

    def _join(self, node: str, channel: Channel) -> None:
        """The newest link to a node counts: its agent knows best which one it uses."""
        if (old := self._links.pop(node, None)) is not None:
            old.channel.close("a newer link took its place", abort=True)
        self._admit(node)
        link = self._links[node] = _Link(channel)
        self.heard[node] = time.monotonic()
        channel.start(
            lambda body: self._take(node, link, body), lambda reason, _: self._lost(node, link)
        )

    def _admit(self, node: str) -> None:
        """One that came later, in a companion job: it knows the run's secret."""
        if len(self._order) < MOST_NODES:
            self._order.setdefault(node, len(self._order))

    def _lost(self, node: str, link: _Link) -> None:
        if self._links.get(node) is link:
            del self._links[node]
            if (attempts := self._dials.get(node)) is not None:
                attempts.failures = 1  # the next node is dialed at once too

    def _take(self, node: str, link: _Link, body: Body) -> None:
        self.heard[node] = time.monotonic()
        if body["type"] == "relay":
            self._take_relay(node, body)
            return
        if body["type"] == "beat":
            self._take_heard(link, fields.ages(body, "heard", MOST_NODES))
        self._on_message(node, body)

    def _take_heard(self, link: _Link, ages: Mapping[str, float]) -> None:
        link.hears = frozenset(ages)
        now = time.monotonic()
        for node, age in ages.items():
            self._admit(node)
            if node in self._order and node != self._me.node:
                self.heard[node] = max(now - age, self.heard.get(node, now - age))

    def _take_relay(self, by: str, body: Body) -> None:
        """For me; or, straight from its sender, for a node that I have a link to."""
        to, sender = fields.name(body, "to"), fields.name(body, "from")
        inner = fields.mapping(body, "body")
        if type(inner.get("type")) is not str or not sender:
            raise ProtocolError("a relay without a message or a sender")
        if to == self._me.node:
            self._on_message(sender, inner)
        elif sender == by and to in self._links:
            self._links[to].send({k: v for k, v in body.items() if k != "v"})


class _Link:
    """An open link; `hears` are the nodes that its far end hears directly."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.hears: frozenset[str] = frozenset()

    def send(self, body: Mapping[str, object]) -> bool:
        return self.channel.send({**body, "v": self.channel.version})


class _Attempts:
    """Attempts to reach one lower node."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.failures = 0
        self.again_at = 0.0

    @property
    def fresh(self) -> bool:
        """Not known to fail: it may soon be a link."""
        return self.failures == 0

    def due(self, now: float) -> bool:
        return self.task is None and now >= self.again_at
