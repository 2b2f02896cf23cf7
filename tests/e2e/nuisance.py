"""Sends unicrond everything that no agent would; what is cut off is cut off.

Prints for each kind of nuisance how many bytes were taken before the connection was closed.
"""

from __future__ import annotations

import os
import socket
import struct
import time

UNICROND = "10.77.0.254", 7717
NO_MAC = bytes(32)
MOST_BYTES = 64 << 20
SECONDS = 5.0


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body) + len(NO_MAC)) + NO_MAC + body


NUISANCES = {
    "noise": os.urandom(1 << 16),
    "a message of 1 GB": struct.pack(">I", 1 << 30) + bytes(1 << 20),
    "the longest length": b"\xff" * 4 + bytes(1 << 20),
    "no JSON": frame(b"{" * 1000),
    "a deep nest": frame(b'{"v":1,"type":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "no numbers": frame(b'{"v":NaN,"type":"prove","speaks":[1,1e999]}'),
    "half a character": frame(b'{"v":1,"type":"prove","credential":"\\ud800"}'),
    "out of turn": frame(b'{"v":1,"type":"register","run_id":1}'),
    "http": b"GET / HTTP/1.1\r\nHost: head\r\n\r\n",
}


def send(data: bytes) -> int:
    """Over and over, until the other side has had enough."""
    sent, deadline = 0, time.monotonic() + SECONDS
    with socket.create_connection(UNICROND, 5) as connection:
        connection.settimeout(SECONDS)
        try:
            while sent < MOST_BYTES and time.monotonic() < deadline:
                sent += connection.send(data)
        except OSError:
            pass
    return sent


def main() -> None:
    for name, data in NUISANCES.items():
        print(f"{name}: {send(data)}", flush=True)
    idle = []
    for _ in range(600):
        try:
            idle.append(socket.create_connection(UNICROND, 2))
        except OSError:
            break
    print(f"idle: {len(idle)}", flush=True)
    time.sleep(SECONDS)


if __name__ == "__main__":
    main()
