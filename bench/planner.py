"""How fast, how exact and how small the planner is.

    scripts/bench planner

Beside the plain recurrence in numpy, in the same run. CPU seconds where the work is on one core of
this process; wall seconds for HiGHS, for look-ups, and for the first division of a process. No
root, no Slurm; about two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # else `planner` would be this file

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from bench.report import Figure, figure, finish, tell  # noqa: E402
from planner.allocator import divide  # noqa: E402
from planner.failover import NodeLost, State, prepare  # noqa: E402
from planner.kernels import ILLEGAL, Ints  # noqa: E402
from planner.objective import Claim, Pool, Problem, Transition  # noqa: E402
from planner.pools import solve  # noqa: E402
from planner.program import solve_program  # noqa: E402

TRANSITION = Transition(restart=20, swap=40, shrink=40, grow=60, requeue=600)


def seconds(work: Callable[[], object], times: int, clock: Callable[[], float]) -> list[float]:
    taken = []
    for _ in range(times):
        start = clock()
        work()
        taken.append(clock() - start)
    return taken


def realistic(runs: int, workers: int, seed: int) -> tuple[Ints, list[int]]:
    """Nothing below a minimum, concave above it, a spike at the present size."""
    rng = np.random.default_rng(seed)
    k, held = np.arange(workers + 1), [int(s) for s in rng.multinomial(workers, [1 / runs] * runs)]
    gains = np.empty((runs, workers + 1), np.int64)
    for row, size in zip(gains, held, strict=True):
        curve = rng.choice([0.5, 0.8, 1.1, 1.4, 1.7, 2.0]) * k ** rng.uniform(0.6, 0.97)
        curve[: rng.integers(1, max(2, workers // runs // 2))] = 0
        row[:] = np.rint(1e6 * (curve - 0.01 * curve[size] * (k != size)))
    return gains, held


def plain_recurrence(gains: Ints, workers: int) -> int:
    """S(i, j) = max_k S(i-1, j-k) + G(i, k), a numpy row at a time."""
    best = np.zeros(workers + 1, np.int64)
    for row in gains:
        more = np.full(workers + 1, np.iinfo(np.int64).min // 2)
        for k in range(workers + 1):
            np.maximum(more[k:], best[: workers + 1 - k] + row[k], out=more[k:])
        best = more
    return int(best[workers])


def against_plain() -> Iterator[Figure]:
    ours, ratios = [], []
    for seed in range(5):
        gains, held = realistic(100, 2048, seed)
        found = divide(gains, held, 2048)
        ours.append(min(seconds(partial(divide, gains, held, 2048), 5, time.process_time)))
        start = time.process_time()
        expected = plain_recurrence(gains, 2048)
        ratios.append((time.process_time() - start) / ours[-1])
        if found.gain != expected:
            raise SystemExit("planner: the division is not worth what the plain recurrence finds")
    yield figure("100 runs, 2,048 workers", "s", ours)
    yield figure("plain recurrence over ours", "x", ratios, goal=300, better="higher")


def worst_shapes(runs: int, workers: int) -> dict[str, Ints]:
    rng, k = np.random.default_rng(0), np.arange(workers + 1)
    gaps = np.tile(k * 1000, (runs, 1))
    gaps[rng.random(gaps.shape) < 0.9] = ILLEGAL
    gaps[:, 0] = 0
    even = np.tile(k * 1000, (runs, 1))
    even[:, k % 2 == 1] = ILLEGAL
    return {
        "noise": rng.integers(0, 10**6, (runs, workers + 1)),
        "linear, moves free": np.tile(k * 1000, (runs, 1)),
        "linear with noise": k * 1000 + rng.integers(0, 1000, (runs, workers + 1)),
        "stairs": np.tile(k // 8 * 8000, (runs, 1)),
        "even sizes, odd workers": even,
        "gaps": gaps,
        "convex": k * k * rng.integers(1, 5, (runs, 1)),
    }


def worst() -> Iterator[Figure]:
    for name, gains in worst_shapes(100, 2048).items():
        taken = seconds(partial(divide, gains, [20] * 100, 2047), 3, time.process_time)
        yield figure(f"100 runs, 2,048 workers, {name}", "s", taken, goal=1.0)


def claim(run_id: int, pools: list[str], home: str, size: int, largest: int, step: int) -> Claim:
    rng = np.random.default_rng(run_id)
    k = np.arange(largest + 1, dtype=np.float64)
    curve: NDArray[np.float64] = np.asarray(4e14 * k ** rng.uniform(0.6, 0.97), np.float64)
    curve[(k % step != 0) | (k < step * rng.integers(1, 4))] = np.nan
    speed = {name: 1 + i % 4 / 4 for i, name in enumerate(pools)}
    throughput = {name: speed[name] * curve for name in pools}
    size = max(size, int(np.flatnonzero(~np.isnan(curve))[0]))
    weight = float(rng.choice([0.5, 0.8, 1.1, 1.4, 1.7, 2.0]))
    present = float(throughput[home][size])
    return Claim(run_id, throughput, TRANSITION, home, size, present, weight=weight)


def failover() -> Iterator[Figure]:
    claims = tuple(claim(i, ["gpu"], "gpu", 16, 2048, 1) for i in range(100))
    problem = Problem(claims, {"gpu": Pool("gpu", 2048, 1e-8)}, margin=1.5)
    switches = {f"s{i}": {3 * i: 8, 3 * i + 1: 8, 3 * i + 2: 8, None: 8} for i in range(32)}
    queued = tuple(claim(1000 + i, ["gpu"], "gpu", 64, 2048, 1) for i in range(8))
    state = State(problem, "gpu", 8, switches, queued)
    prepared = prepare(state, 1)
    taken = seconds(lambda: prepare(state, 1), 3, time.process_time)
    events = len(prepared.plans)
    yield figure(f"failover table, 100 runs, 2,048 workers, {events} events", "s", taken, goal=2.0)
    looked = seconds(lambda: prepared.lookup(1, NodeLost(50)), 1000, time.perf_counter)
    yield figure("look-up in it", "us", [1e6 * took for took in looked], goal=100)


def program() -> Iterator[Figure]:
    """Nodes of 8 workers given out whole, as slurm does here; and single workers."""
    solve(eight_pools(64))  # compiles
    for step, kind in ((8, "whole nodes"), (1, "single workers")):
        problem = eight_pools(step)
        plans, taken = [], []
        for _ in range(3):
            taken += seconds(lambda: plans.append(solve(problem)), 1, time.perf_counter)  # noqa: B023
        title = f"8 pools, 100 runs, {kind}"
        yield figure(title, "s", taken, goal=10.0, worst=True)
        yield figure(
            f"{title}: proven gap", "%", [100 * p.gap for p in plans], goal=0.1, worst=True
        )
        greedy = solve_program(problem, 0.0)
        yield figure(f"{title}: gap of the greedy fallback", "%", [100 * greedy.gap])


def eight_pools(step: int) -> Problem:
    names = [f"pool{i}" for i in range(8)]
    claims = tuple(claim(i, names, names[i % 8], 16, 256, step) for i in range(100))
    return Problem(claims, {name: Pool(name, 256, 1e-8) for name in names}, margin=1.5)


def large() -> None:
    """In a process of its own, for its memory: prints seconds and megabytes."""
    divide(*realistic(4, 64, 0), 64)  # compile, or read the cache
    page = resource.getpagesize()
    before = int(Path("/proc/self/statm").read_text().split()[1]) * page
    gains, held = realistic(1000, 16384, 1)
    taken = seconds(lambda: divide(gains, held, 16384), 7, time.process_time)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": taken, "megabytes": (peak - before) / 1e6}))


def first() -> None:
    """In a process of its own: what a command waits for."""
    solve(Problem((claim(1, ["gpu"], "gpu", 2, 9, 1),), {"gpu": Pool("gpu", 9)}))


def in_child(mode: str, **environment: str) -> str:
    command = [sys.executable, __file__, f"--{mode}"]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, env=environment, stdout=-1, check=True, timeout=300)
    return done.stdout.decode()


def children() -> Iterator[Figure]:
    found = json.loads(in_child("large"))
    yield figure("1,000 runs, 16,384 workers", "s", found["seconds"], goal=0.1)
    yield figure("memory for it, gains included", "MB", [found["megabytes"]], goal=200)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first division, compiling", "first division, compiled before"):
            work = partial(in_child, "first", NUMBA_CACHE_DIR=folder)
            yield figure(name, "s", seconds(work, 1, time.perf_counter))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.large or chosen.first:
        large() if chosen.large else first()
        return 0
    figures: list[Figure] = []
    for part in (against_plain, worst, failover, program, children):
        tell(f"planner: {part.__name__.replace('_', ' ')}")
        figures += part()
    notes = [
        "CPU seconds on one core; wall seconds for 8 pools, look-ups and first divisions",
        "goals of 8 pools are held against the worst of three",
    ]
    return finish("planner", figures, notes, packages=("numpy", "scipy", "numba"))


if __name__ == "__main__":
    sys.exit(main())
