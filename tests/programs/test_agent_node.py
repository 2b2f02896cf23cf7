"""One node over several generations, with real ranks: who is kept, who is not, and what counts."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import pytest
from agentworld import PROGRAM

from unicrond.agent import processes
from unicrond.agent.environment import marker
from unicrond.agent.facts import Facts
from unicrond.agent.inside import Inside
from unicrond.agent.job import Job
from unicrond.agent.node import Node
from unicrond.agent.orders import Result
from unicrond.agent.output import OutputCopy
from unicrond.agent.ranksocket import RankSocket
from unicrond.agent.standby import Standby
from unicrond.link.frames import Body
from unicrond.model.decision import OutcomeState
from unicrond.model.incident import SignalKind
from unicrond.model.run import Assignment, Phase, Slot

FACTS = Facts(("n1", "n2"), dict.fromkeys(("n1", "n2"), "127.0.0.1"), {}, 300, 2, 0)
DEAF = ["sh", "-c", "echo deaf; exec sleep 60"]  # never opens the socket
RUN = f"exec {PROGRAM[0]} -IS -c '{PROGRAM[-1]}'"
WITH_CHILD = ["sh", "-c", f"setsid sleep 60 & {RUN}"]
STUBBORN = ["sh", "-c", f"trap '' TERM; {RUN}"]
_RUNS = itertools.count(os.getpid() * 1000)
Story = Callable[["World"], Coroutine[None, None, None]]


class World:
    """n1, with two ranks at the start; n2 is elsewhere and does as it is told."""

    def __init__(self, folder: Path, program: list[str]) -> None:
        self.folder = folder
        self.run_id = next(_RUNS)
        job = Job(
            run_id=self.run_id, node="n1", agent="a", nodes=FACTS.nodes, batch_host="n1",
            restarts=0, secret=b"", gpus=2, output_folder=folder, output=None, spawned=False,
            facts=FACTS,
        )  # fmt: skip
        self.told: list[tuple[SignalKind, Body]] = []
        self.inside = Inside(folder, "", self._tell)
        self.socket = RankSocket(folder, self._place, lambda g, i: None, self.inside.exception)
        self.copy = OutputCopy(folder / "slurm.out")
        self.node = Node(
            job, program, {"PATH": os.environ["PATH"]}, self.socket, 0.2, lambda: None, self._tell,
            self.copy, self.inside, lambda known: Standby(program, folder, known, "not here"),
        )  # fmt: skip
        self.state = self.node.state

    def _tell(self, kind: SignalKind, body: Body) -> None:
        self.told.append((kind, body))

    def _place(self, member: str) -> tuple[Slot, int] | None:
        return self.node.place_of(member)

    async def play(self, story: Story) -> None:
        self.node.ranks.watch(asyncio.get_running_loop())
        await self.socket.open()
        self.copy.start()
        try:
            await story(self)
        finally:
            left = await self.node.close(0.0)
            self.socket.close()
            self.copy.finish(5.0)
        assert left == ""

    # ------------------------------------------------------------ orders and what came of them

    async def order(self, new: Assignment) -> Result:
        return await self.node.start_ranks(new, "n2", 12000 + new.generation)

    async def first(self) -> None:
        assert (await self.order(FIRST)).state is OutcomeState.DONE
        await self.said("o1.0", "in 0 3 1")
        await self.said("o1.1", "in 1 3 1")

    async def said(self, member: str, words: str) -> None:
        await until(lambda: words in self.output(member))

    def output(self, member: str) -> str:
        launch = next(ln for ln in self.node.ranks.launches if ln.slot.member == member)
        return launch.output.read_text()

    def pid(self, member: str) -> int:
        return next(
            pid for pid, (ln, _) in self.node.ranks._running.items() if ln.slot.member == member
        )

    async def killed(self, member: str) -> Body:
        """What is told of it."""
        before = len(self.told)
        os.kill(self.pid(member), signal.SIGKILL)
        await until(lambda: len(self.told) > before)
        kind, body = self.told[-1]
        assert kind is SignalKind.RANK_EXITED
        return body

    def processes(self) -> list[int]:
        return [stray.pid for stray in processes.strays(marker(self.run_id, "n1"), {})]


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.002)


def play(folder: Path, story: Story, program: list[str] = PROGRAM) -> None:
    asyncio.run(World(folder, program).play(story))


def generation(number: int, *slots: Slot) -> Assignment:
    return Assignment(number, f"o{number}", slots)


FIRST = generation(1, Slot(0, "o1.0", "n1", 0), Slot(1, "o1.1", "n1", 1), Slot(2, "o1.2", "n2", 0))
N2_REPLACED = generation(
    2, Slot(0, "o2.0", "n2", 0), Slot(1, "o1.0", "n1", 0), Slot(2, "o1.1", "n1", 1)
)
ONE_KEPT = generation(
    2, Slot(0, "o1.1", "n1", 1), Slot(1, "o2.1", "n1", 0), Slot(2, "o1.2", "n2", 0)
)


# ---------------------------------------------------------------- keeping


def test_members_that_all_stay_are_told_their_new_place_and_the_node_runs(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        pids = world.pid("o1.0"), world.pid("o1.1")
        assert (await world.order(N2_REPLACED)).state is OutcomeState.DONE
        assert (world.state.phase, world.state.generation) == (Phase.RUNNING, 2)
        await world.said("o1.0", "in 1 3 2 127.0.0.1 12002")
        await world.said("o1.1", "in 2 3 2 127.0.0.1 12002")
        assert pids == (world.pid("o1.0"), world.pid("o1.1"))
        assert world.state.stopped_generation == 1

    play(tmp_path, story)


def test_a_kept_member_that_dies_later_is_a_failure_of_the_new_generation(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        await world.order(N2_REPLACED)
        body = await world.killed("o1.0")
        assert (body["generation"], body["rank"], body["member"]) == (2, 1, "o1.0")
        assert "in 0 3 1" in str(body["data"])  # its last lines: it writes where it always did
        assert (world.state.phase, world.node.regrouping) == (Phase.BROKEN, [2])
        await world.said("o1.1", "told to stay")
        assert world.state.stopped_generation == 1, "the other one waits"

    play(tmp_path, story)


def test_survivors_wait_for_a_new_generation_and_go_over_into_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        pid = world.pid("o1.1")
        await world.killed("o1.0")
        assert (await world.node.hold_ranks(1, 60.0)).data["port"]
        third = generation(2, Slot(0, "o2.0", "n1", 0), Slot(1, "o1.1", "n1", 1))
        assert (await world.order(third)).state is OutcomeState.DONE
        await world.said("o1.1", "in 1 2 2")
        assert (world.pid("o1.1"), world.state.phase) == (pid, Phase.RUNNING)
        assert world.state.stopped_generation == 1

    play(tmp_path, story)


def test_survivors_do_not_wait_for_ever(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        assert (await world.node.hold_ranks(1, 60.0)).state is OutcomeState.DONE
        assert (world.state.phase, world.node.has_ranks) == (Phase.BROKEN, True)
        assert (await world.node.hold_ranks(1, 0.01)).state is OutcomeState.DONE
        await until(lambda: world.state.stopped_generation == 1)
        assert (world.processes(), world.told, world.node.has_ranks) == ([], [], False)

    play(tmp_path, story)


def test_the_last_of_those_that_wait_dies_too_and_all_is_proved_gone(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        await world.killed("o1.0")
        assert (await world.killed("o1.1"))["member"] == "o1.1"
        await until(lambda: world.state.stopped_generation == 1)
        result = await world.node.hold_ranks(1, 60.0)
        assert result.state is OutcomeState.REFUSED and "no rank on n1" in result.detail
        assert (await world.node.hold_ranks(0, 60.0)).state is OutcomeState.REFUSED

    play(tmp_path, story)


def test_ranks_that_were_prepared_wait_and_are_taken_in_as_they_are(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.order(generation(1, Slot(0, "o1.0", "n2", 0)))
        joint = generation(2, Slot(0, "o1.0", "n2", 0), Slot(1, "o2.1", "n1", 0))
        assert (await world.node.prepare_ranks(joint)).state is OutcomeState.DONE
        await until(lambda: world.node.prepared == ["o2.1"])
        assert (world.state.phase, world.node.regrouping) == (Phase.IDLE, [])
        pid = world.pid("o2.1")
        assert (await world.node.prepare_ranks(joint)).state is OutcomeState.DONE
        assert (await world.order(joint)).state is OutcomeState.DONE
        await world.said("o2.1", "in 1 2 2")
        assert (world.pid("o2.1"), world.node.prepared) == (pid, [])
        assert world.processes() == [pid]
        assert (await world.node.prepare_ranks(joint)).state is OutcomeState.REFUSED

    play(tmp_path, story)


def test_ranks_that_were_prepared_in_vain_are_stopped_with_the_others(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for number, stop in ((1, True), (3, False)):
            slots = Slot(0, "o9.0", "n2", 0), Slot(1, f"o{number}.1", "n1", 0)
            await world.node.prepare_ranks(generation(number, *slots))
            await until(lambda: len(world.node.prepared) == 1)
            if stop:
                await world.node.stop_ranks(0)
            else:
                await world.order(generation(3, Slot(0, "o9.0", "n2", 0)))
            assert world.processes() == []
        assert world.told == []

    play(tmp_path, story)


def test_who_is_not_named_is_stopped_and_who_is_new_is_started_beside_those_that_stay(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        await world.first()
        kept, old = world.pid("o1.1"), world.pid("o1.0")
        assert (await world.order(ONE_KEPT)).state is OutcomeState.DONE
        await world.said("o1.1", "in 0 3 2")
        await world.said("o2.1", "in 1 3 2")
        assert world.pid("o1.1") == kept and not Path(f"/proc/{old}").exists()
        assert world.told == [], "it was told to end"

    play(tmp_path, story)


def test_members_may_be_kept_again_and_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        pid = world.pid("o1.0")
        for number in range(2, 6):
            slots = [Slot(0, f"o{number}.0", "n2", 0), Slot(1, "o1.0", "n1", 0)]
            assert (await world.order(generation(number, *slots))).state is OutcomeState.DONE
            await world.said("o1.0", f"in 1 2 {number}")
        assert world.processes() == [pid]
        assert (await world.killed("o1.0"))["generation"] == 5

    play(tmp_path, story)


def test_a_node_that_the_new_generation_leaves_out_loses_its_ranks(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        result = await world.order(generation(2, Slot(0, "o2.0", "n2", 0)))
        assert result.state is OutcomeState.DONE
        assert (world.state.phase, world.state.stopped_generation) == (Phase.IDLE, 1)
        assert world.processes() == []

    play(tmp_path, story)


def test_output_of_a_kept_member_is_copied_under_its_new_rank(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        target = tmp_path / "slurm.out"
        await world.first()
        await until(lambda: target.exists() and "[1] in 1 3 1" in target.read_text())
        await world.order(ONE_KEPT)
        await world.said("o2.1", "in 1 3 2")
        await world.said("o1.1", "in 0 3 2")
        world.copy.finish(5.0)
        lines = sorted(line[:12] for line in target.read_text().splitlines() if " in " in line)
        assert lines == ["[0] in 0 3 1", "[0] in 0 3 2", "[1] in 1 3 1", "[1] in 1 3 2"]

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("more", "phase", "told"),
    [
        ([], Phase.DONE, []),
        ([Slot(1, "o2.1", "n1", 0)], Phase.RUNNING, [SignalKind.RANK_EXITED]),
    ],
)
def test_a_kept_member_may_be_done_before_the_new_generation_runs(
    tmp_path: Path, more: list[Slot], phase: Phase, told: list[SignalKind]
) -> None:
    async def story(world: World) -> None:
        await world.first()
        second = generation(2, Slot(0, "o1.1", "n1", 1), *more)
        order = asyncio.create_task(world.order(second))  # o1.0 takes its time to end
        await world.said("o1.1", f"in 0 {1 + len(more)} 2")
        os.kill(world.pid("o1.1"), signal.SIGUSR1)
        await until(lambda: "o1.1" not in world.node.ranks.running)
        assert world.state.phase is Phase.STARTING
        assert (await order).state is OutcomeState.DONE
        assert (world.state.phase, [kind for kind, _ in world.told]) == (phase, told)

    play(tmp_path, story, STUBBORN)


# ---------------------------------------------------------------- stopping


def test_stopping_an_old_generation_leaves_kept_members_and_their_children_alone(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        await world.first()
        await until(lambda: len(world.processes()) == 4)
        await world.order(N2_REPLACED)
        result = await world.node.stop_ranks(1)
        assert result.state is OutcomeState.DONE and result.data["port"]
        assert len(world.processes()) == 4
        assert (world.state.phase, world.told) == (Phase.RUNNING, [])
        assert (await world.node.stop_ranks(2)).state is OutcomeState.DONE
        assert (world.state.phase, world.processes()) == (Phase.IDLE, [])

    play(tmp_path, story, WITH_CHILD)


def test_children_of_a_member_that_was_not_kept_are_gone_before_the_new_generation_runs(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        await world.first()
        await until(lambda: len(world.processes()) == 4)
        await world.order(generation(2, Slot(0, "o1.0", "n1", 0)))
        assert len(world.processes()) == 2

    play(tmp_path, story, WITH_CHILD)


# ---------------------------------------------------------------- refusing


def test_what_cannot_be_kept_is_refused_with_a_sentence_and_nothing_changes(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        await world.first()
        for number, slot, words in (
            (2, Slot(0, "o1.9", "n1", 0), "does not run on n1"),
            (2, Slot(0, "u:7.3.0", "n1", 0), "does not run on n1"),
            (2, Slot(0, "o1.0", "n1", 1), "GPU of local rank 0"),
            (1, Slot(0, "o1.0", "n1", 0), "under order o1"),
            (0, Slot(0, "o1.0", "n1", 0), "is over here"),
        ):
            order = replace(generation(number, slot), order="forged")
            result = await world.order(order)
            assert result.state is OutcomeState.REFUSED and words in result.detail
        assert (world.state.generation, world.state.phase) == (1, Phase.RUNNING)
        assert len(world.processes()) == 2 and "told" not in world.output("o1.0")

    play(tmp_path, story)


def test_a_rank_that_never_opened_the_socket_is_not_kept(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.order(FIRST)
        assert (await world.node.hold_ranks(1, 60.0)).state is OutcomeState.REFUSED
        result = await world.order(N2_REPLACED)
        assert result.state is OutcomeState.REFUSED
        assert "no orders over the rank socket" in result.detail
        assert (world.state.generation, len(world.processes())) == (1, 2)

    play(tmp_path, story, DEAF)


def test_a_member_that_ended_is_not_started_again_under_its_id(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.first()
        await world.killed("o1.0")
        result = await world.order(N2_REPLACED)
        assert result.state is OutcomeState.REFUSED and "does not run" in result.detail

    play(tmp_path, story)


def test_where_a_new_rank_cannot_start_those_that_were_to_stay_end_too(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{PROGRAM[0]} -IS\n{PROGRAM[-1]}")
    program.chmod(0o755)

    async def story(world: World) -> None:
        await world.first()
        program.unlink()
        assert (await world.order(ONE_KEPT)).state is OutcomeState.FAILED
        assert [kind for kind, _ in world.told] == [SignalKind.START_FAILED]
        assert world.state.phase is Phase.BROKEN
        await until(lambda: world.state.stopped_generation == 2)
        assert world.processes() == []

    play(tmp_path, story, [str(program)])
