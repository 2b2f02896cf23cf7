"""What is measured by bench/transition.py: how long a rank of an unmodified script takes to its
first line with torch imported, started plainly and forked by the standby process of an agent.

The parts of the agent are the real ones: Ranks, Standby, the start-up hook. May touch: processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from unicron import page
from unicrond.agent import processes
from unicrond.agent.environment import Place, rank_environment
from unicrond.agent.ranks import Launch, Ranks
from unicrond.agent.standby import Standby
from unicrond.model.run import Assignment, Slot

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 180.0
# Three train steps, after which the hook tells what was imported.
SCRIPT = """
import time
import torch
from torch import nn
print("at", time.monotonic(), flush=True)
model = nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
time.sleep(600)
"""


@dataclass
class Starts:
    """Seconds, MB."""

    plain: list[float] = field(default_factory=list)
    forked: list[float] = field(default_factory=list)
    warm: float = 0.0  # until the standby process is
    memory: float = 0.0  # of its own: what no rank shares


class _Agent:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        script = folder / "script.py"
        script.write_text(SCRIPT)
        self._program = [sys.executable, str(script)]
        self._mark = f"bench-{os.getpid()}/n1/"
        self.ranks = Ranks(self._mark, lambda _: None)
        known = self.ranks.not_ours
        self.standby = Standby(self._program, folder, known, answer_seconds=LIMIT_SECONDS)
        self._generation = 0

    def launch(self) -> Launch:
        """Of the next generation."""
        self._generation += 1
        slot = Slot(0, f"o{self._generation}.0", "n1", 0)
        assignment = Assignment(self._generation, f"o{self._generation}", (slot,))
        place = Place(7, self._mark + "a", "127.0.0.1", 11111, str(self._folder / "none"))
        environment = rank_environment(dict(os.environ), assignment, slot, place)
        environment["PYTHONPATH"] = str(ROOT / "unicron/hook")
        environment[page.VARIABLE] = str(self._folder / f"page-{self._generation}")
        page.make(Path(environment[page.VARIABLE]))
        output = self._folder / f"g{self._generation}.log"
        return Launch(self._generation, slot, self._program, environment, output)

    async def start(self) -> float:
        """Seconds from the order to the script's line."""
        launch = self.launch()
        ordered = time.monotonic()
        self.ranks.start([launch], await self.standby.fork([launch]))
        await _until(lambda: "\n" in launch.output.read_text())
        return float(launch.output.read_text().split()[1]) - ordered

    async def stop(self) -> None:
        if left := await self.ranks.stop(self._generation, 0.0):
            raise RuntimeError(left)

    async def warm(self) -> float:
        """Beside a rank that runs."""
        began = time.monotonic()

        def is_warm() -> bool:
            self.standby.look(self.ranks.by_pid, time.monotonic())
            return self.standby.is_warm

        await _until(is_warm)
        return time.monotonic() - began


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what was measured did not come")
        await asyncio.sleep(0.002)


async def _measured(rounds: int, folder: Path) -> Starts:
    agent, found = _Agent(folder), Starts()
    agent.ranks.watch(asyncio.get_running_loop())
    try:
        for _ in range(rounds):
            await agent.stop()
            found.plain.append(await agent.start())
        found.warm = await agent.warm()
        for _ in range(rounds):
            await agent.stop()
            found.forked.append(await agent.start())
            assert agent.standby.pid is not None
        found.memory = _private_megabytes(agent.standby.pid or 0)
    finally:
        agent.standby.close()
        await agent.stop()
    return found


def _private_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return (sizes["Private_Clean"] + sizes["Private_Dirty"] + sizes["Shared_Dirty"]) / 1024


def measure(rounds: int) -> Starts:
    processes.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="unicron-bench-") as name:
        return asyncio.run(_measured(rounds, Path(name)))
