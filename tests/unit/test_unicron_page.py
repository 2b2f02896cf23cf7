"""The progress page: what one process writes, another reads; nothing in it can hurt the reader."""

from __future__ import annotations

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
