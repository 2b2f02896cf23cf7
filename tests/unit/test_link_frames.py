"""Frames: what is signed, what is refused, and that no bytes break the decoder."""

from __future__ import annotations

import hmac
import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unicrond.errors import ProtocolError
from unicrond.link.frames import (
    FRAME_LIMIT_BYTES,
    FROM_ACCEPTOR,
    FROM_DIALER,
    MAX_DEPTH,
    Body,
    Decoder,
    Sealer,
    decode_body,
    encode_body,
)

KEY = b"k" * 32
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def frames(*bodies: Body, key: bytes = KEY, direction: bytes = FROM_DIALER) -> list[bytes]:
    sealer = Sealer(direction)
    if key:
        sealer.sign_with(key)
    return [sealer.frame(encode_body(body)) for body in bodies]


def decoder(key: bytes = KEY) -> Decoder:
    made = Decoder(FROM_DIALER)
    if key:
        made.sign_with(key)
    return made


def read(data: bytes, *cuts: int, key: bytes = KEY) -> tuple[list[Body], str]:
    """All bodies and the error that ended the reading, "" if none."""
    made, bodies = decoder(key), []
    edges = sorted({0, *cuts, len(data)})
    try:
        for start, end in itertools.pairwise(edges):
            made.feed(data[start:end])
            while (body := made.take()) is not None:
                bodies.append(body)
    except ProtocolError as error:
        return bodies, str(error)
    return bodies, ""


def body(number: int = 1) -> Body:
    return {"v": 1, "type": "beat", "number": number}


def test_what_was_sealed_is_read_in_order() -> None:
    data = b"".join(frames(body(1), body(2)))
    assert read(data) == ([body(1), body(2)], "")


def test_a_key_can_be_set_between_two_frames_of_one_packet() -> None:
    made = decoder(key=b"")
    made.feed(frames(body(1), key=b"")[0] + frames(body(2))[0])
    assert made.take() == body(1)
    made.sign_with(KEY)
    assert made.take() == body(2)


@pytest.mark.parametrize(
    "tampered",
    [
        pytest.param(lambda f: [f[0], f[0]], id="replayed"),
        pytest.param(lambda f: [f[1], f[0]], id="reordered"),
        pytest.param(lambda f: [f[1]], id="one left out"),
        pytest.param(lambda f: [f[0][:-2] + b"9}"], id="changed"),
        pytest.param(lambda f: frames(body(), key=b"x" * 32), id="another key"),
        pytest.param(lambda f: frames(body(), key=b""), id="unsigned"),
        pytest.param(lambda f: frames(body(), direction=FROM_ACCEPTOR), id="sent back"),
    ],
)
def test_a_frame_that_is_not_the_next_one_of_its_sender_is_refused(tampered) -> None:
    data = b"".join(tampered(frames(body(1), body(2))))
    assert "signature" in read(data)[1]


@pytest.mark.parametrize("length", [0, 31, 32, FRAME_LIMIT_BYTES + 1, 1 << 30, 0xFFFFFFFF])
def test_a_length_out_of_bounds_is_refused_before_anything_of_it_is_read(length: int) -> None:
    assert "allowed here" in read(length.to_bytes(4, "big"))[1]


def test_strangers_may_send_short_frames_only() -> None:
    long = frames({**body(), "text": "x" * 10_000}, key=b"")[0]
    assert "8192 are allowed" in read(long, key=b"")[1]


def test_once_a_key_is_set_a_frame_may_be_long() -> None:
    long = {**body(), "text": "x" * 900_000}
    assert read(frames(long)[0]) == ([long], "")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "1",
        "null",
        '{"v": 1}',
        '{"type": "beat"}',
        '{"v": "1", "type": "beat"}',
        '{"v": true, "type": "beat"}',
        '{"v": 1, "type": 3}',
        '{"v": 1, "type": "beat", "age": NaN}',
        '{"v": 1, "type": "beat", "age": -Infinity}',
        '{"v": 1, "type": "beat", "age": 1e999}',
        '{"v": 1, "type": "beat", "age": ' + "9" * 5000 + "}",
        '{"v": 1, "type": "beat", "text": "\\ud800"}',
        '{"v": 1, "type": "beat", "x": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}",
        '{"v": 1, "type": "beat", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"v": 1, "type": "beat"',
    ],
)
def test_a_body_that_is_not_a_plain_message_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_body(text.encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_body(b'{"v": 1, "type": "\xff"}')


def test_many_flat_objects_are_not_taken_for_deep_ones() -> None:
    flat = {**body(), "slots": [[n, "m", "n1", 0] for n in range(1000)]}
    assert decode_body(encode_body(flat)) == flat


def test_half_a_character_of_a_ranks_output_can_be_told() -> None:
    assert decode_body(encode_body({**body(), "text": "a\udcffb"}))["text"] == "a?b"


@pytest.mark.parametrize("value", [float("nan"), object(), b"bytes", "x" * FRAME_LIMIT_BYTES])
def test_what_the_other_side_would_refuse_is_not_sent(value: object) -> None:
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode_body({**body(), "value": value})


@unhurried
@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    read(data)
    read(data, key=b"")


@unhurried
@given(st.binary(max_size=200), st.binary(max_size=20))
def test_no_body_raises_anything_but_a_protocol_error(data: bytes, tail: bytes) -> None:
    framed = (32 + len(data)).to_bytes(4, "big") + bytes(32) + data
    read(framed + tail, key=b"")


_VALUES = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text('a"\\é€😀\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=8,
)


@unhurried
@given(st.lists(st.dictionaries(st.text("abc"), _VALUES), max_size=5), st.data())
def test_any_split_of_the_stream_gives_the_same_frames(payloads, data) -> None:
    bodies = [{"x": payload, **body(n)} for n, payload in enumerate(payloads)]
    stream = b"".join(frames(*bodies))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    assert read(stream, *cuts) == (bodies, "")


@unhurried
@given(st.data())
def test_any_flipped_bit_ends_the_reading_at_that_frame(data) -> None:
    first, second = frames(body(1), body(2))
    bit = data.draw(st.integers(32, len(second) * 8 - 1))  # past the length
    changed = bytearray(second)
    changed[bit // 8] ^= 1 << bit % 8
    bodies, error = read(first + bytes(changed))
    assert bodies == [body(1)] and "signature" in error


def test_json_on_the_wire_is_plain() -> None:
    assert json.loads(frames(body())[0][36:]) == body()


def test_a_frame_is_signed_by_hmac_over_direction_number_and_body() -> None:
    """docs/protocol.md: whoever speaks it in another language signs so."""
    sealer = Sealer(FROM_DIALER)
    sealer.sign_with(KEY)
    text = encode_body(body())
    for number in range(3):
        frame = sealer.frame(text)
        right = hmac.digest(KEY, FROM_DIALER + number.to_bytes(8, "big") + text, "sha256")
        assert frame[4:36] == right
