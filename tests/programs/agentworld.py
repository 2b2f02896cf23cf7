"""A job of a few nodes on one machine: real agents and ranks, and stand-ins for Slurm's commands;
and a rank that can go over into a new generation.

Slurm itself is in the end-to-end tests; here scontrol and srun are scripts of a few lines.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from unicrond.agent import processes
from unicrond.agent.environment import marker
from unicrond.agent.facts import Facts, to_json
from unicrond.link.handshake import Identity
from unicrond.link.peers import PeerMesh

SCONTROL = """#!/bin/sh
case $1 in
ping) test ! -e {folder}/slurmctld-down && echo 'Slurmctld(primary) at head is UP' ;;
show)
    if [ $2 = hostnames ]; then
        for node in {nodes}; do test -e {folder}/taken-$node || echo $node; done; exit
    fi
    state=RUNNING; test -e {folder}/job-over && state=COMPLETED
    echo "JobId={run_id} JobState=$state Requeue=1 Restarts=0 ReqNodeList=(null) NodeList=n[1-9]" ;;
requeue) echo "$2" >>{folder}/requeued ;;
*) exit 1 ;;
esac
"""
SRUN = """#!/bin/sh
while [ "$1" != {python} ]; do
    [ "$1" = -w ] && SLURMD_NODENAME=$2
    shift
done
export SLURMD_NODENAME
exec "$@" >>{folder}/agent-$SLURMD_NODENAME.log 2>&1
"""
CONF = """[agent]
lease_seconds = {lease}
unattended_timeout_seconds = {unattended}
stop_grace_seconds = 0.3
"""
SECRET = b"s" * 32
RANK = """
import json, os, signal, socket
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
out = socket.socket(socket.AF_UNIX)
out.connect(os.environ["UNICRON_SOCKET"])
def greet():
    body = {"v": 1, "type": "hello", "member": os.environ["UNICRON_MEMBER"], "regroups": True}
    out.sendall(json.dumps(body).encode() + b"\\n")
greet()
waits = os.environ.pop("UNICRON_WAITS", "")
names = "RANK", "WORLD_SIZE", "UNICRON_GENERATION", "MASTER_ADDR", "MASTER_PORT"
for line in out.makefile():
    body = json.loads(line)
    if waits and (body["type"] == "welcome" or body["verb"] != "regroup"):
        print("waits", flush=True)
    elif body["type"] == "welcome":
        place = [body["rank"], body["world_size"], body["generation"]]
        assert [str(part) for part in place] == [os.environ[name] for name in names[:3]]
        print("in", *(os.environ[name] for name in names), flush=True)
    elif body["verb"] == "regroup":
        waits = ""
        os.environ.update(body["environment"])
        greet()
    else:
        print("told to", body["verb"], flush=True)
