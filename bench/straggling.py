"""One slow rank in a real DistributedDataParallel training on CPU, found from its progress pages
alone: one JSON object, exit code 1 off a goal.

    scripts/bench straggling [--repeats 3]

Four ranks train on gloo with the start-up hook, unmodified otherwise; after a while rank 2 sleeps,
computes or sleeps in its backward pass for a tenth of a train step more. The pages are read as an
agent reads them and compared as unicrond compares. Beside it: what the hook costs a rank.
May touch: processes of its own, a temporary folder, the report.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.report import ROOT, Figure, figure, finish, tell
from detectors.stragglers import Comparison, Finding
from unicrond.agent.inside import Inside
from unicrond.link.frames import Body
from unicrond.link.messages import paces_from
from unicrond.model.incident import SignalKind
from unicrond.model.run import Slot

RANKS, SLOW_RANK = 4, 2
STEP_SECONDS = 0.3
ONSET = 80  # iterations before one rank becomes slow
MOST = 110  # iterations of a training
LIMIT_SECONDS = 90.0
KINDS = ("sleep", "compute", "backward")
RANK_PROGRAM = f"""
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
kind, rank = sys.argv[1], int(os.environ["RANK"])
slow = False
def work(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
class Both(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        time.sleep({STEP_SECONDS} / 3)
        return x
    @staticmethod
    def backward(context, gradient):
        time.sleep({STEP_SECONDS} * 2 / 3 + (slow and kind == "backward") * {STEP_SECONDS} / 10)
        return gradient
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.AdamW(model.parameters())
for number in range({MOST}):
    slow = rank == {SLOW_RANK} and number >= {ONSET}
    if slow and kind == "sleep":
        time.sleep({STEP_SECONDS} / 10)
    if slow and kind == "compute":
        work({STEP_SECONDS} / 10)
    optimizer.zero_grad()
    model(Both.apply(torch.randn(8, 64, requires_grad=True))).square().mean().backward()
    optimizer.step()
if rank == 0:
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
    spent = []
    for _ in range(60):
        time.sleep(0.1)
        begun = time.thread_time()
        for hook in hooks.values():
            hook(optimizer, (), {{}})
        spent.append(time.thread_time() - begun)
    print(*spent, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class Training:
    """`costs` holds what rank 0 measured of the hook, in microseconds, once it is over."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.costs: list[float] = []
        self._inside = Inside(folder, "", self._told)
        self._inside.begin(1, ())
        port, program = _free_port(), folder / "train.py"
        program.write_text(RANK_PROGRAM)
        self._ranks = [self._start(rank, port, [str(program), kind]) for rank in range(RANKS)]

    def _start(self, rank: int, port: int, command: list[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'unicron/hook'}:{ROOT}",
            "RANK": str(rank), "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        environment |= self._inside.environment(Slot(rank, f"m{rank}", "n1", rank), {})
        return subprocess.Popen(
            [sys.executable, *command], env=environment, text=True, stdout=subprocess.PIPE
        )

    def _told(self, kind: SignalKind, body: Body) -> None:
        tell(f"{kind}: {body}")

    def findings(self) -> Iterator[tuple[int, Finding]]:
        """With the iterations that were complete when it was found."""
        comparison = Comparison(1, dict.fromkeys(range(RANKS), "n1"))
        end = time.monotonic() + LIMIT_SECONDS
        while self._inside.counted < MOST and time.monotonic() < end:
            time.sleep(0.05)
            self._inside.look()
            for rank, pace in paces_from(self._inside.paces()):
                for finding in comparison.take(rank, pace):
                    yield self._inside.counted, finding

    def finish(self) -> None:
        try:
            said, _ = self._ranks[0].communicate(timeout=LIMIT_SECONDS)
            self.costs = [float(word) * 1e6 for word in said.split()]
            for rank in self._ranks:
                rank.communicate(timeout=LIMIT_SECONDS)
        finally:
            for rank in self._ranks:
                rank.kill()
                rank.wait()


@contextmanager
def training(kind: str) -> Iterator[Training]:
    with tempfile.TemporaryDirectory(prefix="unicron-straggling-") as folder:
        one = Training(kind, Path(folder))
        try:
            yield one
        finally:
            one.finish()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(kind: str) -> tuple[float, int, list[float]]:
    """Iterations from the onset until the slow rank is named, others named, the hook's costs."""
    named, wrong = float(MOST - ONSET), 0
    with training(kind) as one:
        for done, found in one.findings():
            if found.rank == SLOW_RANK and not found.over:
                named = min(named, float(done - ONSET))
            wrong += found.rank not in (None, SLOW_RANK)
    tell(f"{kind}: named after {named:.0f} iterations, {wrong} others named")
    return named, wrong, one.costs


def figures(repeats: int) -> Iterator[Figure]:
    costs: list[float] = []
    for kind in KINDS:
        found = [measure(kind) for _ in range(repeats)]
        costs += [statistics.mean(some) for *_, some in found]
        name = f"rank slower by a tenth of a train step named, {kind}"
        yield figure(name, "iterations", [named for named, *_ in found], goal=20)
        yield figure(f"others named, {kind}", "", [wrong for _, wrong, _ in found], goal=0)
    yield figure("CPU time of the optimizer hook, mean", "us an iteration", costs, goal=100)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench straggling")
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args(arguments).repeats
    if repeats < 1:
        parser.error(f"--repeats {repeats}: at least 1")
    notes = [
        f"{RANKS} ranks on gloo, train steps of {STEP_SECONDS} s, of which most is sleep",
        "the hook is timed at steps of 0.1 s, with cold caches",
    ]
    return finish("straggling", figures(repeats), notes, packages=["torch"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
