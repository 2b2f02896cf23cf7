"""From what is known of the whole cluster to the two questions that the planner is asked of it.

    today      what can be carried out: a run in trouble goes on with the good nodes of its
               allocation, or gives them back and waits; one that its user lets grow and shrink has
               from its least to its most nodes, where nothing heals and nobody else waits for
               nodes; any other keeps what it has
    unlimited  every run from its least to its most nodes, as far as its pool goes

Sizes are in nodes. A pool is the nodes of one GPU type and number in the same partitions; those of
allocations that are not planned for are occupied, and not in it. Both questions are what-ifs as in
question.py, so that whoever doubts an answer can ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from planner import priors, queue, repairs, transitions
from planner.fairness import NO_GUARANTEE, Guarantee
from planner.iteration import Fit
from planner.reliability import PoolRecord, Reliability
from planner.repairs import Repair
from planner.transitions import Duration
from unicrond.model.cluster import Allocation, Node, NodeState
from unicrond.model.incident import Incident, Scope, Severity
from unicrond.model.run import Run, RunState

MOST_POINTS = 128  # of a run's curve
MOST_NODES = 1024  # that are named in a question; beyond it sizes alone are asked for
PATIENCE_SECONDS = 86_400.0  # after which a run gets a turn at its smallest size
FRESH_SECONDS = 60.0  # for what is open to be decided
NOISE = 0.04  # what is measured is off by 2 %, and 2 d / (1 + d) keeps plans calm

What = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What was learned. `fits` None: nothing is known of that run's iterations."""

    fits: Mapping[int, Fit | None] = field(default_factory=dict)
    durations: Mapping[int, Mapping[str, Duration]] = field(default_factory=dict)
    reliability: Reliability | None = None
    accounts: Mapping[str, Guarantee] = field(default_factory=dict)
    repairs: Mapping[str, Repair] = field(default_factory=dict)  # by pool
    changes_per_day: float = 0.0  # runs that end or start