"""
PROGRAM = [sys.executable, "-I", "-S", "-c", RANK]  # it says where it is; SIGUSR1: all done
_RUNS = itertools.count(os.getpid() * 100 % 100_000_000)


class Job:
    """Started with `with`; at its end nothing of it is left, whatever happened."""

    def __init__(
        self, folder: Path, nodes: int, program: Sequence[str], options: Sequence[str] = (),
        unattended: float = 0.5, lease: float = 3.0,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.lease = lease
        self.run_id = next(_RUNS)
        self.nodes = tuple(f"n{index + 1}" for index in range(nodes))
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._command = [
            sys.executable, "-m", "unicrond.agent", "run", "--ranks-per-node", "1", *options, "--",
            *program,
        ]  # fmt: skip
        self._write(unattended, lease)
        self._environment = self._variables()

    def _write(self, unattended: float, lease: float) -> None:
        names = {"folder": self.folder, "run_id": self.run_id, "python": sys.executable,
                 "nodes": " ".join(self.nodes)}  # fmt: skip
        for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
            script = self.folder / "bin" / name
            script.parent.mkdir(exist_ok=True)
            script.write_text(text.format(**names))
            script.chmod(0o755)
        (self.folder / "etc").mkdir()
        (self.folder / "etc/agent.conf").write_text(CONF.format(unattended=unattended, lease=lease))

    def _variables(self) -> dict[str, str]:
        facts = Facts(self.nodes, dict.fromkeys(self.nodes, "127.0.0.1"), {}, 300, 2, 0)
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TMPDIR": str(self.folder),
            "UNICRON_HOME": str(self.folder),
            "UNICRON_FACTS": to_json(facts),
            "UNICRON_OUTPUT": str(self.folder / "slurm.out"),
            "UNICRON_OUTPUT_DIR": str(self.folder),
            "UNICRON_SECRET": base64.b64encode(SECRET).decode(),
            "UNICRON_BATCH_HOST": self.nodes[0],
            "SLURM_JOB_ID": str(self.run_id),
        }

    def __enter__(self) -> Job:
        for node in self.nodes:
            self.start(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for agent in self.agents.values():
            agent.kill()
            agent.wait()
        self.kill_all()
        if error is not None:
            print("\n".join(f"== {n}\n{self.log(n)}" for n in self.nodes))

    def kill_all(self) -> None:
        """Agents that others started are found by their command line."""
        for entry in Path("/proc").iterdir():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"UNICRON_HOME={self.folder}\0".encode() in environment:
                processes.kill(int(entry.name))

    def start(self, node: str) -> None:
        with (self.folder / f"agent-{node}.log").open("ab") as log:
            self.agents[node] = subprocess.Popen(
                self._command,
                env={**self._environment, "SLURMD_NODENAME": node},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    # ------------------------------------------------------------ looking

    def log(self, node: str) -> str:
        return self.file(f"agent-{node}.log")

    def output(self, generation: int, rank: int) -> str:
        file = self.folder / f"g{generation}-rank{rank}.log"
        return file.read_text() if file.exists() else ""

    def file(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def ranks(self, node: str) -> list[int]:
        """Pids of all that a node's ranks consist of."""
        return [stray.pid for stray in processes.strays(marker(self.run_id, node), {})]

    def exit_codes(self, seconds: float = 60.0) -> list[int]:
        deadline = time.monotonic() + seconds
        return [agent.wait(deadline - time.monotonic()) for agent in self.agents.values()]

    # ------------------------------------------------------------ harming

    def kill_rank(self, node: str) -> None:
        for pid in self.ranks(node):
            processes.kill(pid)

    def signal_agent(self, node: str, number: signal.Signals) -> None:
        self.agents[node].send_signal(number)


Order = tuple[str, str, dict[str, object]]  # node, kind, arguments


class Orders(Job):
    """A job whose last node has no agent: the test stands there, and gives orders as a leader does.
    The others wait for that node, and so start nothing by themselves."""

    def __enter__(self) -> Orders:
        for node in self.nodes[:-1]:
            self.start(node)
        return self

    def give(self, *orders: Order) -> list[dict[str, object]]:
        """One after the other; what came of them."""
        return asyncio.run(self._give(orders))

    async def _give(self, orders: Sequence[Order]) -> list[dict[str, object]]:
        heard: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        me = Identity(self.run_id, self.nodes[-1], "test")
        mesh = PeerMesh(
            me, self.nodes, lambda _: "127.0.0.1", SECRET, lambda _, body: heard.put_nowait(body)
        )
        task = asyncio.create_task(mesh.run())
        outcomes = []
        for number, (node, kind, args) in enumerate(orders):
            body = {"type": "order", "key": f"{time.monotonic()}-{number}", "kind": kind}
            outcomes.append(await _answer(mesh, node, {**body, "args": args}, heard))
        task.cancel()
        await asyncio.wait([task])
        return outcomes


async def _answer(
    mesh: PeerMesh, node: str, order: dict[str, object], heard: asyncio.Queue[dict[str, object]]
) -> dict[str, object]:
    """Given again until it is answered: links change while agents come."""
    for _ in range(300):
        mesh.send(node, order)
        with contextlib.suppress(asyncio.TimeoutError):
            while True:
                body = await asyncio.wait_for(heard.get(), 0.1)
                if body["type"] == "outcome" and body["key"] == order["key"]:
                    return body
    raise AssertionError(f"{node} did not answer")


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)  # what is looked at is often all of /proc
