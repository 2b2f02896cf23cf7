"""What the planner beside the loop costs, and whether its intervals hold what they promise.

    scripts/bench planning

In the loop: wall seconds of a turn's look. In its own process: of one answer, on SQLite. Intervals
of 90 %: truths drawn from the priors, measured at a few sizes with noise, and how often the truth
is within. No root, no Slurm; about a minute.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from bench.report import Figure, figure, finish, tell
from db.knowledge import Knowledge, Observation
from db.queries import Queries
from db.store import open_store
from planner import iteration
from planner.iteration import Measured, fit
from planner.question import parse
from planner.ready import make_ready
from unicrond.core.policy import Policy
from unicrond.core.state import State
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.model.decision import Mode
from unicrond.model.incident import Incident, Scope, Severity
from unicrond.model.run import AgentView, Assignment, Run, RunState, Slot
from unicrond.model.workload import BatchScaling, Workload
from unicrond.planning.learning import Learning
from unicrond.planning.triggers import Cause, Trigger, Triggers
from unicrond.planning.windows import Windows
from unicrond.planning.words import Ask
from unicrond.ports import Changes

NOW = 1_000_000.0
GPUS = 8
TIMES = 5
TRUTHS = 200
SIZES = (8, 16, 32, 64, 128, 256, 512)
TOLD = Workload(1.7e17, BatchScaling.FIXED, 512, workers=64)


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster that is nearly full."""

    nodes: dict[str, Node]
    runs: tuple[Run, ...]

    @property
    def state(self) -> State:
        state = State(Policy(), 0.0, Mode.ACTIVE, nodes=self.nodes)
        state.runs = {run.run_id: run for run in self.runs}
        return state


def place(nodes: int, runs: int) -> Place:
    each = nodes // runs - 1
    names = [f"n{i}" for i in range(nodes)]
    there = {n: Node(n, NodeState.UP, "IDLE", GPUS, ("gpu",), gpu_type="h100") for n in names}
    parts = (tuple(names[i * each : (i + 1) * each]) for i in range(runs))
    return Place(there, tuple(a_run(100 + i, part) for i, part in enumerate(parts)))


def a_run(run_id: int, names: tuple[str, ...]) -> Run:
    slots = tuple(
        Slot(i * GPUS + k, f"m{i}.{k}", name, k)
        for i, name in enumerate(names)
        for k in range(GPUS)
    )
    return Run(
        run_id=run_id, name="run", user="user", uid=1001, weight=1.0, min_nodes=1,
        max_nodes=2 * len(names), ranks_per_node=GPUS, nodes=names, batch_host=names[0], restarts=0,
        state=RunState.RUNNING, generation=1, assignment=Assignment(1, "a", slots),
        agents={name: AgentView(name, "a", True, NOW) for name in names},
        workload=Workload(1e17, BatchScaling.FIXED, 65_536, 7e9, workers=GPUS * len(names)),
    )  # fmt: skip


def milliseconds(work: Callable[[], object], times: int = TIMES) -> list[float]:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - start))
    return taken


def in_the_loop(size: str, there: Place) -> Iterator[Figure]:
    state, triggers, windows = there.state, Triggers(), Windows()
    triggers.look(state, NOW)

    def after_a_snapshot() -> None:
        state.nodes = dict(state.nodes)
        triggers.look(state, NOW)

    yield figure(f"{size}: a turn", "ms", milliseconds(lambda: triggers.look(state, NOW)), goal=1)
    yield figure(f"{size}: a turn with a snapshot", "ms", milliseconds(after_a_snapshot), goal=5)
    look = milliseconds(lambda: windows.look(state.live_runs()))
    yield figure(f"{size}: iterations, once a second", "ms", look, goal=1)


