"""How long the API takes to answer while the loop writes: 10,000 nodes and 1,000 runs by default.

    scripts/bench api [--nodes 10000] [--runs 1000] [--seconds 15] [--rate 50]

The API's own process over loopback, on an SQLite store that another process writes into as the loop
does: each second one save with new iterations of a tenth of the runs, a snapshot with changed
nodes, an incident and lines of the story. Pages of 100 are asked for at a fixed rate, whatever the
answers take; what is asked goes around the lists, pages deep within them among it.
"""

from __future__ import annotations

import argparse
import asyncio
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from bench.report import figure, finish, tell
from db.store import SqlStore, open_store
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.model.incident import Incident, IncidentState, Scope, Severity
from unicrond.model.run import AgentView, Assignment, Phase, Run, RunState, Slot
from unicrond.ports import Changes, JournalEntry

GPUS = 8
CONNECTIONS = 4
GOAL_SECONDS = 0.020
READY_SECONDS = 60.0
WARM_SECONDS = 3.0


class Cluster:
    """What the loop would write; a tenth of it changes each second."""

    def __init__(self, store: SqlStore, nodes: int, runs: int) -> None:
        self._store, self.turn = store, 0
        self.names = [f"n{number:05d}" for number in range(nodes)]
        self._nodes = {n: Node(n, NodeState.UP, "MIXED", GPUS, ("gpu",)) for n in self.names}
        share = max(1, nodes // runs)
        self._runs = [_run(i, self.names[i * share : (i + 1) * share]) for i in range(runs)]
        self._jobs = {run.run_id: _job(run) for run in self._runs}
        store.save(Changes(runs=tuple(self._runs), at=time.time(), snapshot=self._snapshot()))

    def _snapshot(self) -> Snapshot:
        return Snapshot(time.time(), dict(self._nodes), self._jobs)

    def go_on(self) -> None:
        self.turn += 1
        moved = []
        for index in range(self.turn % 10, len(self._runs), 10):
            run = self._runs[index]
            self._runs[index] = replace(run, iteration=run.iteration + 10)
            moved.append(self._runs[index])
        for name in self.names[self.turn % 100 :: 100]:
            node = self._nodes[name]
            self._nodes[name] = replace(node, raw_state=f"MIXED+{self.turn}")
        run = self._runs[self.turn % len(self._runs)]
        now = time.time()
        lines = tuple(
            JournalEntry(now, "note", f"turn {self.turn}, {n}", run.run_id) for n in range(5)
        )
        incident = _incident(self.turn, run, now)
        self._store.save(
            Changes(
                runs=tuple(moved), incidents=(incident,), journal=lines, at=now,
                snapshot=self._snapshot(),
            )
        )  # fmt: skip


def _run(index: int, nodes: list[str]) -> Run:
    ranks = [(node, local) for node in nodes for local in range(GPUS)]
    slots = tuple(
        Slot(rank, f"m-{index}-{rank}", node, local) for rank, (node, local) in enumerate(ranks)
    )
    now = time.time()
    return Run(
        run_id=100_000 + index, name=f"run-{index}", user=f"user{index % 50}",
        uid=2000 + index % 50, weight=1.0, min_nodes=1, max_nodes=len(nodes), ranks_per_node=GPUS,
        nodes=tuple(nodes), batch_host=nodes[0], restarts=0, state=RunState.RUNNING, generation=1,
        assignment=Assignment(1, "o", slots), iteration=1000,
        agents={n: AgentView(n, f"a-{n}", True, now, Phase.RUNNING, 1) for n in nodes},
    )  # fmt: skip


def _job(run: Run) -> Allocation:
    return Allocation(
        run.run_id, run.name, run.user, run.uid, f"account{run.uid % 7}", "gpu", JobState.RUNNING,
        run.nodes, run.batch_host, GPUS * len(run.nodes), 1.0, 2.0,
    )  # fmt: skip


def _incident(number: int, run: Run, at: float) -> Incident:
    return Incident(
        number, at, "exited abnormally", Severity.SEV2, Scope.RANK, run.run_id, 1, run.nodes[0], 0,
        state=IncidentState.RESOLVED, summary="rank 0 ended with 1", closed_at=at,
    )  # fmt: skip


def paths(nodes: int) -> Iterator[str]:
    """Around the lists."""
    middle, deep = f"n{nodes // 2:05d}", 100_000 + nodes // 40
    asked = (
        "/nodes?limit=100", "/runs?limit=100", f"/nodes?limit=100&after={middle}",
        "/runs?limit=100&live=true", "/incidents?limit=100", "/cluster",
        "/nodes?limit=100&state=up",
        f"/runs?limit=100&after={deep}", "/allocations?limit=100", "/health",
        "/runs?limit=100&user=user7", "/incidents?limit=100&open=true",
    )  # fmt: skip
    return cycle(asked)


class Connection:
    """One that is kept, with no more of HTTP than this server answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> int:
        """The number of bytes of the answer; raises ValueError where it is no 200."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(f"GET /v1{path} HTTP/1.1\r\nhost: bench\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if " 200 " not in head.split("\r\n", 1)[0]:
            raise ValueError(f"{path}: {head.splitlines()[0]}")
        length = next(x for x in head.lower().split("\r\n") if x.startswith("content-length:"))
        return len(await reader.readexactly(int(length.split(":")[1])))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def ask(asked: Iterator[str], port: int, rate: float, seconds: float) -> list[float]:
    """Seconds that each answer took, from the moment when it was due to be asked for."""
    idle: asyncio.Queue[Connection] = asyncio.Queue()
    connections = [Connection(port) for _ in range(CONNECTIONS)]
    for connection in connections:
        idle.put_nowait(connection)
    took: list[float] = []

    async def one(path: str, due: float) -> None:
        connection = await idle.get()
        try:
            await connection.get(path)
        finally:
            idle.put_nowait(connection)
        took.append(time.perf_counter() - due)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(next(asked), time.perf_counter()))
    for connection in connections:
        connection.close()
    return took


