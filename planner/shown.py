"""What was learned, as plain values for people and programs; docs/planner.md describes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from planner.iteration import Fit
from planner.reliability import NodeRecord, PoolRecord, Rate, Reliability
from planner.repairs import Repair
from planner.transitions import Duration

MOST_SIZES = 24
MOST_NODES = 100  # of those that failed

Shown = dict[str, Any]


def model(fit: Fit, step: int, largest: int) -> Shown:
    """Estimates at multiples of `step` workers (those of a node) up to `largest`."""
    told = fit.workload
    return {
        "unit": fit.unit,
        "gpu_type": fit.gpu,
        "doubt": fit.doubt,
        "told": {
            "flops_per_iteration": told.flops_per_iteration or None,
            "batch_scaling": told.scaling.value,
            "micro_batches": told.micro_batches or None,
            "parameters": told.parameters or None,
            "layouts": [f"{layout.tensor}x{layout.pipeline}" for layout in told.layouts],
            "workers": told.workers,
        },
        "measured": [
            {
                "workers": m.workers, "seconds": m.middle, "noise": m.noise,
                "windows": len(m.seconds), "iterations": m.iterations,
            }
            for m in fit.measured
        ],
        "parameters": [asdict(parameter) for parameter in fit.parameters()],
        "estimates": [
            asdict(estimate)
            for size in _sizes(fit, step, largest)
            if (estimate := fit.estimate(size)) is not None
        ],
    }  # fmt: skip


def _sizes(fit: Fit, step: int, largest: int) -> Iterable[int]:
    spread = np.geomspace(1, max(1, largest // step), MOST_SIZES).round().astype(int)
    return sorted({*(int(n) * step for n in spread), *(m.workers for m in fit.measured)})


def reliability(
    found: Reliability,
    durations: Mapping[str, Duration],
    repairs: Mapping[str, Repair],
    at: float,
) -> Shown:
    return {
        "at": at,
        "pools": [_pool(pool) for pool in found.pools],
        "nodes": [_node(record) for record in found.nodes[:MOST_NODES]],
        "lemons": sorted(found.lemons),
        "transitions": [asdict(duration) for duration in durations.values()],
        "repairs": [asdict(repair) for repair in repairs.values()],
    }


def _pool(pool: PoolRecord) -> Shown:
    return {
        "name": pool.name,
        "nodes": pool.nodes,
        "node": _rate(pool.node),
        "switch": _rate(pool.switch),
        "shape": asdict(pool.shape) if pool.shape else None,
        "aging": pool.aging,
        "switches": pool.switches,
        "unequal": pool.unequal,
    }


def _rate(rate: Rate) -> Shown:
    return {
        "mtbf_days": rate.mtbf_days,
        "mtbf_days_low": 1 / rate.high,
        "mtbf_days_high": 1 / rate.low,
        "per_1000_days": 1000 * rate.per_day,
        "failures": rate.failures,
        "days": rate.days,
        "from_data": rate.from_data,
        "prior": rate.prior,
    }


def _node(record: NodeRecord) -> Shown:
    return {
        "node": record.node,
        "pool": record.pool,
        "lemon": record.lemon,
        "lemon_probability": record.lemon_probability,
        "times_pool": record.times_pool,
        **_rate(record.rate),
    }
