"""SimulatedAgents: the shipped fake behind the port Agents, on a simulated clock.

Each agent keeps the rules of the real one: beats, lease, fencing by generation, idempotent orders,
the dead-man rule. Time passes in `advance(now)`, which returns the events that unicrond would see.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from functools import partial

from transition.membership import assign
from unicrond.link.simulatedagent import Agent, Job, beat_of, registration_of
from unicrond.model.decision import Action, ActionKey, ActionKind, Outcome, OutcomeState
from unicrond.model.events import (
    AgentBeat,
    AgentJoined,
    AgentLeft,
    Event,
    OutcomeArrived,
    SignalArrived,
)
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import Assignment, Phase, Run

LEASE_SECONDS = 5.0
UNATTENDED_SECONDS = 60.0
READY_SECONDS = 2.0  # from a rank's start to its word that it takes orders
UNHELD_SECONDS = 30.0
STOP_SECONDS, START_SECONDS, SPAWN_SECONDS, DIAL_SECONDS = 0.2, 0.3, 1.0, 0.3
HOLD_SECONDS = 0.05
NEVER = float("inf")
MASTER_PORT = 29500


def _no_companions(base: Run, nodes: int, minutes: int) -> int:
    """Slurm refuses them."""
    return 0


class SimulatedAgents:
    """`requeue(run_id, restarts)`, `complete(run_id, code)`: what agents ask of Slurm."""

    def __init__(
        self,
        requeue: Callable[[int, int], None],
        complete: Callable[[int, int], None],
    ) -> None:
        self.jobs: dict[int, Job] = {}
        self.cut: set[str] = set()  # nodes that nobody reaches
        self.cut_from_unicrond: set[str] = set()
        self.linked_to_peers = True  # else no agent tells which peers it hears
        self.unicrond_up = True
        self.lease_seconds = LEASE_SECONDS
        self.now = 0.0
        self._requeue, self._complete = requeue, complete
        self.submit_companion: Callable[[Run, int, int], int] = _no_companions
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._events: list[Event] = []
        self._told_last: list[SignalArrived] = []
        self._ids = itertools.count(1)
        self._next_beat = 0.0

    # the port
    def order(self, action: Action) -> bool:
        """Sends an order; False when that agent is not connected."""
        job = self.jobs.get(action.run_id or 0)
        agent = job.agents.get(action.node) if job else None
        if job is None or agent is None or not self._linked(agent):
            return False
        job.last_order = self.now
        if action.key in agent.outcomes:
            self._tell_outcome(agent, agent.outcomes[action.key])
        else:
            self._carry_out(job, agent, action)
        return True

    # what happens in the world
    def start_job(self, wish: Run, steps: int, elastic: bool = False) -> None:
        """Slurm started the run's job: agents come up, and the leader begins a generation."""
        job = Job(wish, steps, elastic)
        self.jobs[wish.run_id] = job
        for node in wish.nodes:
            job.agents[node] = self._new_agent(job, node)
            self._after(DIAL_SECONDS, partial(self._dial, job, job.agents[node]))
        first = 1 + 1000 * wish.restarts
        self._after(1.0, lambda: self._lead(job, first, wish.nodes))

    def join_job(self, run_id: int, nodes: Iterable[str]) -> None:
        """A companion of the run's job started: its agents come up, and wait."""
        job = self.jobs[run_id]
        for node in nodes:
            job.agents[node] = self._new_agent(job, node)
            self._after(DIAL_SECONDS, partial(self._dial, job, job.agents[node]))

    def end_job(self, run_id: int) -> None:
        """Slurm killed everything: scancel, a failed job, a requeue."""
        job = self.jobs.pop(run_id, None)
        for agent in job.agents.values() if job else ():
            self._drop(job, agent, terminated=True)

    def kill_rank(
        self,
        run_id: int,
        node: str,
        text: str = "",
        signal: int | None = 9,
        code: int | None = None,
    ) -> None:
        """The first that lives there. Who takes orders waits, the others die with it."""
        job, agent = self.jobs[run_id], self.jobs[run_id].agents[node]
        slots = agent.slots()
        if agent.phase not in (Phase.STARTING, Phase.RUNNING, Phase.BROKEN) or not slots:
            return
        del agent.living[slots[0].member]
        self._spare(agent, UNHELD_SECONDS)
        data: dict[str, object] = {"exit_code": code, "signal": signal, "stderr": text}
        self._break(job, agent, SignalKind.RANK_EXITED, text, data, slots[0].rank)

    def _spare(self, agent: Agent, seconds: float) -> None:
        waiting = {m: ready for m, ready in agent.living.items() if ready <= self.now}
        agent.living, agent.waits_until = waiting, self.now + seconds
        if not waiting:
            agent.end_ranks()

    def kill_agent(self, run_id: int, node: str) -> None:
        job = self.jobs[run_id]
        newest = max(agent.generation for agent in job.agents.values())
        self._drop(job, job.agents[node])
        if job.agents[node].generation == newest:  # others are missed by nobody
            self._note_broken(job)

    def cut_node(self, node: str) -> None:
        self.cut.add(node)

    def restore_node(self, node: str) -> None:
        self.cut.discard(node)

    def unicrond_stops(self) -> None:
        """What it was told last, and may not have stored, is told again."""
        self.unicrond_up = False
        for event in self._told_last:
            job = self.jobs.get(event.signal.run_id or 0)
            agent = job.agents.get(event.signal.node) if job else None
            if agent is not None and agent.alive:
                agent.spool.append(event)
        self._told_last.clear()
        self._events.clear()
        for job in self.jobs.values():
            for agent in job.agents.values():
                agent.linked = False

    def unicrond_starts(self) -> None:
        self.unicrond_up = True

    # time
    def advance(self, now: float) -> list[Event]:
        """Lets time pass up to `now`; the events that reach unicrond meanwhile."""
        while self._later and self._later[0][0] <= now:
            at, _, what = heapq.heappop(self._later)
            self.now = max(self.now, at)
            what()
        self.now = now
        if now >= self._next_beat:
            self._next_beat = now + 1.0
            for job in tuple(self.jobs.values()):
                self._second(job)
        events, self._events = self._events, []
        self._told_last = [event for event in events if isinstance(event, SignalArrived)]
        return events

    def _second(self, job: Job) -> None:
        for agent in job.agents.values():
            if agent.alive and agent.node not in self.cut:
                agent.heard_by_peers = self.now
        self._keep_leases(job)
        for agent in job.agents.values():
            if agent.phase is Phase.BROKEN and agent.living and agent.waits_until < self.now:
                agent.end_ranks()
        self._train(job)
        for agent in job.agents.values():
            if agent.alive and not agent.linked:
                self._dial(job, agent)
            elif self._linked(agent):
                self._events.append(self._beat(job, agent))
        self._dead_man(job)

    def _train(self, job: Job) -> None:
        members = self._members(job)
        together = members and all(
            a.alive and a.phase is Phase.RUNNING and a.node not in self.cut for a in members
        )
        if together and len({a.generation for a in members}) == 1:
            job.step += 1
            if job.step >= job.steps:
                for agent in members:
                    agent.phase = Phase.DONE
                self._after(0.2, lambda: self._end(job, 0))

    def _members(self, job: Job) -> list[Agent]:
        newest = max((a.generation for a in job.agents.values()), default=0)
        carrier = next((a for a in job.agents.values() if a.generation == newest), None)
        if carrier is None or carrier.assignment is None:
            return []
        return [job.agents[n] for n in carrier.assignment.nodes if n in job.agents]

    def _keep_leases(self, job: Job) -> None:
        lease = self.lease_seconds
        for agent in job.agents.values():
            waits = agent.phase is Phase.BROKEN and agent.living
            if not (agent.phase is Phase.RUNNING or waits) or self._linked(agent):
                continue
            nodes = agent.assignment.nodes if agent.assignment else ()
            heard = all(
                job.agents[n].heard_by_peers > self.now - lease
                and self.now - job.agents[n].left.get(agent.generation, self.now) < lease
                for n in nodes
                if n in job.agents and agent.node not in self.cut
            )
            alone = agent.node in self.cut and agent.heard_by_peers <= self.now - lease
            if alone or not heard:
                agent.end_ranks()
                self._break(job, agent, SignalKind.LEASE_EXPIRED, "", {})

    def _dead_man(self, job: Job) -> None:
        if job.broken_since is None or job.over or job.requeued:
            return
        if self.now - max(job.broken_since, job.last_order) < UNATTENDED_SECONDS:
            return
        usable = [a for a in job.agents.values() if a.alive and a.node not in self.cut]
        whole = len(usable) == len(job.wish.nodes)
        if whole and job.unattended == 0:
            job.unattended += 1
            newest = max(a.generation for a in job.agents.values())
            self._lead(job, newest + 1, job.wish.nodes)
        elif usable:
            job.requeued = True
            self._requeue(job.wish.run_id, job.wish.restarts)

    # orders
    def _carry_out(self, job: Job, agent: Agent, action: Action) -> None:
        args = action.args
        match action.kind:
            case ActionKind.STOP_RANKS:
                generation = int(str(args["generation"]))
                self._after(STOP_SECONDS, lambda: self._stop(agent, generation, action.key))
            case ActionKind.HOLD_RANKS:
                seconds = float(str(args["seconds"]))
                generation = int(str(args["generation"]))
                self._after(
                    HOLD_SECONDS, lambda: self._hold(job, agent, generation, seconds, action.key)
                )
            case ActionKind.PREPARE_RANKS:
                assert action.assignment is not None
                self._prepare(agent, action.assignment, action.key)
            case ActionKind.START_RANKS:
                assert action.assignment is not None
                self._start(job, agent, action.assignment, action.key)
            case ActionKind.SPAWN_AGENT:
                self._after(SPAWN_SECONDS, lambda: self._spawn(job, str(args["target"])))
                self._outcome(agent, action.key, OutcomeState.DONE)
            case ActionKind.SUBMIT_COMPANION:
                size, minutes = int(str(args["nodes"])), int(str(args["minutes"]))
                job_id = self.submit_companion(job.wish, size, minutes)
                state = OutcomeState.DONE if job_id else OutcomeState.FAILED
                self._outcome(agent, action.key, state, {"job_id": job_id})
            case ActionKind.END_RUN:
                self._end(job, int(str(args["exit_code"])))

    def _stop(self, agent: Agent, generation: int, key: ActionKey | None) -> None:
        if not agent.alive:
            return
        if agent.generation <= generation:
            agent.phase = Phase.IDLE
            agent.living.clear()
        agent.prepared.clear()
        agent.stopped_generation = max(agent.stopped_generation, generation)
        agent.left.setdefault(generation, self.now)
        if key is not None:
            self._outcome(agent, key, OutcomeState.DONE, {"port": MASTER_PORT})

    def _prepare(self, agent: Agent, assignment: Assignment, key: ActionKey) -> None:
        if agent.living or assignment.generation <= agent.generation:
            self._outcome(agent, key, OutcomeState.REFUSED)
            return
        ready = self.now + START_SECONDS + READY_SECONDS
        mine = (slot.member for slot in assignment.slots if slot.node == agent.node)
        agent.prepared = dict.fromkeys(mine, ready)
        self._outcome(agent, key, OutcomeState.DONE)

    def _hold(
        self, job: Job, agent: Agent, generation: int, seconds: float, key: ActionKey
    ) -> None:
        if not agent.alive:
            return
        if agent.generation != generation or not agent.regrouping(self.now):
            self._outcome(agent, key, OutcomeState.REFUSED)
            return
        agent.phase = Phase.BROKEN
        self._spare(agent, seconds)
        agent.left.setdefault(generation, self.now)
        self._beat_now(job, agent)
        self._outcome(agent, key, OutcomeState.DONE, {"port": MASTER_PORT})

    def _start(self, job: Job, agent: Agent, assignment: Assignment, key: ActionKey | None) -> None:
        held = agent.assignment.order if agent.assignment else ""
        if assignment.generation == agent.generation and assignment.order == held:
            if key is not None:
                self._outcome(agent, key, OutcomeState.DONE)
            return
        over = max(agent.generation, agent.stopped_generation)
        ready = self.now + START_SECONDS + READY_SECONDS if job.elastic else NEVER
        living = agent.living_in(assignment, self.now, ready)
        if assignment.generation <= over or living is None:
            if key is not None:
                self._outcome(agent, key, OutcomeState.REFUSED)
            return
        agent.living, agent.prepared = living, {}
        agent.phase, agent.generation, agent.assignment = (
            Phase.STARTING,
            assignment.generation,
            assignment,
        )
        self._after(START_SECONDS, lambda: self._started(job, agent, assignment))
        self._beat_now(job, agent)
        if key is not None:
            self._outcome(agent, key, OutcomeState.DONE)

    def _started(self, job: Job, agent: Agent, assignment: Assignment) -> None:
        if agent.alive and agent.assignment is assignment and agent.phase is Phase.STARTING:
            agent.phase = Phase.RUNNING
            self._beat_now(job, agent)
            if all(a.phase is Phase.RUNNING for a in self._members(job)):
                job.broken_since = None

    def _spawn(self, job: Job, node: str) -> None:
        if node in self.cut or self.jobs.get(job.wish.run_id) is not job:
            return
        old = job.agents.get(node)
        if old is None or not old.alive:
            job.agents[node] = self._new_agent(job, node)
            self._dial(job, job.agents[node])

    def _end(self, job: Job, code: int) -> None:
        if job.over or self.jobs.get(job.wish.run_id) is not job:
            return
        job.over = True
        for agent in job.agents.values():
            agent.exit_code = code
            if self._linked(agent):
                self._events.append(
                    AgentLeft(self.now, job.wish.run_id, agent.node, agent.agent, True, code)
                )
            agent.alive = agent.linked = False
        self._complete(job.wish.run_id, code)

    # what agents do by themselves
    def _lead(self, job: Job, generation: int, nodes: tuple[str, ...]) -> None:
        if self.jobs.get(job.wish.run_id) is not job:
            return
        assignment = assign(job.wish, generation, f"a:{next(self._ids)}", nodes)
        for node in nodes:
            self._stop(job.agents[node], generation - 1, None)
            self._start(job, job.agents[node], assignment, None)

    def _break(
        self,
        job: Job,
        agent: Agent,
        kind: SignalKind,
        text: str,
        data: dict[str, object],
        rank: int | None = None,
    ) -> None:
        agent.phase = Phase.BROKEN
        agent.left.setdefault(agent.generation, self.now)
        self._note_broken(job)
        self._tell(
            agent,
            SignalArrived(
                Signal(
                    self.now,
                    kind,
                    job.wish.run_id,
                    agent.node,
                    rank,
                    generation=agent.generation,
                    text=text,
                    data=data,
                )
            ),
        )
        self._beat_now(job, agent)

    def _note_broken(self, job: Job) -> None:
        if job.broken_since is None:
            job.broken_since = self.now

    # links
    def _linked(self, agent: Agent) -> bool:
        far = self.cut | self.cut_from_unicrond
        return agent.alive and agent.linked and agent.node not in far and self.unicrond_up

    def _dial(self, job: Job, agent: Agent) -> None:
        far = self.cut | self.cut_from_unicrond
        if agent.linked or not agent.alive or agent.node in far or not self.unicrond_up or job.over:
            return
        agent.linked = True
        self._events.append(
            AgentJoined(self.now, registration_of(job.wish, agent, self.now, self.lease_seconds))
        )
        self._events.extend(agent.spool)
        agent.spool.clear()

    def _drop(self, job: Job | None, agent: Agent, terminated: bool = False) -> None:
        if job is not None and self._linked(agent):
            who = job.wish.run_id, agent.node, agent.agent
            self._events.append(AgentLeft(self.now, *who, terminated, 143 if terminated else 0))
        agent.alive = agent.linked = False
        agent.living.clear()
        agent.prepared.clear()

    def _tell(self, agent: Agent, event: Event) -> None:
        if self._linked(agent):
            self._events.append(event)
        elif agent.alive:
            agent.spool.append(event)

    def _outcome(
        self,
        agent: Agent,
        key: ActionKey,
        state: OutcomeState,
        data: dict[str, object] | None = None,
    ) -> None:
        agent.outcomes[key] = Outcome(key, self.now, state, data=data or {})
        self._tell_outcome(agent, agent.outcomes[key])

    def _tell_outcome(self, agent: Agent, outcome: Outcome) -> None:
        self._tell(agent, OutcomeArrived(outcome, agent.run_id, agent.node))

    def _beat_now(self, job: Job, agent: Agent) -> None:
        if self._linked(agent):
            self._events.append(self._beat(job, agent))

    def _beat(self, job: Job, agent: Agent) -> AgentBeat:
        return beat_of(job, agent, self.now, self.linked_to_peers)

    def _new_agent(self, job: Job, node: str) -> Agent:
        run_id = job.wish.run_id
        return Agent(run_id, node, f"{node}-{next(self._ids)}", heard_by_peers=self.now)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (self.now + seconds, next(self._ids), what))
