"""State that is divided over ranks (FSDP2, tensor parallel: DTensors) as parts: what one rank keeps
of it, and what the parts of all ranks make. Uses torch; reads and writes nothing.

    description of a part: that of unicron/state.py, and
        named    each tensor of the state: path, dtype, whole shape, whether it is divided
        chunks   for each tensor of the data: its number in `named`, its place in the whole
        rank, size    of the world that wrote it
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from unicron import state
from unicron.errors import CannotKeep, CannotLoad

Key = tuple[str, tuple[int, ...]]  # a chunk: the tensor's name, its place in the whole


@dataclass(frozen=True)
class Named:
    """One tensor of the state, as it is on all ranks together."""

    path: tuple[str | int, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    divided: bool

    @property
    def name(self) -> str:
        """As torch.distributed.checkpoint names it."""
        return ".".join(map(str, self.path))


@dataclass(frozen=True)
class Chunk:
    """What this rank has of one tensor; `holders` have the same, and are all where it is empty."""

    number: int
    offsets: tuple[int, ...]
    holders: tuple[int, ...]
    tensor: Tensor


@dataclass(frozen=True)
class Part:
    """What one rank has kept, as its description says."""

    rank: int
    size: int
    named: tuple[Named, ...]
    chunks: dict[Key, tuple[int, tuple[int, ...]]]  # its number in the data, its shape
    rest: str


def is_divided(what: Mapping[str, Any]) -> bool:
    return any(isinstance(one, DTensor) for value in what.values() for one in _first_level(value))


def _first_level(value: Any) -> list[Any]:
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    return list(value.values()) if isinstance(value, Mapping) else [value]


def collect(what: Mapping[str, Any]) -> tuple[bytes, list[Named], list[Chunk]]:
    """What is there now, not yet copied. The first two are alike on all ranks. Raises
    CannotKeep."""
    found: list[tuple[tuple[str | int, ...], Tensor]] = []
    plain = {name: _taken_out(_state_of(part), (name,), found) for name, part in what.items()}
    skeleton, tensors = state.collect(plain)
    named = [
        Named(path, one.dtype, tuple(one.shape), isinstance(one, DTensor)) for path, one in found
    ]
    if len(tensors) != len(named) or len({one.name for one in named}) != len(named):
        raise CannotKeep("tensors within other objects, or two of the same name")
    chunks = [_chunk(number, one) for number, (_, one) in enumerate(found)]
    return skeleton, named, chunks


def _state_of(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def _taken_out(value: Any, path: tuple[str | int, ...], found: list[Any]) -> Any:
    """The same with local tensors, in the order in which state.collect meets them."""
    if isinstance(value, Tensor):
        found.append((path, value.detach()))
        return _local(value)
    if isinstance(value, Mapping):
        return {key: _taken_out(one, (*path, key), found) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_taken_out(one, (*path, n), found) for n, one in enumerate(value))
    return value


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def _chunk(number: int, tensor: Tensor) -> Chunk:
    if not isinstance(tensor, DTensor):
        return Chunk(number, (0,) * tensor.dim(), (), tensor)
    (place,) = tensor.__create_chunk_list__()
    mesh, at = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if at is None or any(one.is_partial() for one in tensor.placements):
        raise CannotKeep("a DTensor with sums that are pending, or of a mesh without this rank")
    same = [
        slice(None) if one.is_replicate() else where
        for one, where in zip(tensor.placements, at, strict=True)
    ]
    holders = sorted(mesh.mesh[tuple(same)].flatten().tolist())
    return Chunk(number, tuple(place.offsets), tuple(holders), tensor.to_local())


def describe(
    skeleton: bytes, named: Sequence[Named], chunks: Sequence[Chunk], rank: int, size: int
) -> tuple[bytes, int]:
    """The description of a part with these chunks, and how many bytes its data have."""
    description, data_bytes = state.describe(skeleton, [one.tensor for one in chunks])
    more = {
        "named": [[one.path, _text(one.dtype), one.shape, one.divided] for one in named],
        "chunks": [[one.number, one.offsets] for one in chunks],
        "rank": rank,
        "size": size,
    }
    return json.dumps({**json.loads(description), **more}).encode(), data_bytes


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read(description: bytes) -> Part:
    """Raises CannotLoad."""
    try:
        body = json.loads(description)
        named = tuple(
            Named(tuple(path), getattr(torch, dtype), tuple(shape), divided)
            for path, dtype, shape, divided in body["named"]
        )
        chunks = {
            (named[number].name, tuple(offsets)): (place, tuple(body["tensors"][place][1]))
            for place, (number, offsets) in enumerate(body["chunks"])
        }
        return Part(body["rank"], body["size"], named, chunks, body["rest"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CannotLoad(f"the description of a part is not as it was written: {error}") from error


def missing(parts: Sequence[Part]) -> str:
    """Why these parts of one train step are not the whole state; empty if they are."""
    if not parts:
        return "no part of it is whole"
    have: dict[str, int] = {}
    seen: set[Key] = set()
    for part in parts:
        for key, (_, shape) in part.chunks.items():
            if key not in seen:
                have[key[0]] = have.get(key[0], 0) + math.prod(shape)
                seen.add(key)
    gone = [one.name for one in parts[0].named if have.get(one.name, 0) != math.prod(one.shape)]
    if not gone:
        return ""
    lost = sorted(set(range(parts[0].size)) - {part.rank for part in parts})
    whose = f"what rank {', '.join(map(str, lost))} of {parts[0].size} kept" if lost else "it"
    return f"{whose} is not whole or not within reach: {gone[0]} is incomplete"


def metadata(named: Sequence[Named], rows: Iterable[tuple[Key, tuple[int, ...]]]) -> Metadata:
    """Of chunks, given with their shapes."""
    found = {
        one.name: TensorStorageMetadata(
            TensorProperties(dtype=one.dtype), torch.Size(one.shape), []
        )
        for one in named
    }
    for (name, offsets), shape in rows:
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(shape))
        found[name].chunks.append(chunk)
    return Metadata(found)


def targets(what: Mapping[str, Any], named: Sequence[Named]) -> list[Tensor]:
    """Where each tensor is read into: a module's own, and of others what is divided as now.
    Raises CannotLoad."""
    strange = {str(one.path[0]) for one in named} - set(what)
    if strange:
        raise CannotLoad(f"the copy has {sorted(strange)}, asked for is {sorted(what)}")
    now = {name: _state_of(value) for name, value in what.items()}
    owners = [str(one.path[0]) for one in named]
    return [_target(what[owner], now[owner], one) for owner, one in zip(owners, named, strict=True)]


def _target(owner: Any, now: Any, one: Named) -> Tensor:
    if isinstance(owner, torch.optim.Optimizer):
        like = _parameter_of(owner, one)
    else:
        like = _at(now, one.path[1:])
    fits = like is not None and tuple(like.shape) == one.shape
    if fits and isinstance(owner, torch.nn.Module):
        return like.detach()  # type: ignore[union-attr]
    if fits:
        return torch.empty_like(like, dtype=one.dtype, requires_grad=False)
    if one.divided or isinstance(owner, torch.nn.Module):
        raise CannotLoad(f"{one.name} has the shape {one.shape} in the copy, and not here")
    return torch.empty(one.shape, dtype=one.dtype)


def _parameter_of(optimizer: torch.optim.Optimizer, one: Named) -> Tensor | None:
    """State of an optimizer is divided as the parameter that it belongs to, also before there is
    any."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    _, kind, number, *_ = (*one.path, None, None)
    if kind != "state" or not isinstance(number, int) or number >= len(parameters):
        return None
    found: Tensor = parameters[number]
    return found.detach()


def _at(now: Any, path: Sequence[str | int]) -> Tensor | None:
    for key in path:
        if isinstance(now, (list, tuple)):
            now = dict(enumerate(now))
        if not isinstance(now, Mapping) or key not in now:
            return None
        now = now[key]
    return now if isinstance(now, Tensor) else None
