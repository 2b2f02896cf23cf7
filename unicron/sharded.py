"""`unicron.checkpoint` and `unicron.restore` for state that is divided over ranks (FSDP2, HSDP,
tensor parallel: DTensors), and restored by as many ranks as there are then.

    checkpoint    the ranks agree which slots may be written over (unicron/slots.py). Each copies
                  what it alone has on its node -> [behind training's back] NaN check, sums, head,
                  storage; and the agent hands it to other nodes
    restore       of the train steps of which there are parts, the newest whose parts are whole and
                  make the state; memory before storage where equal. What is refused is told

    ARENA/set-TOKEN/part-RANK.SLOT         as unicron/arena.py has it; a set is of one generation,
                                           and goes when the next one has a train step safe
    ARENA/set-TOKEN/part-RANK.SLOT@NODE    the same of a rank of another node, put there by agents
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.storage import StorageReader

from unicron import arena, parts, reader, replicated, report, slots, state, storage, world
from unicron.behind import Behind
from unicron.errors import CannotKeep, CannotLoad, NoRoom
from unicron.parts import Chunk, Named, Part
from unicron.slots import NOTHING, SLOTS, Agreed, Row
from unicron.warm import folder_of_this_run
from unicron.world import World

MOST_TRIED = 8  # train steps that restore looks at


@dataclass(frozen=True)
class Found:
    """What was restored; `refused`: newer ones, and why."""

    step: int
    in_memory: bool
    refused: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """Ordered by what is better. `where`: the set in memory, or the folder's name."""

    step: int
    in_memory: bool
    where: str

    @property
    def said(self) -> str:
        return f"train step {self.step} {'in memory' if self.in_memory else 'on storage'}"


@dataclass(frozen=True)
class Copying:
    """One train step of this rank, on its way into a slot."""

    step: int
    slot: arena.Slot
    data: memoryview
    views: list[Tensor]
    description: bytes
    to_disk: Path | None
    on_disk: list[tuple[Named, parts.Key, Tensor]]


