"""Agents for `bench daemon`: many in one process, each over a connection of its own.

    python -m bench.daemon_agents --port P --key HEX --share K/N -- AGENTS NODES_PER_RUN RANKS

Frames, handshake, pace and orders are as an agent's; its ranks are numbers. One JSON object a line:
commands on stdin ({"do": ...}), one answer to each on stdout, Unix seconds in both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from typing import Any

from bench.daemon_cluster import DAEMON_UID, ORDER, Cluster, KeyCredentials
from detectors.pace import WINDOW
from unicrond.errors import ProtocolError
from unicrond.link.channel import Channel
from unicrond.link.client import CONNECT_SECONDS, HANDSHAKE_SECONDS
from unicrond.link.frames import Body
from unicrond.link.handshake import SPEAKS, Identity, Refusal, dial_unicrond
from unicrond.link.pace import PACE
from unicrond.link.peers import HUBS
from unicrond.link.session import Hands, fresh_nonce, shake

SLICES = 500  # of a second, over which beats are spread
TOLD_SECONDS = 3  # a window of iterations is told for so long
LEASE_SECONDS = 5.0
FIRST_A_SECOND = 400  # agents that come for the first time


class Agent:
    def __init__(self, cluster: Cluster, index: int, port: int, hands: Hands) -> None:
        self._cluster, self._index, self._port, self._hands = cluster, index, port, hands
        self.run_id = cluster.run_of(index)
        self._who = Identity(self.run_id, cluster.node(index), f"agent-{index}")
        self._channel: Channel | None = None
        self._lost = asyncio.Event()
        self.phase, self.generation, self.stopped, self.order = "running", 1, -1, ORDER
        self._assignment: Body | None = None
        self._iteration, self._before, self._beats, self._seq = 0, 0, 0, 0
        self._unacked: dict[int, Body] = {}
        self.answered = 0  # number of the newest beat that was
        self.ordered_at = 0.0
        self.settled = asyncio.Event()  # all that it told is stored
        self.welcome = asyncio.Event()  # the first beat of this connection was answered

    # connecting
    async def live(self) -> None:
        failures = 0
        await asyncio.sleep(self._index / FIRST_A_SECOND)
        while True:
            self.welcome.clear()
            with suppress(OSError, asyncio.TimeoutError, ProtocolError):
                await self._one_connection()
            failures = 0 if self.welcome.is_set() else failures + 1
            await asyncio.sleep(PACE.retry_seconds(failures) * random.uniform(0.5, 1.0))

    async def _one_connection(self) -> None:
        self._lost.clear()
        channel = Channel(dialer=True)
        here = (self._cluster.address(self._index), 0)
        connecting = asyncio.get_running_loop().create_connection(
            lambda: channel, "127.0.0.1", self._port, local_addr=here
        )
        await asyncio.wait_for(connecting, CONNECT_SECONDS)
        try:
            handshake = dial_unicrond(self._who, fresh_nonce(), {DAEMON_UID})
            end = await asyncio.wait_for(shake(channel, handshake, self._hands), HANDSHAKE_SECONDS)
            if isinstance(end, Refusal):
                return
            self._register(channel)
            await self._lost.wait()
        finally:
            self._channel = None
            channel.close("over", abort=True)

    def _register(self, channel: Channel) -> None:
        nodes = list(self._cluster.nodes_of(self.run_id))
        who = self._who
        channel.send(
            {
                "v": SPEAKS.newest, "type": "register", "run_id": who.run_id, "node": who.node,
                "agent": who.agent, "name": f"run-{who.run_id}", "weight": 1.0,
                "min_nodes": 1, "max_nodes": len(nodes), "nodes": nodes, "restarts": 0,
                "ranks_per_node": self._cluster.ranks_per_node, "lease_seconds": LEASE_SECONDS,
                "phase": self.phase, "generation": self.generation,
                "stopped_generation": self.stopped, "assignment": self._known_assignment(),
            }
        )  # fmt: skip
        self._channel = channel
        channel.start(self._take, lambda _reason, _by_peer: self._lost.set())
        for body in self._unacked.values():
            channel.send(body)
        self.beat()

    def _known_assignment(self) -> Body:
        slots = self._cluster.slots(self.run_id, self.order)
        first = {"generation": self.generation, "order": self.order, "slots": slots}
        return self._assignment or first

    def drop(self) -> None:
        """The connection ends; the agent dials anew at once."""
        self.welcome.clear()
        if self._channel is not None:
            self._channel.close("dropped", abort=True)

    # telling
    def beat(self, assignment: Body | None = None) -> None:
        if self._channel is None:
            return
        self._beats += 1
        step = self._iteration if self.phase == "running" else -1
        told = f',"assignment":{json.dumps(assignment)}' if assignment else ""
        self._channel.send_encoded(
            f'{{"v":1,"phase":"{self.phase}","generation":{self.generation},'
            f'"stopped_generation":{self.stopped},"iteration":{step},'
            f'"counted":{self._counted},"flops":1e15,"regrouping":[],"prepared":[],'
            f'"peers":{{{self._peers()}}},"paces":[{self._paces()}],"type":"beat",'
            f'"beat":{self._beats},"dropped":0{told}}}'.encode()
        )

    def trained(self) -> None:
        """One more train step, one a second."""
        self._iteration += self.phase == "running"
        self.beat()

    @property
    def _counted(self) -> int:
        return self._iteration - self._before

    def _peers(self) -> str:
        """A hub hears all, others the hubs."""
        nodes = self._cluster.nodes_of(self.run_id)
        heard = nodes if self._who.node in nodes[:HUBS] else nodes[:HUBS]
        return ",".join(f'"{node}":0.{100 + self._beats % 900}' for node in heard
                        if node != self._who.node)  # fmt: skip

    def _paces(self) -> str:
        window, since = divmod(self._counted, WINDOW)
        if self.phase != "running" or not window or since >= TOLD_SECONDS:
            return ""
        ranks = self._cluster.ranks_per_node
        first = self._index % self._cluster.nodes_per_run * ranks
        return ",".join(f"[{first + r},{window - 1},1.0{r},0.9{r}]" for r in range(ranks))

    def fail(self) -> None:
        """Its lowest rank ends with 1, and is told of; then the beat that says so."""
        rank = self._index % self._cluster.nodes_per_run * self._cluster.ranks_per_node
        self.phase = "broken"
        self._tell(
            "signal",
            {
                "kind": "rank_exited", "age": 0.0, "rank": rank, "member": f"{self.order}.{rank}",
                "generation": self.generation, "text": "", "data": {"exit_code": 1},
            },
        )  # fmt: skip
        self.beat()

    def _tell(self, kind: str, fields: Body) -> None:
        self._seq += 1
        body = {"v": SPEAKS.newest, **fields, "type": kind, "seq": self._seq}
        self._unacked[self._seq] = body
        self.settled.clear()
        if self._channel is not None:
            self._channel.send(body)

    # hearing
    def _take(self, body: Body) -> None:
        if body["type"] == "order":
            self._carry_out(body)
        elif body["type"] == "beat":
            self.answered = max(self.answered, body["beat"])
            self.welcome.set()
            for seq in [seq for seq in self._unacked if seq <= body["acked"]]:
                del self._unacked[seq]
            if not self._unacked:
                self.settled.set()

    def _carry_out(self, order: Body) -> None:
        args = order["args"]
        self.ordered_at = self.ordered_at or time.time()
        data: Body = {}
        if order["kind"] == "stop_ranks":
            self.phase, self.stopped = "idle", max(self.stopped, args["generation"])
            data = {"port": 29_500}
        elif order["kind"] == "start_ranks":
            self._assignment = args["assignment"]
            self.phase, self.generation = "running", args["assignment"]["generation"]
            self.order = args["assignment"]["order"]
            self._before = self._iteration
        done = {"key": order["key"], "state": "done", "detail": "", "data": data}
        self._tell("outcome", done)
        self.beat(self._assignment if order["kind"] == "start_ranks" else None)


class Agents:
    """What the bench asks of them: a method for each command."""

    def __init__(self, agents: dict[int, Agent]) -> None:
        self._agents = agents
        self.due = 0  # beats that the pace called for
        self.late_seconds = 0.0

    async def beat_for_ever(self) -> None:
        slices: list[list[Agent]] = [[] for _ in range(SLICES)]
        for index, agent in self._agents.items():
            slices[index * 7919 % SLICES].append(agent)
        began, turn = time.monotonic(), 0
        while True:
            for agent in slices[turn % SLICES]:
                agent.trained()
                self.due += 1
            turn += 1
            ahead = began + turn / SLICES - time.monotonic()
            self.late_seconds = max(self.late_seconds, -ahead)
            await asyncio.sleep(max(0.0, ahead))

    async def connect(self, command: Body) -> Body:
        await self._all(agent.welcome for agent in self._agents.values())
        return {"at": time.time()}

    async def count(self, command: Body) -> Body:
        """Since the last time."""
        answered = sum(agent.answered for agent in self._agents.values())
        due, self.due = self.due, 0
        late, self.late_seconds = self.late_seconds, 0.0
        return {"answered": answered, "due": due, "late_seconds": late}

    async def fault(self, command: Body) -> Body:
        """Seconds from the word of one agent to the order that it gets."""
        agent = self._agents[command["agent"]]
        agent.ordered_at, began = 0.0, time.time()
        agent.fail()
        while not agent.ordered_at:
            await asyncio.sleep(0.002)
        return {"seconds": agent.ordered_at - began}

    async def burst(self, command: Body) -> Body:
        """All fail at once; when the last of their signals was stored."""
        await _until(command["at"])
        for agent in self._agents.values():
            agent.ordered_at = 0.0
            agent.fail()
        await self._all(agent.settled for agent in self._agents.values())
        return {"at": time.time()}

    async def healed(self, command: Body) -> Body:
        """All train in a generation above the given one, and all that they told is stored."""
        agents = self._agents.values()
        while not all(a.phase == "running" and a.generation > command["above"] for a in agents):
            await asyncio.sleep(0.01)
        await self._all(agent.settled for agent in agents)
        return {"at": time.time()}

    async def reconnect(self, command: Body) -> Body:
        """The first so many lose their connections in the same moment."""
        chosen = [self._agents[i] for i in sorted(self._agents)[: command["count"]]]
        await _until(command["at"])
        for agent in chosen:
            agent.drop()
        await self._all(agent.welcome for agent in chosen)
        return {"at": time.time()}

    async def _all(self, events: Any) -> None:
        await asyncio.gather(*(event.wait() for event in tuple(events)))


async def _until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.time()))


async def serve(arguments: argparse.Namespace) -> None:
    cluster = Cluster(*map(int, arguments.shape))
    share, shares = map(int, arguments.share.split("/"))
    hands = {
        uid: Hands(KeyCredentials(arguments.key, uid))
        for uid in {cluster.uid_of(cluster.run_of(i)) for i in range(cluster.agents)}
    }
    mine = {
        i: Agent(cluster, i, arguments.port, hands[cluster.uid_of(cluster.run_of(i))])
        for i in range(share, cluster.agents, shares)
    }
    agents = Agents(mine)
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(agent.live()) for agent in mine.values()}
    tasks.add(loop.create_task(agents.beat_for_ever()))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        print(json.dumps(await getattr(agents, command["do"])(command)), flush=True)
    for task in tasks:
        task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.daemon_agents")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", type=bytes.fromhex, required=True)
    parser.add_argument("--share", required=True, metavar="K/N")
    parser.add_argument("shape", nargs=3)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
