"""Copies of a training's state that outlive its process: files in memory, a few slots each.

A slot is written in place, the oldest one first; its head is taken away before and put back when
everything is there and summed up. So a process may die at any moment, and another slot is whole.

    offset  0  4s  magic, zeros while it is being written      4  u32  CRC of the head from 8 on
            8  u64 train step      16  u64 bytes of the description
           24  u64 bytes of data   32  u32 CRC of the description   36  u32 CRC of the data
           64  the description; the data begin at the next multiple of 4096
The same bytes are a checkpoint on disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unicron import room
from unicron.errors import NoRoom

VARIABLE = "UNICRON_ARENA"  # names the folder, which is private to the user and the run
MAGIC = b"UNS1"
SLOTS = ("slot-0", "slot-1")
ON_DISK = "step-{:010d}.unicron"
ON_DISK_PATTERN = "step-*.unicron"
KEPT_ON_DISK = 2
LARGEST_DESCRIPTION = 1 << 28
PAGE = 4096
_HEAD = struct.Struct("<4sIQQQII")
_SUMMED = struct.Struct("<QQQII")
DESCRIPTION_AT = 64
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE


@dataclass(frozen=True)
class Head:
    """What is said of a copy before it is read, in the order in which it is written."""

    step: int
    described: int
    data_bytes: int
    sum_of_description: int
    sum_of_data: int

    @property
    def start(self) -> int:
        """Where the data begin in the file."""
        return _start_of_data(self.described)


@dataclass(frozen=True)
class Copy:
    """A whole and verified one. `data` is private: writing to it changes no file."""

    step: int
    description: bytes
    data: memoryview
    path: Path


def make_private(folder: Path) -> None:
    """Memory file systems are open to all users: one of them may have taken the name. Raises
    NoRoom."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise NoRoom(f"{folder}: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NoRoom(f"{folder} is not this user's alone: remove it")


