"""The wrapper's options: defaults, limits, and words that say what to write instead."""

from __future__ import annotations

import pytest

from unicrond.agent.options import parse
from unicrond.errors import BadInput
from unicrond.model.workload import BatchScaling, Layout, Workload


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


def test_what_a_run_computes_is_told_in_a_few_words() -> None:
    words = (
        "--flops-per-iteration 1.7e17 --batch-scaling fixed --micro-batches 512"
        " --parameters 7e9 --layouts 8x1,8x2 -- python train.py"
    )
    assert parse(words.split(), nodes=4, job_name="gpt").workload == Workload(
        flops_per_iteration=1.7e17,
        scaling=BatchScaling.FIXED,
        micro_batches=512,
        parameters=7e9,
        layouts=(Layout(8, 1), Layout(8, 2)),
    )
    plain = parse(["--", "python", "train.py"], nodes=4, job_name="gpt")
    assert plain.workload == Workload(scaling=BatchScaling.PER_RANK)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--weight 0 --", "--weight"),
        ("--weight nan --", "--weight"),
        ("--weight inf --", "--weight"),
        ("--weight heavy --", "--weight"),
        ("--weight 1000001 --", "at most 1000000"),
        ("--min-nodes 0 --", "--min-nodes"),
        ("--min-nodes 5 --", "4 nodes"),
        ("--min-nodes 3 --max-nodes 2 --", "--max-nodes"),
        ("--max-nodes 0 --", "--max-nodes"),
        ("--max-nodes 16385 --", "--max-nodes"),
        ("--ranks-per-node 0 --", "--ranks-per-node"),
        ("--ranks-per-node=0 --", "--ranks-per-node"),
        ("--ranks-per-node 5000 --", "--ranks-per-node"),
        ("--min 2 --", "--min"),
        ("--no-such-option --", "--no-such-option"),
        ("train.py --", "train.py"),
        ("--flops-per-iteration 0 --", "--flops-per-iteration"),
        ("--flops-per-iteration nan --", "--flops-per-iteration"),
        ("--flops-per-iteration many --", "--flops-per-iteration"),
        ("--parameters -7 --", "--parameters"),
        ("--micro-batches 0 --", "--micro-batches"),
        ("--batch-scaling linear --", "--batch-scaling"),
        ("--layouts 8 --", "8x1,8x2"),
        ("--layouts 8x --", "8x1,8x2"),
        ("--layouts 0x1 --", "8x1,8x2"),
        ("--layouts 1x1,99999999x1 --", "8x1,8x2"),
    ],
)
def test_an_option_that_is_off_is_named(options: str, names: str) -> None:
    with pytest.raises(BadInput, match=names):
        parse([*options.split(), "python"], nodes=4, job_name="")


def test_a_name_of_the_job_that_cannot_be_shown_is_refused_with_the_remedy() -> None:
    with pytest.raises(BadInput, match="--name, or the job's name"):
        parse(["--", "python"], nodes=1, job_name="a\nJobId=1")
    assert parse(["--name=a", "--", "python"], nodes=1, job_name="a\nb").name == "a"


@pytest.mark.parametrize("arguments", [[], ["python", "train.py"], ["--weight", "1", "--"]])
def test_a_missing_program_is_asked_for(arguments: list[str]) -> None:
    with pytest.raises(BadInput, match="program"):
        parse(arguments, nodes=1, job_name="")
