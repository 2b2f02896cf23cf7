"""An agent and its job as SimulatedAgents keeps them, and what the agent says of itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicrond.model.decision import ActionKey, Outcome
from unicrond.model.events import AgentBeat, Event, Registration
from unicrond.model.run import Assignment, Phase, Run, Slot


@dataclass(slots=True)
class Agent:
    run_id: int
    node: str
    agent: str
    alive: bool = True
    linked: bool = False  # to unicrond
    phase: Phase = Phase.IDLE
    generation: int = 0
    stopped_generation: int = -1
    assignment: Assignment | None = None
    exit_code: int = 0
    outcomes: dict[ActionKey, Outcome] = field(default_factory=dict)
    spool: list[Event] = field(default_factory=list)
    heard_by_peers: float = 0.0
    left: dict[int, float] = field(default_factory=dict)  # generation -> when it was over here
    living: dict[str, float] = field(default_factory=dict)  # member -> from when it takes orders
    prepared: dict[str, float] = field(default_factory=dict)  # the same of those in no generation
    waits_until: float = 0.0  # of those that live on in a generation that broke

    def slots(self) -> list[Slot]:
        """Of the members that live."""
        held = self.assignment.slots if self.assignment else ()
        return [slot for slot in held if slot.member in self.living]

    def regrouping(self, now: float) -> tuple[int, ...]:
        return tuple(slot.rank for slot in self.slots() if self.living[slot.member] <= now)

    def waiting(self, now: float) -> tuple[str, ...]:
        return tuple(member for member, ready in self.prepared.items() if ready <= now)

    def living_in(
        self, assignment: Assignment, now: float, ready: float
    ) -> dict[str, float] | None:
        """Kept and new members of this node; None when one cannot be kept."""
        living = {}
        for slot in (slot for slot in assignment.slots if slot.node == self.node):
            since = self.living.get(slot.member, self.prepared.get(slot.member))
            if since is None and slot.member.rpartition(".")[0] == assignment.order:
                living[slot.member] = ready
            elif since is None or since > now:
                return None
            else:
                living[slot.member] = since
        return living

    def end_ranks(self) -> None:
        self.living.clear()
        self.stopped_generation = max(self.stopped_generation, self.generation)


@dataclass(slots=True)
class Job:
    """One start of one run: its wish, its agents, and what happens in it."""

    wish: Run
    steps: int  # train steps, one a second, until every rank ends with 0
    elastic: bool = False  # its ranks can go over into a new generation
    agents: dict[str, Agent] = field(default_factory=dict)
    step: int = 0
    broken_since: float | None = None
    last_order: float = 0.0
    unattended: int = 0
    requeued: bool = False
    over: bool = False


def registration_of(wish: Run, agent: Agent, now: float, lease_seconds: float) -> Registration:
    return Registration(
        wish.run_id,
        agent.node,
        agent.agent,
        wish.uid,
        wish.name,
        wish.weight,
        wish.min_nodes,
        wish.max_nodes,
        wish.ranks_per_node,
        wish.nodes,
        wish.restarts,
        agent.phase,
        agent.generation,
        agent.stopped_generation,
        agent.assignment,
        lease_seconds,
        wish.workload,
        regrouping=agent.regrouping(now),
        prepared=agent.waiting(now),
    )


def beat_of(job: Job, agent: Agent, now: float, hears_peers: bool) -> AgentBeat:
    others = (a for a in job.agents.values() if a is not agent and a.alive and hears_peers)
    return AgentBeat(
        now,
        job.wish.run_id,
        agent.node,
        agent.agent,
        agent.phase,
        agent.generation,
        agent.stopped_generation,
        job.step if agent.phase is Phase.RUNNING else -1,
        peers_heard={a.node: a.heard_by_peers for a in others},
        assignment=agent.assignment,
        regrouping=agent.regrouping(now),
        prepared=agent.waiting(now),
    )
