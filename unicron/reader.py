"""Reads parts of a state that lie in memory, for torch.distributed.checkpoint: the layout that is
asked for may be another than the one that was kept.

What lies on other nodes is handed over by a rank there, chunk by chunk, in an order that all ranks
know. So nobody waits for somebody who waits for him.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from unicron import arena, parts, state, world
from unicron.errors import CannotLoad
from unicron.parts import Key, Part
from unicron.world import World


@dataclass(frozen=True)
class Place:
    """Where a chunk lies: a part of a node, and the number in its data."""

    node: str
    file: str
    number: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Reader(StorageReader):  # type: ignore[misc]  # torch is not seen by the type checker
    """Of the parts of one train step, given by (node, file within the node's folder). All ranks
    make one, and call its methods alike."""

    def __init__(self, found: Mapping[tuple[str, str], Part], here: World, folder: Path) -> None:
        self._world, self._folder = here, folder
        self._mine = here.nodes[here.rank]
        self._places: dict[Key, list[Place]] = {}
        self._views: dict[str, list[Tensor]] = {}
        self._handed: dict[Key, Tensor] = {}
        for (node, file), part in sorted(found.items()):
            dtypes = {one.name: one.dtype for one in part.named}
            for key, (number, shape) in part.chunks.items():
                place = Place(node, file, number, dtypes[key[0]], shape)
                self._places.setdefault(key, []).append(place)
        self._named = next(iter(found.values())).named

    def reset(self, checkpoint_id: Any = None) -> None:
        self._handed.clear()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        rows = ((key, at[0].shape) for key, at in self._places.items())
        return parts.metadata(self._named, rows)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """All is known since the beginning."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Here what lies elsewhere is handed over, since all ranks come by."""
        keys = {_key(item.storage_index) for item in plan.items}
        away = sorted(key for key in keys if self._here(key) is None)
        for target, wanted in enumerate(world.exchange(away)):
            for key in wanted:
                self._hand_over(key, target)
        return plan

    def _hand_over(self, key: Key, target: int) -> None:
        for place in self._places[key]:
            ranks = self._world.on(place.node)
            if ranks:
                source = ranks[target % len(ranks)]
                break
        else:
            raise CannotLoad(f"{key[0]} lies on {self._places[key][0].node}, where no rank is")
        if self._world.rank == source:
            world.hand_over(self._view(place), source, target, source)
        elif self._world.rank == target:
            self._handed[key] = torch.empty(place.shape, dtype=place.dtype)
            world.hand_over(self._handed[key], source, target, target)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            piece = self._chunk(_key(item.storage_index))
            for dim, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                piece = piece.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(piece)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

    def _here(self, key: Key) -> Place | None:
        return next((one for one in self._places[key] if one.node == self._mine), None)

    def _chunk(self, key: Key) -> Tensor:
        place = self._here(key)
        return self._view(place) if place else self._handed[key]

    def _view(self, place: Place) -> Tensor:
        """Whether it is whole was found out before, by one rank of the node."""
        if place.file not in self._views:
            copy = arena.read(self._folder / place.file, summed=False)
            if copy is None:
                raise CannotLoad(f"{place.file} was there, and is no more")
            self._views[place.file] = state.views(copy.description, copy.data)
        return self._views[place.file][place.number]


def _key(index: MetadataIndex) -> Key:
    return index.fqn, tuple(index.offset or ())


def verified(folder: Path, files: Sequence[str]) -> list[tuple[str, bytes | None]]:
    """Their descriptions, of those that are whole."""
    found = ((file, arena.read(folder / file)) for file in files)
    return [(file, copy.description if copy else None) for file, copy in found]
