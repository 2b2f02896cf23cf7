"""What a failure costs a run that imports unicron, on one machine without Slurm.

    scripts/bench transition                 everything
    scripts/bench transition --only faults --rounds 5

4 ranks on gloo, train steps of 100 ms: 4 micro-batches a rank and 1 MB of gradients. A fault comes
30 ms into a train step; the clock stops as that very train step is committed by all. Detection and
orders are this program's: it waits for the process, or is told of the exception, and orders a new
generation at once; so what is measured is what the ranks themselves need. Replacements are forked
from a process that has torch imported. May touch: processes, /dev/shm, a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import transition_copies, transition_replicas, transition_starts
from bench.report import Figure, figure, finish, tell
from bench.stage import Stage, stage

MEMBER = str(Path(__file__).parent / "transition_member.py")
WORLD = 4
PAUSE_SECONDS = 0.5  # of undisturbed training between faults
LEAKS = 3  # descriptors that its first copy in memory opens
TORCHRUN_SECONDS = 120.0


class Run:
    """A strict training; plays agents and unicrond. The newest member is the next victim."""

    def __init__(self, folder: Path, staged: Stage, raised: threading.Event) -> None:
        self._folder, self._staged, self._raised = folder, staged, raised
        self._made = WORLD
        self.members = [f"m{number}" for number in range(WORLD)]
        self._generation = 0
        self._form()

    def _form(self) -> None:
        self._generation += 1
        self._staged.begin(self._generation, *((name, f"n-{name}") for name in self.members))

    def settle(self) -> None:
        """All of them train in the newest generation, for a while."""
        self._staged.until(
            lambda: all(self._commits(name, self._generation) for name in self.members), "a step"
        )
        time.sleep(PAUSE_SECONDS)

    def _commits(self, member: str, generation: int) -> list[dict[str, Any]]:
        lines = self._staged.lines(member)
        return [one for one in lines if one.get("generation") == generation]

    def fault(self, what: str, *, replaced: bool, first: bool) -> Fault:
        """`first`: the victim is rank 0, and hosts the store. A stopped rank is noticed at once."""
        victim = self.members.pop()
        if first:  # ranks by their place
            self.members.insert(0, victim)
            self._form()
            self.settle()
            self.members.remove(victim)
        self._raised.clear()
        (self._folder / victim).write_text(what)
        self._noticed(victim, what)
        noticed = time.monotonic()
        self._staged.stay()
        if replaced:
            self._made += 1
            self.members.append(f"m{self._made}")
        self._form()
        self._staged.kill(victim)
        self.settle()
        return self._measured(victim, noticed if what == "SIGSTOP" else 0.0)

    def _noticed(self, victim: str, what: str) -> None:
        child = self._staged.ranks[victim]
        if what == "SIGKILL":
            child.wait(30)
        elif what == "exception":
            self._raised.wait(30)
        else:
            stat = Path(f"/proc/{child.pid}/stat")
            self._staged.until(lambda: stat.read_text().split()[2] == "T", "it stops")

    def _measured(self, victim: str, clock: float) -> Fault:
        told = next(one for one in self._staged.lines(victim) if "fault" in one)
        commits = [self._commits(name, self._generation) for name in self.members]
        done = [min(one["at"] for one in lines) for lines in commits]
        lowest = min(one["step"] for lines in commits for one in lines)
        return Fault(max(done) - (clock or told["at"]), told["step"] - lowest)

    def grow(self) -> None:
        self._made += 1
        self.members.append(f"m{self._made}")
        self._form()
        self.settle()

    def held(self) -> list[int]:
        """Threads and descriptors of the member that was never replaced."""
        pid = self._staged.ranks["m0"].pid
        return [len(os.listdir(f"/proc/{pid}/{kind}")) for kind in ("task", "fd")]  # noqa: PTH208


class Fault:
    def __init__(self, seconds: float, lost: int) -> None:
        self.seconds, self.lost = seconds, lost


@contextlib.contextmanager
def training() -> Iterator[Run]:
    raised = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="unicron-bench-") as name,
        stage(Path(name), MEMBER, name, "strict", raised=lambda _: raised.set()) as staged,
    ):
        run = Run(Path(name), staged, raised)
        run.settle()
        yield run


def faults(rounds: int) -> list[Figure]:
    found: dict[str, list[Fault]] = {"SIGKILL": [], "exception": [], "SIGSTOP": [], "replaced": []}
    with training() as run:
        for number in range(rounds):
            for what in ("SIGKILL", "exception", "SIGSTOP"):
                found[what].append(run.fault(what, replaced=False, first=number % 2 == 1))
                run.grow()
            found["replaced"].append(run.fault("SIGKILL", replaced=True, first=False))
            tell(f"faults: round {number + 1} of {rounds}")
    lost = [float(one.lost) for some in found.values() for one in some]
    named = {
        "SIGKILL": ("a rank killed: its train step committed by 3 survivors", 0.2),
        "exception": ("a rank raises: its train step committed by 3 survivors", 0.2),
        "SIGSTOP": ("a rank stopped, once it is noticed: committed by 3 survivors", 0.2),
        "replaced": ("a rank killed: its train step committed by 4, one of them new", 0.5),
    }
    return [
        figure(named[what][0], "s", [one.seconds for one in some], goal=named[what][1])
        for what, some in found.items()
    ] + [figure("train steps lost", "steps", lost, goal=0, worst=True)]


def leaks(recoveries: int) -> list[Figure]:
    """What is there more at the end than after the first three."""
    with training() as run:
        counts = []
        for number in range(recoveries):
            run.fault("SIGKILL", replaced=True, first=False)
            counts.append(run.held())
            tell(f"leaks: recovery {number + 1} of {recoveries}")
    early = counts[min(2, len(counts) - 1)]
    more = [float(last - before) for last, before in zip(counts[-1], early, strict=True)]
    names = ("threads", "descriptors")
    return [
        figure(f"more {name} after {recoveries} recoveries", "", [grown], goal=LEAKS)
        for name, grown in zip(names, more, strict=True)
    ]


def throughput(pairs: int) -> list[Figure]:
    """Of pairs of train steps, by turns: plain DistributedDataParallel's time over ours."""
    with tempfile.TemporaryDirectory(prefix="unicron-bench-") as name:
        command = (MEMBER, name, "both", str(pairs))
        with stage(Path(name), *command) as staged:
            staged.begin(1, ("m0", "n0"), ("m1", "n1"))
            tell(f"throughput: {pairs} pairs of train steps")
            staged.ranks["m0"].wait(30 + pairs)
            lines = staged.lines("m0")
    found = [one["pair"] for one in lines if "pair" in one][5:]
    ratios = [100 * plain / ours for ours, plain in found]
    return [
        figure("throughput of plain DDP that is left", "%", ratios, goal=99.5, better="higher"),
        figure("a train step takes longer by", "ms", [1e3 * (o - p) for o, p in found]),
    ]


