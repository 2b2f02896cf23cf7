"""Ranks forked by a standby process, with real processes and a torch that is a few lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agentworld import Job, until

from unicron import page
from unicrond.agent import processes
from unicrond.agent.environment import Place, rank_environment
from unicrond.agent.ranks import Launch, RankExit, Ranks
from unicrond.agent.standby import Standby, discard
from unicrond.model.run import Assignment, Slot

ROOT = Path(__file__).parents[2]
TORCH = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    for hook in hooks:
        hook(None)
"""
# Says how it finds itself, and what it was told in its own folder; then it trains.
SCRIPT = """
import json, os, random, signal, sys, time
import torch.optim.optimizer, heavy
import beside
environment = dict(entry.split("=", 1) for entry in open("/proc/self/environ").read().split("\\0")
                   if entry)
print(json.dumps({
    "random": random.random(), "pid": os.getpid(), "heavy": heavy.FROM,
    "same": {
        "argv": sys.argv, "orig": sys.orig_argv, "flags": str(sys.flags), "name": __name__,
        "file": __file__, "first": sys.path[0], "path": sys.path, "beside": beside.__file__,
        "cwd": os.getcwd(), "nice": os.nice(0), "policy": os.sched_getscheduler(0),
        "files": [os.readlink(f"/proc/self/fd/{n}") for n in (0, 1)],
        "open": len(os.listdir("/proc/self/fd")), "comm": open("/proc/self/comm").read(),
        "cmdline": open("/proc/self/cmdline").read(), "buffered": sys.stdout.line_buffering,
        "oom": open("/proc/self/oom_score_adj").read(), "parent": os.getppid(),
        "leads": os.getpid() == os.getpgid(0) == os.getsid(0),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "interrupt": str(signal.getsignal(signal.SIGINT)), "ours": sorted(os.environ),
        "environment": {name: environment.get(name) == os.environ[name] for name in os.environ},
    },
}), flush=True)
for _ in range(3):
    torch.optim.optimizer.step()
if os.path.exists("exit"):
    sys.exit(int(open("exit").read()))
time.sleep(600)
"""
HEAVY = "import os; FROM = os.getpid()\n"
ANSWER_SECONDS = 8.0  # the machine may be busy
Story = Callable[["World"], Coroutine[None, None, None]]


class World:
    """The parts of an agent that start ranks, and a program."""

    def __init__(self, folder: Path, heavy: str = HEAVY, more: str = "") -> None:
        libraries = folder / "site-packages"
        (libraries / "torch/optim").mkdir(parents=True)
        (folder / "lib").mkdir()
        (folder / "lib/unicron").symlink_to(ROOT / "unicron")
        for name, text in (
            ("site-packages/torch/__init__.py", ""), ("site-packages/torch/optim/__init__.py", ""),
            ("site-packages/torch/optim/optimizer.py", TORCH), ("site-packages/heavy.py", heavy),
            ("beside.py", ""), ("script.py", more + SCRIPT),
        ):  # fmt: skip
            (folder / name).write_text(text)
        self.folder = folder
        self.path = f"{folder / 'lib/unicron/hook'}:{libraries}"
        self.mark = f"test-{os.getpid()}-{time.monotonic_ns()}/n1/"
        self.exits: list[RankExit] = []
        self.ranks = Ranks(self.mark, self.exits.append)
        self.generation = 0
        self.runs("-u", "-Xutf8", str(folder / "script.py"), "--an", "option")

    def runs(self, *arguments: str) -> None:
        self.program = [sys.executable, *arguments]
        known = self.ranks.not_ours
        self.standby = Standby(self.program, self.folder, known, answer_seconds=ANSWER_SECONDS)

    def launch(self) -> Launch:
        self.generation += 1
        number = self.generation
        slot = Slot(0, f"o{number}.0", "n1", 0)
        assignment = Assignment(number, f"o{number}", (slot,))
        place = Place(7, self.mark + "a", "127.0.0.1", 11_111, str(self.folder / "socket"))
        base = {"PATH": os.environ["PATH"], "PYTHONPATH": self.path, "HOME": str(self.folder)}
        base["LC_ALL"] = "C.UTF-8"  # else Python sets a variable itself
        environment = rank_environment(base, assignment, slot, place)
        environment[page.VARIABLE] = str(self.folder / f"page-{number}")
        page.make(Path(environment[page.VARIABLE]))
        return Launch(number, slot, self.program, environment, self.folder / f"g{number}.log")

    async def started(self) -> dict[str, Any]:
        """What a new rank says."""
        launch = self.launch()
        self.ranks.start([launch], await self.standby.fork([launch]))
        await eventually(lambda: launch.output.read_text().endswith("\n"))
        said: dict[str, Any] = json.loads(launch.output.read_text().splitlines()[-1])
        return said

    async def warm(self, also: float = 0.0) -> None:
        """`also`: seconds that are said to have passed."""

        def look() -> bool:
            self.standby.look(self.ranks.by_pid, time.monotonic() + also)
            return self.standby.is_warm

        await eventually(look)

    async def stop(self) -> None:
        assert await self.ranks.stop(self.generation, 0.0) == ""

    def play(self, story: Story) -> None:
        async def main() -> None:
            self.ranks.watch(asyncio.get_running_loop())
            try:
                await story(self)
            finally:
                self.standby.close()
                await self.stop()

        here = Path.cwd()
        os.chdir(self.folder)
        try:
            asyncio.run(main())
        finally:
            os.chdir(here)


