"""What the API answers. Apart from the nouns of unicrond/model, so that these can change within
while what others have built on stays. Times are Unix seconds; null means unknown or not yet."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from db.queries import Act, SeenAllocation, SeenNode, StoryLine
from unicrond.link.messages import MOST_NODES, MOST_WEIGHT
from unicrond.model.decision import Decision, Mode
from unicrond.model.incident import Incident, Proof
from unicrond.model.run import Run

T = TypeVar("T")


def example(**values: Any) -> ConfigDict:
    return ConfigDict(from_attributes=True, json_schema_extra={"examples": [values]})


class PageOut(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(description="`after` of the next page, null on the last one")


class AllocationOut(BaseModel):
    model_config = example(
        job_id=4711, name="llama", user="alice", account="ml", partition="gpu", state="running",
        nodes=["n1", "n2"], gpus=16, submit_time=1.7e9, start_time=1.7e9, end_time=0,
        time_limit_seconds=86400, restarts=0, reason="", managed=True, changed_at=1.7e9,
        gone_at=None,
    )  # fmt: skip
    job_id: int
    name: str
    user: str
    account: str
    partition: str
    state: str
    nodes: list[str]
    gpus: int
    submit_time: float
    start_time: float
    end_time: float
    time_limit_seconds: int = Field(description="0: unlimited")
    restarts: int
    reason: str = Field(description="why it is pending")
    managed: bool = Field(description="whether unicrond looks after it")
    changed_at: float
    gone_at: float | None = Field(description="when Slurm no longer listed it")

    @classmethod
    def of(cls, seen: SeenAllocation) -> AllocationOut:
        return cls.model_validate(_flat(seen.allocation, seen, "managed", "changed_at", "gone_at"))


class AgentOut(BaseModel):
    model_config = example(
        node="n1", connected=True, last_heard=1.7e9, phase="running", generation=3, iteration=1200,
        regrouping=[0],
    )  # fmt: skip
    node: str
    connected: bool
    last_heard: float
    phase: str
    generation: int
    iteration: int = Field(description="-1: none reported")
    regrouping: list[int] = Field(description="ranks that can go over into a new generation")


class SlotOut(BaseModel):
    model_config = example(rank=0, member="m-1", node="n1", local_rank=0)
    rank: int
    member: str
    node: str
    local_rank: int


class RunOut(BaseModel):
    model_config = example(
        run_id=4711, name="llama", user="alice", state="running", mode=None, weight=2.0,
        floor_nodes=0, min_nodes=2, max_nodes=4, nodes=["n1", "n2"], running_on=["n1", "n2"],
        generation=3, iteration=1200, restarts=0, healing=None, shunned=[], end_reason="",
        agents=[], ranks=[],
    )  # fmt: skip
    run_id: int = Field(description="Slurm's job id")
    name: str
    user: str
    state: str
    mode: Mode | None = Field(description="null: the cluster's")
    weight: float
    floor_nodes: int = Field(description="that plans leave it in any case")
    min_nodes: int
    max_nodes: int
    nodes: list[str] = Field(description="of the allocation")
    running_on: list[str] = Field(description="nodes of the present generation")
    generation: int
    iteration: int = Field(description="-1: none reported")
    restarts: int = Field(description="Slurm's count of requeues")
    healing: str | None = Field(description="the step of a heal that is under way")
    shunned: list[str] = Field(description="nodes that this run moved off")
    end_reason: str
    agents: list[AgentOut]
    ranks: list[SlotOut]

    @classmethod
    def of(cls, run: Run) -> RunOut:
        return cls.model_validate(
            _flat(run)
            | {
                "running_on": run.assignment.nodes if run.assignment else (),
                "healing": run.healing.step if run.healing else None,
                "agents": list(run.agents.values()),
                "ranks": run.assignment.slots if run.assignment else (),
            }
        )


class IncidentOut(BaseModel):
    model_config = example(
        incident_id=12, kind="lost_node", severity="SEV1", scope="node", state="resolved",
        run_id=4711, generation=3, root_node="n2", root_rank=None, summary="n2 is silent", count=3,
        first_signal_at=1.7e9, opened_at=1.7e9, decided_at=1.7e9, closed_at=1.7e9,
        rule="silence.lost",
    )  # fmt: skip
    incident_id: int
    kind: str
    severity: str
    scope: str
    state: str
    run_id: int | None
    generation: int
    root_node: str
    root_rank: int | None
    summary: str
    count: int = Field(description="signals merged into it")
    first_signal_at: float
    opened_at: float
    decided_at: float = Field(description="0: not yet")
    closed_at: float = Field(description="0: not yet")
    rule: str = Field(description="that opened it; empty before rules were recorded")

    @classmethod
    def of(cls, incident: Incident) -> IncidentOut:
        return cls.model_validate(_flat(incident))


class ReviewOut(BaseModel):
    """Whether the rule that opened an incident was right."""

    model_config = example(proof="refuted", at=1.7e9, by="alice", reason="it was an evaluation")
    proof: Proof
    at: float
    by: str = Field(description="empty: what came of it shows it")
    reason: str


class AlternativeOut(BaseModel):
    model_config = example(name="wait for the node", chosen=False, price="about 5 h idle")
    name: str
    chosen: bool
    price: str


class DecisionOut(BaseModel):
    model_config = example(
        choice="go on with 3 nodes", reason="n2 is lost", acts=True, alternatives=[]
    )
    choice: str
    reason: str
    acts: bool = Field(description="false: decided and recorded only (mode observe or paused)")
    alternatives: list[AlternativeOut]


class DecidedOut(DecisionOut):
    """A decision, and what it was about."""

    model_config = example(
        at=1.7e9, incident_id=12, run_id=4711, generation=3, choice="go on with 3 nodes",
        reason="n2 is lost", acts=True,
        alternatives=[{"name": "wait for the node", "chosen": False, "price": "about 5 h idle"}],
    )  # fmt: skip
    at: float
    incident_id: int | None = Field(description="null: a plan, that no incident called for")
    run_id: int | None
    generation: int

    @classmethod
    def told(cls, decision: Decision) -> DecidedOut:
        return cls.model_validate(_flat(decision) | {"incident_id": decision.incident_id or None})


class StoryLineOut(BaseModel):
    model_config = example(
        at=1.7e9, kind="signal", text="n2 is silent", run_id=4711, incident_id=12, node="n2",
        generation=3, decision=None,
    )  # fmt: skip
    at: float
    kind: str = Field(description="signal, decision, plan, action, outcome or note")
    text: str
    run_id: int | None
    incident_id: int | None
    node: str
    generation: int
    decision: DecisionOut | None

    @classmethod
    def of(cls, line: StoryLine) -> StoryLineOut:
        return cls.model_validate(_flat(line.entry, line, "decision"))


class ActOut(BaseModel):
    model_config = example(
        key="12.3.0", kind="drain", run_id=4711, node="n2", outcome="done", outcome_at=1.7e9,
        detail="",
    )  # fmt: skip
    key: str
    kind: str
    run_id: int | None
    node: str
    outcome: str | None = Field(description="done, failed or refused; null: not yet")
    outcome_at: float | None
    detail: str

    @classmethod
    def of(cls, act: Act) -> ActOut:
        action, outcome = act.action, act.outcome
        return cls(
            key=str(action.key),
            kind=action.kind,
            run_id=action.run_id,
            node=action.node,
            outcome=outcome.state if outcome else None,
            outcome_at=outcome.at if outcome else None,
            detail=outcome.detail if outcome else "",
        )


class IncidentStoryOut(IncidentOut):
    """An incident, its actions, and the last of its story."""

    evidence: str = Field(description="as it was printed, read or answered")
    review: ReviewOut | None
    decisions: list[DecidedOut]
    actions: list[ActOut]
    timeline: list[StoryLineOut]


class NodeOut(BaseModel):
    model_config = example(
        name="n1", state="up", raw_state="IDLE", gpus=8, gpu_type="h100", switch="s1",
        partitions=["gpu"], reason="", reason_user="", changed_at=1.7e9,
    )  # fmt: skip
    name: str
    state: str
    raw_state: str = Field(description="in Slurm's own words")
    gpus: int
    gpu_type: str = Field(description="as Slurm names it, empty where it does not")
    switch: str = Field(description="that it hangs on, empty where Slurm tells none")
    partitions: list[str]
    reason: str
    reason_user: str
    changed_at: float

    @classmethod
    def of(cls, seen: SeenNode) -> NodeOut:
        return cls.model_validate(_flat(seen.node, seen, "changed_at"))


class NodeStoryOut(NodeOut):
    """A node, who runs there, and what is wrong there."""

    run_ids: list[int] = Field(description="live runs whose allocation has it")
    job_ids: list[int] = Field(description="Slurm jobs with GPUs that hold it")
    incidents: list[IncidentOut] = Field(description="open ones with their root there")


class PartitionOut(BaseModel):
    model_config = example(name="gpu", nodes=64, nodes_up=62, gpus=512, gpus_up=496)
    name: str
    nodes: int
    nodes_up: int
    gpus: int
    gpus_up: int


class ClusterOut(BaseModel):
    """The whole in numbers."""

    model_config = example(
        cluster="alpha", mode="active", nodes={"up": 62, "drained": 2}, gpus=512, gpus_up=496,
        gpus_held=480, gpus_managed=400, partitions=[], runs={"running": 6}, jobs={"running": 9},
        incidents={"SEV1": 1}, waiting_for_a_person=0, view=1200,
    )  # fmt: skip
    cluster: str
    mode: Mode | None
    nodes: dict[str, int] = Field(description="by state")
    gpus: int
    gpus_up: int
    gpus_held: int = Field(description="by Slurm jobs")
    gpus_managed: int = Field(description="by jobs that unicrond looks after")
    partitions: list[PartitionOut]
    runs: dict[str, int] = Field(description="live ones by state")
    jobs: dict[str, int] = Field(description="with GPUs, by state")
    incidents: dict[str, int] = Field(description="open ones by severity")
    waiting_for_a_person: int = Field(description="incidents that unicrond leaves to people")
    view: int = Field(description="rises whenever anything of this changed")


class WhyOut(BaseModel):
    """The story of a run, an incident or a node, oldest line first."""

    model_config = example(subject="run 4711", summary="running", lines=[], next=None)
    subject: str
    summary: str
    lines: list[StoryLineOut]
    next: str | None = Field(description="`after` of the lines before these")


class LeaderOut(BaseModel):
    """Which of several unicronds leads."""

    model_config = example(host="head1", term=3, lease_age_seconds=0.4, here=True)
    host: str | None = Field(description="null: the last one gave the lease back")
    term: int
    lease_age_seconds: float = Field(description="since it was renewed, by the database's clock")
    here: bool = Field(description="it is the one that answers; false: this one stands by")


class HealthOut(BaseModel):
    model_config = example(
        ok=True, cluster="alpha", version="0.1.0", loop="alive", loop_age_seconds=0.8,
        mode="active", database="ok", slurm="ok", snapshot_age_seconds=1.2, agents_connected=64,
    )  # fmt: skip
    ok: bool
    cluster: str
    version: str = Field(description="of this API")
    loop: str = Field(description="alive, silent or unknown")
    loop_age_seconds: float | None
    mode: Mode | None
    database: str = Field(description="ok, or what is wrong with it")
    slurm: str = Field(description="ok, unknown, or what is wrong with it")
    snapshot_age_seconds: float | None
    agents_connected: int | None
    leader: LeaderOut | None = Field(None, description="null: one unicrond alone")


class ModeIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"mode": "paused", "run_id": 4711, "why": "debugging"}]},
    )
    mode: Mode
    run_id: int | None = Field(None, description="null: the whole cluster", ge=0, lt=2**32)
    why: str = Field("", max_length=500)


class ModeOut(BaseModel):
    model_config = example(mode="paused", run_id=4711)
    mode: Mode
    run_id: int | None


class ShareIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"weight": 2.0, "why": "a deadline"}]}
    )
    weight: float | None = Field(None, gt=0, le=MOST_WEIGHT, description="null: as it is")
    floor_nodes: int | None = Field(None, ge=0, le=MOST_NODES, description="null: as it is")
    why: str = Field("", max_length=500)


class ShareOut(BaseModel):
    model_config = example(run_id=4711, weight=2.0, floor_nodes=0)
    run_id: int
    weight: float
    floor_nodes: int


class ResizeIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"nodes": 4, "why": "idle nodes"}]}
    )
    nodes: int = Field(ge=1, le=MOST_NODES)
    why: str = Field("", max_length=500)


class ResizeOut(BaseModel):
    model_config = example(run_id=4711, nodes=4, before=2)
    run_id: int
    nodes: int
    before: int


class ReviewIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"proof": "refuted", "why": "it was an evaluation"}]},
    )
    proof: Literal["confirmed", "refuted"]
    why: str = Field("", max_length=500)


class ReviewGivenOut(BaseModel):
    model_config = example(incident_id=12, rule="hang.overdue", proof="refuted")
    incident_id: int
    rule: str
    proof: Proof


class DetectorOut(BaseModel):
    """A rule, its record here, and whether it acts."""

    model_config = example(
        rule="hang.overdue", kind="task hang", needs=0.6, credit=8, confirmed=3, refuted=1,
        undecided=5, acts=True, observes_for=["alice"],
    )  # fmt: skip
    rule: str
    kind: str | None = Field(description="that it yields; null: not known to this version")
    needs: float = Field(description="its bar; 0: it always acts")
    credit: int = Field(description="incidents taken as confirmed before the first one here")
    confirmed: int
    refuted: int
    undecided: int
    acts: bool = Field(description="false: it only observes")
    observes_for: list[str] = Field(description="users for whose runs alone it only observes")


class ErrorOut(BaseModel):
    model_config = example(code="not_found", message="run 12 is not known")
    code: str = Field(
        description="bad_input, unauthenticated, forbidden, not_found, too_large, too_many, "
        "store_unavailable, daemon_unavailable, or internal: stable, for programs to act upon"
    )
    message: str = Field(description="for people; may change")


def _flat(value: Any, beside: Any = None, *names: str) -> dict[str, Any]:
    """The fields of a value, and those named of what holds it."""
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return fields | {name: getattr(beside, name) for name in names}
