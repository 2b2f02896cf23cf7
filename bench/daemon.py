"""What one unicrond bears: 10,000 agents that beat each second, 100,000 ranks behind them.

    scripts/bench daemon [--agents 10000] [--nodes-per-run 10] [--ranks-per-node 10] [--seconds 30]
                         [--faults 30] [--incidents 1000000] [--profile FILE]

The daemon itself, with its API, planner, watcher and an SQLite store; agents come from other
processes over loopback with frames, handshakes and pace of real ones, proved by a key of the
bench's own instead of MUNGE's, and Slurm is pretended. CPU and memory are those of the process that
holds link and loop. Last, an unicrond of its own starts on a store full of incidents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

from bench.daemon_cluster import Cluster
from bench.daemon_past import fill
from bench.report import Figure, figure, finish, tell
from db.queries import Queries

SHARES = 2  # processes of agents
BETWEEN_SECONDS = 1.0
READY_SECONDS = 120.0
SETTLE_SECONDS = 5.0
RECONNECTING = 1000
LINE_BYTES = 1 << 20
HERTZ = os.sysconf("SC_CLK_TCK")


class Daemon:
    """A unicrond that is up."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, ready: float) -> None:
        self.pid, self.folder, self.ready_seconds = process.pid, folder, ready

    def cpu_seconds(self) -> float:
        """Of this process alone: its children are not waited for."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ

    def megabytes(self, which: str) -> float:
        """`which`: VmRSS, or VmHWM for the most ever."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith(f"{which}:")) / 1024


