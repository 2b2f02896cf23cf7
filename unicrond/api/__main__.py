"""The API's process: `python -m unicrond.api [--config FILE] [--until-stdin-closes]`.

One uvicorn server listens on loopback, for reading, and on the Unix socket, for commands too.
unicrond starts it with a pipe as its standard input: when unicrond dies, however it dies, the pipe
closes and this process ends, so that the next unicrond finds the addresses free.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import uvicorn

from db.queries import Queries
from unicrond.api.app import create_app
from unicrond.api.control import ControlClient
from unicrond.api.protocol import PeerProtocol
from unicrond.api.sockets import bind_tcp, bind_unix
from unicrond.api.view import Viewer
from unicrond.config import Settings, load_settings
from unicrond.errors import BadInput

SOCKET_PERMISSIONS = 0o666  # everybody may ask; commands are granted by uid
BIND_PATIENCE_SECONDS = 5.0  # for the process before this one to end
MAX_CONNECTIONS = 256
SWITCH_SECONDS = 0.001  # between the thread that keeps the view and those that answer


def main() -> int:
    arguments = _arguments()
    try:
        settings = load_settings(arguments.config)
        logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(message)s")
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it greets
        _serve(settings, arguments.until_stdin_closes)
    except BadInput as error:
        print(f"unicrond.api: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="unicrond.api")
    parser.add_argument("--config", type=Path, help="unicron.toml")
    parser.add_argument("--until-stdin-closes", action="store_true")
    return parser.parse_args()


def _serve(settings: Settings, until_stdin_closes: bool) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    path = Path(settings.api_socket)
    with closing(Queries(settings.database_url)) as queries:
        viewer = Viewer(queries)
        app = create_app(
            queries,
            ControlClient(settings.control_socket),
            cluster=settings.cluster,
            admins=settings.admins,
            viewer=viewer,
        )
        viewer.start()
        config = uvicorn.Config(
            app,
            http=PeerProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        listeners = [
            _patiently(lambda: bind_tcp(settings.api_listen)),
            _patiently(lambda: bind_unix(path, SOCKET_PERMISSIONS)),
        ]
        try:
            asyncio.run(_run(uvicorn.Server(config), listeners, until_stdin_closes))
        finally:
            viewer.stop()
            path.unlink(missing_ok=True)


async def _run(
    server: uvicorn.Server, listeners: list[socket.socket], until_stdin_closes: bool
) -> None:
    if until_stdin_closes:
        asyncio.get_running_loop().add_reader(sys.stdin, _stop, server)
    await server.serve(listeners)


def _stop(server: uvicorn.Server) -> None:
    """Nobody writes into the pipe: it can be read only once it is closed."""
    server.should_exit = True
    asyncio.get_running_loop().remove_reader(sys.stdin)


def _patiently(bind: Callable[[], socket.socket]) -> socket.socket:
    """The API of a unicrond that was just killed may need a moment to notice."""
    deadline = time.monotonic() + BIND_PATIENCE_SECONDS
    while True:
        try:
            return bind()
        except BadInput:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
