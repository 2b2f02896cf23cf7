"""Parts of a state on storage, in the format of torch.distributed.checkpoint: each rank writes its
own behind training's back, without a collective, and who finds that all are there ends it.

    folder/step-0000000100-TOKEN/
        __RANK_0.distcp     tensors, as torch.distributed.checkpoint.FileSystemWriter puts them
        RANK.part           what that wrote: pickled, as the metadata are
        unicron.json        names, and what are no tensors
        finished            by whom it is ended; then `.metadata`, and it counts
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from unicron import parts
from unicron.arena import KEPT_ON_DISK
from unicron.errors import CannotLoad
from unicron.parts import Key, Named

NAME = "step-{:010d}-{}"
PATTERN = re.compile(r"step-(\d{10})-\d{20}")


@dataclass(frozen=True)
class Whole:
    """One that counts, of a train step."""

    step: int
    folder: Path


class _Views(DefaultSavePlanner):  # type: ignore[misc]  # torch is not seen by the type checker
    def __init__(self, views: dict[Key, Tensor]) -> None:
        super().__init__()
        self._views = views

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._views[index.fqn, tuple(index.offset)]


def write(
    folder: Path, rank: int, size: int, views: Sequence[tuple[Named, Key, Tensor]], text: bytes
) -> None:
    """What this rank has of it; `text` is the description of its part. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriter(folder)
    plan = SavePlan([_item(one, key, view) for one, key, view in views])
    mine = writer.prepare_global_plan([SavePlan([])] * rank + [plan])[rank]
    planner = _Views({key: view for _, key, view in views})
    results = writer.write_data(mine, planner).wait()
    rows = [(key, tuple(view.shape)) for _, key, view in views]
    if rank == 0:
        body = json.loads(text)
        _put(folder / "unicron.json", json.dumps(body).encode())
    _put(folder / f"{rank}.part", pickle.dumps((rows, results)))
    _finish(folder, size, parts.read(text).named)


def _item(one: Named, key: Key, view: Tensor) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(key[1]), view.shape)
    data = TensorWriteData(chunk, TensorProperties(dtype=one.dtype), torch.Size(one.shape))
    return WriteItem(MetadataIndex(one.name, key[1]), WriteItemType.SHARD, tensor_data=data)


def _put(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _finish(folder: Path, size: int, named: Sequence[Named]) -> None:
    """If all parts are there, and nobody else does it."""
    there = [folder / f"{rank}.part" for rank in range(size)]
    if not all(path.exists() for path in there):
        return
    with contextlib.suppress(FileExistsError):
        (folder / "finished").touch(exist_ok=False)
        written = [pickle.loads(path.read_bytes()) for path in there]
        metadata = parts.metadata(named, [row for rows, _ in written for row in rows])
        FileSystemWriter(folder).finish(metadata, [results for _, results in written])
        _forget_older(folder.parent)


def _forget_older(parent: Path) -> None:
    kept = newest(parent)[:KEPT_ON_DISK]
    oldest = kept[-1].folder.name
    for path in parent.iterdir():
        if PATTERN.fullmatch(path.name) and path.name < oldest:
            shutil.rmtree(path, ignore_errors=True)


def newest(folder: Path) -> list[Whole]:
    """Those that count, the newest first."""
    names = sorted((path.parent.name for path in folder.glob("*/.metadata")), reverse=True)
    found = ((name, PATTERN.fullmatch(name)) for name in names)
    return [Whole(int(match[1]), folder / name) for name, match in found if match]


def trouble_with(whole: Whole) -> str:
    """Why it cannot be read; empty if it can, as far as sizes tell."""
    try:
        parts.read((whole.folder / "unicron.json").read_bytes())
        metadata = FileSystemReader(whole.folder).read_metadata()
        for one in metadata.storage_data.values():
            path = whole.folder / one.relative_path
            if path.stat().st_size < one.offset + one.length:
                return f"{path} is cut off"
    except (OSError, ValueError, EOFError, pickle.UnpicklingError, CannotLoad) as error:
        return f"{whole.folder}: {error}"
    return ""
