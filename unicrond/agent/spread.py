"""What this agent does for copies on several nodes: it has those of its ranks kept by others
(replicas.py), and keeps others' (keeper.py).

    agent ── keeper? ──> agent of a node that is to keep copies ── keeper: id, port ──> agent

over the links among agents; the bytes go over a connection of their own (link/bulk.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unicrond.agent.job import Job
from unicrond.agent.keeper import Keeper
from unicrond.agent.replicas import Aim, Peer, Replicas
from unicrond.agent.ring import keepers
from unicrond.agent.settings import Settings
from unicrond.link import fields
from unicrond.link.bulk import Pace
from unicrond.link.frames import Body
from unicrond.model.run import Assignment

ASK, TOLD = "keeper?", "keeper"
ASK_SECONDS = 5.0
Send = Callable[[str, Body], bool]


class Spread:
    def __init__(
        self, job: Job, settings: Settings, folder: Path, send: Send, say: Callable[[str], None]
    ) -> None:
        self._job, self._copies, self._send = job, settings.replicas, send
        self._keeper = Keeper(folder, job.run_id, job.secret)
        self._replicas = Replicas(
            folder,
            job.node,
            job.secret,
            Pace(settings.replica_bytes_per_second),
            settings.replicas_signed,
            say,
        )
        self._known: dict[str, Peer] = {}
        self._asked_at: dict[str, float] = {}

    def start(self) -> None:
        if self._copies:
            self._keeper.start()
            self._replicas.start()

    def stop(self) -> None:
        """Blocks until nothing writes into the folder any more, for some seconds at most."""
        self._keeper.stop()
        if self._copies:
            self._replicas.stop()

    def tick(self, now: float, assignment: Assignment | None) -> None:
        if assignment is None or not self._copies:
            return
        nodes = list(assignment.nodes)
        chosen = keepers(self._job.node, nodes, self._job.facts.switches, self._copies)
        for node in chosen:
            if now > self._asked_at.get(node, 0.0) + ASK_SECONDS and self._send(
                node, {"type": ASK}
            ):
                self._asked_at[node] = now
        peers = tuple(self._known[node] for node in chosen if node in self._known)
        self._keeper.generation = assignment.generation
        self._replicas.aim = Aim(assignment.generation, len(chosen), peers)

    def hear(self, node: str, body: Body) -> None:
        if body["type"] == ASK:
            answer = {"agent": self._job.agent, "port": self._keeper.port}
            self._send(node, {"type": TOLD, **answer})
        elif body["type"] == TOLD:
            port = fields.integer(body, "port", 0, 65535)
            agent = fields.name(body, "agent")
            self._known[node] = Peer(node, agent, self._job.facts.address(node), port)
            if not port:
                del self._known[node]
