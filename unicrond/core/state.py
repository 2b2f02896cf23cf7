"""What the loop owns. Only the functions of this package change it, and only inside `Core.step`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from detectors.hang import Evidence
from detectors.stragglers import Comparison
from detectors.trust import Ledger
from unicrond.core.byrun import ByRun
from unicrond.core.policy import Policy
from unicrond.model.cluster import Allocation, Node
from unicrond.model.decision import Action, ActionKey, Mode
from unicrond.model.incident import Incident, Signal
from unicrond.model.pause import Pause, PauseScope, paused
from unicrond.model.run import Run
from unicrond.ports import Saved

Sent = tuple[Action, float]  # and when, Unix seconds
Pending = ByRun[ActionKey, Sent]


def pending(items: Iterable[tuple[ActionKey, Sent]] = ()) -> Pending:
    return ByRun(lambda sent: sent[0].run_id, items)


def open_incidents(items: Iterable[tuple[int, Incident]] = ()) -> ByRun[int, Incident]:
    return ByRun(lambda incident: incident.run_id, items)


@dataclass(frozen=True, slots=True)
class Return:
    """A node that we drained, on its way back (returns.py)."""

    since: float  # Unix seconds, when it was heard again
    passed: int = 0  # probes
    asked_at: float = 0.0
    waiting: bool = False  # for a probe, or for Slurm


@dataclass(slots=True)
class State:
    policy: Policy
    started_at: float
    mode: Mode
    nodes: Mapping[str, Node] = field(default_factory=dict)  # last known
    allocations: Mapping[int, Allocation] = field(default_factory=dict)  # last known
    drained_of: Mapping[str, Node] | None = None  # the nodes that `drained` was found in
    drained: frozenset[str] = frozenset()  # by us
    snapshot_at: float = 0.0
    slurm_error: str = ""  # why it cannot be read
    slurm_doubt: str = ""  # which of its records make no sense
    runs: dict[int, Run] = field(default_factory=dict)
    incidents: ByRun[int, Incident] = field(default_factory=open_incidents)  # not closed
    resolved: dict[int, Incident] = field(default_factory=dict)  # the last one, by run
    pending: Pending = field(default_factory=pending)  # without an outcome
    next_incident_id: int = 1
    next_ordinal: int = 0  # of actions; never repeats
    drains: list[tuple[float, str]] = field(default_factory=list)  # of a day
    returns: list[tuple[float, str]] = field(default_factory=list)  # of nodes given back, an hour
    returning: dict[str, Return] = field(default_factory=dict)  # nodes on their way back
    staying: set[tuple[int, str]] = field(default_factory=set)  # run, node that is to go: told
    joins: list[tuple[float, int, str]] = field(default_factory=list)  # when, run, node
    kept: list[tuple[float, int]] = field(default_factory=list)  # when nodes were, for which run
    given_way: dict[int, tuple[int, float]] = field(default_factory=dict)  # job: how often, when
    resizes: list[tuple[float, int]] = field(default_factory=list)  # by plans: when, whose run
    planned: dict[int, str] = field(default_factory=dict)  # by run: what was last told of a plan
    lag_seconds: float = 0.0
    delayed: set[ActionKey] = field(default_factory=set)  # waiting for Slurm to answer
    slow: dict[int, dict[int, Evidence]] = field(default_factory=dict)  # by run and rank
    suspected: dict[int, float] = field(default_factory=dict)  # by run, when last told
    located: dict[int, float] = field(default_factory=dict)  # the same, with who holds up whom
    victims: set[int] = field(default_factory=set)  # incidents whose root blames a peer
    waiting: set[tuple[int, int]] = field(default_factory=set)  # incident, rank: told what for
    printed: dict[int, dict[int, Signal]] = field(default_factory=dict)  # by run and rank
    speeds: dict[int, Comparison] = field(default_factory=dict)  # by run
    reported: set[tuple[int, int, str]] = field(default_factory=set)  # run, generation, silent node
    hints: dict[str, Signal] = field(default_factory=dict)  # of hardware, newest by node
    vetoed: set[tuple[int, str]] = field(default_factory=set)  # silences already explained
    ledger: Ledger = field(default_factory=Ledger)  # how far each rule is believed
    pauses: tuple[Pause, ...] = ()

    def pause_of(self, run: Run) -> Pause | None:
        """Of the partition that its job is in."""
        job = self.allocations.get(run.run_id)
        return paused(self.pauses, PauseScope.PARTITION, job.partition) if job else None

    def acts_for(self, run: Run) -> bool:
        """Whether decisions about this run are carried out."""
        if self.mode is Mode.PAUSED or not run.whole_nodes or self.pause_of(run):
            return False
        return (run.mode or self.mode) is Mode.ACTIVE

    def forget_before(self, time: float) -> None:
        """Drops what no decision looks at any more."""
        self.drains = [drain for drain in self.drains if drain[0] > time - 23 * 3600]
        self.returns = [return_ for return_ in self.returns if return_[0] > time]
        self.staying = {(run_id, node) for run_id, node in self.staying if run_id in self.runs}
        self.victims &= self.incidents.keys()
        self.kept = [kept for kept in self.kept if kept[0] > time]
        self.joins = [join for join in self.joins if join[0] > time]
        self.resizes = [resize for resize in self.resizes if resize[0] > time]
        self.planned = {
            run_id: told for run_id, told in self.planned.items() if run_id in self.runs
        }
        self.given_way = {j: way for j, way in self.given_way.items() if j in self.allocations}
        self.waiting = {key for key in self.waiting if key[0] in self.incidents}
        for run in tuple(self.runs.values()):
            if run.state.ended and run.ended_at < time:
                del self.runs[run.run_id]
                self.resolved.pop(run.run_id, None)
                self.slow.pop(run.run_id, None)
                self.suspected.pop(run.run_id, None)
                self.located.pop(run.run_id, None)
                self.printed.pop(run.run_id, None)
                self.speeds.pop(run.run_id, None)
                self.vetoed = {key for key in self.vetoed if key[0] != run.run_id}
                self.reported = {key for key in self.reported if key[0] != run.run_id}

    def live_runs(self) -> Iterator[Run]:
        return (run for run in tuple(self.runs.values()) if not run.state.ended)


def from_saved(saved: Saved, policy: Policy, now: float) -> State:
    """The state after a start. No agent is connected yet; none counts as silent before a grace."""
    runs = {
        run.run_id: replace(
            run,
            agents={
                node: replace(view, connected=False, last_heard=now, closed_at=0.0)
                for node, view in run.agents.items()
            },
        )
        for run in saved.runs
    }
    return State(
        policy=policy,
        started_at=now,
        mode=saved.mode or policy.mode,
        runs=runs,
        incidents=open_incidents((one.incident_id, one) for one in saved.incidents),
        pending=pending((action.key, (action, 0.0)) for action in saved.unfinished),
        next_incident_id=saved.next_incident_id,
        next_ordinal=saved.next_ordinal,
        drains=list(saved.drains),
        ledger=Ledger(saved.reviews),
        pauses=saved.pauses,
    )
