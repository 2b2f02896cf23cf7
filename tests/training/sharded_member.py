"""A rank that trains a divided model. Arguments: train steps of each generation; a folder for
storage. Its own name begins with the layout, `fsdp2`, `hsdp`, `tensor` or `ddp`; then may come
`_disk`, it writes to storage too, or `_nan`, rank 1 has NaN in what it keeps after train step 1.
What it has goes to stdout, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import unicron
from unicron import sharded, warm

STEPS, FOLDER = int(sys.argv[1]), sys.argv[2]
LAYOUT, _, WISH = os.environ["UNICRON_MEMBER"].partition("-")[0].partition("_")
DIM = 10  # not a multiple of the numbers of ranks


def divided(model: nn.Sequential, size: int) -> nn.Module:
    if LAYOUT == "ddp":
        return DistributedDataParallel(model)
    names = ("replica", "shard")
    shape = (2, size // 2) if LAYOUT in ("hsdp", "tensor") else (size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names[-len(shape) :])
    if LAYOUT == "tensor":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["shard"], plan)
        mesh = mesh["replica"]
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(value: Any) -> Any:
    """The same whatever the layout, as text of bits."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        return [list(value.shape), zlib.crc32(value.detach().numpy().tobytes())]
    if isinstance(value, dict):
        return {str(key): whole(one) for key, one in value.items()}
    return [whole(one) for one in value] if isinstance(value, (list, tuple)) else value


def say(run: unicron.Run, did: str, step: int, state: dict[str, Any]) -> None:
    has = {
        name: whole(part.state_dict() if hasattr(part, "state_dict") else part)
        for name, part in state.items()
    }
    if LAYOUT == "ddp" or run.rank == 0:
        print(json.dumps({"did": did, "step": step, "in": run.generation, "has": has}), flush=True)


def keep_with_nan(state: dict[str, Any], step: int) -> None:
    mine = next(state["model"].parameters()).detach().to_local()
    good = mine.clone()
    mine.fill_(torch.nan)
    unicron.checkpoint(state, step)
    mine.copy_(good)


@unicron.elastic(backend="gloo")
def train(run: unicron.Run) -> None:
    torch.manual_seed(run.generation)
    model = nn.Sequential(nn.Linear(DIM, 12), nn.Tanh(), nn.Linear(12, 3), nn.BatchNorm1d(3))
    parallel = divided(model, run.world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "position": [0]}
    disk = FOLDER if WISH == "disk" else None
    first = unicron.restore(state, disk) or 0
    say(run, "restored", first, state)
    for step in range(first + 1, first + STEPS + 1):
        optimizer.zero_grad()
        parallel(torch.randn(4, DIM)).square().mean().backward()
        optimizer.step()
        state["position"] = [step]
        say(run, "kept", step, state)
        if (WISH, run.rank) == ("nan", 1) and step > 1:
            keep_with_nan(state, step)
        else:
            unicron.checkpoint(state, step, disk)
        unicron.heartbeat(step)
    (warm if LAYOUT == "ddp" else sharded).of_this_process().settle()
    dist.barrier()
    say(run, "settled", first + STEPS, state)
    while True:
        time.sleep(0.01)
        unicron.heartbeat(first + STEPS)


torch.set_num_threads(1)
train()
