"""What an agent makes of its ranks' pages: who stands still is told, who ended is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from detectors.iterations import FLOOR_SECONDS
from unicron.page import VARIABLE, Page
from unicrond.agent import inside as agents_inside
from unicrond.agent.inside import Inside
from unicrond.link.frames import Body
from unicrond.model.incident import SignalKind
from unicrond.model.run import Slot

RANK = """
import sys, time
from unicron.page import Page
page = Page(sys.argv[1])
page.claim()
page.begins("all_reduce", "train.py:31")
for _ in range(6):
    page.iterated()
    print(flush=True)
    time.sleep(0.02)
time.sleep(float(sys.argv[2]))
"""


class World:
    """One agent with one rank that iterates for a moment, and then goes on for some seconds."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.told: list[tuple[SignalKind, Body]] = []
        self.inside = Inside(folder, "", lambda kind, body: self.told.append((kind, body)))
        self.inside.begin(1, [])
        variables = self.inside.environment(Slot(0, "m1", "n1", 0), {})
        argv = [sys.executable, "-c", RANK, *variables.values(), str(seconds)]
        self.rank = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.rank.stdout is not None
        for _ in range(6):
            self.rank.stdout.readline()
            self.inside.look()

    def wait_and_look(self) -> list[tuple[SignalKind, Body]]:
        time.sleep(FLOOR_SECONDS + 0.2)
        self.inside.look()
        return self.told

    def end(self) -> None:
        self.rank.kill()
        self.rank.wait()
        assert self.rank.stdout is not None
        self.rank.stdout.close()


def test_a_rank_that_stands_still_is_told_with_the_state_of_its_process(tmp_path: Path) -> None:
    world = World(tmp_path, seconds=30)
    try:
        [(kind, body)] = world.wait_and_look()
    finally:
        world.end()
    data = body["data"]
    assert isinstance(data, dict)
    assert (kind, body["rank"], data["process_state"]) == (SignalKind.SLOW, 0, "S")
    assert (data["collective"], data["collectives"]) == (
        "in collective 1, all_reduce at train.py:31",
        1,
    )


def test_a_stack_of_an_earlier_suspicion_is_not_told_again(tmp_path: Path) -> None:
    world = World(tmp_path, seconds=30)
    page_file = next(tmp_path.glob("page-*"))
    agents_inside.stacks_of(page_file).write_text('Current thread\n  File "a.py", line 1 in f\n')
    try:
        [(_, body)] = world.wait_and_look()
    finally:
        world.end()
    data = body["data"]
    assert isinstance(data, dict)
    assert data["where"] == ""


def test_a_stack_names_where_the_main_thread_is_and_the_scripts_own_line(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    stacks.write_text(
        'Thread 0x1 (most recent call first):\n  File "/home/a/loader.py", line 1 in other\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
        '  File "/home/a/train.py", line 9 in load\n  File "/home/a/train.py", line 30 in main\n'
    )
    assert agents_inside.innermost(stacks) == (
        'File "/usr/lib/python3.11/threading.py", line 327 in wait, '
        'from File "/home/a/train.py", line 9 in load'
    )
    stacks.write_text('Current thread 0x2:\n  File "/home/a/train.py", line 9 in load\n')
    assert agents_inside.innermost(stacks) == 'File "/home/a/train.py", line 9 in load'
    assert agents_inside.innermost(tmp_path / "none") == ""


def test_a_rank_in_which_no_hook_ran_is_said_to_be_unwatched_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_inside, "UNWATCHED_SECONDS", -1.0)
    inside = Inside(tmp_path, "", lambda kind, body: None)
    inside.begin(1, [])
    inside.environment(Slot(0, "m1", "n1", 0), {})
    assert (inside.look(), inside.look()) == (-1, -1)
    assert caplog.text.count("rank 0 is not watched from inside") == 1


def test_a_rank_that_ended_does_not_hang_before_its_status_is_read_nor_after(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, seconds=0)
    try:
        assert world.wait_and_look() == [], "a zombie"
        world.end()
        assert world.wait_and_look() == [], "gone"
    finally:
        world.end()


def test_what_a_kept_member_did_before_does_not_count_for_the_new_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_inside, "IN_FLIGHT_SECONDS", 0.0)
    told: list[Body] = []
    inside = Inside(tmp_path, "", lambda kind, body: told.append(body))
    inside.begin(1, [])
    paths = [
        inside.environment(Slot(rank, f"m{rank}", "n1", rank), {})[VARIABLE] for rank in (0, 1)
    ]
    kept = Page(paths[0])
    kept.claim()
    kept.explicit = True
    for iteration in (40, 41, 42):
        kept.iterated(iteration)
    assert (inside.look(), inside.counted) == (42, 3)
    inside.exception("m0", "Connection reset", in_flight=True)

    inside.begin(2, [Slot(1, "m0", "n1", 0)])
    assert not Path(paths[1]).exists(), "of a member that was not kept"
    assert (inside.look(), inside.counted) == (-1, 0)
    kept.iterated(43)
    assert (inside.look(), inside.counted) == (43, 1)
    inside.exception("m0", "new trouble", in_flight=False)
    [body] = told
    assert (body["rank"], body["generation"], body["text"]) == (1, 2, "new trouble")


def test_a_node_has_counted_flops_once_each_of_its_ranks_has(tmp_path: Path) -> None:
    inside = Inside(tmp_path, "", lambda kind, body: None)
    inside.begin(1, [])
    slots = [Slot(rank, f"m{rank}", "n1", rank) for rank in range(2)]
    pages = [Page(inside.environment(slot, {})[VARIABLE]) for slot in slots]
    for page in pages:
        page.joined()
        page.iterated()
        page.computed(3e9)
    inside.look()
    assert inside.flops == 0, "the step in which it was counted is not over"
    pages[0].iterated()
    inside.look()
    assert inside.flops == 0
    pages[1].iterated()
    inside.look()
    assert inside.flops == 6e9
    inside.begin(2, slots)  # the same processes, in a new generation
    inside.look()
    assert inside.flops == 0
