"""What is measured by bench/transition.py: a rank with train steps of 100 ms, 4 micro-batches each,
and 1 MB of gradients. Run as a script: FOLDER and a mode.

    strict    until it is killed; 30 ms into a train step it does what the file named after
              itself says: SIGKILL, SIGSTOP, exception
    plain     the same with DistributedDataParallel alone and a checkpoint each 10 train steps
    both      STEPS train steps of each, by turns, of `strict` and plain; seconds of each pair

Lines of JSON on stdout: `{step, at}` as one is committed, times of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unicron
from unicron import watch

FOLDER, MODE = Path(sys.argv[1]), sys.argv[2]
RANKS, PER_RANK = 4, 4
MICRO_SECONDS, FAULT_SECONDS = 0.025, 0.030
MANY = 1_000_000
SAVE_EVERY = 10


def say(**body: object) -> None:
    sys.stdout.write(json.dumps(body) + "\n")  # one write: ranks may share the file
    sys.stdout.flush()


def model() -> nn.Module:
    """1 MB of parameters."""
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))


def micro_batch(forward: nn.Module, step: int, number: int, count: int) -> None:
    """No computing to speak of: what is measured is all that comes on top."""
    time.sleep(MICRO_SECONDS)
    samples = torch.full((1, 256), (step + number) % 7 / 7)
    (forward(samples).square().mean() / count).backward()


def obey(step: int) -> None:
    """Called as the second micro-batch begins."""
    mine = FOLDER / os.environ["UNICRON_MEMBER"]
    if not mine.exists():
        return
    what = mine.read_text()
    mine.unlink()
    time.sleep(FAULT_SECONDS - MICRO_SECONDS)
    say(fault=what, step=step, at=time.monotonic())
    if what == "exception":
        raise ValueError("told to fail")
    os.kill(os.getpid(), signal.Signals[what])


@unicron.elastic(backend="gloo")
def strict(run: unicron.Run) -> None:
    torch.manual_seed(0)
    inner = model()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01)
    state = {"model": inner, "optimizer": optimizer}
    count = RANKS * PER_RANK
    for step in run.steps(MANY, state, count):
        for place, number in enumerate(run.micro_batches(step)):
            if place == 1:
                obey(step)
            micro_batch(inner, step, number, count)
        if run.reduce():
            optimizer.step()
            run.commit()
            say(step=step, at=time.monotonic(), world=run.world_size, generation=run.generation)


def plain() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner, newest, first = model(), FOLDER / "newest.pt", 0
    if newest.exists():
        state = torch.load(newest)
        inner.load_state_dict(state["model"])
        first = state["step"]
    forward = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01)
    say(pid=os.getpid(), rank=dist.get_rank())
    for step in range(first + 1, MANY):
        plain_step(forward, optimizer, step)
        say(step=step, at=time.monotonic(), rank=dist.get_rank())
        if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
            partial = newest.with_suffix(".partial")
            torch.save({"step": step, "model": inner.state_dict()}, partial)
            partial.replace(newest)


def plain_step(
    forward: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int
) -> None:
    optimizer.zero_grad()
    with forward.no_sync():
        for number in range(PER_RANK - 1):
            micro_batch(forward, step, number, PER_RANK)
    micro_batch(forward, step, PER_RANK - 1, PER_RANK)
    optimizer.step()


@unicron.elastic(backend="gloo")
def both(run: unicron.Run, steps: int) -> None:
    """Plain first in every other pair."""
    inner, other = model(), model()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01)
    forward = DistributedDataParallel(other)
    of_plain = torch.optim.SGD(other.parameters(), lr=0.01)
    count = run.world_size * PER_RANK
    for step in run.steps(steps, {"model": inner, "optimizer": optimizer}, count):
        seconds = [0.0, 0.0]
        if step % 2:
            seconds[1] = timed(lambda: plain_step(forward, of_plain, step))  # noqa: B023
        begun = time.perf_counter()
        optimizer.zero_grad()
        for number in run.micro_batches(step):
            micro_batch(inner, step, number, count)
        if run.reduce():
            optimizer.step()
            run.commit()
        seconds[0] = time.perf_counter() - begun
        if not step % 2:
            seconds[1] = timed(lambda: plain_step(forward, of_plain, step))  # noqa: B023
        if run.rank == 0:
            say(pair=seconds)


def timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    torch.set_num_threads(1)
    watch.install()
    if MODE == "both":
        both(int(sys.argv[3]))
    else:
        {"strict": strict, "plain": plain}[MODE]()


if __name__ == "__main__":
    main()
