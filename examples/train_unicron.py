"""The training of train_plain.py, ten lines changed: it goes on in its processes, from memory.

    sbatch -N4 --gpus-per-node=1 $(which unicron-run) -- python examples/train_unicron.py
    torchrun --nproc-per-node 2 examples/train_unicron.py --steps 100     without Unicron, as before

When the world changes, `train` is entered anew, from the newest train step that any node holds in
memory, or that is on disk. docs/training.md compares the two line by line.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from train_plain import GPT, Log, my_samples, parse, read_text, train_step

import unicron


@unicron.elastic(backend="gloo")
def train(run: unicron.Run, options: argparse.Namespace) -> None:
    if options.batch < run.world_size:
        raise SystemExit(f"--batch {options.batch}: must be at least the {run.world_size} ranks")
    torch.manual_seed(0)
    model = GPT(options.layers, options.dim, options.heads, options.sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    state = {"model": model, "optimizer": optimizer}
    first = unicron.restore(state, options.checkpoint_dir) or 0
    parallel = DistributedDataParallel(model)
    text, log = read_text(options.data), Log(options.log, options.log_all_ranks)
    for step in range(first + 1, options.steps + 1):
        began = time.monotonic()
        share = (options.batch, options.sequence, run.rank, run.world_size)
        loss = train_step(parallel, optimizer, my_samples(text, step, *share), options.batch)
        log.write(step, loss)
        to_disk = step % options.checkpoint_every == 0 or step == options.steps
        unicron.checkpoint(state, step, options.checkpoint_dir if to_disk else None)
        unicron.heartbeat(step, loss)
        time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(parse())
