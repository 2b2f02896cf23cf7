"""A what-if as JSON: what is understood, what is refused, and what comes back."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from planner.answer import answer, next_answers
from planner.facts import problem
from planner.question import (
    AccountPart,
    ModelPart,
    NodePart,
    PoolPart,
    Question,
    ReliabilityPart,
    RunPart,
    TransitionPart,
    parse,
)
from unicrond.ctl.plan import plan
from unicrond.errors import BadInput

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = (DOCS / "what-if.json").read_text()


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    question = json.loads(EXAMPLE)
    change(question)
    return json.dumps(question)


def test_the_documented_example_is_answered_as_the_tables_say() -> None:
    found = answer(parse(EXAMPLE))
    assert found["choice"] == "redivide"
    assert found["proof"] == "exact"
    assert [(run["id"], run["change"], run["size"], run["nodes"]) for run in found["runs"]] == [
        (4711, "grow", 32, ["n1", "n2", "n5", "n6"]),
        (4712, "shrink", 8, ["n4"]),
    ]
    assert found["idle"] == {"h100": 0}
    assert [a["name"] for a in found["alternatives"] if a["chosen"]] == ["redivide"]
    json.dumps(found)


def test_every_field_is_documented() -> None:
    text = (DOCS / "planner.md").read_text()
    parts = (
        Question, PoolPart, RunPart, AccountPart, NodePart, ReliabilityPart, TransitionPart,
        ModelPart,
    )  # fmt: skip
    words = {field for part in parts for field in part.model_fields}
    found = answer(parse(EXAMPLE))
    words |= {
        *found,
        *found["runs"][0],
        *found["alternatives"][0],
        *next_answers(parse(EXAMPLE))[0],
    }
    written = set(re.findall(r"[`\"]\.?(\w+)(?:\[\])?[`\"]", text))
    assert words - written == set()


def test_the_table_of_next_events_comes_from_the_nodes_and_the_queue() -> None:
    found = {entry["event"]: entry for entry in next_answers(parse(EXAMPLE))}
    assert set(found) == {
        "run 4711 loses a node", "run 4712 loses a node", "an idle node is lost", "a node returns",
        "run 4711 ends", "run 4712 ends", "queued run 4713 starts",
        "switch s1 is lost", "switch s2 is lost",
    }  # fmt: skip
    assert found["switch s2 is lost"]["sizes"] == {"4711": 8, "4712": 8}
    assert found["switch s2 is lost"]["changes"]
    tight = parse(changed(lambda q: q["runs"][1].update(floor=24)))
    obstacles = {entry["event"]: entry["obstacle"] for entry in next_answers(tight)}
    assert "floor" in obstacles["switch s2 is lost"]
    assert obstacles["switch s1 is lost"] == ""


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown field": (lambda q: q["runs"][0].update(wieght=1), "runs.0.wieght"),
    "missing": (lambda q: q["runs"][0].pop("throughput"), "runs.0.throughput"),
    "no runs": (lambda q: q.update(runs=[]), "runs"),
    "negative": (lambda q: q["runs"][1].update(size=-8), "runs.1.size"),
    "text for a number": (lambda q: q["pools"][0].update(workers="40"), "pools.0.workers"),
    "infinite": (lambda q: q.update(margin=float("inf")), "margin"),
    "margin under one": (lambda q: q.update(margin=0.5), "margin"),
    "weight of nothing": (lambda q: q["runs"][0].update(weight=0), "runs.0.weight"),
    "curve and model": (
        lambda q: q["runs"][1]["throughput"]["h100"].update(curve=[[8, 1.0]]),
        "runs.1.throughput.h100",
    ),
    "curve out of order": (
        lambda q: q["runs"][0]["throughput"]["h100"].update(curve=[[16, 1.0], [8, 2.0]]),
        "runs.0.throughput.h100",
    ),
    "no such pool": (
        lambda q: q["runs"][0]["throughput"].update(a100={"curve": [[8, 1.0]]}),
        "runs.0.throughput: there is no pool 'a100'",
    ),
    "run twice": (lambda q: q["runs"][1].update(id=4711), "runs.1.id"),
    "node twice": (lambda q: q["nodes"][1].update(name="n1"), "nodes.1.name"),
    "too many faulty": (lambda q: q["runs"][0].update(faulty=25), "runs.0.faulty"),
    "size not covered": (lambda q: q["runs"][0].update(size=40), "runs.0.size"),
    "sizes not covered": (lambda q: q["runs"][0].update(sizes=[8, 40]), "runs.0.sizes"),
    "sizes upside down": (
        lambda q: q["runs"][0].update(sizes={"min": 16, "max": 8}),
        "runs.0.sizes.range: Value error, max 8 is less than min 16",
    ),
    "sizes of text": (lambda q: q["runs"][0].update(sizes=["8"]), "runs.0.sizes.list.0"),
    "a queued run": (lambda q: q["runs"][2].update(faulty=9), "runs.2.faulty"),
    "part of a node": (lambda q: q["runs"][0].update(sizes=[8, 12]), "runs.0.sizes"),
    "ceiling under floor": (lambda q: q["runs"][1].update(ceiling=4), "runs.1.ceiling"),
    "no transition times": (lambda q: q.pop("transition_seconds"), "runs.0.transition_seconds"),
    "more held than there": (lambda q: q["pools"][0].update(workers=24), "pools.0.workers"),
    "fewer nodes than said": (lambda q: q["nodes"].pop(), "pools.0.workers"),
    "wrong holder": (lambda q: q["nodes"][5].update(run=4711), "runs.0.size"),
    "held by nobody": (lambda q: q["nodes"][5].update(run=7), "nodes.5.run"),
    "account of nobody": (lambda q: q.update(accounts=[{"name": "x"}]), "accounts.0.name"),
    "account upside down": (
        lambda q: q.update(accounts=[{"name": "physics", "floor": 9, "ceiling": 8}]),
        "accounts.0.ceiling",
    ),
    "floors that do not fit": (
        lambda q: [run.update(floor=24) for run in q["runs"]],
        "floor: the runs need 48 workers at least, 40 are there",
    ),
    "floor over all sizes": (lambda q: q["runs"][0].update(floor=33), "floor: a run has no legal"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_with_the_name_of_the_field(case: str) -> None:
    change, field = REFUSED[case]
    with pytest.raises(BadInput) as refusal:
        answer(parse(changed(change)))
    assert field in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pools": 3}', "\x00", "[" * 100_000])
def test_no_text_is_too_odd_to_be_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)


def test_a_question_too_large_to_weigh_is_refused() -> None:
    def many(question: dict[str, Any]) -> None:
        question["pools"][0]["workers"] = 10**6
        question["runs"] *= 50
        for i, run in enumerate(question["runs"]):
            question["runs"][i] = run | {"id": i}

    with pytest.raises(BadInput, match="runs times workers"):
        parse(changed(many))


def test_legal_sizes_are_the_lists_the_ranges_the_curves_points_or_the_models_whole_nodes() -> None:
    def legal(**run: object) -> list[int]:
        question = parse(changed(lambda q: q["runs"][1].update(run)))
        claim = problem(question).claims[1]
        return [k for k in range(1, 41) if claim.allows("h100", k)]

    assert legal(floor=0) == [8, 16, 24, 32, 40]
    assert legal(sizes=[16, 8]) == [8, 16]
    assert legal(sizes={"min": 8, "max": 24, "unit": 8}) == [8, 16, 24]
    assert legal(sizes={"min": 8, "max": 24, "unit": 4}) == [8, 16, 24], "whole nodes only"
    curve = {"h100": {"curve": [[4, 1.0], [8, 2.0], [16, 4.0], [40, 5.0]]}}
    assert legal(throughput=curve) == [8, 16, 40]
    assert legal(throughput=curve, sizes=[24]) == [24], "between two points"


def test_a_run_that_cannot_shrink_is_requeued_to_have_less_and_its_nodes_are_given_anew() -> None:
    def stuck(question: dict[str, Any]) -> None:
        question["runs"][1]["can_shrink"] = False
        question["transition_seconds"]["requeue"] = 50

    found = answer(parse(changed(stuck)))["runs"]
    assert [(run["id"], run["change"], run["size"]) for run in found] == [
        (4711, "grow", 32),
        (4712, "requeue", 8),
    ]
    assert {node for run in found for node in run["nodes"]} == {"n1", "n2", "n4", "n5", "n6"}


def test_pinned_nodes_are_given_back_by_a_requeue_only() -> None:
    def both_pinned(question: dict[str, Any]) -> None:
        question["nodes"][4]["pinned"] = True

    claims = problem(parse(changed(both_pinned))).claims
    assert [claim.pinned for claim in claims] == [8, 16]
    found = answer(parse(changed(both_pinned)))["runs"]
    assert [(run["change"], run["size"]) for run in found] == [("grow", 32), ("requeue", 8)]


def test_a_run_larger_than_what_is_left_of_its_pool_is_still_understood() -> None:
    found = answer(parse(changed(lambda q: _lose_all_but_three_nodes(q))))
    swap = next(option for option in found["alternatives"] if option["name"] == "swap")
    assert swap["obstacle"]
    assert sum(run["size"] for run in found["runs"]) <= 24


def _lose_all_but_three_nodes(question: dict[str, Any]) -> None:
    question["pools"][0]["workers"] = 24
    question["runs"][0].update(size=32, faulty=24)
    question["nodes"][1]["usable"] = question["nodes"][5]["usable"] = False


def test_rates_are_by_second_and_worker() -> None:
    found = problem(parse(EXAMPLE))
    failures = 40 / 8 * 6.5 / 1000 / 86400
    assert found.running_seconds == pytest.approx(1 / (failures + 4 / 86400))


@pytest.fixture
def command() -> Callable[..., Result]:
    app = typer.Typer()
    app.command()(plan)
    return lambda *words, **more: CliRunner().invoke(app, [str(word) for word in words], **more)


def test_the_command_tells_people_and_programs(command: Callable[..., Result]) -> None:
    told = command("--what-if", DOCS / "what-if.json")
    assert told.exit_code == 0
    assert told.output.startswith("redivide: run 4711 grows from 24 to 32 workers")
    assert "n1,n2,n5,n6" in told.output
    answered = command("--what-if", "-", "--json", input=EXAMPLE)
    assert json.loads(answered.output) == answer(parse(EXAMPLE))
    ahead = command("--what-if", DOCS / "what-if.json", "--next", "-n")
    assert "queued run 4713 starts" in ahead.output


def test_the_command_refuses_what_it_cannot_read(command: Callable[..., Result]) -> None:
    missing = command("--what-if", "/nowhere/at/all.json")
    assert isinstance(missing.exception, BadInput)
    assert "--what-if: cannot read /nowhere/at/all.json" in str(missing.exception)
    assert isinstance(command("--what-if", "-", input="{}").exception, BadInput)
