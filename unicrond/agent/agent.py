"""The agent: wires its parts together and ticks them. One asyncio loop; nothing in it may block."""

from __future__ import annotations

import asyncio
import logging
import math
import pwd
import random
import signal
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path

from detectors.readings import Printed, Sighting
from unicrond.agent import copies, lease, notice, slurm
from unicrond.agent.conductor import Conductor
from unicrond.agent.ending import Ending
from unicrond.agent.executor import Executor
from unicrond.agent.fellows import Fellows, outcome
from unicrond.agent.guardian import Guardian
from unicrond.agent.inside import Inside
from unicrond.agent.job import Job
from unicrond.agent.node import Node
from unicrond.agent.notice import Notice
from unicrond.agent.options import Spec
from unicrond.agent.orders import Result
from unicrond.agent.output import OutputCopy
from unicrond.agent.ranksocket import RankSocket
from unicrond.agent.sensors import choice, runner
from unicrond.agent.settings import Settings
from unicrond.agent.spread import Spread
from unicrond.agent.standby import SWITCH, Standby
from unicrond.errors import SlurmUnavailable
from unicrond.link import messages
from unicrond.link.client import DaemonLink
from unicrond.link.credentials import Credentials
from unicrond.link.frames import Body
from unicrond.link.handshake import Identity
from unicrond.link.jobproof import JobProof
from unicrond.link.munge import MungeCredentials
from unicrond.link.tasks import end_all
from unicrond.link.workload import workload_to
from unicrond.model.incident import SignalKind
from unicrond.model.run import Phase, Slot

log = logging.getLogger(__name__)
TICK_SECONDS = 0.25
PING_SECONDS = 5.0
DAEMON_AWAY_SECONDS = 3.0
LOOK_SECONDS = 10.0
PASSED_OVER_LOOK_SECONDS = 2.0
WITHOUT_US = {
    slurm.Standing.OVER: "is over",
    slurm.Standing.TAKEN: "goes on without this node",
}
UNHEARD_DRAIN_SECONDS = 0.2  # nobody is there to take it
FLUSH_SECONDS = 3.0


