"""The training of train_plain.py that goes on inside the train step when ranks are lost.

    sbatch -N4 --gpus-per-node=1 $(which unicron-run) -- python examples/train_strict.py
    torchrun --nproc-per-node 2 examples/train_strict.py --steps 100     without Unicron, as before

Every sample of the batch is a micro-batch, so that any number of ranks can share them. What is lost
with a rank is computed by the others, in the same train step; no process ends and no function is
left. docs/training.md compares the two line by line.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from train_plain import GPT, Log, my_samples, parse, read_text

import unicron


def loss_of(scores: Tensor, wanted: Tensor, batch: int) -> Tensor:
    """Its part of the mean over the whole batch: gradients are summed up."""
    return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()) / batch


@unicron.elastic(backend="gloo")
def train(run: unicron.Run, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = GPT(options.layers, options.dim, options.heads, options.sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    state = {"model": model, "optimizer": optimizer}
    parallel = DistributedDataParallel(model, process_group=run.alone())
    text, log = read_text(options.data), Log(options.log, options.log_all_ranks)
    for step in run.steps(options.steps, state, options.batch, options.checkpoint_dir):
        began, losses = time.monotonic(), []
        optimizer.zero_grad()
        for number in run.micro_batches(step):
            one = (options.batch, options.sequence, number, options.batch)
            tokens, wanted = my_samples(text, step, *one)
            loss = loss_of(parallel(tokens), wanted, options.batch)
            loss.backward()
            losses.append(float(loss.detach()))
        if run.reduce():
            optimizer.step()
            to_disk = step % options.checkpoint_every == 0 or step == options.steps
            mean = sum(losses) * options.batch / max(1, len(losses))  # of what this rank computed
            run.commit(mean, to_disk)
            log.write(step, mean)
        time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(parse())
