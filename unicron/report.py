"""Tells the agent of an exception at the moment it is raised, before any tear-down can hang; and of
what was restored."""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Sequence
from types import TracebackType

SOCKET, MEMBER = "UNICRON_SOCKET", "UNICRON_MEMBER"
LONGEST_TEXT = 16 * 1024
LONGEST_SENTENCE = 4096
LIMIT_SECONDS = 0.5


def exception(
    kind: type[BaseException],
    value: BaseException | None,
    trace: TracebackType | None,
    where: str,
) -> bool:
    """Sends the traceback; False when the agent did not take it. Never raises, never hangs."""
    text = "".join(traceback.format_exception(kind, value, trace))[-LONGEST_TEXT:]
    return _tell({"type": "exception", "text": text, "where": where, "pid": os.getpid()})


def restored(lines: Sequence[str]) -> None:
    """What state a rank goes on from, and what was refused; for the run's story."""
    if lines and os.environ.get(SOCKET):
        _tell({"type": "restored", "text": "; ".join(lines)[-LONGEST_SENTENCE:]})


def _tell(body: dict[str, object]) -> bool:
    hello = {"v": 1, "type": "hello", "member": os.environ.get(MEMBER, "")}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as out:
            out.settimeout(LIMIT_SECONDS)
            out.connect(os.environ.get(SOCKET, ""))
            lines = (json.dumps(one) + "\n" for one in (hello, {"v": 1, **body}))
            out.sendall("".join(lines).encode())
    except OSError:
        return False  # no agent to tell: its stderr still says it all
    return True
