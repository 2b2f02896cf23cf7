"""Two clusters that stories are played on: the simulated Slurm, and a real one in a lab."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from lab import Lab
from unicrond.model.cluster import Allocation, JobState, NodeState, Snapshot
from unicrond.ports import Slurm
from unicrond.slurm.cli import CommandLineSlurm
from unicrond.slurm.simulated import SimulatedSlurm
from unicrond.slurm.watch import SystemClock

OURS = "unicron: node_lost incident=1"
NODES = tuple(f"n{number}" for number in range(1, 5))
SWITCHES = {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}


class World(Protocol):
    slurm: Slurm

    def submit(
        self, nodes: int, gpus_per_node: int = 8, no_kill: bool = True, user: str = "alice"
    ) -> int: ...
    def cancel(self, job_id: int) -> None: ...
    def hold(self, job_id: int) -> None: ...
    def admin_says(self, job_id: int, words: str) -> None: ...
    def cut(self, node: str) -> None: ...
    def restore(self, node: str) -> None: ...
    def repair(self, node: str) -> None: ...
    def person_drains(self, node: str, reason: str) -> None: ...
    def person_resumes(self, node: str) -> None: ...
    def stop_controller(self) -> None: ...
    def start_controller(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


class HandClock:
    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


class SimulatedWorld:
    def __init__(self) -> None:
        self._clock = HandClock()
        self._simulated = SimulatedSlurm(self._clock)
        self.slurm: Slurm = self._simulated
        for node in NODES:
            self._simulated.add_node(node, switch=SWITCHES[node])
        self.cut = self._simulated.cut
        self.restore = self.repair = self._simulated.restore
        self.cancel = self._simulated.scancel
        self.hold = self._simulated.hold_by_person
        self.admin_says = self._simulated.admin_says
        self.person_resumes = self._simulated.resume_by_person
        self.stop_controller = self._simulated.stop_controller
        self.start_controller = self._simulated.start_controller

    def submit(
        self, nodes: int, gpus_per_node: int = 8, no_kill: bool = True, user: str = "alice"
    ) -> int:
        options = {"gpus_per_node": gpus_per_node, "no_kill": no_kill, "user": user}
        return self._simulated.submit(nodes, **options)

    def person_drains(self, node: str, reason: str) -> None:
        self._simulated.drain_by_person(node, reason)

    def wait(self, seconds: float) -> None:
        self._clock.at += seconds


class LabWorld:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.slurm: Slurm = CommandLineSlurm(SystemClock(), lab.command([], user="unicron"))

    def submit(
        self, nodes: int, gpus_per_node: int = 8, no_kill: bool = True, user: str = "alice"
    ) -> int:
        options = [
            f"-N{nodes}",
            f"--gpus-per-node={gpus_per_node}",
            "--requeue",
            "--job-name=train",
        ]
        options += ["--no-kill"] if no_kill else []
        script = "#!/bin/bash\nexec sleep 900\n"
        done = self._lab.exec(["sbatch", "--parsable", *options], user=user, text_in=script)
        return int(done.stdout)

    def cancel(self, job_id: int) -> None:
        self._lab.exec(["scancel", str(job_id)], user="alice")

    def hold(self, job_id: int) -> None:
        self._lab.exec(["scontrol", "hold", str(job_id)], user="alice")

    def admin_says(self, job_id: int, words: str) -> None:
        self._scontrol(f"JobId={job_id}", f"AdminComment={words}")

    def cut(self, node: str) -> None:
        self._lab.fault("cut-link", node=node)

    def restore(self, node: str) -> None:
        self._lab.fault("restore-link", node=node)

    def repair(self, node: str) -> None:
        """Slurm seldom asks a drained node whether it is back; a slurmd that starts says so."""
        self.restore(node)
        self._lab.fault("kill-slurmd", node=node)
        time.sleep(1)
        self._lab.fault("start-slurmd", node=node)

    def person_drains(self, node: str, reason: str) -> None:
        self._scontrol(f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def person_resumes(self, node: str) -> None:
        self._scontrol(f"NodeName={node}", "State=RESUME")

    def stop_controller(self) -> None:
        self._lab.fault("stop-slurmctld")

    def start_controller(self) -> None:
        self._lab.fault("start-slurmctld")

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _scontrol(self, *words: str) -> None:
        self._lab.exec(["scontrol", "update", *words])

    def tidy(self) -> None:
        """Every node idle, no job: where the next story starts."""
        for user in ("alice", "bob"):
            self._lab.exec(["scancel", f"--user={user}"])
        for node, seen in (self.slurm.snapshot().nodes or {}).items():
            if seen.state is not NodeState.UP and seen.raw_state != "IDLE+NOT_RESPONDING":
                self._lab.exec(
                    ["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False
                )
        until(self, lambda seen: not self._end_reservations() and all_idle(seen), 60)

    def _end_reservations(self) -> list[str]:
        """Those that are left: Slurm deletes none that a job still uses."""
        shown = self._lab.exec(["scontrol", "--oneliner", "show", "reservation"]).stdout
        names = re.findall(r"ReservationName=(unicron-\S+)", shown)
        for name in names:
            self._lab.exec(["scontrol", "delete", f"ReservationName={name}"], check=False)
        return names


def until(world: World, told: Callable[[Snapshot], bool], within_seconds: float) -> Snapshot:
    for _ in range(int(within_seconds / 0.5)):
        seen = world.slurm.snapshot()
        if told(seen):
            return seen
        world.wait(0.5)
    raise AssertionError(f"not within {within_seconds} s: {seen}")


def all_idle(seen: Snapshot) -> bool:
    return seen.nodes is not None and all(node.raw_state == "IDLE" for node in seen.nodes.values())


def job_in(seen: Snapshot, job_id: int) -> Allocation:
    assert seen.allocations is not None, seen.error
    return seen.allocations[job_id]


def await_job(world: World, job_id: int, state: JobState, seconds: float = 20) -> Allocation:
    seen = until(world, lambda seen: job_in(seen, job_id).state is state, seconds)
    return job_in(seen, job_id)


def await_node(world: World, node: str, state: NodeState, seconds: float = 20) -> None:
    until(world, lambda seen: seen.nodes is not None and seen.nodes[node].state is state, seconds)


def running(world: World, nodes: int, gpus_per_node: int = 8) -> Allocation:
    return await_job(world, world.submit(nodes, gpus_per_node), JobState.RUNNING)


def away_from(job: Allocation) -> str:
    return next(node for node in NODES if node not in job.nodes)


def without_batch_host(job: Allocation) -> Sequence[str]:
    return [node for node in job.nodes if node != job.batch_host]
