"""SimulatedSlurm: the fake behind the Slurm port, on whatever clock it is given. Pure.

It behaves as measured on real clusters (the contract suite runs over both):

    a cut node      does not respond after half of `slurmd_timeout_seconds`, is DOWN after all of it
    it is back      and up again at once; with a drain's reason it stays DOWN until a person resumes
    --no-kill       the job loses the node and goes on, also without its batch host
    scancel         COMPLETING for a moment, then CANCELLED
    requeue         restarts + 1 at once; COMPLETING, with a cut node until Slurm gives that up;
                    then PENDING for 120 s unless expedited
    22.05           a batch host that is back within 10 s of its removal: the job is FAILED
    slurmctld down  acts are SlurmUnavailable, a snapshot is unknown, nothing moves

Time passes when somebody asks. Whoever plays the world uses the methods that no port has.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.ports import Clock
from unicrond.slurm import checks

REQUEUE_HOLD_SECONDS = 120.0
RESERVED_SECONDS = 120.0
COMPLETING_SECONDS = 1.0
EARLY_RETURN_SECONDS = 10.0
FORGET_SECONDS = 300.0  # MinJobAge
NOT_RESPONDING = "Not responding"
_HOLDING = (JobState.RUNNING, JobState.COMPLETING)


@dataclass
class _Node:
    name: str
    gpus: int
    drained: bool = False
    down: bool = False
    reason: str = ""
    reason_user: str = ""
    away_at: float = 0.0  # of a maintenance window
    cut_since: float | None = None
    cuts: int = 0  # tells a timer of an earlier cut from this one's
    switch: str = ""
    kept_for: str = ""  # a user
    kept_until: float = 0.0


@dataclass
class _Job:
    job_id: int
    name: str
    user: str
    uid: int
    size: int
    gpus_per_node: int
    no_kill: bool
    requeues: bool
    comment: str
    submitted: float
    begin: float
    state: JobState = JobState.PENDING
    reason: str = ""
    nodes: list[str] = field(default_factory=list)
    batch_host: str = ""
    batch_host_lost: float | None = None
    excluded: set[str] = field(default_factory=set)  # by its user
    excluded_by_us: set[str] = field(default_factory=set)
    admins_words: str = ""
    verdict: str = ""
    restarts: int = 0
    held: bool = False
    started: float = 0.0
    ended: float = 0.0
    nice: int = 0
    limit_seconds: int = 0


class SimulatedSlurm:
    """A cluster that starts empty: `add_node`, `submit`, then break things."""

    def __init__(
        self,
        clock: Clock,
        slurmd_timeout_seconds: float = 40.0,
        early_return_fails: bool = False,
    ) -> None:
        self._clock = clock
        self._slurmd_timeout_seconds = slurmd_timeout_seconds
        self._early_return_fails = early_return_fails
        self._nodes: dict[str, _Node] = {}
        self._jobs: dict[int, _Job] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)
        self._job_ids = count(1)
        self._at = clock.now()
        self._stopped = False

    # The port

    def snapshot(self) -> Snapshot:
        try:
            self._ask()
        except SlurmUnavailable as error:
            return Snapshot(self._clock.now(), None, None, str(error))
        nodes = {node.name: self._shown_node(node) for node in self._nodes.values()}
        shown = map(self._shown_job, self._jobs.values())
        return Snapshot(self._at, nodes, {job.job_id: job for job in shown if job.gpus})

    def drain(self, node: str, reason: str) -> None:
        self._ask()
        drained = self._node(node)
        if checks.drain_is_due(self._shown_node(drained), reason):
            drained.drained, drained.reason, drained.reason_user = True, reason, "unicron"

    def resume(self, node: str, reason: str) -> None:
        self._ask()
        if checks.resume_is_due(self._shown_node(self._node(node)), reason):
            self.resume_by_person(node)

    def shrink(self, job_id: int, keep: Sequence[str]) -> None:
        self._ask()
        job = self._job(job_id)
        if checks.shrink_is_due(self._shown_job(job), keep):
            job.nodes = [node for node in job.nodes if node in keep]
            self._schedule()

    def cancel(self, job_id: int, uid: int) -> None:
        self._ask()
        if checks.cancel_is_due(self._shown_job(self._job(job_id)), uid):
            self.scancel(job_id)

    def requeue(self, job_id: int, restarts: int) -> None:
        self._ask()
        job = self._job(job_id)
        if checks.requeue_is_due(self._shown_job(job), restarts):
            self._requeue(job)

    def expedite(self, job_id: int, exclude: Sequence[str], nodes: int = 0) -> None:
        self._ask()
        job = self._job(job_id)
        checks.expedite_is_allowed(self._shown_job(job))
        job.begin = self._at
        job.size = nodes or job.size
        job.excluded_by_us = set(exclude)
        self._schedule()

    def reserve(self, job_id: int, user: str, nodes: Sequence[str]) -> None:
        self._ask()
        for node in map(self._node, nodes):
            node.kept_for, node.kept_until = user, self._at + RESERVED_SECONDS
        self._after(RESERVED_SECONDS, self._schedule)

    def tell(self, job_id: int, verdict: str) -> None:
        self._ask()
        job = self._job(job_id)
        if job.admins_words:
            raise Refused("its AdminComment holds somebody else's words")
        job.verdict = verdict

    # The world

    def add_node(self, name: str, gpus: int = 8, switch: str = "") -> None:
        self._nodes[name] = _Node(name, gpus, switch=switch)
        self._settle()

    def submit(
        self,
        nodes: int,
        *,
        gpus_per_node: int = 8,
        no_kill: bool = True,
        requeues: bool = True,
        name: str = "train",
        user: str = "alice",
        uid: int = 1001,
        comment: str = "",
        nice: int = 0,
        limit_seconds: int = 0,
        exclude: Sequence[str] = (),
    ) -> int:
        """As sbatch does it: the job id. A time limit is shown, and ends nothing."""
        self._ask()
        job_id = next(self._job_ids)
        self._jobs[job_id] = _Job(
            job_id, name, user, uid, nodes, gpus_per_node, no_kill, requeues, comment,
            submitted=self._at, begin=self._at, nice=nice, limit_seconds=limit_seconds,
            excluded=set(exclude),
        )  # fmt: skip
        self._schedule()
        return job_id

    def scancel(self, job_id: int) -> None:
        """As a person does it."""
        self._ask()
        job = self._job(job_id)
        if job.state is JobState.RUNNING:
            job.state, restarts = JobState.COMPLETING, job.restarts
            self._after(COMPLETING_SECONDS, lambda: self._cancelled(job, restarts))
        else:
            self._finish(job_id, JobState.CANCELLED)

    def end(self, job_id: int, exit_code: int = 0) -> None:
        """The job's script ends."""
        self._finish(job_id, JobState.FAILED if exit_code else JobState.COMPLETED)

    def cut(self, name: str) -> None:
        """The node's cable: its processes go on."""
        self._settle()
        node = self._nodes[name]
        if node.cut_since is None:
            self._await_loss(node)

    def restore(self, name: str) -> None:
        self._settle()
        node = self._nodes[name]
        node.cut_since, node.cuts = None, node.cuts + 1
        for job in self._jobs.values():
            if job.state is JobState.COMPLETING and name in job.nodes:
                self._complete(job)
        if node.down and not self._stopped:
            self._return(node)

    def drain_by_person(self, name: str, reason: str, user: str = "root") -> None:
        self._ask()
        node = self._nodes[name]
        node.drained, node.reason, node.reason_user = True, reason, user

    def hold_by_person(self, job_id: int) -> None:
        self._ask()
        self._job(job_id).held = True
        self._schedule()

    def admin_says(self, job_id: int, words: str) -> None:
        self._ask()
        self._job(job_id).admins_words = words

    def release_by_person(self, job_id: int) -> None:
        self._ask()
        self._job(job_id).held = False
        self._schedule()

    def announce_maintenance(self, name: str, at: float) -> None:
        self._ask()
        self._nodes[name].away_at = at

    def resume_by_person(self, name: str) -> None:
        self._ask()
        node = self._nodes[name]
        node.drained, node.reason, node.reason_user = False, "", ""
        node.down = node.down and node.cut_since is not None
        self._schedule()

    def stop_controller(self) -> None:
        self._settle()
        self._stopped = True

    def start_controller(self) -> None:
        """It hears anew who is there, and waits its time-out again for the others."""
        self._stopped = False
        self._at = self._clock.now()
        for node in self._nodes.values():
            if node.down and node.cut_since is None:
                self._return(node)
            elif node.cut_since is not None and not node.down:
                self._await_loss(node)
        self._settle()

    # Time

    def _ask(self) -> None:
        if self._stopped:
            raise SlurmUnavailable("Unable to contact slurm controller (connect failure)")
        self._settle()

    def _settle(self) -> None:
        """What was due by now happens, in its order."""
        if self._stopped:
            return
        now = self._clock.now()
        while self._timers and self._timers[0][0] <= now:
            due, _, happen = heapq.heappop(self._timers)
            self._at = max(self._at, due)
            happen()
            self._schedule()
        self._at = max(self._at, now)
        self._schedule()

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self._at + seconds, next(self._numbers), happen))

    # Nodes

    def _node(self, name: str) -> _Node:
        if name not in self._nodes:
            raise Refused(f"Node {name} not found")
        return self._nodes[name]

    def _await_loss(self, node: _Node) -> None:
        node.cut_since = self._at
        node.cuts += 1
        this_cut = node.cuts
        self._after(self._slurmd_timeout_seconds, lambda: self._lose(node, this_cut))

    def _lose(self, node: _Node, cut: int) -> None:
        if node.cuts != cut or node.down:
            return
        node.down = True
        if not node.reason:
            node.reason, node.reason_user = NOT_RESPONDING, "slurm"
        for job in list(self._jobs.values()):
            if node.name in job.nodes and job.state in _HOLDING:
                self._lose_node(job, node.name)

    def _return(self, node: _Node) -> None:
        if node.reason == NOT_RESPONDING:
            node.down, node.reason, node.reason_user = False, "", ""
        for job in self._jobs.values():
            if self._early_return_fails and _left_by_batch_host(job, node.name, self._at):
                self._stop(job, JobState.FAILED)
        self._schedule()

    def _shown_node(self, node: _Node) -> Node:
        silent = self._silent(node)
        words = ["DOWN" if node.down else "ALLOCATED" if self._used(node) else "IDLE"]
        words += ["DRAIN"] * node.drained + ["NOT_RESPONDING"] * silent
        return Node(
            name=node.name,
            state=_node_state(node, silent),
            raw_state="+".join(words),
            gpus=node.gpus,
            partitions=("main",),
            reason=node.reason,
            reason_user=node.reason_user,
            address=node.name,
            away_at=node.away_at,
            switch=node.switch,
        )

    def _silent(self, node: _Node) -> bool:
        since = node.cut_since
        return since is not None and self._at - since >= self._slurmd_timeout_seconds / 2

    def _used(self, node: _Node) -> int:
        return sum(
            job.gpus_per_node
            for job in self._jobs.values()
            if job.state in _HOLDING and node.name in job.nodes
        )

    # Jobs

    def _job(self, job_id: int) -> _Job:
        if job_id not in self._jobs:
            raise Refused("Invalid job id specified")
        return self._jobs[job_id]

    def _schedule(self) -> None:
        for job in sorted(self._jobs.values(), key=lambda j: j.nice):
            if job.state is not JobState.PENDING:
                continue
            free = [node.name for node in self._nodes.values() if self._may_use(job, node)]
            job.reason = "BeginTime" if job.begin > self._at else "Resources"
            if job.held:
                job.reason = "JobHeldUser"
            elif job.begin <= self._at and len(free) >= job.size:
                self._start(job, free[: job.size])

    def _may_use(self, job: _Job, node: _Node) -> bool:
        """Slurm gives out a cut node until it notices."""
        well = _node_state(node, self._silent(node)) is NodeState.UP
        if node.kept_until > self._at and node.kept_for != job.user:
            return False
        well = well and node.name not in job.excluded | job.excluded_by_us
        return well and node.gpus - self._used(node) >= job.gpus_per_node

    def _start(self, job: _Job, nodes: list[str]) -> None:
        job.state, job.reason, job.started = JobState.RUNNING, "", self._at
        job.nodes, job.batch_host, job.batch_host_lost = nodes, nodes[0], None

    def _lose_node(self, job: _Job, name: str) -> None:
        job.nodes = [node for node in job.nodes if node != name]
        if job.state is JobState.COMPLETING:
            self._complete(job)
        elif job.no_kill and job.nodes:
            if name == job.batch_host:
                job.batch_host_lost = self._at
        elif job.requeues:
            self._requeue(job)
        else:
            self._stop(job, JobState.NODE_FAIL)

    def _requeue(self, job: _Job) -> None:
        job.restarts += 1
        job.state = JobState.COMPLETING
        self._complete(job)

    def _complete(self, job: _Job) -> None:
        if all(self._nodes[name].cut_since is None for name in job.nodes):
            this_restart = job.restarts
            self._after(COMPLETING_SECONDS, lambda: self._hold(job, this_restart))

    def _hold(self, job: _Job, restart: int) -> None:
        if job.state is not JobState.COMPLETING or job.restarts != restart:
            return
        job.state, job.nodes, job.batch_host = JobState.PENDING, [], ""
        job.submitted = self._at
        job.begin = self._at + REQUEUE_HOLD_SECONDS
        self._after(REQUEUE_HOLD_SECONDS, self._schedule)

    def _finish(self, job_id: int, state: JobState) -> None:
        self._ask()
        job = self._job(job_id)
        if job.state.live:
            self._stop(job, state)
            self._schedule()

    def _cancelled(self, job: _Job, restarts: int) -> None:
        """A requeue meanwhile, which Slurm allows, has brought it back to life."""
        if job.restarts == restarts:
            self._stop(job, JobState.CANCELLED)

    def _stop(self, job: _Job, state: JobState) -> None:
        job.state, job.ended = state, self._at
        self._after(FORGET_SECONDS, lambda: self._forget(job))

    def _forget(self, job: _Job) -> None:
        if not job.state.live:
            self._jobs.pop(job.job_id, None)

    def _shown_job(self, job: _Job) -> Allocation:
        held = len(job.nodes) or job.size
        return Allocation(
            job_id=job.job_id,
            name=job.name,
            user=job.user,
            uid=job.uid,
            account="lab",
            partition="main",
            state=job.state,
            nodes=tuple(job.nodes),
            batch_host=job.batch_host,
            gpus=held * job.gpus_per_node,
            submit_time=job.submitted,
            start_time=job.started,
            end_time=job.ended,
            time_limit_seconds=job.limit_seconds,
            restarts=job.restarts,
            reason=job.reason,
            comment=job.comment,
            whole_nodes=all(self._nodes[n].gpus == job.gpus_per_node for n in job.nodes),
        )


def _left_by_batch_host(job: _Job, name: str, at: float) -> bool:
    """Whether this is the batch host that the job lost a moment ago."""
    return (
        job.state is JobState.RUNNING
        and job.batch_host == name
        and job.batch_host_lost is not None
        and at - job.batch_host_lost <= EARLY_RETURN_SECONDS
    )


def _node_state(node: _Node, silent: bool) -> NodeState:
    if node.down:
        return NodeState.DOWN
    if node.drained:
        return NodeState.DRAINED
    return NodeState.UNKNOWN if silent else NodeState.UP
