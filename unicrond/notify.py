"""systemd's notify protocol: READY, WATCHDOG, STOPPING over the socket that systemd names."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)


def notify(message: str) -> None:
    """Sends one message; does nothing where systemd did not start us."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
            out.sendto(message.encode(), address)
    except OSError as error:
        log.warning("systemd was not notified: %s", error)
