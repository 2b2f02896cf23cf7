"""What the port `Collective` promises, over every implementation, in real processes.

NCCL needs a GPU, and its part a world of one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stagehand import ROOT, free_port

pytestmark = pytest.mark.training
SMALL, LARGE = 1000, 4_000_000
ROUNDS = 10


class Member:
    def __init__(self, backend: str) -> None:
        self.heard: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "member.py"), backend],
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self, did: str) -> dict[str, Any]:
        """The next answer to such an order; others may come before."""
        assert self.process.stdout is not None
        while not self.heard[did]:
            found: dict[str, Any] = json.loads(self.process.stdout.readline())
            self.heard[found["did"]].append(found)
        return self.heard[did].popleft()

    def do(self, *words: object) -> dict[str, Any]:
        self.tell(*words)
        return self.hear(str(words[0]))

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class World:
    """Members of one backend; generations rise over all tests of it."""

    def __init__(self, backend: str, size: int) -> None:
        self.backend, self.size, self.generation = backend, size, 0
        self.members = self.start(size)

    def start(self, size: int) -> list[Member]:
        made = [Member(self.backend) for _ in range(size)]
        for member in made:
            member.hear("started")
        return made

    def form(self, members: list[Member]) -> list[dict[str, Any]]:
        self.generation += 1
        port = free_port()
        for rank, member in enumerate(members):
            member.tell("form", self.generation, rank, len(members), port)
        return [member.hear("form") for member in members]

    def all_do(self, *words: object) -> list[dict[str, Any]]:
        for member in self.members:
            member.tell(*words)
        return [member.hear(str(words[0])) for member in self.members]

    def end(self) -> None:
        for member in self.members:
            member.end()


@functools.cache
def why_no_nccl() -> str:
    code = "from unicron.nccl import why_not; print(why_not())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    return asked.stdout.strip() or asked.stderr[-200:]


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "nccl" and why_no_nccl():
        pytest.skip(why_no_nccl())
    made = World(request.param, 3 if request.param == "gloo" else 1)
    yield made
    made.end()


def fine(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [answer["error"] for answer in answers] == [""] * len(answers)
    return answers


def test_a_group_is_formed_left_and_formed_again(world: World) -> None:
    for _ in range(2):
        fine(world.form(world.members))
        total = {answer["value"] for answer in fine(world.all_do("reduce", SMALL))}
        assert total == {float(world.size)}
        assert {answer["value"] for answer in fine(world.all_do("divide"))} == total
        fine(world.all_do("leave"))
    fine(world.all_do("leave"))


def test_a_generation_that_is_over_is_not_formed(world: World) -> None:
    world.members[0].do("revoke", world.generation + 1)
    assert "over" in world.members[0].do("form", world.generation + 1, 0, 1, free_port())["error"]
    fine([world.members[0].do("leave")])
    world.generation += 1


@pytest.mark.parametrize("where", [("reduce", LARGE), ("divide",)], ids=["in reduce", "in a store"])
def test_whoever_waits_for_a_peer_that_never_comes_is_set_free(
    world: World, where: tuple[object, ...]
) -> None:
    if world.size == 1:
        pytest.skip("needs peers")
    free, counts = [], []
    for _ in range(ROUNDS):
        fine(world.form(world.members))
        waiting = world.members[1:]
        for member in waiting:
            member.tell(*where)
        time.sleep(0.05)
        for member in waiting:
            assert member.do("revoke", world.generation)["seconds"] < 0.1
        free += [member.hear(str(where[0])) for member in waiting]
        fine([member.do("revoke", world.generation) for member in world.members[:1]])
        assert all(answer["seconds"] < 1.0 for answer in fine(world.all_do("leave")))
        counts.append([answer["value"] for answer in fine(world.all_do("count"))])
    assert all(answer["error"] for answer in free)
    assert counts[-1] == counts[1], "neither threads nor descriptors leak"


def test_survivors_of_a_stopped_peer_form_a_group_without_it(world: World) -> None:
    if world.size == 1:
        pytest.skip("needs peers")
    fine(world.form(world.members))
    stopped, *rest = world.members
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        for member in rest:
            member.tell("reduce", LARGE)
        time.sleep(0.05)
        for member in rest:
            member.do("revoke", world.generation)
        assert all(member.hear("reduce")["error"] for member in rest)
        for member in rest:
            assert member.do("leave")["seconds"] < 1.0
        fine(world.form(rest))
        for member in rest:
            member.tell("reduce", SMALL)
        assert {answer["value"] for answer in fine([m.hear("reduce") for m in rest])} == {2.0}
        for member in rest:
            member.do("leave")
    finally:
        stopped.process.send_signal(signal.SIGCONT)
        stopped.do("revoke", world.generation)
        stopped.do("leave")


def test_the_end_of_an_older_generation_touches_no_newer_one(world: World) -> None:
    fine(world.form(world.members))
    fine(world.all_do("revoke", world.generation - 1))
    fine(world.all_do("reduce", SMALL))
    fine(world.all_do("leave"))


@pytest.mark.parametrize("absent", [0, 2], ids=["whose store", "a member"])
def test_forming_ends_at_once_when_its_generation_does(world: World, absent: int) -> None:
    if world.size == 1:
        pytest.skip("needs peers")
    world.generation += 1
    port = free_port()
    here = [(rank, m) for rank, m in enumerate(world.members) if rank != absent]
    for rank, member in here:
        member.tell("form", world.generation, rank, 3, port)
    time.sleep(0.1)
    for _, member in here:
        member.do("revoke", world.generation)
    for _, member in here:
        answer = member.hear("form")
        assert answer["error"] and answer["seconds"] < 1.0
        fine([member.do("leave")])
