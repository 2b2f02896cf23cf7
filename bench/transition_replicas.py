"""How fast copies get to another node and back, over loopback: each node is a folder in memory.

May touch: memory in /dev/shm, processes of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.nursery import ROOT
from unicron import arena, replicated
from unicrond.agent.node import free_port
from unicrond.agent.replicas import Aim, Peer, Replicas
from unicrond.link.bulk import Pace

TENSORS, ELEMENTS = 20, 12_500_000  # 500 MB of float32 on each of two ranks
DATA_BYTES = 500_000_000
LIMIT_SECONDS = 240.0
SECRET = secrets.token_bytes(32)
SET = f"set-{1:020d}"
KEEPER = """
import sys
from pathlib import Path
from unicrond.agent.keeper import Keeper
keeper = Keeper(Path(sys.argv[1]), 1, bytes.fromhex(sys.argv[2]))
keeper.generation = 1
keeper.start()
print(keeper.port, flush=True)
sys.stdin.read()
"""
RANK = """
import json, os, sys, time, torch
import torch.distributed as dist
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros
from unicron.sharded import Sharded
does, folder, tensors, elements = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
made = [zeros(elements, device_mesh=mesh, placements=[Shard(0)]) for _ in range(tensors)]
state = {str(number): one for number, one in enumerate(made)}
sharded = Sharded(folder)
if does == "keep":
    for number, one in enumerate(made):
        one.to_local().fill_(float(number + 1))
    sharded.checkpoint(state, 1, None)
    sharded.settle()
else:
    for one in made:
        one.to_local().fill_(0.0)
    dist.barrier()
    begun = time.perf_counter()
    found = sharded.restore(state, None)
    taken = time.perf_counter() - begun
    assert found.step == 1
    assert all(float(one.to_local()[-1]) == n + 1 for n, one in enumerate(state.values()))
    print(json.dumps(taken))
dist.barrier()
"""


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each, by name."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="unicron-bench-") as name:
        there = _there(Path(name), rounds)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="unicron-bench-") as name:
        back = _back(Path(name), rounds)
    return {"there": there, "back": back}


# ---------------------------------------------------------------- there


def _there(folder: Path, rounds: int) -> list[float]:
    """From when a copy counts on its own node to when the rank is told that it is on the other."""
    mine = folder / "n1"
    arena.make_private(mine)
    slots = [arena.Slot(mine / SET / f"part-0.{number}") for number in range(3)]
    seconds = []
    with _keeper(folder / "n2") as port:
        sender = Replicas(mine, "n1", SECRET, Pace(1e10), False, lambda _: None)
        sender.aim = Aim(1, 1, (Peer("n2", "a", "127.0.0.1", port),))
        sender.start()
        for step in range(rounds + len(slots)):
            slot = slots[step % len(slots)]
            data = slot.begin(step, b"{}", DATA_BYTES)
            data[:8] = step.to_bytes(8, "big")
            slot.finish(data)
            seconds.append(_until_safe(mine, step))
        sender.stop()
    return seconds[len(slots) :]  # the first ones allocate the keeper's memory


def _until_safe(folder: Path, step: int) -> float:
    begun = time.perf_counter()
    while step not in replicated.read(folder).safe.get("0", ()):
        if time.perf_counter() - begun > LIMIT_SECONDS:
            raise TimeoutError(str(replicated.read(folder)))
        time.sleep(0.002)
    return time.perf_counter() - begun


@contextlib.contextmanager
def _keeper(folder: Path) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(folder), SECRET.hex()],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


# ---------------------------------------------------------------- back


def _back(folder: Path, rounds: int) -> list[float]:
    """Node n1 is lost with its half; a new one, n3, gets it from its replica on n2."""
    _ranks("keep", folder / "n1", folder / "n2")
    (part,) = (one for one in folder.glob("n1/set-*/part-0.*") if arena.step_in(one) == 1)
    home = part.parent.name
    part.rename(folder / "n2" / home / f"{part.name}@n1")
    seconds = []
    for number in range(rounds):
        told = _ranks("restore", folder / f"n{number + 3}", folder / "n2")
        seconds.append(max(told))
    return seconds


def _ranks(does: str, *folders: Path) -> list[float]:
    port = free_port()
    processes = []
    for rank, folder in enumerate(folders):
        arena.make_private(folder)
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(folders)),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        command = [sys.executable, "-c", RANK, does, str(folder), str(TENSORS), str(ELEMENTS)]
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"ranks that {does} failed")
    return [json.loads(text) for text in said if text]
