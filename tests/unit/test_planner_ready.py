"""Plans that are ready for the next event, in a cluster of two pools."""

from __future__ import annotations

import json
from typing import Any

from planner.answer import answer, next_answers
from planner.question import Question, parse
from planner.ready import foreseen, make_ready

CURVE = {"curve": [[n, 1e15 * n**0.8] for n in range(1, 9)]}


def question(**changed: dict[str, Any]) -> Question:
    """Run 1 has three of four new nodes, run 2 two of two old ones."""
    pools = {"new": {"workers": 4}, "old": {"workers": 2}}
    runs = {"1": {"pool": "new", "size": 3}, "2": {"pool": "old", "size": 2}}
    for name, more in changed.items():
        (pools if name in pools else runs)[name.removeprefix("run")].update(more)
    return parse(
        json.dumps(
            {
                "pools": [{"name": name, **pool} for name, pool in pools.items()],
                "runs": [
                    {"id": int(i), "throughput": {run["pool"]: CURVE}, **run}
                    for i, run in runs.items()
                ],
                "transition_seconds": dict.fromkeys(
                    ("restart", "swap", "shrink", "grow", "requeue"), 60
                ),
                "keeps_freed": True,
            }
        )
    )


def told(now: Question) -> str:
    found: Any = answer(now)["runs"]
    ready = make_ready(question(), 100.0)
    return foreseen(ready, now, {run["id"]: run["size"] for run in found}, 160.0)


def test_each_pool_has_its_plans_and_events_name_the_pool() -> None:
    found = {str(entry["event"]) for entry in next_answers(question())}
    assert {"a node of new returns", "a node of old returns", "an idle node of new is lost"} < found
    assert {"run 1 loses a node", "run 2 loses a node"} < found


def test_an_event_in_one_pool_was_foreseen() -> None:
    assert told(question(new={"workers": 3, "away": 1}, run1={"faulty": 1})) == (
        "run 1 loses a node: a plan was ready for 60 s, the same division"
    )
    assert told(question(old={"workers": 1, "away": 1}, run2={"faulty": 1})) == (
        "run 2 loses a node: a plan was ready for 60 s, the same division"
    )


def test_events_in_two_pools_at_once_were_not() -> None:
    both = question(
        new={"workers": 3, "away": 1}, run1={"faulty": 1},
        old={"workers": 1, "away": 1}, run2={"faulty": 1},
    )  # fmt: skip
    assert told(both).startswith("by none of the ")
    assert told(question()).startswith("by none of the "), "nothing happened"