def write(folder: Path, nodes: int, runs: int) -> None:
    """In a process of its own, as the loop is one; until its standard input is closed."""
    with closing(open_store(f"sqlite:///{folder}/unicron.db")) as store:
        cluster = Cluster(store, nodes, runs)
        print("filled", flush=True)
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            cluster.go_on()


@asynccontextmanager
async def writer(folder: Path, nodes: int, runs: int) -> AsyncIterator[None]:
    words = ("--writer", str(folder), "--nodes", str(nodes), "--runs", str(runs))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.api", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        await process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def api(folder: Path, port: int) -> AsyncIterator[None]:
    config = folder / "unicron.toml"
    config.write_text(
        f'database_url = "sqlite:///{folder}/unicron.db"\napi_listen = "127.0.0.1:{port}"\n'
        f'api_socket = "{folder}/api.sock"\ncontrol_socket = "{folder}/control.sock"\n'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "unicrond.api", "--config", str(config), "--until-stdin-closes",
        stdin=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(READY_SECONDS):
            await _answers(port, process)
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _answers(port: int, process: asyncio.subprocess.Process) -> None:
    while process.returncode is None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await Connection(port).get("/health")
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the API ended with {process.returncode}")


async def measure(arguments: argparse.Namespace, folder: Path) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with writer(folder, arguments.nodes, arguments.runs):
        tell("the store is filled; starting the API")
        async with api(folder, port):
            asked = paths(arguments.nodes)
            await ask(asked, port, arguments.rate, WARM_SECONDS)
            tell(f"asking for {arguments.seconds:g} s")
            return await ask(asked, port, arguments.rate, arguments.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench api", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--writer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer is not None:
        write(arguments.writer, arguments.nodes, arguments.runs)
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-api-") as folder:
        took = asyncio.run(measure(arguments, Path(folder)))
    p99 = statistics.quantiles(took, n=100)[98]
    figures = [
        figure("an answer, 99th percentile", "s", [p99], goal=GOAL_SECONDS),
        figure("an answer", "s", took),
    ]
    note = f"{arguments.nodes} nodes, {arguments.runs} runs, {arguments.rate:g} requests a second"
    return finish("api", figures, [note], ("fastapi", "uvicorn", "sqlalchemy"))


if __name__ == "__main__":
    sys.exit(main())