@dataclass(frozen=True)
class Cluster:
    """One look at everything, `at` Unix seconds. `incidents`: those that are open; `avoided`, by
    run: nodes that it would not go on with for reasons that stand nowhere else."""

    at: float
    runs: Sequence[Run]
    nodes: Mapping[str, Node]
    allocations: Sequence[Allocation]
    incidents: Sequence[Incident] = ()
    avoided: Mapping[int, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Of the runs that are planned for, in order of run id."""
        found = (self._standing(run) for run in sorted(self.runs, key=lambda run: run.run_id))
        return tuple(standing for standing in found if standing is not None)

    @cached_property
    def planned(self) -> frozenset[int]:
        return frozenset(standing.run.run_id for standing in self.standings)

    @cached_property
    def occupied(self) -> frozenset[str]:
        """By jobs that are not planned for."""
        others = (a for a in self.allocations if a.state.live and a.job_id not in self.planned)
        return frozenset(name for allocation in others for name in allocation.nodes)

    @cached_property
    def still(self) -> frozenset[str]:
        """Pools in which no run is moved now: one heals, and goes first."""
        return frozenset(s.pool for s in self.standings if s.hurt and self._is_fresh(s.run))

    @cached_property
    def contested(self) -> frozenset[int]:
        """Runs beside which other jobs wait for nodes."""
        partitions = queue.contested(self.allocations, self.nodes)
        return frozenset(
            a.job_id for a in self.allocations if not partitions.isdisjoint(a.partition.split(","))
        )

    def _is_fresh(self, run: Run) -> bool:
        """Whether its trouble is being healed; else it may stand for days."""
        opened = (i.opened_at for i in self.incidents if i.run_id == run.run_id)
        return run.healing is not None or self.at < max(opened, default=0.0) + FRESH_SECONDS

    @cached_property
    def _account_of(self) -> dict[int, str]:
        return {a.job_id: a.account for a in self.allocations}

    def _standing(self, run: Run) -> Standing | None:
        """None for one that is over, is only watched, or has not told its nodes yet."""
        waits = run.state is RunState.REQUEUED
        if run.state.ended or not run.whole_nodes or not (run.assignment or waits):
            return None
        present = run.assignment.nodes if run.assignment and not waits else ()
        there = [self.nodes[name] for name in (*present, *run.nodes) if name in self.nodes]
        if not there:
            return None
        mine = [i for i in self.incidents if i.run_id == run.run_id]
        severe = [i for i in mine if i.generation == run.generation]
        bad = {loss.node for loss in run.losses if not loss.state.settled} | set(run.shunned)
        bad |= self.avoided.get(run.run_id, frozenset())
        bad |= set(run.healing.lost) if run.healing else set()
        bad |= {i.root_node for i in severe if _takes_node(i)}
        bad |= {name for name in (*present, *run.nodes) if not self._answers(name)}
        bad |= set(present) - set(run.nodes)  # Slurm took them
        broken = run.healing is not None or any(_breaks(i) for i in severe)
        good = tuple(n for n in run.nodes if n not in bad and n in run.agents)
        since = run.healing.since if run.healing else self.at
        return Standing(
            run, pool_of(there[0]), there[0].gpu_type, present,
            faulty=tuple(name for name in present if name in bad),
            broken=broken,
            good=() if waits else good[: run.max_nodes],
            waited_seconds=max(0.0, self.at - since) if waits else 0.0,
            account=self._account_of.get(run.run_id, ""),
            joined=self._joined(run, present),
        )  # fmt: skip

    def _joined(self, run: Run, present: Sequence[str]) -> bool:
        jobs = [self._nodes_of.get(companion.job_id) for companion in run.companions]
        return all(nodes and set(nodes) <= set(present) for nodes in jobs)

    @cached_property
    def _nodes_of(self) -> dict[int, tuple[str, ...]]:
        return {a.job_id: a.nodes for a in self.allocations}

    def _answers(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.state is not NodeState.DOWN


def _takes_node(incident: Incident) -> bool:
    return incident.severity is Severity.SEV1 and incident.scope in (Scope.NODE, Scope.NODES)


def _breaks(incident: Incident) -> bool:
    return incident.severity in (Severity.SEV1, Severity.SEV2)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands: nodes it has, those of them that are lost, those it could go on with."""

    run: Run
    pool: str
    gpu: str
    present: tuple[str, ...]
    faulty: tuple[str, ...]
    broken: bool
    good: tuple[str, ...]
    waited_seconds: float
    account: str = ""
    joined: bool = True  # all of its companions are part of it

    @property
    def size(self) -> int:
        return len(self.present)

    @property
    def hurt(self) -> bool:
        return bool(self.faulty) or self.broken

    @property
    def sound(self) -> tuple[str, ...]:
        return tuple(name for name in self.present if name not in self.faulty)

    @property
    def movable(self) -> bool:
        """Whether its user lets it grow and shrink, and nothing of the kind is under way."""
        run = self.run
        busy = self.hurt or run.joining is not None or run.state is not RunState.RUNNING
        unused = set(self.good) - set(self.present)
        return run.max_nodes > run.min_nodes and self.joined and not (busy or unused)

    def at_once(self) -> list[int]:
        """What its heal would go on with; else what it has."""
        if not self.size:
            return []
        if self.hurt:
            return [len(self.good)] if len(self.good) >= self.run.min_nodes else []
        return [self.size]


def pool_of(node: Node) -> str:
    return f"{node.gpu_type or 'gpu'}x{node.gpus}@{'+'.join(node.partitions) or 'none'}"


def questions(cluster: Cluster, known: Known) -> tuple[What, What, list[str]]:
    """Today's, the unlimited one, and what both take for granted."""
    notes = list[str]()
    today, unlimited = list[What](), list[What]()
    members = _members(cluster)
    for standing in cluster.standings:
        rates = _Rates(standing, known.fits.get(standing.run.run_id))
        notes += rates.notes()
        guarantee = known.accounts.get(standing.account, NO_GUARANTEE)
        may = _today(cluster, standing, len(members[standing.pool]), guarantee)
        curve = rates.curve(sorted({*may, standing.size} - {0}))
        sizes = [size for size in may if size in dict(curve)]
        # a heal goes on beside lost nodes, whether or not Slurm can take them from the job
        least = 0 if standing.hurt else min(sizes, default=0)
        more = {"can_shrink": True, "account": standing.account, "floor": least}
        today.append(_run(standing, known, curve, sizes) | more)
        wide = _points(_range(standing, len(members[standing.pool])))
        curve = rates.curve(sorted({*wide, standing.size} - {0}))
        legal = _legal(standing, curve, wide)
        limits = _limits(standing, guarantee, wide)
        unlimited.append(_run(standing, known, curve, legal) | limits)
    away = _away(cluster)
    back = {**repairs.learn((), members), **known.repairs}
    pools = [_pool(name, names, away[name], known, back[name]) for name, names in members.items()]
    notes += [
        f"pool {name}: {away[name]} nodes away, back in {back[name].hours:.3g} h on average "
        f"({back[name].seen} seen; {back[name].prior})"
        for name in members
        if away[name]
    ]
    rest = {
        "reliability": {"other_changes_per_day": known.changes_per_day},
        "pools": pools,
        "noise": NOISE,
        "patience_seconds": PATIENCE_SECONDS,
    }
    named = {"nodes": _nodes(cluster, members, known)} if len(cluster.nodes) <= MOST_NODES else {}
    accounts = {"accounts": _accounts(unlimited, known)}
    without_limits = {"runs": unlimited, "keeps_freed": True, **accounts, **rest, **named}
    kept = {"accounts": _as_they_are(today, known)}
    return {"runs": today, **kept, **rest, **named}, without_limits, notes


def _today(cluster: Cluster, standing: Standing, there: int, of: Guarantee) -> Sequence[int]:
    """What it may have now: what it has always, and others where companions may come and go."""
    run, size, fixed = standing.run, standing.size, standing.at_once()
    if not standing.movable or standing.pool in cluster.still or cluster.at < run.hands_off_until:
        return fixed
    most = min(run.max_nodes, there, max(size, of.run_ceiling_nodes or run.max_nodes))
    if cluster.at < run.no_growth_until:
        most = min(most, size)
    least = max(run.min_nodes, min(max(run.floor_nodes, of.run_floor_nodes), size))
    if run.run_id in cluster.contested or least > most:
        return fixed
    return sorted({*_points(range(least, most + 1)), *fixed})


def _members(cluster: Cluster) -> dict[str, list[str]]:
    """Usable nodes by pool, for every pool that has a run: a run's own count where the run is."""
    found: dict[str, list[str]] = {standing.pool: [] for standing in cluster.standings}
    own = dict[str, str]()
    for standing in cluster.standings:
        own |= dict.fromkeys((*standing.sound, *standing.good), standing.pool)
        own |= dict.fromkeys(standing.faulty, "")
    for name, node in sorted(cluster.nodes.items()):
        free = node.state is NodeState.UP and name not in cluster.occupied
        pool = own.get(name, pool_of(node) if free else "")
        if pool in found:
            found[pool].append(name)
    return found


def _limits(standing: Standing, of: Guarantee, wide: Sequence[int]) -> What:
    """A floor counts as far as the run can use it."""
    ceiling, most = of.run_ceiling_nodes, wide[-1] if wide else 0
    most = most if ceiling is None else max((size for size in wide if size <= ceiling), default=0)
    floor = min(max(standing.run.floor_nodes, of.run_floor_nodes), most)
    return {"account": standing.account, "floor": floor, "ceiling": ceiling}


def _accounts(runs: Sequence[What], known: Known) -> list[What]:
    """Of those that have limits as a whole, and runs."""
    found = list[What]()
    for name, of in sorted(known.accounts.items()):
        mine = [run for run in runs if run["account"] == name]
        if not mine or (not of.floor_nodes and of.ceiling_nodes is None):
            continue
        floor = min(of.floor_nodes, sum(_most(run) for run in mine))
        found.append({"name": name, "floor": floor, "ceiling": of.ceiling_nodes})
    return found


def _as_they_are(runs: Sequence[What], known: Known) -> list[What]:
    """Limits of accounts, as far as what is so keeps them: nothing is to be worse than now."""
    found = list[What]()
    for name, of in sorted(known.accounts.items()):
        mine = [run for run in runs if run["account"] == name]
        now = sum(run["size"] if run["size"] in run["sizes"] else max(run["sizes"], default=0)
                  for run in mine)  # fmt: skip
        if mine and (of.floor_nodes or of.ceiling_nodes is not None):
            ceiling = None if of.ceiling_nodes is None else max(of.ceiling_nodes, now)
            found.append({"name": name, "floor": min(of.floor_nodes, now), "ceiling": ceiling})
    return found


def _most(run: What) -> int:
    sizes, ceiling = run["sizes"], run["ceiling"]
    legal = range(sizes["min"], sizes["max"] + 1) if isinstance(sizes, dict) else sizes
    return max((size for size in legal if ceiling is None or size <= ceiling), default=0)


def without_floors(question: What) -> What:
    """The same question with nothing guaranteed but turns."""
    runs = [{**run, "floor": 0} for run in question["runs"]]
    accounts = [{**account, "floor": 0} for account in question["accounts"]]
    return {**question, "runs": runs, "accounts": accounts}


def _range(standing: Standing, there: int) -> range:
    return range(standing.run.min_nodes, min(standing.run.max_nodes, there) + 1)


def _legal(standing: Standing, curve: Sequence[tuple[int, float]], wide: Sequence[int]) -> object:
    """All from the least to the most, unless the run can make no use of some."""
    known = [size for size, _ in curve if wide and wide[0] <= size <= wide[-1]]
    whole = bool(wide) and set(wide) <= set(known)
    return {"min": wide[0], "max": wide[-1]} if whole else known


def _points(sizes: range) -> list[int]:
    if len(sizes) <= MOST_POINTS:
        return list(sizes)
    spread = np.geomspace(sizes[0], sizes[-1], MOST_POINTS).round().astype(int)
    return sorted({int(size) for size in spread})


@dataclass(frozen=True, slots=True)
class _Rates:
    """FLOP/s of a run by its nodes. What was not told is counted as a usual model would do."""

    standing: Standing
    fit: Fit | None

    @property
    def _usual(self) -> float:
        """FLOP/s of one worker."""
        gpu = priors.gpu_of(self.standing.gpu) or priors.ANY_GPU
        return gpu.peak_flops * priors.UTILISATION.median

    def curve(self, nodes: Iterable[int]) -> list[tuple[int, float]]:
        scale = self._scale()
        return [(size, self._rate(size, scale)) for size in nodes if self._known(size)]

    def _known(self, size: int) -> bool:
        estimate = self.fit.estimate(size * self.standing.run.ranks_per_node) if self.fit else None
        return estimate is not None or size == self.standing.size or self.fit is None

    def _rate(self, size: int, scale: float) -> float:
        workers = size * self.standing.run.ranks_per_node
        estimate = self.fit.estimate(workers) if self.fit else None
        return scale * estimate.rate if estimate else self._usual * workers

    def _scale(self) -> float:
        """From the fit's unit to FLOP/s, as if the run did as usual on what it was measured on."""
        if self.fit is None or self.fit.workload.flops_per_iteration:
            return 1.0
        workers = self.fit.measured[-1].workers
        estimate = self.fit.estimate(workers)
        return self._usual * workers / estimate.rate if estimate else 1.0

    def notes(self) -> Iterator[str]:
        run = self.standing.run.run_id
        if self.fit is None:
            yield f"run {run}: nothing measured or told yet; counted as a usual model"
        elif not self.fit.workload.flops_per_iteration:
            yield f"run {run}: FLOPs not told; {self.fit.unit} counted as a usual model's FLOP/s"


def _run(standing: Standing, known: Known, curve: list[tuple[int, float]], sizes: object) -> What:
    run = standing.run
    durations = known.durations.get(run.run_id) or transitions.learn(())
    return {
        "id": run.run_id,
        "weight": run.weight,
        "pool": standing.pool,
        "throughput": {standing.pool: {"curve": curve or [(1, 0.0)]}},
        "size": standing.size,
        "faulty": len(standing.faulty),
        "broken": standing.broken and bool(standing.size),
        "sizes": sizes,
        "can_shrink": run.batch_host not in standing.faulty,
        "waited_seconds": standing.waited_seconds,
        "transition_seconds": asdict(transitions.transition(durations)),
    }


def _away(cluster: Cluster) -> Counter[str]:
    """Nodes out of service, by pool: those that runs lost too, which Slurm may learn of later."""
    lost = {name for standing in cluster.standings for name in standing.faulty}
    gone = (NodeState.DOWN, NodeState.DRAINED)
    nodes = cluster.nodes.items()
    return Counter(pool_of(node) for name, node in nodes if node.state in gone or name in lost)


def _pool(name: str, members: Sequence[str], away: int, known: Known, back: Repair) -> What:
    pools = known.reliability.pools if known.reliability else ()
    record = next((pool for pool in pools if pool.name == name), None)
    return {
        "name": name,
        "workers": len(members),
        "failures_per_1000_node_days": 1000 * _per_node_day(record),
        "away": away,
        "return_hours": back.hours,
    }


def _per_node_day(record: PoolRecord | None) -> float:
    if record is None:
        return priors.NODE_FAILURES.shape / priors.NODE_FAILURES.exposure
    return record.per_node_day


def _nodes(cluster: Cluster, members: Mapping[str, Sequence[str]], known: Known) -> list[What]:
    lemons = known.reliability.lemons if known.reliability else frozenset()
    holder = {name: s.run for s in cluster.standings for name in s.sound}
    found = list[What]()
    for pool, names in members.items():
        for name in names:
            run = holder.get(name)
            found.append(
                {
                    "name": name,
                    "pool": pool,
                    "switch": cluster.nodes[name].switch,
                    "run": run.run_id if run else None,
                    "pinned": run is not None and name == run.batch_host,
                    "lemon": name in lemons,
                }
            )
    return found
