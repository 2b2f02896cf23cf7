"""Listening sockets, and who is on the other end. Standard library: the loop uses it too."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from unicrond.errors import BadInput

_UCRED = struct.Struct("3i")  # pid, uid, gid
BACKLOG = 128


def peer_uid(connection: socket.socket) -> int | None:
    """The uid that the kernel knows of a Unix socket's peer, None when it is no Unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(data)[1])


def bind_unix(path: Path, permissions: int) -> socket.socket:
    """What a process that was killed left behind is removed; what still answers is not."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise BadInput(f"{path}: another process listens there: stop it, or name another")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~permissions)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise BadInput(
            f"{path}: cannot listen there: {error.strerror}; its folder must exist, and be ours"
        ) from error
    finally:
        os.umask(mask)
    return listener


def bind_tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=BACKLOG)
    except OSError as error:
        raise BadInput(
            f"{address}: cannot listen there: {error.strerror}; choose another address or port"
        ) from error
