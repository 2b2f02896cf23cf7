"""The Credentials port: one suite over the fake and the real MUNGE."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from unicrond.errors import Refused, Unavailable
from unicrond.link.channel import Channel, dial
from unicrond.link.credentials import Credentials
from unicrond.link.fakecredentials import FakeRealm
from unicrond.link.handshake import (
    Identity,
    Refusal,
    Session,
    Verdict,
    accept_agent,
    dial_unicrond,
)
from unicrond.link.munge import MungeCredentials
from unicrond.link.session import Hands, shake


@dataclass
class Place:
    """A credential service, seen by the user `uid`."""

    credentials: Credentials
    uid: int
    stop: Callable[[], None]


def fake_place() -> Iterator[Place]:
    realm = FakeRealm()

    def stop() -> None:
        realm.available = False

    yield Place(realm.user(1000), 1000, stop)


def munge_place(directory: Path) -> Iterator[Place]:
    if shutil.which("munged") is None:
        pytest.skip("Debian's package munge is not installed")
    directory.chmod(0o711)  # munged wants its socket reachable by all
    key = directory / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    socket = directory / "socket"
    files = {name: directory / name for name in ("pid-file", "log-file", "seed-file")}
    options = [f"--{name}={path}" for name, path in files.items()]
    command = ["munged", "--force", "--foreground", f"--key-file={key}", f"--socket={socket}"]
    daemon = subprocess.Popen([*command, *options], stderr=subprocess.PIPE)
    try:
        wait_for(socket)
        yield Place(MungeCredentials(str(socket)), os.geteuid(), daemon.terminate)
    finally:
        daemon.terminate()
        daemon.communicate(timeout=10)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


@pytest.fixture(params=["fake", pytest.param("munge", marks=pytest.mark.slurm)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from fake_place() if request.param == "fake" else munge_place(tmp_path)


def test_what_was_sealed_is_opened_with_the_user_who_sealed_it(place: Place) -> None:
    payload = b'{"nonce": "\xc3\xa9", "lines": "a\\nb"}\n\nmore'
    opened = place.credentials.open(place.credentials.seal(payload, None))
    assert (opened.uid, opened.payload) == (place.uid, payload)


def test_a_credential_tells_the_address_of_the_host_where_it_was_sealed(place: Place) -> None:
    opened = place.credentials.open(place.credentials.seal(b"x", None))
    assert ipaddress.ip_address(opened.origin)


def test_an_empty_payload_is_a_payload(place: Place) -> None:
    assert place.credentials.open(place.credentials.seal(b"", None)).payload == b""


def test_a_credential_opens_for_the_user_it_is_for(place: Place) -> None:
    assert place.credentials.open(place.credentials.seal(b"x", place.uid)).payload == b"x"


def test_a_credential_for_another_user_does_not_open(place: Place) -> None:
    text = place.credentials.seal(b"x", place.uid + 1)
    with pytest.raises(Refused, match="for another user"):
        place.credentials.open(text)


def test_a_credential_opens_once(place: Place) -> None:
    text = place.credentials.seal(b"x", None)
    place.credentials.open(text)
    with pytest.raises(Refused, match="used before"):
        place.credentials.open(text)


@pytest.mark.parametrize(
    "text", ["", "x", "MUNGE:AwQFAAA9:", "--help", "MUNGE:\u00e9:", "x" * 9999]
)
def test_what_is_no_credential_is_refused(place: Place, text: str) -> None:
    with pytest.raises(Refused):
        place.credentials.open(text)


def test_a_changed_credential_is_refused(place: Place) -> None:
    text = place.credentials.seal(b"x", None)
    with pytest.raises(Refused):
        place.credentials.open(text[:-9] + "AAAAAAAA" + text[-1:])


def test_a_service_that_is_gone_is_unavailable(place: Place) -> None:
    text = place.credentials.seal(b"x", None)
    place.stop()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            place.credentials.seal(b"x", None)
        except Unavailable:
            break
        time.sleep(0.01)
    with pytest.raises(Unavailable):
        place.credentials.open(text)


def test_an_agent_and_unicrond_shake_hands_with_it(place: Place) -> None:
    identity = Identity(7, "n1", "a1")

    async def main() -> None:
        hands = Hands(place.credentials, judge=lambda _: Verdict("ok"))
        met: asyncio.Future[Session | Refusal] = asyncio.get_running_loop().create_future()

        async def greet(channel: Channel) -> None:
            met.set_result(await shake(channel, accept_agent("n-d", b"k" * 32), hands))

        tasks = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Channel(False, lambda channel: tasks.append(loop.create_task(greet(channel)))),
            "127.0.0.1",
        )
        async with server:
            channel = await dial("127.0.0.1", server.sockets[0].getsockname()[1], 5.0)
            mine = await shake(channel, dial_unicrond(identity, "n-a", {place.uid}), hands)
            assert await met == Session(b"k" * 32, 1, identity, place.uid)
            assert mine == Session(b"k" * 32, 1, None, place.uid)
            channel.close("seen enough")
            await asyncio.gather(*tasks)
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_an_expired_credential_is_refused() -> None:
    realm = FakeRealm()
    text = realm.user(1).seal(b"x", None)
    realm.now = 301.0
    with pytest.raises(Refused, match="expired"):
        realm.user(1).open(text)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts scripts in the place of both commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(script: str) -> None:
        for name in ("munge", "unmunge"):
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)

    return install


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 0", "echo HELLO", "kill -9 $$"])
def test_a_command_that_hangs_or_lies_seals_nothing(commands, script: str) -> None:
    commands(script)
    with pytest.raises(Unavailable):
        MungeCredentials(timeout_seconds=0.2).seal(b"x", None)


@pytest.mark.parametrize("status", [15, 16, 17, 18])
def test_each_status_of_unmunge_has_its_sentence(commands, status: int) -> None:
    commands(f"echo 'STATUS: {status}'; echo 'UID: 0'; echo; exit {status}")
    with pytest.raises(Refused, match="the credential"):
        MungeCredentials().open("MUNGE:x:")


def test_an_exit_code_that_was_lost_is_not_taken_for_success(commands) -> None:
    commands("echo 'STATUS: 17'; echo 'UID: 0'; echo; echo payload; exit 0")
    with pytest.raises(Refused):
        MungeCredentials().open("MUNGE:x:")


def test_commands_that_do_not_exist_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unavailable, match="cannot be started"):
        MungeCredentials().open("MUNGE:x:")
