"""The API's own process: both sockets, the kernel's word on who asks, and its end with unicrond."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from db.store import open_store
from unicrond.api.control import ControlServer
from unicrond.model.events import Event, ModeSet

ROOT = Path(__file__).parents[2]
READY_SECONDS = 20.0

POST_AS_NOBODY = """
import os, sys, httpx
os.chdir(sys.argv[1])
os.setgid(65534), os.setuid(65534)
with httpx.Client(transport=httpx.HTTPTransport(uds='api.sock')) as client:
    print(client.post("http://unicrond/v1/mode", json={"mode": "paused"}).text)
"""


@dataclass
class World:
    directory: Path
    port: int
    events: list[Event] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.directory / "unicron.toml"

    @property
    def socket(self) -> str:
        return str(self.directory / "api.sock")

    def emit(self, event: Event, stored: Callable[[], None] | None) -> bool:
        self.events.append(event)
        if stored is not None:
            stored()
        return True

    async def start_api(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "unicrond.api", "--config", str(self.config),
            "--until-stdin-closes", cwd=ROOT, stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(READY_SECONDS):
            while process.returncode is None and not Path(self.socket).exists():
                await asyncio.sleep(0.05)
        return process

    @asynccontextmanager
    async def api(self) -> AsyncIterator[None]:
        process = await self.start_api()
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), READY_SECONDS) == 0

    def over_unix(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=self.socket)
        return httpx.AsyncClient(transport=transport, base_url="http://unicrond")

    def over_tcp(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}")


@pytest.fixture
def world(tmp_path: Path) -> World:
    with socket.create_server(("127.0.0.1", 0)) as free:
        world = World(tmp_path, free.getsockname()[1])
    world.config.write_text(
        f'database_url = "sqlite:///{tmp_path}/unicron.db"\n'
        f'api_listen = "127.0.0.1:{world.port}"\n'
        f'api_socket = "{world.socket}"\n'
        f'control_socket = "{tmp_path}/control.sock"\n'
    )
    open_store(f"sqlite:///{tmp_path}/unicron.db").close()
    return world


def play(world: World, story: Callable[[], Awaitable[None]]) -> None:
    async def with_control() -> None:
        control = ControlServer(str(world.directory / "control.sock"), world.emit, lambda: 5.0)
        await control.start()
        try:
            await story()
        finally:
            await control.stop()

    asyncio.run(with_control())


async def code_for_nobody(world: World) -> object:
    world.directory.chmod(0o711)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", POST_AS_NOBODY, world.directory, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    return json.loads(output)["code"]


def test_both_sockets_are_read_and_one_takes_commands_by_who_asks(world: World) -> None:
    async def story() -> None:
        async with world.api(), world.over_tcp() as tcp, world.over_unix() as unix:
            for client in (tcp, unix):
                assert (await client.get("/v1/health")).json()["database"] == "ok"
            assert (await tcp.post("/v1/mode", json={"mode": "active"})).status_code == 403
            answer = await unix.post("/v1/mode", json={"mode": "active", "why": "ready"})
            assert answer.json() == {"mode": "active", "run_id": None}
            if os.getuid() == 0:  # only root can become somebody else
                assert await code_for_nobody(world) == "forbidden"

    play(world, story)
    [event] = world.events
    assert isinstance(event, ModeSet)
    assert event.who.endswith(" (ready)")


def test_the_next_api_takes_over_from_one_that_was_killed(world: World) -> None:
    async def story() -> None:
        killed = await world.start_api()
        killed.kill()
        await killed.communicate()
        async with world.api(), world.over_unix() as unix:
            async with asyncio.timeout(READY_SECONDS):
                while not await answers(unix):
                    await asyncio.sleep(0.05)

    play(world, story)


async def answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/v1/health")).status_code == 200
    except httpx.ConnectError:
        return False


def test_a_wrong_configuration_ends_it_with_exit_code_2(world: World) -> None:
    world.config.write_text("clustre = 1\n")

    async def story() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "unicrond.api", "--config", str(world.config), cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, words = await process.communicate()
        assert process.returncode == 2
        assert b"unknown key clustre; did you mean cluster?" in words

    asyncio.run(story())
