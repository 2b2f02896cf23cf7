"""The link server: unicrond's side of the wire, and the real Agents port.

It turns what agents say into events and orders into messages. Everything runs in one asyncio loop;
only MUNGE is asked in a few threads. A connection that breaks the rules is closed and counted, and
nothing else is disturbed. No beat is sent unasked: each beat of an agent is answered at once, which
is also how the agent knows that it is heard.

One node of a run has one agent:
    same agent again             the new connection replaces the old one
    another agent, old one open  refused for now, while the old one was heard within 3 s: a new
                                 agent retries until the kernel has closed the dead one's connection
    another agent, old one mute  the new connection replaces it
One node has one root sensor likewise: its run is NO_RUN, its user root, and it sends signals alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from unicrond.errors import ProtocolError
from unicrond.link import fields, messages
from unicrond.link.channel import Channel
from unicrond.link.credentials import Credentials
from unicrond.link.frames import Body
from unicrond.link.handshake import (
    KEY_BYTES,
    NO_RUN,
    SPEAKS,
    Claim,
    Identity,
    Refusal,
    Verdict,
    Versions,
    accept_agent,
    refuse_body,
)
from unicrond.link.memory import Memories, Memory
from unicrond.link.session import Hands, fresh_nonce, shake
from unicrond.model.decision import Action
from unicrond.model.events import (
    AgentJoined,
    AgentLeft,
    Event,
    OutcomeArrived,
    SignalArrived,
)
from unicrond.ports import Clock

log = logging.getLogger(__name__)

REST_SECONDS = 1.0  # when the system takes no more connections

Acknowledge = Callable[[], None]
Emit = Callable[[Event, Acknowledge | None], bool]
"""Takes an event, and what to call (in the loop) once it is stored, for those that are told once.
False when it cannot take more now: what is told once is then told again later."""

Owner = Callable[[Claim], Verdict]
"""Whether the claimed Slurm job belongs to the user and the node is one of its nodes; for NO_RUN,
whether the node is one of the cluster's, and the claim was made there."""


@dataclass(frozen=True, slots=True)
class Limits:
    connections: int = 20_000
    per_uid: int = 16_384
    backlog: int = 4096  # that the kernel holds until they are accepted
    accepted_at_once: int = 16  # before those that were accepted get on
    half_open: int = 128  # past it nobody is accepted for a moment
    half_open_per_address: int = 16
    handshake_seconds: float = 10.0
    burst_frames: int = 4_000  # a full spool after a reconnect, and room
    frames_per_second: int = 100
    heavy_frame_bytes: int = 64 << 10  # a frame counts once more for each of these
    mute_seconds: float = 3.0  # another agent may take the node over
    silent_seconds: float = 15.0  # the connection is given up
    sweep_seconds: float = 1.0
    remembered_agents: int = 32_768
    credential_threads: int = 4


@dataclass(slots=True)
class _Agent:
    """One registered connection."""

    channel: Channel
    claim: Claim
    memory: Memory
    frames: float = 0.0
    answered: int = 0  # number of its last beat
    paces: object = None  # as they were told last
    answer_due: bool = False
    replaced: bool = False

    @property
    def of_node(self) -> bool:
        return self.claim.identity.run_id == NO_RUN