class Sharded:
    """Of one process. `folder` is in memory; None outside a run, or where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="unicron-")
        self._folder = folder or Path(self._temporary.name)  # type: ignore[union-attr]
        self._world: World | None = None
        self._slots: list[arena.Slot] = []
        self._older = False  # there are sets of earlier worlds
        self._alone = False  # what this rank keeps lies on too few other nodes by itself
        self._behind = Behind("unicron-sharded")

    def checkpoint(self, what: Mapping[str, Any], step: int, disk: Path | None) -> None:
        """All ranks call it, after the same train step."""
        here = self._in_world()
        try:
            self.settle()
            late = ""
        except NoRoom as error:
            late = str(error)
        agreed = self._agree(here)  # the others wait for it, whatever happened here
        if agreed.safe != NOTHING and self._older:
            self._older = False
            if here.first_here:
                self._forget(but=f"set-{here.token}")
        try:
            if late:
                raise NoRoom(late)
            self._copy(here, what, step, agreed, disk)
        except (NoRoom, CannotKeep) as error:
            self._behind.say_once(f"train step {step} is not kept: {error}")

    def _in_world(self) -> World:
        if self._world is None or not self._world.is_of(world.place_now()):
            self._enter(world.meet(self._folder))
        assert self._world is not None
        return self._world

    def _enter(self, here: World) -> None:
        self._world, home = here, f"set-{here.token}"
        self._older = any(one.name != home for one in self._folder.glob("set-*"))
        self._slots = [
            arena.Slot(self._folder / home / f"part-{here.rank}.{slot}") for slot in range(SLOTS)
        ]

    def _usable(self) -> list[arena.Slot]:
        """What was restored takes the memory of one."""
        return self._slots[: SLOTS - self._older]

    def _agree(self, here: World) -> Agreed:
        row = [_step(slot) for slot in self._usable()]
        told = replicated.read(self._folder)
        whole = [step for step in row if step != NOTHING]
        safe = (
            replicated.safe(told, f"set-{here.token}", here.rank, whole) if self._alone else whole
        )
        rows = world.numbers(slots.packed(Row(tuple(row), tuple(safe))))
        return slots.agree([slots.unpacked(one) for one in rows])

    def _copy(
        self, here: World, what: Mapping[str, Any], step: int, agreed: Agreed, disk: Path | None
    ) -> None:
        skeleton, named, chunks = parts.collect(what)
        kept = [one for one in chunks if here.keeps(one.holders) and one.tensor.numel()]
        description, size = parts.describe(skeleton, named, kept, here.rank, here.size)
        copies = self._find_out_whether_alone(here, kept)
        if here.rank == 0 and not self._slots[0].is_mapped:
            again = f", as much again of each of {copies} other nodes" if self._alone else ""
            print(
                f"unicron: copies in memory take {SLOTS} x {size >> 20} MiB of each of "
                f"{len(here.here)} ranks on this node{again}",
                file=sys.stderr,
            )
        target = disk / storage.NAME.format(step, here.token) if disk else None
        slot, data = self._begin(step, description, size, agreed, target)
        views = state.views(description, data)
        with torch.no_grad():
            for view, chunk in zip(views, kept, strict=True):
                view.copy_(chunk.tensor)
        on_disk = [
            (named[chunk.number], (named[chunk.number].name, chunk.offsets), view)
            for chunk, view in zip(kept, views, strict=True)
            if (chunk.holders or (0,))[0] == here.rank
        ]
        copying = Copying(step, slot, data, views, description, target, on_disk)
        self._behind.start(lambda: self._finish(here, copying))

    def _find_out_whether_alone(self, here: World, kept: Sequence[Chunk]) -> int:
        """Else the agent need not hand it to other nodes, and is told so. How many these are."""
        copies = replicated.read(self._folder).copies
        self._alone = any(here.elsewhere(one.holders) < copies for one in kept)
        mark = self._slots[0].path.with_name(replicated.ELSEWHERE.format(here.rank))
        if self._alone or not copies:
            mark.unlink(missing_ok=True)
        elif not mark.exists():
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch()
        return copies

    def _begin(
        self, step: int, description: bytes, size: int, agreed: Agreed, disk: Path | None
    ) -> tuple[arena.Slot, memoryview]:
        """Without room in memory, what is wanted on storage is gathered there."""
        usable = self._usable()
        number = slots.to_write([_step(one) for one in usable], agreed) if agreed.go else None
        try:
            if number is None:
                raise NoRoom("earlier copies are still on their way to other nodes")
            slot = usable[number]
            with _one_at_a_time(self._folder):
                if not slot.is_mapped:
                    most = arena.size_of(description, size)
                    arena.check_room([one.path for one in usable], most)
                return slot, slot.begin(step, description, size)
        except NoRoom as error:
            if disk is None:
                raise
            self._behind.say_once(f"train step {step} is on storage only: {error}")
            slot = arena.Slot(disk / f".{slot.path.name}")
            return slot, slot.begin(step, description, size)

    def _finish(self, here: World, copying: Copying) -> None:
        if state.has_nan(copying.views):
            self._behind.say_once(f"train step {copying.step} is not kept: it has NaN")
            return
        in_memory = copying.slot in self._slots
        copying.slot.finish(copying.data)
        if in_memory:
            with contextlib.suppress(NoRoom), _one_at_a_time(self._folder):
                for other in self._usable():
                    other.reserve(like=copying.slot)
        if copying.to_disk is None:
            return
        try:
            storage.write(
                copying.to_disk, here.rank, here.size, copying.on_disk, copying.description
            )
            if not in_memory:
                copying.slot.path.unlink()
        except OSError as error:
            self._behind.say_once(f"train step {copying.step} is not on storage: {error}")

    def settle(self) -> None:
        """The newest copy counts, or never will."""
        self._behind.settle()

    def restore(self, what: MutableMapping[str, Any], disk: Path | None) -> Found | None:
        """All ranks call it, in the same generation."""
        self.settle()
        here = world.meet(self._folder)
        refused: list[str] = []
        best: Candidate | None = None
        for candidate in self._candidates(here, disk)[:MOST_TRIED]:
            why = self._load(here, what, candidate, disk, refused)
            if not why:
                best = candidate
                break
            refused.append(f"{candidate.said} is refused: {why}")
        world.together()  # nobody reads any more
        if here.first_here:
            stays = best if best is not None and best.in_memory else Candidate(NOTHING, True, "")
            self._forget(but=stays.where, step=stays.step)
        self._enter(here)
        if here.rank == 0:
            self._tell(best, refused)
        return Found(best.step, best.in_memory, tuple(refused)) if best else None

    def _candidates(self, here: World, disk: Path | None) -> list[Candidate]:
        """The same on all ranks, the best first."""
        mine: list[tuple[int, bool, str]] = []
        if here.first_here:
            steps = ((arena.step_in(path), path) for path in self._folder.glob("set-*/part-*"))
            mine += {(step, True, path.parent.name) for step, path in steps if step is not None}
        if here.rank == 0 and disk is not None:
            mine += [(one.step, False, one.folder.name) for one in storage.newest(disk)]
        told = {one for each in world.exchange(mine) for one in each}
        return [Candidate(*one) for one in sorted(told, reverse=True)]

    def _load(
        self,
        here: World,
        what: MutableMapping[str, Any],
        one: Candidate,
        disk: Path | None,
        refused: list[str],
    ) -> str:
        """Why it is refused, the same on all ranks; empty if it is loaded."""
        if not one.in_memory:
            assert disk is not None
            whole = storage.Whole(one.step, disk / one.where)
            why = world.exchange(storage.trouble_with(whole) if here.rank == 0 else "")[0]
            if why:
                return str(why)
            part = parts.read((whole.folder / "unicron.json").read_bytes())
            _load(what, part, FileSystemReader(whole.folder))
            return ""
        found = self._parts(here, one, refused)
        why = parts.missing(list(found.values()))
        if not why:
            source = reader.Reader(found, here, self._folder)
            _load(what, next(iter(found.values())), source)
        return str(why)

    def _parts(
        self, here: World, one: Candidate, refused: list[str]
    ) -> dict[tuple[str, str], Part]:
        """Those of this train step that are whole: a replica where there is no other. Ranks of a
        node share in the reading of them."""
        node, at = here.nodes[here.rank], here.here.index(here.rank)
        paths = (self._folder / one.where).glob("part-*") if here.first_here else ()
        mine = [f"{one.where}/{path.name}" for path in paths if arena.step_in(path) == one.step]
        told = [
            tuple(row) for rows in world.exchange([(node, file) for file in mine]) for row in rows
        ]
        places: dict[str, list[tuple[str, str]]] = {}
        for place in sorted(told, key=lambda place: ("@" in place[1], place)):
            places.setdefault(place[1].partition("@")[0], []).append(place)
        found: dict[tuple[str, str], Part] = {}
        while wanted := [those[0] for those in places.values() if those]:
            here_wanted = [file for on, file in wanted if on == node][at :: len(here.here)]
            rows = world.exchange(
                [(node, *row) for row in reader.verified(self._folder, here_wanted)]
            )
            for on, file, description in sorted(row for some in rows for row in some):
                those = places[file.partition("@")[0]]
                if description is None:
                    refused.append(f"{file} of {one.said} is refused: it is damaged on {on}")
                    those.pop(0)
                else:
                    found[on, file] = parts.read(description)
                    those.clear()
        return found

    def _forget(self, but: str, step: int | None = None) -> None:
        """Memory of other sets is given back; of the one that stays only this train step counts."""
        for home in self._folder.glob("set-*"):
            if home.name != but:
                shutil.rmtree(home, ignore_errors=True)
        if step is not None and but:
            for path in (self._folder / but).glob("part-*"):
                if arena.step_in(path) != step:
                    path.unlink(missing_ok=True)

    def _tell(self, best: Candidate | None, refused: Sequence[str]) -> None:
        lines = [*refused, *([f"{best.said} is restored"] if best else ())]
        for line in lines:
            print(f"unicron: {line}", file=sys.stderr)
        report.restored(lines)


def _step(slot: arena.Slot) -> int:
    step = arena.step_in(slot.path)
    return NOTHING if step is None else step


def _load(what: MutableMapping[str, Any], part: Part, source: StorageReader) -> None:
    """Raises CannotLoad."""
    targets = parts.targets(what, part.named)
    flat = {one.name: target for one, target in zip(part.named, targets, strict=True)}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    metadata = source.read_metadata()
    planner.set_up_planner(flat, metadata, False)
    source.set_up_storage_reader(metadata, False)
    plan = source.prepare_local_plan(planner.create_local_plan())
    source.read_data(planner.finish_plan(plan), planner).wait()
    found = state.rest(part.rest, targets)
    if set(found) != set(what):
        raise CannotLoad(f"the copy has {sorted(found)}, asked for is {sorted(what)}")
    for name, value in found.items():
        if hasattr(what[name], "load_state_dict"):
            what[name].load_state_dict(value)
        else:
            what[name] = value


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Among the node's ranks: each takes its memory before the next one sees what is left."""
    try:
        descriptor = os.open(folder / "room", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NoRoom(f"{folder}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_sharded: Sharded | None = None


def of_this_process() -> Sharded:
    global _sharded
    if _sharded is None:
        _sharded = Sharded(folder_of_this_run())
    return _sharded
