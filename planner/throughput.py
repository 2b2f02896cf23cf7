"""T(t, x): achieved FLOP/s of a run on x workers, from measured points or from a small model.

    T(x)       = flops_per_iteration / seconds(d)            x = d * replica_workers
    seconds(d) = micro_batch_seconds * ceil(micro_batches / d) + allreduce_seconds * (d - 1) / d

d is the number of data-parallel replicas, each of which works through its share of a fixed global
batch of `micro_batches`; the gradient's ring all-reduce is the communication that nothing hides.
More replicas than micro-batches are of no use; T is flat or falls where d does not divide the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.kernels import Floats


@dataclass(frozen=True, slots=True)
class Model:
    flops_per_iteration: float
    micro_batches: int
    micro_batch_seconds: float
    allreduce_seconds: float = 0.0
    replica_workers: int = 1

    def table(self, largest: int) -> Floats:
        """T for 0 to `largest` workers, NaN where they do not make whole, useful replicas."""
        table = np.full(largest + 1, np.nan)
        most = min(largest // self.replica_workers, self.micro_batches)
        d = np.arange(1, most + 1)
        compute = self.micro_batch_seconds * np.ceil(self.micro_batches / d)
        seconds = compute + self.allreduce_seconds * (d - 1) / d
        table[d * self.replica_workers] = self.flops_per_iteration / seconds
        return table


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured (workers, FLOP/s), by rising workers: straight between them, unknown outside."""

    points: Sequence[tuple[int, float]]

    def table(self, largest: int) -> Floats:
        sizes, flops = np.array(self.points, np.float64).T
        table = np.interp(np.arange(largest + 1), sizes, flops, left=np.nan, right=np.nan)
        return np.asarray(table, np.float64)
