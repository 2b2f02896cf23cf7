"""What people are told: in groups, each once, not what they silenced; and how it is sent."""

from __future__ import annotations

import asyncio
import json
import smtplib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from unicrond.errors import Unavailable
from unicrond.model.decision import ActionKey
from unicrond.model.pause import Pause, PauseScope
from unicrond.notices import GROUP_SECONDS, MOST_SHOWN, REPEAT_SECONDS, Message, Notice, Notices
from unicrond.notifier import Mail, Notifier, Webhook

STUCK = Notice(ActionKey(12, 3, 7), "over the budget of restarts", 4711, "n2")
SILENT = Notice(ActionKey(13, 3, 8), "many are silent", 4712)


def silence(value: str) -> Pause:
    return Pause(PauseScope.NOTICE, value, 1.0, "ada")


def test_what_happens_together_is_told_together() -> None:
    notices = Notices("alpha")
    notices.add(STUCK, 100.0)
    notices.add(SILENT, 105.0)
    assert notices.due == 100.0 + GROUP_SECONDS
    message = notices.take((), 110.0).message
    assert message is not None
    assert message.subject == "[unicron alpha] 2 things need a person"
    assert message.text.splitlines() == [
        "- run 4711: over the budget of restarts (unicronctl why i12)",
        "- run 4712: many are silent (unicronctl why i13)",
    ]
    assert notices.due is None


def test_the_same_is_not_told_again_within_the_hour() -> None:
    notices = Notices("alpha")
    for at, sent in ((0.0, True), (60.0, False), (REPEAT_SECONDS + 1, True)):
        notices.add(replace(STUCK, key=ActionKey(12, 3, int(at))), at)
        found = notices.take((), at)
        assert (found.message is not None, bool(found.held_back)) == (sent, not sent)


@pytest.mark.parametrize("value", ["all", "run 4711", "node n2", "incident 12"])
def test_what_was_silenced_is_held_back(value: str) -> None:
    notices = Notices("alpha")
    notices.add(STUCK, 0.0)
    assert notices.take([silence(value)], 10.0).held_back == ((STUCK, "silenced"),)
    notices.add(STUCK, 20.0)
    others = [silence("run 1"), silence("node n1"), Pause(PauseScope.ACTION, "all", 1.0, "ada")]
    assert notices.take(others, 30.0).message is not None


def test_a_long_list_is_cut_and_a_subject_is_one_line() -> None:
    notices = Notices("alpha")
    notices.add(replace(STUCK, text="two\nlines" * 50), 0.0)
    message = notices.take((), 10.0).message
    assert message is not None and "\n" not in message.subject and len(message.subject) < 150
    for number in range(MOST_SHOWN + 5):
        notices.add(replace(STUCK, run_id=number), 0.0)
    message = notices.take((), 10.0).message
    assert message is not None
    assert message.text.endswith("- and 5 more: unicronctl incidents")


@dataclass
class Wall:
    at: float = 1000.0

    def now(self) -> float:
        return self.at


@dataclass
class List:
    """The sink that ships for tests: keeps what it was given, after so many failures."""

    failures: int = 0
    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")
        self.sent.append(message)


def tell(sinks: list[Any], pauses: tuple[Pause, ...] = ()) -> str:
    async def story() -> str:
        notifier = Notifier("alpha", sinks, lambda: pauses, Wall(), first_pause_seconds=0.0)
        told = asyncio.create_task(notifier.tell(STUCK))
        await asyncio.sleep(0)
        await notifier.send_due()
        return await told

    return asyncio.run(story())


def test_a_notice_is_done_once_it_was_sent() -> None:
    sink = List(failures=2)
    assert tell([sink]) == "sent"
    assert [message.notices for message in sink.sent] == [(STUCK,)]
    assert tell([List()], (silence("all"),)) == "silenced"
    assert "no webhook and no mail" in tell([])


def test_a_notice_that_nobody_takes_has_failed() -> None:
    with pytest.raises(Unavailable, match="not now"):
        tell([List(failures=99), List()])


def webhook(answer: Callable[[httpx.Request], httpx.Response]) -> Webhook:
    return Webhook("https://hooks.example/secret", "alpha", httpx.MockTransport(answer))


def message() -> Message:
    notices = Notices("alpha")
    notices.add(STUCK, 0.0)
    found = notices.take((), 10.0).message
    assert found is not None
    return found


def test_the_webhook_is_given_what_programs_need() -> None:
    seen: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return httpx.Response(204)

    webhook(answer).send(message())
    assert seen[0]["cluster"] == "alpha"
    assert seen[0]["notices"] == [
        {"incident_id": 12, "run_id": 4711, "node": "n2", "text": "over the budget of restarts"}
    ]


def test_the_webhooks_url_is_in_no_error() -> None:
    def refuses(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError(f"cannot reach {request.url}")

    for hook in (webhook(refuses), webhook(lambda _: httpx.Response(500))):
        with pytest.raises(Unavailable) as error:
            hook.send(message())
        assert "secret" not in str(error.value)


def test_mail_goes_to_all_who_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    class Server:
        def __init__(self, host: str, port: int, timeout: float) -> None:
            sent.append((host, port))

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *_: object) -> None: ...

        def send_message(self, mail: Any) -> None:
            sent.append(mail)

    monkeypatch.setattr(smtplib, "SMTP", Server)
    Mail("mail.example:25", "unicron@alpha", ["a@x", "b@x"]).send(message())
    assert sent[0] == ("mail.example", 25)
    assert (sent[1]["To"], sent[1]["From"]) == ("a@x, b@x", "unicron@alpha")
    assert "over the budget" in sent[1].get_content()
