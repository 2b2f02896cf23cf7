"""uvicorn's protocol, extended by who asks: uvicorn keeps the connection to itself.

A request that came over a Unix socket carries `peer_uid` in its ASGI scope, one over TCP does not.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from unicrond.api.sockets import peer_uid


class PeerProtocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = cast("socket.socket", transport.get_extra_info("socket"))
        uid = peer_uid(connection)
        if uid is not None:
            self.app = _with_peer(self.app, uid)


def _with_peer(app: Any, uid: int) -> Any:
    async def called(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app(scope | {"peer_uid": uid}, receive, send)

    return called
