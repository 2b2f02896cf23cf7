"""Values survive the way to JSON and back; damage is found and its place named."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from db.codec import CodecError, decode, dumps, encode, loads
from unicrond.model.cluster import Node, NodeState, Snapshot


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Leaf:
    number: int
    weight: float = 1.0


@dataclass(frozen=True)
class Tree:
    name: str
    colour: Colour
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[int, str] = (0, "")
    by_name: dict[str, Leaf] = field(default_factory=dict)
    by_number: Mapping[int, bool] = field(default_factory=dict)
    parent: Tree | None = None
    anything: object = None
    lines: list[str] = field(default_factory=list)


FULL = Tree(
    "a",
    Colour.RED,
    (Leaf(1), Leaf(2, 0.5)),
    (7, "x"),
    {"n1": Leaf(3)},
    {4711: True},
    Tree("b", Colour.RED),
    {"k": [1, None, "x"]},
    ["one"],
)


def test_a_value_comes_back_as_it_was() -> None:
    assert loads(Tree, dumps(FULL)) == FULL


@pytest.mark.parametrize("number", [float("inf"), float("-inf")])
def test_numbers_beyond_json_come_back(number: float) -> None:
    assert loads(Leaf, dumps(Leaf(1, number))) == Leaf(1, number)


def test_numbers_beyond_json_within_data_become_words() -> None:
    assert encode({"x": float("nan"), 3: (1.5,)}) == {"x": "nan", "3": [1.5]}


def test_a_whole_number_will_do_for_a_float() -> None:
    assert decode(Leaf, {"number": 1, "weight": 2}) == Leaf(1, 2.0)


def test_a_field_that_a_newer_program_wrote_is_left_out() -> None:
    assert decode(Leaf, {"number": 1, "since": 5}) == Leaf(1)


def test_a_field_that_an_older_program_did_not_write_takes_its_default() -> None:
    assert decode(Tree, {"name": "a", "colour": "red"}) == Tree("a", Colour.RED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "Tree.name: 3 is not of type str"),
        ({"colour": "blue"}, "Tree.colour: 'blue' is not a Colour"),
        ({"colour": []}, r"Tree.colour: \[\] is not a Colour"),
        ({"leaves": {}}, "Tree.leaves: {} is not a list"),
        ({"leaves": [{}]}, r"Tree.leaves\[0\]: number missing"),
        ({"leaves": [7]}, r"Tree.leaves\[0\]: 7 is not a Leaf"),
        ({"leaves": [{"number": True}]}, r"Tree.leaves\[0\].number: True is not of type int"),
        ({"leaves": [{"number": 1, "weight": "x"}]}, "weight: 'x' is not of type float"),
        ({"pair": [1]}, r"Tree.pair: \[1\] is not a list of 2"),
        ({"pair": [1, 2]}, r"Tree.pair\[1\]: 2 is not of type str"),
        ({"by_name": []}, r"Tree.by_name: \[\] is not a mapping"),
        ({"by_name": {"n1": {"number": None}}}, "Tree.by_name.n1.number: None is not of type int"),
        ({"by_number": {"x": True}}, "Tree.by_number: invalid literal"),
        ({"by_number": {"1": 1}}, "Tree.by_number.1: 1 is not of type bool"),
        ({"parent": {"name": "b", "colour": "b"}}, "Tree.parent.colour: 'b' is not a Colour"),
    ],
)
def test_damage_is_named_with_its_place(change: dict[str, object], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        decode(Tree, encode(FULL) | change)


def test_text_that_is_not_json_is_damage() -> None:
    with pytest.raises(CodecError, match="Leaf: not JSON"):
        loads(Leaf, '{"number":')


def test_what_cannot_be_stored_is_refused_when_it_is_written() -> None:
    with pytest.raises(CodecError, match="a set cannot be stored"):
        dumps(dataclasses.replace(FULL, anything={1}))


def test_a_whole_snapshot_comes_back() -> None:
    snapshot = Snapshot(1.0, {"n1": Node("n1", NodeState.UP, "IDLE", partitions=("a",))}, None)
    assert loads(Snapshot, dumps(snapshot)) == snapshot
