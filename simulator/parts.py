"""The form of input files: scenarios, runs, policies. What the fields mean: docs/simulator.md."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from planner import throughput
from planner.kernels import Floats
from simulator.kinds import Method
from simulator.laws import Law
from simulator.model import Freed


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPart(Part):
    flops_per_iteration: float = Field(gt=0)
    micro_batches: int = Field(ge=1)
    micro_batch_seconds: float = Field(gt=0)
    allreduce_seconds: float = Field(0, ge=0)
    replica_nodes: int = Field(1, ge=1)


class ThroughputPart(Part):
    """T on so many nodes, in FLOP/s."""

    model: ModelPart | None = None
    curve: list[tuple[int, float]] | None = None

    @model_validator(mode="after")
    def _one(self) -> ThroughputPart:
        if (self.model is None) == (self.curve is None):
            raise ValueError("give either model or curve")
        if self.curve is not None and [n for n, _ in self.curve] != sorted(
            {n for n, _ in self.curve}
        ):
            raise ValueError("curve: nodes must rise")
        return self

    def flops(self, nodes: int) -> Floats:
        if self.model is not None:
            given = self.model.model_dump()
            return throughput.Model(replica_workers=given.pop("replica_nodes"), **given).table(
                nodes
            )
        return throughput.Curve(self.curve or ()).table(nodes)


class KnownModel(Part):
    parameters: float = Field(gt=0)
    throughput: ThroughputPart


class RunPart(Part):
    id: int = Field(ge=1)
    model: str | None = None
    throughput: ThroughputPart | None = None
    parameters: float | None = Field(None, gt=0)
    weight: float = Field(1, gt=0)
    nodes: int | None = Field(None, ge=0)  # at the start; else the first division's
    arrives_hours: float = Field(0, ge=0)
    work_flop: float | None = Field(None, gt=0)


class ClusterPart(Part):
    nodes: int = Field(ge=1, le=100_000)
    gpus_per_node: int = Field(8, ge=1)
    nodes_per_switch: int = Field(16, ge=1)


class Event(Part):
    """One failure of a told trace: of a node, or of all nodes of a switch, both from 0."""

    hours: float = Field(ge=0)
    node: int | None = Field(None, ge=0)
    switch: int | None = Field(None, ge=0)
    kind: str
    repair_hours: float | None = Field(None, gt=0)


class FailuresPart(Part):
    severe: int = Field(0, ge=0)
    others: int = Field(0, ge=0)
    per_1000_node_days: float = Field(0, ge=0)
    law: Literal["exponential", "weibull"] = "exponential"
    shape: float = Field(1, gt=0)
    switch_failures_per_year: float = Field(0, ge=0)
    shares: dict[str, float] | None = None
    events: list[Event] | None = None


class RepairPart(Part):
    law: Law = "exponential"
    mean_hours: float = Field(gt=0)
    shape: float = Field(1, gt=0)


class QueuePart(Part):
    freed: Freed = Freed.OURS
    others_waiting: float = Field(0, ge=0, le=1)
    others_hold_hours: float = Field(24, gt=0)


class ScenarioPart(Part):
    name: str
    about: str = ""
    days: float = Field(gt=0, le=3650)
    cluster: ClusterPart
    runs: str | list[RunPart]
    start: Literal["replan", "equal", "weighted", "by_size"] = "replan"
    failures: FailuresPart
    repair: RepairPart
    queue: QueuePart = Field(default_factory=lambda: QueuePart.model_validate({}))
    sources: dict[str, str] = {}


class Seconds(Part):
    restart: float = Field(ge=0)
    swap: float = Field(ge=0)
    shrink: float = Field(ge=0)
    grow: float = Field(ge=0)
    requeue: float = Field(ge=0)
    start: float = Field(ge=0)
    retry: float = Field(ge=0)


class PolicyPart(Part):
    name: str
    about: str
    rule: str
    detection_seconds: dict[Method, float]
    transition_seconds: Seconds
    redone_seconds: float = Field(ge=0)
    healthy_percent: float = Field(100, gt=0, le=100)
    keeps_failed: bool = False
    foresees: bool = False
    floors: bool = True
    margin: float = Field(1, ge=0)
    sources: dict[str, str]
