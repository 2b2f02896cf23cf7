"""How long a real training on a real Slurm cluster takes to have another size, or to be requeued.

    scripts/bench elastic [--repeats 5] [--plain 0] [--lab elastic]

On a lab of 4 nodes, over and over: a run of 2 nodes grows to 4 by a companion job and shrinks, on
an operator's order, once with ranks that regroup (`@unicron.elastic`) and once with a script that
knows of nothing; and its job is requeued by hand, which unicrond speeds up. With --plain the
same under a unicrond that only observes: each takes Slurm's two minutes. Needs root and what
scripts/setup installs; about four minutes.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

from bench.report import Figure, figure, tell
from bench.rig import Bench, count, raised, report
from bench.trainings import MeasurementError, UnderUnicron
from lab.cluster import labs

SMALL, LARGE = 2, 4
EXAMPLE = ["--steps", "1000000", "--step-seconds", "0.1", "--checkpoint-every", "10"]
QUIET_STEPS = 12  # between two orders
WITHIN_SECONDS = 60.0
PLAIN_SECONDS = 240.0


@dataclass
class Sizes:
    """Seconds from each order."""

    regrouped: list[float] = field(default_factory=list)
    smaller: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)
    shrunk: list[float] = field(default_factory=list)
    requeued: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        found = [
            figure("order to grow: the companion's ranks train", "s", self.regrouped, goal=6.0),
            figure("order to shrink: the others train again", "s", self.smaller, goal=1.0),
            figure("order to grow, all ranks restart", "s", self.grown, goal=6.0),
            figure("order to shrink, all ranks restart", "s", self.shrunk),
            figure("requeue: trains again", "s", self.requeued, goal=10.0),
        ]
        if self.plain:
            found.append(figure("requeue: trains again, of Slurm alone", "s", self.plain))
        return found


def resized(bench: Bench, training: UnderUnicron, nodes: int) -> float:
    """Seconds from when unicrond took the order; its command line takes its time before that."""
    training.log.more(QUIET_STEPS)
    bench.pause()
    asked = time.time()
    bench.lab.exec(["unicronctl", "run", "resize", training.job, str(nodes)])
    # a process that regroups writes the generation that it began in
    trained = training.log.wait(lambda s: s.at > asked and s.world_size == nodes, WITHIN_SECONDS)
    return trained.at - taken(bench, training.run_id, asked)


def there_and_back(
    bench: Bench, name: str, elastic: bool, grown: list[float], shrunk: list[float]
) -> None:
    wishes = ["--min-nodes=1", f"--max-nodes={LARGE}"]
    training = UnderUnicron(bench.lab, name, wishes, EXAMPLE, SMALL, elastic)
    grown.append(resized(bench, training, LARGE))
    shrunk.append(resized(bench, training, SMALL))
    how = "ranks regroup" if elastic else "ranks restart"
    tell(f"{how}: grown in {grown[-1]:.2f} s, shrunk in {shrunk[-1]:.2f} s")
    training.cancel()
    bench.all_idle()


def taken(bench: Bench, run_id: int, asked: float) -> float:
    items = bench.store.incidents(run_id=run_id).items
    opened = [i.opened_at for i in items if i.kind == "resize" and i.opened_at > asked]
    if not opened:
        raise MeasurementError("unicrond did not take the order")
    return max(opened)


def requeued(bench: Bench, training: UnderUnicron, within_seconds: float) -> float:
    generation = training.log.more(QUIET_STEPS).generation
    bench.pause()
    at = time.time()
    bench.lab.exec(["scontrol", "requeue", training.job])
    return training.log.first_after(at, generation, within_seconds).at - at


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    seen = Sizes()
    with raised(options.lab, LARGE) as bench:
        wishes = ["--min-nodes=1", f"--max-nodes={SMALL}"]
        for number in range(options.repeats):
            for elastic, grown, shrunk in (
                (True, seen.regrouped, seen.smaller),
                (False, seen.grown, seen.shrunk),
            ):
                there_and_back(bench, f"e{number}{elastic}", elastic, grown, shrunk)
        training = UnderUnicron(bench.lab, "requeued", wishes, EXAMPLE, SMALL)
        for _ in range(options.repeats):
            seen.requeued.append(requeued(bench, training, WITHIN_SECONDS))
            tell(f"requeued in {seen.requeued[-1]:.2f} s")
        bench.lab.exec(["unicronctl", "mode", "observe", "--why", "for comparison"])
        for _ in range(options.plain):
            seen.plain.append(requeued(bench, training, PLAIN_SECONDS))
            tell(f"requeued by Slurm alone in {seen.plain[-1]:.2f} s")
        others = [name for name in labs() if name != options.lab]
    return seen.figures(), [
        f"one rank a node, {SMALL} and {LARGE} nodes; a train step takes 0.1 s; gloo; ranks "
        "that restart go on from their last checkpoint; all on this machine",
        f"1-minute load before the orders: {min(bench.loads):.1f} to {max(bench.loads):.1f}; other "
        f"labs up at the end: {', '.join(others) or 'none'}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench elastic", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--repeats", type=count, default=5, help="of each order")
    parser.add_argument("--plain", type=int, default=0, help="requeues of Slurm alone")
    return report("elastic", parser, measure)


if __name__ == "__main__":
    raise SystemExit(main())
