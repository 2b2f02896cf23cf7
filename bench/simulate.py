"""What healing a whole cluster is worth in simulation, and what that depends on.

    scripts/bench simulate [--seeds 100]

Our WAF over that of each rival, on the same failures, seed by seed: mean and 95 % interval. The
goals are those for a rival that restarts from checkpoints, keeps its nodes and waits for a repair;
where one is missed, the notes say from which mean time of a repair it would hold. 20 seeds at
1,024 GPUs and 5 at 16,384; half of the seeds for what the result depends on. No root, no Slurm;
about three minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

from bench.report import Figure, figure, finish, tell
from simulator.engine import simulate
from simulator.library import Changes, policies, scenario, slurm_queue
from simulator.study import OURS, USUAL, Study, chosen, study

CASES = ("case-1", "case-2", "case-3", "case-4", "case-5")
WAITING = ("megatron", "megatron-requeues", "megatron-shrinks")
SLOW = ("varuna-slow", "oobleck-slow", "bamboo-slow")
# trace, its run mix, the goal for the rival that waits, mean repairs in hours that are tried
GOALS = {"trace-a": (1.2, (24, 72, 108, 144, 192)), "trace-b": (1.9, (3, 6, 9, 12, 17, 24))}
LARGE = {"gpus-1024": 20, "gpus-16384": 5}
EXPERIMENTS = ("unicron-wary", "unicron-as-oobleck")
IN_PLACE, ELASTIC = "unicron-in-place", ("varuna", "oobleck", "bamboo")
LIMITS = ("unicron-unguaranteed", "bound")  # without guarantees; and what nobody can exceed
MOST_BEHIND = 3.0  # per cent, median, below the oracle
MOST_HOURS = 24 * 60.0
HALVINGS = 7
SEEDS_OF_NEEDED = 20


def ratios(found: Study, title: str) -> Iterator[Figure]:
    """Mean, interval, worst seed of each rival; whoever is not the oracle must not be above us."""
    for name in found.outcomes:
        ratio = found.ratio(name)
        if name == OURS or ratio is None:
            continue
        yield figure(f"{title}, {name}: mean", "x", [ratio.mean])
        yield figure(f"{title}, {name}: 95 % interval", "x", [ratio.low, ratio.high])
        yield figure(f"{title}, {name}: worst seed", "x", [ratio.worst])
        if name in EXPERIMENTS:
            continue
        if name == "oracle":
            behind = [100 * ratio.behind]
            yield figure(f"{title}: behind the oracle", "%", behind, goal=MOST_BEHIND)
        else:
            title_of_low = f"{title}, {name}: upper end of the interval"
            yield figure(title_of_low, "x", [ratio.high], goal=1.0, better="higher")


def compared(name: str, rivals: Sequence[str], seeds: int, changes: Changes) -> Study:
    wanted = chosen(policies(), (OURS, *rivals))
    return study(scenario(name, changes), wanted, range(1, seeds + 1))


def mean_over(name: str, rival: str, seeds: int, changes: Changes) -> float:
    ratio = compared(name, (rival,), seeds, changes).ratio(rival)
    assert ratio is not None
    return ratio.mean


def traces(seeds: int) -> Iterator[Figure]:
    for name, (goal, _) in GOALS.items():
        for case in CASES:
            tell(f"simulate: {name}, {case}")
            rivals = [rival for rival in USUAL if rival != OURS]
            slow = SLOW if case == CASES[-1] else ()
            found = compared(name, (*rivals, *slow), seeds, Changes(runs=case))
            yield from ratios(found, f"{name}, {case}")
            ratio = found.ratio("megatron")
            assert ratio is not None
            title = f"{name}, {case}, over a rival that waits"
            yield figure(title, "x", [ratio.mean], goal=goal, better="higher")


def limits(seeds: int) -> Iterator[Figure]:
    """What survivors in place bring, what guarantees cost, and what nobody can exceed."""
    places = [(name, case) for name in GOALS for case in CASES]
    for name, case in (*places, *((name, None) for name in LARGE)):
        title = f"{name}, {case}" if case else name
        tell(f"simulate: {title}, limits")
        rivals = (IN_PLACE, *LIMITS, "megatron", *ELASTIC)
        found = compared(name, rivals, LARGE.get(name, seeds), Changes(runs=case))
        for ours, rival in (
            *((policy, "megatron") for policy in (IN_PLACE, *LIMITS)),
            *((IN_PLACE, rival) for rival in (*ELASTIC, OURS)),
        ):
            ratio = found.ratio(rival, ours)
            assert ratio is not None
            yield figure(f"{title}, {ours} over {rival}", "x", [ratio.mean])
            yield figure(
                f"{title}, {ours} over {rival}: 95 % interval", "x", [ratio.low, ratio.high]
            )


def repairs(seeds: int) -> Iterator[Figure]:
    """How much the mean repair carries, and the rival's way to wait."""
    for name, (_, hours) in GOALS.items():
        for mean in hours:
            tell(f"simulate: {name}, repairs of {mean} h")
            for case in ("case-1", "case-5"):
                found = compared(name, WAITING, seeds, Changes(runs=case, repair_hours=mean))
                for rival in WAITING:
                    ratio = found.ratio(rival)
                    assert ratio is not None
                    yield figure(f"{name}, {case}, repairs of {mean} h, {rival}", "x", [ratio.mean])


