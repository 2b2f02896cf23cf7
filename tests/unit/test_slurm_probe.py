"""The probe of a slurmd port, against real sockets."""

from __future__ import annotations

import asyncio
import socket

from unicrond.slurm.probe import ProbeResult, probe


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_open_port_passes() -> None:
    async def play() -> ProbeResult:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await probe("n1", "127.0.0.1", port)

    assert asyncio.run(play()).passed


def test_a_refused_port_fails_after_three_tries_with_the_words_of_the_last() -> None:
    result = asyncio.run(probe("n1", "127.0.0.1", _free_port(), limit_seconds=0.2))
    assert (result.node, result.passed) == ("n1", False)
    assert "refused" in result.detail.lower() or "connect call failed" in result.detail.lower()
    assert "3 tries" in result.detail


def test_a_port_that_never_answers_fails_within_its_limits() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(3)]  # fills the queue: the next gets no answer
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(address)
        result = asyncio.run(probe("n1", address[0], address[1], tries=3, limit_seconds=0.2))
        for one in waiting:
            one.close()
    assert not result.passed
    assert "no answer within 0.2 s" in result.detail


def test_a_node_that_comes_back_between_two_tries_passes() -> None:
    port = _free_port()

    async def play() -> ProbeResult:
        asking = asyncio.create_task(probe("n1", "127.0.0.1", port, limit_seconds=1.0))
        await asyncio.sleep(0.1)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        async with server:
            return await asking

    assert asyncio.run(play()).passed
