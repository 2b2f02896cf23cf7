"""Small clusters to simulate, where everything that takes time takes round seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.objective import Transition
from simulator.kinds import Method
from simulator.model import HOUR, Cluster, Failure, Policy, RunSpec, Timing


def run(run_id: int, start: int | None = None, least: int = 1, **more: Any) -> RunSpec:
    """T = 1e15 x."""
    flops = 1e15 * np.arange(65, dtype=np.float64)
    flops[:least] = np.nan
    return RunSpec(run_id, f"run {run_id}", flops, start_nodes=start, **more)


def cluster(nodes: int, *runs: RunSpec, hours: float = 100, **more: Any) -> Cluster:
    more = {"failures_per_node_second": 1e-7, "repair_seconds": 36000.0, **more}
    return Cluster(nodes, 8, 4, runs, round(hours * HOUR), **more)


def policy(rule: str, detection: float = 100, change: float = 1000, **more: Any) -> Policy:
    seconds = dict.fromkeys(Method, detection)
    kinds = ("restart", "swap", "shrink", "grow", "requeue")
    transition = Transition(**dict.fromkeys(kinds, change))
    return Policy(rule, "", rule, Timing(seconds, transition, change, change / 10), **more)


def lost(node: int, hours: float, repair_hours: float = 10) -> Failure:
    return Failure(round(hours * HOUR), (node,), "lost connection", round(repair_hours * HOUR))


def broken(node: int, hours: float, kind: str = "exited abnormally") -> Failure:
    return Failure(round(hours * HOUR), (node,), kind)
