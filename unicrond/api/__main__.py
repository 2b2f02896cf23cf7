"""The API's process: `python -m unicrond.api [--config FILE] [--until-stdin-closes]`.

Listens on loopback, on the Unix socket, and, where the site wants it, with TLS for everybody who
proves who they are (gate.py).
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
from fastapi import FastAPI

from db.queries import Queries
from unicrond.api.app import create_app
from unicrond.api.control import ControlClient
from unicrond.api.directory import Directory
from unicrond.api.gate import Gate
from unicrond.api.protocol import PeerProtocol
from unicrond.api.sockets import bind_tcp, bind_unix
from unicrond.api.tokens import Tokens, ask_slurm, check_file
from unicrond.api.view import Viewer
from unicrond.config import Settings, load_settings
from unicrond.errors import BadInput
from unicrond.link.munge import MungeCredentials
from unicrond.slurm.command import SlurmCommand

Served = tuple[uvicorn.Server, list[socket.socket]]

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
        _serve(settings, arguments.until_stdin_closes, arguments.holder)
    except BadInput as error:
        print(f"unicrond.api: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="unicrond.api")
    parser.add_argument("--config", type=Path, help="unicron.toml")
    parser.add_argument("--until-stdin-closes", action="store_true")
    parser.add_argument("--holder", default="", help="of the lease, while this unicrond leads")
    return parser.parse_args()


def _serve(settings: Settings, until_stdin_closes: bool, holder: str) -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    path = Path(settings.api_socket)
    with closing(Queries(settings.database_url)) as queries:
        viewer, gate = Viewer(queries), _gate(settings)
        app = create_app(
            queries,
            ControlClient(settings.control_socket),
            cluster=settings.cluster,
            viewer=viewer,
            gate=gate,
            holder=holder,
        )
        viewer.start()
        gate.directory.start()
        try:
            served = _listening(app, settings, path)
            asyncio.run(_run(served, until_stdin_closes))
        finally:
            gate.directory.stop()
            viewer.stop()
            path.unlink(missing_ok=True)


def _gate(settings: Settings) -> Gate:
    seconds = settings.slurm_timeout_seconds
    jwks = check_file(settings.api_jwks)
    tokens = Tokens(jwks, ask_slurm(seconds) if settings.api_slurm_tokens else None)
    return Gate(
        settings.cluster,
        settings.admins,
        settings.operators,
        Directory(SlurmCommand(timeout_seconds=seconds).run),
        tokens if jwks or settings.api_slurm_tokens else None,
        MungeCredentials() if settings.api_munge else None,
    )


def _listening(app: FastAPI, settings: Settings, path: Path) -> list[Served]:
    listeners = [
        _patiently(lambda: bind_tcp(settings.api_listen)),
        _patiently(lambda: bind_unix(path, SOCKET_PERMISSIONS)),
    ]
    served = [(uvicorn.Server(_config(app)), listeners)]
    if settings.api_tls_listen:
        config = _config(
            app,
            ssl_certfile=settings.api_tls_certificate,
            ssl_keyfile=settings.api_tls_key,
        )
        try:
            config.load()
        except (OSError, TypeError) as error:  # ssl's own errors are OSErrors
            raise BadInput(
                f"api_tls_certificate, api_tls_key: {error}; name PEM files that unicrond can read"
            ) from None
        listener = _patiently(lambda: bind_tcp(settings.api_tls_listen))
        served.append((uvicorn.Server(config), [listener]))
    return served


def _config(app: FastAPI, **tls: str) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # whoever connects is who asks
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=2,
        **tls,  # type: ignore[arg-type]
    )


async def _run(served: list[Served], until_stdin_closes: bool) -> None:
    servers = [server for server, _ in served]
    if until_stdin_closes:
        asyncio.get_running_loop().add_reader(sys.stdin, _stop, servers)
    await asyncio.gather(*(_serve_one(*one, servers) for one in served))


async def _serve_one(
    server: uvicorn.Server, listeners: list[socket.socket], servers: list[uvicorn.Server]
) -> None:
    """A signal reaches one of them alone: it ends them all."""
    await server.serve(listeners)
    for other in servers:
        other.should_exit = True


def _stop(servers: list[uvicorn.Server]) -> None:
    """Nobody writes into the pipe: it can be read only once it is closed."""
    for server in servers:
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
