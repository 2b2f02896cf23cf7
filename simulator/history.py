"""A site's own past: from accounting and incidents to a cluster, its failures, what they cost.

    spells ──(same job, or submitted again)──> runs ──> arrivals, sizes, work
      │                                          └────> as it happened: GPU-time that runs lacked
      ├──(NODE_FAIL, REQUEUED, FAILED and started again)──┐
    incidents ────────────────────────────────────────────┴──> failures, each of one run
      └──(jobs that are no runs)──> others' nodes

A run lacks a GPU from its first start to its end whenever it does not train on it: while it does
not run, runs on fewer nodes than at most, stands still, or does work again. What the data do not
say is assumed in one way, and every such assumption is a line of `gaps`. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator import laws
from simulator.model import SECOND, Cluster, Failure, Occupied, RunSpec
from unicrond.errors import BadInput
from unicrond.model.accounting import Spell

HOUR_SECONDS = 3600.0
REDONE_SECONDS = 900.0  # work since the last checkpoint, as of the policies
RESUBMITTED_SECONDS = 24 * HOUR_SECONDS
SAME_SECONDS = 900.0  # an incident and an end of its job so close are one failure
NODE_LOST = ("NODE_FAIL", "BOOT_FAIL")
STARTED_AGAIN = ("REQUEUED", "FAILED", "OUT_OF_MEMORY")
KIND = {1: "lost connection", 2: "exited abnormally", 3: "connection reset"}
MOST_RUNS = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """An incident of ours, of severity 1, 2 or 3. `until`: when it was mended, None if unknown."""

    run_id: int
    at: float
    until: float | None
    severity: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What only we know of a run."""

    weight: float = 1.0
    min_nodes: int = 1


@dataclass
class Happened:
    """What runs lacked, in GPU-seconds, by why."""

    stopped: float = 0.0  # between an end and the next start
    smaller: float = 0.0
    standing: float = 0.0
    again: float = 0.0  # work done again

    @property
    def lacked(self) -> float:
        return self.stopped + self.smaller + self.standing + self.again


@dataclass(frozen=True, slots=True)
class Past:
    cluster: Cluster
    failures: tuple[Failure, ...]
    happened: Happened
    began: float
    gaps: tuple[str, ...]


def past(
    spells: Sequence[Spell],
    faults: Sequence[Fault] | None,
    told: Mapping[int, Told],
    least_nodes: int,
    repair_hours: float,
) -> Past:
    """`faults` None: our incidents are not at hand. Raises BadInput where there is nothing."""
    ran = [spell for spell in spells if spell.gpus and spell.nodes]
    if not ran:
        raise BadInput("--history: no job with GPUs ran in that time")
    reading = _Reading(ran, told, least_nodes, repair_hours * HOUR_SECONDS)
    reading.gap("spells without a GPU", len(spells) - len(ran), "left out")
    return reading.past(faults)


@dataclass
class _Run:
    run_id: int
    spells: list[Spell]
    work: float = 0.0  # node-seconds

    @property
    def home(self) -> int:
        return max(len(spell.nodes) for spell in self.spells)