def queues(seeds: int) -> Iterator[Figure]:
    """Freed nodes are Slurm's to give out, and others take half of them, or all."""
    for name in GOALS:
        for waiting in (0.5, 1.0):
            tell(f"simulate: {name}, others take {waiting:.0%} of freed nodes")
            rivals = [rival for rival in USUAL if rival != OURS]
            changes = Changes(runs="case-1", queue=slurm_queue(waiting))
            found = compared(name, rivals, seeds, changes)
            for rival in rivals:
                ratio = found.ratio(rival)
                assert ratio is not None
                title = f"{name}, case-1, others take {100 * waiting:.0f} % of freed nodes, {rival}"
                yield figure(title, "x", [ratio.mean])


def needed(name: str, case: str, goal: float, seeds: int) -> str:
    """From which mean repair the goal holds, by halving."""
    low, high = 0.5, MOST_HOURS
    if mean_over(name, "megatron", seeds, Changes(runs=case, repair_hours=high)) < goal:
        return f"{name}, {case}: {goal} x does not hold for any mean repair up to {high:g} h"
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        reached = mean_over(name, "megatron", seeds, Changes(runs=case, repair_hours=middle))
        low, high = (low, middle) if reached >= goal else (middle, high)
    return f"{name}, {case}: {goal} x holds from a mean repair of about {high:.3g} h"


def large() -> Iterator[Figure]:
    for name, seeds in LARGE.items():
        tell(f"simulate: {name}")
        rivals = [rival for rival in USUAL if rival != OURS]
        yield from ratios(compared(name, (*rivals, *EXPERIMENTS), seeds, Changes()), name)


def speed() -> Iterator[Figure]:
    here, known = scenario("nodes-1024"), policies()
    taken, counts = [], []
    for seed in range(1, 6):
        failures = here.failures(seed)
        start = time.process_time()
        counts.append(simulate(here.cluster, known[OURS], failures, seed).events)
        taken.append(time.process_time() - start)
    yield figure("1,024 nodes for 30 days, one seed", "s", taken, goal=2.0, worst=True)
    yield figure("events of it", "", [statistics.fmean(counts)])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=100, help="of the small traces")
    seeds = options.parse_args().seeds
    half = max(2, seeds // 2)
    figures = [*speed(), *traces(seeds), *limits(half), *repairs(half), *queues(half), *large()]
    notes = [
        "every input with its source: unicronctl simulate --json",
        "what is reproduced, what is not, and what carries the result: docs/simulator.md",
    ]
    for name, (goal, _) in GOALS.items():
        notes += [needed(name, case, goal, min(half, SEEDS_OF_NEEDED)) for case in CASES]
    return finish("simulate", figures, notes, packages=("numpy", "scipy", "numba"))


if __name__ == "__main__":
    sys.exit(main())
