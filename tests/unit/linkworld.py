"""A small real world for the link: a server on loopback, agents, strangers, and wires to cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from unicrond.link.channel import Channel
from unicrond.link.client import DaemonLink
from unicrond.link.fakecredentials import FakeRealm
from unicrond.link.frames import Body
from unicrond.link.handshake import SPEAKS, Claim, Identity, Verdict, Versions, dial_unicrond
from unicrond.link.pace import Pace
from unicrond.link.server import Limits, LinkServer
from unicrond.link.session import Hands, shake
from unicrond.link.tasks import end_all
from unicrond.model.events import AgentBeat, AgentJoined, AgentLeft, Event

DAEMON_UID = 64000
USER_UID = 1000
RUN = 7
DEFAULT_LIMITS = Limits()
FAST = Pace(beat_seconds=0.2, silence_seconds=0.6, longest_retry_seconds=0.2, spare_seconds=0.3)


class SystemClock:
    def now(self) -> float:
        return time.time()


def registration(**changes: object) -> Body:
    body: Body = {
        "name": "gpt",
        "weight": 1.0,
        "min_nodes": 2,
        "max_nodes": 2,
        "ranks_per_node": 1,
        "nodes": ["n1", "n2"],
        "restarts": 0,
        "phase": "idle",
        "generation": 0,
        "stopped_generation": -1,
        "assignment": None,
    }
    return body | changes


def state(**changes: object) -> Body:
    body: Body = {"phase": "idle", "generation": 0, "stopped_generation": -1, "iteration": -1}
    return body | {"peers": {}, "assignment": None} | changes


def signal(text: str = "", **changes: object) -> Body:
    return {"kind": "rank_exited", "age": 0.0, "generation": 1, "rank": 0, "text": text} | changes


async def eventually(condition: Callable[[], object], seconds: float = 8.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


class World:
    """unicrond's link server, with what it emitted. Use as `async with World() as world`."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, speaks: Versions = SPEAKS) -> None:
        self.realm = FakeRealm()
        self.events: list[Event] = []
        self.acks: list[Callable[[], None]] = []
        self.stores = True  # acknowledges at once
        self.takes = True
        self.verdict = Verdict("ok")
        self.asked: list[tuple[int, int, str]] = []
        self.origins: list[str] = []
        self._limits, self._speaks = limits, speaks
        self.server = self._new_server(0)
        self.port = 0
        self._tasks: list[asyncio.Task[None]] = []

    def _new_server(self, port: int) -> LinkServer:
        return LinkServer(
            ("127.0.0.1", port),
            self.realm.user(DAEMON_UID),
            self._owner,
            self._emit,
            SystemClock(),
            self._speaks,
            self._limits,
        )

    def _owner(self, claim: Claim) -> Verdict:
        who = claim.identity
        self.asked.append((who.run_id, claim.uid, who.node))
        self.origins.append(claim.origin)
        return self.verdict

    def _emit(self, event: Event, ack: Callable[[], None] | None) -> bool:
        if not self.takes:
            return False
        self.events.append(event)
        if ack is not None:
            self.acks.append(ack)
            if self.stores:
                self.store()
        return True

    def store(self) -> None:
        for ack in self.acks:
            ack()
        self.acks.clear()

    async def __aenter__(self) -> World:
        await self.server.start()
        self.port = self.server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        assert await end_all(self._tasks)
        await self.server.stop()
        await asyncio.sleep(0.01)  # the last transports close

    async def restart(self, pause_seconds: float = 0.0) -> None:
        """unicrond is killed and starts again: it remembers nothing."""
        await self.server.stop()
        await asyncio.sleep(pause_seconds)
        self.server = self._new_server(self.port)
        await self.server.start()

    def agent(self, node: str = "n1", agent: str = "", port: int = 0, **options: object) -> Agent:
        made = Agent(self, Identity(RUN, node, agent or f"agent-{node}"), port or self.port)
        self._tasks.append(made.start(**options))
        return made

    async def stranger(
        self, identity: Identity, uid: int = USER_UID, speaks: Versions = SPEAKS
    ) -> Channel:
        """A channel after its handshake, whose frames the test chooses itself."""
        channel = await self.caller()
        handshake = dial_unicrond(identity, "nonce", {DAEMON_UID}, speaks)
        await shake(channel, handshake, Hands(self.realm.user(uid)))
        return channel

    async def caller(self) -> Channel:
        channel = Channel(dialer=True)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: channel, "127.0.0.1", self.port)
        return channel

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def joined(self) -> list[Event]:
        return self.of(AgentJoined)

    @property
    def beats(self) -> list[Event]:
        return self.of(AgentBeat)

    @property
    def left(self) -> list[Event]:
        return self.of(AgentLeft)


class Agent:
    """A DaemonLink that beats, with the orders it got."""

    def __init__(self, world: World, identity: Identity, port: int) -> None:
        self.world, self.identity, self.port = world, identity, port
        self.orders: list[Body] = []

    def start(
        self,
        uid: int = USER_UID,
        trusted: frozenset[int] = frozenset({DAEMON_UID}),
        speaks: Versions = SPEAKS,
        ports: tuple[int, ...] = (),
        pace: Pace = FAST,
    ) -> asyncio.Task[None]:
        self.link = DaemonLink(
            [("127.0.0.1", port) for port in ports or (self.port,)],
            self.identity,
            registration,
            self.orders.append,
            self.world.realm.user(uid),
            trusted,
            speaks,
            pace,
        )
        self.link.beat(state())
        self.task = asyncio.get_running_loop().create_task(self.link.run())
        return self.task

    async def kill(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class Wire:
    """A TCP relay to `port` that can be cut: then it swallows bytes, with no FIN and no RST."""

    def __init__(self, host: str, port: int, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._target, self._listen = (host, port), listen
        self.whole = asyncio.Event()
        self.whole.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._serve, *self._listen)
        return self

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        self.whole.clear()

    def mend(self) -> None:
        self.whole.set()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        assert await end_all(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.whole.wait()
            there, back = await asyncio.open_connection(*self._target)
            try:
                await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
            finally:
                back.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.whole.is_set():
                continue  # lost on the way; what comes later cannot be read, and the link ends
            writer.write(data)
        await self.whole.wait()
        writer.close()
