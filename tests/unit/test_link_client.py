"""The agent's link to unicrond: told once, never blocked, always back."""

from __future__ import annotations

import asyncio
import socket
import time

from linkworld import DAEMON_UID, RUN, USER_UID, Wire, World, eventually, signal, state

from unicrond.link.handshake import Verdict, Versions
from unicrond.link.pace import PACE, Pace
from unicrond.model.events import AgentLeft, OutcomeArrived, SignalArrived


def texts(world: World) -> list[str]:
    return [event.signal.text for event in world.of(SignalArrived)]


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_an_agent_registers_beats_and_knows_that_it_is_heard() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent()
            before = time.monotonic()
            await eventually(lambda: agent.link.last_heard >= before)
            assert agent.link.connected and agent.link.trouble == ""
            assert world.joined[0].registration.node == "n1"
            assert world.joined[0].registration.uid == USER_UID
            assert world.beats[0].agent == "agent-n1"

    asyncio.run(main())


def test_a_change_is_told_at_once_and_small_talk_waits_for_the_next_second() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent(pace=Pace(beat_seconds=0.5))
            await eventually(lambda: world.beats)
            start = time.monotonic()
            for iteration in range(100):
                agent.link.beat(state(iteration=iteration))
            agent.link.beat(state(iteration=100, phase="running", generation=1))
            await eventually(lambda: world.beats[-1].generation == 1)
            assert time.monotonic() - start < 0.3
            assert len(world.beats) <= 3 and world.beats[-1].iteration == 100
            agent.link.beat(state(iteration=101, phase="running", generation=1))
            await eventually(lambda: world.beats[-1].iteration == 101, seconds=1.0)

    asyncio.run(main())


def test_an_assignment_is_sent_when_it_changed_and_not_again() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent()
            await eventually(lambda: world.beats)
            wire = {"generation": 1, "order": "o", "slots": [[0, "m", "n1", 0]]}
            agent.link.beat(state(generation=1, assignment=wire))
            await eventually(lambda: world.beats[-1].assignment)
            agent.link.beat(state(generation=1, assignment=wire, phase="running"))
            await eventually(lambda: world.beats[-1].phase == "running")
            assert world.beats[-1].assignment is None

    asyncio.run(main())


def test_ages_of_peers_grow_until_they_are_sent() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent()
            await eventually(lambda: world.beats)
            heard = time.time() - 5.0
            agent.link.beat(state(peers={"n2": 5.0}))
            await eventually(lambda: world.beats[-1].peers_heard, seconds=2.0)
            assert abs(world.beats[-1].peers_heard["n2"] - heard) < 0.3

    asyncio.run(main())


def test_what_was_told_while_unicrond_was_away_arrives_once_and_in_order() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent()
            await eventually(lambda: agent.link.connected)
            agent.link.send("signal", signal("1"))
            assert await agent.link.drain(5.0)
            await world.server.stop()
            await eventually(lambda: not agent.link.connected)
            for text in "23":
                agent.link.send("signal", signal(text, age=0.5))
            before = time.time()
            await world.restart(pause_seconds=0.3)
            assert await agent.link.drain(5.0)
            assert texts(world) == ["1", "2", "3"]
            assert world.of(SignalArrived)[-1].signal.at < before

    asyncio.run(main())


def test_a_link_that_breaks_before_the_acknowledgement_tells_nothing_twice() -> None:
    async def main() -> None:
        async with World() as world, Wire("127.0.0.1", world.port) as wire:
            world.stores = False
            agent = world.agent(port=wire.port)
            await eventually(lambda: agent.link.connected)
            key = {"incident_id": 1, "generation": 1, "ordinal": 1}
            agent.link.send("signal", signal("once"))
            agent.link.send("outcome", {"key": key, "state": "done"})
            await eventually(lambda: world.of(OutcomeArrived))
            agent.link._channel.close("broken", abort=True)  # type: ignore[union-attr]
            await eventually(lambda: len(world.joined) == 2)
            agent.link.send("signal", signal("after"))
            await eventually(lambda: "after" in texts(world))
            assert not await agent.link.drain(0.1), "nothing is stored yet"
            world.store()
            assert await agent.link.drain(5.0)
            assert texts(world) == ["once", "after"]
            assert len(world.of(OutcomeArrived)) == 1

    asyncio.run(main())


def test_only_what_is_stored_without_a_gap_is_acknowledged() -> None:
    async def main() -> None:
        async with World() as world:
            world.stores = False
            agent = world.agent()
            await eventually(lambda: agent.link.connected)
            for text in "abc":
                agent.link.send("signal", signal(text))
            await eventually(lambda: len(world.acks) == 3)
            world.acks.pop(1)()
            agent.link.beat(state(generation=1))
            await eventually(lambda: world.beats[-1].generation == 1)
            await asyncio.sleep(0.05)
            assert len(agent.link._spool) == 3
            world.acks.pop(0)()
            await eventually(lambda: len(agent.link._spool) == 1)

    asyncio.run(main())


def test_a_cut_link_is_noticed_by_silence_and_dialed_anew_when_it_is_mended() -> None:
    async def main() -> None:
        async with World() as world, Wire("127.0.0.1", world.port) as wire:
            agent = world.agent(port=wire.port)
            await eventually(lambda: agent.link.connected)
            start = time.monotonic()
            wire.cut()
            await eventually(lambda: not agent.link.connected)
            assert 0.3 < time.monotonic() - start < 1.5
            assert agent.link.last_heard <= start
            wire.mend()
            await eventually(lambda: agent.link.connected and len(world.joined) == 2)

    asyncio.run(main())


