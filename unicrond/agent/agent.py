"""The agent: wires its parts together and ticks them. One asyncio loop; nothing in it may block."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pwd
import signal
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path

from unicrond.agent import lease, orders, slurm, views
from unicrond.agent.conductor import Conductor
from unicrond.agent.executor import Executor
from unicrond.agent.guardian import Guardian
from unicrond.agent.job import Job
from unicrond.agent.leader import Peer
from unicrond.agent.node import Node
from unicrond.agent.options import Spec
from unicrond.agent.orders import Result
from unicrond.agent.output import OutputCopy
from unicrond.agent.ranksocket import RankSocket
from unicrond.agent.settings import Settings
from unicrond.errors import ProtocolError, Refused
from unicrond.link import fields, messages
from unicrond.link.client import DaemonLink
from unicrond.link.frames import Body
from unicrond.link.handshake import Identity
from unicrond.link.munge import MungeCredentials
from unicrond.link.peers import PeerMesh
from unicrond.model.decision import OutcomeState
from unicrond.model.incident import SignalKind
from unicrond.model.run import Assignment, Phase, Slot

log = logging.getLogger(__name__)
TICK_SECONDS = 0.25
PING_SECONDS = 5.0
DAEMON_AWAY_SECONDS = 3.0
ENDING_SECONDS = 12.0  # for the others to say that they end too
DRAIN_SECONDS = 3.0
FLUSH_SECONDS = 3.0
TERMINATED = 128 + signal.SIGTERM


class Agent:
    def __init__(
        self, job: Job, spec: Spec, settings: Settings, guardian: Guardian, folder: Path
    ) -> None:
        self._job = job
        self._spec = spec
        self._settings = settings
        self._guardian = guardian
        self._started = time.monotonic()
        self._slurm_at = self._started  # it has just started this job
        self._pinged_at = -math.inf
        self._seen: dict[str, views.Seen] = {}
        self._newest: Assignment | None = None
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ending = views.NOT_ENDING
        self._left = asyncio.Event()  # the leader said that we may go
        self._lease = lease.LeaseConfig(
            settings.lease_seconds,
            lease.authority_seconds(
                job.facts.slurmd_timeout_seconds, settings.slurmd_timeout_margin_seconds
            ),
        )
        self._socket = RankSocket(folder, self._member, self._progress)
        self._copy = OutputCopy(job.output)
        self._node = Node(
            job,
            spec.program,
            dict(os.environ),
            self._socket.path,
            settings.stop_grace_seconds,
            self._changed,
            self._signal,
            self._copy,
        )
        self._node.ranks.not_ours.add(guardian.pid)
        self._executor = Executor(job, self._node, self._end_run)
        self._conductor = Conductor(job, spec, settings, self)
        identity = Identity(job.run_id, job.node, job.agent)
        self._mesh = PeerMesh(
            identity, job.nodes, job.facts.address, job.secret, self._peer_message
        )
        self._daemon = self._link_to_unicrond(identity)

    def _link_to_unicrond(self, identity: Identity) -> DaemonLink | None:
        if not self._settings.unicrond:
            return None
        trusted = trusted_uids(self._settings.unicrond_user, self._job.facts.slurm_uid)
        return DaemonLink(
            self._settings.unicrond,
            identity,
            self._registration,
            self._daemon_order,
            MungeCredentials(),
            trusted,
        )

    # ------------------------------------------------------------ life

    async def run(self) -> int:
        """The exit code of the run. Nothing of the ranks is left when it returns."""
        loop = asyncio.get_running_loop()
        self._node.ranks.watch(loop)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._terminated)
        left = await self._node.clear_leftovers()
        if left:
            log.error("ranks of an agent before this one cannot be removed: %s", left)
            return 1
        await self._socket.open()
        self._copy.start()
        self._spawn_task(self._mesh.run())
        if self._daemon:
            self._spawn_task(self._daemon.run())
        self._spawn_task(self._tick_for_ever())
        try:
            return await self._over
        finally:
            await self._close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        await asyncio.to_thread(self._copy.finish, FLUSH_SECONDS)

    def _spawn_task(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[object]) -> None:
        """A part that broke ends the agent: its ranks die with it and another agent is started."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error and not self._over.done():
            self._over.set_exception(error)

    def _terminated(self) -> None:
        if self._ending != views.NOT_ENDING and not self._over.done():
            self._over.set_result(self._ending)
        elif not self._node.state.closing:
            log.info("told by Slurm to end")
            self._node.state.closing = True
            self._spawn_task(self._terminate())

    async def _terminate(self) -> None:
        """scancel, requeue, time limit: everything must be gone before KillWait is over."""
        self._conductor.cancel()
        grace = 0.6 * self._job.facts.kill_wait_seconds
        left = await self._node.close(grace)
        if left:
            log.error("%s", left)
        await self._tell_finished(TERMINATED, 0.5)
        if not self._over.done():
            self._over.set_result(TERMINATED)

    # ------------------------------------------------------------ ticking

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick(time.monotonic())
            await asyncio.sleep(TICK_SECONDS)

    def _tick(self, now: float) -> None:
        if not self._guardian.tick():
            log.error("the guardian is gone: a stuck agent would not lose its ranks")
        self._check_lease(now)
        self._tell_beat()
        hubs = self._mesh.hubs()
        if self._job.node in hubs and not self._node.state.closing:
            self._ask_slurm(now)
            self._learn_assignment()
            self._conductor.consider(hubs.index(self._job.node))

    def _check_lease(self, now: float) -> None:
        state = self._node.state
        if state.phase not in (Phase.STARTING, Phase.RUNNING) or state.assignment is None:
            return
        since = max(state.since, self._started)
        ages = {node: now - max(at, since) for node, at in self._mesh.heard.items()}
        ages |= {node: now - since for node in state.assignment.nodes if node not in ages}
        ages[self._job.node] = 0.0
        daemon_age = min(self._daemon_age(now), now - since)
        reason = lease.why_stop(
            state.assignment.nodes, ages, daemon_age, self._authority_age(now), self._lease
        )
        if reason:
            log.warning("lease: %s", reason)
            self._node.lose_lease(reason)

    def _ask_slurm(self, now: float) -> None:
        away = min((s.daemon_age + now - s.at for s in self._seen.values()), default=lease.NEVER)
        if min(away, self._daemon_age(now)) < DAEMON_AWAY_SECONDS:
            return
        if now - self._pinged_at > PING_SECONDS:
            self._pinged_at = now
            self._spawn_task(self._ping())

    async def _ping(self) -> None:
        asked = time.monotonic()
        if await slurm.answers():
            self._slurm_at = asked

    def _daemon_age(self, now: float) -> float:
        return min(now - self._daemon.last_heard, lease.NEVER) if self._daemon else lease.NEVER

    def _authority_age(self, now: float) -> float:
        reports = views.reports(self._seen, now)
        return lease.authority_age(self._daemon_age(now), now - self._slurm_at, reports)

    def _learn_assignment(self) -> None:
        """A leader that has just come asks for the membership of what runs already."""
        newest = self.newest_generation()
        if newest > (self._newest.generation if self._newest else 0):
            for node, seen in self._seen.items():
                if seen.generation == newest:
                    self._mesh.send(node, {"type": "tell"})
                    return

    # ------------------------------------------------------------ telling

    def _changed(self) -> None:
        assignment = self._node.state.assignment
        if assignment:
            self._keep_newest(assignment)
            self._socket.revoke(assignment.generation)
        self._tell_beat()
        state = {"type": "state", **self._peer_state()}
        for hub in self._mesh.hubs():
            if hub != self._job.node:
                self._mesh.send(hub, state)

    def _tell_beat(self) -> None:
        self._mesh.beat(self._peer_state())
        if self._daemon:
            self._daemon.beat({**self._state(), "peers": self._mesh.direct_ages()})

    def _state(self) -> Body:
        state = self._node.state
        assignment = state.assignment
        return {
            "phase": state.phase.value,
            "generation": state.generation,
            "stopped_generation": state.stopped_generation,
            "iteration": state.iteration,
            "assignment": messages.assignment_to(assignment) if assignment else None,
        }

    def _peer_state(self) -> Body:
        now = time.monotonic()
        state = self._node.state
        return {
            "phase": state.phase.value,
            "generation": state.generation,
            "stopped_generation": state.stopped_generation,
            "order": state.order,
            "ranks": self.ranks_per_node,
            "exit_code": state.exit_code,
            "ending": self._ending,
            "daemon_age": rounded_up(self._daemon_age(now)),
            "slurm_age": rounded_up(self._authority_age(now)),
        }

    @property
    def ranks_per_node(self) -> int:
        return self._spec.ranks_per_node or self._job.gpus

    def _registration(self) -> Body:
        return {
            "name": self._spec.name,
            "weight": self._spec.weight,
            "min_nodes": self._spec.min_nodes,
            "max_nodes": self._spec.max_nodes,
            "ranks_per_node": self.ranks_per_node,
            "nodes": list(self._job.nodes),
            "restarts": self._job.restarts,
            **self._state(),
        }

    def _signal(self, kind: SignalKind, body: Body) -> None:
        log.warning("signal kind=%s %s", kind.value, body.get("text", ""))
        if self._daemon:
            self._daemon.send("signal", {"age": 0.0, **body, "kind": kind.value})

    # ------------------------------------------------------------ hearing

    def _daemon_order(self, body: Body) -> None:
        key = body["key"]

        def reply(result: Result) -> None:
            if self._daemon:
                self._daemon.send("outcome", {"key": key, **_outcome(result)})

        self._executor.take(body, reply)

    def _peer_message(self, node: str, body: Body) -> None:
        try:
            self._take_peer_message(node, body)
        except ProtocolError as error:
            log.warning("peer %s: %s", node, error)

    def _take_peer_message(self, node: str, body: Body) -> None:
        kind = body["type"]
        if kind in ("beat", "state"):
            self._seen[node] = views.read(body, time.monotonic())
        elif kind == "order":
            self._peer_order(node, body)
        elif kind == "outcome":
            self._peer_outcome(node, body)
        elif kind == "tell" and self._newest:
            told = messages.assignment_to(self._newest)
            self._mesh.send(node, {"type": "assignment", "assignment": told})
        elif kind == "assignment":
            self._keep_newest(messages.assignment_from(body.get("assignment")))
        elif kind == "leave":
            self._left.set()

    def _peer_order(self, node: str, body: Body) -> None:
        def reply(result: Result) -> None:
            self._mesh.send(node, {"type": "outcome", "key": body["key"], **_outcome(result)})

        fields.text(body, "key", 256)
        self._executor.take(body, reply)

    def _peer_outcome(self, node: str, body: Body) -> None:
        future = self._waiting.get(f"{fields.text(body, 'key', 256)} {node}")
        state = fields.text(body, "state", 100)
        if future and not future.done() and state in list(OutcomeState):
            data = fields.mapping(body, "data")
            future.set_result(Result(OutcomeState(state), fields.text(body, "detail"), data))

    def _keep_newest(self, assignment: Assignment | None) -> None:
        known = self._newest.generation if self._newest else 0
        if assignment and assignment.generation > known:
            self._newest = assignment

    def _member(self, member: str) -> tuple[int, Slot, int] | None:
        slot = self._node.ranks.running.get(member)
        assignment = self._node.state.assignment
        if slot is None or assignment is None:
            return None
        return assignment.generation, slot, assignment.world_size

    def _progress(self, generation: int, iteration: int) -> None:
        self._node.progressed(generation, iteration)

    # ------------------------------------------------------------ what the conductor needs

    def peers(self) -> Mapping[str, Peer]:
        now = time.monotonic()
        heard = self._mesh.heard
        found = {n: views.peer(s, heard.get(n, s.at), now) for n, s in self._seen.items()}
        state = self._node.state
        own = Peer(0.0, state.phase, state.generation, self.ranks_per_node, state.exit_code)
        return {**found, self._job.node: own}

    def assignment(self) -> Assignment | None:
        return self._newest

    def newest_generation(self) -> int:
        known = [seen.generation for seen in self._seen.values()]
        return max([self._node.state.generation, *known])

    def quiet_since(self) -> float:
        return self._executor.last_order_at

    async def order(self, node: str, body: Body, timeout_seconds: float) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if node == self._job.node:
            self._executor.take(body, lambda r: None if future.done() else future.set_result(r))
        else:
            self._waiting[f"{body['key']} {node}"] = future
            if not self._mesh.send(node, body):
                future.set_result(orders.failed(f"there is no way to {node}"))
        try:
            return await asyncio.wait_for(future, timeout_seconds)
        except asyncio.TimeoutError:
            return orders.failed(f"{node} did not answer within {timeout_seconds:g} s")
        finally:
            self._waiting.pop(f"{body['key']} {node}", None)

    # ------------------------------------------------------------ the end

    async def _end_run(self, exit_code: int, reason: str) -> Result:
        """The ranks go first; the agent follows once the outcome is on its way."""
        if self._ending != views.NOT_ENDING:
            return orders.done()
        log.info("the run ends with exit code %d: %s", exit_code, reason)
        left = await self._node.close(self._settings.stop_grace_seconds)
        if left:
            return orders.failed(left)
        self._ending = exit_code
        self._leave_verdict(exit_code)
        self._pass_on_end(exit_code, reason)
        self._changed()
        self._spawn_task(self._leave(exit_code))
        return orders.done()

    def _pass_on_end(self, exit_code: int, reason: str) -> None:
        """An agent that unicrond cannot reach hears it from us."""
        args = {"exit_code": exit_code, "reason": reason}
        key = f"a:{self._job.agent}:end"
        body = {"type": "order", "key": key, "kind": "end_run", "args": args}
        hubs = self._mesh.hubs()
        for node in self._job.nodes if self._job.node in hubs else hubs:
            if node != self._job.node:
                self._mesh.send(node, body)

    def _leave_verdict(self, exit_code: int) -> None:
        """For the wrapper: srun's own code also counts agents that were killed and replaced."""
        if self._job.node not in (self._job.batch_host, self._mesh.leader()):
            return
        try:
            (self._job.output_folder / "verdict").write_text(f"{exit_code}\n", encoding="utf-8")
        except OSError as error:
            log.warning("the verdict cannot be left for the wrapper: %s", error)

    async def _leave(self, exit_code: int) -> None:
        await self._tell_finished(exit_code, DRAIN_SECONDS)
        deadline = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < deadline and not self._left.is_set():
            if self._mesh.leader() == self._job.node and self._all_end():
                break
            await asyncio.sleep(0.05)
        if self._mesh.leader() == self._job.node:
            await self._close_job(exit_code)
            self._mesh.broadcast({"type": "leave"})
            await asyncio.sleep(0.1)  # for it to be on the wire
        if not self._over.done():
            self._over.set_result(exit_code)

    def _all_end(self) -> bool:
        now = time.monotonic()
        lease_seconds = self._settings.lease_seconds
        return all(
            seen.ending != views.NOT_ENDING or now - seen.at > lease_seconds
            for seen in self._seen.values()
        )

    async def _close_job(self, exit_code: int) -> None:
        """Without its batch host a job would never end."""
        host = self._job.batch_host
        seen = self._seen.get(host)
        if host == self._job.node or (seen and seen.ending != views.NOT_ENDING):
            return
        log.warning("the batch host %s is gone: completing the job from here", host)
        try:
            await asyncio.to_thread(slurm.complete, self._job.run_id, exit_code)
        except Refused as error:
            log.error("%s; cancelling the job instead", error)
            await slurm.cancel(self._job.run_id)

    async def _tell_finished(self, exit_code: int, timeout_seconds: float) -> None:
        if self._daemon:
            self._daemon.send("finished", {"exit_code": exit_code})
            await self._daemon.drain(timeout_seconds if self._daemon.connected else 0.2)


def _outcome(result: Result) -> Body:
    return {"state": result.state.value, "detail": result.detail, "data": result.data}


def rounded_up(age: float) -> float:
    """An age that goes round among agents must not become younger."""
    return math.ceil(age * 1000) / 1000


def trusted_uids(unicrond_user: str, slurm_uid: int) -> set[int]:
    found = {0, slurm_uid}
    try:
        found.add(pwd.getpwnam(unicrond_user).pw_uid)
    except KeyError:
        log.warning("user %s does not exist on this node: set unicrond_user", unicrond_user)
    return found
