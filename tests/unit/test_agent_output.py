"""Output of ranks: a file for each, and a copy that drops rather than stalls."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unicrond.agent import output
from unicrond.agent.output import BEHIND_BYTES, OutputCopy, rank_file, tail


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[OutputCopy]:
    copy = OutputCopy(tmp_path / "slurm-1.out")
    copy.start()
    yield copy
    copy.finish(5.0)


def lines(folder: Path) -> list[str]:
    return (folder / "slurm-1.out").read_text().splitlines()


def test_every_line_is_copied_with_the_mark_of_its_rank(copy: OutputCopy, tmp_path: Path) -> None:
    files = [(rank, rank_file(tmp_path, 1, rank)) for rank in (0, 1)]
    copy.follow(files)
    for rank, file in files:
        file.write_text(f"hello from {rank}\nhalf a line of {rank}")
    copy.finish(5.0)
    assert sorted(lines(tmp_path)) == [
        "[0] half a line of 0",
        "[0] hello from 0",
        "[1] half a line of 1",
        "[1] hello from 1",
    ]


def test_the_last_words_of_an_older_generation_are_copied_too(
    copy: OutputCopy, tmp_path: Path
) -> None:
    old, new = rank_file(tmp_path, 1, 0), rank_file(tmp_path, 2, 0)
    copy.follow([(0, old)])
    old.write_text("last words")
    copy.follow([(0, new)])
    new.write_text("hello again\n")
    copy.finish(5.0)
    assert sorted(lines(tmp_path)) == ["[0] hello again", "[0] last words"]


def test_a_file_that_is_followed_already_goes_on_under_its_new_rank(
    copy: OutputCopy, tmp_path: Path
) -> None:
    kept, new = rank_file(tmp_path, 1, 3), rank_file(tmp_path, 2, 3)
    kept.write_text("as 3\n")
    copy.follow([(3, kept)])
    while not (tmp_path / "slurm-1.out").exists():
        time.sleep(0.005)
    copy.follow([(0, kept), (3, new)])
    with kept.open("a") as file:
        file.write("as 0\n")
    new.write_text("another\n")
    copy.finish(5.0)
    assert sorted(lines(tmp_path)) == ["[0] as 0", "[3] another", "[3] as 3"]


def test_a_copy_that_falls_behind_leaves_bytes_out_and_counts_them(
    copy: OutputCopy, tmp_path: Path
) -> None:
    file = rank_file(tmp_path, 1, 0)
    line = b"x" * 99 + b"\n"
    file.write_bytes(line * (BEHIND_BYTES // 100 + 1000) + b"the end\n")
    copy.follow([(0, file)])
    copy.finish(5.0)
    found = lines(tmp_path)
    assert "bytes left out here" in found[0] and str(file) in found[0]
    assert found[-1] == "[0] the end"
    assert len(found) < 5000


def test_what_the_agent_says_stands_between_the_ranks_lines(
    copy: OutputCopy, tmp_path: Path
) -> None:
    copy.say("rank 1 on n2 ended by signal 9")
    copy.finish(5.0)
    assert lines(tmp_path) == ["[unicron] rank 1 on n2 ended by signal 9"]


def test_a_lock_that_another_node_never_gives_back_does_not_stop_the_copy(
    copy: OutputCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_LOCK_SECONDS", 0.1)

    def held(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "lockf", held)
    copy.say("still here")
    copy.finish(5.0)
    assert lines(tmp_path) == ["[unicron] still here"]


def test_where_there_is_no_file_to_copy_to_nothing_breaks(tmp_path: Path) -> None:
    for target in (None, tmp_path / "no/such/folder/out"):
        copy = OutputCopy(target)
        file = rank_file(tmp_path, 1, 0)
        file.write_text("words\n")
        copy.follow([(0, file)])
        copy.start()
        copy.finish(5.0)
        assert not copy.is_alive()


def test_the_report_of_an_end_has_the_last_lines(tmp_path: Path) -> None:
    file = rank_file(tmp_path, 1, 0)
    file.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert tail(file).splitlines() == [f"line {number}" for number in range(950, 1000)]
    assert "not readable" in tail(tmp_path / "none")
