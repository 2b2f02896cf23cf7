"""The discrete events of one policy on one trace: jumps from event to event.

    a node fails ──> its run stands still ──(detection)──> noticed ──> the rule divides
                 ──> (placement, by the production planner) ──(transition)──> trains again
    a node returns, a run ends, a run arrives, somebody else's job ends ──> the rule divides

A failure while a run is being changed begins detection anew. A division looks at every node, so a
rule that moves a run finds the nodes that this run has lost and nobody had noticed yet.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count

import numpy as np

from planner.objective import Change as Kind
from planner.placement import Site, place
from simulator.ledger import Ledger
from simulator.model import SECOND, Cause, Cluster, Failure, Freed, Occupied, Policy
from simulator.rules import HOLD, RULES, Change, Sizes, What
from simulator.state import Phase, RunNow, State

MOST_EVENTS = 5_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy made of one trace."""

    policy: Policy
    seed: int
    waf: float  # weighted FLOP
    spent: dict[Cause, int]  # GPU-milliseconds
    ettr: float  # part of its time that a run trains, mean over the runs
    changes: int
    events: int
    ledger: Ledger

    @property
    def goodput(self) -> float:
        """Part of all GPU-time that trains at full speed."""
        return self.spent[Cause.USEFUL] / sum(self.spent.values())


def simulate(
    cluster: Cluster,
    policy: Policy,
    failures: Sequence[Failure],
    seed: int = 0,
    records: bool = False,
) -> Outcome:
    """`seed` is that of others' jobs in Slurm's queue; the trace is drawn already."""
    return _Simulation(cluster, policy, failures, seed, records).run()


