"""Dials unicrond as some user and claims to be some agent; prints what came of it.

impostor.py RUN NODE             with a genuine credential of whoever runs it
impostor.py RUN NODE forged      with one that was changed after it was signed
impostor.py RUN NODE replayed    with one that was shown before, by a connection just before
"""

from __future__ import annotations

import asyncio
import sys

from unicrond.link.channel import dial
from unicrond.link.handshake import Identity, Refusal, dial_unicrond
from unicrond.link.munge import MungeCredentials
from unicrond.link.session import Hands, fresh_nonce, shake

UNICROND = "10.77.0.254", 7717


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


async def main(run: str, node: str, how: str = "genuine") -> None:
    identity = Identity(int(run), node, f"{node}-impostor")
    kinds = {"genuine": MungeCredentials, "forged": Forged, "replayed": Replayed}
    hands = Hands(kinds[how]())
    if how == "replayed":
        await claim(identity, hands)
    print(await claim(identity, hands))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
