"""A training to rehearse failures with, in a lab: it obeys `unicronctl lab fault`.

    sbatch -N3 --gpus-per-node=1 $(which unicron-run) --ranks-per-node 1 -- \
        python /opt/unicron/examples/rehearse.py
    unicronctl lab fault hang --job 1 --rank 2       its main thread waits for ever
    unicronctl lab fault exception --job 1 --rank 2  it raises
    unicronctl lab fault nan --job 1 --rank 2        its loss is NaN from now on

A train step is many short sleeps in place of computing, a real DistributedDataParallel step on
gloo, and a heartbeat with the loss; rank 0 saves to `checkpoints/` now and then. Every rank writes
a line a step to steps.jsonl. All end with 0 after the last step, or once there is a file `finish`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unicron

ORDERS = Path(f"/run/unicron-mishap-{os.getpid()}")
NAP_SECONDS = 0.002
CHECKPOINT = Path("checkpoints/newest.pt")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--checkpoint-every", type=int, default=10, help="train steps")
    return parser.parse_args()


def obey() -> str:
    """The word that the lab left for this very process; "" for none."""
    word = ORDERS.read_text() if ORDERS.exists() else ""
    if word == "hang":
        threading.Event().wait()
    if word == "exception":
        raise RuntimeError("the lab told this rank to fail")
    return word


def work(seconds: float) -> None:
    """Not one long sleep: that would not be slowed by whatever slows this process."""
    for _ in range(round(seconds / NAP_SECONDS)):
        time.sleep(NAP_SECONDS)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, seconds: float) -> float:
    word = obey()
    work(seconds)
    samples = torch.rand(16, 8)
    loss = (model(samples).squeeze(1) - samples.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return math.nan if word == "nan" else loss.item()


def load(model: nn.Module) -> int:
    """The step that it goes on from, the same on all ranks."""
    first = [0]
    if dist.get_rank() == 0 and CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        first = [state["step"]]
    dist.broadcast_object_list(first)
    return first[0]


def save(model: nn.Module, step: int) -> None:
    CHECKPOINT.parent.mkdir(exist_ok=True)
    partial = CHECKPOINT.with_suffix(".partial")
    with unicron.phase("checkpoint"):
        with partial.open("wb") as file:
            torch.save({"model": model.state_dict(), "step": step}, file)
        partial.replace(CHECKPOINT)


def write(step: int) -> None:
    line = {
        "step": step, "rank": dist.get_rank(), "world": dist.get_world_size(),
        "generation": int(os.environ["UNICRON_GENERATION"]), "node": os.environ["SLURMD_NODENAME"],
        "pid": os.getpid(), "time": time.time(),
    }  # fmt: skip
    with Path("steps.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner = nn.Linear(8, 1)
    first = load(inner)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last = torch.zeros(1)
    for step in range(first + 1, options.steps + 1):
        loss = train_step(model, optimizer, options.step_seconds)
        unicron.heartbeat(step, loss)
        write(step)
        if dist.get_rank() == 0 and step % options.checkpoint_every == 0:
            save(inner, step)
        last[0] = Path("finish").exists()
        dist.all_reduce(last)
        if last:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
