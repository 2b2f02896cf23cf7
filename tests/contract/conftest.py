"""The same stories on both clusters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from slurmworld import NODES, LabWorld, SimulatedWorld, World

from lab import Lab, LabSpec


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab(os.environ.get("UNICRON_CONTRACT_LAB", "slurmlab"))  # so that two may run at once
    lab.up(LabSpec(nodes=len(NODES), nodes_per_switch=2))
    yield lab
    lab.down()


@pytest.fixture(params=["simulated", pytest.param("lab", marks=pytest.mark.slurm)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "simulated":
        yield SimulatedWorld()
        return
    real = LabWorld(request.getfixturevalue("lab"))
    yield real
    real.tidy()
