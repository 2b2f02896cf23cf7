"""What ranks that keep copies tell each other: who shares a node, what all have kept."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def place_now() -> tuple[int, int]:
    """Rank and size of the world that there is."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), 1


@dataclass(frozen=True)
class World:
    """The ranks of one generation. `nodes` has for each rank where its parts lie: the same for all
    that can read them. `token` names the generation's parts; a later one is larger."""

    token: str
    rank: int
    nodes: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)

    @property
    def here(self) -> list[int]:
        """Ranks on this node."""
        return self.on(self.nodes[self.rank])

    def on(self, node: str) -> list[int]:
        return [rank for rank, one in enumerate(self.nodes) if one == node]

    @property
    def first_here(self) -> bool:
        return self.here[0] == self.rank

    def keeps(self, holders: tuple[int, ...]) -> bool:
        """Of ranks that have the same, one a node keeps it; no `holders`: all have it."""
        mine = [rank for rank in self.here if not holders or rank in holders]
        return mine[:1] == [self.rank]

    def elsewhere(self, holders: tuple[int, ...]) -> int:
        """How many other nodes have the same."""
        return len({self.nodes[rank] for rank in holders or range(self.size)}) - 1

    def is_of(self, place: tuple[int, int]) -> bool:
        return (self.rank, self.size) == place


def meet(folder: Path) -> World:
    """Clocks of nodes differ: what lies there was made before."""
    before = max((int(home.name[4:]) for home in folder.glob("set-*")), default=0)
    told = exchange((f"{socket.gethostname()}:{folder}", max(time.time_ns(), before + 1)))
    nodes = tuple(node for node, _ in told)
    token = max(at for _, at in told)
    return World(f"{token:020d}", place_now()[0] if len(nodes) > 1 else 0, nodes)


def exchange(mine: Any) -> list[Any]:
    """What each rank says, in their order."""
    if not dist.is_initialized():
        return [mine]
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told


def numbers(mine: list[int]) -> list[list[int]]:
    """What each rank says, as many numbers of each."""
    if not dist.is_initialized():
        return [mine]
    given = torch.tensor(mine, dtype=torch.int64, device=device())
    told = [torch.empty_like(given) for _ in range(dist.get_world_size())]
    dist.all_gather(told, given)
    rows: list[list[int]] = torch.stack(told).tolist()
    return rows


def together() -> None:
    if dist.is_initialized():
        dist.barrier()


def hand_over(tensor: Tensor, source: int, target: int, rank: int) -> None:
    """Copies `tensor` of one rank into that of another; both call it."""
    flat = tensor.reshape(-1).view(torch.uint8)  # no copy: what is handed over is contiguous
    passed = flat.to(device())
    if rank == source:
        dist.send(passed, target)
        return
    dist.recv(passed, source)
    if passed is not flat:
        flat.copy_(passed)


def device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
