"""The mesh of a run's agents, over wires that can be cut. Each node has a loopback address."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import AsyncExitStack

import pytest
from linkworld import FAST, Wire, eventually

from unicrond.link.channel import Channel
from unicrond.link.frames import Body
from unicrond.link.handshake import Identity, dial_peer
from unicrond.link.peers import PeerMesh, ports
from unicrond.link.session import shake
from unicrond.link.tasks import end_all

SECRET = b"s" * 32
# Other tests, and agents of real runs, may run beside these.
RUNS = itertools.count(1000 + os.getpid() * 37 % 8000)
LOOPBACK = f"127.{10 + os.getpid() % 240}"


class Cluster:
    """Meshes of one run. With `wired`, each pair's dials go through a wire of their own."""

    def __init__(self, count: int, wired: bool = False) -> None:
        self.run_id = next(RUNS)
        self.nodes = [f"n{index}" for index in range(count)]
        self.meshes: dict[str, PeerMesh] = {}
        self.inbox: dict[str, list[tuple[str, Body]]] = {node: [] for node in self.nodes}
        self.wires: dict[tuple[str, str], Wire] = {}
        self._wired = wired
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stack = AsyncExitStack()

    def host(self, node: str) -> str:
        return f"{LOOPBACK}.0.{self.nodes.index(node) + 1}"

    def address(self, source: str, target: str) -> str:
        if not self._wired:
            return self.host(target)
        return f"{LOOPBACK}.{self.nodes.index(source) + 1}.{self.nodes.index(target) + 1}"

    async def __aenter__(self) -> Cluster:
        port = ports(self.run_id)[0]
        if self._wired:
            for target, source in itertools.combinations(self.nodes, 2):
                wire = Wire(self.host(target), port, (self.address(source, target), port))
                self.wires[source, target] = await self._stack.enter_async_context(wire)
        for node in self.nodes:
            self.start(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in sorted(self._tasks, reverse=True):  # who dials goes first
            await self.stop(node)
            await asyncio.sleep(0.01)
        await self._stack.aclose()
        await eventually(lambda: len(asyncio.all_tasks()) == 1)
        await asyncio.sleep(0.05)  # the last transports close

    def start(self, node: str, secret: bytes = SECRET) -> None:
        def take(sender: str, body: Body) -> None:
            self.inbox[node].append((sender, body))

        mesh = PeerMesh(
            Identity(self.run_id, node, f"agent-{node}"),
            self.nodes,
            lambda target: self.address(node, target),
            secret,
            take,
            self.host(node),
            pace=FAST,
        )
        mesh.beat({"phase": "idle"})
        self.meshes[node] = mesh
        self._tasks[node] = asyncio.get_running_loop().create_task(mesh.run())

    async def stop(self, node: str) -> None:
        task = self._tasks.pop(node)
        assert await end_all([task])

    def cut(self, *nodes: str) -> None:
        """Between `nodes` and all others."""
        for pair, wire in self.wires.items():
            if len(set(pair) & set(nodes)) == 1:
                wire.cut()

    def mend(self) -> None:
        for wire in self.wires.values():
            wire.mend()

    def told(self, node: str) -> list[tuple[str, str]]:
        return [(sender, body["type"]) for sender, body in self.inbox[node] if "text" in body]

    def hubs(self, *but: str) -> set[tuple[str, ...]]:
        return {mesh.hubs() for node, mesh in self.meshes.items() if node not in but}

    async def settled(self, *hubs: str, but: tuple[str, ...] = ()) -> None:
        await eventually(lambda: self.hubs(*but) == {hubs}, seconds=12.0)


def age(mesh: PeerMesh, node: str) -> float:
    return time.monotonic() - mesh.heard.get(node, 0.0)


def test_the_lowest_three_are_hubs_and_everyone_hears_of_everyone() -> None:
    async def main() -> None:
        async with Cluster(6) as cluster:
            await cluster.settled("n0", "n1", "n2")
            await eventually(lambda: all(len(m.heard) == 5 for m in cluster.meshes.values()))
            assert {mesh.leader() for mesh in cluster.meshes.values()} == {"n0"}
            assert set(cluster.meshes["n5"].direct_ages()) == {"n0", "n1", "n2"}
            assert set(cluster.meshes["n1"].direct_ages()) == {"n0", "n2", "n3", "n4", "n5"}

    asyncio.run(main())


def test_messages_reach_nodes_without_a_direct_link_once() -> None:
    async def main() -> None:
        async with Cluster(6) as cluster:
            await cluster.settled("n0", "n1", "n2")
            mesh = cluster.meshes["n5"]
            await eventually(lambda: "n4" in mesh.heard)
            assert "n4" not in mesh.direct_ages()
            assert mesh.send("n4", {"type": "order", "text": "x"})
            assert mesh.broadcast({"type": "news", "text": "y"}) == 5
            await eventually(lambda: all(cluster.told(f"n{n}") for n in range(5)))
            await asyncio.sleep(0.1)
            assert cluster.told("n4") == [("n5", "order"), ("n5", "news")]
            assert cluster.told("n0") == [("n5", "news")]

    asyncio.run(main())


def test_when_hubs_die_the_next_lowest_take_over_and_give_way_when_one_is_back() -> None:
    async def main() -> None:
        async with Cluster(6) as cluster:
            await cluster.settled("n0", "n1", "n2")
            await cluster.stop("n0")
            await cluster.stop("n2")
            await cluster.settled("n1", "n3", "n4", but=("n0", "n2"))
            assert cluster.meshes["n5"].leader() == "n1"
            assert cluster.meshes["n5"].send("n1", {"type": "x", "text": ""})
            cluster.start("n0")
            await cluster.settled("n0", "n1", "n3", but=("n2",))

    asyncio.run(main())


def test_a_link_that_stands_in_for_a_hub_is_let_go_once_the_hub_is_back() -> None:

    async def main() -> None:
        async with Cluster(5) as cluster:
            await cluster.settled("n0", "n1", "n2")
            await cluster.stop("n0")
            await eventually(lambda: "n3" in cluster.meshes["n4"].direct_ages())
            cluster.start("n0")
            await eventually(lambda: set(cluster.meshes["n4"].direct_ages()) == {"n0", "n1", "n2"})

    asyncio.run(main())


def test_a_partition_is_seen_by_both_sides_and_forgotten_when_it_is_mended() -> None:
    async def main() -> None:
        async with Cluster(5, wired=True) as cluster:
            await cluster.settled("n0", "n1", "n2")
            await eventually(lambda: "n4" in cluster.meshes["n3"].heard)
            start = time.monotonic()
            cluster.cut("n0", "n1")
            await eventually(lambda: cluster.meshes["n4"].hubs() == ("n2", "n3", "n4"))
            await eventually(lambda: cluster.meshes["n0"].hubs() == ("n0", "n1"))
            assert time.monotonic() - start < 2.5
            assert age(cluster.meshes["n4"], "n0") > 0.4 and age(cluster.meshes["n4"], "n3") < 0.5
            assert age(cluster.meshes["n0"], "n4") > 0.4 and age(cluster.meshes["n0"], "n1") < 0.5
            cluster.mend()
            await cluster.settled("n0", "n1", "n2")
            await eventually(lambda: age(cluster.meshes["n4"], "n0") < 0.5)

    asyncio.run(main())


def test_a_node_cut_from_one_hub_is_still_heard_through_the_others() -> None:
    async def main() -> None:
        async with Cluster(5, wired=True) as cluster:
            await cluster.settled("n0", "n1", "n2")
            cluster.wires["n4", "n0"].cut()
            await eventually(lambda: "n0" not in cluster.meshes["n4"].direct_ages())
            await asyncio.sleep(0.8)
            assert age(cluster.meshes["n4"], "n0") < 0.6
            assert age(cluster.meshes["n0"], "n4") < 0.6
            assert cluster.meshes["n4"].send("n0", {"type": "x", "text": ""})
            await eventually(lambda: cluster.told("n0") == [("n4", "x")])

    asyncio.run(main())


def test_an_agent_without_the_secret_gets_no_link() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            await cluster.settled("n0", "n1", "n2")
            await cluster.stop("n2")
            cluster.start("n2", secret=b"guessed" * 5)
            await asyncio.sleep(0.3)
            assert cluster.meshes["n2"].hubs() == ("n2",)
            assert cluster.meshes["n0"].hubs() == ("n0", "n1")

    asyncio.run(main())


def test_a_taken_port_is_passed_over_by_listener_and_dialers() -> None:
    async def main() -> None:
        cluster = Cluster(2)
        host, port = cluster.host("n0"), ports(cluster.run_id)[0]
        squatter = await asyncio.start_server(lambda _, writer: writer.close(), host, port)
        async with squatter, cluster:
            await cluster.settled("n0", "n1")

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        {"type": "relay", "to": "n0", "from": "n1"},
        {"type": "relay", "to": "n0", "from": "nobody", "body": {"type": "x"}},
        {"type": "relay", "to": 3, "from": "n1", "body": {"type": "x"}},
        {"type": "beat", "heard": {"n1": -3}},
        {"type": "beat", "heard": []},
        {"type": "beat", "heard": {f"m{n}": 0 for n in range(10)}},
    ],
)
def test_a_peer_that_talks_nonsense_is_closed(body: Body) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            cluster.nodes.append("n1")
            await cluster.stop("n0")
            cluster.start("n0")
            channel = await dialed(cluster)
            channel.send({"v": 1, "type": "beat", "heard": {}})
            await eventually(lambda: cluster.inbox["n0"])
            channel.send({"v": 1, **body})
            await eventually(lambda: channel.closed)

    asyncio.run(main())


