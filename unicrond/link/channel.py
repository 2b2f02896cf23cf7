"""One connection: signed frames over a TCP socket, in an asyncio loop. Blocks nothing and nobody.

First it is pulled from (`receive`), for the handshake; after `start` it pushes each body into a
callback, which costs a third of a task and a stream for each connection. Whatever is off closes the
connection, and `on_closed` is told once: why, and whether the other side's kernel closed it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping

from unicrond.errors import ProtocolError
from unicrond.link.frames import (
    FRAME_LIMIT_BYTES,
    FROM_ACCEPTOR,
    FROM_DIALER,
    Body,
    Decoder,
    Sealer,
    encode_body,
)

UNSENT_LIMIT_BYTES = 2 * FRAME_LIMIT_BYTES  # a peer that reads slower than this is closed
UNREACHABLE_SECONDS = 10  # until the kernel gives up on what is not acknowledged


class Channel(asyncio.Protocol):
    """`dialer` says which end this is; `on_open` is called once the socket is connected."""

    def __init__(self, dialer: bool, on_open: Callable[[Channel], None] | None = None) -> None:
        ours, theirs = (FROM_DIALER, FROM_ACCEPTOR) if dialer else (FROM_ACCEPTOR, FROM_DIALER)
        self._sealer = Sealer(ours)
        self._decoder = Decoder(theirs)
        self._on_open = on_open
        self._on_body: Callable[[Body], None] | None = None
        self._on_closed: Callable[[str, bool], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.version = 0
        self.address = ""
        self.closed = ""  # why, once it is
        self.closed_by_peer = False
        self.violated = False  # closed because the other side broke the rules
        self.last_heard = time.monotonic()

    @property
    def started(self) -> bool:
        return self._on_body is not None

    @property
    def unsent_bytes(self) -> int:
        """What the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def taken_bytes(self) -> int:
        """Length of the frame that is being handled."""
        return self._decoder.taken_bytes

    # ------------------------------------------------------------ sending

    def send(self, body: Mapping[str, object]) -> bool:
        """False when the connection is closed, or was closed for reading too slowly."""
        return self.send_encoded(encode_body(body))

    def send_encoded(self, body: bytes) -> bool:
        if self.closed or self._transport is None:
            return False
        self._transport.write(self._sealer.frame(body))
        if self.unsent_bytes > UNSENT_LIMIT_BYTES:
            self.close("the other side reads too slowly", abort=True)
        return not self.closed

    def sign_with(self, key: bytes, version: int) -> None:
        """From the next frame on, in both directions."""
        self._sealer.sign_with(key)
        self._decoder.sign_with(key)
        self.version = version

    # ------------------------------------------------------------ receiving

    async def receive(self) -> Body:
        """The next body, before `start`; ProtocolError when the connection closes first."""
        while True:
            if self.closed:
                raise ProtocolError(self.closed)
            body = self._decoder.take()
            if body is not None:
                self._check_version(body)
                return body
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def start(
        self, on_body: Callable[[Body], None], on_closed: Callable[[str, bool], None]
    ) -> None:
        """From now on each body goes to `on_body`, those that have come already first."""
        self._on_body = on_body
        self._on_closed = on_closed
        if self.closed:
            on_closed(self.closed, self.closed_by_peer)
        else:
            self._push()

    def _push(self) -> None:
        assert self._on_body is not None
        take = self._decoder.take
        try:
            while not self.closed and (body := take()) is not None:
                self._check_version(body)
                self._on_body(body)
        except ProtocolError as error:
            self.violated = True
            self.close(str(error), abort=True)

    def _check_version(self, body: Body) -> None:
        if self.version and body["v"] != self.version:
            raise ProtocolError(f"a message of version {body['v']} where {self.version} was agreed")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------ closing

    def close(self, reason: str, abort: bool = False, by_peer: bool = False) -> None:
        """What was sent before still goes out, unless `abort`."""
        if self.closed:
            return
        self.closed = reason
        self.closed_by_peer = by_peer
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
        self._wake()
        if self._on_closed is not None:
            self._on_closed(reason, by_peer)

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        _tune(transport.get_extra_info("socket"))
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.last_heard = time.monotonic()
        self._decoder.feed(data)
        if self._on_body is not None:
            self._push()
            return
        if self._decoder.held_bytes > UNSENT_LIMIT_BYTES:
            self.close("too much was sent before the handshake was over", abort=True)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        gave_up = isinstance(exc, OSError) and not isinstance(exc, ConnectionError)
        self.close(f"the connection ended: {exc or 'closed by the peer'}", by_peer=not gave_up)


async def dial(host: str, port: int, timeout_seconds: float) -> Channel:
    """OSError when nobody is there, asyncio.TimeoutError when nobody answers."""
    channel = Channel(dialer=True)
    connecting = asyncio.get_running_loop().create_connection(lambda: channel, host, port)
    await asyncio.wait_for(connecting, timeout_seconds)
    return channel


def _tune(sock: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, UNREACHABLE_SECONDS * 1000)
