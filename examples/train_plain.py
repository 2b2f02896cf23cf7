"""Trains a small GPT on the bytes of real text with plain DistributedDataParallel on gloo.

Nothing here knows of Unicron: it is started with the environment that torchrun gives, writes its
own checkpoints and goes on from the latest valid one.

    torchrun --nproc-per-node 2 examples/train_plain.py --steps 100
    sbatch -N4 --gpus-per-node=1 $(which unicron-run) -- python examples/train_plain.py

The global batch has a fixed size, is the same at each train step however often the run was
restarted, and is dealt over the ranks: so losses of runs with different world sizes compare.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TEXTS = (("/usr/share/common-licenses", "*"), (Path(os.__file__).parent, "*.py"))
ENOUGH_BYTES = 200_000
MOST_BYTES = 4_000_000
BYTES = 256  # the vocabulary
KEPT_CHECKPOINTS = 2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=64, help="bytes in one sample")
    parser.add_argument("--batch", type=int, default=16, help="samples in one step, of all ranks")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time of one step")
    parser.add_argument("--data", help="a text file (default: text found on this machine)")
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="train steps")
    parser.add_argument("--log", help="file for a line of JSON for each train step, by rank 0")
    parser.add_argument("--log-all-ranks", action="store_true", help="lines by the others too")
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.mix = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm_in(x)).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(self.norm_out(x))


class GPT(nn.Module):
    def __init__(self, layers: int, dim: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, dim), nn.Embedding(sequence, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        return self.head(self.norm(self.blocks(self.bytes(tokens) + self.places(places))))


def read_text(path: str | None) -> Tensor:
    """The same bytes in the same order on every rank."""
    text = Path(path).read_bytes() if path else b""
    for folder, pattern in () if path else TEXTS:
        for file in sorted(Path(folder).glob(pattern)):
            if len(text) < ENOUGH_BYTES and file.is_file():
                text += file.read_bytes()
    return torch.frombuffer(bytearray(text[:MOST_BYTES]), dtype=torch.uint8)


def my_samples(
    text: Tensor, step: int, batch: int, sequence: int, rank: int, world: int
) -> tuple[Tensor, Tensor]:
    """This rank's share of the step's batch, drawn from the step's number alone."""
    drawn = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - sequence - 1, (batch,), generator=drawn)[rank::world]
    samples = torch.stack([text[start : start + sequence + 1] for start in starts]).long()
    return samples[:, :-1], samples[:, 1:]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, samples: tuple[Tensor, Tensor], batch: int
) -> float:
    """The mean loss of the whole batch. DDP averages over ranks, so each scales by its share."""
    tokens, wanted = samples
    world = dist.get_world_size()
    scores = model(tokens)
    total = functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum")
    loss = total * world / (batch * tokens.shape[1])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    return float(mean)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whole or not at all, also when the power fails in the middle."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}.pt"
    partial = final.with_suffix(f".{os.getpid()}.partial")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(final)
    for old in checkpoints(folder)[KEPT_CHECKPOINTS:]:
        old.unlink(missing_ok=True)


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("step-*.pt"), reverse=True)


def load_latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read."""
    for path in checkpoints(folder):
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            print(f"skipping {path}: {error}", file=sys.stderr)
            continue
        return state
    return None


def agree_on_start(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Rank 0 reads; the others get its step and optimizer (DDP hands its parameters on)."""
    state = load_latest(folder) if dist.get_rank() == 0 else None
    shared: list[Any] = [state]
    dist.broadcast_object_list(shared)
    if shared[0] is None:
        return 0
    model.load_state_dict(shared[0]["model"])
    optimizer.load_state_dict(shared[0]["optimizer"])
    return int(shared[0]["step"])


class Log:
    """One line of JSON for each train step: on stdout, and in the file if there is one."""

    def __init__(self, path: str | None, all_ranks: bool) -> None:
        self._speaks = all_ranks or dist.get_rank() == 0
        self._path = Path(path) if path and self._speaks else None
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._generation = int(os.environ.get("UNICRON_GENERATION", restarts + 1))

    def write(self, step: int, loss: float) -> None:
        if not self._speaks:
            return
        body = {
            "step": step,
            "loss": round(loss, 6),
            "rank": dist.get_rank(),
            "world_size": dist.get_world_size(),
            "generation": self._generation,
            "time": round(time.time(), 3),
        }
        line = json.dumps(body)
        print(line, flush=True)
        if self._path:
            with self._path.open("a") as file:
                file.write(line + "\n")


def train(options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if options.batch < world:
        raise SystemExit(f"--batch {options.batch}: must be at least the {world} ranks")
    torch.manual_seed(0)
    model = GPT(options.layers, options.dim, options.heads, options.sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    folder = Path(options.checkpoint_dir)
    first = agree_on_start(folder, model, optimizer)
    parallel = DistributedDataParallel(model)
    text, log = read_text(options.data), Log(options.log, options.log_all_ranks)
    for step in range(first + 1, options.steps + 1):
        began = time.monotonic()
        samples = my_samples(text, step, options.batch, options.sequence, rank, world)
        loss = train_step(parallel, optimizer, samples, options.batch)
        log.write(step, loss)
        if rank == 0 and (step % options.checkpoint_every == 0 or step == options.steps):
            save(folder, step, model, optimizer)
        time.sleep(max(0.0, options.step_seconds - (time.monotonic() - began)))


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