class Agents:
    """The processes of agents, asked all at once or one of them."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def one(self, number: int, do: str, **command: object) -> dict[str, float]:
        process = self._processes[number % len(self._processes)]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"do": do, **command}).encode() + b"\n")
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError("a process of agents has ended")
        return dict(json.loads(line))

    async def all(self, do: str, **command: object) -> list[dict[str, float]]:
        asked = (self.one(i, do, **command) for i in range(len(self._processes)))
        return list(await asyncio.gather(*asked))

    async def last(self, do: str, **command: object) -> float:
        """When the last of them was done, Unix seconds."""
        return max(answer["at"] for answer in await self.all(do, **command))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def configured(folder: Path, port: int) -> Path:
    config = folder / "unicron.toml"
    config.write_text(
        f'database_url = "sqlite:///{folder}/unicron.db"\nagent_listen = "127.0.0.1:{port}"\n'
        f'api_listen = "127.0.0.1:{free_port()}"\napi_socket = "{folder}/api.sock"\n'
        f'control_socket = "{folder}/control.sock"\nmode = "active"\napi_munge = false\n'
    )
    return config


@asynccontextmanager
async def daemon(
    folder: Path, port: int, key: str, shape: list[str], profile: str = ""
) -> AsyncIterator[Daemon]:
    running = asyncio.get_running_loop()
    config, began = configured(folder, port), time.monotonic()
    words = ["--config", str(config), "--key", key, *(["--profile", profile] if profile else [])]
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        (folder / "log").open("wb") as log,
    ):
        systemd.bind(str(folder / "notify"))
        systemd.setblocking(False)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.daemon_host", *words, "--", *shape,
            stderr=log, env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify")},
        )  # fmt: skip
        try:
            async with asyncio.timeout(READY_SECONDS):
                await running.sock_recv(systemd, 4096)
            ready = time.monotonic() - began
            running.add_reader(systemd, systemd.recv, 4096)  # its watchdog
            yield Daemon(process, folder, ready)
        finally:
            running.remove_reader(systemd)
            _terminate(process)
            await process.wait()


async def slurm_is_known(up: Daemon) -> None:
    """Agents of jobs that Slurm has not told of yet are sent away."""
    with closing(Queries(f"sqlite:///{up.folder}/unicron.db")) as store:
        async with asyncio.timeout(READY_SECONDS):
            while not store.nodes(limit=1).items:
                await asyncio.sleep(0.2)


@asynccontextmanager
async def agents(port: int, key: str, shape: list[str]) -> AsyncIterator[Agents]:
    processes = []
    async with AsyncExitStack() as stack:
        for share in range(SHARES):
            words = ["--port", str(port), "--key", key, "--share", f"{share}/{SHARES}"]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.daemon_agents", *words, "--", *shape,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES,
            )  # fmt: skip
            stack.push_async_callback(process.wait)
            stack.callback(_terminate, process)
            processes.append(process)
        yield Agents(processes)


def _terminate(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()


async def crowd(asked: argparse.Namespace, folder: Path) -> list[Figure]:
    cluster = Cluster(asked.agents, asked.nodes_per_run, asked.ranks_per_node)
    shape = [str(asked.agents), str(asked.nodes_per_run), str(asked.ranks_per_node)]
    port, key = free_port(), secrets.token_hex(32)
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(daemon(folder, port, key, shape, asked.profile))
        await slurm_is_known(up)
        many = await stack.enter_async_context(agents(port, key, shape))
        began = time.time()
        connected = await many.last("connect") - began
        tell(f"{asked.agents} agents are connected after {connected:.1f} s")
        await asyncio.sleep(SETTLE_SECONDS)
        found = await beating(up, many, asked.seconds)
        found += [await faults(cluster, many, asked.faults)]
        found += await burst(up, many, cluster)
        found += await reconnecting(up, many)
        found += [figure("memory, the most", "MB", [up.megabytes("VmHWM")], goal=600)]
    return [*found, figure("all agents connect to a unicrond that starts", "s", [connected])]


async def beating(up: Daemon, many: Agents, seconds: float) -> list[Figure]:
    shares, rates = [], []
    await many.all("count")
    for _ in range(max(1, round(seconds / 10))):
        before, began = up.cpu_seconds(), time.monotonic()
        answered = sum(answer["answered"] for answer in await many.all("count"))
        await asyncio.sleep(min(10.0, seconds))
        counted, took = await many.all("count"), time.monotonic() - began
        shares.append(100 * (up.cpu_seconds() - before) / took)
        rates.append((sum(answer["answered"] for answer in counted) - answered) / took)
        late = max(answer["late_seconds"] for answer in counted)
        tell(f"{rates[-1]:.0f} beats/s answered, {shares[-1]:.1f} % of a core; agents late by "
             f"{late:.2f} s, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    return [
        figure("CPU of link and loop", "% of a core", shares, goal=60),
        figure("beats answered", "1/s", rates, better="higher"),
        figure("memory while they beat", "MB", [up.megabytes("VmRSS")], goal=600),
    ]


async def faults(cluster: Cluster, many: Agents, count: int) -> Figure:
    """Of one rank at a time, each of another run."""
    took = []
    for number in range(count):
        agent = number * (cluster.runs // count) * cluster.nodes_per_run + number % SHARES
        answer = await many.one(agent, "fault", agent=agent)
        took.append(answer["seconds"])
        await asyncio.sleep(0.137)  # keeps step with no tick
    await asyncio.sleep(SETTLE_SECONDS)
    title = "a fault among them: from its agent's word to the order that the agent gets"
    return figure(title, "s", took, goal=0.05)


async def burst(up: Daemon, many: Agents, cluster: Cluster) -> list[Figure]:
    at, before = time.time() + BETWEEN_SECONDS, up.cpu_seconds()
    stored = await many.last("burst", at=at) - at
    cpu = up.cpu_seconds() - before
    tell(f"a fault on each of {cluster.agents} nodes: stored after {stored:.2f} s")
    healed = await many.last("healed", above=1) - at
    await asyncio.sleep(SETTLE_SECONDS)
    title = f"{cluster.agents} signals at once, of {cluster.runs} runs"
    return [
        figure(f"{title}: decided and stored", "s", [stored], goal=3.0),
        figure(f"{title}: CPU until then", "s", [cpu]),
        figure(f"{title}: all train again", "s", [healed]),
    ]


async def reconnecting(up: Daemon, many: Agents) -> list[Figure]:
    with closing(Queries(f"sqlite:///{up.folder}/unicron.db")) as store:
        number = store.incidents(limit=1).items[0].incident_id
        at, before = time.time() + BETWEEN_SECONDS, up.cpu_seconds()
        back = await many.last("reconnect", at=at, count=RECONNECTING // SHARES) - at
        cpu = up.cpu_seconds() - before
        await asyncio.sleep(BETWEEN_SECONDS)
        opened = store.incidents(limit=1).items[0].incident_id - number
    title = f"{RECONNECTING} agents reconnect at once"
    return [
        figure(title, "s", [back], goal=5.0),
        figure(f"{title}: CPU", "s", [cpu]),
        figure(f"{title}: incidents that this opened", "count", [opened]),
    ]


async def past(incidents: int, folder: Path) -> list[Figure]:
    fill(f"sqlite:///{folder}/unicron.db", incidents)
    tell(f"{incidents} incidents are stored; starting unicrond")
    async with daemon(folder, free_port(), secrets.token_hex(32), ["10", "10", "8"]) as up:
        cpu, memory = up.cpu_seconds(), up.megabytes("VmRSS")
        ready = up.ready_seconds
    title = f"start with {incidents} stored incidents"
    return [
        figure(f"{title}: ready", "s", [ready], goal=5.0),
        figure(f"{title}: CPU", "s", [cpu]),
        figure(f"{title}: memory", "MB", [memory]),
    ]


async def measure(asked: argparse.Namespace) -> list[Figure]:
    found = []
    if asked.agents:
        with tempfile.TemporaryDirectory(prefix="bench-daemon-") as folder:
            found += await crowd(asked, Path(folder))
    if asked.incidents:
        with tempfile.TemporaryDirectory(prefix="bench-daemon-") as folder:
            found += await past(asked.incidents, Path(folder))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench daemon", description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000, help="0: none")
    parser.add_argument("--nodes-per-run", type=int, default=10)
    parser.add_argument("--ranks-per-node", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="of beating")
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--incidents", type=int, default=1_000_000, help="stored; 0: none")
    parser.add_argument("--profile", default="", help="file for cProfile; CPU means nothing then")
    asked = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with it
    before = os.getloadavg()
    figures = asyncio.run(measure(asked))
    notes = [
        f"{asked.agents} agents, runs of {asked.nodes_per_run}, {asked.ranks_per_node} ranks each",
        f"load average before {before[0]:.1f}, after {os.getloadavg()[0]:.1f}; agents, API, "
        "planner and watcher run on the same cores",
    ]
    return finish("daemon", figures, notes, ("sqlalchemy",))


if __name__ == "__main__":
    sys.exit(main())
