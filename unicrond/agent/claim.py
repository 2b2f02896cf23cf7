"""One agent a node and run: who holds the claim serves it, whoever comes second asks the first.

The claim is an abstract Unix socket, so it ends with its process. A holder that answers stays, and
the newcomer leaves; one that does not answer is stuck, and the newcomer ends it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time

from unicrond.agent import processes

ANSWER_SECONDS = 2.0
TAKE_OVER_SECONDS = 5.0


def _name_of(run_id: int, node: str) -> str:
    return f"\0unicron-{os.getuid()}-{run_id}-{node}"


def is_held(run_id: int, node: str) -> bool:
    """Whether this user's agent of another run lives here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_SECONDS)
        try:
            asking.connect(_name_of(run_id, node))
        except ConnectionRefusedError:
            return False
        except OSError:  # busy
            return True
    return True


class Claim:
    def __init__(self, run_id: int, node: str, agent: str) -> None:
        self._name = _name_of(run_id, node)
        self._agent = agent
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def take(self) -> str:
        """Empty when the claim is ours, else who holds it. Blocks for seconds at most."""
        deadline = time.monotonic() + TAKE_OVER_SECONDS
        while time.monotonic() < deadline:
            try:
                self._socket.bind(self._name)
            except OSError:
                holder = self._ask_holder()
                if holder:
                    return holder
                time.sleep(0.05)
                continue
            self._socket.listen(8)
            self._socket.setblocking(False)
            return ""
        return "a process that cannot be ended"

    def _ask_holder(self) -> str:
        """Its id; "" when it is gone, or has just been ended because it did not answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(ANSWER_SECONDS)
            try:
                asking.connect(self._name)
            except OSError:
                return ""
            pid, uid, _ = struct.unpack(
                "3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if uid != os.getuid():
                return f"user {uid}"
            try:
                return asking.recv(256).decode(errors="replace")
            except OSError:
                processes.kill(pid)
                return ""

    def close(self) -> None:
        self._socket.close()

    def serve(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._socket, self._answer)

    def _answer(self) -> None:
        try:
            connection, _ = self._socket.accept()
            with connection:
                connection.setblocking(False)
                connection.send(self._agent.encode())
        except OSError:  # whoever asked has gone
            return
