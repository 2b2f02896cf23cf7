"""How many collectives torch launched is told by ranks whose main thread is stuck in one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from unicron import page
from unicrond.agent.inside import asked_of

ROOT = Path(__file__).parents[2]
RANK = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
for step in range(5):
    if (step, dist.get_rank()) == (4, 1):
        time.sleep(600)
    model(torch.ones(1, 8)).sum().backward()
    print(step, flush=True)
"""


def launched(path: Path) -> int:
    """Asks until there is an answer."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with asked_of(path).open("wb", buffering=0) as pipe:
            pipe.write(b"?")
        time.sleep(0.05)
        seen = page.read(path)
        if seen is not None and seen.launched(0):
            return seen.launched(0)
    raise AssertionError(f"no answer in {path}")


def test_who_is_behind_within_a_data_parallel_module_is_seen(tmp_path: Path) -> None:
    pages = [tmp_path / f"page{rank}" for rank in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = []
    for rank, path in enumerate(pages):
        page.make(path)
        hook = {"PYTHONPATH": f"{ROOT}/unicron/hook", page.VARIABLE: str(path)}
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                stdout=subprocess.PIPE,
                text=True,
                env={**place, **hook, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
        )
    try:
        for process in ranks:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
        behind, deadline = launched(pages[1]), time.monotonic() + 30
        while launched(pages[0]) == behind:  # on its way into the fifth backward
            assert time.monotonic() < deadline
        assert launched(pages[0]) == behind + 1
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
