"""A training of two small layers that breaks on request, for `scripts/bench detection`.

    SIGUSR1   raises an exception in its main thread
    SIGUSR2   its main thread blocks for ever

Both leave the moment, Unix seconds, in `faults` in its folder. Nothing here knows of Unicron.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_SECONDS = 0.1
LINE_LIMIT = 1 << 20


def mark() -> None:
    with Path("faults").open("a") as file:
        file.write(f"{time.time()}\n")


def raise_error(_number: int, _frame: FrameType | None) -> None:
    mark()
    raise RuntimeError("broken on request")


def block(_number: int, _frame: FrameType | None) -> None:
    mark()
    time.sleep(1e6)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    signal.signal(signal.SIGUSR1, raise_error)
    signal.signal(signal.SIGUSR2, block)
    log = Path("steps.jsonl").open("a", buffering=1)  # noqa: SIM115 - until the process ends
    for number in range(LINE_LIMIT):
        began = time.monotonic()
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            body = {"step": number, "generation": generation, "world_size": world}
            log.write(json.dumps({**body, "time": time.time()}) + "\n")
        time.sleep(max(0.0, began + STEP_SECONDS - time.monotonic()))


if __name__ == "__main__":
    main()
