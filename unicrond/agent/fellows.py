"""The run's other agents, as this one hears them: their state, the membership that they know, and
orders to them with what came of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from unicrond.agent import lease, orders, views
from unicrond.agent.executor import Executor
from unicrond.agent.job import Job
from unicrond.agent.leader import Peer
from unicrond.agent.orders import Result
from unicrond.errors import ProtocolError
from unicrond.link import fields, messages
from unicrond.link.frames import Body
from unicrond.link.handshake import Identity
from unicrond.link.peers import PeerMesh
from unicrond.model.decision import OutcomeState
from unicrond.model.run import Assignment, Phase

log = logging.getLogger(__name__)
SILENCE_SECONDS = 5.0


class Fellows:
    """`state` gives this agent's own words; `leave` is called when the leader lets us go, `broken`
    when a generation broke on another node, `other` with messages that are not for us."""

    def __init__(
        self,
        job: Job,
        state: Callable[[], Body],
        executor: Executor,
        leave: Callable[[], None],
        broken: Callable[[int], None],
        other: Callable[[str, Body], None],
    ) -> None:
        self._node = job.node
        self._other = other
        self._state = state
        self._executor = executor
        self._leave = leave
        self._on_broken = broken
        self._broken = 0  # newest generation known to be broken elsewhere
        self._seen: dict[str, views.Seen] = {}
        self._together: dict[str, float] = {}  # node -> when it was last heard in our generation
        self._newest: Assignment | None = None
        self._waiting: dict[tuple[str, str], asyncio.Future[Result]] = {}
        self._told: frozenset[str] = frozenset()
        identity = Identity(job.run_id, job.node, job.agent)
        self.mesh = PeerMesh(identity, job.nodes, job.facts.address, job.secret, self._take)

    # ------------------------------------------------------------ who is there

    @property
    def position(self) -> int | None:
        """Among the hubs; 0 is the leader, None is no hub."""
        hubs = self.mesh.hubs()
        return hubs.index(self._node) if self._node in hubs else None

    @property
    def leads(self) -> bool:
        return self.mesh.leader() == self._node

    def ages(self, since: float) -> dict[str, float]:
        """Seconds that each node has been silent, none counted from before `since`."""
        now, heard = time.monotonic(), self.mesh.heard
        ages = {node: now - max(heard.get(node, since), since) for node in self.mesh.nodes()}
        return {**ages, self._node: 0.0}

    def member_ages(self, since: float) -> dict[str, float]:
        """The same for members: who has left our generation is not heard as one any more. Else an
        agent that unicrond cannot reach would go on beside the generation after its own."""
        now, own = time.monotonic(), int(self._state()["generation"])
        left = (n for n, seen in self._seen.items() if not views.takes_part(seen, own))
        return self.ages(since) | {n: now - max(self._together.get(n, since), since) for n in left}

    def daemon_age(self) -> float:
        """Seconds since unicrond answered any other agent that we hear from."""
        now = time.monotonic()
        ages = (seen.daemon_age + now - seen.at for seen in self._seen.values())
        return min(ages, default=lease.NEVER)

    def reports(self) -> list[lease.Report]:
        return views.reports(self._seen, time.monotonic())

    def ending(self, node: str) -> bool:
        seen = self._seen.get(node)
        return seen is not None and seen.ending != views.NOT_ENDING

    def all_end(self, silence_seconds: float) -> bool:
        """Every other agent that is still heard ends too."""
        now = time.monotonic()
        return all(
            self.ending(node) or now - seen.at > silence_seconds
            for node, seen in self._seen.items()
        )

    def peers(self) -> dict[str, Peer]:
        now, heard = time.monotonic(), self.mesh.heard
        seen = {n: views.peer(s, heard.get(n, s.at), now) for n, s in self._seen.items()}
        own = views.read(self._state(), now)
        return {**seen, self._node: views.peer(own, now, now)}

    # ------------------------------------------------------------ who is a member

    def assignment(self) -> Assignment | None:
        return self._newest

    def newest_generation(self) -> int:
        return max(peer.generation for peer in self.peers().values())

    def keep_newest(self, assignment: Assignment | None) -> None:
        known = self._newest.generation if self._newest else 0
        if assignment and assignment.generation > known:
            self._newest = assignment

    def ask_membership(self) -> None:
        """A leader that has just come asks what runs already."""
        newest = self.newest_generation()
        if newest > (self._newest.generation if self._newest else 0):
            knowing = (n for n, seen in self._seen.items() if seen.generation == newest)
            for node in list(knowing)[:1]:
                self.mesh.send(node, {"type": "tell"})

    # ------------------------------------------------------------ telling

    def tell(self) -> None:
        """Our state: to the hubs at once, to all links each second."""
        self.mesh.beat(self._state())
        self._say_state(self.mesh.hubs())

    def tell_newcomers(self) -> None:
        self.mesh.beat(self._state())
        hubs = frozenset(self.mesh.hubs())
        self._say_state(hubs - self._told)
        self._told = hubs

    def _say_state(self, nodes: frozenset[str] | tuple[str, ...]) -> None:
        body = {"type": "state", **self._state()}
        for node in nodes:
            if node != self._node:
                self.mesh.send(node, body)

    def broadcast_end(self, key: str, args: Body) -> None:
        """Hubs to all, the others to hubs: an agent that unicrond cannot reach hears it so."""
        body = {"type": "order", "key": key, "kind": "end_run", "args": args}
        for node in self.mesh.nodes() if self.position is not None else self.mesh.hubs():
            if node != self._node:
                self.mesh.send(node, body)

    def let_go(self) -> None:
        self.mesh.broadcast({"type": "leave"})

    async def order(self, node: str, body: Body, timeout_seconds: float) -> Result:
        """Carried out there, or here; never raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        mark = node, str(body["key"])
        self._waiting[mark] = future
        if node == self._node:
            self._executor.take(body, lambda r: None if future.done() else future.set_result(r))
        elif not self.mesh.send(node, body):
            future.set_result(orders.failed(f"there is no way to {node}"))
        try:
            return await self._answer(node, future, timeout_seconds)
        finally:
            del self._waiting[mark]

    async def _answer(
        self, node: str, future: asyncio.Future[Result], timeout_seconds: float
    ) -> Result:
        """Whoever falls silent meanwhile will not answer any more."""
        asked = time.monotonic()
        while not future.done():
            await asyncio.wait({future}, timeout=0.5)
            if time.monotonic() - asked > timeout_seconds and not future.done():
                future.set_result(orders.failed(f"{node} did not answer in {timeout_seconds:g} s"))
            elif self.ages(since=asked)[node] > SILENCE_SECONDS and not future.done():
                future.set_result(orders.failed(f"{node} fell silent before it answered"))
        return future.result()

    # ------------------------------------------------------------ hearing

    def _take(self, node: str, body: Body) -> None:
        try:
            self._dispatch(node, body)
        except ProtocolError as error:
            log.warning("peer node=%s: %s", node, error)

    def _dispatch(self, node: str, body: Body) -> None:
        kind = body["type"]
        if kind in ("beat", "state"):
            seen = self._seen[node] = views.read(body, time.monotonic())
            if views.takes_part(seen, int(self._state()["generation"])):
                self._together[node] = seen.at
            if seen.phase is Phase.BROKEN:
                self._hear_broken(seen.generation)
        elif kind == "broken":
            self._hear_broken(fields.integer(body, "generation"))
        elif kind == "order":
            self._take_order(node, body)
        elif kind == "outcome":
            self._take_outcome(node, body)
        elif kind == "tell" and self._newest:
            told = messages.assignment_to(self._newest)
            self.mesh.send(node, {"type": "assignment", "assignment": told})
        elif kind == "assignment":
            self.keep_newest(messages.assignment_from(body.get("assignment")))
        elif kind == "leave":
            self._leave()
        else:
            self._other(node, body)

    def _hear_broken(self, generation: int) -> None:
        """Once a generation. The leader tells those who do not hear the node themselves."""
        if generation > self._broken:
            self._broken = generation
            self._on_broken(generation)
            if self.leads:
                self.mesh.broadcast({"type": "broken", "generation": generation})

    def _take_order(self, node: str, body: Body) -> None:
        key = fields.text(body, "key", 256)

        def reply(result: Result) -> None:
            self.mesh.send(node, {"type": "outcome", "key": key, **outcome(result)})

        self._executor.take(body, reply)

    def _take_outcome(self, node: str, body: Body) -> None:
        future = self._waiting.get((node, fields.text(body, "key", 256)))
        state = fields.text(body, "state", 100)
        if future and not future.done() and state in _OUTCOMES:
            detail, data = fields.text(body, "detail"), fields.mapping(body, "data")
            future.set_result(Result(_OUTCOMES[state], detail, data))


_OUTCOMES: Mapping[str, OutcomeState] = {state.value: state for state in OutcomeState}


def outcome(result: Result) -> Body:
    return {"state": result.state.value, "detail": result.detail, "data": result.data}