@dataclass
class _Reading:
    spells: Sequence[Spell]
    told: Mapping[int, Told]
    least_nodes: int
    repair: float
    gaps: list[str] = field(default_factory=list)
    happened: Happened = field(default_factory=Happened)

    def __post_init__(self) -> None:
        self.spells = sorted(self.spells, key=lambda spell: (spell.began, spell.job_id))
        self.began = self.spells[0].began
        times = [t for s in self.spells for t in (s.began, s.ended, s.submitted) if t is not None]
        self.ended = max(times)
        self.gpus = max(-(-spell.gpus // len(spell.nodes)) for spell in self.spells)
        self.starts = defaultdict[str, list[float]](list)
        for spell in self.spells:
            for node in spell.nodes:
                self.starts[node].append(spell.began)

    def gap(self, what: str, count: int, so: str) -> None:
        if count:
            self.gaps.append(f"{what}: {count}; {so}")

    def past(self, faults: Sequence[Fault] | None) -> Past:
        runs = self._runs()
        failures = list(self._failures(runs, faults or ()))
        self._common_gaps(runs, faults)
        length = self._ms(self.ended)
        cluster = Cluster(
            nodes=len(self.starts), gpus=self.gpus, nodes_per_switch=16,
            runs=tuple(self._spec(run) for run in runs), length=length,
            failures_per_node_second=0.0, repair_seconds=self.repair,
            others=tuple(self._others({s for run in runs for s in run.spells})),
        )  # fmt: skip
        failures.sort(key=lambda failure: failure.at)
        rate, _ = laws.mean_of(failures, cluster.nodes, length)
        cluster = replace(cluster, failures_per_node_second=rate * SECOND)
        return Past(cluster, tuple(failures), self.happened, self.began, tuple(self.gaps))

    # Runs

    def _runs(self) -> list[_Run]:
        """Jobs of enough nodes, each with what was started of it again."""
        by_job = defaultdict[int, list[Spell]](list)
        for spell in self.spells:
            by_job[spell.job_id].append(spell)
        large = [j for j in by_job.values() if max(len(s.nodes) for s in j) >= self.least_nodes]
        if not large:
            raise BadInput(
                f"--least-nodes: no job with GPUs ran on {self.least_nodes} nodes or more"
            )
        chains = [chain for job in large for chain in _chains(job)]
        self.gap(
            "preemptions and other stops that are no failures",
            len(chains) - len(large),
            "what came after each counts as a run of its own",
        )
        chains.sort(key=lambda chain: chain[0].began)
        joined = self._joined(chains)
        if len(joined) > MOST_RUNS:
            raise BadInput(
                f"--least-nodes: {len(joined)} runs of {self.least_nodes} nodes or more, at most "
                f"{MOST_RUNS} can be played; ask for larger ones, or for a shorter time"
            )
        return [_Run(number, chain) for number, chain in enumerate(joined, start=1)]

    def _joined(self, chains: Sequence[list[Spell]]) -> list[list[Spell]]:
        """A job that a lost node ended, and the same submitted again within a day, are one run."""
        joined, open_ = list[list[Spell]](), dict[tuple[str, str], list[Spell]]()
        again = 0
        for chain in chains:
            who = chain[0].user, chain[0].name
            before = open_.get(who)
            if before is not None and _resubmitted(before[-1], chain[0]):
                del open_[who]
                before += chain
                again += 1
            else:
                before = list(chain)
                joined.append(before)
            if before[-1].state in NODE_LOST:
                open_[who] = before
        self.gap(
            "jobs ended by a lost node, then one of the same user and name within a day",
            again,
            "counted as the same run",
        )
        self.gap(
            "runs ended by a lost node and not started again",
            sum(chain[-1].state in NODE_LOST for chain in joined),
            "what they had left to do is not in the data, so nothing is saved on it",
        )
        return joined

    def _spec(self, run: _Run) -> RunSpec:
        first, last = run.spells[0], run.spells[-1]
        told = self.told.get(first.job_id, Told())
        flops = np.arange(run.home + 1, dtype=np.float64) * self.gpus
        flops[: max(1, min(told.min_nodes, run.home))] = np.nan
        return RunSpec(
            run_id=run.run_id, name=f"{first.job_id}", flops=flops, weight=told.weight,
            parameters=float(run.home), start_nodes=run.home, arrives=1 + self._ms(first.began),
            work=None if last.ended is None else max(1.0, run.work) * self.gpus,
        )  # fmt: skip

    # Failures, and what they cost

    def _failures(self, runs: Sequence[_Run], faults: Sequence[Fault]) -> Iterator[Failure]:
        by_job = defaultdict[int, list[Fault]](list)
        for fault in sorted(faults, key=lambda fault: fault.at):
            by_job[fault.run_id].append(fault)
        known = Counter[str]()
        for run in runs:
            for spell, after in zip(run.spells, [*run.spells[1:], None], strict=True):
                mine = [f for f in by_job[spell.job_id] if self._within(spell, f)]
                known["told"] += len(mine)
                yield from self._of_spell(run, spell, after, mine, known)
        self.gap(
            "incidents while no run of theirs ran, as far as the data go",
            len(faults) - known["told"],
            "left out",
        )
        self.gap(
            "lost nodes whose name is not in the data",
            known["node"],
            "when they were back cannot be seen",
        )
        self.gap(
            "repairs whose length is not in the data",
            known["repair"],
            f"{self.repair / HOUR_SECONDS:g} h each (--repair-hours), or until the node's next job "
            "where that was sooner",
        )
        self.gap(
            "requeues and restarts without a reason",
            known["requeue"],
            "counted as failures of a process, though a person may have asked for them",
        )
        self.gap(
            "incidents without an end",
            known["open"],
            "how long their runs stood still is not in the data; nothing is counted",
        )

    def _within(self, spell: Spell, fault: Fault) -> bool:
        return spell.began < fault.at <= (self.ended if spell.ended is None else spell.ended)

    def _of_spell(
        self, run: _Run, spell: Spell, after: Spell | None, mine: list[Fault], known: Counter[str]
    ) -> Iterator[Failure]:
        end = self.ended if spell.ended is None else spell.ended
        size, lost, since = len(spell.nodes), 0.0, spell.began
        stopped = spell.state in NODE_LOST if after is None else spell.state != "RESIZING"
        if stopped and not (mine and end - mine[-1].at <= SAME_SECONDS):
            severity = 1 if spell.state in NODE_LOST else 2
            mine = [*mine, Fault(spell.job_id, end, end, severity, _left_out(spell, after))]
            known["requeue"] += severity == 2
        for fault in mine:
            until = min(end, fault.until) if fault.until is not None else fault.at
            if stopped and fault is mine[-1]:
                until = end  # it did not train again before it was stopped
            known["open"] += fault.until is None and until == fault.at
            again = min(REDONE_SECONDS, max(0.0, fault.at - since))
            self.happened.standing += (until - fault.at) * size * self.gpus
            self.happened.again += again * size * self.gpus
            lost, since = lost + until - fault.at + again, until
            yield self._failure(run, fault, known)
        run.work += max(0.0, end - spell.began - lost) * size
        self.happened.smaller += (run.home - size) * (end - spell.began) * self.gpus
        if after is not None:
            self.happened.stopped += max(0.0, after.began - end) * run.home * self.gpus

    def _failure(self, run: _Run, fault: Fault, known: Counter[str]) -> Failure:
        repair = 0
        if fault.severity == 1:
            seen = next((at for at in self.starts.get(fault.node, ()) if at > fault.at), None)
            sooner = seen is not None and seen - fault.at < self.repair
            repair = max(1, round(SECOND * (seen - fault.at if seen and sooner else self.repair)))
            known["node"] += not fault.node
            known["repair"] += 1
        return Failure(self._ms(fault.at), (), KIND[fault.severity], repair, run.run_id)

    # Everybody else

    def _others(self, of_runs: set[Spell]) -> Iterator[Occupied]:
        """A node on which any other job has a GPU is theirs."""
        by_node = defaultdict[str, list[tuple[float, float]]](list)
        for spell in self.spells:
            if spell not in of_runs:
                end = self.ended if spell.ended is None else spell.ended
                for node in spell.nodes:
                    by_node[node].append((spell.began, end))
        stretches = Counter(s for times in by_node.values() for s in _merged(times))
        for (began, ended), nodes in sorted(stretches.items()):
            if ended > began:
                yield Occupied(self._ms(began), self._ms(ended), nodes)

    def _common_gaps(self, runs: Sequence[_Run], faults: Sequence[Fault] | None) -> None:
        if faults is None:
            self.gaps.append(
                "our incidents are not given (--incidents): failures are those that ended a job"
            )
        lasts = [run.spells[-1] for run in runs]
        self.gap(
            "runs whose weight and least size are not in the data",
            sum(run.spells[0].job_id not in self.told for run in runs),
            "1, and one node",
        )
        self.gap(
            "runs that went on at the end of the data",
            sum(spell.ended is None for spell in lasts),
            "followed until then",
        )
        self.gap(
            "runs that FAILED and were not started again",
            sum(spell.state == "FAILED" for spell in lasts),
            "whether the cluster or the script failed is not in the data; counted as their own end",
        )
        self.gap(
            f"runs with fewer than {self.gpus} GPUs a node",
            sum(any(s.gpus < len(s.nodes) * self.gpus for s in run.spells) for run in runs),
            "counted as whole nodes",
        )
        self.gaps += [
            "throughput is not in the data: in proportion to nodes, up to a run's own size",
            f"checkpoints are not in the data: {REDONE_SECONDS / 60:g} min of work are done again "
            "after each failure",
            "nodes on which no GPU job ran are not in the data: none of them is a spare",
            "jobs that waited for nodes are not in the data: a policy takes any node that is free",
        ]

    def _ms(self, at: float) -> int:
        return round((at - self.began) * SECOND)


def _chains(job: Sequence[Spell]) -> Iterator[list[Spell]]:
    """Parts where it stopped for a reason that is no failure."""
    chain = [job[0]]
    for spell in job[1:]:
        if chain[-1].state in ("RESIZING", *NODE_LOST, *STARTED_AGAIN):
            chain.append(spell)
        else:
            yield chain
            chain = [spell]
    yield chain


def _resubmitted(before: Spell, after: Spell) -> bool:
    end = before.ended
    return end is not None and 0 <= after.submitted - end <= RESUBMITTED_SECONDS


def _left_out(spell: Spell, after: Spell | None) -> str:
    """The one node that it did not start on again, "" where that is not clear."""
    gone = set(spell.nodes) - set(after.nodes) if after is not None else set()
    return gone.pop() if len(gone) == 1 else ""


def _merged(times: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    began, until = None, 0.0
    for start, end in sorted(times):
        if began is None:
            began, until = start, end
        elif start <= until:
            until = max(until, end)
        else:
            yield began, until
            began, until = start, end
    if began is not None:
        yield began, until
