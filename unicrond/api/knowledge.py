"""What the planner learned and proposed, as the planner's process left it in the store."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from db.knowledge import CLUSTER, HEALS, RELIABILITY, THROUGHPUT
from db.queries import Queries
from unicrond.api.callers import Seeing
from unicrond.api.errors import NotFound
from unicrond.api.stories import seen_run
from unicrond.errors import Refused

SHOWN_HEALS = 10
Number = Annotated[int, Path(ge=0, lt=2**63)]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class ToldOut(BaseModel):
    model_config = _example(
        flops_per_iteration=1.7e17, batch_scaling="fixed", micro_batches=512, parameters=7e9,
        layouts=["8x1"], workers=64,
    )  # fmt: skip
    flops_per_iteration: float | None = Field(description="of the run on `workers`; null: not told")
    batch_scaling: str = Field(description="fixed or per-rank")
    micro_batches: int | None
    parameters: float | None
    layouts: list[str] = Field(description="tensor x pipeline parallel workers of a replica")
    workers: int


class MeasuredOut(BaseModel):
    model_config = _example(workers=64, seconds=9.0, noise=0.01, windows=12, iterations=480)
    workers: int
    seconds: float = Field(description="of an iteration: the median of the windows")
    noise: float = Field(description="of the median, relative to it")
    windows: int
    iterations: int


class ParameterOut(BaseModel):
    model_config = _example(
        name="GPU seconds of an iteration", value=570.0, low=520.0, high=620.0, from_data=0.98,
        prior="38-55 % of peak published for large models",
    )  # fmt: skip
    name: str
    value: float
    low: float
    high: float
    from_data: float = Field(description="part of the prior's variance that was measured away")
    prior: str


class EstimateOut(BaseModel):
    model_config = _example(
        workers=128, seconds=4.6, rate=3.7e16, low=3.2e16, high=4.2e16, measured=False
    )
    workers: int
    seconds: float
    rate: float = Field(description="in the model's unit; `low`, `high`: its interval of 90 %")
    low: float
    high: float
    measured: bool


class ModelOut(BaseModel):
    """How long a run's iterations take, by its workers."""

    model_config = _example(
        run_id=4711, unit="FLOP/s", gpu_type="h100", doubt="", told={}, measured=[], parameters=[],
        estimates=[],
    )  # fmt: skip
    run_id: int
    unit: str = Field(description="FLOP/s; iterations/s or samples/s where FLOPs were not told")
    gpu_type: str
    doubt: str = Field(description="what was told and is not believed")
    told: ToldOut
    measured: list[MeasuredOut]
    parameters: list[ParameterOut]
    estimates: list[EstimateOut]


class RateOut(BaseModel):
    model_config = _example(
        mtbf_days=240.0, mtbf_days_low=150.0, mtbf_days_high=420.0, per_1000_days=4.2, failures=3,
        days=800.0, from_data=0.46, prior="published",
    )  # fmt: skip
    mtbf_days: float = Field(description="`low`, `high`: its interval of 90 %")
    mtbf_days_low: float
    mtbf_days_high: float
    per_1000_days: float
    failures: int
    days: float = Field(description="watched, of all nodes or switches together")
    from_data: float = Field(description="part of the exposure behind it that was watched here")
    prior: str


class ShapeOut(BaseModel):
    model_config = _example(shape=0.8, low=0.7, high=0.9, intervals=40, scale_days=210.0)
    shape: float = Field(description="of a Weibull law; under 1: one failure follows another")
    low: float
    high: float
    intervals: int
    scale_days: float


class PoolRecordOut(BaseModel):
    model_config = _example(
        name="h100x8@gpu", nodes=64, node={}, switch={}, shape=None, aging=1.0, switches=4,
        unequal=1.0,
    )  # fmt: skip
    name: str
    nodes: int
    node: RateOut
    switch: RateOut = Field(description="of events that take several nodes together")
    shape: ShapeOut | None = Field(description="null: too few failures")
    aging: float = Field(1.0, description="failures to be expected now over those of the rate")
    switches: int = Field(1, description="of Slurm's topology; 1 where none is told")
    unequal: float = Field(description="the lower, the more unequal its nodes are")