class _Simulation:
    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        failures: Sequence[Failure],
        seed: int,
        records: bool,
    ) -> None:
        runs = {spec.run_id: RunNow(spec) for spec in sorted(cluster.runs, key=lambda r: r.run_id)}
        self.state = State(cluster, policy, runs, set(range(cluster.nodes)))
        self.rule, self.timing, self.seed = RULES[policy.rule], policy.timing, seed
        self.ledger = Ledger(records)
        self.owner: dict[int, RunNow] = {}
        self.lent: dict[int, int] = {}  # node -> when somebody else's job there ends
        self.dice = np.random.default_rng(seed)
        self.heap: list[tuple[int, int, Callable[[], None]]] = []
        self.events, self.numbers = 0, count()
        self.state.there = {}
        self.away = _away(failures)
        for occupied in cluster.others:
            self._at(occupied.at, partial(self._occupy, occupied))
        for failure in failures:
            self._at(failure.at, partial(self._fail, failure))

    def run(self) -> Outcome:
        length = self.state.cluster.length
        self._begin()
        while self.heap and self.heap[0][0] < length:
            at, _, happen = heapq.heappop(self.heap)
            self.ledger.advance(self.state, at)
            happen()
            self.events += 1
            assert self.events < MOST_EVENTS, "the simulation does not come to an end"
        self.ledger.advance(self.state, length)
        self.ledger.close(length)
        self.ledger.split(self.state.policy.healthy_percent)
        present = [(run.trained, length - run.spec.arrives) for run in self._arrived()]
        ettr = sum(trained / there for trained, there in present) / max(1, len(present))
        return Outcome(
            self.state.policy, self.seed, self.ledger.waf, self.ledger.spent, ettr,
            sum(run.changes for run in self.state.runs.values()), self.events, self.ledger,
        )  # fmt: skip

    def _arrived(self) -> Iterable[RunNow]:
        """Those that still run: an ended one had what it needed."""
        return [r for r in self.state.present() if r.spec.arrives < self.state.cluster.length]

    def _at(self, at: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (at, next(self.numbers), happen))

    # The beginning: runs that are there at once have their nodes and train

    def _begin(self) -> None:
        for run in self.state.runs.values():
            if run.spec.arrives:
                self._at(run.spec.arrives, partial(self._arrive, run))
            else:
                self._enter(run, Phase.QUEUED)
        sizes = self._first_sizes()
        for run_id, size in sizes.items():
            self.state.runs[run_id].home = size
        self._apply(sizes)
        for run in list(self.state.present()):
            if run.nodes:
                self._train(run, run.epoch)
            run.changes = 0

    def _first_sizes(self) -> Sizes:
        cluster, change = self.state.cluster, Change(What.BEGIN)
        first = self.rule if self.rule.begins else RULES[cluster.start]
        sizes = dict(first.react(self.state, change))
        for run in self.state.present():
            if run.spec.start_nodes is not None and not self.rule.begins:
                sizes[run.spec.run_id] = run.spec.start_nodes
        return sizes

    # Events

    def _fail(self, failure: Failure) -> None:
        nodes = failure.nodes
        if failure.run_id is not None:
            nodes = tuple(self.state.runs[failure.run_id].nodes[-1:])
        hit = {node: self.owner[node] for node in nodes if node in self.owner}
        if failure.repair:
            for node in nodes:
                self._lose(node, self.state.now + failure.repair)
        for run in {run.spec.run_id: run for run in hit.values()}.values():
            self._break(run, failure)

    def _lose(self, node: int, until: int) -> None:
        state = self.state
        if node in state.down:
            return
        state.free.discard(node)
        state.others.discard(node)
        state.down.add(node)
        run = self.owner.pop(node, None)
        if run is not None:
            run.nodes.remove(node)
            run.lost.add(node)
        self._at(until, partial(self._return, node))

    def _break(self, run: RunNow, failure: Failure) -> None:
        if run.phase not in (Phase.TRAINING, Phase.CHANGING, Phase.DETECTING):
            return
        severity = failure.how.severity
        if run.phase is Phase.DETECTING:
            run.severity = min(run.severity, severity)
            return
        run.severity = severity
        self._enter(run, Phase.DETECTING)
        seconds = self.timing.detection[failure.how.method]
        self._at(self._later(seconds), partial(self._notice, run, run.epoch))

    def _notice(self, run: RunNow, epoch: int) -> None:
        if run.epoch != epoch:
            return
        if run.lost:
            self._divide(Change(What.LOST, run.spec.run_id))
        else:  # nothing is lost, or it came back
            kept = self.timing.retry if run.severity == 3 else self._seconds(run, Kind.RESTART)
            self._change(run, kept)

    def _return(self, node: int) -> None:
        self.state.down.discard(node)
        keeper = self._keeper(node)
        if keeper is not None:
            keeper.lost.discard(node)
            keeper.nodes.append(node)
            self.owner[node] = keeper
        else:
            self._free(node)
        self._divide(Change(What.BACK))

    def _keeper(self, node: int) -> RunNow | None:
        """The run that kept the node while it was repaired."""
        if not self.state.policy.keeps_failed:
            return None
        return next((run for run in self.state.present() if node in run.lost), None)

    def _arrive(self, run: RunNow) -> None:
        run.home = run.home or run.spec.start_nodes or run.spec.least
        self._enter(run, Phase.QUEUED)
        self._divide(Change(What.STARTED, run.spec.run_id))

    def _end(self, run: RunNow, epoch: int) -> None:
        if run.epoch != epoch:
            return
        self._enter(run, Phase.ENDED)
        self._offer(self._release(run))
        self._divide(Change(What.ENDED, run.spec.run_id))

    def _free(self, node: int) -> None:
        queue, state = self.state.cluster.queue, self.state
        ours = any(run.phase in (Phase.QUEUED, Phase.WAITING) for run in state.present())
        if queue.freed is Freed.SLURM and not ours and self.dice.random() < queue.others_waiting:
            self._lend(node, state.now + max(1, round(self.dice.exponential(queue.others_hold))))
        else:
            state.free.add(node)

    def _lend(self, node: int, until: int) -> None:
        self.state.others.add(node)
        self.lent[node] = until
        self._at(until, partial(self._leave, node, until))

    def _occupy(self, occupied: Occupied) -> None:
        for node in sorted(self.state.free)[-occupied.nodes :]:
            self.state.free.discard(node)
            self._lend(node, occupied.until)

    def _leave(self, node: int, until: int) -> None:
        if node in self.state.others and self.lent[node] == until:
            self.state.others.discard(node)
            self._free(node)
            if any(len(run.nodes) < run.spec.flops.size - 1 for run in self.state.present()):
                self._divide(Change(What.BACK))

    # A division, and what it does to runs

    def _divide(self, change: Change) -> None:
        state = self.state
        if state.policy.foresees:
            state.next_loss_seconds = (self._next_loss() - state.now) / SECOND
        self._apply(self.rule.react(state, change))

    def _next_loss(self) -> int:
        """When more nodes will be away than now."""
        i, now = bisect_right(self.away, (self.state.now, math.inf)), len(self.state.down)
        later = (at for at, away in self.away[i:] if away > now)
        return next(later, self.state.cluster.length)

    def _apply(self, sizes: Sizes) -> None:
        state = self.state
        for run_id, size in sizes.items():
            if size == HOLD and state.runs[run_id].phase is not Phase.WAITING:
                self._enter(state.runs[run_id], Phase.WAITING)
        moved = {i: n for i, n in sorted(sizes.items()) if _moves(state.runs[i], n)}
        if not moved:
            return
        kinds = {i: state.claim(state.runs[i]).change(n) for i, n in moved.items()}
        placed = place(self._sites(moved), moved)
        given_up = {node for i in moved for node in self._release(state.runs[i])}
        for run_id, names in placed.items():
            self._grant(state.runs[run_id], [int(name) for name in names])
        for run_id, kind in kinds.items():
            if moved[run_id]:
                run = state.runs[run_id]
                self._change(run, self._seconds(run, kind))
            else:
                self._enter(state.runs[run_id], Phase.QUEUED)
        self._offer(given_up & state.free)

    def _sites(self, moved: Sizes) -> list[Site]:
        """Free nodes and those of the runs that move; a run keeps its batch host."""
        width, per_switch = len(str(self.state.cluster.nodes)), self.state.cluster.nodes_per_switch
        owned = [(node, i) for i in moved for node in self.state.runs[i].nodes]
        hosts = {self.state.runs[i].nodes[0] for i in moved if self.state.runs[i].nodes}
        return [
            Site(f"{node:0{width}}", f"{node // per_switch:0{width}}", run_id, node in hosts)
            for node, run_id in (*owned, *((node, None) for node in self.state.free))
        ]

    def _release(self, run: RunNow) -> list[int]:
        nodes, run.nodes = run.nodes, []
        run.lost.clear()
        self.state.free.update(nodes)
        for node in nodes:
            del self.owner[node]
        return nodes

    def _grant(self, run: RunNow, nodes: list[int]) -> None:
        run.nodes = nodes
        self.state.free.difference_update(nodes)
        self.owner.update(dict.fromkeys(nodes, run))

    def _offer(self, nodes: Iterable[int]) -> None:
        """What runs gave up is Slurm's to give out, where the site has it so."""
        for node in sorted(nodes):
            self.state.free.discard(node)
            self._free(node)

    def _seconds(self, run: RunNow, kind: Kind) -> float:
        if kind is Kind.START:
            first = self.timing.first if run.done == 0 else None
            return self.timing.start if first is None else first
        return 0.0 if kind is Kind.KEEP else float(getattr(self.timing.change, kind))

    def _change(self, run: RunNow, seconds: float) -> None:
        run.changes += 1
        self._enter(run, Phase.CHANGING)
        if seconds:
            self._at(self._later(seconds), partial(self._train, run, run.epoch))
        else:
            self._train(run, run.epoch)

    def _train(self, run: RunNow, epoch: int) -> None:
        if run.epoch != epoch:
            return
        run.working = run.spec.legal(len(run.nodes))
        if not run.working:
            self._enter(run, Phase.WAITING)
            return
        self._enter(run, Phase.TRAINING)
        full = float(run.spec.flops[run.working])
        run.speed = full * self.state.policy.healthy_percent / 100
        if run.spec.work is not None:
            left = max(0.0, run.spec.work - run.done) / run.speed
            self._at(self._later(left), partial(self._end, run, run.epoch))

    def _enter(self, run: RunNow, phase: Phase) -> None:
        run.phase, run.since, run.speed = phase, self.state.now, 0.0
        run.epoch += 1
        run_id, there = run.spec.run_id, self.state.there or {}
        if run.present != (run_id in there):  # a new one: others may be reading the old one
            others = {i: other for i, other in there.items() if i != run_id}
            here = {run_id: run} if run.present else {}
            self.state.there = dict(sorted({**others, **here}.items()))

    def _later(self, seconds: float) -> int:
        return self.state.now + math.ceil(seconds * SECOND)


def _away(failures: Sequence[Failure]) -> list[tuple[int, float]]:
    """When the number of nodes out of service changes, and to what."""
    steps = Counter[int]()
    for failure in failures:
        if failure.repair:
            steps[failure.at] += failure.lost
            steps[failure.at + failure.repair] -= failure.lost
    times = sorted(steps)
    return list(zip(times, accumulate(steps[at] for at in times), strict=True))


def _moves(run: RunNow, size: int) -> bool:
    """Whether this size is a change; a run that is well, or whose trouble is small, may keep it."""
    if size == HOLD:
        return False
    if size == 0:
        return run.phase is not Phase.QUEUED
    as_it_is = (Phase.TRAINING, Phase.CHANGING, Phase.DETECTING)
    return bool(run.lost) or len(run.nodes) != size or run.phase not in as_it_is
