"""One node without Slurm: the installed agent and root sensor, and a unicrond that only listens.

scontrol, munge and unmunge are scripts of a few lines; everything else is what a site installs.
May touch: processes of its own, a temporary folder, a port on loopback.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import nvml
from lab.install import install
from unicrond.agent.facts import Facts, to_json
from unicrond.link.credentials import Opened
from unicrond.link.handshake import Verdict
from unicrond.link.server import LinkServer
from unicrond.model.events import AgentBeat, Event, SignalArrived

NODE = "n1"
GPUS = 8
RUN_ID = 4711
START_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")
SCRIPTS = {
    "scontrol": "case $1 in ping) echo 'Slurmctld(primary) at head is UP';; "
    f"show) echo 'JobId={RUN_ID} JobState=RUNNING Requeue=1 Restarts=0 NodeList={NODE}';; esac",
    "munge": "printf 'MUNGE:%s:\\n' \"$(base64 -w0)\"",
    "unmunge": "text=$(cat); text=${text#MUNGE:}\n"
    "printf 'STATUS: 0\\nENCODE_HOST: 127.0.0.1\\nUID: 0\\n\\n'\n"
    'printf %s "${text%:}" | base64 -d',
}
CONF = """[agent]
unicrond = 127.0.0.1:{port}
unicrond_user = root
nvml_library = {library}
"""


class PlainCredentials:
    """As the scripts have them: readable by all, by root, from this host."""

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        return f"MUNGE:{base64.b64encode(payload).decode()}:"

    def open(self, text: str) -> Opened:
        return Opened(0, base64.b64decode(text[6:-1]), "127.0.0.1")


class Listener:
    """Takes everything and answers at once; with the monotonic time at which it came."""

    def __init__(self) -> None:
        self.signals: list[tuple[float, SignalArrived]] = []
        self.beats: list[float] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._server = LinkServer(
            ("127.0.0.1", 0), PlainCredentials(), lambda _: Verdict("ok"), self._emit, self
        )
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def now(self) -> float:
        return time.time()

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(START_SECONDS)
        self.port = self._server.port

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    def _emit(self, event: Event, acknowledge: Callable[[], None] | None) -> bool:
        if isinstance(event, SignalArrived):
            self.signals.append((time.monotonic(), event))
        elif isinstance(event, AgentBeat):
            self.beats.append(time.monotonic())
        if acknowledge is not None:
            acknowledge()
        return True


def cpu_seconds(pid: int) -> float:
    """Of all its threads, and of children that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def megabytes(pid: int, *names: str) -> float:
    """Of its memory: "Rss", or "Private_Clean" and "Private_Dirty"."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found = (line.split() for line in lines if line.startswith(tuple(f"{n}:" for n in names)))
    return sum(int(words[1]) for words in found) / 1024


class Stand:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listener = Listener()
        self._started: list[subprocess.Popen[bytes]] = []

    def set_up(self) -> None:
        home, programs = self.folder / "unicron", self.folder / "bin"
        install(home)
        programs.mkdir()
        for name, text in SCRIPTS.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        self.listener.start()
        (home / "etc").mkdir()
        conf = CONF.format(port=self.listener.port, library=home / "lib" / nvml.NAME)
        (home / "etc/agent.conf").write_text(conf)
        (self.folder / "gpus").write_text(f"gpus {GPUS}\n")

    def tear_down(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        self.listener.stop()

    def agent(self, program: Sequence[str], ranks: int) -> int:
        """Its pid, once it beats."""
        agent = [sys.executable, str(self.folder / "unicron/agent.pyz"), "run"]
        heard = len(self.listener.beats)
        process = self._start([*agent, "--ranks-per-node", str(ranks), "--", *program], "agent.log")
        self._until(lambda: len(self.listener.beats) > heard, process)
        return process.pid

    def sensor(self, kernel_log: Path) -> int:
        module = [sys.executable, "-m", "unicrond.sensor", "--node", NODE]
        library = {"PYTHONPATH": str(self.folder / "unicron/lib")}
        command = [*module, "--kernel-log", str(kernel_log)]
        return self._start(command, "sensor.log", library).pid

    def end(self, pid: int) -> None:
        process = next(one for one in self._started if one.pid == pid)
        process.terminate()
        process.wait(30)

    def output(self, rank: int) -> Path:
        return self.folder / f"run/g1-rank{rank}.log"

    def _start(
        self, command: Sequence[str], log: str, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {**self._environment(), **(more or {})}
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self._started.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        facts = Facts((NODE,), {NODE: "127.0.0.1"}, {}, 300, 2, 0)
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self.folder),
            "UNICRON_HOME": str(self.folder / "unicron"),
            "UNICRON_FACTS": to_json(facts),
            "UNICRON_OUTPUT": str(self.folder / "slurm.out"),
            "UNICRON_OUTPUT_DIR": str(self.folder / "run"),
            "UNICRON_LAB_NVML": str(self.folder / "gpus"),
            "SLURM_JOB_ID": str(RUN_ID),
            "SLURMD_NODENAME": NODE,
        }

    def _until(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "agent.log").read_text()[-2000:]
                raise RuntimeError(f"the agent does not run: {log}")
            time.sleep(0.05)


def guardian_of(agent: int) -> int:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return next(int(child) for child in children if _speaks_of_agent(int(child)))


def _speaks_of_agent(pid: int) -> bool:
    return b"agent.pyz" in Path(f"/proc/{pid}/cmdline").read_bytes()


@contextmanager
def stand(folder: Path) -> Iterator[Stand]:
    one = Stand(folder)
    one.set_up()
    try:
        yield one
    finally:
        one.tear_down()