def test_a_restart_of_unicrond_costs_less_than_a_second_and_a_half() -> None:
    async def main() -> None:
        async with World() as world:
            agents = [world.agent(f"n{n}", pace=PACE) for n in range(8)]
            await eventually(lambda: all(agent.link.connected for agent in agents))
            await world.restart(pause_seconds=0.2)
            start = time.monotonic()
            await eventually(lambda: len(world.server.connected(RUN)) == 8)
            assert time.monotonic() - start < 1.5

    asyncio.run(main())


def test_addresses_are_tried_in_turn() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent(ports=(closed_port(), closed_port(), world.port))
            await eventually(lambda: agent.link.connected)

    asyncio.run(main())


def test_the_address_that_answered_last_comes_first() -> None:
    """Where it breaks off for a moment no other is dialed; where it stays away, the others are."""

    async def main() -> None:
        dialed = []
        other = await asyncio.start_server(lambda _, writer: _note(dialed, writer), "127.0.0.1", 0)
        port = other.sockets[0].getsockname()[1]
        async with World() as world:
            agent = world.agent(ports=(closed_port(), world.port, port))
            await eventually(lambda: agent.link.connected and world.beats)
            agent.link._channel.close("broken", abort=True)  # type: ignore[union-attr]
            await eventually(lambda: len(world.joined) == 2 and agent.link.trouble == "")
            assert not dialed
            await world.server.stop()
            await eventually(lambda: dialed)
        other.close()

    def _note(dialed: list[int], writer: asyncio.StreamWriter) -> None:
        dialed.append(1)
        writer.close()

    asyncio.run(main())


def test_a_job_not_known_yet_is_tried_again_at_once() -> None:
    async def main() -> None:
        async with World() as world:
            world.verdict = Verdict("retry", "job 7 is not known yet")
            agent = world.agent()
            await eventually(lambda: len(world.asked) >= 3)
            assert "not known yet" in agent.link.trouble
            world.verdict = Verdict("ok")
            await eventually(lambda: agent.link.connected, seconds=2.0)

    asyncio.run(main())


def test_a_final_refusal_is_not_tried_again_soon() -> None:
    async def main() -> None:
        async with World() as world:
            world.verdict = Verdict("refused", "job 7 is another user's")
            agent = world.agent()
            await eventually(lambda: "another user's" in agent.link.trouble)
            await asyncio.sleep(0.3)
            assert len(world.asked) == 1

    asyncio.run(main())


def test_an_agent_of_an_unknown_version_is_told_so_and_lives_on() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent(speaks=Versions(5, 6))
            await eventually(lambda: "no common protocol version" in agent.link.trouble)
            assert not agent.task.done()

    asyncio.run(main())


def test_an_impostor_gets_no_registration() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent(trusted=frozenset({0}))
            await eventually(lambda: f"user {DAEMON_UID}, who is not trusted" in agent.link.trouble)
            assert not world.joined

    asyncio.run(main())


def test_no_credential_service_is_a_trouble_that_passes() -> None:
    async def main() -> None:
        async with World() as world:
            world.realm.available = False
            agent = world.agent()
            await eventually(lambda: "does not answer" in agent.link.trouble)
            world.realm.available = True
            await eventually(lambda: agent.link.connected, seconds=3.0)

    asyncio.run(main())


def test_a_run_that_is_over_is_told_once_and_the_agent_did_not_just_leave() -> None:
    async def main() -> None:
        async with World() as world:
            agent = world.agent()
            await eventually(lambda: agent.link.connected)
            agent.link.send("finished", {"exit_code": 3})
            assert await agent.link.drain(5.0)
            agent.link._channel.close("broken", abort=True)  # type: ignore[union-attr]
            await eventually(lambda: not agent.link.connected)
            await eventually(lambda: agent.link.connected)
            await agent.kill()
            await eventually(lambda: not world.server.connected(RUN))
            left = world.of(AgentLeft)
            assert [(event.finished, event.exit_code) for event in left] == [(True, 3)]
            assert len(world.joined) == 1
            assert world.events[-1] is left[0], "nothing is heard of a run that is over"

    asyncio.run(main())


def test_a_long_absence_keeps_the_first_of_each_kind_and_counts_the_rest() -> None:
    async def main() -> None:
        async with World() as world:
            port = world.port
            await world.server.stop()
            agent = world.agent(port=port)
            agent.link.send("signal", signal("cause"))
            for _ in range(1500):
                agent.link.send("signal", signal("repeat"))
            assert agent.link.dropped == 501
            await world.restart()
            assert await agent.link.drain(5.0)
            assert len(texts(world)) == 1000 and texts(world)[0] == "cause"

    asyncio.run(main())


def test_a_spool_full_of_long_texts_gets_through() -> None:
    async def main() -> None:
        async with World() as world:
            port = world.port
            await world.server.stop()
            agent = world.agent(port=port)
            for rank in range(400):
                agent.link.send("signal", signal("x" * 20_000, rank=rank))
            await world.restart()
            assert await agent.link.drain(8.0)
            assert len(texts(world)) == 400
            assert world.server.counts["flood"] == 0 and len(world.joined) == 1

    asyncio.run(main())
