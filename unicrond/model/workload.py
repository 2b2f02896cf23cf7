"""What a run computes in one iteration, as its user told or its ranks counted."""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.model.strenum import StrEnum


class BatchScaling(StrEnum):
    FIXED = "fixed"  # the global batch stays: an iteration is divided among the workers
    PER_RANK = "per-rank"  # each rank keeps its batch: an iteration grows with the workers


@dataclass(frozen=True, slots=True)
class Layout:
    """How one data-parallel replica lies on its workers."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def workers(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class Workload:
    """0 means: not told. `flops_per_iteration`: of the whole run on `workers` workers."""

    flops_per_iteration: float = 0.0
    scaling: BatchScaling = BatchScaling.PER_RANK
    micro_batches: int = 0  # of the global batch if that is fixed, else of one replica
    parameters: float = 0.0  # of the trained model
    layouts: tuple[Layout, ...] = (Layout(),)  # the legal ones
    workers: int = 0
    counted: bool = False  # the FLOPs, by the program's own ranks


PLAIN = Workload()  # of which nothing was told
