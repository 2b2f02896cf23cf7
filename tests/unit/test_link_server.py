"""The link server under friendly, clumsy and hostile callers, over real sockets."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from linkworld import (
    DEFAULT_LIMITS,
    RUN,
    USER_UID,
    World,
    eventually,
    registration,
    signal,
    state,
)

from unicrond.errors import ProtocolError
from unicrond.link.channel import Channel
from unicrond.link.frames import Body
from unicrond.link.handshake import Identity, Verdict, Versions, dial_unicrond
from unicrond.link.session import Hands, shake
from unicrond.model.decision import Action, ActionKey, ActionKind
from unicrond.model.events import AgentLeft, SignalArrived

ME = Identity(RUN, "n1", "stranger")
BYSTANDER = "n2"


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """No transport may be left behind: it would warn when it is collected, and warnings fail."""
    yield
    gc.collect()


def registered(**changes: object) -> Body:
    names = {"run_id": ME.run_id, "node": ME.node, "agent": ME.agent}
    return {"v": 1, "type": "register", **registration(), **names, **changes}


def beat(number: int = 1, **changes: object) -> Body:
    return {"v": 1, "type": "beat", "beat": number, "dropped": 0, **state(), **changes}


def with_bystander(story: Callable[[World], Awaitable[None]], **options: object) -> None:
    """Runs `story` while another agent goes about its business, which nothing may disturb."""

    async def main() -> None:
        async with World(**options) as world:  # type: ignore[arg-type]
            other = world.agent(BYSTANDER)
            await eventually(lambda: other.link.connected and world.beats)
            await story(world)
            before = other.link.last_heard
            other.link.beat(state(generation=9))
            await eventually(lambda: other.link.last_heard > before)
            assert not [e for e in world.left if e.node == BYSTANDER]

    asyncio.run(main())


async def serving(world: World, *bodies: Body) -> Channel:
    channel = await world.stranger(ME)
    channel.send(registered())
    for body in bodies:
        channel.send(body)
    await eventually(lambda: [e for e in world.joined if e.registration.agent == ME.agent])
    return channel


async def ended(channel: Channel) -> None:
    """Waits until the far end has closed."""
    with suppress(ProtocolError):
        for _ in range(100):
            await asyncio.wait_for(channel.receive(), 8.0)
    assert channel.closed


@pytest.mark.parametrize(
    "bodies",
    [
        pytest.param([beat(phase="asleep")], id="a phase that does not exist"),
        pytest.param([beat(generation="1")], id="a generation in quotes"),
        pytest.param([beat(peers={"n2": -5})], id="a peer heard in the future"),
        pytest.param([beat(v=2)], id="another version than agreed"),
        pytest.param([beat(v=0)], id="an older version than agreed"),
        pytest.param([registered()], id="registers twice"),
        pytest.param([registered(node="n2")], id="registers as another node later"),
        pytest.param([registered(run_id=8)], id="registers for another run later"),
        pytest.param([{"v": 1, "type": "signal"}], id="a signal without number"),
        pytest.param([{"v": 1, "type": "signal", "seq": 1, "kind": 3}], id="a malformed signal"),
        pytest.param([{"v": 1, "type": "outcome", "seq": 1, "key": {}}], id="a keyless outcome"),
        pytest.param([{"v": 1, "type": "finished", "seq": 1, "exit_code": 999}], id="exit 999"),
    ],
)
def test_an_agent_that_breaks_the_rules_is_closed_and_counted(bodies: list[Body]) -> None:
    async def story(world: World) -> None:
        channel = await serving(world, *bodies)
        await ended(channel)
        assert world.server.counts["protocol"] == 1
        assert world.left[-1].silent, "that its process ended is not known"

    with_bystander(story)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: unicrond\r\n\r\n", id="another protocol"),
        pytest.param((1 << 30).to_bytes(4, "big") + b"x" * 100_000, id="1 GB"),
        pytest.param((40).to_bytes(4, "big") + bytes(32) + b"\xff" * 8, id="not UTF-8"),
        pytest.param((40).to_bytes(4, "big") + b"f" * 32 + b'{"v": 1}', id="signed too early"),
        pytest.param((44).to_bytes(4, "big") + bytes(32) + b'{"v": 1.5}  ', id="odd version"),
    ],
)
def test_a_stranger_that_talks_nonsense_is_turned_away(data: bytes) -> None:
    async def story(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(data)
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 5.0)
        writer.close()
        await eventually(lambda: world.server.counts["protocol"] == 1)

    with_bystander(story)


def test_a_message_of_1_gb_after_the_handshake_closes_the_connection() -> None:
    async def story(world: World) -> None:
        channel = await serving(world)
        channel._transport.write((1 << 30).to_bytes(4, "big") + b"x" * 100_000)  # type: ignore[union-attr]
        await ended(channel)
        assert world.server.counts["protocol"] == 1

    with_bystander(story)


def test_a_forged_frame_closes_the_connection_and_says_nothing() -> None:
    async def story(world: World) -> None:
        channel = await serving(world)
        channel._sealer.sign_with(b"guessed" * 5)
        channel.send(beat(iteration=666))
        await ended(channel)
        assert world.server.counts["protocol"] == 1
        assert not [e for e in world.beats if e.iteration == 666]

    with_bystander(story)


def test_a_replayed_frame_closes_the_connection_and_counts_once() -> None:
    async def story(world: World) -> None:
        channel = await serving(world)
        sent = []
        real = channel._sealer.frame
        channel._sealer.frame = lambda body: sent.append(real(body)) or sent[-1]  # type: ignore
        channel.send(beat(iteration=5))
        channel._transport.write(sent[0])  # type: ignore[union-attr]
        await ended(channel)
        assert len([e for e in world.beats if e.iteration == 5]) == 1

    with_bystander(story)


def test_frames_before_the_registration_are_out_of_turn() -> None:
    async def story(world: World) -> None:
        channel = await world.stranger(ME)
        channel.send(beat())
        await ended(channel)
        assert world.server.counts["protocol"] == 1

    with_bystander(story)


def test_a_registration_that_names_another_node_than_was_proved_is_refused() -> None:
    async def story(world: World) -> None:
        channel = await world.stranger(ME)
        channel.send(registered(node=BYSTANDER))
        await ended(channel)
        assert world.server.counts["protocol"] == 1

    with_bystander(story)


def test_another_users_credential_is_refused_with_the_owners_sentence() -> None:
    async def story(world: World) -> None:
        world.verdict = Verdict("refused", "job 7 belongs to user 1000, not to 1001")
        handshake = dial_unicrond(ME, "nonce", {64000})
        channel = await world.caller()
        end = await shake(channel, handshake, Hands(world.realm.user(1001)))
        assert end.reason == "job 7 belongs to user 1000, not to 1001" and not end.retry
        assert world.asked[-1] == (RUN, 1001, "n1")
        assert world.server.counts["refused"] == 1

    with_bystander(story)


def test_a_credential_used_before_is_refused() -> None:
    async def story(world: World) -> None:
        credential = world.realm.user(USER_UID).seal(b"{}", None)
        world.realm.user(5).open(credential)
        channel = await world.caller()
        await channel.receive()
        channel.send({"v": 1, "type": "prove", "speaks": [1, 1], "credential": credential})
        answer = await channel.receive()
        assert answer["type"] == "refuse" and "used before" in answer["reason"]

    with_bystander(story)


@pytest.mark.parametrize(("offered", "spoken"), [((0, 1), 1), ((1, 2), 1), ((5, 6), None)])
def test_an_older_and_a_newer_agent_are_served_and_an_unknown_one_is_told(offered, spoken) -> None:
    async def story(world: World) -> None:
        channel = await world.caller()
        handshake = dial_unicrond(ME, "nonce", {64000}, Versions(*offered))
        end = await shake(channel, handshake, Hands(world.realm.user(USER_UID)))
        if spoken is None:
            assert "no common protocol version" in end.reason
            return
        assert channel.version == spoken
        channel.send(registered())
        channel.send(beat())
        assert (await channel.receive())["beat"] == 1
        channel.close("seen enough")

    with_bystander(story)


def test_a_newer_unicrond_speaks_the_previous_version_with_an_old_agent() -> None:
    async def story(world: World) -> None:
        channel = await world.stranger(ME, speaks=Versions(0, 1))
        channel.send(registered())
        channel.send(beat())
        assert (await channel.receive())["v"] == 1
        channel.close("seen enough")

    with_bystander(story, speaks=Versions(1, 2))


def test_a_message_type_of_the_future_is_passed_over() -> None:
    async def story(world: World) -> None:
        channel = await serving(world, {"v": 1, "type": "dance"}, beat(3))
        assert (await channel.receive())["beat"] == 3
        channel.close("seen enough")

    with_bystander(story)


def test_a_signal_of_an_unknown_kind_is_acknowledged_and_tells_nothing() -> None:
    async def story(world: World) -> None:
        odd = {"v": 1, "type": "signal", "seq": 4, **signal(kind="of the future")}
        channel = await serving(world, odd, beat())
        assert (await channel.receive())["acked"] == 4
        channel.close("seen enough")

    with_bystander(story)


def test_a_flood_closes_its_sender() -> None:
    async def story(world: World) -> None:
        channel = await serving(world)
        for number in range(60):
            channel.send(beat(number))
        await ended(channel)
        assert world.server.counts["flood"] == 1

    with_bystander(story, limits=replace(DEFAULT_LIMITS, burst_frames=50, frames_per_second=20))


def test_a_slow_handshake_ends_and_too_many_at_once_are_turned_away() -> None:
    limits = replace(DEFAULT_LIMITS, half_open_per_address=3, handshake_seconds=0.3)

    async def story(world: World) -> None:
        callers = [await world.caller() for _ in range(5)]
        await eventually(lambda: world.server.counts["half_open"] == 2)
        await eventually(lambda: all(caller.closed for caller in callers))
        assert world.server.counts["slow_handshake"] == 3
        late = await serving(world)
        late.close("seen enough")

    with_bystander(story, limits=limits)


def test_who_dials_while_many_shake_hands_waits_and_is_let_in() -> None:
    limits = replace(DEFAULT_LIMITS, half_open=2, handshake_seconds=0.3)

    async def story(world: World) -> None:
        callers = [await world.caller() for _ in range(2)]
        await asyncio.sleep(0.1)
        gone = await world.caller()
        gone.close("it has no patience", abort=True)
        late = await serving(world)
        assert all(caller.closed for caller in callers)
        assert dict(world.server.counts) == {"slow_handshake": 2}
        late.close("seen enough")

    with_bystander(story, limits=limits)


def test_a_slow_loris_gains_nothing_by_sending_a_byte_at_a_time() -> None:
    async def story(world: World) -> None:
        channel = await world.caller()
        for byte in (100).to_bytes(4, "big") + bytes(96):
            if channel.closed:
                break
            channel._transport.write(bytes([byte]))  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        await eventually(lambda: channel.closed)
        assert world.server.counts["slow_handshake"] == 1

    with_bystander(story, limits=replace(DEFAULT_LIMITS, handshake_seconds=0.3))


def test_one_user_has_a_limit_of_connections() -> None:
    async def story(world: World) -> None:
        channel = await world.caller()
        handshake = dial_unicrond(ME, "nonce", {64000})
        end = await shake(channel, handshake, Hands(world.realm.user(USER_UID)))
        assert end.retry and "too many connections" in end.reason

    with_bystander(story, limits=replace(DEFAULT_LIMITS, per_uid=1))


def test_a_connection_that_ended_counts_no_more_for_its_user() -> None:
    async def main() -> None:
        async with World(replace(DEFAULT_LIMITS, per_uid=1)) as world:
            for count in (1, 2, 3):
                channel = await serving(world)
                channel.close("seen enough")
                await eventually(lambda count=count: len(world.left) == count)

    asyncio.run(main())


def test_an_agent_that_reads_nothing_is_closed_and_blocks_nobody() -> None:
    async def story(world: World) -> None:
        channel = await serving(world)
        channel._transport.pause_reading()  # type: ignore[union-attr]
        big = Action(ActionKey(1, 1, 1), ActionKind.END_RUN, RUN, "n1", {"reason": "x" * 900_000})
        for _ in range(40):
            if not world.server.order(big):
                break
        else:
            raise AssertionError("it was sent 36 MB that nobody reads")
        await eventually(lambda: world.left)
        channel.close("seen enough", abort=True)

    with_bystander(story)


def test_a_second_agent_on_a_node_is_refused_while_the_first_lives_and_let_in_after() -> None:
    async def main() -> None:
        async with World() as world:
            first, second = world.agent("n1", "first"), None
            await eventually(lambda: first.link.connected)
            second = world.agent("n1", "second")
            await eventually(lambda: "has an agent already, first" in second.link.trouble)
            assert first.link.connected and not second.link.connected
            await first.kill()
            await eventually(lambda: len(world.joined) == 2)
            assert [e.agent for e in world.left] == ["first"]
            assert not world.left[0].silent
            assert [e.registration.agent for e in world.joined] == ["first", "second"]

    asyncio.run(main())


def test_a_mute_agent_gives_way_to_another_on_its_node() -> None:
    async def main() -> None:
        async with World(replace(DEFAULT_LIMITS, mute_seconds=0.2)) as world:
            mute = await serving(world)
            second = world.agent("n1", "second")
            await eventually(lambda: second.link.connected and len(world.joined) == 2)
            assert isinstance(world.left[0], AgentLeft) and world.left[0].silent
            mute.close("seen enough", abort=True)
            assert world.events.index(world.left[0]) < world.events.index(world.joined[1])

    asyncio.run(main())


def test_two_that_shake_hands_at_once_for_one_node_do_not_both_get_in() -> None:
    async def main() -> None:
        async with World() as world:
            one = await world.stranger(Identity(RUN, "n1", "one"))
            two = await world.stranger(Identity(RUN, "n1", "two"))
            one.send(registered(agent="one"))
            two.send(registered(agent="two"))
            answer = await two.receive()
            assert answer["type"] == "refuse" and answer["retry"]
            assert len(world.joined) == 1
            one.close("seen enough")

    asyncio.run(main())


def test_the_same_agent_again_replaces_its_connection_and_did_not_leave() -> None:
    async def main() -> None:
        async with World() as world:
            first = await serving(world)
            second = await world.stranger(ME)
            second.send(registered())
            await ended(first)
            await eventually(lambda: len(world.joined) == 2)
            assert not world.left
            second.close("now it leaves")
            await eventually(lambda: world.left)
            assert len(world.left) == 1

    asyncio.run(main())


def test_a_silent_connection_is_given_up_as_silent() -> None:
    async def main() -> None:
        async with World(replace(DEFAULT_LIMITS, silent_seconds=0.3, sweep_seconds=0.1)) as world:
            channel = await serving(world)
            await eventually(lambda: world.left)
            assert world.left[0].silent and world.server.counts["silent"] == 1
            channel.close("seen enough", abort=True)

    asyncio.run(main())


def test_what_the_loop_cannot_take_now_is_told_again() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent("n1")
            await eventually(lambda: agent.link.connected)
            world.takes = False
            agent.link.send("signal", signal("kept"))
            await asyncio.sleep(0.1)
            assert not world.of(SignalArrived)
            world.takes = True
            assert await agent.link.drain(5.0)
            assert len(world.of(SignalArrived)) == 1

    asyncio.run(main())


def test_an_order_reaches_the_agent_it_names_or_all_of_the_run() -> None:
    async def main() -> None:
        async with World() as world:
            one, two = world.agent("n1"), world.agent("n2")
            await eventually(lambda: world.server.connected(RUN) == {"n1", "n2"})
            key = ActionKey(3, 2, 1)
            assert world.server.order(
                Action(key, ActionKind.STOP_RANKS, RUN, "n1", {"generation": 2})
            )
            assert world.server.order(Action(key, ActionKind.END_RUN, RUN, "", {"exit_code": 1}))
            assert not world.server.order(Action(key, ActionKind.STOP_RANKS, RUN, "n3"))
            assert not world.server.order(Action(key, ActionKind.STOP_RANKS, RUN + 1, "n1"))
            await eventually(lambda: len(one.orders) == 2 and len(two.orders) == 1)
            assert one.orders[0]["kind"] == "stop_ranks"
            assert one.orders[0]["args"] == {"generation": 2}
            assert two.orders[0]["key"] == {"incident_id": 3, "generation": 2, "ordinal": 1}

    asyncio.run(main())
