"""The wrapper's options: defaults, limits, and words that say what to write instead."""

from __future__ import annotations

import pytest

from unicrond.agent.options import parse
from unicrond.errors import BadInput


def test_what_is_not_given_has_a_default_that_changes_no_world_size() -> None:
    spec = parse(["--", "python", "train.py"], nodes=4, job_name="gpt")
    assert (spec.weight, spec.min_nodes, spec.max_nodes, spec.ranks_per_node) == (1.0, 4, 4, 0)
    assert (spec.name, spec.program) == ("gpt", ("python", "train.py"))


def test_all_options_are_read_and_what_follows_the_dashes_is_untouched() -> None:
    words = [
        "--weight",
        "2.5",
        "--min-nodes",
        "2",
        "--max-nodes",
        "8",
        "--ranks-per-node",
        "3",
        "--name",
        "big",
        "--",
    ]
    spec = parse([*words, "sh", "-c", "echo '$x'  --weight 9", "--"], nodes=4, job_name="gpt")
    assert (spec.weight, spec.min_nodes, spec.max_nodes) == (2.5, 2, 8)
    assert (spec.ranks_per_node, spec.name) == (3, "big")
    assert spec.program == ("sh", "-c", "echo '$x'  --weight 9", "--")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--weight 0 --", "--weight"),
        ("--weight nan --", "--weight"),
        ("--weight inf --", "--weight"),
        ("--weight heavy --", "--weight"),
        ("--min-nodes 0 --", "--min-nodes"),
        ("--min-nodes 5 --", "4 nodes"),
        ("--min-nodes 3 --max-nodes 2 --", "--max-nodes"),
        ("--max-nodes 0 --", "--max-nodes"),
        ("--ranks-per-node 0 --", "--ranks-per-node"),
        ("--ranks-per-node=0 --", "--ranks-per-node"),
        ("--ranks-per-node 5000 --", "--ranks-per-node"),
        ("--min 2 --", "--min"),
        ("--no-such-option --", "--no-such-option"),
        ("train.py --", "train.py"),
    ],
)
def test_an_option_that_is_off_is_named(options: str, names: str) -> None:
    with pytest.raises(BadInput, match=names):
        parse([*options.split(), "python"], nodes=4, job_name="")


@pytest.mark.parametrize("arguments", [[], ["python", "train.py"], ["--weight", "1", "--"]])
def test_a_missing_program_is_asked_for(arguments: list[str]) -> None:
    with pytest.raises(BadInput, match="program"):
        parse(arguments, nodes=1, job_name="")
