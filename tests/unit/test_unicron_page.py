"""The progress page: what one process writes, another reads; nothing in it can hurt the reader."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from unicron import page


def test_what_a_rank_writes_its_agent_reads(tmp_path: Path) -> None:
    path = tmp_path / "page"
    page.make(path)
    mine = page.Page(str(path))
    mine.joined()
    mine.iterated(41)
    mine.enter("checkpoint")
    seen = page.read(path)
    assert seen is not None
    assert (seen.iteration, seen.count, seen.phase, seen.whole) == (41, 1, "checkpoint", True)
    assert seen.phase_ns >= seen.iteration_ns >= seen.joined_ns > 0


def test_uncounted_iterations_go_up_by_one(tmp_path: Path) -> None:
    page.make(tmp_path / "page")
    mine = page.Page(str(tmp_path / "page"))
    for _ in range(3):
        mine.iterated()
    seen = page.read(tmp_path / "page")
    assert seen is not None
    assert (seen.iteration, seen.count) == (2, 3)


def test_a_page_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert page.read(tmp_path / "none") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(page.MAGIC + data)
        page.read(Path(file.name))


def pages(folder: Path) -> tuple[page.Page, Path]:
    page.make(folder / "page")
    return page.Page(str(folder / "page")), folder / "page"


def laps(path: Path, after: int = 0) -> list[page.Lap]:
    seen = page.read(path)
    assert seen is not None
    return seen.laps(after)


def test_iterations_are_kept_for_a_while_with_their_losses_and_what_they_waited(
    tmp_path: Path,
) -> None:
    mine, path = pages(tmp_path)
    mine.iterated(loss=3.5)
    mine.waited(1200)
    mine.iterated(loss=float("inf"))
    assert [lap.number for lap in laps(path)] == [1], "the newest may still learn what it waited"
    mine.iterated()
    first, second = laps(path)
    assert (first.loss, first.waited_seconds, first.seconds) == (3.5, 0.0012, 0.0)
    assert (second.loss, second.waited_seconds) == (float("inf"), None)
    assert 0 < second.seconds < 1
    for _ in range(200):
        mine.iterated()
    assert [lap.number for lap in laps(path, after=100)] == list(range(140, 203))


def test_an_announced_phase_is_no_part_of_its_iteration(tmp_path: Path) -> None:
    mine, path = pages(tmp_path)
    mine.iterated()
    assert mine.enter("checkpoint") == ""
    time.sleep(0.05)
    mine.enter("")
    mine.iterated()
    mine.iterated()
    assert laps(path)[-1].seconds < 0.04


@given(st.integers(), st.integers(-5, 300), st.binary(max_size=page.SIZE))
def test_laps_of_any_page_are_few_and_harmless(after: int, count: int, raw: bytes) -> None:
    seen = page.Progress(1, 0, 0, 0, 0, count, "", False, raw=raw)
    assert len(seen.laps(after)) < page.LAPS
