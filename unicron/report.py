"""Tells the agent of an exception at the moment it is raised, before any tear-down can hang."""

from __future__ import annotations

import json
import os
import socket
import traceback
from types import TracebackType

SOCKET, MEMBER = "UNICRON_SOCKET", "UNICRON_MEMBER"
LONGEST_TEXT = 16 * 1024
LIMIT_SECONDS = 0.5


def exception(
    kind: type[BaseException],
    value: BaseException | None,
    trace: TracebackType | None,
    where: str,
) -> bool:
    """Sends the traceback; False when the agent did not take it. Never raises, never hangs."""
    text = "".join(traceback.format_exception(kind, value, trace))[-LONGEST_TEXT:]
    hello = {"v": 1, "type": "hello", "member": os.environ.get(MEMBER, "")}
    body = {"v": 1, "type": "exception", "text": text, "where": where, "pid": os.getpid()}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
            out.settimeout(LIMIT_SECONDS)
            out.connect(os.environ.get(SOCKET, ""))
            out.sendall((json.dumps(hello) + "\n" + json.dumps(body) + "\n").encode())
    except OSError:
        return False  # no agent to tell: its stderr still says it all
    return True
