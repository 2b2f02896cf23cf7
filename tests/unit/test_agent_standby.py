"""Which programs a standby process can stand by for, and what it takes from a rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from unicron import imported, standby
from unicrond.agent.environment import Place, of_each_rank, rank_environment
from unicrond.agent.standby import why_none
from unicrond.model.run import Assignment, Slot


@pytest.mark.parametrize(
    "program",
    [
        "python train.py",
        "/opt/conda/bin/python3.11 -u -O train.py -c x",
        "python3 -Wignore -X dev -W error -m package.train --steps 3",
        "env A=1 B=2 python -mtrain",
        "/usr/bin/env python train.py",
    ],
)
def test_a_python_program_can_be_forked(program: str) -> None:
    assert why_none(program.split()) == ""


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("bash train.sh", "bash is no Python"),
        ("env -i python train.py", "env is no Python"),
        ("env A=1", "env is no Python"),
        ("pythonic train.py", "pythonic is no Python"),
        ("torchrun train.py", "torchrun is no Python"),
        ("python -I train.py", "Python is given -I"),
        ("python -uE train.py", "Python is given -uE"),
        ("python -S train.py", "Python is given -S"),
        ("python -c pass", "Python is given -c"),
        ("python -i train.py", "Python is given -i"),
        ("python -", "Python is given -"),
        ("python --version", "Python is given --version"),
        ("python -u", "Python is given no script"),
        ("python", "Python is given no script"),
        ("python -W", "Python is given no script"),
    ],
)
def test_any_other_program_is_started_plainly_and_it_is_said_why(program: str, why: str) -> None:
    assert why_none(program.split()) == why


def test_ranks_of_a_node_differ_in_nothing_else_than_what_each_is_given() -> None:
    slots = (Slot(0, "a.0", "n1", 0), Slot(1, "a.1", "n1", 1))
    place, later = Place(7, "m", "h", 1, "s"), Place(7, "m", "other", 2, "s")
    base = {"PATH": "/bin", "RANK": "of an outer job"}
    first = rank_environment(base, Assignment(1, "a", slots), slots[0], place)
    other = rank_environment(base, Assignment(2, "b", slots[1:]), slots[1], later)
    shared = [{**one} for one in (first, other)]
    for one in shared:
        for name in of_each_rank(one):
            del one[name]
    assert shared[0] == shared[1]
    assert shared[0]["PATH"] == "/bin"


def test_a_rank_tells_its_modules_in_order_and_the_variables_that_changed(tmp_path: Path) -> None:
    os.environ["UNICRON_TEST_ONLY"] = "set here"
    try:
        imported.tell(str(tmp_path / "page"))
    finally:
        del os.environ["UNICRON_TEST_ONLY"]
    told = json.loads((tmp_path / f"page{imported.SUFFIX}").read_text())
    assert told["changed"]["UNICRON_TEST_ONLY"] == "set here"
    assert told["modules"]["unicron.imported"] == imported.__file__
    names = list(told["modules"])
    assert names.index("json") < names.index("unicron.imported")
    assert "sys" not in names, "it has no file"
    assert list(tmp_path.iterdir()) == [tmp_path / f"page{imported.SUFFIX}"]


def test_what_is_read_is_noted_while_packages_are_imported_and_no_longer() -> None:
    kind = type(os.environ)
    reads = standby._Reads(["RANK"])
    try:
        reads.package = "first"
        assert os.environ.get("HOME_OF_NOBODY") is None
        assert reads.of_a_rank() == ""
        reads.package = "second"
        assert "RANK" not in os.environ
    finally:
        reads.end()
    os.environ.get("LATER")
    assert type(os.environ) is kind
    assert reads.of_a_rank() == "reads RANK as it is imported"
    assert reads.changed({"RANK": "1", "LATER": "1"}) == {}
    assert reads.changed({"HOME_OF_NOBODY": None}) == {}, "it is the same here"
    assert reads.changed({"HOME_OF_NOBODY": "/"})["unfit"] == "first"
    assert reads.changed({"OMP_NUM_THREADS": "77"}) == {
        "unfit": "torch",
        "why": "the program sets OMP_NUM_THREADS itself",
    }
