"""How long after a fault unicrond knows of it, on a real Slurm cluster; torchrun beside it.

    scripts/bench detection [--repeats 20] [--cuts 6] [--lab detection]

Two ranks of an unmodified DDP script on gloo, 0.1 s a train step, on a lab of three nodes; and the
same under torchrun on this machine, in turns. All processes share one clock: a fault's moment is
taken just before it, or by the failing process itself. unicrond knows when it has opened an
incident; torchrun when it has logged that a rank failed. Needs root; about fifteen minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.report import ROOT, Figure, figure, tell
from bench.rig import HEALED_SECONDS, Bench, count, raised, report
from bench.trainings import START_SECONDS, USER, MeasurementError, StepLog, Torchrun
from lab import Lab

RANKS, NODES, GPUS = 2, 3, 8
STEP_SECONDS = 0.1
BETWEEN_STEPS = 30  # enough for the pace to be known
KNOWN_SECONDS = 30.0
HANG_OF_TORCHRUN_SECONDS = 20.0
HANG_GOAL = 3 * STEP_SECONDS + 0.5
SCRIPT = ROOT / "bench/breakable.py"
PROGRAM = ["python", SCRIPT.name]
FAILED = re.compile(r"\bE(\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d+) .*failed \(exitcode")


def rank_process(folder: Path, rank: int) -> int:
    """The main process of a rank that works in this folder, whatever namespaces it is in."""
    wanted = f"RANK={rank}".encode()
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            fits = any(word.endswith(b"breakable.py") for word in words)
            if fits and wanted in (process / "environ").read_bytes().split(b"\0"):
                cwd = (process / "cwd").resolve()
                if cwd.name == folder.name:
                    return int(process.name)
        except (OSError, ValueError):
            continue
    raise MeasurementError(f"no process of rank {rank} works in {folder}")


class Broken:
    """A training in a folder; `struck` breaks it and tells when."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = StepLog(folder / "steps.jsonl")

    def generation(self) -> int:
        return self.log.more(BETWEEN_STEPS, HEALED_SECONDS).generation

    def struck(self, number: signal.Signals, rank: int) -> float:
        marks = self._marks()
        at = time.time()
        os.kill(rank_process(self.folder, rank), number)
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            return at
        while len(self._marks()) == len(marks):
            if time.time() > at + KNOWN_SECONDS:
                raise MeasurementError("a rank did not break as it was told to")
            time.sleep(0.005)
        return float(self._marks()[-1])

    def _marks(self) -> list[str]:
        file = self.folder / "faults"
        return file.read_text().split() if file.exists() else []


class UnderUnicron(Broken):
    def __init__(self, lab: Lab, name: str, ranks: int) -> None:
        self._lab, inside = lab, f"/home/{USER}/{name}"
        lab.exec(["mkdir", "-p", inside], user=USER)
        super().__init__(lab.paths.inside(inside))
        shutil.copy(SCRIPT, self.folder)
        asked = [f"-N{ranks}", f"--gpus-per-node={GPUS}", "--output=job.log"]
        program = ["/opt/unicron/bin/unicron-run", "--ranks-per-node=1", "--", *PROGRAM]
        sbatch = ["sbatch", "--parsable", *asked, *program]
        self.job = int(lab.exec(sbatch, user=USER, folder=inside).stdout)
        self.log.wait(lambda _: True, START_SECONDS)

    def end(self) -> None:
        self._lab.exec(["scancel", str(self.job)], user=USER)


