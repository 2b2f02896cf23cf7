"""Small clusters to plan for: one pool named gpu unless said otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.kernels import Floats
from planner.objective import Claim, Plan, Pool, Problem, Transition

TRANSITION = Transition(restart=20, swap=40, shrink=30, grow=50, requeue=600)


def table(largest: int = 16, unit: int = 1, power: float = 0.8, least: int = 1) -> Floats:
    """T = 1e15 x^power at the multiples of `unit` from `least` on."""
    workers = np.arange(largest + 1)
    flops = 1e15 * workers**power
    flops[(workers % unit != 0) | (workers < least)] = np.nan
    return flops


def claim(run_id: int, size: int = 0, flops: Floats | None = None, **more: Any) -> Claim:
    flops = table() if flops is None else flops
    present = float(flops[size]) if size else 0.0
    more = {"throughput": {"gpu": flops}, "pool": "gpu", "transition": TRANSITION, **more}
    return Claim(run_id=run_id, size=size, present_flops=present, **more)


def cluster(*claims: Claim, workers: int = 16, **more: Any) -> Problem:
    more = {"pools": {"gpu": Pool("gpu", workers)}, "horizon_seconds": 3600.0, **more}
    return Problem(claims, **more)


def sizes(plan: Plan) -> list[int]:
    return [share.size for share in plan.shares]
