"""A what-if as JSON: its shape. docs/planner.md describes it; a test keeps the two the same.

Strict: what is unknown, misspelt or out of range is refused with the name of the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from planner.pools import TIME_LIMIT_SECONDS
from unicrond.errors import BadInput

DAY_SECONDS = 86400.0
MOST_CELLS = 2**26  # runs times workers: half a gigabyte of gains

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**6)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PoolPart(_Part):
    name: str
    workers: Count  # available: neither lost nor others'
    node_workers: Annotated[int, Field(ge=1, le=1024)] = 1
    whole_nodes: bool = True
    failures_per_1000_node_days: NotNegative = 0.0
    away: Count = 0  # nodes out of service
    return_hours: Positive | None = None  # until one of them is back, on average


class TransitionPart(_Part):
    restart: NotNegative
    swap: NotNegative
    shrink: NotNegative
    grow: NotNegative
    requeue: NotNegative


class RangePart(_Part):
    min: Annotated[int, Field(ge=1)]
    max: Annotated[int, Field(ge=1, le=10**6)]
    unit: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _upwards(self) -> RangePart:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        return self


class ModelPart(_Part):
    flops_per_iteration: Positive
    micro_batches: Annotated[int, Field(ge=1, le=10**6)]
    micro_batch_seconds: Positive
    allreduce_seconds: NotNegative = 0.0
    replica_workers: Annotated[int, Field(ge=1, le=10**5)] = 1


class ThroughputPart(_Part):
    curve: list[tuple[Annotated[int, Field(ge=1, le=10**6)], NotNegative]] | None = None
    model: ModelPart | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> ThroughputPart:
        if (self.curve is None) == (self.model is None):
            raise ValueError("give either curve or model")
        sizes = [workers for workers, _ in self.curve or ()]
        if self.curve is not None and (not sizes or sizes != sorted(set(sizes))):
            raise ValueError("curve needs points by rising workers")
        return self


def _kind_of_sizes(value: object) -> str:
    return "range" if isinstance(value, dict) else "list"


Sizes = Annotated[
    Annotated[list[Annotated[int, Field(ge=1, le=10**6)]], Tag("list")]
    | Annotated[RangePart, Tag("range")],
    Discriminator(_kind_of_sizes),
]


class RunPart(_Part):
    id: Annotated[int, Field(ge=0)]
    throughput: Annotated[dict[str, ThroughputPart], Field(min_length=1)]  # by pool it may use
    pool: str | None = None  # where it runs; needed where it may use several
    size: Count = 0  # workers it has, the faulty ones included
    faulty: Count = 0
    broken: bool = False
    queued: bool = False  # waits for `size` workers: an event of the failover table only
    weight: Positive = 1.0
    account: str = ""
    sizes: Sizes | None = None
    floor: Count = 0
    ceiling: Count | None = None
    waited_seconds: NotNegative = 0.0
    turn_left_seconds: NotNegative = 0.0
    can_shrink: bool = True
    transition_seconds: TransitionPart | None = None


class AccountPart(_Part):
    name: str
    floor: Count = 0
    ceiling: Count | None = None


class NodePart(_Part):
    name: str
    pool: str
    switch: str = ""
    run: int | None = None
    pinned: bool = False
    usable: bool = True
    lemon: bool = False


class ReliabilityPart(_Part):
    other_changes_per_day: NotNegative = 0.0
    horizon_seconds: Positive = 30 * DAY_SECONDS


class Question(_Part):
    pools: Annotated[list[PoolPart], Field(min_length=1)]
    runs: Annotated[list[RunPart], Field(min_length=1)]
    accounts: list[AccountPart] = []
    nodes: list[NodePart] = []
    reliability: ReliabilityPart = ReliabilityPart()
    transition_seconds: TransitionPart | None = None
    margin: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    patience_seconds: Positive | None = None
    keeps_freed: bool = False
    time_limit_seconds: Positive = TIME_LIMIT_SECONDS

    def pool(self, name: str, place: str) -> PoolPart:
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise BadInput(f"{place}: there is no pool {name!r} in pools")


def parse(text: str | bytes) -> Question:
    """Raises BadInput that names the field."""
    try:
        question = Question.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise BadInput(f"{place}: {first['msg']}") from None
    _check_unique("pools", "name", [pool.name for pool in question.pools])
    _check_unique("runs", "id", [run.id for run in question.runs])
    _check_unique("accounts", "name", [account.name for account in question.accounts])
    _check_unique("nodes", "name", [node.name for node in question.nodes])
    cells = sum(
        question.pool(name, f"runs.{i}.throughput").workers
        for i, run in enumerate(question.runs)
        for name in run.throughput
    )
    if cells > MOST_CELLS:
        raise BadInput(f"runs: runs times workers is {cells}, at most {MOST_CELLS} can be weighed")
    return question


def _check_unique(place: str, key: str, values: Sequence[object]) -> None:
    seen = set[object]()
    for i, value in enumerate(values):
        if value in seen:
            raise BadInput(f"{place}.{i}.{key}: {value!r} is there twice")
        seen.add(value)
