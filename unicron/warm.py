"""`unicron.checkpoint` and `unicron.restore`: state kept in the node's memory, where it outlives
the process, and, when asked, on disk. For state that is the same on all ranks (DDP, one process).

    checkpoint    copy at memory speed -> [behind training's back] NaN check, sums, head, disk
    restore       each rank names its newest verified copy; the newest of all wins, memory before
                  disk where equal; who does not have it gets it from the lowest rank that does
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unicron import arena, report, state, world
from unicron.behind import Behind
from unicron.errors import CannotKeep, NoRoom

CHUNK_BYTES = 1 << 28
NOTHING = -1


@dataclass(frozen=True)
class Source:
    """What one rank could restore from. Ordered by what is better."""

    step: int
    in_memory: bool
    rank: int


def choose(offers: Sequence[Source]) -> Source | None:
    """The newest, memory before disk, the lowest rank."""
    real = [offer for offer in offers if offer.step != NOTHING]
    return max(real, key=lambda o: (o.step, o.in_memory, -o.rank), default=None)


class Warm:
    """Of one process. `folder` is in memory; None outside a run, or where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="unicron-")
        self._folder = folder or Path(self._temporary.name)  # type: ignore[union-attr]
        self._writer = arena.Writer(self._folder)
        self._slots = {name: arena.Slot(self._folder / name) for name in arena.SLOTS}
        self._behind = Behind("unicron-warm")

    def checkpoint(self, what: Mapping[str, Any], step: int, disk: Path | None) -> bool:
        """Whether this rank copies it: one a node does."""
        first = os.environ.get("GROUP_RANK" if self._temporary is None else "RANK", "0") == "0"
        if self._temporary and not first:
            return False
        try:
            if not self._writer.is_me():
                return False
            self.settle()
            self._copy(what, step, disk if first else None)
        except (NoRoom, CannotKeep) as error:
            self._behind.say_once(f"train step {step} is not kept: {error}")
            return False
        return True

    def _copy(self, what: Mapping[str, Any], step: int, disk: Path | None) -> None:
        skeleton, tensors = state.collect(what)
        description, size = state.describe(skeleton, tensors)
        slot, data = self._begin(step, description, size, disk)
        copies = state.views(description, data)
        with torch.no_grad():
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.copy_(tensor)
        self._behind.start(lambda: self._finish(slot, data, copies, step, disk))

    def _begin(
        self, step: int, description: bytes, size: int, disk: Path | None
    ) -> tuple[arena.Slot, memoryview]:
        """Without room in memory, what is wanted on disk is written there directly."""
        slot = self._slots[arena.oldest_slot(self._folder)]
        try:
            return slot, slot.begin(step, description, size)
        except NoRoom as error:
            if disk is None:
                raise
            self._behind.say_once(f"train step {step} is on disk only: {error}")
            slot = arena.Slot(disk / f".{os.getpid()}.slot")
            return slot, slot.begin(step, description, size)

    def _finish(
        self, slot: arena.Slot, data: memoryview, copies: list[Tensor], step: int, disk: Path | None
    ) -> None:
        if state.has_nan(copies):
            self._behind.say_once(f"train step {step} is not kept: it has NaN")
            return
        slot.finish(data)
        for other in self._slots.values():
            other.reserve(like=slot)
        if disk is not None:
            try:
                arena.keep_on_disk(slot.path, disk)
                if slot.path.parent == disk:
                    slot.path.unlink()
            except OSError as error:
                self._behind.say_once(f"train step {step} is not on disk: {error}")

    def settle(self) -> None:
        """The newest copy counts, or never will."""
        self._behind.settle()

    def restore(self, what: MutableMapping[str, Any], disk: Path | None) -> Source | None:
        """All ranks call it, in the same generation."""
        self.settle()
        found = arena.newest(self._folder, "slot-*")
        rank, in_memory = world.place_now()[0], found is not None
        if disk is not None and rank == 0:
            kept = arena.newest(disk, arena.ON_DISK_PATTERN)
            if kept is not None and (found is None or kept.step > found.step):
                found, in_memory = kept, False
        mine = Source(found.step if found else NOTHING, in_memory, rank)
        told = world.exchange((mine.step, mine.in_memory, mine.rank))
        offers = [Source(*offer) for offer in told]
        best = choose(offers)
        if best is None:
            return None
        has = [offer.step == best.step for offer in offers]
        if not all(has):
            description, data = _handed_on(best.rank, found)
        if found is not None and has[rank]:
            description, data = found.description, found.data
        state.load(what, description, data)
        damaged = arena.discard_above(self._folder, best.step)
        refused = world.exchange(damaged)  # nobody writes over a slot that another rank still reads
        if rank == 0:
            _tell(best, has, refused)
        return best

    def close(self) -> None:
        """Another process of the node may write from here on."""
        self.settle()
        self._writer.close()
        if self._temporary:
            self._temporary.cleanup()


def _tell(best: Source, has: Sequence[bool], refused: Sequence[Sequence[int]]) -> None:
    lines = [
        f"train step {step} in memory near rank {rank} is refused: it is damaged"
        for rank, steps in enumerate(refused)
        for step in steps
    ]
    where = "in memory" if best.in_memory else "on storage"
    lines.append(
        f"train step {best.step} {where} is restored; {sum(has)} of {len(has)} ranks had it at hand"
    )
    report.restored(lines)


def _handed_on(source: int, found: arena.Copy | None) -> tuple[bytes, memoryview]:
    """From the rank that has it to all; in chunks, so that a GPU need not hold it whole."""
    mine = found if found is not None and world.place_now()[0] == source else None
    head: list[Any] = [(mine.description, len(mine.data)) if mine else None]
    dist.broadcast_object_list(head, src=source)
    description, size = head[0]
    data = mine.data if mine else memoryview(bytearray(size))
    device = world.device()
    for start in range(0, size, CHUNK_BYTES):
        part = torch.frombuffer(data[start : start + CHUNK_BYTES], dtype=torch.uint8)
        passed = part.to(device)
        dist.broadcast(passed, src=source)
        if not mine:
            part.copy_(passed)
    return description, data


_warm: Warm | None = None


def of_this_process() -> Warm:
    global _warm
    if _warm is None:
        _warm = Warm(folder_of_this_run())
    return _warm


def folder_of_this_run() -> Path | None:
    folder = Path(os.environ.get(arena.VARIABLE, ""))
    if folder == Path():
        return None
    try:
        arena.make_private(folder)
    except NoRoom as error:
        print(f"unicron: no copies are kept in memory: {error}", file=sys.stderr)
        return None
    return folder