def beside_it(size: str, there: Place) -> Iterator[Figure]:
    jobs = {
        run.run_id: Allocation(
            run.run_id, "run", "user", 1001, "", "gpu", JobState.RUNNING, run.nodes, run.batch_host,
            GPUS * len(run.nodes),
        )
        for run in there.runs
    }  # fmt: skip
    hurt = there.runs[0]
    lost = Incident(1, NOW, "lost", Severity.SEV1, Scope.NODE, hurt.run_id, 1, hurt.nodes[-1], None)
    trigger = Trigger(Cause.SEV1, "lost", hurt.run_id, 1, lost.root_node, 1)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/unicron.db"
        with closing(open_store(url)) as store, closing(Queries(url)) as queries:
            snapshot = Snapshot(NOW, there.nodes, jobs)
            store.save(Changes(runs=there.runs, snapshot=snapshot, incidents=(lost,)))
            seen = (
                Observation(run.run_id, GPUS * len(run.nodes), len(run.nodes), NOW, (2.0, 2.1), 30)
                for run in there.runs
            )
            store.learn(Knowledge(observations=tuple(seen)))
            learning = Learning(queries)
            learning.answer(Ask(NOW, (trigger,)))  # fits, compiles
            learn = milliseconds(lambda: learning.answer(Ask(NOW + 60)), 3)
            yield figure(f"{size}: learning, once a minute", "ms", learn)
            plan = milliseconds(lambda: learning.answer(Ask(NOW + 60, (trigger,))), 3)
            yield figure(f"{size}: a plan", "ms", plan)
            found = learning.answer(Ask(NOW + 60, (trigger,))).plan
            assert found is not None
            question = parse(json.dumps(json.loads(found.doc)["questions"]["unlimited"]))
            ready = milliseconds(lambda: make_ready(question, NOW), 3)
            yield figure(f"{size}: plans for every next event", "ms", ready)


def intervals() -> Iterator[Figure]:
    """Of sizes that were measured, and of those that were not."""
    rng = np.random.default_rng(1)
    within: dict[bool, list[bool]] = {True: [], False: []}
    for at in ((64,), (32, 64), (16, 64, 128)):
        for _ in range(TRUTHS):
            truth = dict(zip(SIZES, drawn(rng), strict=True))
            noisy = (Measured(x, tuple(truth[x] * np.exp(rng.normal(0, 0.03, 8)))) for x in at)
            found = fit(TOLD, tuple(noisy), "h100")
            assert found is not None
            for x in SIZES:
                estimate = found.estimate(x)
                assert estimate is not None
                rate = TOLD.flops_per_iteration / truth[x]
                within[x in at].append(estimate.low <= rate <= estimate.high)
    for measured, hits in within.items():
        name = f"within the interval of 90 %, {'measured' if measured else 'other'} sizes"
        yield figure(name, "%", [100 * sum(hits) / len(hits)], goal=80, better="higher")


def drawn(rng: np.random.Generator) -> list[float]:
    """Seconds of an iteration at each size, as the priors and the departure have it."""
    sizes = np.array(SIZES, np.float64)
    laws = iteration.prior_laws(TOLD, "h100")
    theta = np.array([math.log(law.median) + law.sigma * rng.standard_normal() for law in laws])
    mean, _ = iteration.log_seconds(TOLD, theta, sizes)
    root = np.linalg.cholesky(iteration.departures(sizes, sizes) + 1e-12 * np.eye(sizes.size))
    return [float(x) for x in np.exp(mean + root @ rng.standard_normal(sizes.size))]


def main() -> int:
    figures: list[Figure] = []
    for nodes, runs in ((1024, 40), (16_384, 100)):
        size = f"{nodes:,} nodes, {runs} runs"
        tell(f"planning: {size}")
        there = place(nodes, runs)
        figures += in_the_loop(size, there)
        figures += beside_it(size, there)
    tell("planning: intervals")
    figures += intervals()
    notes = ["truths are drawn from the priors: real runs may differ from those"]
    return finish("planning", figures, notes, packages=("numpy", "scipy", "sqlalchemy"))


if __name__ == "__main__":
    sys.exit(main())
