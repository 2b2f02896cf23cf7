"""False alarms of the watch over iterations, and what it misses: one JSON object, exit code 1 off
a goal.

    scripts/bench detection-alarms [--iterations 1000000]

Simulated iterations of every kind that must not be taken for a hang. An alarm is a judgement that
acts (overdue); a suspicion only looks closer. A hang is missed when it is not overdue in the end.
Stragglers and slow-downs are found among ranks that train together, of 10 % and 20 %.
May touch: chance with a seed, the report.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.report import Figure, figure, finish, tell
from detectors.iterations import Judgement, Rhythm
from detectors.pace import Pacer
from detectors.stragglers import Comparison, Finding

SIGMA = 0.3
STEPS_SECONDS = (0.1, 2.0, 60.0)  # of an ordinary iteration: each takes a third
HANG_EVERY, HANG_AT = 10_000, 4_997
HANG_SECONDS = 40.0  # as many ordinary iterations, and an hour
RESIZE_EVERY = 20_000
EXCUSED = 2  # first occurrences of an unannounced phase
Load = Callable[[random.Random, int], float]


def jitter(dice: random.Random, number: int) -> float:
    return dice.lognormvariate(0, SIGMA)


def variable_length(dice: random.Random, number: int) -> float:
    """Padded to one of a sampler's lengths; attention grows faster than linearly."""
    share = dice.choice((0.25, 0.5, 0.75, 1.0, 1.0))
    return (0.7 * share + 0.3 * share * share) * dice.lognormvariate(0, 0.05)


def evaluation(dice: random.Random, number: int) -> float:
    return (10 if number % 100 == 0 else 1) * dice.lognormvariate(0, 0.05)


def checkpoint(dice: random.Random, number: int) -> float:
    return (20 if number % 50 == 0 else 1) * dice.lognormvariate(0, 0.05)


def data_stall(dice: random.Random, number: int) -> float:
    return (2 if dice.random() < 0.01 else 1) * dice.lognormvariate(0, 0.05)


