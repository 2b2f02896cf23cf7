"""The port `Group` of the strict loop, on torch.distributed and the generations of this process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unicron import Run
from unicron.gradients import Work


class Together:
    def __init__(self, run: Run) -> None:
        self._run = run

    @property
    def generation(self) -> int:
        return self._run.generation

    @property
    def rank(self) -> int:
        return self._run.rank

    @property
    def size(self) -> int:
        return self._run.world_size

    def next_is_there(self) -> bool:
        return bool(self._run.elastic.next_is_there())

    def regroup(self, error: Exception) -> None:
        place = self._run.elastic.regroup(error)
        run = self._run
        run.generation, run.rank = place.generation, place.rank
        run.world_size, run.local_rank = place.world_size, place.local_rank

    def exchange(self, mine: Any) -> list[Any]:
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, mine)
        return told

    def reduce(self, whole: Tensor) -> Work:
        work = dist.all_reduce(whole, async_op=True)
        return _OnHost(work) if whole.is_cuda else work

    def hand_on(self, part: Tensor, source: int) -> None:
        if part.is_cuda or dist.get_backend() != "nccl":
            dist.broadcast(part, src=source)
            return
        passed = part.to(torch.device("cuda"))
        dist.broadcast(passed, src=source)
        part.copy_(passed)


class _OnHost:
    """On a GPU `wait` only orders streams: whether it came through is known when the host waits."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        torch.cuda.current_stream().synchronize()


def alone(rank: int) -> Any:
    """Whoever holds it may use it after the world that it was made in is gone."""
    return dist.new_group([rank], use_local_synchronization=True)
