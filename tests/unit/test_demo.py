"""The demo's judgement: it must see whatever did not hold. And how it tells unicrond's journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from demo.evidence import TrainStep
from demo.story import sentences
from demo.verdict import Facts, Fault, RunFacts, checks, resumed, rows

REASON = "n1 is silent; shrinking run 1 from 3 to 2 nodes"


def steps(*generations: tuple[int, int, float, range]) -> list[TrainStep]:
    """(generation, ranks, when its first train step was done, its train steps), one a second."""
    return [
        TrainStep(step, 5.0 - step / 10, ranks, generation, began + number)
        for generation, ranks, began, numbers in generations
        for number, step in enumerate(numbers)
    ]


def incident(number: int, run_id: int, node: str, noticed: float, **more: Any) -> dict[str, Any]:
    return {
        "incident_id": number, "run_id": run_id, "root_node": node, "state": "resolved",
        "first_signal_at": noticed, "decided_at": noticed + 0.1, "closed_at": noticed + 8,
        "decision": REASON, "actions": [], **more,
    }  # fmt: skip


ACTIONS = [
    {"kind": "start_ranks", "node": "n2", "outcome": "done"},
    {"kind": "start_ranks", "node": "n3", "outcome": "done"},
    {"kind": "drain", "node": "n1", "outcome": "done"},
]
HEAVY = RunFacts(
    1, 40, steps((1, 3, 1, range(1, 21)), (2, 2, 30, range(11, 41))),
    [("RESIZING", "0:0"), ("COMPLETED", "0:0")], f"... {REASON} ...",
)  # fmt: skip
LIGHT = RunFacts(
    2, 60, steps((1, 3, 1, range(1, 11)), (2, 3, 14, range(8, 61))),
    [("COMPLETED", "0:0")], f"... {REASON} ...",
)  # fmt: skip
FACTS = Facts(
    kill=Fault(1, "a rank is killed", "light", "n5", 10.5),
    cut=Fault(2, "a cable is pulled", "heavy", "n1", 20.5),
    crash=Fault(3, "unicrond is killed", "light", "", 23.5),
    back_at=26.5,
    runs={"heavy": HEAVY, "light": LIGHT},
    incidents=[
        incident(2, 1, "n1", 23.2, actions=ACTIONS),
        incident(1, 2, "n5", 10.6),
    ],
    lost_node={"raw_state": "DOWN+DRAIN", "reason": "unicron: lost connection incident=2"},
)


def failed(facts: Facts) -> list[str]:
    return [check.sentence for check in checks(facts) if not check.held]


def test_a_good_demo_holds() -> None:
    assert failed(FACTS) == []


def test_the_table_counts_from_the_fault_and_counts_lost_train_steps() -> None:
    kill, cut, crash = rows(FACTS)
    assert kill.noticed == pytest.approx(0.1)
    assert kill.decided == pytest.approx(0.2)
    assert (kill.running_again, kill.steps_lost) == (3.5, 3)
    assert (cut.running_again, cut.steps_lost) == (9.5, 10)
    assert (crash.running_again, crash.steps_lost) == (3.0, 0)


def _run(name: str, **changes: Any) -> Callable[[Facts], Facts]:
    return lambda f: replace(f, runs={**f.runs, name: replace(f.runs[name], **changes)})


def _incident(number: int, **changes: Any) -> Callable[[Facts], Facts]:
    return lambda facts: replace(
        facts,
        incidents=[{**i, **changes} if i["incident_id"] == number else i for i in facts.incidents],
    )


def _with_another_incident(facts: Facts) -> Facts:
    return replace(facts, incidents=[*facts.incidents, incident(3, 2, "n6", 50.0)])


def _lost_node(**changes: str) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, lost_node={**facts.lost_node, **changes})


STOPPED_EARLY = [step for step in HEAVY.steps if step.step < 40]
OTHER_LOSS = [*HEAVY.steps[:25], replace(HEAVY.steps[25], loss=9.0), *HEAVY.steps[26:]]
LATE_WRITER = [*HEAVY.steps, replace(HEAVY.steps[19], at=60.0)]
NOT_SHRUNK = steps((1, 3, 1, range(1, 21)), (2, 3, 30, range(11, 41)))
HEALED_IN_CRASH = steps(
    (1, 3, 1, range(1, 11)), (2, 3, 14, range(8, 20)), (3, 3, 26, range(18, 61))
)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (_incident(1, root_node="n4"), "n5 named as its root"),
        (_incident(1, state="person"), "light trained on"),
        (_run("heavy", steps=HEAVY.steps[:20]), "heavy trained on"),
        (_run("light", why="nothing"), "why 2"),
        (_run("heavy", steps=NOT_SHRUNK), "went on with 2 ranks"),
        (_lost_node(reason="Not responding"), "with our reason"),
        (_lost_node(raw_state="IDLE"), "n1 is drained"),
        (_incident(2, closed_at=23.3), "in the middle of a heal"),
        (_incident(2, actions=[*ACTIONS, ACTIONS[2]]), "nothing done twice"),
        (_incident(2, actions=[*ACTIONS, ACTIONS[0]]), "nothing done twice"),
        (_incident(2, actions=[]), "nothing done twice"),
        (_run("light", steps=HEALED_IN_CRASH), "while unicrond was away"),
        (_with_another_incident, "two incidents"),
        (_run("light", records=[("FAILED", "1:0")]), "light: Slurm's records"),
        (_run("heavy", records=[]), "heavy: Slurm's records"),
        (_run("heavy", steps=STOPPED_EARLY), "each of its 40 train steps"),
        (_run("heavy", steps=LATE_WRITER), "past generation"),
        (_run("heavy", steps=OTHER_LOSS), "same loss"),
    ],
)  # fmt: skip
def test_whatever_did_not_hold_is_seen(broken: Callable[[Facts], Facts], sentence: str) -> None:
    assert any(sentence in told for told in failed(broken(FACTS))), failed(broken(FACTS))


def test_a_run_that_never_trained_again_has_no_first_train_step() -> None:
    assert resumed(HEAVY.steps[:20], 20.5) == (None, None)


def line(at: float, kind: str, text: str, **more: Any) -> Mapping[str, Any]:
    return {"at": at, "kind": kind, "text": text, "decision": None, **more}


def told(*lines: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(sentence.kind, sentence.text) for sentence in sentences(lines, "light")]


def test_actions_of_one_moment_become_one_sentence() -> None:
    lines = [line(1, "action", f"stop ranks on n{n}") for n in (4, 5)]
    assert told(*lines, line(1, "action", "drain n5 (unicron: x)")) == [
        ("acts", "light: stop ranks on n4, n5; drain n5 (unicron: x)")
    ]


def test_a_decision_does_not_repeat_what_was_noticed_and_says_what_else_was_weighed() -> None:
    alternatives = [
        {"name": "restart", "chosen": True, "price": "little"},
        {"name": "wait", "chosen": False, "price": "for ever"},
    ]
    decision = {"alternatives": alternatives}
    assert told(
        line(1, "signal", "rank 1 ended"),
        line(1, "decision", "rank 1 ended; restarting", decision=decision),
    ) == [
        ("noticed", "light: rank 1 ended"),
        ("decided", "light: restarting"),
        ("weighed", "rather than wait (for ever)"),
    ]


def test_an_outcome_is_told_when_it_is_news() -> None:
    refused = "stop ranks on n1 refused: the ranks are gone"
    lines = [line(1, "outcome", "stop ranks on n2 done"), line(1, "outcome", refused)]
    assert told(*lines) == [("outcome", f"light: {refused}")]