def two_sizes(dice: random.Random, number: int) -> float:
    """Half the nodes take twice as long, and back: within one watch, as if nobody told of it."""
    return (1 + number // RESIZE_EVERY % 2) * dice.lognormvariate(0, 0.05)


LOADS: dict[str, Load] = {
    "log-normal jitter": jitter,
    "variable sequence length": variable_length,
    "evaluation every 100 taking 10 x": evaluation,
    "checkpoint every 50 taking 20 x": checkpoint,
    "data stall of 2 x": data_stall,
    "two world sizes": two_sizes,
}


@dataclass
class Count:
    iterations: int = 0
    alarms: int = 0
    suspicions: int = 0
    hangs: int = 0
    missed: int = 0
    suspected_after: list[float] = field(default_factory=list)  # ordinary iterations

    def add(self, other: Count) -> None:
        self.iterations += other.iterations
        self.alarms += other.alarms
        self.suspicions += other.suspicions
        self.hangs += other.hangs
        self.missed += other.missed
        self.suspected_after += other.suspected_after


def live(load: Load, step_seconds: float, iterations: int, seed: int) -> Count:
    """One rank's iterations, each judged just before its end: no look before is stricter."""
    dice, rhythm, count = random.Random(seed), Rhythm(), Count(iterations=iterations)
    for number in range(1, iterations + 1):
        if number % HANG_EVERY == HANG_AT:
            _hang(rhythm, number, step_seconds, count)
        seconds = step_seconds * load(dice, number)
        judgement = rhythm.judge(number, seconds)
        count.alarms += judgement is Judgement.OVERDUE
        count.suspicions += judgement is Judgement.SUSPICION
        rhythm.add(number, seconds)
    count.suspicions = max(0, count.suspicions - EXCUSED)
    return count


def _hang(rhythm: Rhythm, number: int, step_seconds: float, count: Count) -> None:
    """An iteration that never ends; the rank is then forgotten, as by a restart that went well."""
    count.hangs += 1
    end = HANG_SECONDS * step_seconds + 3600
    count.missed += rhythm.judge(number, end) is not Judgement.OVERDUE
    looks = (n / 4 for n in range(1, int(4 * HANG_SECONDS) + 1))
    suspected = (n for n in looks if rhythm.judge(number, n * step_seconds) is not Judgement.FINE)
    count.suspected_after.append(next(suspected, HANG_SECONDS))


def all_of(load: Load, iterations: int, seed: int) -> Count:
    count = Count()
    for step_seconds in STEPS_SECONDS:
        count.add(live(load, step_seconds, iterations // len(STEPS_SECONDS), seed))
    return count


def train(
    ranks: int, sigma: float, slow: dict[int, float], onset: int, most: int, seed: int
) -> Iterator[tuple[int, Finding]]:
    """Ranks that wait for the slowest in each iteration; `slow` ones are so from `onset` on."""
    dice, comparison = random.Random(seed), Comparison(1, dict.fromkeys(range(ranks), "n1"))
    pacers = [Pacer() for _ in range(ranks)]
    for number in range(1, most + 1):
        own = [dice.lognormvariate(0, sigma) for _ in range(ranks)]
        if number > onset:
            own = [seconds * slow.get(rank, 1.0) for rank, seconds in enumerate(own)]
        whole = max(own) + 0.05
        for rank, pacer in enumerate(pacers):
            pacer.add(float(number), number, whole, whole - own[rank])
            for pace in pacer.since(number):
                for finding in comparison.take(rank, pace):
                    yield number, finding


def latencies(slow_by: float, sigma: float, runs: int) -> list[float]:
    """Iterations from the onset until the right rank is named; no other may be."""
    found = []
    for seed in range(runs):
        onset = 200 + seed
        told = train(8, sigma, {5: slow_by}, onset, onset + 2000, seed)
        number, rank = next(
            ((number, one.rank) for number, one in told if one.rank is not None), (onset + 2000, 5)
        )
        if rank != 5 or number <= onset:
            raise SystemExit(f"seed {seed}: rank {rank} was named at iteration {number - onset}")
        found.append(float(number - onset))
    return found


def false_stragglers(iterations: int) -> int:
    return sum(1 for _ in train(8, SIGMA, {}, 0, iterations, seed=1))


def figures(iterations: int) -> Iterator[Figure]:
    total = Count()
    for seed, (name, load) in enumerate(LOADS.items()):
        count = all_of(load, iterations, seed)
        total.add(count)
        tell(f"{name}: {count.alarms} alarms, {count.suspicions} suspicions")
        yield figure(f"alarms, {name}", "", [count.alarms], goal=0)
        yield figure(f"suspicions, {name}", "", [count.suspicions])
    yield figure("hangs missed", "", [total.missed], goal=0)
    yield figure("hangs injected", "", [total.hangs])
    yield figure("hang to suspicion", "ordinary iterations", total.suspected_after)
    for slow_by, sigma, goal in ((1.1, 0.01, 20.0), (1.1, 0.05, None), (1.2, SIGMA, None)):
        name = f"straggler of {slow_by - 1:.0%} named, jitter sigma {sigma}"
        yield figure(name, "iterations", latencies(slow_by, sigma, 20), goal=goal, worst=True)
    wrong = false_stragglers(iterations // 20)
    yield figure("stragglers and slow-downs told of jitter alone", "", [wrong], goal=0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench detection-alarms")
    parser.add_argument("--iterations", type=int, default=1_000_000, help="of each kind")
    iterations = parser.parse_args().iterations
    if iterations < 3 * HANG_EVERY:
        parser.error(f"--iterations {iterations}: at least {3 * HANG_EVERY} are needed for a hang")
    notes = [
        "iterations of 0.1, 2 and 60 s, a third each; an alarm is what would act, a suspicion only "
        "looks closer; the first two suspicions of each series are not counted",
        f"stragglers: 8 ranks, 20 runs; false ones: {iterations // 20} iterations, sigma {SIGMA}",
    ]
    return finish("detection-alarms", figures(iterations), notes)


if __name__ == "__main__":
    sys.exit(main())
