"""Whether the demo held: the table of its faults and a list of sentences, true or not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from demo.evidence import TrainStep

LOSS_TOLERANCE = 0.02  # a train step done again on fewer ranks sums in another order
CLOCK_SLACK_SECONDS = 0.5
REASON = "unicron: "

Incident = Mapping[str, Any]  # as the API tells it, with its actions


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to which run and node, and when, Unix seconds."""

    number: int
    title: str
    run: str
    node: str
    at: float


@dataclass(frozen=True, slots=True)
class RunFacts:
    run_id: int
    wanted_steps: int
    steps: Sequence[TrainStep]
    records: Sequence[tuple[str, str]]  # sacct's rows: state and exit code, oldest first
    why: str  # what `unicronctl why` printed


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was seen. `crash`: of unicrond while it healed `cut`; its `run` is the bystander."""

    kill: Fault
    cut: Fault
    crash: Fault
    back_at: float  # when unicrond was heard again
    runs: Mapping[str, RunFacts]
    incidents: Sequence[Incident]
    lost_node: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table, in seconds since the fault. None: it does not apply, or never came."""

    fault: Fault
    noticed: float | None
    decided: float | None
    running_again: float | None
    steps_lost: int | None


@dataclass(frozen=True, slots=True)
class Check:
    sentence: str
    held: bool


def rows(facts: Facts) -> list[Row]:
    crash = Row(facts.crash, None, None, facts.back_at - facts.crash.at, _redone_in_crash(facts))
    return [_row(facts.kill, facts), _row(facts.cut, facts), crash]


def _row(fault: Fault, facts: Facts) -> Row:
    incident = _incident_of(fault, facts)
    first, lost = resumed(facts.runs[fault.run].steps, fault.at)
    return Row(
        fault,
        incident["first_signal_at"] - fault.at if incident else None,
        incident["decided_at"] - fault.at if incident and incident["decided_at"] else None,
        first.at - fault.at if first else None,
        lost,
    )


def resumed(steps: Sequence[TrainStep], at: float) -> tuple[TrainStep | None, int | None]:
    """The first train step of the generation after the fault, and how many are done again."""
    broken = max((s.generation for s in steps if s.at <= at), default=0)
    first = next((s for s in steps if s.generation > broken), None)
    if first is None:
        return None, None
    return first, max(s.step for s in steps if s.generation <= broken) - first.step + 1


def _incident_of(fault: Fault, facts: Facts) -> Incident | None:
    later = (i for i in _incidents(fault.run, facts) if i["first_signal_at"] > _earliest(fault))
    return next(later, None)


def _incidents(run: str, facts: Facts) -> list[Incident]:
    """Not that it was slow for a while, which a busy machine may well make it."""
    told = (i for i in facts.incidents if i.get("severity") != "NONE")
    mine = (i for i in told if i["run_id"] == facts.runs[run].run_id)
    return sorted(mine, key=lambda i: float(i["first_signal_at"]))


def _earliest(fault: Fault) -> float:
    return fault.at - CLOCK_SLACK_SECONDS


def _during_crash(facts: Facts) -> list[TrainStep]:
    steps = facts.runs[facts.crash.run].steps
    return [s for s in steps if facts.crash.at < s.at < facts.back_at]


def _redone_in_crash(facts: Facts) -> int:
    before = max(
        (s.step for s in facts.runs[facts.crash.run].steps if s.at <= facts.crash.at), default=0
    )
    return sum(s.step <= before for s in _during_crash(facts))


def checks(facts: Facts) -> list[Check]:
    return [
        *_healed(facts.kill, facts),
        *_healed(facts.cut, facts),
        *_went_on_without(facts),
        *_survived_crash(facts),
        *(check for name in facts.runs for check in _completed(name, facts)),
    ]


def _healed(fault: Fault, facts: Facts) -> Iterator[Check]:
    run, name = facts.runs[fault.run], f"fault {fault.number}"
    incident = _incident_of(fault, facts) or {}
    root = incident.get("root_node") == fault.node
    yield Check(f"{name} was noticed, and {fault.node} named as its root", root)
    again = resumed(run.steps, fault.at)[0] is not None
    healed = incident.get("state") == "resolved" and again
    yield Check(f"{name} was healed: {fault.run} trained on", healed)
    reason = incident.get("decision", "")
    told = bool(reason) and reason in run.why
    yield Check(f"{name}: `unicronctl why {run.run_id}` tells what was decided and why", told)


def _went_on_without(facts: Facts) -> Iterator[Check]:
    cut, node = facts.cut, facts.lost_node
    first, _ = resumed(facts.runs[cut.run].steps, cut.at)
    before = max(s.world_size for s in facts.runs[cut.run].steps)
    yield Check(
        f"{cut.run} went on with {before - 1} ranks, without its batch host and rank 0's node",
        first is not None and first.world_size == before - 1,
    )
    drained = "DRAIN" in node.get("raw_state", "") and node.get("reason", "").startswith(REASON)
    yield Check(f"{cut.node} is drained, with our reason on it", drained)


def _survived_crash(facts: Facts) -> Iterator[Check]:
    crash, incident = facts.crash, _incident_of(facts.cut, facts)
    amid = incident is not None and incident["decided_at"] < crash.at < incident["closed_at"]
    yield Check(
        "unicrond was killed in the middle of a heal and carried it on when it was back", amid
    )
    actions = incident["actions"] if incident else ()
    drains = [a for a in actions if a["kind"] == "drain"]
    starts = [a["node"] for a in actions if a["kind"] == "start_ranks"]
    once = len(drains) == 1 and drains[0]["outcome"] == "done" and len(starts) == len({*starts})
    yield Check("nothing was lost by that and nothing done twice", once and bool(starts))
    meanwhile = _during_crash(facts)
    same = len({s.generation for s in meanwhile}) == 1
    yield Check(f"{crash.run} trained on while unicrond was away", same)
    counts = [len(_incidents(run, facts)) for run in facts.runs]
    yield Check("two faults of runs were two incidents", counts == [1] * len(counts))


def _completed(name: str, facts: Facts) -> Iterator[Check]:
    run = facts.runs[name]
    ended = bool(run.records) and run.records[-1] == ("COMPLETED", "0:0")
    yield Check(f"{name}: Slurm's records say COMPLETED, exit code 0", ended)
    numbers = {s.step for s in run.steps}
    every = numbers == set(range(1, run.wanted_steps + 1))
    yield Check(f"{name}: each of its {run.wanted_steps} train steps was completed", every)
    generations = [s.generation for s in run.steps]
    yield Check(
        f"{name}: nothing of a past generation was written", generations == sorted(generations)
    )
    yield Check(f"{name}: train steps done again gave the same loss", _same_losses(run.steps))


def _same_losses(steps: Sequence[TrainStep]) -> bool:
    first: dict[int, float] = {}
    return all(
        abs(s.loss - first.setdefault(s.step, s.loss)) <= LOSS_TOLERANCE * abs(s.loss)
        for s in steps
    )
