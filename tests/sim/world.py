"""A whole cluster on a simulated clock: simulated Slurm and agents, the real engine, any store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from db.memory import MemoryStore
from unicrond.core.policy import Policy
from unicrond.core.state import from_saved
from unicrond.core.step import TICK_SECONDS, Core
from unicrond.engine import Engine
from unicrond.errors import Refused, SlurmUnavailable
from unicrond.hands import ORDERS, on_slurm
from unicrond.link.simulated import SimulatedAgents
from unicrond.model.cluster import Allocation, JobState
from unicrond.model.decision import Action, ActionKind, Mode, Outcome, OutcomeState
from unicrond.model.events import Event, OutcomeArrived, SnapshotTaken, Tick
from unicrond.model.run import Phase, Run, RunState
from unicrond.model.workload import PLAIN, Workload
from unicrond.ports import Changes, Store
from unicrond.slurm.simulated import SimulatedSlurm

SNAPSHOT_SECONDS = 2.0


class ManualClock:
    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at


@dataclass
class World:
    """`store` may be any Store; `checks` are called after every turn."""

    policy: Policy = field(default_factory=lambda: Policy(mode=Mode.ACTIVE))
    store: Store = field(default_factory=MemoryStore)
    early_return_fails: bool = False
    checks: list[Callable[[World], None]] = field(default_factory=list)
    performed: list[Action] = field(default_factory=list)
    lost_orders: set[tuple[ActionKind, str]] = field(default_factory=set)  # never arrive there

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.slurm = SimulatedSlurm(self.clock, early_return_fails=self.early_return_fails)
        self.agents = SimulatedAgents(self._requeue, self._complete)
        self.agents.submit_companion = self._submit_companion
        self.agents.now = self.clock.at
        self.companions: dict[int, int] = {}  # job -> its base
        self._joined: set[int] = set()
        self.wishes: dict[int, tuple[Run, int, bool]] = {}
        self._started: dict[int, int] = {}  # job -> restarts that its agents were started for
        self._next_snapshot = 0.0
        self._events: list[Event] = []
        self.start_unicrond()

    # the world's own
    def nodes(self, count: int, gpus: int = 1, on_first_switch: int = 0) -> None:
        """Without `on_first_switch` no topology is told."""
        for i in range(1, count + 1):
            switch = ("s1" if i <= on_first_switch else "s2") if on_first_switch else ""
            self.slurm.add_node(f"n{i}", gpus, switch)

    def submit(
        self,
        nodes: int,
        *,
        min_nodes: int | None = None,
        steps: int = 10_000,
        user: str = "alice",
        uid: int = 1001,
        elastic: bool = False,
        max_nodes: int | None = None,
        ranks_per_node: int = 1,
        workload: Workload = PLAIN,
    ) -> int:
        job = self.slurm.submit(nodes, gpus_per_node=1, user=user, uid=uid)
        wish = Run(
            run_id=job,
            name=f"run{job}",
            user=user,
            uid=uid,
            weight=1.0,
            min_nodes=min_nodes or nodes,
            max_nodes=max_nodes or nodes,
            ranks_per_node=ranks_per_node,
            nodes=(),
            batch_host="",
            restarts=0,
            workload=workload,
        )
        self.wishes[job] = (wish, steps, elastic)
        return job

    def cut(self, node: str) -> None:
        self.slurm.cut(node)
        self.agents.cut_node(node)

    def restore(self, node: str) -> None:
        self.slurm.restore(node)
        self.agents.restore_node(node)

    def tell(self, event: Event) -> None:
        """Something that unicrond hears at the next tick."""
        self._events.append(event)

    def start_unicrond(self) -> None:
        saved = self.store.load()
        self.core = Core(from_saved(saved, self.policy, self.clock.at))
        self.engine = Engine(self.core, self.store, self._perform)
        self.agents.unicrond_starts()

    def kill_unicrond(self) -> None:
        self.agents.unicrond_stops()
        self._events.clear()

    def run(self, job: int) -> Run:
        return self.core.state.runs[job]

    def ranks(self) -> list[tuple[int, str]]:
        """Job and node of each agent whose ranks run."""
        return [
            (job, agent.node)
            for job, started in self.agents.jobs.items()
            for agent in started.agents.values()
            if agent.alive and agent.phase is Phase.RUNNING
        ]

    # time
    def pass_seconds(self, seconds: float) -> None:
        end = self.clock.at + seconds
        while self.clock.at < end:
            self.tick()

    def until(self, true: Callable[[], bool], within_seconds: float = 300.0) -> float:
        """Lets time pass until something is so; the seconds it took."""
        start = self.clock.at
        while not true():
            assert self.clock.at - start < within_seconds, "it never came to pass"
            self.tick()
        return self.clock.at - start

    def tick(self) -> None:
        self.clock.at += TICK_SECONDS
        self._follow_slurm()
        events = self._events + self.agents.advance(self.clock.at)
        self._events = []
        if not self.agents.unicrond_up:
            return
        if self.clock.at >= self._next_snapshot:
            self._next_snapshot = self.clock.at + SNAPSHOT_SECONDS
            events.append(SnapshotTaken(self.slurm.snapshot()))
        self.engine.turn(self.clock.at, [*events, Tick(self.clock.at)])
        for check in self.checks:
            check(self)

    def _follow_slurm(self) -> None:
        """Slurm starts and kills what agents are in; it tells them before it tells unicrond."""
        allocations = self.slurm.snapshot().allocations
        if allocations is None:
            return
        for job, (wish, steps, elastic) in self.wishes.items():
            allocation = allocations.get(job)
            if allocation is None or allocation.state is not JobState.RUNNING:
                self.agents.end_job(job)
            elif self._started.get(job) != allocation.restarts:
                self._started[job] = allocation.restarts
                self.agents.end_job(job)
                here = replace(
                    wish,
                    nodes=allocation.nodes,
                    restarts=allocation.restarts,
                    batch_host=allocation.batch_host,
                )
                self.agents.start_job(here, steps, elastic)
            else:
                self._kill_taken(job, (*allocation.nodes, *self._companion_nodes(job)))
                self._end_empty(job, allocation)

    def _submit_companion(self, base: Run, nodes: int, minutes: int) -> int:
        try:
            job = self.slurm.submit(
                nodes, gpus_per_node=1, user=base.user, uid=base.uid, nice=1,
                limit_seconds=60 * minutes, comment='{"unicron": {"companion_of": 1}}',
            )  # fmt: skip
        except SlurmUnavailable:
            return 0
        self.companions[job] = base.run_id
        return job

    def _companion_nodes(self, base: int) -> list[str]:
        """Of companions that run; agents come up there, once."""
        allocations = self.slurm.snapshot().allocations or {}
        nodes: list[str] = []
        for job, of in self.companions.items():
            allocation = allocations.get(job)
            if of == base and allocation and allocation.state is JobState.RUNNING:
                nodes += allocation.nodes
                if job not in self._joined:
                    self._joined.add(job)
                    self.agents.join_job(base, allocation.nodes)
        return nodes

    def _kill_taken(self, job: int, nodes: tuple[str, ...]) -> None:
        running = self.agents.jobs.get(job)
        for node in tuple(running.agents) if running else ():
            agent = running.agents[node]
            if node not in nodes and agent.alive and node not in self.agents.cut:
                self.agents.kill_agent(job, node)

    def _end_empty(self, job: int, allocation: Allocation) -> None:
        """srun ends with its last task, and with it the batch script, where its host still is."""
        running = self.agents.jobs.get(job)
        empty = running and not any(agent.alive for agent in running.agents.values())
        if empty and allocation.batch_host in allocation.nodes:
            self.slurm.end(job, 137)

    def _requeue(self, job: int, restarts: int) -> None:
        try:
            self.slurm.requeue(job, restarts)
        except (Refused, SlurmUnavailable):
            self.agents.jobs[job].requeued = False

    def _complete(self, job: int, code: int) -> None:
        self.slurm.end(job, code)

    def _perform(self, action: Action) -> None:
        self.performed.append(action)
        if action.kind in ORDERS:
            if (action.kind, action.node) not in self.lost_orders:
                self.agents.order(action)
            return
        if action.kind is ActionKind.PROBE:
            reached = action.node not in self.agents.cut | self.agents.cut_from_unicrond
            outcome = Outcome(
                action.key, self.clock.at, OutcomeState.DONE, data={"passed": reached}
            )
        elif action.kind is ActionKind.NOTIFY:
            outcome = Outcome(action.key, self.clock.at, OutcomeState.DONE)
        else:
            outcome = on_slurm(action, self.slurm, self.clock)
        self._events.append(OutcomeArrived(outcome))


class KilledError(Exception):
    """The store's process, and ours with it, ended at this write."""


class DyingStore:
    """A store that dies right before or right after its n-th write, as SIGKILL would have it."""

    def __init__(self, store: Store, at: int, after: bool) -> None:
        self.inner, self.at, self.after, self.writes = store, at, after, 0

    def load(self):  # type: ignore[no-untyped-def]
        return self.inner.load()

    def save(self, changes: Changes) -> None:
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise KilledError
        self.inner.save(changes)
        if self.writes == self.at:
            raise KilledError


def running(world: World, nodes: int = 3, **wish: object) -> int:
    job = world.submit(nodes, **wish)  # type: ignore[arg-type]
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    world.pass_seconds(6)
    return job


def kinds(world: World) -> list[ActionKind]:
    return [action.kind for action in world.performed]
