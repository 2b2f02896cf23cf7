"""What a job's comment wishes of Unicron."""

from __future__ import annotations

import json

import pytest

from unicrond.agent import options
from unicrond.agent.wishes import KEYS, VARIABLE, comment_of, handed_on, options_of
from unicrond.errors import BadInput

RECORD = 'JobId=7 JobName=x Comment={} StdErr=/home/alice/o AdminComment={{"unicron":{{}}}} '


def record(comment: str) -> str:
    return RECORD.format(comment)


def test_wishes_are_read_from_a_comment_beside_others_keys() -> None:
    text = '{"cost centre": 7, "unicron": {"weight": 2.5, "min_nodes": 2, "layouts": "8x1,8x2"}}'
    words = options_of(comment_of(record(text)))
    assert words == ["--weight", "2.5", "--min-nodes", "2", "--layouts", "8x1,8x2"]


def test_the_command_line_wins() -> None:
    words = options_of('{"unicron": {"weight": 2, "min_nodes": 1}}')
    spec = options.parse([*words, "--weight=7", "--", "python"], 4, "train")
    assert (spec.weight, spec.min_nodes) == (7.0, 1)


@pytest.mark.parametrize("text", ["", "(null)", "a note", "{broken", '{"other": 1}', "[1]"])
def test_comments_of_others_wish_nothing(text: str) -> None:
    assert options_of(comment_of(record(text))) == []


def test_what_we_wrote_ourselves_is_no_wish() -> None:
    assert options_of('{"unicron": {"companion_of": 17}}') == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"unicron": {"wieght": 2}}', "has no 'wieght'; known: weight"),
        ('{"unicron": {"weight": [2]}}', "weight must be a number or a text"),
        ('{"unicron": {"weight": true}}', "weight must be a number or a text"),
        ('{"unicron": 3}', "must be an object"),
    ],
)
def test_a_wish_that_makes_no_sense_is_named(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        options_of(text)


def test_every_option_can_be_wished() -> None:
    known = {action.dest for action in options.parser()._actions}
    assert known == set(KEYS)


def test_agents_get_what_the_wrapper_read() -> None:
    assert handed_on({VARIABLE: json.dumps(["--weight", "2"])}) == ["--weight", "2"]
    assert handed_on({}) == handed_on({VARIABLE: "{"}) == []