async def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)


def lives(pid: int) -> bool:
    stat = processes.stat_of(pid)
    return stat is not None and stat.state != "Z"


@pytest.fixture(autouse=True, scope="module")
def adopts() -> None:
    processes.adopt_orphans()  # as the agent does


@pytest.mark.parametrize("module", [False, True])
def test_a_forked_rank_cannot_tell_that_it_was_not_started_plainly(
    tmp_path: Path, module: bool
) -> None:
    async def story(world: World) -> None:
        plain = await world.started()
        await world.warm()
        standby = world.standby.pid
        await world.stop()
        first = await world.started()
        await world.stop()
        second = await world.started()
        for number, said in enumerate((plain, first, second), 1):
            assert said["same"]["files"].pop() == str(tmp_path / f"g{number}.log")
        assert plain["same"] == first["same"] == second["same"]
        assert all(plain["same"]["environment"].values()), "and so /proc has it"
        assert plain["heavy"] == plain["pid"]
        assert first["heavy"] == second["heavy"] == standby
        assert len({one["random"] for one in (plain, first, second)}) == 3

        def is_watched() -> bool:
            seen = page.read(tmp_path / "page-3")
            return seen is not None and (seen.pid, seen.count) == (second["pid"], 3)

        await eventually(is_watched)

    world = World(tmp_path)
    if module:
        world.runs("-m", "script", "--an", "option")
    world.play(story)


def test_the_end_of_a_forked_rank_is_told_as_that_of_any_other(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.started()
        await world.warm()
        await world.stop()
        world.exits.clear()
        said = await world.started()
        os.kill(said["pid"], signal.SIGKILL)
        await eventually(lambda: world.exits)
        (tmp_path / "exit").write_text("7")
        await world.started()
        await eventually(lambda: len(world.exits) == 2)
        assert [(one.exit_code, one.signal) for one in world.exits] == [(137, 9), (7, 0)]
        assert not processes.strays(world.mark, {})
        assert world.standby.is_warm

    World(tmp_path).play(story)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_the_standby_process_ranks_are_started_plainly(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def story(world: World) -> None:
        await world.started()
        await world.warm()
        await world.stop()
        assert world.standby.pid
        os.kill(world.standby.pid, number)
        ordered = time.monotonic()
        said = await world.started()
        assert said["heavy"] == said["pid"]
        assert time.monotonic() - ordered < ANSWER_SECONDS + 10
        assert world.standby.pid is None, "it is gone"

    World(tmp_path).play(story)


def test_a_standby_process_that_dies_as_it_forks_leaves_one_rank_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def story(world: World) -> None:
        await world.started()
        for delay_seconds in (0.0, 0.01, 0.03):
            await world.warm(also=60.0)
            await world.stop()
            standby = world.standby.pid
            assert standby
            starting = asyncio.create_task(world.started())
            await asyncio.sleep(delay_seconds)
            os.kill(standby, signal.SIGKILL)
            said = await starting
            assert [stray.pid for stray in processes.strays(world.mark, {})] == [said["pid"]]

    World(tmp_path).play(story)


def test_a_forked_process_that_is_not_wanted_any_more_runs_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.started()
        await world.warm()
        await world.stop()
        launch = world.launch()
        forked = await world.standby.fork([launch])
        assert len(processes.strays(world.mark, {})) == 1
        discard(forked)
        await eventually(lambda: not processes.strays(world.mark, {}))
        assert launch.output.read_text() == ""

    World(tmp_path).play(story)


@pytest.mark.parametrize(
    ("heavy", "why"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True)"
         ".start()", "has started threads"),
        ("kept = open('/proc/self/stat')", "holds /proc/"),
        ("import os; os.environ.get('LOCAL_RANK')", "reads LOCAL_RANK as it is imported"),
        ("import os; HOME = os.environ['HOME']", "reads HOME as it is imported, which the program"),
        ("import os; os.environ['UNICRON_MEMBER']", "cannot be imported before"),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_shared_is_left_to_the_ranks(
    tmp_path: Path, heavy: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        await world.started()
        await world.warm(also=60.0)
        await world.stop()
        said = await world.started()
        assert said["heavy"] == said["pid"]
        assert world.standby.is_warm

    caplog.set_level("INFO")
    more = "import os; os.environ['HOME'] = '/'\n"
    World(tmp_path, f"{heavy}\nimport os; FROM = os.getpid()\n", more).play(story)
    assert f"another will follow: heavy {why}" in caplog.text.replace("heavy heavy", "heavy")


def test_a_run_is_restarted_from_the_standby_process_and_nothing_outlives_the_agent(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    program = ["env", f"PYTHONPATH={world.path}", *world.program]
    with Job(tmp_path, 1, program) as job:
        until(lambda: "is warm" in job.log("n1"))
        job.kill_rank("n1")
        until(lambda: job.output(2, 0))
        first, second = (json.loads(job.output(number, 0)) for number in (1, 2))
        standby = second["heavy"]
        assert standby not in (first["pid"], second["pid"])
        job.agents["n1"].kill()
        until(lambda: not any(map(lives, (standby, second["pid"]))))