class NodeRecordOut(RateOut):
    model_config = _example(node="n7", pool="h100x8@gpu", lemon=True, lemon_probability=0.98)
    node: str
    pool: str
    lemon: bool
    lemon_probability: float = Field(description="that it fails three times as often as its pool")
    times_pool: float


class TransitionOut(BaseModel):
    model_config = _example(kind="restart", seconds=14.0, low=9.0, high=21.0, seen=12, prior="")
    kind: str
    seconds: float = Field(description="until ranks run again; `low`, `high`: interval of 90 %")
    low: float
    high: float
    seen: int
    prior: str


class RepairOut(BaseModel):
    model_config = _example(pool="h100x8@gpu", hours=9.0, low=6.0, high=15.0, seen=7, prior="")
    pool: str
    hours: float = Field(description="until a node is back, on average; interval of 90 %")
    low: float
    high: float
    seen: int
    prior: str


class ReliabilityOut(BaseModel):
    model_config = _example(at=1.7e9, pools=[], nodes=[], lemons=["n7"], transitions=[], repairs=[])
    at: float
    pools: list[PoolRecordOut]
    nodes: list[NodeRecordOut] = Field(description="that failed, the worst first")
    lemons: list[str]
    transitions: list[TransitionOut]
    repairs: list[RepairOut] = []


class FollowedOut(BaseModel):
    """What a plan said of a heal, and what was measured of it."""

    model_config = _example(
        incident_id=12, run_id=4711, at=1.7e9, planned="shrink", done="shrink",
        predicted_seconds=49.0, measured_seconds=21.0, predicted_price=2e17, measured_price=9e16,
        predicted_kept=0.75, measured_kept=0.73,
    )  # fmt: skip
    incident_id: int
    run_id: int
    at: float = Field(description="when the heal was done")
    planned: str
    done: str
    predicted_seconds: float
    measured_seconds: float
    predicted_price: float = Field(description="weighted FLOP")
    measured_price: float
    predicted_kept: float | None = Field(description="FLOP/s after the heal over those before")
    measured_kept: float | None = Field(description="null: no iterations were measured after it")


class PlanOut(BaseModel):
    """The newest plan, as it was proposed. docs/planner.md describes its parts."""

    model_config = _example(
        at=1.7e9, cause="SEV1", today={}, unlimited={}, assumed=[], questions={}, followed=[]
    )
    at: float
    cause: str
    today: dict[str, Any] = Field(description="the best of what can be carried out")
    unlimited: dict[str, Any] = Field(description="the best if everything could")
    assumed: list[str] = Field(description="what both take for granted")
    questions: dict[str, Any] = Field(description="what-ifs, to be asked again")
    foreseen: str = Field("", description="whether the plan without limits was ready before")
    followed: list[FollowedOut] = Field(description="newest heals, prices beside the predicted")


def routes(queries: Queries) -> APIRouter:
    router = APIRouter(tags=["knowledge"])

    @router.get("/runs/{run_id}/model")
    def model(run_id: Number, sight: Seeing) -> ModelOut:
        if not sight.jobs:
            seen_run(queries, run_id, sight)
        found = queries.learned(THROUGHPUT, str(run_id))
        if found is None:
            raise NotFound(
                f"nothing is known of the iterations of run {run_id} yet: they are measured within"
                " minutes where the run reports or shows them"
            )
        return ModelOut(run_id=run_id, **found)

    @router.get("/reliability")
    def reliability() -> ReliabilityOut:
        found = queries.learned(RELIABILITY, CLUSTER)
        if found is None:
            raise NotFound("nothing was learned yet: unicrond's planner looks once a minute")
        return ReliabilityOut.model_validate(found)

    @router.get("/plan")
    def plan(sight: Seeing) -> PlanOut:
        if not sight.jobs:
            raise Refused("plans name everybody's runs, which PrivateData keeps private here")
        found = queries.last_plan()
        if found is None:
            raise NotFound("no plan was made yet: one is when a run starts or a node fails")
        followed = list(reversed(queries.learned(HEALS, CLUSTER) or []))[:SHOWN_HEALS]
        doc = json.loads(found.doc)
        return PlanOut(at=found.at, cause=found.cause, followed=followed, **doc)

    return router