class UnderTorchrun(Broken):
    def __init__(self, folder: Path, ranks: int) -> None:
        super().__init__(folder)
        with (folder / "stderr").open("w") as errors:
            torchrun = Torchrun(folder, ranks, [str(SCRIPT)], errors, errors)
        self.end = torchrun.end
        self.log.wait(lambda _: True, START_SECONDS)

    def knows_after(self, at: float, within_seconds: float) -> float | None:
        deadline = at + within_seconds
        while time.time() < deadline:
            times = [_moment(found) for found in FAILED.finditer(self._errors())]
            if known := next((moment for moment in times if moment > at), None):
                return known - at
            time.sleep(0.02)
        return None

    def _errors(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")


def _moment(found: re.Match[str]) -> float:
    day = f"{datetime.now(UTC).year} {found[1]} {found[2]} {found[3]}"
    return datetime.strptime(day, "%Y %m %d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()


# ------------------------------------------------------------ faults of a rank


@dataclass(frozen=True)
class Fault:
    title: str
    number: signal.Signals
    goal: float
    torchrun: bool = True  # which sees it at all


RANK_FAULTS = (
    Fault("exception", signal.SIGUSR1, 0.05),
    Fault("SIGKILL", signal.SIGKILL, 0.05),
    Fault("segfault", signal.SIGSEGV, 0.1),
    Fault("halted rank", signal.SIGSTOP, HANG_GOAL, torchrun=False),
)


def of_ranks(bench: Bench, ours: UnderUnicron, theirs: UnderTorchrun, repeats: int) -> list[Figure]:
    figures = []
    for fault in RANK_FAULTS:
        seen = [_ours(bench, ours, fault, number % RANKS) for number in range(repeats)]
        figures.append(known(fault.title, seen, fault.goal))
        beside = [_theirs(bench, theirs, fault, n % RANKS) for n in range(repeats)] if (
            fault.torchrun
        ) else []  # fmt: skip
        figures += [figure(f"{fault.title}: torchrun knows", "s", beside)] if beside else []
        tell(f"{fault.title}: {figures[-1 - bool(beside)].value:g} s")
    return figures


def known(title: str, seconds: list[float], goal: float) -> Figure:
    return figure(f"{title}: unicrond knows", "s", seconds, goal=goal, worst=True)


def _ours(bench: Bench, training: UnderUnicron, fault: Fault, rank: int) -> float:
    generation = training.generation()
    bench.pause()
    at = training.struck(fault.number, rank)
    incident = bench.incident_after(training.job, at)
    training.log.first_after(at, generation, HEALED_SECONDS)
    return incident.opened_at - at


def _theirs(bench: Bench, training: UnderTorchrun, fault: Fault, rank: int) -> float:
    generation = training.generation()
    bench.pause()
    at = training.struck(fault.number, rank)
    seconds = training.knows_after(at, KNOWN_SECONDS)
    if seconds is None:
        raise MeasurementError(f"torchrun says nothing of {fault.title}")
    training.log.first_after(at, generation, HEALED_SECONDS)
    return seconds


def suspicions(bench: Bench, training: UnderUnicron, repeats: int) -> Figure:
    """Of a rank that blocks in its own code: it may be saving or evaluating, so nothing is done."""
    seen = []
    for number in range(repeats):
        generation = training.generation()
        bench.pause()
        at = training.struck(signal.SIGUSR2, number % RANKS)
        seen.append(_suspected(bench, training.job, at) - at)
        training.struck(signal.SIGKILL, number % RANKS)
        training.log.first_after(at, generation, HEALED_SECONDS)
    tell(f"blocked rank: {max(seen):g} s")
    return figure("blocked rank: suspected by unicrond", "s", seen, goal=HANG_GOAL, worst=True)


def _suspected(bench: Bench, run_id: int, at: float) -> float:
    deadline = at + KNOWN_SECONDS
    while time.time() < deadline:
        lines = [line.entry for line in bench.store.story_of_run(run_id).items]
        times = [e.at for e in lines if e.at > at and e.text.endswith("a suspicion")]
        if times:
            return times[0]
        time.sleep(0.05)
    raise MeasurementError("a rank that blocks was never suspected")


def hang_of_torchrun(training: UnderTorchrun) -> Figure:
    training.generation()
    at = training.struck(signal.SIGSTOP, 1)
    known = training.knows_after(at, HANG_OF_TORCHRUN_SECONDS)
    name = f"halted rank: noticed by torchrun within {HANG_OF_TORCHRUN_SECONDS:g} s"
    return figure(name, "count", [int(known is not None)])


# ------------------------------------------------------------ faults that the lab makes


def of_hardware(bench: Bench, training: UnderUnicron, repeats: int) -> list[Figure]:
    """In mode observe, where an incident is closed at once and training goes on."""
    bench.lab.exec(["unicronctl", "mode", "observe", "--run", str(training.job)], user="root")
    figures = []
    for title, fault in (("Xid 79", "xid"), ("ECC error", "ecc")):
        seen = [_struck(bench, training, fault, number) for number in range(repeats)]
        figures.append(known(title, seen, 1.0))
        tell(f"{title}: {figures[-1].value:g} s")
    bench.lab.exec(["unicronctl", "mode", "active", "--run", str(training.job)], user="root")
    return figures


def _struck(bench: Bench, training: UnderUnicron, fault: str, number: int) -> float:
    """Each time another GPU: what one has just told is told again only after a minute."""
    node, gpu = f"n{number % RANKS + 1}", number // RANKS % GPUS
    bench.pause()
    at = bench.lab.fault(fault, node=node, gpu=gpu).wall_seconds
    seconds = bench.incident_after(training.job, at).opened_at - at
    bench.lab.fault("mend-hardware", node=node)
    time.sleep(2.0)  # sensors take what they find then for granted
    return seconds


def out_of_memory(bench: Bench, training: UnderUnicron, repeats: int) -> Figure:
    seen = []
    for _ in range(repeats):
        generation = training.generation()
        bench.pause()
        at = bench.lab.fault("oom", node="n2", job=str(training.job)).wall_seconds
        seen.append(bench.incident_after(training.job, at).opened_at - at)
        training.log.first_after(at, generation, HEALED_SECONDS)
    return known("OOM kill", seen, 0.1)


def cut_links(bench: Bench, repeats: int) -> Figure:
    seen = []
    for number in range(repeats):
        training = UnderUnicron(bench.lab, f"cut-{number}", RANKS)
        training.generation()
        bench.pause()
        at = bench.lab.fault("cut-link", node="n2").wall_seconds
        deadline = at + KNOWN_SECONDS
        opened: list[float] = []
        while not opened and time.time() < deadline:
            incidents = bench.store.incidents(run_id=training.job).items
            opened = [i.opened_at for i in incidents if i.opened_at >= at]
            time.sleep(0.05)
        if not opened:
            raise MeasurementError("nobody noticed a cut link")
        seen.append(opened[0] - at)
        bench.lab.fault("restore-link", node="n2")
        training.end()
        bench.all_idle()
    return known("cut link", seen, 4.0)


# ------------------------------------------------------------ all


@contextmanager
def trainings(bench: Bench) -> Iterator[tuple[UnderUnicron, UnderTorchrun]]:
    with tempfile.TemporaryDirectory() as folder:
        ours = UnderUnicron(bench.lab, "ranks", RANKS)
        theirs = UnderTorchrun(Path(folder), RANKS)
        try:
            yield ours, theirs
        finally:
            theirs.end()
            ours.end()


def measure(options: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    with raised(options.lab, NODES, GPUS) as bench:
        with trainings(bench) as (ours, theirs):
            figures = of_ranks(bench, ours, theirs, options.repeats)
            figures.append(suspicions(bench, ours, options.repeats))
            figures.append(out_of_memory(bench, ours, options.repeats))
            figures += of_hardware(bench, ours, options.repeats)
            figures.append(hang_of_torchrun(theirs))
        bench.all_idle()
        figures.append(cut_links(bench, options.cuts))
    return figures, [
        f"{RANKS} ranks, one a node; a train step takes {STEP_SECONDS} s; gloo; one machine",
        f"1-minute load before the faults: {min(bench.loads):.1f} to {max(bench.loads):.1f}",
        "torchrun knows: its log line that a rank failed; --monitor-interval=0.1",
        "halted: SIGSTOP; blocked: in its own code, which is acted on only once it is overdue",
        "Xid, ECC and OOM: the lab's stub of NVML, kernel log and cgroup; torchrun has no sensors",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench detection", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--repeats", type=count, default=20, help="of each fault but cut links")
    parser.add_argument("--cuts", type=count, default=6, help="pulled cables")
    return report("detection", parser, measure)


if __name__ == "__main__":
    raise SystemExit(main())
