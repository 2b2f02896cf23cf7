"""A rank whose training goes on inside the train step. Arguments: last train step, micro-batches,
seconds of one, a folder. What it does goes to stdout, a line of JSON each.

Each bucket's gradient counts what is in it: the place of a micro-batch's number gets 1 from it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unicron
from unicron import gradients, loop
from unicron.gradients import Work
from unicron.together import Together

LAST, COUNT, SECONDS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
DIM, BUCKETS = 16, 3
AT = [0, 0]  # the train step that is being reduced, and how many of its buckets were begun


def act(where: str) -> None:
    """What the file that is named after this member says: `reduce-5 SIGKILL`."""
    mine = Path(sys.argv[4]) / os.environ["UNICRON_MEMBER"]
    if mine.exists() and mine.read_text().split()[0] == where:
        os.kill(os.getpid(), signal.Signals[mine.read_text().split()[1]])


class Acting(Together):
    """As it is, and fails amid a collective when it is told to."""

    def reduce(self, whole: torch.Tensor) -> Work:
        work = super().reduce(whole)
        act(f"bucket-{AT[0]}-{AT[1]}")
        AT[1] += 1
        return work

    def exchange(self, mine: object) -> list[object]:
        act(f"exchange-{self.generation}")
        return super().exchange(mine)

    def hand_on(self, part: torch.Tensor, source: int) -> None:
        act(f"state-{self.generation}")
        super().hand_on(part, source)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Dropout(0.1))
        self.head = nn.Linear(DIM, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)).square().mean()


def say(**body: object) -> None:
    print(json.dumps(body), flush=True)


@unicron.elastic(backend="gloo")
def train(run: unicron.Run) -> None:
    torch.manual_seed(run.rank)  # rank 0's counts
    model = Model().double()
    counters = nn.ParameterList([torch.zeros(COUNT, dtype=torch.float64) for _ in range(BUCKETS)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "counters": counters, "optimizer": optimizer}
    forward: nn.Module = model
    if sys.argv[5:] == ["ddp"]:
        forward = DistributedDataParallel(model, process_group=run.alone())
    say(entered=run.generation)
    for step in run.steps(LAST, state, COUNT):
        optimizer.zero_grad()
        for place, number in enumerate(run.micro_batches(step)):
            act(f"micro-{step}-{place}")
            time.sleep(SECONDS)
            x = torch.randn(4, DIM, dtype=torch.float64)  # the same, whoever computes it
            loss = forward(x) / COUNT + sum(counter[number] for counter in counters)
            loss.backward()
        act(f"reduce-{step}")
        AT[:] = [step, 0]
        if run.reduce():
            act(f"step-{step}")
            counts = [counter.grad.tolist() for counter in counters]  # type: ignore[union-attr]
            optimizer.step()
            act(f"stepped-{step}")
            run.commit()
            whole = float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())
            exact = counts == [[1.0] * COUNT] * BUCKETS
            say(step=step, world=run.world_size, generation=run.generation, exact=exact, norm=whole)
            act(f"committed-{step}")


torch.set_num_threads(1)
loop.Together = Acting  # type: ignore[misc]
gradients.BUCKET_BYTES = 8 * COUNT + 8  # counters have a bucket each
train()
