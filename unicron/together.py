"""The port `Group` of the strict loop, on torch.distributed and the generations of this process."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unicron import Run
from unicron.errors import Revoked
from unicron.gradients import Work

LOOK = timedelta(seconds=0.5)
GIVEN_UP_SECONDS = 2.0  # after word of the end; connections are cut after 1 s at most


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
        """As all_gather_object, which could not be given up."""
        sent = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8).to(_device())
        sizes = [int(one) for one in self._gathered(torch.tensor([len(sent)], device=sent.device))]
        padded = torch.zeros(max(sizes), dtype=torch.uint8, device=sent.device)
        padded[: len(sent)] = sent
        parts = zip(self._gathered(padded), sizes, strict=True)
        return [pickle.loads(bytes(part[:size].tolist())) for part, size in parts]

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        told = [torch.zeros_like(mine) for _ in range(self.size)]
        self._waitable(dist.all_gather(told, mine, async_op=True), mine).wait()
        return told

    def reduce(self, whole: Tensor) -> Work:
        return self._waitable(dist.all_reduce(whole, async_op=True), whole)

    def hand_on(self, part: Tensor, source: int) -> None:
        passed = part.to(_device())
        self._waitable(dist.broadcast(passed, src=source, async_op=True), passed).wait()
        if passed is not part:
            part.copy_(passed)

    def _waitable(self, work: Any, tensor: Tensor) -> Pending:
        return Pending(work, self._run, tensor.is_cuda)


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


class Pending:
    """Gives up what hangs although its connections were cut (docs/adr/0015)."""

    def __init__(self, work: Any, run: Run, on_gpu: bool) -> None:
        self._work, self._run, self._on_gpu = work, run, on_gpu

    def wait(self) -> None:
        while not self._came_through():
            if self._run.elastic.over_for() > GIVEN_UP_SECONDS:
                raise Revoked("a collective did not end with its generation")
        if self._on_gpu:  # there `wait` only orders streams
            torch.cuda.current_stream().synchronize()

    def _came_through(self) -> bool:
        try:
            self._work.wait(LOOK)
        except RuntimeError:
            if self._work.is_completed():
                self._work.wait()  # raises what it ended with
                return True
            return False
        return True


def alone(rank: int) -> Any:
    """Whoever holds it may use it after the world that it was made in is gone."""
    return dist.new_group([rank], use_local_synchronization=True)
