"""Bulk from one agent of a run to another, over a connection of its own: no beat waits behind it.

    keeper ── nonce ──> owner ── offer ──> keeper ── answer ──> owner ── bytes ──> keeper ── answer

    nonce           16 random bytes
    offer, answer   length (4 bytes) | HMAC-SHA256 (32 bytes) | JSON, at most 4 KiB
    bytes           the description and the data of a copy, as unicron/arena.py has them in its
                    file; and their HMAC-SHA256, if the offer says that they are signed

The key is made of the run's secret; what is signed is role, nonce and JSON. The offer has the
bytes' checksums, so whatever changes them by chance is noticed; a signature, whatever changes them.
Sockets block: both ends are threads.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from unicron.arena import DESCRIPTION_AT, LARGEST_DESCRIPTION, Head
from unicrond.errors import ProtocolError
from unicrond.link import fields

SILENCE_SECONDS = 10.0
CHUNK_BYTES = 4 << 20
NONCE_BYTES = 16
_MAC_BYTES = 32
_LONGEST = 4096
_LONGEST_NAME = 300
MOST_BYTES = 1 << 44
_OFFER, _ANSWER, _BYTES = b"offer", b"answer", b"bytes"

HAVE, WANT, KEPT, REFUSED = "have", "want", "kept", "refused"


@dataclass(frozen=True)
class Offer:
    """`file` is that of the owner's arena."""

    generation: int
    node: str
    file: str
    head: Head
    signed: bool = False


@dataclass(frozen=True)
class Answer:
    """`why`: of one that is refused."""

    word: str
    why: str = ""


class Pace:
    """No more than so many bytes a second, on the average of a chunk or two."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    def took(self, count: int) -> None:
        now = time.monotonic()
        self._free_at = max(now, self._free_at) + count / self._rate
        if self._free_at > now:
            time.sleep(self._free_at - now)


class _Sealed:
    """One end of a connection; raises OSError and ProtocolError."""

    def __init__(self, out: socket.socket, secret: bytes, nonce: bytes) -> None:
        self._out, self._nonce = out, nonce
        self._key = hmac.digest(secret, b"bulk", "sha256")

    def mac(self, role: bytes) -> hmac.HMAC:
        return hmac.new(self._key, role + self._nonce, "sha256")

    def say(self, role: bytes, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        mac = self.mac(role)
        mac.update(text)
        self._out.sendall(len(text).to_bytes(4, "big") + mac.digest() + text)

    def hear(self, role: bytes) -> dict[str, Any]:
        length = int.from_bytes(exactly(self._out, 4), "big")
        if length > _LONGEST:
            raise ProtocolError(f"a message of {length} bytes where {_LONGEST} are the most")
        given, text = exactly(self._out, _MAC_BYTES), exactly(self._out, length)
        mac = self.mac(role)
        mac.update(text)
        if not hmac.compare_digest(given, mac.digest()):
            raise ProtocolError("a signature is wrong: of another run, forged or replayed")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a message is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise ProtocolError("a message is not an object")
        return body

    def answer(self) -> Answer:
        body = self.hear(_ANSWER)
        word, why = fields.text(body, "answer", 100), fields.text(body, "why", _LONGEST)
        if word not in (HAVE, WANT, KEPT, REFUSED):
            raise ProtocolError(f"an answer {word!r} is not known")
        return Answer(word, why)


def exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray(count)
    fill(source, memoryview(found), lambda _: None)
    return bytes(found)


def fill(source: socket.socket, into: memoryview, took: Callable[[memoryview], object]) -> None:
    """`took` is told of each piece once it is there."""
    done = 0
    while done < len(into):
        count = source.recv_into(into[done : done + CHUNK_BYTES])
        if not count:
            raise ConnectionError("the other end closed the connection")
        took(into[done : done + count])
        done += count


# ---------------------------------------------------------------- the owner of a copy


def hand_over(
    address: tuple[str, int], secret: bytes, offer: Offer, path: Path, took: Callable[[int], None]
) -> Answer:
    """HAVE, KEPT or REFUSED. Raises OSError and ProtocolError. What changes in the file meanwhile
    fits its checksums no more, and is refused there."""
    with socket.create_connection(address, SILENCE_SECONDS) as out, path.open("rb") as file:
        sealed = _Sealed(out, secret, exactly(out, NONCE_BYTES))
        sealed.say(_OFFER, _told(offer))
        answer = sealed.answer()
        if answer.word != WANT:
            return answer
        head, mac = offer.head, sealed.mac(_BYTES) if offer.signed else None
        for start, count in ((DESCRIPTION_AT, head.described), (head.start, head.data_bytes)):
            for at in range(start, start + count, CHUNK_BYTES):
                size = min(CHUNK_BYTES, start + count - at)
                if mac is None:
                    out.sendfile(file, at, size)
                else:
                    file.seek(at)
                    chunk = file.read(size)
                    mac.update(chunk)
                    out.sendall(chunk)
                took(size)
        if mac is not None:
            out.sendall(mac.digest())
        return sealed.answer()


def _told(offer: Offer) -> dict[str, Any]:
    return {
        "generation": offer.generation,
        "node": offer.node,
        "file": offer.file,
        "head": list(astuple(offer.head)),
        "signed": offer.signed,
    }


# ---------------------------------------------------------------- who keeps it too


def take(
    out: socket.socket,
    secret: bytes,
    judge: Callable[[Offer], Answer],
    room: Callable[[Offer, bytes], memoryview],
    keep: Callable[[Offer, memoryview], None],
) -> None:
    """Answers one owner. `room` gives where the data go, `keep` is called once they are there and
    whole. Raises OSError and ProtocolError."""
    out.settimeout(SILENCE_SECONDS)
    nonce = secrets.token_bytes(NONCE_BYTES)
    out.sendall(nonce)
    sealed = _Sealed(out, secret, nonce)
    offer = _offer(sealed.hear(_OFFER))

    def answer(word: str, why: str = "") -> None:
        sealed.say(_ANSWER, {"answer": word, "why": why[: _LONGEST // 4]})

    judged = judge(offer)
    answer(judged.word, judged.why)
    if judged.word != WANT:
        return
    mac = sealed.mac(_BYTES) if offer.signed else None
    description = exactly(out, offer.head.described)
    data = room(offer, description)
    summed = 0

    def took(piece: memoryview) -> None:
        nonlocal summed
        summed = zlib.crc32(piece, summed)
        if mac is not None:
            mac.update(piece)

    if mac is not None:
        mac.update(description)
    fill(out, data, took)
    if mac is not None and not hmac.compare_digest(exactly(out, _MAC_BYTES), mac.digest()):
        answer(REFUSED, "the signature of the bytes is wrong")
    elif (zlib.crc32(description), summed) != (
        offer.head.sum_of_description, offer.head.sum_of_data
    ):  # fmt: skip
        answer(REFUSED, "the bytes do not fit their checksums")
    else:
        keep(offer, data)
        answer(KEPT)


def _offer(body: dict[str, Any]) -> Offer:
    numbers = body.get("head")
    if not isinstance(numbers, list) or [type(one) for one in numbers] != [int] * 5:
        raise ProtocolError("`head` is not five whole numbers")
    head = Head(*numbers)
    if not 0 <= head.described <= LARGEST_DESCRIPTION or not 0 <= head.data_bytes <= MOST_BYTES:
        raise ProtocolError(f"a copy of {head.data_bytes} bytes is offered")
    return Offer(
        fields.integer(body, "generation"),
        fields.name(body, "node"),
        fields.text(body, "file", _LONGEST_NAME),
        head,
        fields.boolean(body, "signed"),
    )