def copies(rounds: int) -> list[Figure]:
    tell("copies of 500 MB")
    found = transition_copies.measure(rounds)
    memcpy = statistics.median(found["memcpy"])
    ratio = [one / memcpy for one in found["checkpoint"]]
    return [
        figure("stall of a copy of 500 MB, in memcpys of the same", "", ratio, goal=1.3),
        *(figure(f"500 MB by {name}", "s", seconds) for name, seconds in found.items()),
    ]


def starts(rounds: int) -> list[Figure]:
    tell("starts: plainly, then forked by a standby process")
    found = transition_starts.measure(rounds)
    name = "order to the first line of an unmodified script, torch imported"
    return [
        figure(f"{name}: forked", "s", found.forked, goal=0.8),
        figure(f"{name}: started plainly", "s", found.plain),
        figure("a standby process is warm after", "s", [found.warm]),
        figure("memory of a standby process, but for libraries", "MB", [found.memory]),
    ]


def replicas(rounds: int) -> list[Figure]:
    tell("copies of 500 MB to another node and back")
    found = transition_replicas.measure(rounds)
    back = [transition_replicas.DATA_BYTES / 1e6 / seconds for seconds in found["back"]]
    name = "state of a lost node is read from another one"
    return [
        figure("a copy of 500 MB is on another node after", "s", found["there"], goal=3.0),
        figure(name, "MB/s", back, goal=500.0, better="higher"),
    ]


def torchrun(rounds: int) -> list[Figure]:
    """The same training without unicron; the clock stops as all have done the failed train step."""
    seconds, redone = [], []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix="unicron-bench-") as name:
            took, again = _under_torchrun(Path(name))
        seconds.append(took)
        redone.append(float(again))
        tell(f"torchrun: {number + 1} of {rounds}")
    return [
        figure("torchrun: a rank killed, its train step done by 4 again", "s", seconds),
        figure("torchrun: train steps done again", "steps", redone),
    ]


def _under_torchrun(folder: Path) -> tuple[float, int]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(Path(MEMBER).parents[1])}
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else it may hang as it restarts
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORLD}",
        "--max-restarts=5", "--monitor-interval=0.1", "--standalone",
        MEMBER, str(folder), "plain",
    ]  # fmt: skip
    output = folder / "out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        before = _lines(output, lambda lines: any(one.get("step", 0) >= 15 for one in lines))
        victim = next(one["pid"] for one in before if one.get("rank") == 1 and "pid" in one)
        at, last = time.monotonic(), max(one.get("step", 0) for one in before)
        os.kill(victim, signal.SIGKILL)
        failed = last + 1

        def again(lines: list[dict[str, Any]]) -> bool:
            done = {one["rank"] for one in lines if one.get("step") == failed and one["at"] > at}
            return len(done) == WORLD

        lines = _lines(output, again)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    after = [one for one in lines if "step" in one and one["at"] > at]
    done = [one["at"] for one in after if one["step"] == failed]
    return max(done) - at, failed - min(one["step"] for one in after)


def _lines(output: Path, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + TORCHRUN_SECONDS
    while time.monotonic() < deadline:
        found = [
            one for text in re.findall(r"\{[^{}]*\}", output.read_text()) for one in _said(text)
        ]
        if enough(found):
            return found
        time.sleep(0.02)
    raise TimeoutError(f"torchrun: {output.read_text()[-1000:]}")


def _said(text: str) -> list[dict[str, Any]]:
    """Other programs write between braces too."""
    try:
        return [json.loads(text)]
    except ValueError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts: dict[str, Callable[[int], list[Figure]]] = {
        "faults": faults, "leaks": leaks, "throughput": throughput, "copies": copies,
        "replicas": replicas, "starts": starts, "torchrun": torchrun,
    }  # fmt: skip
    often = {"faults": 5, "leaks": 20, "throughput": 2000, "copies": 10, "starts": 10}
    often |= {"replicas": 5, "torchrun": 3}
    parser.add_argument("--only", choices=list(parts), nargs="+", default=list(parts))
    parser.add_argument("--rounds", type=int, help=f"of each part; default {often}")
    options = parser.parse_args()
    if options.rounds is not None and not 1 <= options.rounds <= 100_000:
        parser.error("--rounds: choose a number from 1 to 100000")
    figures: list[Figure] = []
    for name in options.only:
        figures += parts[name](options.rounds or often[name])
    notes = ["one machine, gloo over loopback, without Slurm; orders are given at once"]
    return finish("transition", figures, notes, ["torch"])


if __name__ == "__main__":
    sys.exit(main())
