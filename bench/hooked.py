"""A training in one process, with the start-up hook's work and without by turns.

May touch: a process of its own, the folder it is given.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.report import ROOT, tell
from unicrond.agent.inside import Inside
from unicrond.model.run import Slot

CALLS = 60
PROGRAM = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import _global_optimizer_post_hooks as hooks
pairs, calls = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
layers = [torch.nn.Linear(64, 64) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
ours = dict(hooks)
assert ours, "the hook is not there"
def step(hooked):
    hooks.clear()
    if hooked:
        hooks.update(ours)
    begun = time.perf_counter()
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    time.sleep(0.095)
    loss.backward()
    optimizer.step()
    return time.perf_counter() - begun
for _ in range(20):
    step(True)
found = []
for number in range(pairs):
    first = step(number % 2 == 0)
    second = step(number % 2 == 1)
    found.append((first, second) if number % 2 == 0 else (second, first))
hooks.update(ours)
costs = []
for _ in range(calls):
    time.sleep(0.1)
    begun = time.thread_time()
    for hook in ours.values():
        hook(optimizer, (), {})
    costs.append(1e6 * (time.thread_time() - begun))
print(json.dumps([found, costs]), flush=True)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Measured:
    """Seconds of a train step with the hook and without; microseconds of the hook alone."""

    pairs: list[tuple[float, float]]
    costs: list[float]


class Hooked:
    def __init__(self, folder: Path) -> None:
        self._inside = Inside(folder, "", lambda kind, body: tell(f"{kind}: {body}"))
        self._inside.begin(1, ())
        self._environment = self._inside.environment(Slot(0, "m0", "n1", 0), {})

    def measure(self, pairs: int) -> Measured:
        environment = {
            **os.environ,
            **self._environment,
            "PYTHONPATH": f"{ROOT / 'unicron/hook'}:{ROOT}",
            "RANK": "0", "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()),
        }  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, str(pairs), str(CALLS)]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, check=True, timeout=60 + pairs
        )
        found, costs = json.loads(done.stdout.splitlines()[-1])
        return Measured([(on, off) for on, off in found], costs)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
