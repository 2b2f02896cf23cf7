"""Frames: a length, an HMAC and one JSON object. Pure; docs/protocol.md draws them.

    length (4 bytes, of what follows) | HMAC-SHA256 (32 bytes) | body (UTF-8 JSON)

A Sealer makes the frames of one direction, a Decoder reads them. Both count frames, so that a frame
replayed, reordered, forged or sent back at its sender does not verify.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from unicrond.errors import ProtocolError

Body = dict[str, Any]

FRAME_LIMIT_BYTES = 1 << 20
HANDSHAKE_LIMIT_BYTES = 8 << 10  # strangers may not make us hold more than this
MAX_DEPTH = 16
FROM_DIALER = b"D"
FROM_ACCEPTOR = b"A"

_LENGTH_BYTES = 4
_MAC_BYTES = 32
_HEAD_BYTES = _LENGTH_BYTES + _MAC_BYTES
_BLOCK_BYTES = 64  # of SHA-256; keys are shorter
_MAX_DIGITS = 20
_UNSIGNED = bytes(_MAC_BYTES)


def encode_body(body: Mapping[str, object]) -> bytes:
    """The JSON of `body`. ProtocolError if it may not be sent: too long, or not JSON."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"this message cannot be sent: {error}") from error
    data = text.encode("utf-8", "replace")  # a rank's stderr may hold half a character
    if len(data) > FRAME_LIMIT_BYTES - _MAC_BYTES:
        raise ProtocolError(f"this message cannot be sent: {len(data)} bytes are over 1 MiB")
    return data


def decode_body(data: bytes) -> Body:
    """The JSON object in `data`, with its `v` and `type`; anything else is a ProtocolError."""
    try:
        reader = _JSON if _has_odd_number(data) else _FAST_JSON
        body = reader.decode(data.decode("utf-8"))
        if b"\\u" in data:  # an escaped half of a character could not be stored
            json.dumps(body, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame's body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ProtocolError("a frame's body is not a JSON object")
    if type(body.get("v")) is not int or type(body.get("type")) is not str:
        raise ProtocolError("a message lacks `v` (an integer) or `type` (a string)")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(body)
    return body


def _check_depth(body: Body) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for outer in level
            for child in (outer.values() if type(outer) is dict else outer)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise ProtocolError(f"a message is nested deeper than {MAX_DEPTH}")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # int() takes quadratic time
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number beyond all bounds")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_JSON = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_no_constant)
_FAST_JSON = json.JSONDecoder(parse_constant=_no_constant)  # reads its numbers in C
# A body with such digits in it, be it in a text, is read with care: all others hold no number that
# is beyond bounds. Two searches in C, since each beat of each agent goes through here.
_FORMS = bytes(48 if 48 <= c < 58 else 101 if c in b"eE" else 32 for c in range(256))
_LONG, _STEEP = b"0" * (_MAX_DIGITS + 1), b"e000"


def _has_odd_number(data: bytes) -> bool:
    forms = data.translate(_FORMS, b"+")
    return _LONG in forms or _STEEP in forms


class _Signer:
    """HMAC-SHA256 of the frames of one direction, counted. The key's part is hashed once: what
    `hmac.digest` sets up anew for each frame takes longer than a beat's own hash."""

    def __init__(self, direction: bytes, key: bytes) -> None:
        padded = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + direction)
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))
        self._count = 0

    def next(self, body: bytes) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(self._count.to_bytes(8, "big"))
        inner.update(body)
        outer.update(inner.digest())
        self._count += 1
        return outer.digest()


class Sealer:
    """Makes the frames of one direction; unsigned until it is given a key."""

    def __init__(self, direction: bytes) -> None:
        self._direction = direction
        self._signer: _Signer | None = None

    def sign_with(self, key: bytes) -> None:
        self._signer = _Signer(self._direction, key)

    def frame(self, body: bytes) -> bytes:
        mac = self._signer.next(body) if self._signer else _UNSIGNED
        return (_MAC_BYTES + len(body)).to_bytes(_LENGTH_BYTES, "big") + mac + body


class Decoder:
    """Takes bytes as they come and gives bodies one at a time, so that a key can be set between.

    After a ProtocolError nothing more may be read: the connection is to be closed.
    """

    def __init__(self, direction: bytes) -> None:
        self._direction = direction
        self._signer: _Signer | None = None
        self._limit = HANDSHAKE_LIMIT_BYTES
        self._buffer = bytearray()
        self.taken_bytes = 0  # of the last frame

    def sign_with(self, key: bytes) -> None:
        self._signer = _Signer(self._direction, key)
        self._limit = FRAME_LIMIT_BYTES

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Body | None:
        """The next body, or None until more bytes have come."""
        buffer = self._buffer
        if len(buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[:_LENGTH_BYTES], "big")
        if not _MAC_BYTES < length <= self._limit:
            raise ProtocolError(f"a frame of {length} bytes; {self._limit} are allowed here")
        end = _LENGTH_BYTES + length
        if len(buffer) < end:
            return None
        frame = bytes(buffer[:end])
        del buffer[:end]
        self.taken_bytes = length
        body = frame[_HEAD_BYTES:]
        self._verify(frame[_LENGTH_BYTES:_HEAD_BYTES], body)
        return decode_body(body)

    def _verify(self, mac: bytes, body: bytes) -> None:
        right = self._signer.next(body) if self._signer else _UNSIGNED
        if not hmac.compare_digest(mac, right):
            raise ProtocolError("a frame's signature is wrong: forged, replayed or out of order")
