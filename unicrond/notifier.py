"""Sends what people are told: to a webhook as JSON, by mail, or both. Touches the network.

    POST {"cluster", "subject", "text", "notices": [{"incident_id", "run_id", "node", "text"}]}

The webhook's URL may hold a secret: it is in no log and no error.
"""

from __future__ import annotations

import asyncio
import logging
import smtplib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any, Protocol

import httpx

from unicrond.errors import Unavailable
from unicrond.model.pause import Pause
from unicrond.notices import Message, Notice, Notices
from unicrond.ports import Clock

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
TRIES = 4
FIRST_PAUSE_SECONDS = 2.0  # doubled each time
LOOK_SECONDS = 0.5


class Sink(Protocol):
    def send(self, message: Message) -> None:
        """Blocks; raises Unavailable."""


@dataclass(frozen=True)
class Webhook:
    url: str
    cluster: str
    transport: httpx.BaseTransport | None = None

    def send(self, message: Message) -> None:
        body = {
            "cluster": self.cluster,
            "subject": message.subject,
            "text": message.text,
            "notices": [_shown(notice) for notice in message.notices],
        }
        try:
            with httpx.Client(timeout=TIMEOUT_SECONDS, transport=self.transport) as client:
                status = client.post(self.url, json=body).status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"the webhook does not answer: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise Unavailable(f"the webhook answers {status}")


def _shown(notice: Notice) -> dict[str, Any]:
    number = notice.key.incident_id
    return {
        "incident_id": number, "run_id": notice.run_id, "node": notice.node, "text": notice.text,
    }  # fmt: skip


@dataclass(frozen=True)
class Mail:
    """By the SMTP server of the site; `address` is host:port."""

    address: str
    sender: str
    receivers: Sequence[str]

    def send(self, message: Message) -> None:
        mail = EmailMessage()
        mail["Subject"], mail["From"] = message.subject, self.sender
        mail["To"] = ", ".join(self.receivers)
        mail.set_content(message.text)
        host, _, port = self.address.rpartition(":")
        try:
            with smtplib.SMTP(host.strip("[]"), int(port), timeout=TIMEOUT_SECONDS) as server:
                server.send_message(mail)
        except (OSError, smtplib.SMTPException) as error:
            raise Unavailable(f"the mail server {self.address}: {error}") from None


class Notifier:
    """`tell` returns once it was sent, or need not be. Without sinks nothing waits."""

    def __init__(
        self, cluster: str, sinks: Sequence[Sink], pauses: Callable[[], Iterable[Pause]],
        clock: Clock, first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:  # fmt: skip
        self._notices, self._sinks = Notices(cluster), sinks
        self._pauses, self._clock, self._first_pause = pauses, clock, first_pause_seconds
        self._told: dict[Notice, asyncio.Future[str]] = {}

    async def tell(self, notice: Notice) -> str:
        """What became of it. Raises Unavailable when nothing takes it."""
        if not self._sinks:
            return "told in the log alone: no webhook and no mail is configured"
        future = asyncio.get_running_loop().create_future()
        self._told[notice] = future
        self._notices.add(notice, self._clock.now())
        result: str = await future
        return result

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            due = self._notices.due
            if due is not None and self._clock.now() >= due:
                await self.send_due()

    async def send_due(self) -> None:
        found = self._notices.take(self._pauses(), self._clock.now())
        for notice, why in found.held_back:
            self._settle(notice, why)
        if found.message is None:
            return
        fault = await self._send(found.message)
        if fault:
            self._notices.forget(found.message.notices)
        for notice in found.message.notices:
            self._settle(notice, "sent", fault)

    async def _send(self, message: Message) -> str:
        """Why some of the sinks did not take it, "" where all did."""
        faults = await asyncio.gather(*(self._try(sink, message) for sink in self._sinks))
        return "; ".join(filter(None, faults))

    async def _try(self, sink: Sink, message: Message) -> str:
        pause = self._first_pause
        for left in reversed(range(TRIES)):
            try:
                await asyncio.to_thread(sink.send, message)
                return ""
            except Unavailable as error:
                fault = str(error)
                log.warning("people could not be told: %s", error)
            if left:
                await asyncio.sleep(pause)
                pause *= 2
        return fault

    def _settle(self, notice: Notice, outcome: str, fault: str = "") -> None:
        future = self._told.pop(notice, None)
        if future is None or future.done():
            return
        if fault:
            future.set_exception(Unavailable(fault))
        else:
            future.set_result(outcome)
