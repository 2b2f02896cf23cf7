"""A what-if is answered by the planner, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unicrond.api.whatif import Planner
from unicrond.errors import BadInput

QUESTION = json.loads((Path(__file__).parents[2] / "docs/what-if.json").read_text())


def test_the_planner_answers_and_gives_the_table_for_the_next_event() -> None:
    planner = Planner()
    answer = planner.ask(QUESTION, False)
    assert {run["id"] for run in answer["runs"]} == {4711, 4712}
    assert any(option["chosen"] for option in answer["alternatives"])
    assert "a node returns" in [entry["event"] for entry in planner.table(1.0, QUESTION)]


def test_a_question_that_makes_no_sense_is_refused_with_the_planners_words() -> None:
    with pytest.raises(BadInput, match=r"question: .*pools"):
        Planner().ask({"pools": 7}, False)


def test_a_planner_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(BadInput, match=r"not answered within 0\.01 s"):
        Planner(longest_seconds=0.01).ask(QUESTION, False)
