"""What the API answers of pauses, what-ifs, trust, GPU time, commands; models.py has the rest."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from unicrond.api.models import example
from unicrond.model.decision import Mode
from unicrond.model.pause import PauseScope


class PauseIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"scope": "partition", "value": "gpu", "why": "maintenance"}]
        },
    )
    scope: PauseScope
    value: str = Field(
        description="the partition, the kind of action, or all, run 4711, node n2, incident 12",
        min_length=1,
        max_length=255,
    )
    why: str = Field("", max_length=500)


class PauseOut(BaseModel):
    model_config = example(
        scope="action", value="drain", at=1.7e9, who="ada", why="the probe is broken"
    )
    scope: PauseScope
    value: str
    at: float
    who: str
    why: str


class WhyIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"why": "new memory"}]}
    )
    why: str = Field("", max_length=500)


class NodeAskedOut(BaseModel):
    model_config = example(node="n7", state="up")
    node: str
    state: str = Field(description="as Slurm described it before; /v1/why/NODE tells what comes")


class WhatIfIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "question": {
                        "pools": [{"name": "h100", "workers": 3}],
                        "runs": [
                            {
                                "id": 1, "size": 2,
                                "throughput": {"h100": {"curve": [[1, 1], [3, 2]]}},
                            }
                        ],
                        "transition_seconds": {
                            "restart": 30, "swap": 60, "shrink": 45, "grow": 90, "requeue": 600,
                        },
                    }
                }
            ]
        },
    )  # fmt: skip
    question: dict[str, Any] = Field(description="docs/planner.md describes it")
    next: bool = Field(False, description="the plan for every single next event instead")


class WhatIfOut(BaseModel):
    model_config = example(answer={"choice": "grow", "reason": "..."})
    answer: Any = Field(description="docs/planner.md describes it")


class FailoverEntryOut(BaseModel):
    model_config = example(
        event="run 4711 loses a node", obstacle="", changes=["run 4711 shrinks to 3 nodes"],
        sizes={"4711": 24}, gain=1.5e20,
    )  # fmt: skip
    event: str
    obstacle: str = Field(description="why there is no plan, empty where there is one")
    changes: list[str]
    sizes: dict[str, int]
    gain: float | None


class FailoverOut(BaseModel):
    """The failover table of the newest plan."""

    model_config = example(at=1.7e9, items=[])
    at: float = Field(description="when that plan was made")
    items: list[FailoverEntryOut]


class ActionTrustOut(BaseModel):
    model_config = example(
        action="restart", observed=9, confirmed=8, refuted=0, undecided=1, bound=0.75, may_act=True,
        people={"restarted": 7, "went on": 2}, predicted_seconds=12.0, actual_seconds=1800.0,
        saving_gpu_seconds=1.2e6,
    )  # fmt: skip
    action: str
    observed: int = Field(description="decided, and not carried out")
    confirmed: int = Field(description="of these, those whose incident was one")
    refuted: int
    undecided: int
    bound: float = Field(description="the lower end of what this record allows")
    may_act: bool = Field(description="whether it may be switched on: the bound reaches `needed`")
    people: dict[str, int] = Field(description="what was done instead, how often")
    predicted_seconds: float | None = Field(description="of such a heal here; null: not known")
    actual_seconds: float | None = Field(description="that it took people, the median")
    saving_gpu_seconds: float | None


class RuleTrustOut(BaseModel):
    model_config = example(
        rule="hang.overdue", confirmed=3, refuted=0, undecided=1, bound=0.8, needs=0.6, may_act=True
    )
    rule: str
    confirmed: int
    refuted: int
    undecided: int
    bound: float
    needs: float
    may_act: bool


class TrustOut(BaseModel):
    """What was observed, and whether it may be switched on."""

    model_config = example(mode="observe", needed=0.6, actions=[], rules=[])
    mode: Mode | None
    needed: float = Field(description="bound from which an action may be switched on")
    actions: list[ActionTrustOut]
    rules: list[RuleTrustOut] = Field(description="that opened incidents here")


class LedgerRowOut(BaseModel):
    model_config = example(
        key="4711", gpu_seconds=5760.0, lost_gpu_seconds=96.0, goodput=0.983,
        causes={"training": 5664.0, "detection": 8.0, "transition": 88.0},
    )  # fmt: skip
    key: str = Field(description="the run's number, or the name of the node, account, ...")
    gpu_seconds: float = Field(description="that its jobs held")
    lost_gpu_seconds: float = Field(description="of these those in which runs did not train")
    goodput: float | None = Field(description="part of what runs held that trained (ETTR of a run)")
    causes: dict[str, float] = Field(description="they add up to gpu_seconds")


class LedgerOut(BaseModel):
    """GPU time from one moment to another, by what it went for: docs/ledger.md."""

    model_config = example(
        began=1.7e9, ended=1.70009e9, by="account", total={}, rows=[], more=False
    )
    began: float
    ended: float
    by: str
    total: LedgerRowOut
    rows: list[LedgerRowOut] = Field(description="those that lost most first")
    more: bool = Field(description="whether rows were left out: ask with a higher limit")


class AuditOut(BaseModel):
    """A command: who gave it, when, why, from where, and what came of it."""

    model_config = example(
        at=1.7e9, who="alice", role="user", via="unix", origin="uid 1001", command="mode paused",
        subject="run 4711", why="debugging", refusal="",
    )  # fmt: skip
    at: float
    who: str = Field(description="empty: somebody without a name, over loopback")
    role: str = Field(description="viewer, user, operator or admin")
    via: str = Field(description="unix, token, munge or loopback")
    origin: str
    command: str
    subject: str
    why: str
    refusal: str = Field(description="why it was not taken, empty when it was")
