"""What an agent, a root sensor and the start-up hook cost: one JSON object, exit code 1 off a goal.

    scripts/bench agent [--only quiet,loud,flood,hook] [--seconds 20] [--pairs 2000]

quiet    the installed agent with 8 ranks that print nothing, over 8 GPUs of the lab's driver
loud     8 ranks print 50 MB/s together, nothing but progress; the same without an agent beside them
flood    800,000 copies of one Xid in 10 s in a kernel log, and one other fault in the midst
hook     train steps of 0.1 s of a DistributedDataParallel on CPU, the hook on and off by turns
May touch: processes of its own, a temporary folder (1 GB), the report.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import stand
from bench.hooked import CALLS, Hooked
from bench.report import Figure, figure, finish, tell
from bench.stand import Stand
from unicrond.model.events import SignalArrived

RANKS = 8
MEGABYTES_A_SECOND = 50
WARM_UP_SECONDS = 6.0
FLOOD_SECONDS, FLOOD_LINES, FLOOD_PARTS = 10.0, 800_000, 100
XID = "4,{n},{n},-;NVRM: Xid (PCI:0000:10:00): 79, pid=1234, GPU has fallen off the bus.\n"
OTHER = (
    "4,1,1,-;NVRM: Xid (PCI:0000:20:00): 48, pid=1, An uncorrectable double bit error (DBE) has"
    " been detected on GPU in the framebuffer at partition 1, subpartition 0.\n"
)
SLEEP = ["sleep", "600"]
# Writes its share of the rate in blocks of 10 ms, and what became of it into the file named first.
LOUD = """
import json, os, sys, time
report, seconds, rate = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
line = "2026-11-30 18:22:01,123 INFO trainer: iteration %07d | loss 2.3412 | lr 3.0e-4 | %s\\n"
block = "".join(line % (n, "tokens/s 123456 | grad norm 1.23 | 0.98 s") for n in range(10_000))
block = block.encode()[: int(rate / 100)]
started, writes, written = time.monotonic(), [], 0
while (now := time.monotonic()) < started + seconds:
    if written >= (now - started) * rate:
        time.sleep(0.002)
        continue
    begun = time.perf_counter()
    written += os.write(1, block)
    writes.append(time.perf_counter() - begun)
took = time.monotonic() - started
name = report + os.environ["RANK"]
with open(name + ".part", "w") as file:
    json.dump({"rate": written / took, "longest": max(writes), "share": sum(writes) / took}, file)