async def dialed(cluster: Cluster) -> Channel:
    channel = Channel(dialer=True)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.1)
    port = ports(cluster.run_id)[0]
    await loop.create_connection(lambda: channel, cluster.host("n0"), port)
    me = Identity(cluster.run_id, "n1", "agent-n1")
    await shake(channel, dial_peer(me, "n0", SECRET, "nonce"))
    return channel


def test_the_newest_link_to_a_node_counts_and_the_older_one_ends() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            cluster.nodes.append("n1")
            await cluster.stop("n0")
            cluster.start("n0")
            first, second = await dialed(cluster), await dialed(cluster)
            await eventually(lambda: first.closed)
            second.send({"v": 1, "type": "news", "text": "x"})
            await eventually(lambda: cluster.told("n0") == [("n1", "news")])
            second.close("seen enough")

    asyncio.run(main())


def test_older_word_of_a_node_does_not_replace_newer() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            cluster.nodes += ["n1", "n2"]
            await cluster.stop("n0")
            cluster.start("n0")
            channel = await dialed(cluster)
            channel.send({"v": 1, "type": "beat", "heard": {"n2": 1.0}})
            channel.send({"v": 1, "type": "beat", "heard": {"n2": 50.0}})
            await eventually(lambda: len(cluster.inbox["n0"]) == 2)
            assert age(cluster.meshes["n0"], "n2") < 3.0
            channel.close("seen enough")

    asyncio.run(main())


def test_ports_are_eight_of_ten_thousand() -> None:
    assert ports(7)[:2] == [20_007, 27_926]
    assert all(20_000 <= port < 30_000 for port in ports(2**31)) and len(set(ports(7))) == 8