class Slot:
    """The writer's side; one process a node writes. Mapped once and reused: that is the speed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._head = b""

    def begin(self, step: int, description: bytes, data_bytes: int) -> memoryview:
        """Where the data go; raises NoRoom."""
        start = _start_of_data(len(description))
        whole = self._mapped(size_of(description, data_bytes))
        whole[: len(MAGIC)] = bytes(len(MAGIC))
        whole[DESCRIPTION_AT : DESCRIPTION_AT + len(description)] = description
        summed = zlib.crc32(description)
        self._head = struct.pack("<QQQI", step, len(description), data_bytes, summed)
        return memoryview(whole)[start : start + data_bytes]

    @property
    def is_mapped(self) -> bool:
        return self._map is not None

    def reserve(self, like: Slot) -> None:
        """Makes room for a copy as large as that one, so that the first one here is fast. NoRoom
        is no trouble yet."""
        if like._map is not None:
            with contextlib.suppress(NoRoom):
                self._mapped(len(like._map))

    def finish(self, data: memoryview, summed: int | None = None) -> None:
        """From here on it is a copy that counts. `summed`: the data's CRC, where it is known."""
        assert self._map is not None
        rest = self._head + struct.pack("<I", zlib.crc32(data) if summed is None else summed)
        head = MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest
        self._map[len(MAGIC) : len(head)] = head[len(MAGIC) :]
        self._map[: len(MAGIC)] = MAGIC

    def _mapped(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            self._map = None
            check_room([self.path], size)
            self._map = _map(self.path, size)
        return self._map


def check_room(paths: Sequence[Path], size: int) -> None:
    """For a copy of `size` bytes in each. They must not be what ends the ranks: half of what is
    left stays theirs. Raises NoRoom."""
    more = sum(max(0, size - (one.stat().st_size if one.exists() else 0)) for one in paths)
    left = room.available_bytes()
    if left is not None and more > left // 2:
        many = f"{len(paths)} copies take" if len(paths) > 1 else "a copy takes"
        raise NoRoom(
            f"{paths[0].parent}: {many} {more >> 20} MiB more and {left >> 20} MiB are left to "
            "this job or node: ask Slurm for more memory"
        )


def _map(path: Path, size: int) -> mmap.mmap:
    """With its memory allocated: running out of it later would be a bus error."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NoRoom(f"{path}: {error}") from error
    try:
        os.posix_fallocate(descriptor, 0, size)
        found = mmap.mmap(descriptor, size)
    except OSError as error:
        os.ftruncate(descriptor, 0)
        raise NoRoom(f"{path.parent} has no room for {size >> 20} MiB: {error}") from error
    finally:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # before Linux 5.14: each page comes at its first use
        found.madvise(_POPULATE_WRITE)
    return found


def head_in(path: Path) -> Head | None:
    """Nothing is verified but the head itself."""
    try:
        with path.open("rb") as file:
            return _head(file.read(_HEAD.size))
    except OSError:
        return None


def step_in(path: Path) -> int | None:
    head = head_in(path)
    return head.step if head else None


def read(path: Path, summed: bool = True) -> Copy | None:
    """None for one that is not there, not complete or not whole; `summed`: not yet known here."""
    try:
        with path.open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):  # ValueError: an empty file
        return None
    head = _head(whole[: _HEAD.size])
    if head is None:
        return None
    start, end = head.start, head.start + head.data_bytes
    if head.described > LARGEST_DESCRIPTION or end > len(whole):
        return None
    description = whole[DESCRIPTION_AT : DESCRIPTION_AT + head.described]
    data = memoryview(whole)[start:end]
    sums = (head.sum_of_description, head.sum_of_data)
    if summed and (zlib.crc32(description), zlib.crc32(data)) != sums:
        return None
    return Copy(head.step, description, data, path)


def newest(folder: Path, pattern: str) -> Copy | None:
    """The verified one with the highest train step; others are tried in turn."""
    found = ((step_in(path), path) for path in folder.glob(pattern))
    steps = sorted(((step, path) for step, path in found if step is not None), reverse=True)
    return next((copy for _, path in steps if (copy := read(path)) is not None), None)


def discard_above(folder: Path, step: int) -> list[int]:
    """Copies that claim a later train step than was agreed on could not be verified: they go, or
    they would be taken for the newest, and the good one be written over. Their train steps. Raises
    OSError."""
    gone = []
    for path in (folder / name for name in SLOTS):
        if (claimed := step_in(path) or 0) > step:
            gone.append(claimed)
            with path.open("r+b") as file:
                file.write(bytes(len(MAGIC)))
    return gone


def oldest_slot(folder: Path) -> str:
    """The one to write next."""
    return min(SLOTS, key=lambda name: -1 if (step := step_in(folder / name)) is None else step)


def keep_on_disk(slot: Path, folder: Path) -> Path:
    """A file of its own for the copy in this slot: whole, or not there. Raises OSError."""
    step = step_in(slot)
    assert step is not None
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / ON_DISK.format(step)
    partial = final.with_suffix(f".{os.getpid()}.partial")
    with slot.open("rb") as source, partial.open("wb") as target:
        while chunk := source.read(1 << 24):
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    partial.replace(final)
    for old in sorted(folder.glob(ON_DISK_PATTERN), reverse=True)[KEPT_ON_DISK:]:
        old.unlink(missing_ok=True)
    return final


class Writer:
    """Who of the node's ranks writes: whoever asks first, until its process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = -1

    def is_me(self) -> bool:
        if self._lock < 0:
            self._lock = _try_lock(self._folder / "writer")
        return self._lock >= 0

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _try_lock(path: Path) -> int:
    """A descriptor that holds the lock, -1 when another process does."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NoRoom(f"{path}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def size_of(description: bytes, data_bytes: int) -> int:
    """Of the whole file."""
    return _start_of_data(len(description)) + data_bytes


def _start_of_data(described: int) -> int:
    return -(-(DESCRIPTION_AT + described) // PAGE) * PAGE


def _head(raw: bytes) -> Head | None:
    if len(raw) < _HEAD.size:
        return None
    magic, summed = raw[:4], int.from_bytes(raw[4:8], "little")
    if magic != MAGIC or zlib.crc32(raw[8 : _HEAD.size]) != summed:
        return None
    return Head(*_SUMMED.unpack(raw[8 : _HEAD.size]))