os.rename(name + ".part", name)
time.sleep(600)
"""


class Load:
    """CPU of some processes from now on, and memory of the first."""

    def __init__(self, pid: int, *others: int) -> None:
        self._pids = pid, *others
        self._began, self._cpu = time.monotonic(), self._now()
        self.most_megabytes = 0.0

    def _now(self) -> float:
        return sum(map(stand.cpu_seconds, self._pids))

    def percent(self) -> float:
        return 100 * (self._now() - self._cpu) / (time.monotonic() - self._began)

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.5)
            now = stand.megabytes(self._pids[0], "Rss")
            self.most_megabytes = max(self.most_megabytes, now)


def quiet(site: Stand, seconds: float) -> Iterator[Figure]:
    pid = site.agent(SLEEP, RANKS)
    time.sleep(WARM_UP_SECONDS)
    guardian = stand.guardian_of(pid)
    load = Load(pid, guardian)
    load.watch(seconds)
    percent, own = load.percent(), stand.megabytes(guardian, "Private_Clean", "Private_Dirty")
    site.end(pid)
    name = "agent with 8 quiet ranks and 8 GPUs"
    yield figure(f"{name}: memory", "MB", [load.most_megabytes], goal=35)
    yield figure(f"{name}: memory of its guardian alone", "MB", [own])
    yield figure(f"{name}: CPU, the guardian's too", "% of a core", [percent], goal=1)


def loud(site: Stand, seconds: float) -> Iterator[Figure]:
    rate = MEGABYTES_A_SECOND * 1e6 / RANKS
    arguments = [str(WARM_UP_SECONDS + seconds), str(rate)]
    alone = _alone(site.folder / "alone", [str(seconds / 2), str(rate)])
    reports = site.folder / "loud-"
    pid = site.agent([sys.executable, "-c", LOUD, str(reports), *arguments], RANKS)
    time.sleep(WARM_UP_SECONDS)
    load = Load(pid, stand.guardian_of(pid))
    load.watch(seconds - 2)
    percent = load.percent()
    beside = _reports(reports)
    site.end(pid)
    total = sum(one["rate"] for one in beside) / 1e6
    shares = statistics.mean(one["share"] for one in beside)
    ratio = shares / statistics.mean(one["share"] for one in alone)
    name = "8 ranks that print 50 MB/s"
    yield figure(f"{name}: passed", "MB/s", [total], goal=MEGABYTES_A_SECOND * 0.99,
                 better="higher")  # fmt: skip
    yield figure(f"{name}: CPU of the agent", "% of a core", [percent], goal=15)
    yield figure(f"{name}: memory of the agent", "MB", [load.most_megabytes])
    longest = [one["longest"] * 1000 for one in beside]
    yield figure(f"{name}: longest write of a rank", "ms", longest)
    yield figure(f"{name}: time of a rank in writes, with an agent / without", "", [ratio])


def _alone(reports: Path, arguments: Sequence[str]) -> list[dict[str, float]]:
    """The same ranks without anybody beside them."""
    reports.mkdir()
    ranks = []
    for rank in range(RANKS):
        with (reports / f"out{rank}").open("wb") as file:
            command = [sys.executable, "-c", LOUD, str(reports / "rank"), *arguments]
            environment = {"RANK": str(rank)}
            ranks.append(subprocess.Popen(command, stdout=file, env=environment))
    try:
        return _reports(reports / "rank")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        for file_ in reports.glob("out*"):
            file_.unlink()


def _reports(prefix: Path) -> list[dict[str, float]]:
    paths = [prefix.with_name(f"{prefix.name}{rank}") for rank in range(RANKS)]
    _until(lambda: all(path.exists() for path in paths), 120)
    return [json.loads(path.read_text()) for path in paths]


def flood(site: Stand) -> Iterator[Figure]:
    log = site.folder / "kmsg"
    log.touch()
    told = site.listener.signals
    pid = site.sensor(log)
    time.sleep(WARM_UP_SECONDS / 2)
    before, load, written_at = len(told), Load(pid), [0.0]
    writer = threading.Thread(target=_pour, args=(log, written_at))
    writer.start()
    load.watch(FLOOD_SECONDS + 2)
    percent = load.percent()
    writer.join()
    _until(lambda: len(told) > before + 1, 20)
    arrived = [(at, event) for at, event in told[before:] if _says(event, "20:00")]
    same = [event for _, event in told[before:] if _says(event, "10:00")]
    site.end(pid)
    name = "800,000 copies of one Xid in 10 s"
    yield figure(f"{name}: signals", "", [len(same)], goal=1)
    yield figure(f"{name}: memory of the sensor", "MB", [load.most_megabytes], goal=64)
    yield figure(f"{name}: CPU of the sensor", "% of a core", [percent])
    yield figure(f"{name}: another fault meanwhile, known to unicrond", "s",
                 [at - written_at[0] for at, _ in arrived], goal=1)  # fmt: skip


def _pour(log: Path, written_at: list[float]) -> None:
    """The flood; in its midst another fault."""
    began = time.monotonic()
    part = FLOOD_LINES // FLOOD_PARTS
    with log.open("a") as file:
        for number in range(FLOOD_PARTS):
            file.write("".join(XID.format(n=number * part + n) for n in range(part)))
            if number == FLOOD_PARTS // 2:
                file.write(OTHER)
            file.flush()
            if number == FLOOD_PARTS // 2:
                written_at[0] = time.monotonic()
            due = began + (number + 1) * FLOOD_SECONDS / FLOOD_PARTS
            time.sleep(max(0.0, due - time.monotonic()))
    tell(f"the flood took {time.monotonic() - began:.1f} s")


def _says(event: SignalArrived, place: str) -> bool:
    return place in event.signal.text


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("what was measured did not end")
        time.sleep(0.05)


def hook(folder: Path, pairs: int) -> Iterator[Figure]:
    measured = Hooked(folder).measure(pairs)
    mean = statistics.mean(measured.costs)  # most calls do little, some ask torch
    yield figure("optimizer hook: its CPU, mean", "us an iteration", [mean], goal=100)
    slower = [100 * (on / off - 1) for on, off in measured.pairs]
    yield figure(f"train steps of 0.1 s with the hook, slower by (median of {pairs} pairs)", "%",
                 slower, goal=0.1)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench agent")
    parser.add_argument("--only", default="quiet,loud,flood,hook", metavar="PART,...")
    parser.add_argument("--seconds", type=float, default=20.0, help="of quiet and of loud")
    parser.add_argument("--pairs", type=int, default=2000, help="of hook: a fifth of a second each")
    options = parser.parse_args(arguments)
    if options.seconds < 4 or options.pairs < 1:
        parser.error("--seconds: at least 4; --pairs: at least 1")
    with tempfile.TemporaryDirectory(prefix="unicron-agent-") as name:
        folder = Path(name)
        parts: dict[str, Callable[[Stand], Iterator[Figure]]] = {
            "quiet": lambda site: quiet(site, options.seconds),
            "loud": lambda site: loud(site, options.seconds),
            "flood": flood,
            "hook": lambda _: hook(folder, options.pairs),
        }
        wanted = options.only.split(",")
        if unknown := set(wanted) - set(parts):
            parser.error(f"--only: no part {sorted(unknown)[0]!r}; there are {', '.join(parts)}")
        with stand.stand(folder) as site:
            found = [one for part in wanted for one in parts[part](site)]
    notes = [f"the hook is also called {CALLS} times at steps of 0.1 s, with cold caches"]
    return finish("agent", found, notes, packages=["torch"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
