"""Dials unicrond as some user and claims to be some agent; prints what came of it.

impostor.py RUN NODE             with a genuine credential of whoever runs it
impostor.py RUN NODE forged      with one that was changed after it was signed
impostor.py RUN NODE replayed    with one that was shown before, by a connection just before
impostor.py RUN NODE liar NODES  takes the place of an agent of his own run of NODES, and lies
"""

from __future__ import annotations

import asyncio
import sys

from unicrond.link.channel import dial
from unicrond.link.client import DaemonLink
from unicrond.link.handshake import Identity, Refusal, dial_unicrond
from unicrond.link.munge import MungeCredentials
from unicrond.link.session import Hands, fresh_nonce, shake

UNICROND = "10.77.0.254", 7717
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


class Forged(MungeCredentials):
    def seal(self, payload: bytes, for_uid: int | None) -> str:
        text = super().seal(payload, for_uid)
        middle = len(text) // 2
        other = "A" if text[middle] != "A" else "B"
        return text[:middle] + other + text[middle + 1 :]


class Replayed(MungeCredentials):
    """Shows the same credential each time."""

    def __init__(self) -> None:
        super().__init__()
        self._kept = ""

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        self._kept = self._kept or super().seal(payload, for_uid)
        return self._kept


async def claim(identity: Identity, hands: Hands) -> str:
    channel = await dial(*UNICROND, 5)
    trusted = range(0, 1 << 20)
    end = await asyncio.wait_for(
        shake(channel, dial_unicrond(identity, fresh_nonce(), trusted), hands), 15
    )
    channel.close("seen enough", abort=True)
    return f"refused: {end.reason}" if isinstance(end, Refusal) else "accepted"


HARDWARE = [
    {"source": source, "kind": kind, "severity": "SEV1", "where": "0000:3b:00", "count": 9}
    for source, kind in (("nvml", "GPU lost"), ("nvml", "ECC error"), ("kernel", "host memory"))
]
LIES: list[dict[str, object]] = [
    *({"kind": "hardware", "text": XID, "generation": 1, "data": data} for data in HARDWARE),
    {"kind": "lease_expired", "text": "all the others are gone", "generation": 1},
    {"kind": "start_failed", "text": "no GPU here", "generation": 1},
    {"kind": "rank_exited", "rank": 1, "generation": 1, "text": XID, "data": {"exit_code": 1}},
]


async def lie(identity: Identity, nodes: str) -> str:
    """A registered agent of one's own run, whose every word is a lie."""
    state: dict[str, object] = {
        "phase": "running", "generation": 1, "stopped_generation": 0, "iteration": -1,
        "assignment": None,
    }  # fmt: skip
    wish = {
        "name": "lies", "weight": 1e6, "min_nodes": 1, "max_nodes": 1, "ranks_per_node": 1,
        "nodes": nodes.split(","), "restarts": 0,
    }  # fmt: skip
    link = DaemonLink(
        [UNICROND], identity, lambda: {**wish, **state}, lambda _: None, MungeCredentials(),
        range(1 << 20),
    )  # fmt: skip
    serving = asyncio.create_task(link.run())
    link.beat({**state, "peers": dict.fromkeys(nodes.split(","), 900.0)})
    for body in LIES:
        link.send("signal", {"age": 0.0, **body})
    for ordinal in range(50):
        key = {"incident_id": ordinal // 10 + 1, "generation": 1, "ordinal": ordinal}
        link.send("outcome", {"key": key, "state": "done", "detail": "", "data": {"port": 1}})
    heard = await link.drain(20)
    serving.cancel()
    return "heard" if heard else "not heard"


async def main(run: str, node: str, how: str = "genuine", nodes: str = "") -> None:
    identity = Identity(int(run), node, f"{node}-impostor")
    if how == "liar":
        print(await lie(identity, nodes))
        return
    kinds = {"genuine": MungeCredentials, "forged": Forged, "replayed": Replayed}
    hands = Hands(kinds[how]())
    if how == "replayed":
        await claim(identity, hands)
    print(await claim(identity, hands))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
