"""Who may have a run of another size, and how large."""

from __future__ import annotations

import pytest
from apiworld import OWNER, RUN, STRANGER

from unicrond.api import rights
from unicrond.api.callers import Caller, Role
from unicrond.api.control import read_command
from unicrond.errors import BadInput
from unicrond.model.events import ResizeAsked

SIZE = len(RUN.assignment.nodes) if RUN.assignment else len(RUN.nodes)


def caller(uid: int, role: Role) -> Caller:
    return Caller("somebody", uid, role, "unix")


@pytest.mark.parametrize(
    ("uid", "role", "nodes", "words"),
    [
        (0, Role.ADMIN, SIZE + 1, ""),
        (OWNER, Role.USER, SIZE - 1, ""),
        (OWNER, Role.USER, SIZE + 1, "only an admin may have run 4711 grow"),
        (STRANGER, Role.USER, SIZE - 1, "only its owner and admins may resize it"),
    ],
)
def test_owners_may_give_nodes_back_and_admins_may_do_both(
    uid: int, role: Role, nodes: int, words: str
) -> None:
    assert words in rights.resize_refusal(caller(uid, role), RUN, nodes, "")


def test_a_resize_reaches_the_loop_as_an_event() -> None:
    line = b'{"v":1,"command":"resize","run_id":4711,"nodes":3,"who":"root","why":"idle"}'
    assert read_command(line, 5.0) == ResizeAsked(5.0, 4711, 3, "root (idle)")


@pytest.mark.parametrize("nodes", ["0", "99999", '"many"'])
def test_a_size_that_makes_no_sense_is_refused(nodes: str) -> None:
    line = f'{{"v":1,"command":"resize","run_id":1,"nodes":{nodes},"who":"root","why":""}}'
    with pytest.raises(BadInput, match="not a command"):
        read_command(line.encode(), 5.0)
