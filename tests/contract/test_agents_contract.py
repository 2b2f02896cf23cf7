"""What the core may expect behind the port Agents: one suite over the link server and the fake.

Each world starts the agents of run 7 on n1, n2 and n3, gives the events that unicrond would see,
and can kill, cut and restart what stands behind the port.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import pytest

from unicrond.link.client import DaemonLink
from unicrond.link.fakecredentials import FakeRealm
from unicrond.link.frames import Body
from unicrond.link.handshake import Claim, Identity, Verdict
from unicrond.link.server import LinkServer
from unicrond.link.simulated import SimulatedAgents
from unicrond.model.decision import Action, ActionKey, ActionKind, OutcomeState
from unicrond.model.events import AgentBeat, AgentJoined, AgentLeft, Event, OutcomeArrived
from unicrond.model.run import Run
from unicrond.ports import Agents

RUN = 7
NODES = ("n1", "n2", "n3")


class World(Protocol):
    agents: Agents

    def events(self) -> list[Event]:
        """All so far."""

    def until(self, condition: Callable[[], object]) -> None:
        """Lets time pass until the condition holds; fails when it never does."""

    def pass_time(self) -> None:
        """Long enough for anything that is on its way to arrive."""

    def kill_agent(self, node: str) -> None: ...

    def restart_unicrond(self) -> None: ...


class SimulatedWorld:
    def __init__(self) -> None:
        self.agents = SimulatedAgents(lambda *_: None, lambda *_: None)
        self.agents.start_job(_wish(), steps=1000)
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        return list(self._events)

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(200):
            if condition():
                return
            self._advance(0.1)
        raise AssertionError("it did not happen within 20 simulated seconds")

    def pass_time(self) -> None:
        self._advance(1.5)

    def _advance(self, seconds: float) -> None:
        self._events += self.agents.advance(self.agents.now + seconds)

    def kill_agent(self, node: str) -> None:
        self.agents.kill_agent(RUN, node)

    def restart_unicrond(self) -> None:
        self.agents.unicrond_stops()
        self.agents.unicrond_starts()


def _wish() -> Run:
    return Run(
        run_id=RUN, name="gpt", user="ada", uid=1000, weight=1.0, min_nodes=3, max_nodes=3,
        ranks_per_node=1, nodes=NODES, batch_host="n1", restarts=0,
    )  # fmt: skip


class LinkWorld:
    """A real server and real links on loopback. Each agent carries an order out at once, and
    answers one that it had before with the same outcome, as the real agent does."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._realm = FakeRealm()
        self._events: list[Event] = []
        self.agents = self._server(0)
        self._run(self.agents.start())
        self._port = self.agents.port
        self._tasks = {node: self._loop.create_task(self._agent(node)) for node in NODES}

    def now(self) -> float:
        return time.time()

    def _server(self, port: int) -> LinkServer:
        def owner(claim: Claim) -> Verdict:
            mine = (claim.identity.run_id, claim.uid) == (RUN, 1000)
            return Verdict("ok" if mine else "refused", "not the owner")

        credentials = self._realm.user(0)
        return LinkServer(("127.0.0.1", port), credentials, owner, self._emit, self)

    def _emit(self, event: Event, ack: Callable[[], None] | None) -> bool:
        self._events.append(event)
        if ack is not None:
            ack()
        return True

    async def _agent(self, node: str) -> None:
        outcomes: dict[str, Body] = {}

        def carry_out(order: Body) -> None:
            outcome: Body = {"key": order["key"], "state": "done", "data": {"port": 29500}}
            link.send("outcome", outcomes.setdefault(str(order["key"]), outcome))

        identity = Identity(RUN, node, f"agent-{node}")
        link = DaemonLink(
            [("127.0.0.1", self._port)],
            identity,
            _registration,
            carry_out,
            self._realm.user(1000),
            {0},
        )
        state = {"phase": "idle", "generation": 1, "stopped_generation": 0, "iteration": -1}
        link.beat(state)
        await link.run()

    def events(self) -> list[Event]:
        return list(self._events)

    def _run(self, awaitable: object) -> None:
        self._loop.run_until_complete(awaitable)  # type: ignore[arg-type]

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 8.0
        while not condition():
            assert time.monotonic() < end, "it did not happen within 8 s"
            self._run(asyncio.sleep(0.01))

    def pass_time(self) -> None:
        self._run(asyncio.sleep(0.3))

    def kill_agent(self, node: str) -> None:
        self._tasks[node].cancel()

        async def gone() -> None:
            with suppress(asyncio.CancelledError):
                await self._tasks[node]

        self._run(gone())

    def restart_unicrond(self) -> None:
        self._run(self.agents.stop())
        self.agents = self._server(self._port)
        self._run(self.agents.start())

    def close(self) -> None:
        for node in NODES:
            self.kill_agent(node)
        self._run(self.agents.stop())
        self._run(asyncio.sleep(0.01))
        self._run(self._loop.shutdown_default_executor())
        self._loop.close()


