"""A lab to break trainings on, with unicrond's store at hand, and how such a measurement is run.

May touch: labs (as root), the report.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.report import Figure, finish, tell
from bench.trainings import MeasurementError
from db.queries import Queries
from lab import Lab, LabError, LabSpec
from lab.configuration import unicron_toml
from lab.services import slurm_version
from unicrond.config import Settings
from unicrond.model.decision import ActionKind
from unicrond.model.incident import Incident

# A script that tells no iterations makes progress by living on: here after a second, so that one
# run can be broken over and over.
POLICY = "[policy]\nprogress_seconds = 1\nrestarts_per_hour = 1000\ndrains_per_hour = 1000\n"
HEALED_SECONDS = 60.0
IDLE_SECONDS = 120.0


class Bench:
    """A lab with its store at hand."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.loads: list[float] = []
        self._chance = random.Random(1)
        database = lab.paths.inside(Settings().database_url.removeprefix("sqlite:///"))
        self.store = Queries(f"sqlite:///{database}")

    def pause(self) -> None:
        """So that faults do not keep step with beats, ticks and train steps."""
        self.loads.append(os.getloadavg()[0])
        time.sleep(self._chance.random())

    def incident_after(self, run_id: int, at: float) -> Incident:
        """The incident of this run that was opened after `at`, once it is over."""
        deadline = time.monotonic() + HEALED_SECONDS
        while time.monotonic() < deadline:
            items = self.store.incidents(run_id=run_id).items
            found = [i for i in items if i.opened_at >= at and not i.only_told]
            if found and found[-1].closed_at:
                return found[-1]
            time.sleep(0.05)
        raise MeasurementError(f"run {run_id}: no incident since the fault was resolved")

    def last_outcome(self, incident: Incident, kind: ActionKind) -> float:
        outcomes = [act.outcome for act in self.store.acts(incident.incident_id)
                    if act.action.kind is kind and act.outcome]  # fmt: skip
        if not outcomes:
            raise MeasurementError(f"incident {incident.incident_id}: no {kind} had an outcome")
        return max(outcome.at for outcome in outcomes)

    def all_idle(self) -> None:
        """Takes back what unicrond drained, and waits for every node."""
        deadline = time.monotonic() + IDLE_SECONDS
        while True:
            states = {node.name: node.slurm_state or "" for node in self.lab.status().nodes}
            if all(state == "IDLE" for state in states.values()):
                return
            if time.monotonic() > deadline:
                raise MeasurementError(f"the nodes do not become idle: {states}")
            for node, state in states.items():
                if "DRAIN" in state:
                    self.lab.exec(["scontrol", "update", f"NodeName={node}", "State=UNDRAIN"])
            time.sleep(0.5)


@contextmanager
def raised(name: str, nodes: int, gpus: int = 1) -> Iterator[Bench]:
    lab = Lab(name)
    toml = unicron_toml() + POLICY
    lab.up(LabSpec(nodes=nodes, gpus_per_node=gpus, unicrond=True, unicron_toml=toml))
    try:
        yield Bench(lab)
    finally:
        lab.down()


def report(
    name: str,
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], tuple[list[Figure], list[str]]],
) -> int:
    """Measures and prints; the exit code."""
    parser.add_argument("--lab", default=name, help="name of the lab to make")
    options = parser.parse_args()
    try:
        figures, notes = measure(options)
    except (LabError, MeasurementError) as error:
        tell(f"{name}: {error}")
        return 2
    major, minor = slurm_version()
    return finish(name, figures, notes, ["torch"], {"slurm": f"{major}.{minor:02d}"})


def count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: choose a number from 1 to 1000")
    return int(text)