class LinkServer:
    """The Agents port over TCP. All methods belong to the loop that `start` ran in."""

    def __init__(
        self,
        listen: tuple[str, int],
        credentials: Credentials,
        owner: Owner,
        emit: Emit,
        clock: Clock,
        speaks: Versions = SPEAKS,
        limits: Limits = Limits(),
    ) -> None:
        self._listen = listen
        self._owner = owner
        self._emit = emit
        self._clock = clock
        self._speaks = speaks
        self._limits = limits
        self._executor = ThreadPoolExecutor(limits.credential_threads, "credentials")
        self._hands = Hands(credentials, self._executor, self._judge)
        self._agents: dict[int, dict[str, _Agent]] = {}
        self._per_uid: Counter[int] = Counter()
        self._greeting: set[asyncio.Task[None]] = set()
        self._greeting_from: Counter[str] = Counter()
        self._memories = Memories(limits.remembered_agents)
        self._listening: list[socket.socket] = []
        self._resting = True  # nobody is accepted now: who dials waits in the kernel's queue
        self._sweeper: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter()
        """Of connections turned away or closed, by reason."""

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        for family, *_, address in await _addresses(*self._listen):
            self._listening.append(_listening(family, address, self._limits.backlog))
        self._accept_again()
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Closes everything; tells no events."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._rest()
        for listening in self._listening:
            listening.close()
        for task in tuple(self._greeting):
            task.cancel()
        for agent in self._everyone():
            agent.replaced = True
            agent.channel.close("unicrond stops")
        self._executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.sleep(0)

    @property
    def port(self) -> int:
        port: int = self._listening[0].getsockname()[1]
        return port

    def order(self, action: Action) -> bool:
        """To one agent, or to all of the run when the action names no node."""
        agents = self._agents.get(action.run_id or 0, {})
        if action.node:
            chosen = [agents[action.node]] if action.node in agents else []
        else:
            chosen = list(agents.values())
        body = messages.order(action)
        sent = [agent.channel.send({"v": agent.channel.version, **body}) for agent in chosen]
        return any(sent)

    def connected(self, run_id: int) -> frozenset[str]:
        """The nodes of a run whose agents are connected."""
        return frozenset(self._agents.get(run_id, ()))

    def _everyone(self) -> list[_Agent]:
        return [agent for agents in self._agents.values() for agent in agents.values()]

    # ------------------------------------------------------------ letting in

    def _accept_again(self) -> None:
        if self._resting:
            self._resting = False
            for listening in self._listening:
                asyncio.get_running_loop().add_reader(listening, self._accept_some, listening)

    def _rest(self) -> None:
        if not self._resting:
            self._resting = True
            for listening in self._listening:
                asyncio.get_running_loop().remove_reader(listening)

    def _accept_some(self, listening: socket.socket) -> None:
        """A few at a time: to turn thousands away that dial anew at once lets nobody in."""
        for _ in range(self._limits.accepted_at_once):
            if len(self._greeting) >= self._limits.half_open:
                self._rest()
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("no connection can be accepted: %s", error)
                self._rest()
                asyncio.get_running_loop().call_later(REST_SECONDS, self._accept_again)
                return
            self._accept(sock, str(address[0]))

    def _accept(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        if _is_gone(sock):
            sock.close()
        elif self._greeting_from[address] >= self._limits.half_open_per_address:
            self._turn_away(address, "half_open", "too many handshakes at once")
            sock.close()
        elif self._per_uid.total() >= self._limits.connections:
            self._turn_away(address, "connections", "too many connections")
            sock.close()
        else:
            task = asyncio.get_running_loop().create_task(self._greet(sock))
            self._greeting.add(task)
            self._greeting_from[address] += 1
            task.add_done_callback(lambda ended: self._greeted(ended, address))

    def _greeted(self, task: asyncio.Task[None], address: str) -> None:
        self._greeting.discard(task)
        self._greeting_from[address] -= 1
        if not self._greeting_from[address]:
            del self._greeting_from[address]
        if self._sweeper is not None and not self._sweeper.cancelled():
            self._accept_again()

    def _turn_away(self, address: str, count: str, reason: str) -> None:
        self.counts[count] += 1
        log.info("connection turned away address=%s reason=%r", address, reason)

    async def _greet(self, sock: socket.socket) -> None:
        channel = Channel(dialer=False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: channel, sock)
            await asyncio.wait_for(self._let_in(channel), self._limits.handshake_seconds)
        except asyncio.TimeoutError:
            self._turn_away(channel.address, "slow_handshake", "the handshake took too long")
            channel.close("the handshake took too long", abort=True)
        except (ProtocolError, OSError) as error:
            self._turn_away(channel.address, "protocol", str(error))
            channel.close(str(error), abort=True)
        finally:
            if not channel.started:  # also when this task is cancelled
                channel.close("the handshake did not end")

    async def _let_in(self, channel: Channel) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        end = await shake(channel, accept_agent(fresh_nonce(), key, self._speaks), self._hands)
        if isinstance(end, Refusal):
            self._turn_away(channel.address, "refused", end.reason)
            return
        assert end.peer is not None
        self._register(channel, Claim(end.peer, end.uid), await channel.receive())

    def _judge(self, claim: Claim) -> Verdict:
        who = claim.identity
        if who.run_id == NO_RUN and claim.uid != 0:
            return Verdict("refused", "only root speaks for a node")
        verdict = self._owner(claim)
        if verdict.answer != "ok":
            return verdict
        return self._room_for(claim)

    def _room_for(self, claim: Claim) -> Verdict:
        who = claim.identity
        if self._per_uid[claim.uid] >= self._limits.per_uid:
            return Verdict("retry", f"user {claim.uid} has too many connections")
        old = self._agents.get(who.run_id, {}).get(who.node)
        if old is None or old.claim.identity == who:
            return Verdict("ok")
        silence = time.monotonic() - old.channel.last_heard
        if silence >= self._limits.mute_seconds:
            return Verdict("ok")
        return Verdict(
            "retry",
            f"node {who.node} of run {who.run_id} has an agent already, "
            f"{old.claim.identity.agent}, heard {silence:.1f} s ago",
        )

    def _register(self, channel: Channel, claim: Claim, body: Body) -> None:
        if body["type"] != "register":
            raise ProtocolError(f"register was expected, not {body['type'][:40]!r}")
        joined = self._joined(claim, body)
        verdict = self._room_for(claim)  # again: two may have shaken hands at once
        memory = self._memories.of(claim.identity)
        if verdict.answer == "ok":
            self._replace(claim)
            if joined and not memory.finished and not self._emit(joined, None):
                verdict = Verdict("retry", "unicrond is busy")
        if verdict.answer == "ok":
            self._seat(_Agent(channel, claim, memory))
            return
        channel.send(refuse_body(verdict.sentence, True, channel.version))
        channel.close(verdict.sentence)
        self.counts["refused"] += 1

    def _joined(self, claim: Claim, body: Body) -> AgentJoined | None:
        """None for the sensor of a node, which belongs to no run."""
        if claim.identity.run_id == NO_RUN:
            messages.named(body, claim.identity)
            return None
        return AgentJoined(self._clock.now(), messages.registration(body, claim))

    def _seat(self, agent: _Agent) -> None:
        who = agent.claim.identity
        self._agents.setdefault(who.run_id, {})[who.node] = agent
        self._per_uid[agent.claim.uid] += 1
        agent.channel.start(
            lambda body: self._take(agent, body),
            lambda reason, by_peer: self._left(agent, reason, by_peer),
        )

    # ------------------------------------------------------------ taking leave

    def _replace(self, claim: Claim) -> None:
        who = claim.identity
        old = self._agents.get(who.run_id, {}).get(who.node)
        if old is None:
            return
        if old.claim.identity == who:
            old.replaced = True  # the agent did not leave
        old.channel.close("another connection took its place", abort=True)

    def _left(self, agent: _Agent, reason: str, by_peer: bool) -> None:
        who = agent.claim.identity
        agents = self._agents.get(who.run_id, {})
        if agents.get(who.node) is agent:
            del agents[who.node]
            if not agents:
                del self._agents[who.run_id]
        self._per_uid[agent.claim.uid] -= 1
        if not self._per_uid[agent.claim.uid]:
            del self._per_uid[agent.claim.uid]
        self._memories.keep(who, agent.memory)
        if agent.channel.violated:
            self.counts["protocol"] += 1
        log.info("agent left run=%d node=%s reason=%r", who.run_id, who.node, reason)
        if not (agent.replaced or agent.memory.finished or agent.of_node):
            self._emit(self._leave(who, silent=not by_peer), None)

    def _leave(self, who: Identity, silent: bool) -> AgentLeft:
        now = self._clock.now()
        return AgentLeft(now, who.run_id, who.node, who.agent, finished=False, silent=silent)

    async def _sweep(self) -> None:
        """Gives silent connections up and lets flood counters fall."""
        limits = self._limits
        allowed = limits.frames_per_second * limits.sweep_seconds
        while True:
            await asyncio.sleep(limits.sweep_seconds)
            oldest = time.monotonic() - limits.silent_seconds
            for agent in self._everyone():
                agent.frames = max(0.0, agent.frames - allowed)
                if agent.channel.last_heard < oldest:
                    self.counts["silent"] += 1
                    agent.channel.close("nothing was heard of it", abort=True)

    # ------------------------------------------------------------ what agents say

    def _take(self, agent: _Agent, body: Body) -> None:
        agent.frames += 1 + agent.channel.taken_bytes // self._limits.heavy_frame_bytes
        if agent.frames > self._limits.burst_frames:
            self.counts["flood"] += 1
            raise ProtocolError("it sends more than is allowed")
        kind = body["type"]
        if kind == "beat":
            self._take_beat(agent, body)
        elif kind in ("signal", "outcome", "finished"):
            self._take_once(agent, body)
        elif kind == "register":
            raise ProtocolError("it registered twice")
        # Other types come from a newer agent and are none of ours.

    def _take_beat(self, agent: _Agent, body: Body) -> None:
        agent.answered = fields.integer(body, "beat")
        if (dropped := fields.integer(body, "dropped")) > agent.memory.dropped:
            agent.memory.dropped = dropped
            log.warning("signals were lost who=%s count=%d", agent.claim, dropped)
        if not (agent.memory.finished or agent.of_node):
            paces = body.get("paces")
            if paces == agent.paces:  # each is told for three seconds, over a link that loses none
                body["paces"] = ()
            agent.paces = paces
            self._emit(messages.beat(body, agent.claim.identity, self._clock.now()), None)
        self._answer(agent)

    def _take_once(self, agent: _Agent, body: Body) -> None:
        memory = agent.memory
        seq = fields.integer(body, "seq", 1)
        if seq <= memory.taken:
            return
        event = self._told_once(agent, body)
        if event is None:
            memory.taken = seq
            return
        before = memory.taken
        memory.take(seq)
        if memory.full or not self._emit(event, lambda: self._stored(agent, seq)):
            memory.give_back(seq, before)
            agent.channel.close("unicrond is busy: tell it again", abort=True)
        elif body["type"] == "finished":
            memory.finished = True

    def _told_once(self, agent: _Agent, body: Body) -> Event | None:
        who = agent.claim.identity
        now = self._clock.now()
        if agent.of_node and body["type"] != "signal":
            return None
        if body["type"] == "outcome":
            return OutcomeArrived(messages.outcome(body, now), who.run_id, who.node)
        if body["type"] == "finished":
            code = fields.integer(body, "exit_code", 0, 255)
            return AgentLeft(now, who.run_id, who.node, who.agent, True, code)
        signal = messages.signal(body, who, now)
        return None if signal is None else SignalArrived(signal)

    def _stored(self, agent: _Agent, seq: int) -> None:
        agent.memory.stored(seq)
        if not agent.answer_due:  # once for all that one transaction stored
            agent.answer_due = True
            asyncio.get_running_loop().call_soon(self._answer, agent)

    def _answer(self, agent: _Agent) -> None:
        agent.answer_due = False
        acked, version = agent.memory.acked, agent.channel.version
        agent.channel.send_encoded(
            b'{"v":%d,"type":"beat","acked":%d,"beat":%d}' % (version, acked, agent.answered)
        )


async def _addresses(host: str, port: int) -> list[Any]:
    """OSError when there is no such host."""
    kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=kind, flags=passive)


def _listening(family: int, address: tuple[Any, ...], backlog: int) -> socket.socket:
    made = socket.create_server(address, family=family, backlog=backlog)
    made.setblocking(False)
    return made


def _is_gone(sock: socket.socket) -> bool:
    """Who dialed has given up while it waited to be accepted; a dialer speaks second."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
