"""Copies in memory: whatever moment their writer dies at, and whatever happens to the bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unicron import arena, room
from unicron.arena import SLOTS, Slot, Writer
from unicron.errors import NoRoom


def put(path: Path, step: int, data: bytes = b"state", finish: bool = True) -> None:
    slot = Slot(path)
    place = slot.begin(step, b"description", len(data))
    place[:] = data
    if finish:
        slot.finish(place)


def test_a_finished_copy_is_read_as_it_was_written(tmp_path: Path) -> None:
    put(tmp_path / "slot-0", 7, b"x" * 10_000)
    found = arena.read(tmp_path / "slot-0")
    assert found is not None
    assert (found.step, found.description) == (7, b"description")
    assert bytes(found.data) == b"x" * 10_000


def test_a_slot_whose_writer_died_while_writing_does_not_count(tmp_path: Path) -> None:
    put(tmp_path / "slot-0", 6)
    put(tmp_path / "slot-1", 7)
    put(tmp_path / arena.oldest_slot(tmp_path), 8, finish=False)
    found = arena.newest(tmp_path, "slot-*")
    assert found is not None and found.step == 7
    assert arena.oldest_slot(tmp_path) == "slot-0", "the other one stays whole"


@pytest.mark.parametrize("place", [1, 9, 17, 33, 37, 64, 70, 4096, 4100])
def test_a_copy_with_one_wrong_byte_is_passed_over(tmp_path: Path, place: int) -> None:
    put(tmp_path / "slot-0", 6)
    put(tmp_path / "slot-1", 7)
    raw = bytearray((tmp_path / "slot-1").read_bytes())
    raw[place] ^= 4
    (tmp_path / "slot-1").write_bytes(raw)
    found = arena.newest(tmp_path, "slot-*")
    assert found is not None and found.step == 6


@pytest.mark.parametrize("length", [0, 3, 39, 40, 70, 4100])
def test_a_copy_that_was_cut_off_is_passed_over(tmp_path: Path, length: int) -> None:
    put(tmp_path / "slot-0", 6)
    os.truncate(tmp_path / "slot-0", length)
    assert arena.read(tmp_path / "slot-0") is None


def test_a_copy_that_cannot_be_verified_is_written_over_before_the_good_one(
    tmp_path: Path,
) -> None:
    put(tmp_path / "slot-0", 6)
    put(tmp_path / "slot-1", 7)
    with (tmp_path / "slot-1").open("r+b") as file:
        file.seek(4096)
        file.write(b"wrong")
    assert arena.oldest_slot(tmp_path) == "slot-0", "it claims to be the newest"
    arena.discard_above(tmp_path, 6)
    assert arena.oldest_slot(tmp_path) == "slot-1"


def test_a_slot_grows_and_shrinks_with_what_it_holds(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot-0")
    for step, size in enumerate((10, 100_000, 20)):
        place = slot.begin(step, b"d" * size, size)
        place[:] = bytes([step]) * size
        slot.finish(place)
        found = arena.read(tmp_path / "slot-0")
        assert found is not None
        assert (found.step, bytes(found.data)) == (step, bytes([step]) * size)


def test_what_is_read_is_not_changed_by_writing_to_it(tmp_path: Path) -> None:
    put(tmp_path / "slot-0", 7)
    found = arena.read(tmp_path / "slot-0")
    assert found is not None
    found.data[0] = 0
    assert arena.read(tmp_path / "slot-0") is not None


def test_one_process_a_node_writes(tmp_path: Path) -> None:
    first, second = Writer(tmp_path), Writer(tmp_path)
    assert first.is_me() and not second.is_me() and first.is_me()


def test_what_goes_to_disk_is_whole_and_the_newest_two_stay(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    for step in (9, 10, 11):
        put(tmp_path / "slot-0", step)
        arena.keep_on_disk(tmp_path / "slot-0", disk)
    assert sorted(path.name for path in disk.iterdir()) == [
        "step-0000000010.unicron",
        "step-0000000011.unicron",
    ]
    found = arena.newest(disk, arena.ON_DISK_PATTERN)
    assert found is not None and found.step == 11


def test_a_copy_that_would_take_more_than_half_of_what_is_left_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda: 100 << 20)
    with pytest.raises(NoRoom, match="ask Slurm for more memory"):
        Slot(tmp_path / SLOTS[0]).begin(1, b"", 60 << 20)
    Slot(tmp_path / SLOTS[0]).begin(1, b"", 10 << 20)


def test_a_folder_that_cannot_be_written_is_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoRoom, match="file"):
        put(tmp_path / "file" / "slot-0", 1)
    with pytest.raises(NoRoom, match="file"):
        Writer(tmp_path / "file").is_me()


def test_a_folder_that_others_can_reach_is_not_used(tmp_path: Path) -> None:
    ours, open_to_all = tmp_path / "ours", tmp_path / "open"
    arena.make_private(ours)
    arena.make_private(ours)
    assert ours.stat().st_mode & 0o777 == 0o700
    open_to_all.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(ours)
    for wrong in (open_to_all, tmp_path / "link", tmp_path / "none" / "deeper"):
        with pytest.raises(NoRoom):
            arena.make_private(wrong)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_tightest_of_machine_and_cgroups_counts(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/system.slice/job_7"
    root = machine(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 800 kB\n",
            "proc/self/cgroup": "0::/system.slice/job_7/step_0\n",
            f"{job}/step_0/memory.max": "max\n",
            f"{job}/step_0/memory.current": "5000\n",
            f"{job}/memory.max": "50000\n",
            f"{job}/memory.current": "45000\n",
            f"{job}/memory.stat": "anon 1\ninactive_file 1000\nactive_file 200\n",
        },
    )
    assert room.available_bytes(root) == 50000 - 45000 + 1200


def test_older_cgroups_are_asked_too_and_nothing_known_is_no_limit(tmp_path: Path) -> None:
    job = "sys/fs/cgroup/memory/slurm/job_7"
    root = machine(
        tmp_path / "v1",
        {
            "proc/self/cgroup": "4:cpu:/x\n3:memory:/slurm/job_7\n",
            f"{job}/memory.limit_in_bytes": "900\n",
            f"{job}/memory.usage_in_bytes": "950\n",
        },
    )
    assert room.available_bytes(root) == 0
    assert room.available_bytes(tmp_path / "nothing") is None