class Agent:
    def __init__(
        self,
        job: Job,
        spec: Spec,
        settings: Settings,
        environment: Mapping[str, str],
        guardian: Guardian,
        folder: Path,
    ) -> None:
        self._job = job
        self._spec = spec
        self._settings = settings
        self._guardian = guardian
        self._started = time.monotonic()
        self._slurm_at = self._started  # it has just started this job
        self._pinged_at = -math.inf
        self._cut_off = -1  # generation in which the lease ran out here
        self._held_in = -1  # generation of others, in which Slurm still counted us to the job
        self._look_at = 0.0
        self._tasks: set[asyncio.Task[object]] = set()
        self._lease = lease.LeaseConfig(
            settings.lease_seconds,
            lease.authority_seconds(
                job.facts.slurmd_timeout_seconds, settings.slurmd_timeout_margin_seconds
            ),
        )
        self._copy = OutputCopy(job.output)
        self._inside = Inside(folder, environment.get("UNICRON_HOME", ""), self._signal)
        self._restored_in = -1  # generation
        self._socket = RankSocket(
            folder, self._place, self._progress, self._inside.exception, self._restored
        )
        self._node = self._node_with(environment, folder)
        self._node.ranks.not_ours.add(guardian.pid)
        self._ending = Ending(job, settings, self._node, self._tell_finished, self._copy.say)
        self._executor = Executor(job, self._node, self._end_run)
        self._spread = Spread(
            job, settings, copies.folder_of(job.run_id, job.node), self._send, self._copy.say
        )
        self._fellows = Fellows(
            job,
            self._peer_state,
            self._executor,
            self._ending.let_go,
            self._socket.stay,
            self._spread.hear,
        )
        self._conductor = Conductor(
            job, spec, settings, self._fellows, self._executor, self._ping, self._copy.say
        )
        self._notice = Notice(
            lambda: self._node.ranks.pids,
            lambda: self._fellows.leads,
            lambda why: self._keep_going(self._conductor.requeue(why)),
            self._copy.say,
        )
        self._daemon = self._link_to_unicrond()
        home = environment.get("UNICRON_HOME", "")
        sensors = choice.sensors_of(settings, home, self._node.ranks.files)
        self._sensors = runner.Sensors(sensors, self._sighted)

    def _credentials(self) -> Credentials:
        key = self._settings.unicrond_key
        return JobProof(self._job.run_id, self._job.secret, key) if key else MungeCredentials()

    def _node_with(self, environment: Mapping[str, str], folder: Path) -> Node:
        program, why_not = self._spec.program, why_no_standby(self._settings, environment)
        return Node(
            self._job,
            program,
            environment,
            self._socket,
            self._settings.stop_grace_seconds,
            self._changed,
            self._signal,
            self._copy,
            self._inside,
            lambda known: Standby(program, folder, known, why_not),
        )

    def _link_to_unicrond(self) -> DaemonLink | None:
        if not self._settings.unicrond:
            return None
        return DaemonLink(
            self._settings.unicrond,
            Identity(self._job.run_id, self._job.node, self._job.agent),
            self._registration,
            self._daemon_order,
            self._credentials(),
            trusted_uids(self._settings.unicrond_user, self._job.facts.slurm_uid),
        )

    # ------------------------------------------------------------ life

    async def run(self) -> int:
        """The exit code of the run. Nothing of the ranks is left when it returns."""
        loop = asyncio.get_running_loop()
        self._node.ranks.watch(loop)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._ending.terminated)
        for number in notice.SIGNALS:
            loop.add_signal_handler(number, self._notice.heard, number)
        left = await self._node.clear_leftovers()
        if left:
            log.error("ranks of an agent before this one cannot be removed: %s", left)
            return 1
        await self._socket.open()
        self._copy.start()
        self._spread.start()
        self._keep_going(self._fellows.mesh.run())
        if self._daemon:
            self._keep_going(self._daemon.run())
        self._keep_going(self._tick_for_ever())
        self._sensors.start(loop)
        try:
            return await self._ending.over
        finally:
            await self._close()

    async def _close(self) -> None:
        self._conductor.cancel()
        self._sensors.stop()
        await end_all(self._tasks)
        self._socket.close()
        await asyncio.to_thread(self._spread.stop)
        await asyncio.to_thread(self._copy.finish, FLUSH_SECONDS)

    def _keep_going(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[object]) -> None:
        """A part that broke ends the agent: its ranks die with it and another agent is started."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._ending.over.done():
            self._ending.over.set_exception(error)

    # ------------------------------------------------------------ ticking

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick(time.monotonic())
            await asyncio.sleep(TICK_SECONDS)

    def _tick(self, now: float) -> None:
        if not self._guardian.tick():
            log.error("the guardian is gone: a stuck agent would not lose its ranks")
        self._check_lease(now)
        self._look_whether_it_is_over(now)
        self._leave_without_base(now)
        self._node.progressed(self._node.state.generation, self._inside.look())
        self._node.look_at_standby(now)
        self._sensors.check(now)
        self._fellows.tell_newcomers()
        self._spread.tick(now, self._node.state.assignment)
        self._tell_daemon()
        position = self._fellows.position
        if position is not None and not self._node.state.closing:
            self._ask_slurm(now)
            self._fellows.ask_membership()
            if not self._passed_over:
                self._conductor.consider(position)

    def _leave_without_base(self, now: float) -> None:
        """A companion whose base is not heard any more would hold its nodes for ever."""
        base = self._job.base_nodes
        if not base or self._node.state.closing:
            return
        ages = self._fellows.ages(since=self._started)
        if min(ages[node] for node in base) > self._settings.unattended_timeout_seconds:
            log.warning("nothing is heard of the run that this companion is for: leaving")
            self._ending.terminated()

    def _check_lease(self, now: float) -> None:
        state = self._node.state
        if not self._node.has_ranks or state.assignment is None:
            return
        age = now - state.since  # whoever ordered the start had just been answered
        reason = lease.why_stop(
            state.assignment.nodes,
            self._fellows.member_ages(since=state.since),
            min(self._daemon_age(now), age),
            min(self._authority_age(now), age),
            self._lease,
        )
        if reason:
            self._cut_off = state.generation
            self._node.lose_lease(reason)

    def _look_whether_it_is_over(self, now: float) -> None:
        """A node that was cut off may come back after the end of its job, or after Slurm took it
        from the job: Slurm 24.11 ends no process there."""
        if not self._cut_off_now or self._node.state.closing or now < self._look_at:
            return
        passed_over = self._passed_over
        pace = PASSED_OVER_LOOK_SECONDS if passed_over else LOOK_SECONDS
        self._look_at = now + pace * random.uniform(0.5, 1.5)
        if passed_over or self._daemon_age(now) > DAEMON_AWAY_SECONDS:
            self._keep_going(self._end_if_over())

    @property
    def _cut_off_now(self) -> bool:
        state = self._node.state
        return state.phase is Phase.BROKEN and state.generation == self._cut_off

    @property
    def _passed_over(self) -> bool:
        """The others went on, maybe in a job without this node: it leads nobody before Slurm says
        that it is part of the job."""
        if not self._cut_off_now:  # asking all peers each tick is for those alone that need it
            return False
        return self._fellows.newest_generation() > max(self._cut_off, self._held_in)

    async def _end_if_over(self) -> None:
        job, newest = self._job, self._fellows.newest_generation()
        try:
            standing = await slurm.standing(*job.in_slurm, job.node)
        except SlurmUnavailable:
            return
        if standing is slurm.Standing.HELD:
            self._held_in = newest
            return
        log.warning("Slurm says that the job %s", WITHOUT_US[standing])
        self._ending.terminated()

    def _ask_slurm(self, now: float) -> None:
        """While unicrond is away the hubs ask slurmctld; never else, to spare it."""
        away = min(self._fellows.daemon_age(), self._daemon_age(now)) > DAEMON_AWAY_SECONDS
        if away and now - self._pinged_at > PING_SECONDS:
            self._pinged_at = now
            self._keep_going(self._ping())

    async def _ping(self) -> bool:
        asked = time.monotonic()
        answered = await slurm.answers()
        if answered:
            self._slurm_at = asked
        return answered

    def _daemon_age(self, now: float) -> float:
        return min(now - self._daemon.last_heard, lease.NEVER) if self._daemon else lease.NEVER

    def _authority_age(self, now: float) -> float:
        own = self._daemon_age(now), now - self._slurm_at
        return lease.authority_age(*own, self._fellows.reports())

    # ------------------------------------------------------------ telling

    def _changed(self) -> None:
        assignment = self._node.state.assignment
        if assignment:
            self._fellows.keep_newest(assignment)
        self._fellows.tell()
        self._tell_daemon()

    def _tell_daemon(self) -> None:
        if self._daemon:
            peers = self._fellows.mesh.direct_ages()
            paces = self._inside.paces()
            self._daemon.beat({**self._state(), "peers": peers, "paces": paces})

    def _send(self, node: str, body: Body) -> bool:
        return self._fellows.mesh.send(node, body)

    def _state(self) -> Body:
        state = self._node.state
        assignment = state.assignment
        return {
            "phase": state.phase.value,
            "generation": state.generation,
            "stopped_generation": state.stopped_generation,
            "iteration": state.iteration,
            "counted": self._inside.counted,
            "flops": self._inside.flops,
            "regrouping": self._node.regrouping,
            "prepared": self._node.prepared,
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
            "ranks": self._ranks,
            "exit_code": state.exit_code,
            "ending": self._ending.exit_code,
            "daemon_age": rounded_up(self._daemon_age(now)),
            "slurm_age": rounded_up(self._authority_age(now)),
        }

    @property
    def _ranks(self) -> int:
        return self._spec.ranks_per_node or self._job.gpus

    def _registration(self) -> Body:
        return {
            "name": self._spec.name,
            "weight": self._spec.weight,
            "min_nodes": self._spec.min_nodes,
            "max_nodes": self._spec.max_nodes,
            "ranks_per_node": self._ranks,
            "nodes": list(self._job.nodes),
            "restarts": self._job.restarts,
            "lease_seconds": self._settings.lease_seconds,
            "workload": workload_to(self._spec.workload, len(self._job.nodes) * self._ranks),
            **self._state(),
        }

    def _signal(self, kind: SignalKind, body: Body) -> None:
        log.warning("signal kind=%s %s", kind.value, body.get("text", ""))
        if self._node.state.phase is Phase.BROKEN:
            self._copy.say(str(body.get("text", "")))
        if self._daemon:
            self._daemon.send("signal", {"age": 0.0, **body, "kind": kind.value})

    def _sighted(self, sighting: Sighting, count: int) -> None:
        body = runner.body(sighting, count)
        if isinstance(sighting, Printed):
            self._printed(sighting, body)
        else:
            generation = self._node.state.generation
            self._signal(SignalKind.HARDWARE, {**body, "generation": generation})

    def _printed(self, said: Printed, body: Body) -> None:
        """Of a rank that has ended meanwhile its exit tells more."""
        launch = self._node.ranks.that_writes(said.where)
        if launch is not None:
            slot, data = launch.slot, {**body["data"], "blame": str(said.blame)}
            about = {"rank": slot.rank, "member": slot.member, "generation": launch.generation}
            self._signal(SignalKind.PRINTED, {**body, **about, "data": data})

    async def _tell_finished(self, exit_code: int, timeout_seconds: float) -> None:
        if self._daemon:
            self._daemon.send("finished", {"exit_code": exit_code})
            seconds = timeout_seconds if self._daemon.connected else UNHEARD_DRAIN_SECONDS
            await self._daemon.drain(seconds)

    # ------------------------------------------------------------ hearing

    def _daemon_order(self, body: Body) -> None:
        key = body["key"]

        def reply(result: Result) -> None:
            if self._daemon:
                self._daemon.send("outcome", {"key": key, **outcome(result)})

        self._executor.take(body, reply)

    async def _end_run(self, exit_code: int, reason: str) -> Result:
        return await self._ending.end_run(exit_code, reason, self._fellows)

    def _restored(self, member: str, text: str) -> None:
        """Once a generation: a script may do it again and again."""
        generation = self._node.state.generation
        if self._restored_in != generation:
            self._restored_in = generation
            about = {"member": member, "generation": generation}
            self._signal(SignalKind.RESTORED, {**about, "text": text})

    def _place(self, member: str) -> tuple[Slot, int] | None:
        return self._node.place_of(member)

    def _progress(self, generation: int, iteration: int) -> None:
        self._node.progressed(generation, iteration)


def why_no_standby(settings: Settings, environment: Mapping[str, str]) -> str:
    if not settings.standby:
        return "standby = no in agent.conf"
    return f"{SWITCH}=0 in the job" if environment.get(SWITCH) == "0" else ""


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
