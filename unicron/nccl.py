"""The port `Collective` on NCCL, from torch 2.7 and NCCL 2.26. Written from their sources, not
measured: no part of it has run on more than none or one GPU.

Never destroyed after a fault, since that flushes, and hangs by design: all groups are aborted
together, from a thread with a limit. A rank whose CUDA context is broken must end.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unicron.collective import (
    CONNECT_SECONDS,
    LEAVE_SECONDS,
    Place,
    await_listener,
    within,
)
from unicron.errors import Revoked, Stuck

OLDEST_TORCH, OLDEST_NCCL = (2, 7), (2, 26)
BEFORE_A_GROUP = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "NCCL_NVLS_ENABLE": "0",
}


def why_not() -> str:
    """Why ranks cannot regroup in process here; "" when they can."""
    have = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if have < OLDEST_TORCH:
        return f"torch {torch.__version__} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"
    if not torch.cuda.is_available():
        return "there is no GPU"
    nccl = torch.cuda.nccl.version()
    return "" if nccl[:2] >= OLDEST_NCCL else f"NCCL {nccl} is older than {OLDEST_NCCL}"


class Nccl:
    def __init__(self) -> None:
        self.regroups = not why_not()
        self._revoked = self._generation = -1
        self._store: Any = None
        self._aborting = threading.Lock()

    def form(self, place: Place, timeout_seconds: float) -> None:
        self._generation = place.generation
        os.environ.update(BEFORE_A_GROUP)
        connect = timedelta(seconds=CONNECT_SECONDS)
        if not place.hosts_store:
            await_listener(place, lambda: place.generation <= self._revoked)
        tcp = dist.TCPStore(
            place.master_address,
            place.master_port,
            is_master=place.hosts_store,
            timeout=connect,
            wait_for_workers=False,
        )
        self._store = dist.PrefixStore(f"unicron/{place.generation}", tcp)
        device = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl",
            store=self._store,
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout_seconds),
            device_id=device,
        )
        if place.generation <= self._revoked:
            raise Revoked(f"generation {place.generation} is over")

    def revoke(self, generation: int) -> None:
        """The abort frees the main thread; `leave` waits for it."""
        self._revoked = max(self._revoked, generation)
        if self._generation <= generation:
            threading.Thread(target=self._abort, name="unicron-abort", daemon=True).start()

    def _abort(self) -> None:
        with self._aborting:
            if dist.is_initialized():
                c10d._abort_process_group()

    def leave(self) -> None:
        if self._revoked < self._generation:
            if dist.is_initialized():
                within(LEAVE_SECONDS, dist.destroy_process_group, "leaving the group")
        else:
            within(LEAVE_SECONDS, self._abort, "aborting the group")
            within(LEAVE_SECONDS, torch.cuda.synchronize, "waiting for the GPU")
        if dist.is_initialized():
            raise Stuck("the group is still there after it was aborted")
        self._store = None
