"""Carries a handshake out over a channel: the one place where its steps meet the world."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from unicrond.errors import ProtocolError, Refused, Unavailable
from unicrond.link.channel import Channel
from unicrond.link.credentials import Credentials
from unicrond.link.handshake import (
    Claim,
    Handshake,
    Judge,
    Open,
    Receive,
    Refusal,
    Seal,
    Send,
    Session,
    Step,
    Verdict,
)


def fresh_nonce() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Hands:
    """What a handshake may need beyond its channel; the peers' needs none of it."""

    credentials: Credentials | None = None
    executor: Executor | None = None  # where credentials are sealed and opened; None: the loop's
    judge: Callable[[Claim], Verdict] | None = None


_BARE = Hands()


async def shake(channel: Channel, handshake: Handshake, hands: Hands = _BARE) -> Session | Refusal:
    """Ends with the channel signed, or closed. ProtocolError: the other side spoke out of turn."""
    result: object = None
    trouble: Exception | None = None
    while True:
        try:
            step = handshake.throw(trouble) if trouble else handshake.send(result)
        except StopIteration as stop:
            return _finish(channel, stop.value)
        result, trouble = None, None
        try:
            result = await _carry_out(channel, step, hands)
        except (Refused, Unavailable) as error:
            trouble = error


def _finish(channel: Channel, end: Session | Refusal) -> Session | Refusal:
    if isinstance(end, Session):
        channel.sign_with(end.key, end.version)
    else:
        channel.close(end.reason)
    return end


async def _carry_out(channel: Channel, step: Step, hands: Hands) -> object:
    if isinstance(step, Send):
        if not channel.send(step.body):
            raise ProtocolError(channel.closed)
        return None
    if isinstance(step, Receive):
        return await channel.receive()
    if isinstance(step, Judge):
        assert hands.judge is not None
        return hands.judge(step.claim)
    assert hands.credentials is not None
    call: tuple[Any, ...] = (hands.credentials.open, step.text) if isinstance(step, Open) else ()
    if isinstance(step, Seal):
        call = (hands.credentials.seal, step.payload, step.for_uid)
    return await asyncio.get_running_loop().run_in_executor(hands.executor, *call)
