"""The cluster that `bench daemon` pretends: nodes, runs, and a key that proves users.

run r holds nodes r * size .. r * size + size - 1; each node has an address of its own in 127/8
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from unicrond.errors import Refused
from unicrond.link.credentials import Opened
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot

DAEMON_UID = 64_000
FIRST_RUN = 100_000
ORDER = "a:1"  # of the generation that the agents began by themselves
CHANGED_NODES = 20  # from one look at Slurm to the next
_PER_SUBNET = 250


@dataclass(frozen=True, slots=True)
class Cluster:
    agents: int
    nodes_per_run: int
    ranks_per_node: int

    @property
    def runs(self) -> int:
        return self.agents // self.nodes_per_run

    def node(self, index: int) -> str:
        return f"n{index:05d}"

    def address(self, index: int) -> str:
        high, low = divmod(index, _PER_SUBNET)
        return f"127.{1 + high // _PER_SUBNET}.{high % _PER_SUBNET}.{1 + low}"

    def run_of(self, index: int) -> int:
        return FIRST_RUN + index // self.nodes_per_run

    def uid_of(self, run_id: int) -> int:
        return 2000 + run_id % 50

    def nodes_of(self, run_id: int) -> tuple[str, ...]:
        first = (run_id - FIRST_RUN) * self.nodes_per_run
        return tuple(self.node(first + i) for i in range(self.nodes_per_run))

    def slots(self, run_id: int, order: str) -> list[list[object]]:
        nodes, ranks = self.nodes_of(run_id), range(self.ranks_per_node)
        places = [(node, local) for node in nodes for local in ranks]
        return [[r, f"{order}.{r}", node, local] for r, (node, local) in enumerate(places)]

    def snapshots(self, clock: Iterator[float]) -> Iterator[Snapshot]:
        """All that Slurm would say, again and again; a few nodes change each time."""
        names = [self.node(i) for i in range(self.agents)]
        nodes = {
            n: Node(n, NodeState.UP, "MIXED", self.ranks_per_node, ("gpu",), address=n,
                    switch=f"s{i // 32}")
            for i, n in enumerate(names)
        }  # fmt: skip
        jobs = {job.job_id: job for job in map(self._job, range(self.runs))}
        for turn, at in enumerate(clock):
            first = turn * CHANGED_NODES % self.agents
            for name in names[first : first + CHANGED_NODES]:
                nodes[name] = replace(nodes[name], raw_state=f"MIXED+{turn}")
            yield Snapshot(at, dict(nodes), jobs)

    def _job(self, number: int) -> Allocation:
        run_id = FIRST_RUN + number
        nodes, uid = self.nodes_of(run_id), self.uid_of(run_id)
        return Allocation(
            run_id, f"run-{run_id}", f"user{uid}", uid, f"account{uid % 7}", "gpu",
            JobState.RUNNING, nodes, nodes[0], self.ranks_per_node * len(nodes), 1.0, 2.0,
        )  # fmt: skip


class KeyCredentials:
    """The Credentials port by a key that all share, as munged's is shared."""

    def __init__(self, key: bytes, uid: int, origin: str = "127.0.0.1") -> None:
        self._key, self._uid, self._origin = key, uid, origin

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        words = [self._uid, for_uid, self._origin, payload.decode()]
        text = base64.b64encode(json.dumps(words).encode()).decode()
        return f"{text}:{self._mac(text)}"

    def open(self, text: str) -> Opened:
        sealed, _, mac = text.partition(":")
        if not hmac.compare_digest(mac, self._mac(sealed)):
            raise Refused("the credential is not valid")
        uid, for_uid, origin, payload = json.loads(base64.b64decode(sealed))
        if for_uid not in (None, self._uid):
            raise Refused("the credential is for another user")
        return Opened(uid, payload.encode(), origin)

    def _mac(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()
