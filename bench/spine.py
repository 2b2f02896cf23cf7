"""How long a real training on a real Slurm cluster stands still when something breaks.

    scripts/bench spine [--repeats 10] [--pairs 5] [--cuts 6] [--lab spine]

On a lab of 4 nodes and 4 ranks, over and over: SIGKILL for a rank, alone and side by side with
torchrun on this machine; SIGKILL for unicrond; a pulled cable. All processes share one clock: a
fault's moment is taken just before it, the rest is read from unicrond's store and from the lines
that the training writes. Needs root and what scripts/setup installs; about ten minutes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench.report import Figure, figure, tell
from bench.rig import HEALED_SECONDS, Bench, count, raised, report
from bench.trainings import MeasurementError, Training, UnderTorchrun, UnderUnicron
from lab import processes
from lab.cluster import labs
from unicrond.config import Settings
from unicrond.core.policy import Policy
from unicrond.model.decision import ActionKind

RANKS = 4
EXAMPLE = ["--steps", "1000000", "--step-seconds", "0.2", "--checkpoint-every", "10"]
BETWEEN_STEPS = 12  # train steps of quiet between two faults
CUT_HEALED_SECONDS = 90.0
BACK_SECONDS = 30.0
WATCHED_SECONDS = 6.0  # of training, before and after unicrond is killed


# ------------------------------------------------------------ SIGKILL of a rank


@dataclass
class Kills:
    """Seconds from each SIGKILL."""

    noticed: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        title = "SIGKILL of a rank"
        return [
            figure(f"{title}: noticed by its agent", "s", self.noticed, goal=0.05, worst=True),
            figure(f"{title}: known to unicrond", "s", self.known, goal=0.1, worst=True),
            figure(f"{title}: all old ranks proved gone", "s", self.stopped),
            figure(f"{title}: all new ranks started", "s", self.started),
            figure(f"{title}: first new train step", "s", self.trained, goal=6.0, worst=True),
        ]


def new_training(bench: Bench, name: str) -> UnderUnicron:
    return UnderUnicron(bench.lab, name, ["--min-nodes", "2"], EXAMPLE)


def kills(bench: Bench, training: UnderUnicron, repeats: int) -> Kills:
    seen = Kills()
    for number in range(repeats):
        at, trained = killed(bench, training, number % RANKS)
        incident = bench.incident_after(training.run_id, at)
        seen.noticed.append(incident.first_signal_at - at)
        seen.known.append(incident.opened_at - at)
        seen.stopped.append(bench.last_outcome(incident, ActionKind.STOP_RANKS) - at)
        seen.started.append(bench.last_outcome(incident, ActionKind.START_RANKS) - at)
        seen.trained.append(trained - at)
        tell(f"kill {number + 1}: known after {seen.known[-1] * 1000:.0f} ms, "
             f"trains after {seen.trained[-1]:.2f} s")  # fmt: skip
    return seen


def killed(bench: Bench, training: Training, rank: int) -> tuple[float, float]:
    """When it was killed, and when the first train step after it was completed."""
    generation = training.log.more(BETWEEN_STEPS).generation
    bench.pause()
    at = training.kill(rank)
    return at, training.log.first_after(at, generation, HEALED_SECONDS).at


def beside_torchrun(bench: Bench, training: UnderUnicron, pairs: int) -> list[Figure]:
    """Both train all the time; in turns one of them is broken."""
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        other = UnderTorchrun(Path(folder), RANKS, EXAMPLE)
        try:
            for number in range(pairs):
                for one, times in ((training, ours), (other, theirs)):
                    at, trained = killed(bench, one, number % RANKS)
                    times.append(trained - at)
                tell(f"pair {number + 1}: {ours[-1]:.2f} s, torchrun {theirs[-1]:.2f} s")
        finally:
            other.end()
    title = "SIGKILL of a rank: first new train step"
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [
        figure(f"{title}, beside torchrun", "s", ours),
        figure(f"{title}, of torchrun", "s", theirs),
        figure(f"{title}, ours / torchrun's", "ratio", ratios),
    ]


# ------------------------------------------------------------ SIGKILL of unicrond


@dataclass
class Restarts:
    agents: list[float] = field(default_factory=list)  # seconds until all are registered again
    api: list[float] = field(default_factory=list)  # seconds until it answers again
    quiet: list[float] = field(default_factory=list)  # largest gap between train steps before
    gap: list[float] = field(default_factory=list)  # and after
    lost: list[float] = field(default_factory=list)  # generations that it cost

    def figures(self) -> list[Figure]:
        ratios = [a / b for a, b in zip(self.gap, self.quiet, strict=True)]
        title = "SIGKILL of unicrond"
        return [
            figure(f"{title}: has all agents again", "s", self.agents, goal=2.0, worst=True),
            figure(f"{title}: API answers again", "s", self.api, goal=2.0, worst=True),
            figure(f"{title}: largest gap between train steps", "s", self.gap),
            figure(f"{title}: largest gap / undisturbed", "ratio", ratios, goal=1.5),
            figure(f"{title}: new generations", "count", self.lost, goal=0, worst=True),
        ]


def restarts(bench: Bench, training: UnderUnicron, repeats: int) -> Restarts:
    seen = Restarts()
    head = processes.head_init(bench.lab.name)
    api = httpx.HTTPTransport(uds=f"/proc/{head}/root{Settings().api_socket}")
    with httpx.Client(transport=api, base_url="http://unicrond", timeout=5) as client:
        for _ in range(repeats):
            restart(bench, training, client, seen)
            tell(f"restart {len(seen.agents)}: agents after {seen.agents[-1]:.2f} s, API after "
                 f"{seen.api[-1]:.2f} s, gap {seen.gap[-1]:.2f} s")  # fmt: skip
    return seen


def restart(bench: Bench, training: UnderUnicron, client: httpx.Client, seen: Restarts) -> None:
    before = training.log.more(1)
    time.sleep(WATCHED_SECONDS)
    bench.pause()
    at = bench.lab.fault("kill-unicrond").wall_seconds
    agents, api = _back(bench, training.run_id, client, at)
    time.sleep(max(0.0, at + WATCHED_SECONDS - time.time()))
    seen.agents.append(agents - at)
    seen.api.append(api - at)
    seen.lost.append(training.log.more(1).generation - before.generation)
    seen.quiet.append(max(training.log.gaps(at - WATCHED_SECONDS, at)))
    seen.gap.append(max(training.log.gaps(at, at + WATCHED_SECONDS)))


def _back(bench: Bench, run_id: int, client: httpx.Client, at: float) -> tuple[float, float]:
    """When every agent was registered again, and when the API answered again."""
    agents = api = 0.0
    fell = False  # the old API answers for a moment longer
    while not (agents and api):
        if time.time() > at + BACK_SECONDS:
            raise MeasurementError(f"unicrond is not back {BACK_SECONDS:g} s after SIGKILL")
        agents = agents or _all_joined(bench, run_id, at)
        answered = _answers(client)
        fell |= not answered
        api = api or (answered if fell else 0.0)
        time.sleep(0.02)
    return agents, api


def _all_joined(bench: Bench, run_id: int, at: float) -> float:
    """The store holds what an agent that joined said; so does what was heard of it since."""
    run = bench.store.run(run_id)
    heard = [view.last_heard for view in run.agents.values()] if run else []
    return max(heard) if heard and min(heard) > at else 0.0


def _answers(client: httpx.Client) -> float:
    try:
        client.get("/v1/health").raise_for_status()
    except httpx.HTTPError:
        return 0.0
    return time.time()


# ------------------------------------------------------------ a pulled cable


@dataclass
class Cuts:
    """Seconds from each cut."""

    noticed: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    submitted: list[float] = field(default_factory=list)  # sbatch to first train step

    def figures(self) -> list[Figure]:
        goal = Policy().lease_seconds + 10
        return [
            figure("cut link: noticed", "s", self.noticed, goal=4.0, worst=True),
            figure("cut link: training again", "s", self.trained, goal=goal, worst=True),
            figure("sbatch to first train step", "s", self.submitted),
        ]


def cuts(bench: Bench, repeats: int) -> Cuts:
    """Every other time it is the batch host, where rank 0 is too."""
    seen = Cuts()
    for number in range(repeats):
        node = "n1" if number % 2 else f"n{RANKS - number // 2 % (RANKS - 1)}"
        training = new_training(bench, f"cut-{number}")
        seen.submitted.append(training.first.at - training.submitted_at)
        generation = training.log.more(BETWEEN_STEPS).generation
        bench.pause()
        at = bench.lab.fault("cut-link", node=node).wall_seconds
        trained = training.log.first_after(at, generation, CUT_HEALED_SECONDS)
        incident = bench.incident_after(training.run_id, at)
        seen.noticed.append(incident.first_signal_at - at)
        seen.trained.append(trained.at - at)
        tell(f"cut {number + 1} ({node}): noticed after {seen.noticed[-1]:.2f} s, "
             f"trains after {seen.trained[-1]:.2f} s on {trained.world_size}")  # fmt: skip
        bench.lab.fault("restore-link", node=node)
        training.cancel()
        bench.all_idle()
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench spine", description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=count, default=10, help="SIGKILLs of either kind")
    parser.add_argument("--pairs", type=count, default=5, help="SIGKILLs in turns with torchrun")
    parser.add_argument("--cuts", type=count, default=6, help="pulled cables")
    return report("spine", parser, measure)


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    with raised(options.lab, RANKS) as bench:
        training = new_training(bench, "kills")
        figures = kills(bench, training, options.repeats).figures()
        figures += beside_torchrun(bench, training, options.pairs)
        figures += restarts(bench, training, options.repeats).figures()
        training.cancel()
        bench.all_idle()
        figures += cuts(bench, options.cuts).figures()
        others = [name for name in labs() if name != options.lab]
    return figures, [
        f"{RANKS} ranks, one a node; a train step takes 0.2 s; gloo; all on this machine",
        f"1-minute load before the faults: {min(bench.loads):.1f} to {max(bench.loads):.1f}; other "
        f"labs up at the end: {', '.join(others) or 'none'}",
        "unicrond is started again 0.2 s after its end, as systemd would; that pause is counted",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