def _registration() -> Body:
    return {
        "name": "gpt",
        "weight": 1.0,
        "min_nodes": 3,
        "max_nodes": 3,
        "ranks_per_node": 1,
        "nodes": list(NODES),
        "restarts": 0,
        "phase": "idle",
        "generation": 1,
        "stopped_generation": 0,
        "assignment": None,
    }


@pytest.fixture(params=["simulated", "link"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "simulated":
        yield SimulatedWorld()
        return
    linked = LinkWorld()
    yield linked
    linked.close()


def stop(node: str, ordinal: int = 0, generation: int = 1) -> Action:
    key = ActionKey(5, generation, ordinal)
    return Action(key, ActionKind.STOP_RANKS, RUN, node, {"generation": generation})


def joined(world: World) -> list[str]:
    return [e.registration.node for e in world.events() if isinstance(e, AgentJoined)]


def outcomes(world: World, action: Action) -> list[OutcomeArrived]:
    arrived = [e for e in world.events() if isinstance(e, OutcomeArrived)]
    return [e for e in arrived if e.outcome.key == action.key]


def all_joined(world: World) -> None:
    world.until(lambda: set(joined(world)) == set(NODES))


def test_each_agent_joins_before_it_beats(world: World) -> None:
    all_joined(world)
    world.until(lambda: {e.node for e in world.events() if isinstance(e, AgentBeat)} == set(NODES))
    seen: set[str] = set()
    for event in world.events():
        if isinstance(event, AgentJoined):
            seen.add(event.registration.node)
            assert event.registration.run_id == RUN and event.registration.uid == 1000
            assert event.registration.nodes == NODES
        elif isinstance(event, AgentBeat):
            assert event.node in seen


def test_an_order_is_taken_and_its_outcome_comes_home_with_its_key(world: World) -> None:
    all_joined(world)
    action = stop("n2")
    assert world.agents.order(action)
    world.until(lambda: outcomes(world, action))
    told = outcomes(world, action)[0]
    assert told.outcome.state is OutcomeState.DONE
    assert told.outcome.data["port"]
    assert (told.run_id, told.node) == (RUN, "n2"), "by whom, for it counts for its own orders only"


def test_an_order_said_again_gives_the_same_outcome_again(world: World) -> None:
    all_joined(world)
    action = stop("n2")
    for count in (1, 2):
        assert world.agents.order(action)
        world.until(lambda count=count: len(outcomes(world, action)) == count)
    first, second = (replace(e.outcome, at=0.0) for e in outcomes(world, action))
    assert first == second


def test_an_order_to_a_stranger_is_not_taken(world: World) -> None:
    all_joined(world)
    assert not world.agents.order(stop("n9"))
    assert not world.agents.order(replace(stop("n2"), run_id=RUN + 1))


def test_an_agent_that_died_left_and_takes_no_orders(world: World) -> None:
    all_joined(world)
    world.kill_agent("n2")
    world.until(lambda: [e for e in world.events() if isinstance(e, AgentLeft)])
    left = [e for e in world.events() if isinstance(e, AgentLeft)]
    assert [(e.node, e.finished, e.silent) for e in left] == [("n2", False, False)]
    assert not world.agents.order(stop("n2"))
    assert world.agents.order(stop("n3"))


def test_after_a_restart_of_unicrond_everyone_joins_again(world: World) -> None:
    all_joined(world)
    world.restart_unicrond()
    world.until(lambda: all(joined(world).count(node) == 2 for node in NODES))
    action = stop("n1")
    assert world.agents.order(action)
    world.until(lambda: outcomes(world, action))


def test_orders_disturb_no_connection(world: World) -> None:
    all_joined(world)
    for ordinal, node in enumerate(NODES):
        assert world.agents.order(stop(node, ordinal))
    world.pass_time()
    assert not [e for e in world.events() if isinstance(e, AgentLeft)]
    assert len(joined(world)) == len(NODES)
